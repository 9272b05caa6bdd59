#include "optim/clock.h"

#include "base/number.h"
#include "config/options.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct fuse_component *source_component(void *user, const char *section)
{
    return fuse_config_component(user, section);
}

static const struct fuse_options *source_options(void *user, const char *section)
{
    return fuse_config_options(user, section);
}

/* ---- building ------------------------------------------------------------------------------------------------ */

static int add_driven(struct fuse_clock *clock, const char *name, struct fuse_error *error)
{
    for (size_t i = 0; i < clock->driven_count; i++) {
        if (strcmp(clock->driven[i], name) == 0)
            return FUSERUN_OK;
    }
    const char **driven = realloc(clock->driven, (clock->driven_count + 1) * sizeof *driven);
    if (driven == NULL)
        return fuse_fail_memory(error, "the clock", (clock->driven_count + 1) * sizeof *driven);
    clock->driven = driven;
    driven[clock->driven_count++] = name;
    return FUSERUN_OK;
}

/* option NULL: the cycled momentum. */
static int add_curve(struct fuse_clock *clock, const char *section, const char *option, struct fuse_schedule *schedule,
                     bool unit_is_epoch, struct fuse_error *error)
{
    struct fuse_clock_curve *curves = realloc(clock->curves, (clock->curve_count + 1) * sizeof *curves);
    if (curves == NULL)
        return fuse_fail_memory(error, "the clock", (clock->curve_count + 1) * sizeof *curves);
    clock->curves = curves;
    curves[clock->curve_count] = (struct fuse_clock_curve){
        .section = fuse_strdup(section), .option = option, .schedule = schedule, .unit_is_epoch = unit_is_epoch};
    if (curves[clock->curve_count++].section == NULL)
        return fuse_fail_memory(error, "the clock", strlen(section));
    if (option != NULL)
        return add_driven(clock, option, error);
    /* Which of the two it is differs from group to group; the dict must know of both. */
    FUSE_TRY(add_driven(clock, "momentum", error));
    return add_driven(clock, "beta1", error);
}

/* "SECTION|KEY" of fuse_schedule_build to the line it means. */
static void report_schedule(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, const char *root,
                            const struct fuse_error *cause)
{
    char section[sizeof cause->key];
    memcpy(section, cause->key, sizeof section);
    char *bar = strchr(section, '|');
    const char *key = NULL;
    if (bar != NULL) {
        *bar = '\0';
        key = bar[1] != '\0' ? bar + 1 : NULL;
    }
    fuse_config_report(config, diagnostics, section[0] != '\0' ? section : root, key != NULL ? key : "plugin", "%s",
                       cause->text);
}

struct metric_target {
    const struct fuse_config *config;
    struct fuse_diagnostics *diagnostics;
};

/* A metric that the run will never have would leave its schedule where it starts, silently. */
static void check_metric(void *user, const char *section, const char *metric)
{
    const struct metric_target *target = user;
    const struct fuse_options *loss = fuse_config_options(target->config, "loss");
    const char *kind = loss != NULL ? fuse_option_text(loss, "kind") : NULL;
    if (strcmp(metric, "eval_loss") != 0 && strcmp(metric, "eval_accuracy") != 0)
        fuse_config_report(target->config, target->diagnostics, section, "metric",
                           "the schedule follows '%s', but evaluations give eval_loss and eval_accuracy", metric);
    else if (fuse_config_options(target->config, "eval") == NULL)
        fuse_config_report(target->config, target->diagnostics, section, "metric",
                           "the schedule follows %s, but the config has no [eval] section to give it", metric);
    else if (strcmp(metric, "eval_accuracy") == 0 && kind != NULL && strcmp(kind, "cross_entropy") != 0)
        fuse_config_report(target->config, target->diagnostics, section, "metric",
                           "there is no eval_accuracy with loss.kind = %s; eval_loss is always there", kind);
}

