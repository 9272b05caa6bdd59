/* Schedules that follow evaluations, and trees of everything at once: what they keep, who is told what, and that
 * whatever is built gives finite values. */
#include "schedule_spec.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plateau ----------------------------------------------------------------------------------------------------- */

static struct fuse_schedule *halving_plateau(const char *more)
{
    struct spec spec = {0};
    add(&spec, "scheduler", "plateau", "factor=0.5", "patience=1", more, NULL);
    return take(&spec, 100);
}

/* PyTorch counts NaN as bad: three of them with patience 0 reduce three times. */
static void nan_never_counts(void **state)
{
    (void)state;
    struct fuse_schedule *schedule = halving_plateau("cooldown=2");
    struct fuse_schedule *without = halving_plateau("cooldown=2");
    static const double metrics[] = {NAN, 3, NAN, NAN, NAN, NAN, 3, 3, NAN, 4, 4, NAN, 2, NAN, 2, 2, 2, 1};
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
        observe(schedule, (int64_t)i, "eval_loss", metrics[i]);
        if (!isnan(metrics[i]))
            observe(without, (int64_t)i, "eval_loss", metrics[i]);
        assert_true(value_at(schedule, (int64_t)i, 1) == value_at(without, (int64_t)i, 1));
        if (i < 7)
            assert_true(value_at(schedule, (int64_t)i, 1) == 1);
    }
    assert_true(value_at(schedule, 100, 1) == 0.25);
    fuse_schedule_free(&schedule);
    fuse_schedule_free(&without);
}

static void only_the_named_metric_counts(void **state)
{
    (void)state;
    struct fuse_schedule *schedule = halving_plateau("metric=eval_accuracy");
    for (int64_t i = 0; i < 20; i++)
        observe(schedule, i, "eval_loss", 5);
    assert_true(value_at(schedule, 20, 1) == 1);
    for (int64_t i = 20; i < 23; i++)
        observe(schedule, i, "eval_accuracy", 5);
    assert_true(value_at(schedule, 23, 1) == 0.5);
    assert_string_equal(warnings_of(schedule).last, "scheduler: mode = min reduces the value when eval_accuracy stops "
                                                    "falling; mode = max when it stops rising");
    fuse_schedule_free(&schedule);
}

struct named {
    int count;
    char text[200];
};

static void note_metric(void *user, const char *section, const char *metric)
{
    struct named *const named = user;
    const size_t used = strlen(named->text);
    (void)snprintf(named->text + used, sizeof named->text - used, "%s:%s ", section, metric);
    named->count++;
}

/* Two plateaus in a sequence: each sees the evaluations of its own time, with its own patience. */
static struct fuse_schedule *two_plateaus(void)
{
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=warmup, first, both", "milestones=2, 10", NULL);
    add(&spec, "scheduler.warmup", "constant", "factor=0.5", "total_iters=100", NULL);
    add(&spec, "scheduler.first", "plateau", "factor=0.5", "patience=0", "cooldown=2", NULL);
    add(&spec, "scheduler.both", "chain", "stages=second, fade", NULL);
    add(&spec, "scheduler.second", "plateau", "factor=0.1", "patience=1", "metric=eval_accuracy", "mode=max", NULL);
    add(&spec, "scheduler.fade", "exponential", "gamma=0.5", NULL);
    return take(&spec, 30);
}

static void a_stage_sees_its_own_evaluations(void **state)
{
    (void)state;
    struct fuse_schedule *schedule = two_plateaus();
    struct named named = {0};
    fuse_schedule_metrics(schedule, note_metric, &named);
    assert_string_equal(named.text, "scheduler.first:eval_loss scheduler.second:eval_accuracy ");

    observe(schedule, 1, "eval_loss", 1); /* the warm-up's: nobody keeps it */
    observe(schedule, 2, "eval_loss", 7);
    assert_true(value_at(schedule, 2, 1) == 1);
    observe(schedule, 3, "eval_loss", 7);
    observe(schedule, 4, "eval_accuracy", 0.5);
    assert_true(value_at(schedule, 4, 1) == 0.5);
    for (int64_t i = 10; i < 13; i++) {
        observe(schedule, i, "eval_loss", 9); /* the first one's time is over */
        observe(schedule, i, "eval_accuracy", 0.5);
    }
    assert_true(value_at(schedule, 4, 1) == 0.5);
    assert_near(value_at(schedule, 12, 1), 0.1 * 0.25, 1e-12, "second", 12);
    fuse_schedule_free(&schedule);
}

