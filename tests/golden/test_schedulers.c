/* The schedulers that come with fuserun, each alone and in PyTorch's combinations: against PyTorch's values
 * (tools/make_golden_schedulers.py), and at settings and positions for which PyTorch has none. */
#include "schedule_spec.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- PyTorch's values -------------------------------------------------------------------------------------------- */

static void read_spec(const json_t *sections, struct spec *spec)
{
    const char *name;
    const json_t *pairs;
    json_object_foreach((json_t *)sections, name, pairs)
    {
        const char *texts[MAX_PAIRS];
        size_t count = 0;
        const char *plugin = NULL;
        size_t i;
        const json_t *pair;
        json_array_foreach(pairs, i, pair)
        {
            const char *const text = json_string_value(pair);
            if (strncmp(text, "plugin=", 7) == 0)
                plugin = text + 7;
            else
                texts[count++] = text;
        }
        assert_non_null(plugin);
        add_component(spec, name, load(plugin), texts, count);
    }
}

/* The metric before value i, if there are metrics, to the schedule. */
static void observe_before(struct fuse_schedule *schedule, const json_t *metrics, int64_t i)
{
    if (metrics != NULL && i > 0)
        observe(schedule, i, "eval_loss", strtod(json_string_value(json_array_get(metrics, (size_t)i - 1)), NULL));
}

static void check_case(const json_t *golden, const char *label)
{
    struct spec spec = {0};
    read_spec(json_object_get(golden, "sections"), &spec);
    struct fuse_schedule *schedule = take(&spec, json_integer_value(json_object_get(golden, "length")));
    const int64_t count = json_integer_value(json_object_get(golden, "count"));
    const int64_t stride = json_integer_value(json_object_get(golden, "stride"));
    const json_t *const bases = json_object_get(golden, "bases");
    for (int64_t i = 0; i < count; i++) {
        observe_before(schedule, json_object_get(golden, "metrics"), i);
        for (size_t group = 0; group < json_array_size(bases); group++) {
            const double base = json_number_value(json_array_get(bases, group));
            const json_t *const expected = json_array_get(json_object_get(golden, "lr"), group);
            assert_int_equal(json_array_size(expected), count);
            assert_near(value_at(schedule, i * stride, base), json_number_value(json_array_get(expected, (size_t)i)),
                        1e-9 * base, label, i * stride);
        }
    }

    const json_t *const momenta = json_object_get(golden, "momentum");
    const double base = json_number_value(json_object_get(golden, "momentum_base"));
    for (int64_t i = 0; i < count; i++) {
        const double ours = momentum_at(schedule, i * stride, base);
        if (momenta != NULL)
            assert_near(ours, json_number_value(json_array_get(momenta, (size_t)i)), 1e-9 * base, label, i * stride);
        else
            assert_true(ours == base);
    }
    fuse_schedule_free(&schedule);
}

static void golden_values_equal_pytorchs(void **state)
{
    (void)state;
    json_error_t error;
    json_t *const cases = json_load_file(GOLDEN_FILE, 0, &error);
    if (cases == NULL)
        fail_msg("%s:%d: %s", GOLDEN_FILE, error.line, error.text);
    assert_true(json_array_size(cases) > 160);
    size_t i;
    const json_t *golden;
    json_array_foreach(cases, i, golden)
    {
        char *const label = json_dumps(json_object_get(golden, "sections"), 0);
        check_case(golden, label);
        free(label);
    }
    json_decref(cases);
}

/* ---- any setting, any position ----------------------------------------------------------------------------------- */

/* 0, 1, ..., 1000, then ever wider, 10^6 among them, to the largest. */
static int64_t next_position(int64_t position)
{
    if (position < 1000)
        return position + 1;
    return position < INT64_MAX / 10 ? (position < 1000000 ? position + 999 : position * 10) : INT64_MAX;
}