/* One root section, if it is there. */
static int add_section(struct fuse_clock *clock, const struct fuse_config *config, const char *section,
                       struct fuse_diagnostics *diagnostics, struct fuse_error *error)
{
    const struct fuse_schedule_source source = {source_component, source_options, (void *)config};
    const struct fuse_options *options = fuse_config_options(config, section);
    if (options == NULL || fuse_config_component(config, section) == NULL)
        return FUSERUN_OK;
    size_t driven_count = 0;
    const char *const *driven = fuse_option_texts(options, "drives", &driven_count);
    const char *unit = fuse_option_text(options, "unit");
    const bool unit_is_epoch = unit != NULL && strcmp(unit, "epoch") == 0;
    int64_t length = clock->total_updates;
    if (unit_is_epoch)
        length = (length + clock->updates_per_epoch - 1) / clock->updates_per_epoch;
    struct fuse_schedule **schedules = realloc(clock->schedules, (clock->schedule_count + 1) * sizeof *schedules);
    if (schedules == NULL)
        return fuse_fail_memory(error, "the clock", (clock->schedule_count + 1) * sizeof *schedules);
    clock->schedules = schedules;
    struct fuse_error cause = FUSE_ERROR_INIT;
    struct fuse_schedule *schedule = NULL;
    const int status =
        fuse_schedule_build(&source, section, length, unit_is_epoch, clock->updates_per_epoch, &schedule, &cause);
    if (status == FUSERUN_ERROR_MEMORY) {
        *error = cause;
        return status;
    }
    if (status != FUSERUN_OK) {
        report_schedule(config, diagnostics, section, &cause);
        return FUSERUN_OK; /* the other sections may have mistakes of their own to tell */
    }
    schedules[clock->schedule_count++] = schedule;
    struct metric_target target = {config, diagnostics};
    fuse_schedule_metrics(schedule, check_metric, &target);
    for (size_t i = 0; i < driven_count; i++)
        FUSE_TRY(add_curve(clock, section, driven[i], schedule, unit_is_epoch, error));
    if (fuse_schedule_cycles_momentum(schedule))
        FUSE_TRY(add_curve(clock, section, NULL, schedule, unit_is_epoch, error));
    return FUSERUN_OK;
}

int fuse_clock_new(const struct fuse_config *config, int64_t updates_per_epoch, int64_t total_updates,
                   struct fuse_diagnostics *diagnostics, struct fuse_clock **clock, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const size_t errors = fuse_diagnostics_error_count(diagnostics);
    struct fuse_clock *made = calloc(1, sizeof *made);
    *clock = NULL;
    if (made == NULL)
        return fuse_fail_memory(error, "the clock", sizeof *made);
    made->updates_per_epoch = updates_per_epoch;
    made->total_updates = total_updates;
    FUSE_TRY_OUT(add_section(made, config, "scheduler", diagnostics, error));
    for (size_t i = 0; i < fuse_config_scheduler_count(config); i++) {
        const char *option = fuse_config_scheduler_option(config, i);
        char *section = fuse_format("scheduler %s", option);
        if (section == NULL) {
            status = fuse_fail_memory(error, "the clock", strlen(option));
            goto out;
        }
        status = add_section(made, config, section, diagnostics, error);
        free(section);
        if (status != FUSERUN_OK)
            goto out;
    }
    if (fuse_diagnostics_error_count(diagnostics) > errors)
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the schedules cannot be made");
out:
    if (status != FUSERUN_OK)
        fuse_clock_free(&made);
    *clock = made;
    return status;
}

void fuse_clock_free(struct fuse_clock **clock)
{
    struct fuse_clock *old = *clock;
    if (old == NULL)
        return;
    for (size_t i = 0; i < old->curve_count; i++) {
        free(old->curves[i].section);
        free(old->curves[i].hyper);
    }
    for (size_t i = 0; i < old->schedule_count; i++)
        fuse_schedule_free(&old->schedules[i]);
    free(old->curves);
    free(old->schedules);
    free(old->driven);
    free(old->columns);
    free(old);
    *clock = NULL;
}