/* A sequence within a sequence counts from its own start. */
static void a_nested_stage_sees_its_own_evaluations(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=a, inner", "milestones=5", NULL);
    add(&spec, "scheduler.a", "constant", NULL);
    add(&spec, "scheduler.inner", "sequential", "stages=b, c", "milestones=3", NULL);
    add(&spec, "scheduler.b", "plateau", "factor=0.5", "patience=0", NULL);
    add(&spec, "scheduler.c", "plateau", "factor=0.25", "patience=0", NULL);
    struct fuse_schedule *schedule = take(&spec, 20);
    for (int64_t i = 0; i < 8; i++) /* the first counts three: a start and two bad ones */
        observe(schedule, i, "eval_loss", 1);
    assert_true(value_at(schedule, 7, 1) == 0.25);
    assert_true(value_at(schedule, 8, 1) == 1);
    observe(schedule, 8, "eval_loss", 1);
    observe(schedule, 9, "eval_loss", 1);
    assert_true(value_at(schedule, 7, 1) == 0.25);
    assert_true(value_at(schedule, 9, 1) == 0.25);
    fuse_schedule_free(&schedule);
}

static void state_is_kept_whole(void **state)
{
    (void)state;
    enum { COUNT = 30 };
    double metrics[COUNT];
    for (int i = 0; i < COUNT; i++)
        metrics[i] = i % 7 == 3 ? NAN : 2 + sin(i);
    struct fuse_schedule *whole = two_plateaus();
    assert_int_equal(fuse_schedule_state_count(whole), 8);
    for (int stop = 0; stop < COUNT; stop++) { /* interrupted behind every one of them */
        struct fuse_schedule *first = two_plateaus();
        for (int i = 0; i < stop; i++) {
            observe(first, i, "eval_loss", metrics[i]);
            observe(first, i, "eval_accuracy", metrics[i]);
        }
        double values[8];
        fuse_schedule_get_state(first, values);
        fuse_schedule_free(&first);
        struct fuse_schedule *resumed = two_plateaus();
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_schedule_set_state(resumed, values, &error), FUSERUN_OK);
        double again[8];
        fuse_schedule_get_state(resumed, again);
        assert_memory_equal(values, again, sizeof values);
        for (int i = stop; i < COUNT; i++) {
            observe(resumed, i, "eval_loss", metrics[i]);
            observe(resumed, i, "eval_accuracy", metrics[i]);
        }
        if (stop == 0) {
            fuse_schedule_free(&whole);
            whole = resumed;
            continue;
        }
        for (int64_t i = 0; i < 40; i++)
            assert_true(value_at(resumed, i, 0.1) == value_at(whole, i, 0.1));
        fuse_schedule_free(&resumed);
    }
    assert_true(value_at(whole, 5, 1) < 1);
    fuse_schedule_free(&whole);
}

static void impossible_states_are_refused(void **state)
{
    (void)state;
    static const double wrong[][4] = {
        {NAN, 0, 0, 0}, {1, -1, 0, 0}, {1, 0, 0.5, 0}, {1, 0, 0, INFINITY}, {1, 0, 0, 1e300}, {1, NAN, 0, 0},
    };
    struct fuse_schedule *schedule = halving_plateau(NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_schedule_set_state(schedule, wrong[i], &error), FUSERUN_ERROR_FORMAT);
        assert_non_null(strstr(error.text, "plateau"));
        assert_true(value_at(schedule, 0, 1) == 1);
    }
    fuse_schedule_free(&schedule);
    schedule = single("cosine", 10, NULL);
    assert_int_equal(fuse_schedule_state_count(schedule), 0);
    observe(schedule, 3, "eval_loss", 3); /* nobody minds */
    fuse_schedule_free(&schedule);
}

/* ---- rows 12 and 14, and warnings -------------------------------------------------------------------------------- */

static void row_12_warm_ups_start_at_base_over_n(void **state)
{
    (void)state;
    static const char *const plugins[] = {"warmup_stable_decay", "inverse_sqrt"};
    for (size_t p = 0; p < 2; p++) {
        for (int n = 1; n <= 9; n++) {
            char option[32];
            (void)snprintf(option, sizeof option, "warmup=%d", n);
            struct fuse_schedule *schedule = single(plugins[p], 30, option);
            for (int64_t k = 0; k < n; k++)
                assert_near(value_at(schedule, k, 0.3), 0.3 * (double)(k + 1) / n, 3e-16, plugins[p], k);
            assert_true(value_at(schedule, n - 1, 0.3) == 0.3);
            assert_true(value_at(schedule, n + 1, 0.3) < 0.3);
            assert_int_equal(warnings_of(schedule).count, 0);
            fuse_schedule_free(&schedule);
        }
    }
}

