/* Schedules made of schedules: what PyTorch's nesting gets wrong and ours must not, and the errors of a tree. */
#include "schedule_spec.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- positions, lengths, momentum -------------------------------------------------------------------------------- */

/* A plugin alone, in a sequential of one, in a chain of one, and in both. */
static void row_14_single_child_changes_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < ODD_COUNT; i++) {
        struct fuse_schedule *alone = build_odd(i, 40);
        struct spec spec = {0};
        add(&spec, "scheduler", "sequential", "stages=one", NULL);
        add(&spec, "scheduler.one", "chain", "stages=two", NULL);
        add(&spec, "scheduler.two", "sequential", "stages=three", NULL);
        add_odd(&spec, "scheduler.three", i);
        struct fuse_schedule *wrapped = take(&spec, 40);
        assert_int_equal(fuse_schedule_cycles_momentum(alone), fuse_schedule_cycles_momentum(wrapped));
        for (int64_t position = 0; position < 60; position++) {
            assert_true(value_at(alone, position, 0.1) == value_at(wrapped, position, 0.1));
            assert_true(value_at(alone, position, 0) == value_at(wrapped, position, 0));
            assert_true(momentum_at(alone, position, 0.4) == momentum_at(wrapped, position, 0.4));
        }
        fuse_schedule_free(&alone);
        fuse_schedule_free(&wrapped);
    }
}

static void row_14_milestone_0_starts_on_the_second(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=a, b", "milestones=0", NULL);
    add(&spec, "scheduler.a", "constant", "factor=0", NULL);
    add(&spec, "scheduler.b", "exponential", "gamma=0.5", NULL);
    struct fuse_schedule *schedule = take(&spec, 8);
    for (int64_t position = 0; position < 8; position++)
        assert_true(value_at(schedule, position, 1) == ldexp(1, -(int)position));
    fuse_schedule_free(&schedule);
}

/* PyTorch runs a nested sequence one position early. */
static void row_14_nested_sequence_keeps_its_positions(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=a, inner", "milestones=4", NULL);
    add(&spec, "scheduler.a", "constant", "factor=0.25", "total_iters=100", NULL);
    add(&spec, "scheduler.inner", "sequential", "stages=b, c", "milestones=3", NULL);
    add(&spec, "scheduler.b", "constant", "factor=0.5", "total_iters=2", NULL);
    add(&spec, "scheduler.c", "chain", "stages=d, e", NULL);
    add(&spec, "scheduler.d", "exponential", "gamma=0.5", NULL);
    add(&spec, "scheduler.e", "multistep", "milestones=2", "gamma=0.25", NULL);
    struct fuse_schedule *schedule = take(&spec, 12);
    const double expected[] = {.25, .25, .25, .25, .5, .5, 1, 1, .5, .0625, .03125, .015625};
    for (int64_t position = 0; position < 12; position++)
        assert_near(value_at(schedule, position, 1), expected[position], 0, "nested", position);
    fuse_schedule_free(&schedule);
}

static void lengths_default_to_the_stages(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=a, b, c", "milestones=10, 30", NULL);
    add(&spec, "scheduler.a", "cosine", NULL);
    add(&spec, "scheduler.b", "polynomial", NULL);
    add(&spec, "scheduler.c", "onecycle", "max_lr=1", "final_div_factor=2", NULL);
    struct fuse_schedule *schedule = take(&spec, 70);
    assert_near(value_at(schedule, 5, 1), 0.5, 1e-9, "cosine of 10", 5);
    assert_near(value_at(schedule, 20, 1), 0.5, 1e-9, "polynomial of 20", 20);
    assert_true(value_at(schedule, 68, 1) > 0.0201);
    assert_near(value_at(schedule, 69, 1), 0.02, 1e-9, "onecycle of 40", 69);
    assert_int_equal(warnings_of(schedule).count, 0);
    fuse_schedule_free(&schedule);

    /* A last stage that begins behind the end, or a run of no length, still gets a length of 1. */
    add(&spec, "scheduler", "sequential", "stages=a, b", "milestones=30", NULL);
    add(&spec, "scheduler.a", "cosine", NULL);
    add(&spec, "scheduler.b", "cosine", NULL);
    schedule = take(&spec, 0);
    assert_true(isfinite(value_at(schedule, 31, 1)));
    assert_string_equal(warnings_of(schedule).last,
                        "scheduler: stage 2 of 2 would start at milestone 30, but only 1 updates run here");
    fuse_schedule_free(&schedule);

    /* Who puts a stage's milestone at its beginning has switched it off, and wants no warning of its curve. */
    add(&spec, "scheduler", "sequential", "stages=a, b", "milestones=0", NULL);
    add(&spec, "scheduler.a", "linear", "total_iters=5", NULL);
    add(&spec, "scheduler.b", "cosine", NULL);
    schedule = take(&spec, 20);
    assert_near(value_at(schedule, 0, 1), 1, 1e-12, "cosine from the start", 0);
    assert_int_equal(warnings_of(schedule).count, 0);
    fuse_schedule_free(&schedule);
}

