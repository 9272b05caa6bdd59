/* The optimizers against PyTorch's weights (tools/make_golden_optimizers.py), their three forms against each
 * other, and values by hand. The rules come from the built plugins, as in a run. */
#include "optimizer_cases.h"

#include "config/options.h"
#include "files/safetensors.h"
#include "plugin/registry.h"

#include <fuserun/optimizer.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BUFFER_STATES 3
#define LARGEST_SIZE 4097
#define GUARD 32 /* elements behind the last, to see that nobody writes there */
#define GOLDEN_ELEMENTS 201

static const int64_t golden_sizes[] = {1, 7, 64, 129};
static const int checkpoints[] = {1, 2, 12};
#define GOLDEN_TENSORS (sizeof golden_sizes / sizeof golden_sizes[0])
#define CHECKPOINT_COUNT (sizeof checkpoints / sizeof checkpoints[0])

static struct golden_cases golden_cases;
static struct fuse_registry *registry;

static int read_cases(void **state)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    (void)state;
    golden_cases_read(GOLDEN_FOLDER "/optimizers.txt", &golden_cases);
    if (fuse_registry_new(NULL, 0, NULL, &registry, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    return 0;
}

static int free_cases(void **state)
{
    (void)state;
    golden_cases_free(&golden_cases);
    fuse_registry_free(&registry);
    return 0;
}

/* ---- an optimizer set up as the optimizer dict does it ----------------------------------------------------------- */

struct setup {
    const struct fuse_component *component;
    const struct fuse_optimizer *optimizer;
    const struct fuse_rule *rule;
    double base[FUSERUN_MAX_HYPER];
    double hyper[FUSERUN_MAX_HYPER];
    uint8_t is_driven[FUSERUN_MAX_HYPER];
    double numbers[FUSERUN_MAX_NUMBERS];
    size_t hyper_count;
};

static const struct fuse_component *find(const char *plugin)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    if (fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, plugin, &component, &file, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    return component;
}

static struct setup set_up(const struct golden_case *golden)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_options *options = NULL;
    struct setup setup = {.component = find(golden->plugin)};
    setup.optimizer = setup.component->api;
    if (fuse_options_from_pairs(setup.component, golden->pairs, golden->pair_count, &options, &error) != FUSERUN_OK)
        fail_msg("%s: %s", golden->name, error.text);
    if (setup.optimizer->check != NULL)
        assert_int_equal(setup.optimizer->check(fuse_host(), options, &error), FUSERUN_OK);
    setup.hyper_count = fuse_options_flatten(setup.component, options, setup.base, FUSERUN_MAX_HYPER);
    fuse_options_free(&options);
    memcpy(setup.hyper, setup.base, sizeof setup.hyper);
    for (size_t i = 0; i < golden->drive_count; i++) {
        bool is_schedulable = false;
        const int at = fuse_options_flat_index(setup.component, golden->drives[i], &is_schedulable);
        assert_true(at >= 0 && at < FUSERUN_MAX_HYPER && (size_t)at < setup.hyper_count);
        assert_true(is_schedulable);
        setup.is_driven[at] = 1;
    }
    setup.rule =
        setup.optimizer
            ->rules[setup.optimizer->rule_count == 1 ? 0 : setup.optimizer->select_rule(setup.hyper, setup.is_driven)];
    assert_true(setup.rule->state_count <= MAX_BUFFER_STATES);
    return setup;
}

/* The scalars of update `step`, driven options at their configured value times `factor`. */
static void prepare(struct setup *setup, int64_t step, double factor, float scalars[FUSERUN_MAX_SCALARS])
{
    double exact[FUSERUN_MAX_SCALARS];
    const struct fuse_update update = {FUSERUN_STRUCT_SIZE(fuse_update, numbers), (uint32_t)setup->hyper_count,
                                       setup->hyper, step, setup->numbers};
    for (size_t i = 0; i < setup->hyper_count; i++)
        setup->hyper[i] = setup->is_driven[i] ? setup->base[i] * factor : setup->base[i];
    setup->optimizer->prepare(&update, exact);
    for (uint32_t i = 0; i < setup->rule->scalar_count; i++)
        scalars[i] = (float)exact[i];
}

