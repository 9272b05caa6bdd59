/* What shows only when a run's values are asked for one after another, before the run. */
#include "optim/clock.h"

#include "base/number.h"
#include "config/options.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ASKED 100000 /* updates */
#define NOTABLE 0.01      /* a fall or a rise by so much of the greatest value so far is none of rounding */

struct check {
    const struct fuse_clock *clock;
    const struct fuse_dict *dict;
    const struct fuse_config *config;
    struct fuse_diagnostics *diagnostics;
    size_t warning_count; /* of the schedule at hand */
};

/* One curve in one group, so far. */
struct course {
    double greatest;
    double least; /* since it began to fall */
    bool has_fallen;
};

static void warn(void *user, const char *section, const char *text)
{
    struct check *check = user;
    check->warning_count++;
    fuse_config_warn(check->config, check->diagnostics, section, "plugin", "%s", text);
}

/* ---- wrong values -------------------------------------------------------------------------------------------- */

struct allowed {
    const struct fuse_component *component;
    int32_t hyper;
};

static bool is_wrong(void *user, double value)
{
    const struct allowed *allowed = user;
    return !fuse_number_is_finite(value) || !fuse_options_flat_fits(allowed->component, allowed->hyper, value, NULL);
}

static void refuse(const struct check *check, const struct fuse_clock_curve *curve, uint32_t group,
                   const struct fuse_schedule_query *query, double value, int64_t step)
{
    struct allowed allowed = {check->dict->groups[group].component, curve->hyper[group]};
    const char *range = NULL;
    const char *key = NULL;
    char number[FUSE_NUMBER_CHARS];
    (void)fuse_options_flat_fits(allowed.component, allowed.hyper, value, &range);
    const char *section =
        fuse_schedule_culprit(curve->schedule, query, curve->option == NULL, is_wrong, &allowed, &key);
    if (!fuse_number_is_finite(value) || range == NULL)
        fuse_config_report(check->config, check->diagnostics, section, key,
                           "group '%s' would get a value of %s that is not finite at step %" PRId64, query->group,
                           query->option, step);
    else
        fuse_config_report(check->config, check->diagnostics, section, key,
                           "group '%s' would get %s = %s at step %" PRId64 ", and allowed is %s", query->group,
                           query->option, fuse_number_format(value, number), step, range);
}

/* ---- remarkable ones ----------------------------------------------------------------------------------------- */

/* Whether the value rises again after the curve fell, for the first time. */
static bool rises_again(struct course *course, double value)
{
    if (!course->has_fallen) {
        if (value > course->greatest)
            course->greatest = value;
        course->has_fallen = value < course->greatest * (1 - NOTABLE);
        course->least = value;
        return false;
    }
    if (value < course->least)
        course->least = value;
    return value > course->least + course->greatest * NOTABLE;
}

/* What the stages did not warn of themselves, in words of their own options. True: this curve needs no more looking. */
static bool remark(struct check *check, const struct fuse_clock_curve *curve, const struct fuse_schedule_query *query,
                   struct course *course, double value, int64_t step)
{
    if (step == 1) {
        *course = (struct course){.greatest = value};
        if (value == 0 && query->base != 0 && strcmp(query->option, "lr") == 0) {
            fuse_config_warn(check->config, check->diagnostics, curve->section, "plugin",
                             "the first update has lr = 0 in group '%s', and changes nothing", query->group);
            return true;
        }
    }
    if (fuse_schedule_rises(curve->schedule) || !rises_again(course, value))
        return false;
    char number[FUSE_NUMBER_CHARS];
    fuse_config_warn(check->config, check->diagnostics, curve->section, "plugin",
                     "%s of group '%s' rises again: after it had fallen to %s it is higher at step %" PRId64,
                     query->option, query->group, fuse_number_format(course->least, number), step);
    return true;
}

/* ---- the walk ------------------------------------------------------------------------------------------------ */

int64_t fuse_clock_next_asked(const struct fuse_clock *clock, int64_t update)
{
    const int64_t stride = clock->total_updates / MOST_ASKED + 1, left = clock->total_updates - update;
    if (left <= 0)
        return 0;
    if (update == 0)
        return 1;
    return left > stride ? update + stride : clock->total_updates;
}

/* Walks one curve in one group; *has_remark: one was made about this curve. False: a value was refused. */
static bool walk(struct check *check, const struct fuse_clock_curve *curve, uint32_t group, bool *has_remark)
{
    struct fuse_clock clock = *check->clock; /* to move its count about */
    const struct allowed allowed = {check->dict->groups[group].component, curve->hyper[group]};
    struct course course = {0};
    for (int64_t step = fuse_clock_next_asked(&clock, 0); step > 0; step = fuse_clock_next_asked(&clock, step)) {
        clock.completed_updates = step - 1;
        const struct fuse_schedule_query query = fuse_clock_query(&clock, curve, check->dict, group);
        const double value = fuse_clock_curve_value(curve, &query);
        if (is_wrong((void *)&allowed, value)) {
            refuse(check, curve, group, &query, value, step);
            return false;
        }
        if (!*has_remark)
            *has_remark = remark(check, curve, &query, &course, value, step);
    }
    return true;
}

static bool check_curve(struct check *check, const struct fuse_clock_curve *curve)
{
    /* A momentum falls and rises because it is cycled, and a schedule that has told of something is told of once. */
    bool has_remark = curve->option == NULL || check->warning_count > 0;
    for (uint32_t g = 0; g < check->dict->group_count; g++) {
        if (curve->hyper[g] < 0 || check->dict->groups[g].parameter_count == 0)
            continue;
        if (!walk(check, curve, g, &has_remark))
            return false;
    }
    return true;
}

int fuse_clock_check(const struct fuse_clock *clock, const struct fuse_dict *dict, const struct fuse_config *config,
                     struct fuse_diagnostics *diagnostics, struct fuse_error *error)
{
    bool is_right = true;
    struct check check = {.clock = clock, .dict = dict, .config = config, .diagnostics = diagnostics};
    for (size_t i = 0; i < clock->schedule_count; i++) {
        check.warning_count = 0;
        fuse_schedule_warnings(clock->schedules[i], warn, &check);
        for (size_t c = 0; c < clock->curve_count; c++) {
            if (clock->curves[c].schedule == clock->schedules[i])
                is_right &= check_curve(&check, &clock->curves[c]);
        }
    }
    return is_right ? FUSERUN_OK : fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the schedules give impossible values");
}