/* Each stage's value / base is a factor, also where the stage sets absolute values. */
static void chain_multiplies_factors(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "chain", "stages=warmup, main", NULL);
    add(&spec, "scheduler.warmup", "linear", "start_factor=0.1", "total_iters=9", NULL);
    add(&spec, "scheduler.main", "cosine_restarts", "t_0=4", "eta_min=0.02", NULL);
    struct fuse_schedule *schedule = take(&spec, 20);
    for (int64_t position = 0; position < 20; position++) {
        const double warmup = 0.1 + 0.9 * fmin((double)position, 9) / 9;
        const double main = 0.02 + (0.2 - 0.02) * (1 + cos(acos(-1) * (double)(position % 4) / 4)) / 2;
        assert_near(value_at(schedule, position, 0.2), 0.2 * warmup * (main / 0.2), 2e-10, "chain", position);
    }
    fuse_schedule_free(&schedule);
}

static void momentum_passes_through_nesting(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=warmup, cycle, rest", "milestones=3, 9", NULL);
    add(&spec, "scheduler.warmup", "linear", "total_iters=3", NULL);
    add(&spec, "scheduler.cycle", "chain", "stages=one, two, three", NULL);
    add(&spec, "scheduler.one", "cyclic", "base_lr=0.1", "max_lr=0.2", NULL);
    add(&spec, "scheduler.two", "onecycle", "max_lr=0.2", NULL);
    add(&spec, "scheduler.three", "constant", NULL);
    add(&spec, "scheduler.rest", "exponential", "gamma=0.5", NULL);
    struct fuse_schedule *schedule = take(&spec, 12);
    assert_true(fuse_schedule_cycles_momentum(schedule));
    assert_string_equal(fuse_schedule_momentum_section(schedule), "scheduler.one");
    struct fuse_schedule *cycle = single("onecycle", 6, "max_lr=0.2");
    for (int64_t position = 0; position < 12; position++) {
        const double expected = position < 3 || position >= 9 ? 0.5 : momentum_at(cycle, position - 3, 0.5);
        assert_true(momentum_at(schedule, position, 0.5) == expected);
    }
    fuse_schedule_free(&cycle);
    fuse_schedule_free(&schedule);
}

static void warnings_name_section_and_unit(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=a, b, c", "milestones=5, 20", NULL);
    add(&spec, "scheduler.a", "linear", "total_iters=6", NULL);
    add(&spec, "scheduler.b", "cosine", "t_max=14", NULL); /* reaches its minimum at its last position: no warning */
    add(&spec, "scheduler.c", "cosine", "t_max=3", NULL);
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_schedule *schedule = NULL;
    assert_int_equal(try_build(&spec, 25, true, &schedule, &error), FUSERUN_OK);
    const struct warnings warnings = warnings_of(schedule);
    assert_int_equal(warnings.count, 2);
    assert_string_equal(warnings.last, "scheduler.c: the value rises again after t_max = 3, and 5 epochs run here");
    fuse_schedule_free(&schedule);
    clear(&spec);
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

static void assert_build_fails(struct spec *spec, int code, const char *key, const char *part)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_schedule *schedule = NULL;
    assert_int_equal(try_build(spec, 20, false, &schedule, &error), code);
    assert_null(schedule);
    assert_string_equal(error.key, key);
    if (strstr(error.text, part) == NULL)
        fail_msg("'%s' does not say '%s'", error.text, part);
    assert_int_equal(try_build(spec, 20, false, &schedule, NULL), code); /* whoever does not ask is not told */
    clear(spec);
}

