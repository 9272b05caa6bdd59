#include "memory/ledger.h"

#include "base/now.h"

#include <stdlib.h>
#include <string.h>

const char *fuse_category_name(enum fuse_category category)
{
    static const char *const names[FUSE_CATEGORY_COUNT] = {"parameter",  "gradient",  "optimizer_state",
                                                           "activation", "workspace", "data"};
    return category < FUSE_CATEGORY_COUNT ? names[category] : "unknown";
}

const char *fuse_phase_name(enum fuse_phase phase)
{
    static const char *const names[FUSE_PHASE_COUNT] = {"forward", "backward", "optimizer"};
    return phase < FUSE_PHASE_COUNT ? names[phase] : "unknown";
}

/* A list of operations, and what was seen of its buffers in its last run. */
struct pass {
    const struct fuse_ledger_buffer *buffers;
    const enum fuse_phase *phases;
    size_t buffer_count, time_count;
    uint32_t *first, *last;           /* of the run that is under way; first > last: not touched */
    uint32_t *seen_first, *seen_last; /* of the last complete run */
    bool is_seen;
};

struct fuse_ledger {
    uint64_t persistent[FUSE_CATEGORY_COUNT];
    struct pass *passes;
    size_t pass_count;
    struct pass *current;
    int64_t *end_ns; /* borrowed; of the run that is next or under way; NULL: nobody asks */
    struct fuse_peak peak;
};

/* Lives never seen: first > last. */
static void clear_lives(struct pass *pass)
{
    memset(pass->first, 0xff, pass->buffer_count * sizeof *pass->first);
    memset(pass->last, 0, pass->buffer_count * sizeof *pass->last);
}

void fuse_peak_of(const struct fuse_ledger_buffer *buffers, const uint32_t *first, const uint32_t *last,
                  size_t buffer_count, const enum fuse_phase *phases, size_t time_count,
                  const uint64_t persistent[FUSE_CATEGORY_COUNT], struct fuse_peak *peak)
{
    *peak = (struct fuse_peak){0};
    for (size_t time = 0; time < (time_count == 0 ? 1 : time_count); time++) {
        struct fuse_peak now = {.time = (uint32_t)time, .phase = time_count == 0 ? FUSE_PHASE_FORWARD : phases[time]};
        memcpy(now.category_bytes, persistent, sizeof now.category_bytes);
        for (size_t i = 0; i < buffer_count; i++)
            if (first[i] <= time && time <= last[i])
                now.category_bytes[buffers[i].category] += buffers[i].bytes;
        for (int category = 0; category < FUSE_CATEGORY_COUNT; category++)
            now.bytes += now.category_bytes[category];
        if (now.bytes > peak->bytes || time == 0)
            *peak = now;
    }
}

int fuse_ledger_new(struct fuse_ledger **ledger, struct fuse_error *error)
{
    *ledger = calloc(1, sizeof **ledger);
    return *ledger == NULL ? fuse_fail_memory(error, "the memory ledger", sizeof **ledger) : FUSERUN_OK;
}

void fuse_ledger_free(struct fuse_ledger **ledger)
{
    if (*ledger == NULL)
        return;
    for (size_t i = 0; i < (*ledger)->pass_count; i++)
        free((*ledger)->passes[i].first);
    free((*ledger)->passes);
    free(*ledger);
    *ledger = NULL;
}

void fuse_ledger_add_persistent(struct fuse_ledger *ledger, enum fuse_category category, uint64_t bytes)
{
    ledger->persistent[category] += bytes;
    ledger->peak.category_bytes[category] += bytes;
    ledger->peak.bytes += bytes;
}

const uint64_t *fuse_ledger_persistent(const struct fuse_ledger *ledger)
{
    return ledger->persistent;
}