static void values_are_finite_at_odd_settings(void **state)
{
    (void)state;
    const double bases[] = {0, 1e-300, 0.1, 1e300};
    for (size_t i = 0; i < ODD_COUNT; i++) {
        struct fuse_schedule *schedule = build_odd(i, 50);
        for (size_t b = 0; b < sizeof bases / sizeof bases[0]; b++) {
            for (int64_t position = 0; position < INT64_MAX; position = next_position(position)) {
                if (!isfinite(value_at(schedule, position, bases[b])))
                    fail_msg("%s (odd setting %zu), base %g, position %lld is not finite", odd_name(i), i, bases[b],
                             (long long)position);
                assert_true(isfinite(momentum_at(schedule, position, 0.5)));
            }
            assert_true(isfinite(value_at(schedule, INT64_MAX, bases[b])));
        }
        fuse_schedule_free(&schedule);
    }
}

static void chains_are_finite_at_odd_settings(void **state)
{
    (void)state;
    struct spec spec = {0};
    add(&spec, "scheduler", "chain", "stages=wave, up, low", NULL);
    add(&spec, "scheduler.up", "exponential", "gamma=10", NULL);
    add(&spec, "scheduler.low", "polynomial", "total_iters=7", NULL);
    add(&spec, "scheduler.wave", "cosine", "t_max=3", "eta_min=1e300", NULL);
    struct fuse_schedule *schedule = take(&spec, 20);
    const double bases[] = {0, 1e-310, 0.1, 1e300};
    for (size_t b = 0; b < sizeof bases / sizeof bases[0]; b++)
        for (int64_t position = 0; position < INT64_MAX; position = next_position(position))
            assert_true(isfinite(value_at(schedule, position, bases[b])));
    assert_true(value_at(schedule, 3, 0) == 0);
    fuse_schedule_free(&schedule);
}

static void order_of_questions_does_not_matter(void **state)
{
    (void)state;
    enum { COUNT = 97 };
    for (size_t i = 0; i < ODD_COUNT; i++) {
        struct fuse_schedule *schedule = build_odd(i, 50);
        double first[COUNT];
        for (int64_t position = 0; position < COUNT; position++)
            first[position] = value_at(schedule, position, 0.1);
        for (int64_t k = 0; k < COUNT; k++) { /* 35 and 97 have no common factor: every position once */
            const int64_t position = k * 35 % COUNT;
            (void)value_at(schedule, position + 1000, 7);
            assert_memory_equal(&(double){value_at(schedule, position, 0.1)}, &first[position], sizeof(double));
        }
        struct fuse_schedule *again = build_odd(i, 50); /* as a resume would */
        for (int64_t position = COUNT - 1; position >= 0; position--)
            assert_memory_equal(&(double){value_at(again, position, 0.1)}, &first[position], sizeof(double));
        fuse_schedule_free(&again);
        fuse_schedule_free(&schedule);
    }
}

/* ---- reported elsewhere ------------------------------------------------------------------------------------------ */

static void row_12_first_update(void **state)
{
    (void)state;
    struct fuse_schedule *schedule = single("linear", 20, "total_iters=5");
    assert_near(value_at(schedule, 0, 0.3), 0.1, 1e-10, "linear", 0);
    assert_int_equal(warnings_of(schedule).count, 0);
    fuse_schedule_free(&schedule);

    schedule = single("linear", 20, "start_factor=0");
    assert_true(value_at(schedule, 0, 0.3) == 0);
    assert_near(value_at(schedule, 1, 0.3), 0.06, 3e-10, "linear from 0", 1);
    struct warnings warnings = warnings_of(schedule);
    assert_int_equal(warnings.count, 1);
    assert_string_equal(warnings.last, "scheduler: start_factor = 0: the first value is 0");
    fuse_schedule_free(&schedule);
}

