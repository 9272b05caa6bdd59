/* The step: an update's scalars before the backward pass, the update itself inside it or after it, counts at its end.
 */
#include "optim/dict.h"

#include <string.h>

void fuse_dict_begin(struct fuse_dict *dict)
{
    dict->nonfinite_parameter = UINT32_MAX;
    dict->step_error.code = FUSERUN_OK;
    dict->watch_count = 0;
    if (dict->backend->watch_begin != NULL)
        (void)dict->backend->watch_begin(dict->device, &dict->step_error); /* told at the end */
    fuse_clip_begin(dict);
    const struct fuse_entry *previous = NULL; /* often of the same group and count: then its scalars serve again */
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        struct fuse_entry *entry = &dict->entries[e];
        const struct fuse_group *group = &dict->groups[entry->group];
        entry->is_updated = false;
        entry->watch_order = 0;
        if (previous != NULL && previous->group == entry->group && previous->step == entry->step &&
            memcmp(previous->numbers, entry->numbers, sizeof entry->numbers) == 0) {
            memcpy(entry->scalars, previous->scalars, sizeof entry->scalars);
            memcpy(entry->next_numbers, previous->next_numbers, sizeof entry->next_numbers);
            continue;
        }
        memcpy(entry->next_numbers, entry->numbers, sizeof entry->numbers);
        const struct fuse_update update = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_update, numbers),
                                           .hyper_count = group->hyper_count,
                                           .hyper = group->hyper,
                                           .step = entry->step + 1,
                                           .numbers = entry->next_numbers};
        double scalars[FUSERUN_MAX_SCALARS] = {0};
        group->optimizer->prepare(&update, scalars);
        for (uint32_t s = 0; s < group->rule->scalar_count; s++)
            entry->scalars[s] = (float)scalars[s];
        previous = entry;
    }
}

/* A device that works behind the host's back tells only now what it noticed. What the host asked of it after that
 * gradient was not done: updates of gradients that came later, in the other modes of all. */
static int ask_device(struct fuse_dict *dict, struct fuse_error *error)
{
    uint32_t noticed = UINT32_MAX;
    if (dict->backend->watched == NULL)
        return FUSERUN_OK;
    FUSE_TRY(dict->backend->watched(dict->device, &noticed, error));
    if (noticed >= dict->parameter_count || dict->entry_of_parameter[noticed] == UINT32_MAX)
        return FUSERUN_OK;
    if (dict->nonfinite_parameter == UINT32_MAX)
        dict->nonfinite_parameter = noticed;
    const uint64_t order = dict->entries[dict->entry_of_parameter[noticed]].watch_order;
    for (uint32_t e = 0; e < dict->entry_count; e++)
        if (dict->mode != FUSE_MODE_FUSED || dict->entries[e].watch_order >= order)
            dict->entries[e].is_updated = false;
    return FUSERUN_OK;
}

int fuse_dict_end(struct fuse_dict *dict, struct fuse_error *error)
{
    FUSE_TRY(ask_device(dict, error));
    fuse_clip_end(dict);
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        struct fuse_entry *entry = &dict->entries[e];
        if (!entry->is_updated)
            continue;
        entry->step++;
        memcpy(entry->numbers, entry->next_numbers, sizeof entry->numbers);
    }
    if (dict->step_error.code != FUSERUN_OK)
        *error = dict->step_error;
    return dict->step_error.code;
}

/* Callbacks may run on several threads at once, though only for one parameter at a time: the first to notice wins. */
static void watch(struct fuse_dict *dict, uint32_t parameter, const struct fuse_gradient *gradient)
{
    uint32_t none = UINT32_MAX;
    if (dict->backend->watch != NULL) {
        struct fuse_entry *entry = &dict->entries[dict->entry_of_parameter[parameter]];
        dict->watch_count++;
        entry->watch_order = entry->watch_order == 0 ? dict->watch_count : entry->watch_order;
        dict->backend->watch(dict->device, gradient->values, gradient->count, parameter);
        return;
    }
    if (dict->backend->has_nonfinite(dict->device, gradient->values, gradient->count))
        (void)__atomic_compare_exchange_n(&dict->nonfinite_parameter, &none, parameter, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED);
}