/* ---- the three forms --------------------------------------------------------------------------------------------- */

enum form { PER_PARAM, FOREACH, SLICES, FORM_COUNT };

/* Consecutive tensors in one set of buffers, each (elements). */
struct buffers {
    float param[LARGEST_SIZE + GUARD];
    float grad[LARGEST_SIZE + GUARD];
    float states[MAX_BUFFER_STATES][LARGEST_SIZE + GUARD];
};

struct piece {
    struct fuse_slice slice;
    float *states[MAX_BUFFER_STATES];
};

static void cut(struct buffers *buffers, const struct fuse_rule *rule, const float *scalars, int64_t at, int64_t first,
                int64_t count, struct piece *piece)
{
    for (uint32_t i = 0; i < rule->state_count; i++)
        piece->states[i] = buffers->states[i] + at;
    piece->slice = (struct fuse_slice){FUSERUN_STRUCT_SIZE(fuse_slice, first),
                                       rule->state_count,
                                       buffers->param + at,
                                       buffers->grad + at,
                                       piece->states,
                                       scalars,
                                       count,
                                       first};
}

static uint32_t draw(uint32_t limit)
{
    static uint64_t state = 20240917;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % limit;
}

/* Panels of random lengths, as a fused backward hands them over. */
static void update_in_slices(struct buffers *buffers, const struct fuse_rule *rule, const float *scalars, int64_t at,
                             int64_t count)
{
    const uint32_t longest = (uint32_t)count / (1 + draw(8)) + 1;
    for (int64_t first = 0; first < count;) {
        struct piece piece;
        int64_t length = 1 + draw(longest);
        if (length > count - first)
            length = count - first;
        cut(buffers, rule, scalars, at + first, first, length, &piece);
        rule->update_slice(&piece.slice);
        first += length;
    }
}

static void update(struct buffers *buffers, enum form form, const struct fuse_rule *rule, const float *scalars,
                   const int64_t *sizes, size_t tensor_count)
{
    struct piece pieces[8];
    struct fuse_slice slices[8];
    int64_t at = 0;
    assert_true(tensor_count <= 8);
    for (size_t i = 0; i < tensor_count; i++) {
        cut(buffers, rule, scalars, at, 0, sizes[i], &pieces[i]);
        slices[i] = pieces[i].slice;
        if (form == PER_PARAM)
            rule->update_slice(&pieces[i].slice);
        else if (form == SLICES)
            update_in_slices(buffers, rule, scalars, at, sizes[i]);
        at += sizes[i];
    }
    if (form == FOREACH)
        rule->update_foreach(slices, (int64_t)tensor_count);
}

static void fill(float *values, uint32_t stream, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = golden_value(stream, (uint32_t)i);
}

/* ---- against PyTorch --------------------------------------------------------------------------------------------- */

static void compare_with_golden(const struct golden_case *golden, const char *form_name, int update_number,
                                const float *got, const float *expected)
{
    int64_t at = 0;
    for (size_t tensor = 0; tensor < GOLDEN_TENSORS; tensor++) {
        const int64_t end = at + golden_sizes[tensor];
        float largest = 0.0f;
        for (int64_t i = at; i < end; i++)
            largest = fmaxf(largest, fabsf(expected[i]));
        for (; at < end; at++)
            if (!(fabsf(got[at] - expected[at]) <= 2e-6f * largest))
                fail_msg("%s, %s, update %d, element %d: %.9g, PyTorch has %.9g (largest of its tensor %.9g)",
                         golden->name, form_name, update_number, (int)at, (double)got[at], (double)expected[at],
                         (double)largest);
    }
}

