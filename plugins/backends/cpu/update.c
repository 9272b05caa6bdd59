#include "update.h"
#include "threads.h"

#include <stdlib.h>

struct fuse_compiled_rule {
    const struct fuse_rule *rule;
};

int fuse_update_compile(const struct fuse_cpu *cpu, const struct fuse_rule *rule, struct fuse_compiled_rule **compiled,
                        struct fuse_error *error)
{
    *compiled = NULL;
    if (rule->update_slice == NULL || rule->update_foreach == NULL || rule->state_count > FUSERUN_MAX_STATES ||
        rule->scalar_count > FUSERUN_MAX_SCALARS)
        return cpu->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                               "rule %s lacks a loop or has more than %d states or %d scalars", rule->name,
                               FUSERUN_MAX_STATES, FUSERUN_MAX_SCALARS);
    struct fuse_compiled_rule *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return cpu->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for rule %s", rule->name);
    self->rule = rule;
    *compiled = self;
    return FUSERUN_OK;
}

void fuse_update_discard(struct fuse_compiled_rule *compiled)
{
    free(compiled);
}

void fuse_update_panel(const struct fuse_compiled_rule *compiled, const struct fuse_slice *slice)
{
    compiled->rule->update_slice(slice);
}

struct run {
    const struct fuse_rule *rule;
    const struct fuse_slice *slices;
    int64_t slice_count;
};

/* Elements [begin, end) of all slices laid end to end: whole slices in bundles, the pieces at both ends apart. */
static void update_range(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    int64_t at = 0, index = 0;
    while (index < run->slice_count && at + run->slices[index].count <= begin)
        at += run->slices[index++].count;
    while (index < run->slice_count && at < end) {
        const struct fuse_slice *const slice = &run->slices[index];
        if (at >= begin && at + slice->count <= end) {
            int64_t whole = 0;
            while (index + whole < run->slice_count && at + run->slices[index + whole].count <= end)
                at += run->slices[index + whole++].count;
            run->rule->update_foreach(slice, whole);
            index += whole;
            continue;
        }
        const int64_t from = begin > at ? begin - at : 0;
        const int64_t to = end - at < slice->count ? end - at : slice->count;
        float *states[FUSERUN_MAX_STATES];
        for (uint32_t i = 0; i < slice->state_count; i++)
            states[i] = slice->states[i] + from;
        struct fuse_slice piece = *slice;
        piece.param += from;
        piece.grad += from;
        piece.states = states;
        piece.count = to - from;
        piece.first += from;
        run->rule->update_slice(&piece);
        at += slice->count;
        index++;
    }
}

int fuse_update_slices(const struct fuse_cpu *cpu, const struct fuse_compiled_rule *compiled,
                       const struct fuse_slice *slices, int64_t slice_count)
{
    const struct run run = {compiled->rule, slices, slice_count};
    int64_t count = 0;
    for (int64_t i = 0; i < slice_count; i++)
        count += slices[i].count;
    fuse_threads_split(cpu->thread_count, count, 16, FUSE_SERIAL_ELEMENTS, update_range, &run);
    return FUSERUN_OK;
}