int fuse_ledger_add_pass(struct fuse_ledger *ledger, const struct fuse_ledger_buffer *buffers, size_t buffer_count,
                         const enum fuse_phase *phases, size_t time_count, uint32_t *pass, struct fuse_error *error)
{
    const size_t bytes = (ledger->pass_count + 1) * sizeof *ledger->passes;
    struct pass *passes = realloc(ledger->passes, bytes);
    if (passes == NULL)
        return fuse_fail_memory(error, "the memory ledger", bytes);
    ledger->passes = passes;
    struct pass *added = &passes[ledger->pass_count];
    *added =
        (struct pass){.buffers = buffers, .phases = phases, .buffer_count = buffer_count, .time_count = time_count};
    added->first = malloc(4 * (buffer_count + 1) * sizeof *added->first);
    if (added->first == NULL)
        return fuse_fail_memory(error, "the memory ledger", 4 * (buffer_count + 1) * sizeof *added->first);
    added->last = added->first + buffer_count + 1;
    added->seen_first = added->last + buffer_count + 1;
    added->seen_last = added->seen_first + buffer_count + 1;
    *pass = (uint32_t)ledger->pass_count++;
    return FUSERUN_OK;
}

void fuse_ledger_begin(struct fuse_ledger *ledger, uint32_t pass)
{
    ledger->current = &ledger->passes[pass];
    clear_lives(ledger->current);
}

void fuse_ledger_touch(struct fuse_ledger *ledger, uint32_t buffer, uint32_t time)
{
    struct pass *pass = ledger->current;
    if (time < pass->first[buffer])
        pass->first[buffer] = time;
    if (time > pass->last[buffer])
        pass->last[buffer] = time;
}

void fuse_ledger_end(struct fuse_ledger *ledger)
{
    struct pass *pass = ledger->current;
    const size_t bytes = pass->buffer_count * sizeof *pass->first;
    ledger->current = NULL;
    ledger->end_ns = NULL;
    /* Every run of a pass touches the same buffers at the same times; the sums are made again only if one did not. */
    if (pass->is_seen && memcmp(pass->first, pass->seen_first, bytes) == 0 &&
        memcmp(pass->last, pass->seen_last, bytes) == 0)
        return;
    memcpy(pass->seen_first, pass->first, bytes);
    memcpy(pass->seen_last, pass->last, bytes);
    pass->is_seen = true;
    struct fuse_peak peak;
    fuse_peak_of(pass->buffers, pass->seen_first, pass->seen_last, pass->buffer_count, pass->phases, pass->time_count,
                 ledger->persistent, &peak);
    if (peak.bytes > ledger->peak.bytes)
        ledger->peak = peak;
}

void fuse_ledger_time(struct fuse_ledger *ledger, int64_t *end_ns)
{
    ledger->end_ns = end_ns;
}

void fuse_ledger_done(struct fuse_ledger *ledger, uint32_t time)
{
    if (ledger->end_ns != NULL)
        ledger->end_ns[time] = fuse_now_ns();
}

const struct fuse_peak *fuse_ledger_peak(const struct fuse_ledger *ledger)
{
    return &ledger->peak;
}

bool fuse_ledger_life(const struct fuse_ledger *ledger, uint32_t pass, uint32_t buffer, uint32_t *first, uint32_t *last)
{
    const struct pass *seen = &ledger->passes[pass];
    if (!seen->is_seen || seen->seen_first[buffer] > seen->seen_last[buffer])
        return false;
    *first = seen->seen_first[buffer];
    *last = seen->seen_last[buffer];
    return true;
}

uint64_t fuse_ledger_category_peak(const struct fuse_ledger *ledger, uint32_t pass, enum fuse_category category)
{
    const struct pass *seen = &ledger->passes[pass];
    uint64_t peak = 0;
    for (size_t time = 0; seen->is_seen && time < seen->time_count; time++) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < seen->buffer_count; i++)
            if (seen->buffers[i].category == category && seen->seen_first[i] <= time && time <= seen->seen_last[i])
                bytes += seen->buffers[i].bytes;
        peak = bytes > peak ? bytes : peak;
    }
    return peak;
}