static void run_golden_case(const struct golden_case *golden, const float expected[CHECKPOINT_COUNT][GOLDEN_ELEMENTS])
{
    static const char *const form_names[FORM_COUNT] = {"per_param", "foreach", "slices"};
    static struct buffers buffers[FORM_COUNT];
    memset(buffers, 0, sizeof buffers);
    for (int form = 0; form < FORM_COUNT; form++) {
        struct setup setup = set_up(golden);
        size_t checkpoint = 0;
        fill(buffers[form].param, 0, GOLDEN_ELEMENTS);
        for (int step = 1; step <= UPDATES; step++) {
            float scalars[FUSERUN_MAX_SCALARS];
            fill(buffers[form].grad, (uint32_t)step, GOLDEN_ELEMENTS);
            prepare(&setup, step, golden_cases.factors[step - 1], scalars);
            update(&buffers[form], (enum form)form, setup.rule, scalars, golden_sizes, GOLDEN_TENSORS);
            if (step == checkpoints[checkpoint]) {
                compare_with_golden(golden, form_names[form], step, buffers[form].param, expected[checkpoint]);
                checkpoint++;
            }
        }
        assert_int_equal(checkpoint, CHECKPOINT_COUNT);
        assert_memory_equal(&buffers[form], &buffers[0], sizeof buffers[0]); /* weights and states, bit for bit */
    }
}