/* ---- binding to the groups ----------------------------------------------------------------------------------- */

/* The schedulable number `name` of a group; -1 if its optimizer has none. */
static int32_t find_driven(const struct fuse_group *group, const char *name)
{
    bool is_schedulable = false;
    const int index = fuse_options_flat_index(group->component, name, &is_schedulable);
    return index >= 0 && is_schedulable ? index : -1;
}

static const char *momentum_name(const struct fuse_group *group)
{
    if (find_driven(group, "momentum") >= 0)
        return "momentum";
    return find_driven(group, "beta1") >= 0 ? "beta1" : NULL;
}

static const char *driven_name(const struct fuse_clock_curve *curve, const struct fuse_group *group)
{
    return curve->option != NULL ? curve->option : momentum_name(group);
}

static void bind_curve(struct fuse_clock_curve *curve, const struct fuse_dict *dict, const struct fuse_config *config,
                       struct fuse_diagnostics *diagnostics)
{
    bool is_found = false;
    for (uint32_t g = 0; g < dict->group_count; g++) {
        const struct fuse_group *group = &dict->groups[g];
        const char *name = driven_name(curve, group);
        curve->hyper[g] = name != NULL ? find_driven(group, name) : -1;
        is_found = is_found || curve->hyper[g] >= 0;
        if (name == NULL && group->parameter_count > 0)
            fuse_config_report(config, diagnostics, fuse_schedule_momentum_section(curve->schedule), "cycle_momentum",
                               "the optimizer '%s' of group '%s' has neither momentum nor beta1 to cycle: set "
                               "cycle_momentum = no",
                               group->component->name, group->name);
    }
    if (!is_found && curve->option != NULL)
        fuse_config_report(config, diagnostics, curve->section,
                           strcmp(curve->section, "scheduler") == 0 ? "drives" : "plugin",
                           "no group's optimizer has an option '%s' that a scheduler may drive", curve->option);
}

/* Two curves on one number would leave the result to their order. */
static void refuse_overlap(const struct fuse_clock *clock, const struct fuse_dict *dict,
                           const struct fuse_config *config, struct fuse_diagnostics *diagnostics)
{
    for (size_t a = 0; a < clock->curve_count; a++) {
        for (size_t b = a + 1; b < clock->curve_count; b++) {
            const struct fuse_clock_curve *first = &clock->curves[a];
            const struct fuse_clock_curve *second = &clock->curves[b];
            for (uint32_t g = 0; g < dict->group_count; g++) {
                if (first->hyper[g] < 0 || first->hyper[g] != second->hyper[g])
                    continue;
                const bool is_cycled = first->option == NULL || second->option == NULL;
                fuse_config_report(config, diagnostics, second->section,
                                   strcmp(second->section, "scheduler") == 0 ? "drives" : "plugin",
                                   "'%s' of group '%s' is driven by [%s] too%s", driven_name(second, &dict->groups[g]),
                                   dict->groups[g].name, first->section,
                                   is_cycled ? "; cycle_momentum = no leaves it to one of them" : "");
                break;
            }
        }
    }
}

static void add_column(struct fuse_clock *clock, const char *option, uint32_t group, int32_t hyper)
{
    if (hyper < 0)
        return;
    for (size_t i = 0; i < clock->column_count; i++) {
        if (clock->columns[i].group == group && clock->columns[i].hyper == (uint32_t)hyper)
            return;
    }
    clock->columns[clock->column_count++] = (struct fuse_clock_column){option, group, (uint32_t)hyper};
}