static void assert_momentum_within(struct fuse_schedule *schedule, double low, double high)
{
    double least = 1;
    double most = 0;
    for (int64_t position = 0; position < 5000; position++) {
        const double momentum = momentum_at(schedule, position, 0.5);
        assert_true(momentum >= low && momentum <= high);
        least = fmin(least, momentum);
        most = fmax(most, momentum);
    }
    assert_true(most == high); /* it starts there */
    assert_true(least < high);
}

static void row_17_momentum_stays_in_its_bounds(void **state)
{
    (void)state;
    static const char *const cycles[][5] = {
        {"max_lr=1", "total_steps=7", NULL},
        {"max_lr=1", "total_steps=100", "anneal_strategy=linear", NULL},
        {"max_lr=1", "total_steps=100", "three_phase=yes", NULL},
        {"max_lr=1", "total_steps=33", "three_phase=yes", "anneal_strategy=linear", "pct_start=0.7"},
        {"max_lr=1", "total_steps=2", "pct_start=0", NULL},
    };
    for (size_t i = 0; i < sizeof cycles / sizeof cycles[0]; i++) {
        size_t count = 0;
        while (count < 5 && cycles[i][count] != NULL)
            count++;
        struct spec spec = {0};
        add_component(&spec, "scheduler", load("onecycle"), cycles[i], count);
        struct fuse_schedule *schedule = take(&spec, 100);
        assert_true(fuse_schedule_cycles_momentum(schedule));
        assert_momentum_within(schedule, 0.85, 0.95);
        fuse_schedule_free(&schedule);
    }
    struct spec spec = {0};
    add(&spec, "scheduler", "cyclic", "base_lr=0", "max_lr=1", "step_size_up=3", "mode=exp_range", "gamma=1.1", NULL);
    struct fuse_schedule *schedule = take(&spec, 100);
    assert_momentum_within(schedule, 0.8, 0.9);
    fuse_schedule_free(&schedule);

    add(&spec, "scheduler", "onecycle", "max_lr=1", "cycle_momentum=no", NULL);
    schedule = take(&spec, 100);
    assert_false(fuse_schedule_cycles_momentum(schedule));
    assert_null(fuse_schedule_momentum_section(schedule));
    for (int64_t position = 0; position < 120; position++)
        assert_true(momentum_at(schedule, position, 0.5) == 0.5);
    fuse_schedule_free(&schedule);
}

/* ---- ends and mistakes ------------------------------------------------------------------------------------------- */

static void onecycle_holds_its_last_value(void **state)
{
    (void)state;
    static const char *const forms[] = {"anneal_strategy=cos", "anneal_strategy=linear"};
    for (size_t i = 0; i < 2; i++) {
        struct spec spec = {0};
        add(&spec, "scheduler", "onecycle", "max_lr=1", "total_steps=10", forms[i], NULL);
        struct fuse_schedule *schedule = take(&spec, 30);
        assert_near(value_at(schedule, 9, 0.1), 1 / 25.0 / 1e4, 1e-10, "onecycle", 9);
        for (int64_t position = 10; position < 30; position++) {
            assert_true(value_at(schedule, position, 0.1) == value_at(schedule, 9, 0.1));
            assert_true(momentum_at(schedule, position, 0.1) == momentum_at(schedule, 9, 0.1));
        }
        assert_int_equal(warnings_of(schedule).count, 1);
        fuse_schedule_free(&schedule);
    }
    /* Two positions, half of them rising: the peak, then the end. */
    struct spec spec = {0};
    add(&spec, "scheduler", "onecycle", "max_lr=1", "total_steps=2", "pct_start=0.5", NULL);
    struct fuse_schedule *schedule = take(&spec, 2);
    assert_near(value_at(schedule, 0, 0.1), 1, 1e-10, "onecycle of 2", 0);
    assert_near(value_at(schedule, 1, 0.1), 1 / 25.0 / 1e4, 1e-10, "onecycle of 2", 1);
    fuse_schedule_free(&schedule);
}