/* Every case of one plugin; together they must reach every one of its rules. */
static void run_golden_plugin(const char *plugin)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_safetensors *file = NULL;
    bool is_reached[16] = {false};
    const struct fuse_optimizer *optimizer = find(plugin)->api;
    if (fuse_safetensors_open(GOLDEN_FOLDER "/optimizers.safetensors", &file, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    for (size_t i = 0; i < golden_cases.count; i++) {
        static float expected[CHECKPOINT_COUNT][GOLDEN_ELEMENTS];
        const struct fuse_safetensors_entry *entry = NULL;
        if (strcmp(golden_cases.cases[i].plugin, plugin) != 0)
            continue;
        entry = fuse_safetensors_find(file, golden_cases.cases[i].name);
        assert_non_null(entry);
        assert_int_equal(entry->byte_count, sizeof expected);
        assert_int_equal(fuse_safetensors_read(file, entry, 0, expected, sizeof expected, &error), FUSERUN_OK);
        run_golden_case(&golden_cases.cases[i], (const float(*)[GOLDEN_ELEMENTS])expected);
        for (uint32_t rule = 0; rule < optimizer->rule_count; rule++)
            is_reached[rule] |= optimizer->rules[rule] == set_up(&golden_cases.cases[i]).rule;
    }
    for (uint32_t rule = 0; rule < optimizer->rule_count; rule++)
        if (!is_reached[rule])
            fail_msg("no case reaches rule %s", optimizer->rules[rule]->name);
    fuse_safetensors_close(&file);
}

/* state: the plugin's name */
static void equals_golden(void **state)
{
    run_golden_plugin(*state);
}

/* ---- forms against each other ------------------------------------------------------------------------------------ */

static void copy(struct buffers *to, const struct buffers *from, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(float);
    memcpy(to->param, from->param, bytes);
    memcpy(to->grad, from->grad, bytes);
    for (size_t i = 0; i < MAX_BUFFER_STATES; i++)
        memcpy(to->states[i], from->states[i], bytes);
}

/* An element-wise rule cannot know how long its tensor is: tensors of `size` elements, whole or in pieces, must get the
 * first `size` results of the longest one, bit for bit. */
static void run_all_sizes(const struct golden_case *golden)
{
    static struct buffers longest, start, buffers;
    const int64_t longest_size = LARGEST_SIZE;
    struct setup setup = set_up(golden);
    float scalars[FUSERUN_MAX_SCALARS];
    /* From the state after one update, so that states are not 0. */
    memset(&start, 0, sizeof start);
    fill(start.param, 0, LARGEST_SIZE);
    fill(start.grad, 1, LARGEST_SIZE);
    prepare(&setup, 1, 1.0, scalars);
    update(&start, PER_PARAM, setup.rule, scalars, &longest_size, 1);
    fill(start.grad, 2, LARGEST_SIZE);
    longest = start;
    prepare(&setup, 2, 0.5, scalars);
    update(&longest, PER_PARAM, setup.rule, scalars, &longest_size, 1);
    for (int64_t size = 1; size <= LARGEST_SIZE; size++) {
        /* foreach: the same elements as two tensors and an empty one between them. */
        const int64_t head = draw((uint32_t)size + 1);
        const int64_t tensors[3] = {head, 0, size - head};
        for (int form = 0; form < FORM_COUNT; form++) {
            const size_t bytes = (size_t)size * sizeof(float);
            copy(&buffers, &start, size + GUARD);
            if (form == FOREACH)
                update(&buffers, FOREACH, setup.rule, scalars, tensors, 3);
            else
                update(&buffers, (enum form)form, setup.rule, scalars, &size, 1);
            if (memcmp(buffers.param, longest.param, bytes) != 0)
                fail_msg("%s: weights of size %d, form %d differ", golden->name, (int)size, form);
            for (uint32_t i = 0; i < setup.rule->state_count; i++)
                if (memcmp(buffers.states[i], longest.states[i], bytes) != 0)
                    fail_msg("%s: state %u of size %d, form %d differs", golden->name, i, (int)size, form);
            /* Nothing past the end is touched. */
            assert_memory_equal(buffers.param + size, start.param + size, GUARD * sizeof(float));
        }
    }
}

static void row_34_forms_are_equal_for_all_rules_and_sizes(void **state)
{
    const struct fuse_rule *done[MAX_CASES];
    size_t done_count = 0;
    (void)state;
    for (size_t i = 0; i < golden_cases.count; i++) {
        const struct fuse_rule *rule = set_up(&golden_cases.cases[i]).rule;
        bool is_new = true;
        for (size_t k = 0; k < done_count; k++)
            is_new = is_new && done[k] != rule;
        if (!is_new)
            continue;
        run_all_sizes(&golden_cases.cases[i]);
        done[done_count++] = rule;
    }
    assert_int_equal(done_count, 26);
}

/* ---- values by hand ---------------------------------------------------------------------------------------------- */

struct element {
    float param;
    float grad;
    float states[MAX_BUFFER_STATES];
};

/* One first update of one element. */
static struct element first_update(const char *plugin, const char *const *pairs, size_t pair_count, float param,
                                   float grad)
{
    struct golden_case golden = {.name = plugin, .plugin = plugin, .pair_count = pair_count};
    static struct buffers buffers;
    struct element element;
    struct setup setup;
    float scalars[FUSERUN_MAX_SCALARS];
    const int64_t one = 1;
    memcpy(golden.pairs, pairs, pair_count * sizeof *pairs);
    setup = set_up(&golden);
    memset(&buffers, 0, sizeof buffers);
    buffers.param[0] = param;
    buffers.grad[0] = grad;
    prepare(&setup, 1, 1.0, scalars);
    update(&buffers, PER_PARAM, setup.rule, scalars, &one, 1);
    element = (struct element){
        buffers.param[0], buffers.grad[0], {buffers.states[0][0], buffers.states[1][0], buffers.states[2][0]}};
    return element;
}

static void row_29_zero_gradient_still_decays(void **state)
{
    static const char *const pairs[] = {"lr=.1", "weight_decay=.5"};
    const struct element adamw = first_update("adamw", pairs, 2, 1.0f, 0.0f);
    (void)state;
    assert_true(adamw.param == 0.95f);
    assert_true(adamw.states[0] == 0.0f && adamw.states[1] == 0.0f);
    assert_true(first_update("sgd", pairs, 2, 1.0f, 0.0f).param == 0.95f);
    /* L2: the decay is the whole gradient, which Adam's first step scales to lr. */
    assert_float_equal(first_update("adam", pairs, 2, 1.0f, 0.0f).param, 0.9f, 1e-6);
}

/* lr .1, weight_decay .5, eps .1; weight 1, gradient .5. Adam-L2: g = 1, so 1 - .1 / (1 + .1). AdamW:
 * .95 - .1 * .5 / (.5 + .1). With eps scaled by the bias correction they would be 0.976 and 0.936, with the decay after
 * the step AdamW would give 0.871. */
static void row_30_one_step_of_adam_l2_and_adamw(void **state)
{
    static const char *const pairs[] = {"lr=.1", "weight_decay=.5", "eps=.1"};
    const struct element adam = first_update("adam", pairs, 3, 1.0f, 0.5f);
    const struct element adamw = first_update("adamw", pairs, 3, 1.0f, 0.5f);
    (void)state;
    assert_float_equal(adam.param, 0.909090909f, 2e-7);
    assert_float_equal(adam.states[0], 0.1f, 1e-8);
    assert_float_equal(adam.states[1], 0.001f, 1e-10);
    assert_float_equal(adamw.param, 0.866666667f, 2e-7);
    assert_float_equal(adamw.states[0], 0.05f, 1e-8);
    assert_float_equal(adamw.states[1], 0.00025f, 1e-10);
}

static void an_infinite_weight_stays_out_of_the_moments_without_decay(void **state)
{
    static const char *const plugins[] = {"sgd",   "adam",   "adamw", "adagrad", "adadelta", "rmsprop",
                                          "rprop", "adamax", "nadam", "radam",   "lion"};
    static const char *const pairs[] = {"weight_decay=0"};
    (void)state;
    for (size_t i = 0; i < sizeof plugins / sizeof plugins[0]; i++) {
        const size_t pair_count = strcmp(plugins[i], "rprop") != 0; /* which has no decay at all */
        const struct element element = first_update(plugins[i], pairs, pair_count, INFINITY, 0.5f);
        assert_true(isinf(element.param));
        assert_true(isfinite(element.states[0]) && isfinite(element.states[1]));
    }
}

/* ---- options, choice of the rule, texts -------------------------------------------------------------------------- */

static void nesterov_needs_momentum_and_no_dampening(void **state)
{
    static const struct {
        const char *pairs[3];
        size_t count;
        int status;
    } rows[] = {
        {{"nesterov=yes"}, 1, FUSERUN_ERROR_CONFIG},
        {{"nesterov=yes", "momentum=.9", "dampening=.1"}, 3, FUSERUN_ERROR_CONFIG},
        {{"nesterov=yes", "momentum=.9"}, 2, FUSERUN_OK},
        {{"momentum=.9", "dampening=.1"}, 2, FUSERUN_OK},
    };
    const struct fuse_component *sgd = find("sgd");
    const struct fuse_optimizer *optimizer = sgd->api;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fuse_options *options = NULL;
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_options_from_pairs(sgd, rows[i].pairs, rows[i].count, &options, &error), FUSERUN_OK);
        assert_int_equal(optimizer->check(fuse_host(), options, &error), rows[i].status);
        if (rows[i].status != FUSERUN_OK) {
            assert_string_equal(error.key, "nesterov");
            assert_non_null(strstr(error.text, "Nesterov momentum requires a momentum and zero dampening"));
        }
        fuse_options_free(&options);
    }
}