static void assert_warning(const char *plugin, const char *pair, const char *other, const char *expected)
{
    struct spec spec = {0};
    add(&spec, "scheduler", plugin, pair, other, NULL);
    struct fuse_schedule *schedule = take(&spec, 20);
    const struct warnings warnings = warnings_of(schedule);
    assert_int_equal(warnings.count, expected != NULL);
    if (expected != NULL)
        assert_string_equal(warnings.last, expected);
    fuse_schedule_free(&schedule);
}

static void warm_ups_longer_than_the_run_are_told(void **state)
{
    (void)state;
    assert_warning(
        "warmup_stable_decay", "warmup=21", NULL,
        "scheduler: warmup = 21 is longer than the 20 updates that run here: the base value is never reached");
    assert_warning("warmup_stable_decay", "warmup=15", "decay=6",
                   "scheduler: decay = 6 does not fit behind warmup = 15 in the 20 updates that run here: cut to 5");
    assert_warning("warmup_stable_decay", "warmup=15", "decay=5", NULL);
    assert_warning("inverse_sqrt", "warmup=20", NULL, NULL);
    assert_warning(
        "inverse_sqrt", "warmup=21", NULL,
        "scheduler: warmup = 21 is longer than the 20 updates that run here: the base value is never reached");
    assert_warning("linear", "total_iters=21", NULL,
                   "scheduler: total_iters = 21: only 20 updates run here, so end_factor is never reached");
    assert_warning("constant", "total_iters=21", NULL,
                   "scheduler: total_iters = 21: only 20 updates run here, so the base value is never reached");
    assert_warning("onecycle", "max_lr=1", "total_steps=200",
                   "scheduler: only 20 updates of total_steps = 200 run here, so max_lr is never reached");
    assert_warning("onecycle", "max_lr=1", "total_steps=25", NULL);
}

static void cycles_mean_to_rise(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=a, b", "milestones=5", NULL);
    add(&spec, "scheduler.a", "linear", NULL);
    add(&spec, "scheduler.b", "chain", "stages=c, c", NULL);
    add(&spec, "scheduler.c", "cosine_restarts", "t_0=3", NULL);
    struct fuse_schedule *schedule = take(&spec, 20);
    assert_true(fuse_schedule_rises(schedule));
    fuse_schedule_free(&schedule);
    schedule = single("cosine", 20, NULL);
    assert_false(fuse_schedule_rises(schedule));
    fuse_schedule_free(&schedule);
}

/* In epochs a formula still counts updates, of which an epoch has UPDATES_PER_EPOCH; a stage has its own start and
 * total. */
static void formulas_know_the_unit(void **state)
{
    (void)state;
    struct spec spec = {0};
    struct fuse_error error = FUSE_ERROR_INIT;
    for (int unit_is_epoch = 0; unit_is_epoch < 2; unit_is_epoch++) {
        struct fuse_schedule *schedule = NULL;
        add(&spec, "scheduler", "sequential", "stages=a, b", "milestones=3", NULL);
        add(&spec, "scheduler.a", "constant", NULL);
        add(&spec, "scheduler.b", "formula", "expr=step + epoch * 1000 + total * 1000000", NULL);
        assert_int_equal(try_build(&spec, 10, unit_is_epoch != 0, &schedule, &error), FUSERUN_OK);
        const double a_position = unit_is_epoch != 0 ? UPDATES_PER_EPOCH : 1;
        for (int64_t k = 3; k < 12; k++) {
            const double step = (double)(k - 3) * a_position;
            assert_near(value_at(schedule, k, 1), step + 1000 * step / UPDATES_PER_EPOCH + 7e6 * a_position, 1e-8,
                        "formula", k);
        }
        fuse_schedule_free(&schedule);
        clear(&spec);
    }
}

static bool is_above_1(void *user, double value)
{
    ++*(int *)user;
    return value > 1;
}

