#include "optim/dict.h"

#include "base/align.h"
#include "base/text.h"
#include "config/options.h"
#include "plugin/registry.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups --------------------------------------------------------------------------------------------------- */

/* A group's options and its rule; nothing is made. */
static int fill_group(struct fuse_group *group, const struct fuse_group_spec *spec, const char *const *driven,
                      size_t driven_count, struct fuse_error *error)
{
    group->component = spec->component;
    group->optimizer = spec->component->api;
    const size_t count = fuse_options_flatten(spec->component, spec->options, group->base, FUSERUN_MAX_HYPER);
    if (count > FUSERUN_MAX_HYPER)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "optimizer '%s' has %zu numbers, at most %d are possible",
                         spec->component->name, count, FUSERUN_MAX_HYPER);
    group->hyper_count = (uint32_t)count;
    memcpy(group->hyper, group->base, sizeof group->hyper);
    for (size_t i = 0; i < driven_count; i++) {
        const int index = fuse_options_flat_index(spec->component, driven[i], NULL);
        if (index >= 0)
            group->is_driven[index] = 1;
    }
    const struct fuse_optimizer *optimizer = group->optimizer;
    uint32_t rule = 0;
    if (optimizer->rule_count > 1 && optimizer->select_rule != NULL)
        rule = optimizer->select_rule(group->base, group->is_driven);
    if (rule >= optimizer->rule_count)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "optimizer '%s' selects rule %u of %u",
                         spec->component->name, rule, optimizer->rule_count);
    group->rule = optimizer->rules[rule];
    return FUSERUN_OK;
}

bool fuse_rule_runs_on(const struct fuse_rule *rule, const struct fuse_backend *backend)
{
    const bool is_whole = rule->update_tensor != NULL;
    const bool has_text = is_whole ? rule->pass_count > 0 : rule->text != NULL && rule->text[0] != '\0';
    return (!is_whole || backend->compile_tensor != NULL) && (backend->allocate_staging == NULL || has_text);
}

int fuse_dict_check_rules(const struct fuse_backend *backend, const struct fuse_group_spec *groups, size_t group_count,
                          const char *const *driven, size_t driven_count, struct fuse_error *error)
{
    for (size_t g = 0; g < group_count; g++) {
        struct fuse_group group = {0};
        FUSE_TRY(fill_group(&group, &groups[g], driven, driven_count, error));
        if (!fuse_rule_runs_on(group.rule, backend))
            return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                             "the optimizer '%s' works on the host's memory, its rule '%s' has no text for a device",
                             group.component->name, group.rule->name);
    }
    return FUSERUN_OK;
}

static int new_group(struct fuse_dict *dict, struct fuse_group *group, const struct fuse_group_spec *spec,
                     const char *const *driven, size_t driven_count, struct fuse_error *error)
{
    FUSE_TRY(fill_group(group, spec, driven, driven_count, error));
    group->name = fuse_strdup(spec->name);
    if (group->name == NULL)
        return fuse_fail_memory(error, "a parameter group", strlen(spec->name));
    if (group->rule->update_tensor != NULL)
        return FUSERUN_OK;
    return dict->backend->compile_rule(dict->device, group->rule, &group->compiled, error);
}

uint32_t fuse_group_of(const char *parameter, const struct fuse_group_spec *groups, size_t group_count)
{
    for (size_t g = 1; g < group_count; g++)
        for (size_t i = 0; i < groups[g].match_count; i++)
            if (fuse_glob_match(groups[g].match[i], parameter))
                return (uint32_t)g;
    return 0;
}