static void a_driven_option_counts_as_non_zero(void **state)
{
    struct golden_case golden = {.name = "driven", .plugin = "sgd"};
    (void)state;
    assert_string_equal(set_up(&golden).rule->name, "sgd");
    golden.drive_count = 1;
    golden.drives[0] = "lr";
    assert_string_equal(set_up(&golden).rule->name, "sgd");
    golden.drives[0] = "momentum";
    assert_string_equal(set_up(&golden).rule->name, "sgd_momentum");
    golden.drives[0] = "weight_decay";
    assert_string_equal(set_up(&golden).rule->name, "sgd_l2");
    golden.plugin = "adam";
    assert_string_equal(set_up(&golden).rule->name, "adam_l2");
    golden.plugin = "adamw";
    golden.pairs[golden.pair_count++] = "weight_decay=0";
    assert_string_equal(set_up(&golden).rule->name, "adamw_decay");
    golden.drive_count = 0;
    assert_string_equal(set_up(&golden).rule->name, "adamw");
}

/* States carry PyTorch's names into checkpoints, and a rule's text stands alone for other compilers: no macro of the
 * plugin's source is left in it. */
static void rules_name_their_states_and_keep_expanded_texts(void **state)
{
    static const struct {
        const char *plugin;
        const char *states[4]; /* of its rules, those without states apart */
        const char *numbers;
    } rows[] = {
        {"sgd", {"(momentum_buffer)"}, NULL},
        {"adam", {"(exp_avg, exp_avg_sq)", "(exp_avg, exp_avg_sq, max_exp_avg_sq)"}, NULL},
        {"adamw", {"(exp_avg, exp_avg_sq)", "(exp_avg, exp_avg_sq, max_exp_avg_sq)"}, NULL},
        {"adagrad", {"(sum)"}, NULL},
        {"adadelta", {"(square_avg, acc_delta)"}, NULL},
        {"rmsprop",
         {"(square_avg)", "(square_avg, momentum_buffer)", "(square_avg, grad_avg)",
          "(square_avg, momentum_buffer, grad_avg)"},
         NULL},
        {"rprop", {"(prev, step_size)"}, NULL},
        {"asgd", {"(ax)"}, "(eta)"},
        {"adamax", {"(exp_avg, exp_inf)"}, NULL},
        {"nadam", {"(exp_avg, exp_avg_sq)"}, "(mu_product)"},
        {"radam", {"(exp_avg, exp_avg_sq)"}, NULL},
        {"lion", {"(exp_avg)"}, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct fuse_component *component = find(rows[i].plugin);
        const struct fuse_optimizer *optimizer = component->api;
        assert_int_equal(component->capabilities & FUSERUN_OPTIMIZER_ELEMENTWISE, FUSERUN_OPTIMIZER_ELEMENTWISE);
        for (uint32_t k = 0; k < optimizer->rule_count; k++) {
            const struct fuse_rule *rule = optimizer->rules[k];
            bool is_known = rule->state_count == 0 && strcmp(rule->states, "()") == 0;
            for (size_t n = 0; n < 4 && rows[i].states[n] != NULL; n++)
                is_known = is_known || strcmp(rule->states, rows[i].states[n]) == 0;
            if (!is_known)
                fail_msg("rule %s keeps %s", rule->name, rule->states);
            assert_int_equal(rule->number_count, rows[i].numbers != NULL);
            if (rows[i].numbers != NULL)
                assert_string_equal(rule->numbers, rows[i].numbers);
            assert_non_null(strstr(rule->text, "param"));
            for (const char *at = rule->text; *at != '\0'; at++)
                assert_false(*at >= 'A' && *at <= 'Z');
        }
    }
}

/* PyTorch starts rprop's step sizes from lr and adagrad's sum from an option; here the first update adds them. */
static void states_start_where_pytorch_starts_them(void **state)
{
    static const char *const rprop[] = {"lr=.25"};
    static const char *const adagrad[] = {"initial_accumulator_value=3"};
    (void)state;
    struct element element = first_update("rprop", rprop, 1, 1.0f, -0.5f);
    assert_true(element.states[0] == -0.5f && element.states[1] == 0.25f && element.param == 1.25f);
    element = first_update("adagrad", adagrad, 1, 1.0f, 1.0f);
    assert_true(element.states[0] == 4.0f);
    assert_float_equal(element.param, 0.995f, 1e-7);
}

/* asgd's average plays no part in the weights: with t0 = 1 it is the weight itself up to update 3, and then takes a
 * half, a third, ... of each new one. */
static void asgd_averages_from_t0_on(void **state)
{
    struct golden_case golden = {.name = "average", .plugin = "asgd", .pairs = {"lr=.25", "t0=1"}, .pair_count = 2};
    static struct buffers buffers;
    const int64_t one = 1;
    double average = 0.0;
    struct setup setup = set_up(&golden);
    (void)state;
    memset(&buffers, 0, sizeof buffers);
    for (int step = 1; step <= 6; step++) {
        float scalars[FUSERUN_MAX_SCALARS];
        buffers.grad[0] = (float)(step - 3);
        prepare(&setup, step, 1.0, scalars);
        update(&buffers, PER_PARAM, setup.rule, scalars, &one, 1);
        const double param = (double)buffers.param[0];
        average = step <= 3 ? param : average + (param - average) / (step - 2);
        assert_float_equal(buffers.states[0][0], (float)average, 1e-7);
    }
}

static void rprop_refuses_bounds_that_cross(void **state)
{
    static const struct {
        const char *pair;
        const char *key;
        const char *text;
    } rows[] = {{"etas=1, 1.2", "etas", "etas must lie around 1"},
                {"etas=.5, 1", "etas", "etas must lie around 1"},
                {"step_sizes=2, 1", "step_sizes", "the smallest step size, 2, is above the largest, 1"}};
    const struct fuse_component *rprop = find("rprop");
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fuse_options *options = NULL;
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_options_from_pairs(rprop, &rows[i].pair, 1, &options, &error), FUSERUN_OK);
        assert_int_equal(((const struct fuse_optimizer *)rprop->api)->check(fuse_host(), options, &error),
                         FUSERUN_ERROR_CONFIG);
        assert_string_equal(error.key, rows[i].key);
        assert_non_null(strstr(error.text, rows[i].text));
        fuse_options_free(&options);
    }
}