static void watch_gradient(void *user, const struct fuse_gradient *gradient)
{
    const struct fuse_dict_user *entry = user;
    watch(entry->dict, entry->dict->entries[entry->entry].parameter, gradient);
}

static struct fuse_slice slice_of(const struct fuse_entry *entry, const struct fuse_group *group, float *const *states,
                                  const float *gradient, int64_t first, int64_t count)
{
    return (struct fuse_slice){.struct_size = FUSERUN_STRUCT_SIZE(fuse_slice, first),
                               .state_count = group->rule->state_count,
                               .param = entry->values + first,
                               .grad = gradient,
                               .states = states,
                               .scalars = entry->scalars,
                               .count = count,
                               .first = first};
}

static int update_whole(struct fuse_dict *dict, struct fuse_entry *entry, const float *gradient,
                        struct fuse_error *error)
{
    const struct fuse_group *group = &dict->groups[entry->group];
    entry->is_updated = true;
    if (entry->tensor != NULL) {
        float *scratches[FUSERUN_MAX_SCRATCHES];
        for (uint32_t i = 0; i < group->rule->scratch_count; i++)
            scratches[i] = (float *)(void *)(dict->scratch + entry->scratch_offsets[i]);
        const struct fuse_tensor_update update = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_tensor_update, run_pass),
                                                  .rank = entry->rank,
                                                  .shape = entry->shape,
                                                  .param = entry->values,
                                                  .grad = gradient,
                                                  .states = entry->states,
                                                  .scalars = entry->scalars,
                                                  .scratch = dict->scratch,
                                                  .workspace = dict->scratch + dict->rule_scratch_bytes,
                                                  .scratches = scratches};
        const int status = dict->backend->update_tensor(dict->device, entry->tensor, &update, error);
        return status == FUSERUN_OK ? status : fuse_fail_unsaid(error, status, "the optimizer's rule");
    }
    const struct fuse_slice slice = slice_of(entry, group, entry->states, gradient, 0, entry->element_count);
    return dict->backend->update(dict->device, group->compiled, &slice, 1, error);
}

/* The fused step: a post-accumulate callback of one parameter, handed its gradient whole or a panel at a time. */
static void update_gradient(void *user, const struct fuse_gradient *gradient)
{
    const struct fuse_dict_user *owner = user;
    struct fuse_dict *dict = owner->dict;
    struct fuse_entry *entry = &dict->entries[owner->entry];
    const struct fuse_group *group = &dict->groups[entry->group];
    if (!dict->clip.is_measured)
        watch(dict, entry->parameter, gradient);
    /* No weight takes in what follows from a NaN: one that is not finite afterwards shows that a rule made it so. */
    if (__atomic_load_n(&dict->nonfinite_parameter, __ATOMIC_RELAXED) != UINT32_MAX)
        return;
    fuse_clip_note(dict, owner->entry, gradient);
    fuse_clip_apply(dict, gradient->values, gradient->count, gradient->is_panel != 0);
    if (!gradient->is_panel) {
        if (dict->step_error.code == FUSERUN_OK)
            (void)update_whole(dict, entry, gradient->values, &dict->step_error);
        return;
    }
    float *states[FUSERUN_MAX_STATES];
    for (uint32_t s = 0; s < group->rule->state_count; s++)
        states[s] = entry->states[s] + gradient->first;
    const struct fuse_slice slice = slice_of(entry, group, states, gradient->values, gradient->first, gradient->count);
    __atomic_store_n(&entry->is_updated, true, __ATOMIC_RELAXED);
    dict->backend->update_panel(dict->device, group->compiled, &slice);
}

_Static_assert(FUSERUN_MAX_SPANS == 1 + FUSERUN_MAX_STATES, "a weight and its states");