static void mistakes_name_section_and_key(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=a, a", NULL);
    add(&spec, "scheduler.a", "linear", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler|milestones", "2 stages need 1 milestones");

    add(&spec, "scheduler", "sequential", "stages=a, inner", "milestones=3", NULL);
    add(&spec, "scheduler.a", "linear", NULL);
    add(&spec, "scheduler.inner", "sequential", "stages=a, a, a", "milestones=5, 4", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler.inner|milestones", "4 stands behind 5");

    add(&spec, "scheduler", "chain", "stages=a, nowhere", NULL);
    add(&spec, "scheduler.a", "linear", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler.nowhere|plugin", "[scheduler.nowhere]");

    add(&spec, "scheduler", "chain", "stages=loop", NULL);
    add(&spec, "scheduler.loop", "sequential", "stages=loop, loop", "milestones=1", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler.loop|", "contain itself");

    static const char *const levels[] = {"scheduler",   "scheduler.a", "scheduler.b", "scheduler.c",
                                         "scheduler.d", "scheduler.e", "scheduler.f"};
    static const char *const stages[] = {"stages=a,a,a,a", "stages=b,b,b,b", "stages=c,c,c,c",
                                         "stages=d,d,d,d", "stages=e,e,e,e", "stages=f,f,f,f"};
    for (size_t i = 0; i < 6; i++)
        add(&spec, levels[i], "chain", stages[i], NULL);
    add(&spec, levels[6], "linear", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler.f|", "more than 1000 stages");

    add(&spec, "scheduler", "chain", "stages=a", NULL);
    add(&spec, "scheduler.a", "onecycle", "max_lr=1", "base_momentum=0.96", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler.a|base_momentum", "max_momentum");
    add(&spec, "scheduler", "cyclic", "base_lr=1", "max_lr=0.5", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler|base_lr", "max_lr");
    add(&spec, "scheduler", "cyclic", "base_lr=0", "max_lr=1", "max_momentum=0.1", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler|base_momentum", "max_momentum");

    /* A name that leaves no room for itself in the key. */
    static const char stage[] =
        "scheduler.a23456789012345678901234567890123456789012345678901234567890123456789012345678";
    char option[sizeof stage + 16];
    (void)snprintf(option, sizeof option, "stages=%s", stage + strlen("scheduler."));
    add(&spec, "scheduler", "chain", option, NULL);
    add(&spec, stage, "sequential", "stages=a, b", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler|", "2 stages need 1 milestones");
}

/* ---- somebody's plugin ------------------------------------------------------------------------------------------- */

static int create_silently_failing(const struct fuse_host *host, const struct fuse_options *options,
                                   const struct fuse_schedule_context *context, void **instance,
                                   struct fuse_error *error)
{
    (void)host, (void)options, (void)context, (void)instance, (void)error;
    return 1;
}

/* Tries a stage that is not there, goes on without it, makes one that is, and fails with words of its own.
 * (host->fail) stands in brackets because cmocka has a macro fail(). */
static int create_after_a_stage(const struct fuse_host *host, const struct fuse_options *options,
                                const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    (void)options, (void)instance;
    struct fuse_schedule *stage = NULL;
    if (host->schedule_create(context, "nowhere", 3, &stage, NULL) == FUSERUN_OK || stage != NULL ||
        host->schedule_create(context, "nowhere", 3, &stage, error) == FUSERUN_OK ||
        host->schedule_create(context, "a", 3, &stage, error) != FUSERUN_OK || stage == NULL)
        return (host->fail)(error, FUSERUN_ERROR_INTERNAL, NULL, "stages");
    return (host->fail)(error, FUSERUN_ERROR_CONFIG, "mood", "not today");
}

static double value_of_base(const void *instance, const struct fuse_schedule_query *query)
{
    (void)instance;
    return query->base;
}

static void broken_plugins_give_errors(void **state)
{
    (void)state;
    struct fuse_scheduler api = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
                                 .create = create_silently_failing,
                                 .destroy = free,
                                 .value = value_of_base};
    struct fuse_component component =
        FUSERUN_COMPONENT(.kind = FUSERUN_KIND_SCHEDULER, .name = "mine", .summary = "", .api = &api);
    struct spec spec = {0};
    add_component(&spec, "scheduler", &component, NULL, 0);
    assert_build_fails(&spec, FUSERUN_ERROR_PLUGIN, "scheduler|", "did not say why");

    api.create = create_after_a_stage;
    add_component(&spec, "scheduler", &component, NULL, 0);
    add(&spec, "scheduler.a", "linear", NULL);
    assert_build_fails(&spec, FUSERUN_ERROR_CONFIG, "scheduler|mood", "not today");

    api.struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, destroy); /* ends before `value` */
    add_component(&spec, "scheduler", &component, NULL, 0);
    assert_build_fails(&spec, FUSERUN_ERROR_PLUGIN, "scheduler|plugin", "lacks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_14_single_child_changes_nothing),
        cmocka_unit_test(row_14_milestone_0_starts_on_the_second),
        cmocka_unit_test(row_14_nested_sequence_keeps_its_positions),
        cmocka_unit_test(lengths_default_to_the_stages),
        cmocka_unit_test(chain_multiplies_factors),
        cmocka_unit_test(momentum_passes_through_nesting),
        cmocka_unit_test(warnings_name_section_and_unit),
        cmocka_unit_test(mistakes_name_section_and_key),
        cmocka_unit_test(broken_plugins_give_errors),
    };
    return cmocka_run_group_tests(tests, open_registry, close_registry);
}
