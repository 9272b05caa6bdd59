#include "schedule_spec.h"

#include "plugin/registry.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fuse_registry *registry;

int open_registry(void **state)
{
    (void)state;
    static const char *const folders[] = {SCHEDULER_PLUGIN_DIR};
    struct fuse_error error = FUSE_ERROR_INIT;
    if (fuse_registry_new(folders, 1, NULL, &registry, &error) == FUSERUN_OK)
        return 0;
    (void)fprintf(stderr, "%s\n", error.text);
    return -1;
}

int close_registry(void **state)
{
    (void)state;
    fuse_registry_free(&registry);
    return 0;
}

static const struct section *find_section(const struct spec *spec, const char *name)
{
    for (size_t i = 0; i < spec->count; i++)
        if (strcmp(spec->sections[i].name, name) == 0)
            return &spec->sections[i];
    return NULL;
}

static const struct fuse_component *find_component(void *user, const char *name)
{
    const struct section *const section = find_section(user, name);
    return section != NULL ? section->component : NULL;
}

static const struct fuse_options *find_options(void *user, const char *name)
{
    const struct section *const section = find_section(user, name);
    return section != NULL ? section->options : NULL;
}

const struct fuse_component *load(const char *plugin)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    if (fuse_registry_find(registry, FUSERUN_KIND_SCHEDULER, plugin, &component, &file, &error) != FUSERUN_OK)
        fail_msg("%s: %s", plugin, error.text);
    return component;
}

void add_component(struct spec *spec, const char *name, const struct fuse_component *component,
                   const char *const *pairs, size_t pair_count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_true(spec->count < MAX_SECTIONS);
    struct section *const section = &spec->sections[spec->count++];
    *section = (struct section){name, component, NULL};
    if (fuse_options_from_pairs(component, pairs, pair_count, &section->options, &error) != FUSERUN_OK)
        fail_msg("[%s] %s: %s: %s", name, component->name, error.key, error.text);
}

void add(struct spec *spec, const char *name, const char *plugin, ...)
{
    const char *pairs[MAX_PAIRS];
    size_t count = 0;
    va_list arguments;
    va_start(arguments, plugin);
    for (const char *pair; (pair = va_arg(arguments, const char *)) != NULL;) {
        assert_true(count < MAX_PAIRS);
        pairs[count++] = pair;
    }
    va_end(arguments);
    add_component(spec, name, load(plugin), pairs, count);
}

void clear(struct spec *spec)
{
    for (size_t i = 0; i < spec->count; i++)
        fuse_options_free(&spec->sections[i].options);
    spec->count = 0;
}

int try_build(struct spec *spec, int64_t length, bool unit_is_epoch, struct fuse_schedule **schedule,
              struct fuse_error *error)
{
    const struct fuse_schedule_source source = {find_component, find_options, spec};
    return fuse_schedule_build(&source, "scheduler", length, unit_is_epoch, UPDATES_PER_EPOCH, schedule, error);
}

static struct fuse_schedule *build(struct spec *spec, int64_t length)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_schedule *schedule = NULL;
    if (try_build(spec, length, false, &schedule, &error) != FUSERUN_OK)
        fail_msg("%s: %s", error.key, error.text);
    assert_non_null(schedule);
    return schedule;
}

struct fuse_schedule *take(struct spec *spec, int64_t length)
{
    struct fuse_schedule *const schedule = build(spec, length);
    clear(spec);
    return schedule;
}

struct fuse_schedule *single(const char *plugin, int64_t length, const char *pair)
{
    struct spec spec = {0};
    add(&spec, "scheduler", plugin, pair, NULL);
    return take(&spec, length);
}

static struct fuse_schedule_query query_at(int64_t position, double base)
{
    return (struct fuse_schedule_query){.struct_size = FUSERUN_STRUCT_SIZE(fuse_schedule_query, option),
                                        .position = position,
                                        .base = base,
                                        .group = "default",
                                        .option = "lr"};
}

double value_at(const struct fuse_schedule *schedule, int64_t position, double base)
{
    const struct fuse_schedule_query query = query_at(position, base);
    return fuse_schedule_value(schedule, &query);
}

double momentum_at(const struct fuse_schedule *schedule, int64_t position, double base)
{
    const struct fuse_schedule_query query = query_at(position, base);
    return fuse_schedule_momentum(schedule, &query);
}

void observe(struct fuse_schedule *schedule, int64_t position, const char *metric, double value)
{
    const struct fuse_schedule_observation observation = {.struct_size =
                                                              FUSERUN_STRUCT_SIZE(fuse_schedule_observation, value),
                                                          .position = position,
                                                          .metric = metric,
                                                          .value = value};
    fuse_schedule_observe(schedule, &observation);
}

void assert_near(double ours, double expected, double tolerance, const char *what, int64_t position)
{
    if (!(fabs(ours - expected) <= tolerance))
        fail_msg("%s at position %lld: %.17g, expected %.17g", what, (long long)position, ours, expected);
}