static int make_columns(struct fuse_clock *clock, const struct fuse_dict *dict, struct fuse_error *error)
{
    const size_t most = (clock->driven_count + 1) * dict->group_count;
    clock->columns = calloc(most + 1, sizeof *clock->columns);
    clock->column_count = 0;
    if (clock->columns == NULL)
        return fuse_fail_memory(error, "the clock", most * sizeof *clock->columns);
    for (uint32_t g = 0; g < dict->group_count; g++) {
        if (dict->groups[g].parameter_count > 0)
            add_column(clock, "lr", g, fuse_options_flat_index(dict->groups[g].component, "lr", NULL));
    }
    for (size_t d = 0; d < clock->driven_count; d++) {
        for (uint32_t g = 0; g < dict->group_count; g++) {
            if (dict->groups[g].parameter_count == 0)
                continue;
            for (size_t c = 0; c < clock->curve_count; c++) {
                const char *name = driven_name(&clock->curves[c], &dict->groups[g]);
                if (name != NULL && strcmp(name, clock->driven[d]) == 0)
                    add_column(clock, clock->driven[d], g, clock->curves[c].hyper[g]);
            }
        }
    }
    return FUSERUN_OK;
}

int fuse_clock_bind(struct fuse_clock *clock, const struct fuse_dict *dict, const struct fuse_config *config,
                    struct fuse_diagnostics *diagnostics, struct fuse_error *error)
{
    const size_t errors = fuse_diagnostics_error_count(diagnostics);
    for (size_t i = 0; i < clock->curve_count; i++) {
        clock->curves[i].hyper = calloc(dict->group_count + 1, sizeof *clock->curves[i].hyper);
        if (clock->curves[i].hyper == NULL)
            return fuse_fail_memory(error, "the clock", dict->group_count * sizeof *clock->curves[i].hyper);
        bind_curve(&clock->curves[i], dict, config, diagnostics);
    }
    refuse_overlap(clock, dict, config, diagnostics);
    if (fuse_diagnostics_error_count(diagnostics) > errors)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the schedules do not fit the optimizers");
    return make_columns(clock, dict, error);
}

/* ---- the values ---------------------------------------------------------------------------------------------- */

static int64_t position_of(const struct fuse_clock *clock, bool unit_is_epoch)
{
    return unit_is_epoch ? clock->completed_updates / clock->updates_per_epoch : clock->completed_updates;
}

struct fuse_schedule_query fuse_clock_query(const struct fuse_clock *clock, const struct fuse_clock_curve *curve,
                                            const struct fuse_dict *dict, uint32_t group)
{
    return (struct fuse_schedule_query){
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_schedule_query, option),
        .group_index = group,
        .position = position_of(clock, curve->unit_is_epoch),
        .base = dict->groups[group].base[curve->hyper[group]],
        .group = dict->groups[group].name,
        .option = driven_name(curve, &dict->groups[group]),
    };
}

double fuse_clock_curve_value(const struct fuse_clock_curve *curve, const struct fuse_schedule_query *query)
{
    return curve->option != NULL ? fuse_schedule_value(curve->schedule, query)
                                 : fuse_schedule_momentum(curve->schedule, query);
}

int fuse_clock_apply(const struct fuse_clock *clock, struct fuse_dict *dict, struct fuse_error *error)
{
    for (uint32_t g = 0; g < dict->group_count; g++)
        memcpy(dict->groups[g].hyper, dict->groups[g].base, sizeof dict->groups[g].hyper);
    for (size_t c = 0; c < clock->curve_count; c++) {
        const struct fuse_clock_curve *curve = &clock->curves[c];
        for (uint32_t g = 0; g < dict->group_count; g++) {
            struct fuse_group *group = &dict->groups[g];
            if (curve->hyper[g] < 0 || group->parameter_count == 0)
                continue;
            const struct fuse_schedule_query query = fuse_clock_query(clock, curve, dict, g);
            const double value = fuse_clock_curve_value(curve, &query);
            if (!fuse_number_is_finite(value))
                return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL,
                                 "[%s] gives group '%s' a value of %s that is not finite at step %" PRId64,
                                 curve->section, group->name, query.option, clock->completed_updates + 1);
            group->hyper[curve->hyper[g]] = value;
        }
    }
    return FUSERUN_OK;
}