/* Gradients that never change: the centred variance falls to the rounding error, on either side of 0. */
static void centered_rmsprop_survives_constant_gradients(void **state)
{
    struct golden_case golden = {.name = "constant", .plugin = "rmsprop", .pairs = {"centered=yes"}, .pair_count = 1};
    static struct buffers buffers;
    const int64_t count = 64;
    float scalars[FUSERUN_MAX_SCALARS];
    struct setup setup = set_up(&golden);
    (void)state;
    memset(&buffers, 0, sizeof buffers);
    for (int64_t i = 0; i < count; i++)
        buffers.grad[i] = 0.1f + (float)i / 7.0f;
    for (int step = 1; step <= 5000; step++) {
        prepare(&setup, step, 1.0, scalars);
        update(&buffers, PER_PARAM, setup.rule, scalars, &count, 1);
    }
    for (int64_t i = 0; i < count; i++)
        assert_true(isfinite(buffers.param[i]));
}

#define EQUALS_GOLDEN(plugin, source)                                                                                  \
    {                                                                                                                  \
        .name = plugin " equals " source, .test_func = equals_golden, .initial_state = plugin                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        EQUALS_GOLDEN("sgd", "PyTorch"),
        EQUALS_GOLDEN("adam", "PyTorch"),
        EQUALS_GOLDEN("adamw", "PyTorch"),
        EQUALS_GOLDEN("adagrad", "PyTorch"),
        EQUALS_GOLDEN("adadelta", "PyTorch"),
        EQUALS_GOLDEN("rmsprop", "PyTorch"),
        EQUALS_GOLDEN("rprop", "PyTorch"),
        EQUALS_GOLDEN("asgd", "PyTorch"),
        EQUALS_GOLDEN("adamax", "PyTorch"),
        EQUALS_GOLDEN("nadam", "PyTorch"),
        EQUALS_GOLDEN("radam", "PyTorch"),
        EQUALS_GOLDEN("lion", "its authors' formula"),
        cmocka_unit_test(row_34_forms_are_equal_for_all_rules_and_sizes),
        cmocka_unit_test(row_29_zero_gradient_still_decays),
        cmocka_unit_test(row_30_one_step_of_adam_l2_and_adamw),
        cmocka_unit_test(an_infinite_weight_stays_out_of_the_moments_without_decay),
        cmocka_unit_test(nesterov_needs_momentum_and_no_dampening),
        cmocka_unit_test(a_driven_option_counts_as_non_zero),
        cmocka_unit_test(rules_name_their_states_and_keep_expanded_texts),
        cmocka_unit_test(states_start_where_pytorch_starts_them),
        cmocka_unit_test(asgd_averages_from_t0_on),
        cmocka_unit_test(rprop_refuses_bounds_that_cross),
        cmocka_unit_test(centered_rmsprop_survives_constant_gradients),
    };
    return cmocka_run_group_tests_name("optimizers", tests, read_cases, free_cases);
}