static void note_warning(void *user, const char *section, const char *text)
{
    struct warnings *const warnings = user;
    warnings->count++;
    (void)snprintf(warnings->last, sizeof warnings->last, "%s: %s", section, text);
}

struct warnings warnings_of(const struct fuse_schedule *schedule)
{
    struct warnings warnings = {0, ""};
    fuse_schedule_warnings(schedule, note_warning, &warnings);
    return warnings;
}

static const struct {
    const char *plugin;
    const char *pairs[5];
} odd_settings[] = {
    {"constant", {"factor=0"}},
    {"constant", {"total_iters=9223372036854775807"}},
    {"linear", {"start_factor=0", "end_factor=0"}},
    {"linear", {"total_iters=9223372036854775807"}},
    {"step", {"step_size=1", "gamma=0"}},
    {"step", {"step_size=1", "gamma=1e300"}},
    {"step", {"step_size=9223372036854775807"}},
    {"multistep", {"milestones=1, 1, 1, 1, 1", "gamma=1e300"}},
    {"multistep", {"milestones=9223372036854775807", "gamma=0"}},
    {"exponential", {"gamma=0"}},
    {"exponential", {"gamma=2"}},
    {"exponential", {"gamma=1e-300"}},
    {"polynomial", {"total_iters=1", "power=1e300"}},
    {"polynomial", {"total_iters=9223372036854775807", "power=0"}},
    {"cosine", {"t_max=1"}},
    {"cosine", {"t_max=9223372036854775807", "eta_min=1e300"}},
    {"cosine_restarts", {"t_0=1", "t_mult=2"}},
    {"cosine_restarts", {"t_0=9223372036854775807", "t_mult=9223372036854775807"}},
    {"cosine_restarts", {"t_0=1", "t_mult=9223372036854775807"}},
    {"onecycle", {"max_lr=1e300", "total_steps=1", "pct_start=1", "div_factor=1e-300"}},
    {"onecycle", {"max_lr=1", "total_steps=2", "pct_start=0.5", "anneal_strategy=linear"}},
    {"onecycle", {"max_lr=1", "total_steps=2", "pct_start=0.5", "three_phase=yes"}},
    {"onecycle", {"max_lr=1", "total_steps=1", "pct_start=0", "three_phase=yes"}},
    {"onecycle", {"max_lr=1", "pct_start=1", "three_phase=yes", "base_momentum=0", "max_momentum=0"}},
    {"onecycle", {"max_lr=1", "pct_start=0.6", "three_phase=yes", "anneal_strategy=linear"}},
    {"onecycle", {"max_lr=1", "total_steps=9223372036854775807"}},
    {"cyclic", {"base_lr=0", "max_lr=1", "step_size_up=1", "mode=triangular2"}},
    {"cyclic", {"base_lr=0", "max_lr=1", "mode=exp_range", "gamma=2", "step_size_up=3"}},
    {"cyclic", {"base_lr=0", "max_lr=1", "step_size_up=9223372036854775807"}},
    {"cyclic", {"base_lr=1", "max_lr=1", "step_size_up=1", "step_size_down=9223372036854775807"}},
    {"warmup_stable_decay", {"warmup=0", "decay=0"}},
    {"warmup_stable_decay", {"warmup=9223372036854775807"}},
    {"warmup_stable_decay", {"decay=9223372036854775807", "shape=sqrt"}},
    {"warmup_stable_decay", {"warmup=9223372036854775807", "decay=9223372036854775807", "shape=cosine"}},
    {"warmup_stable_decay", {"warmup=49", "decay=1", "min_factor=1"}},
    {"inverse_sqrt", {"warmup=0"}},
    {"inverse_sqrt", {"warmup=9223372036854775807"}},
    {"plateau", {"patience=0", "factor=0", "threshold=0", "eps=0"}},
    {"plateau", {"min_lr=1e300", "eps=1e300", "threshold=1e300", "mode=max"}},
    {"plateau", {"patience=9223372036854775807", "cooldown=9223372036854775807"}},
    {"formula", {"expr=base / (step + 1)"}},
    {"formula", {"expr=base * if(total, step / total, 1) ^ -0 * exp(-epoch)"}},
};
_Static_assert(sizeof odd_settings / sizeof odd_settings[0] == ODD_COUNT, "schedule_spec.h counts them");

const char *odd_name(size_t index)
{
    return odd_settings[index].plugin;
}

void add_odd(struct spec *spec, const char *name, size_t index)
{
    size_t count = 0;
    while (count < 5 && odd_settings[index].pairs[count] != NULL)
        count++;
    add_component(spec, name, load(odd_settings[index].plugin), odd_settings[index].pairs, count);
}

struct fuse_schedule *build_odd(size_t index, int64_t length)
{
    struct spec spec = {0};
    add_odd(&spec, "scheduler", index);
    return take(&spec, length);
}