/* What the update of a panel reads and writes: the weight and its rule's states. */
static uint32_t panel_spans(void *user, int64_t first, int64_t count, struct fuse_span *spans)
{
    const struct fuse_dict_user *owner = user;
    const struct fuse_entry *entry = &owner->dict->entries[owner->entry];
    const uint32_t state_count = owner->dict->groups[entry->group].rule->state_count;
    const uint64_t bytes = (uint64_t)count * sizeof(float);
    spans[0] = (struct fuse_span){entry->values + first, bytes};
    for (uint32_t s = 0; s < state_count; s++)
        spans[1 + s] = (struct fuse_span){entry->states[s] + first, bytes};
    return 1 + state_count;
}

int fuse_dict_attach(struct fuse_dict *dict, struct fuse_graph *graph, struct fuse_error *error)
{
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        const struct fuse_entry *entry = &dict->entries[e];
        const struct fuse_component *component = dict->groups[entry->group].component;
        const bool takes_panels = entry->tensor == NULL && dict->clip.max_parameter_norm == 0 &&
                                  (component->capabilities & FUSERUN_OPTIMIZER_ELEMENTWISE) != 0;
        dict->users[e] = (struct fuse_dict_user){dict, e};
        const struct fuse_gradient_callback callback = {
            .struct_size = FUSERUN_STRUCT_SIZE(fuse_gradient_callback, spans),
            .form = takes_panels ? FUSERUN_GRADIENT_PANELS : FUSERUN_GRADIENT_WHOLE,
            .gradient = dict->mode == FUSE_MODE_FUSED ? update_gradient : watch_gradient,
            .user = &dict->users[e],
            .spans = takes_panels && dict->mode == FUSE_MODE_FUSED ? panel_spans : NULL};
        FUSE_TRY(fuse_graph_attach(graph, entry->parameter, &callback, error));
    }
    return FUSERUN_OK;
}

enum fuse_gradient_use fuse_dict_gradient_use(const struct fuse_dict *dict)
{
    switch (dict->mode) {
    case FUSE_MODE_PER_PARAM:
        return FUSE_GRADIENTS_KEEP_EACH;
    case FUSE_MODE_FOREACH:
        return FUSE_GRADIENTS_KEEP_ALL;
    case FUSE_MODE_FUSED:
        break;
    }
    return FUSE_GRADIENTS_RELEASE;
}

/* All entries of one group that have a gradient, in one call. */
static int update_group(struct fuse_dict *dict, uint32_t group, float *const *gradients, struct fuse_error *error)
{
    int64_t count = 0;
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        struct fuse_entry *entry = &dict->entries[e];
        float *gradient = gradients[entry->parameter];
        if (entry->group != group || gradient == NULL)
            continue;
        fuse_clip_apply(dict, gradient, entry->element_count, false);
        if (entry->tensor != NULL) {
            FUSE_TRY(update_whole(dict, entry, gradient, error));
            continue;
        }
        dict->slices[count++] = slice_of(entry, &dict->groups[group], entry->states, gradient, 0, entry->element_count);
        entry->is_updated = true;
    }
    return count == 0 ? FUSERUN_OK
                      : dict->backend->update(dict->device, dict->groups[group].compiled, dict->slices, count, error);
}

int fuse_dict_after_backward(void *user, uint32_t parameter, float *const *gradients, struct fuse_error *error)
{
    struct fuse_dict *dict = user;
    if (dict->nonfinite_parameter != UINT32_MAX)
        return FUSERUN_OK; /* whoever runs the update decides what that means; no weight has moved */
    if (parameter == UINT32_MAX) {
        for (uint32_t g = 0; g < dict->group_count; g++)
            FUSE_TRY(update_group(dict, g, gradients, error));
        return FUSERUN_OK;
    }
    const uint32_t e = dict->entry_of_parameter[parameter];
    if (e == UINT32_MAX || gradients[parameter] == NULL)
        return FUSERUN_OK;
    struct fuse_entry *entry = &dict->entries[e];
    fuse_clip_apply(dict, gradients[parameter], entry->element_count, false);
    return update_whole(dict, entry, gradients[parameter], error);
}