static void the_deepest_wrong_stage_is_blamed(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "sequential", "stages=a, b", "milestones=5", NULL);
    add(&spec, "scheduler.a", "linear", NULL);
    add(&spec, "scheduler.b", "chain", "stages=c, d", NULL);
    add(&spec, "scheduler.c", "formula", "expr=base * 3", NULL);
    add(&spec, "scheduler.d", "exponential", "gamma=1", NULL);
    struct fuse_schedule *schedule = take(&spec, 20);
    struct fuse_schedule_query query = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_schedule_query, option),
                                        .position = 6,
                                        .base = 0.5,
                                        .group = "default",
                                        .option = "lr"};
    int asked = 0;
    const char *key = NULL;
    assert_string_equal(fuse_schedule_culprit(schedule, &query, false, is_above_1, &asked, &key), "scheduler.c");
    assert_string_equal(key, "expr");
    query.base = 0.3; /* no stage alone, and not the whole either */
    assert_string_equal(fuse_schedule_culprit(schedule, &query, false, is_above_1, &asked, &key), "scheduler");
    asked = 0;
    assert_near(value_at(schedule, 6, 0.5), 1.5, 1e-15, "asked as always", 6);
    assert_int_equal(asked, 0);
    fuse_schedule_free(&schedule);
}

/* ---- trees of everything ----------------------------------------------------------------------------------------- */

static uint32_t draw(uint32_t *seed, uint32_t bound)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 16) % bound;
}

static void add_combinator(struct spec *spec, const char *name, const char *stages, uint32_t *seed)
{
    static const char *const milestones[] = {"milestones=0, 0", "milestones=0, 9223372036854775807", "milestones=3, 5",
                                             "milestones=1, 1000000"};
    if (draw(seed, 2) == 0)
        add(spec, name, "chain", stages, NULL);
    else
        add(spec, name, "sequential", stages, milestones[draw(seed, 4)], NULL);
}

/* A root of three, one of them again of three, drawn from the odd settings: 400 trees that hold every plugin. */
static struct fuse_schedule *draw_tree(uint32_t *seed, int64_t length, int *used)
{
    static const char *const leaves[] = {"scheduler.a", "scheduler.b", "scheduler.c", "scheduler.d", "scheduler.e"};
    struct spec spec = {0};
    add_combinator(&spec, "scheduler", "stages=a, inner, b", seed);
    add_combinator(&spec, "scheduler.inner", "stages=c, d, e", seed);
    for (size_t i = 0; i < 5; i++) {
        const uint32_t odd = draw(seed, ODD_COUNT);
        used[odd]++;
        add_odd(&spec, leaves[i], odd);
    }
    return take(&spec, length);
}

static void any_tree_is_finite(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 7, 50, INT64_MAX};
    static const double bases[] = {0, 1e-300, 0.1, 1e300};
    static const double metrics[] = {1, NAN, 1, INFINITY, -INFINITY, 1e308, 0};
    static const int64_t positions[] = {0, 1, 2, 3, 4, 5, 6, 49, 50, 51, 1000, 1000000, INT64_MAX};
    int used[ODD_COUNT] = {0};
    uint32_t seed = 1;
    for (int tree = 0; tree < 400; tree++) {
        const uint32_t tree_seed = seed;
        struct fuse_schedule *schedule = draw_tree(&seed, lengths[tree % 6], used);
        for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
            observe(schedule, positions[p], "eval_loss", metrics[(size_t)tree % 7]);
            observe(schedule, positions[p], "eval_loss", metrics[p % 7]);
            for (size_t b = 0; b < 4; b++)
                if (!isfinite(value_at(schedule, positions[p], bases[b])) ||
                    !isfinite(momentum_at(schedule, positions[p], 0.9)))
                    fail_msg("the tree of seed %u at position %lld from base %g is not finite", tree_seed,
                             (long long)positions[p], bases[b]);
        }
        fuse_schedule_free(&schedule);
    }
    for (size_t i = 0; i < ODD_COUNT; i++)
        assert_true(used[i] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_never_counts),
        cmocka_unit_test(only_the_named_metric_counts),
        cmocka_unit_test(a_stage_sees_its_own_evaluations),
        cmocka_unit_test(a_nested_stage_sees_its_own_evaluations),
        cmocka_unit_test(state_is_kept_whole),
        cmocka_unit_test(impossible_states_are_refused),
        cmocka_unit_test(row_12_warm_ups_start_at_base_over_n),
        cmocka_unit_test(warm_ups_longer_than_the_run_are_told),
        cmocka_unit_test(cycles_mean_to_rise),
        cmocka_unit_test(formulas_know_the_unit),
        cmocka_unit_test(the_deepest_wrong_stage_is_blamed),
        cmocka_unit_test(any_tree_is_finite),
    };
    return cmocka_run_group_tests(tests, open_registry, close_registry);
}