/* ---- evaluations --------------------------------------------------------------------------------------------- */

void fuse_clock_observe(struct fuse_clock *clock, const char *metric, double value)
{
    for (size_t i = 0; i < clock->schedule_count; i++) {
        bool unit_is_epoch = false;
        for (size_t c = 0; c < clock->curve_count; c++)
            if (clock->curves[c].schedule == clock->schedules[i])
                unit_is_epoch = clock->curves[c].unit_is_epoch; /* that of the section, which the curves share */
        const struct fuse_schedule_observation observation = {
            .struct_size = FUSERUN_STRUCT_SIZE(fuse_schedule_observation, value),
            .position = position_of(clock, unit_is_epoch),
            .metric = metric,
            .value = value,
        };
        fuse_schedule_observe(clock->schedules[i], &observation);
    }
}

size_t fuse_clock_state_count(const struct fuse_clock *clock)
{
    size_t count = 0;
    for (size_t i = 0; i < clock->schedule_count; i++)
        count += fuse_schedule_state_count(clock->schedules[i]);
    return count;
}

void fuse_clock_get_state(const struct fuse_clock *clock, double *values)
{
    for (size_t i = 0; i < clock->schedule_count; i++) {
        fuse_schedule_get_state(clock->schedules[i], values);
        values += fuse_schedule_state_count(clock->schedules[i]);
    }
}

int fuse_clock_set_state(struct fuse_clock *clock, const double *values, struct fuse_error *error)
{
    for (size_t i = 0; i < clock->schedule_count; i++) {
        FUSE_TRY(fuse_schedule_set_state(clock->schedules[i], values, error));
        values += fuse_schedule_state_count(clock->schedules[i]);
    }
    return FUSERUN_OK;
}

/* ---- what is shown ------------------------------------------------------------------------------------------- */

struct notes {
    const char *prefix;
    struct fuse_text *text;
};

static void add_note(void *user, const char *section, const char *metric)
{
    const struct notes *notes = user;
    fuse_text_addf(notes->text, "%s[%s] follows %s: its values are shown as if that kept improving\n", notes->prefix,
                   section, metric);
}

void fuse_clock_add_notes(const struct fuse_clock *clock, const char *prefix, struct fuse_text *text)
{
    struct notes notes = {prefix, text};
    for (size_t i = 0; i < clock->schedule_count; i++)
        fuse_schedule_metrics(clock->schedules[i], add_note, &notes);
}

size_t fuse_clock_column_count(const struct fuse_clock *clock)
{
    return clock->column_count;
}

double fuse_clock_column_value(const struct fuse_clock *clock, const struct fuse_dict *dict, size_t column)
{
    return dict->groups[clock->columns[column].group].hyper[clock->columns[column].hyper];
}

void fuse_clock_add_json(const struct fuse_clock *clock, const struct fuse_dict *dict, struct fuse_text *text)
{
    const char *option = NULL;
    if (clock->column_count == 0 || strcmp(clock->columns[0].option, "lr") != 0)
        fuse_text_add(text, clock->column_count == 0 ? "\"lr\":{}" : "\"lr\":{},");
    for (size_t i = 0; i < clock->column_count; i++) {
        const struct fuse_clock_column *column = &clock->columns[i];
        if (option == NULL || strcmp(option, column->option) != 0) {
            fuse_text_add(text, option == NULL ? "" : "},");
            fuse_text_add_json(text, column->option);
            fuse_text_add(text, ":{");
        } else
            fuse_text_add(text, ",");
        option = column->option;
        fuse_text_add_json(text, dict->groups[column->group].name);
        fuse_text_add(text, ":");
        fuse_text_add_json_number(text, fuse_clock_column_value(clock, dict, i));
    }
    if (option != NULL)
        fuse_text_add(text, "}");
}