static void absolute_values_hold_for_all_groups(void **state)
{
    (void)state;
    struct fuse_schedule *schedule = single("cosine", 10, "eta_min=0.01");
    assert_near(value_at(schedule, 10, 1), 0.01, 1e-9, "cosine", 10);
    assert_near(value_at(schedule, 10, 0.02), 0.01, 1e-9, "cosine", 10);
    fuse_schedule_free(&schedule);
    schedule = single("onecycle", 10, "max_lr=0.5");
    for (int64_t position = 0; position < 10; position++)
        assert_true(value_at(schedule, position, 1) == value_at(schedule, position, 0));
    fuse_schedule_free(&schedule);
}

static void values_out_of_range_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *plugin;
        const char *key;
        const char *pairs[3];
    } wrong[] = {
        {"constant", "factor", {"factor=1.5"}},
        {"constant", "total_iters", {"total_iters=0"}},
        {"linear", "start_factor", {"start_factor=-0.1"}},
        {"linear", "end_factor", {"end_factor=2"}},
        {"linear", "total_iters", {"total_iters=0"}},
        {"step", "step_size", {NULL}},
        {"step", "step_size", {"step_size=0"}},
        {"step", "gamma", {"step_size=1", "gamma=-1"}},
        {"multistep", "milestones", {NULL}},
        {"multistep", "milestones", {"milestones=3, -1"}},
        {"exponential", "gamma", {NULL}},
        {"polynomial", "total_iters", {"total_iters=0"}},
        {"polynomial", "power", {"power=-1"}},
        {"cosine", "t_max", {"t_max=0"}},
        {"cosine", "t_max", {"t_max=2.5"}},
        {"cosine_restarts", "t_0", {NULL}},
        {"cosine_restarts", "t_0", {"t_0=0"}},
        {"cosine_restarts", "t_mult", {"t_0=1", "t_mult=0"}},
        {"onecycle", "max_lr", {NULL}},
        {"onecycle", "total_steps", {"max_lr=1", "total_steps=0"}},
        {"onecycle", "pct_start", {"max_lr=1", "pct_start=1.1"}},
        {"onecycle", "div_factor", {"max_lr=1", "div_factor=0"}},
        {"onecycle", "anneal_strategy", {"max_lr=1", "anneal_strategy=sine"}},
        {"onecycle", "max_momentum", {"max_lr=1", "max_momentum=1"}},
        {"cyclic", "base_lr", {"max_lr=1"}},
        {"cyclic", "step_size_up", {"base_lr=0", "max_lr=1", "step_size_up=0"}},
        {"sequential", "stages", {"milestones=3"}},
        {"sequential", "milestones", {"stages=a, b", "milestones=-1"}},
        {"chain", "stages", {NULL}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        size_t count = 0;
        while (count < 3 && wrong[i].pairs[count] != NULL)
            count++;
        struct fuse_error error = FUSE_ERROR_INIT;
        struct fuse_options *options = NULL;
        const int status = fuse_options_from_pairs(load(wrong[i].plugin), wrong[i].pairs, count, &options, &error);
        if (status != FUSERUN_ERROR_CONFIG || strcmp(error.key, wrong[i].key) != 0)
            fail_msg("%s: case %zu gave %d, key '%s': %s", wrong[i].plugin, i, status, error.key, error.text);
        fuse_options_free(&options);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_values_equal_pytorchs),
        cmocka_unit_test(values_are_finite_at_odd_settings),
        cmocka_unit_test(chains_are_finite_at_odd_settings),
        cmocka_unit_test(order_of_questions_does_not_matter),
        cmocka_unit_test(row_12_first_update),
        cmocka_unit_test(row_17_momentum_stays_in_its_bounds),
        cmocka_unit_test(onecycle_holds_its_last_value),
        cmocka_unit_test(absolute_values_hold_for_all_groups),
        cmocka_unit_test(values_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, open_registry, close_registry);
}