/* Sizes of states for an element-wise rule. */
static void plan_elements(const struct fuse_group *group, struct fuse_entry *entry)
{
    for (uint32_t s = 0; s < group->rule->state_count; s++)
        entry->state_counts[s] = entry->element_count;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Of one state; what a sum of sizes of all parameters cannot overflow with. */
#define MOST_STATE_ELEMENTS ((int64_t)1 << 40)

/* Behind the plan's bytes of scratch come its scratches, one after another. */
static int place_scratches(const struct fuse_group *group, const struct fuse_tensor_plan *plan,
                           struct fuse_entry *entry, uint64_t *bytes, struct fuse_error *error)
{
    *bytes = fuse_aligned(plan->scratch_bytes);
    for (uint32_t i = 0; i <= group->rule->scratch_count; i++) {
        const int64_t count = i < group->rule->scratch_count ? plan->scratch_counts[i] : plan->sum_count;
        if (count < 0 || count > MOST_STATE_ELEMENTS)
            return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                             "optimizer '%s' plans scratch or sums of %" PRId64 " elements, 0 to %" PRId64
                             " are possible",
                             group->component->name, count, MOST_STATE_ELEMENTS);
        if (i == group->rule->scratch_count)
            break;
        entry->scratch_offsets[i] = *bytes;
        *bytes += fuse_aligned((uint64_t)count * sizeof(float));
    }
    return FUSERUN_OK;
}

/* A rule that wants the parameter whole says itself what it needs. */
static int plan_tensor(struct fuse_dict *dict, const struct fuse_group *group, struct fuse_entry *entry,
                       struct fuse_error *error)
{
    if (dict->backend->compile_tensor == NULL)
        return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                         "the optimizer '%s' updates whole parameters, which this device cannot do",
                         group->component->name);
    struct fuse_tensor_plan plan = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_tensor_plan, sum_count),
                                    .rank = entry->rank,
                                    .shape = entry->shape,
                                    .hyper = group->base};
    const int status = group->rule->plan_tensor(fuse_host(), &plan, error);
    if (status != FUSERUN_OK)
        return fuse_fail_unsaid(error, status, "the optimizer's plan");
    if (plan.product_count > FUSERUN_MAX_PRODUCTS)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                         "optimizer '%s' plans %u products, FUSERUN_MAX_PRODUCTS is %d", group->component->name,
                         plan.product_count, FUSERUN_MAX_PRODUCTS);
    for (uint32_t s = 0; s < group->rule->state_count; s++) {
        if (plan.state_counts[s] < 0 || plan.state_counts[s] > MOST_STATE_ELEMENTS)
            return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                             "optimizer '%s' plans a state of %" PRId64 " elements, 0 to %" PRId64 " are possible",
                             group->component->name, plan.state_counts[s], MOST_STATE_ELEMENTS);
        entry->state_counts[s] = plan.state_counts[s];
    }
    for (uint32_t i = 0; i < plan.product_count; i++)
        if (plan.products[i].m < 1 || plan.products[i].n < 1 || plan.products[i].k < 1)
            return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "optimizer '%s' plans an empty product",
                             group->component->name);
    if (plan.scratch_bytes > (uint64_t)MOST_STATE_ELEMENTS)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "optimizer '%s' plans %" PRIu64 " bytes of scratch",
                         group->component->name, plan.scratch_bytes);
    uint64_t workspace_bytes = 0, rule_bytes = 0;
    FUSE_TRY(place_scratches(group, &plan, entry, &rule_bytes, error));
    FUSE_TRY(dict->backend->compile_tensor(dict->device, group->rule, &plan, &entry->tensor, &workspace_bytes, error));
    dict->rule_scratch_bytes = larger(dict->rule_scratch_bytes, rule_bytes);
    dict->scratch_bytes = larger(dict->scratch_bytes, workspace_bytes);
    return FUSERUN_OK;
}

/* All entries' states. Of the parameters that a rule is not meant for the first is named, the others counted. */
static int plan_states(struct fuse_dict *dict, const struct fuse_graph *graph, struct fuse_error *error)
{
    struct fuse_error refusal = FUSE_ERROR_INIT;
    uint32_t refused_group = 0, refused_parameter = 0, refused_count = 0;
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        struct fuse_entry *entry = &dict->entries[e];
        const struct fuse_group *group = &dict->groups[entry->group];
        if (group->rule->update_tensor == NULL) {
            plan_elements(group, entry);
        } else {
            struct fuse_error cause = FUSE_ERROR_INIT;
            const int status = plan_tensor(dict, group, entry, &cause);
            if (status != FUSERUN_OK && status != FUSERUN_ERROR_CONFIG) {
                *error = cause;
                return status;
            }
            if (status != FUSERUN_OK && refused_count == 0) {
                refusal = cause;
                refused_group = entry->group;
                refused_parameter = entry->parameter;
            }
            refused_count += status != FUSERUN_OK && entry->group == refused_group;
        }
        for (uint32_t s = 0; s < group->rule->state_count; s++) {
            dict->state_bytes += (uint64_t)entry->state_counts[s] * sizeof(float);
            dict->memory_bytes += fuse_aligned((uint64_t)entry->state_counts[s] * sizeof(float));
        }
    }
    dict->scratch_bytes = fuse_aligned(dict->scratch_bytes) + dict->rule_scratch_bytes;
    dict->memory_bytes += dict->scratch_bytes;
    if (refused_count == 0)
        return FUSERUN_OK;
    const struct fuse_group *group = &dict->groups[refused_group];
    char *key = refused_group == 0 ? fuse_strdup("optimizer|plugin") : fuse_format("group %s|plugin", group->name);
    char *more = refused_count == 1 ? fuse_strdup("") : fuse_format(" (and %u more)", refused_count - 1);
    const int status = fuse_fail(error, FUSERUN_ERROR_CONFIG, key, "group '%s', parameter '%s'%s: %s", group->name,
                                 graph->parameters[refused_parameter].name, more != NULL ? more : "", refusal.text);
    free(key);
    free(more);
    return status;
}

static int assign(struct fuse_dict *dict, const struct fuse_graph *graph, const struct fuse_group_spec *groups,
                  struct fuse_error *error)
{
    uint32_t *matched = calloc(dict->group_count, sizeof *matched);
    if (matched == NULL)
        return fuse_fail_memory(error, "the parameter groups", dict->group_count * sizeof *matched);
    for (uint32_t p = 0; p < graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &graph->parameters[p];
        const uint32_t group = fuse_group_of(parameter->name, groups, dict->group_count);
        matched[group]++;
        dict->entry_of_parameter[p] = UINT32_MAX;
        dict->parameter_bytes += (uint64_t)parameter->element_count * sizeof(float);
        dict->memory_bytes += fuse_aligned((uint64_t)parameter->element_count * sizeof(float));
        if (parameter->is_frozen)
            continue;
        dict->groups[group].parameter_count++;
        dict->entry_of_parameter[p] = dict->entry_count;
        struct fuse_entry *entry = &dict->entries[dict->entry_count++];
        *entry = (struct fuse_entry){
            .parameter = p,
            .group = group,
            .element_count = parameter->element_count,
            .row_count = parameter->rank == 0 ? 1 : parameter->shape[0],
            .rank = parameter->rank,
        };
        memcpy(entry->shape, parameter->shape, sizeof entry->shape);
    }
    int status = FUSERUN_OK;
    for (uint32_t g = 1; g < dict->group_count && status == FUSERUN_OK; g++)
        if (matched[g] == 0) {
            char *key = fuse_format("group %s|match", groups[g].name);
            status = fuse_fail(error, FUSERUN_ERROR_CONFIG, key != NULL ? key : "match",
                               "no parameter is left for group '%s'", groups[g].name);
            free(key);
        }
    free(matched);
    return status;
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

int fuse_dict_new(const struct fuse_graph *graph, const struct fuse_backend *backend, void *device, enum fuse_mode mode,
                  const struct fuse_group_spec *groups, size_t group_count, const char *const *driven,
                  size_t driven_count, struct fuse_dict **dict, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const size_t parameters = graph->parameter_count;
    struct fuse_dict *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "the optimizer dict", sizeof *made);
    made->backend = backend;
    made->device = device;
    made->mode = mode;
    made->parameter_count = graph->parameter_count;
    made->nonfinite_parameter = UINT32_MAX;
    made->clip.algorithm = FUSE_CLIP_AUTO;
    made->step_error = (struct fuse_error)FUSE_ERROR_INIT;
    made->groups = calloc(group_count, sizeof *made->groups);
    made->entries = calloc(parameters + 1, sizeof *made->entries);
    made->users = calloc(parameters + 1, sizeof *made->users);
    made->slices = calloc(parameters + 1, sizeof *made->slices);
    made->parameters = calloc(parameters + 1, sizeof *made->parameters);
    made->entry_of_parameter = calloc(parameters + 1, sizeof *made->entry_of_parameter);
    if (made->groups == NULL || made->entries == NULL || made->users == NULL || made->slices == NULL ||
        made->parameters == NULL || made->entry_of_parameter == NULL) {
        status = fuse_fail_memory(error, "the optimizer dict", parameters * sizeof *made->entries);
        goto out;
    }
    for (size_t g = 0; g < group_count; g++) {
        made->group_count++;
        FUSE_TRY_OUT(new_group(made, &made->groups[g], &groups[g], driven, driven_count, error));
    }
    FUSE_TRY_OUT(assign(made, graph, groups, error));
    FUSE_TRY_OUT(plan_states(made, graph, error));
    *dict = made;
    made = NULL;
out:
    fuse_dict_free(&made);
    return status;
}

void fuse_dict_free(struct fuse_dict **dict)
{
    struct fuse_dict *freed = *dict;
    if (freed == NULL)
        return;
    for (uint32_t e = 0; e < freed->entry_count; e++)
        if (freed->entries[e].tensor != NULL)
            freed->backend->discard_tensor(freed->device, freed->entries[e].tensor);
    for (uint32_t g = 0; g < freed->group_count; g++) {
        free(freed->groups[g].name);
        if (freed->groups[g].compiled != NULL)
            freed->backend->discard_rule(freed->device, freed->groups[g].compiled);
    }
    if (freed->memory != NULL)
        freed->backend->release(freed->device, freed->memory, freed->memory_bytes);
    free(freed->groups);
    free(freed->entries);
    free(freed->users);
    fuse_clip_free(freed);
    free(freed->slices);
    free(freed->parameters);
    free(freed->entry_of_parameter);
    free(freed);
    *dict = NULL;
}

/* In place where the host may write to the device's memory, else by way of memory of the host's. */
static int fill_parameters(struct fuse_dict *dict, const struct fuse_graph *graph, uint64_t seed,
                           struct fuse_error *error)
{
    const bool is_direct = dict->backend->allocate_staging == NULL;
    int status = FUSERUN_OK;
    int64_t most = 0;
    for (uint32_t p = 0; p < graph->parameter_count; p++)
        most = graph->parameters[p].element_count > most ? graph->parameters[p].element_count : most;
    float *values = is_direct ? NULL : malloc((size_t)most * sizeof *values);
    if (!is_direct && values == NULL)
        return fuse_fail_memory(error, "a parameter's first values", (size_t)most * sizeof *values);
    for (uint32_t p = 0; p < graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &graph->parameters[p];
        fuse_parameter_fill(parameter, p, seed, is_direct ? dict->parameters[p] : values);
        if (!is_direct)
            FUSE_TRY_OUT(dict->backend->upload(dict->device, dict->parameters[p], values,
                                               (uint64_t)parameter->element_count * sizeof *values, error));
    }
out:
    free(values);
    return status;
}

int fuse_dict_allocate(struct fuse_dict *dict, const struct fuse_graph *graph, uint64_t seed, struct fuse_error *error)
{
    void *memory = NULL;
    FUSE_TRY(dict->backend->allocate(dict->device, dict->memory_bytes, &memory, error));
    dict->memory = memory;
    char *next = dict->memory;
    for (uint32_t p = 0; p < graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &graph->parameters[p];
        dict->parameters[p] = (float *)(void *)next;
        next += fuse_aligned((uint64_t)parameter->element_count * sizeof(float));
    }
    FUSE_TRY(fill_parameters(dict, graph, seed, error));
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        struct fuse_entry *entry = &dict->entries[e];
        entry->values = dict->parameters[entry->parameter];
        for (uint32_t s = 0; s < dict->groups[entry->group].rule->state_count; s++) {
            entry->states[s] = (float *)(void *)next; /* the backend's memory starts as zero */
            next += fuse_aligned((uint64_t)entry->state_counts[s] * sizeof(float));
        }
    }
    dict->scratch = next;
    return fuse_clip_allocate(dict, error);
}

const char *fuse_rule_name(const char *list, uint32_t index, size_t *length)
{
    const char *at = list == NULL ? "" : list + strspn(list, "( ");
    for (; index > 0 && *at != '\0'; index--) {
        at += strcspn(at, " ,)");
        at += strspn(at, " ,");
    }
    *length = strcspn(at, " ,)");
    return *length == 0 ? NULL : at;
}
