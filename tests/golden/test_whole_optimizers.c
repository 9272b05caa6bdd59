/* Optimizers that look at whole parameters, run by the optimizer dict as in a training run, in its three modes: against
 * PyTorch and against the same in double precision (tools/make_golden_optimizers.py). And groups whose optimizers
 * differ, and what the dict keeps for a rule. */
#include "optimizer_cases.h"

#include "config/options.h"
#include "files/safetensors.h"
#include "optim/dict.h"
#include "plugin/registry.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SHAPES 8
#define MAX_ELEMENTS 8192

struct shape {
    uint32_t rank;
    int64_t sizes[4];
};

static const struct shape adafactor_shapes[] = {{1, {1}},          {1, {33}},      {2, {7, 33}}, {2, {17, 5}},
                                                {4, {2, 3, 4, 5}}, {3, {1, 1, 9}}, {2, {1, 13}}, {2, {13, 1}}};
static const struct shape large_shapes[] = {{1, {4097}}, {2, {65, 63}}};
static const struct shape muon_shapes[] = {{2, {1, 1}},   {2, {5, 3}}, {2, {7, 33}}, {2, {33, 7}},
                                           {2, {24, 24}}, {2, {1, 9}}, {2, {9, 1}}};

static const enum fuse_mode modes[] = {FUSE_MODE_FUSED, FUSE_MODE_PER_PARAM, FUSE_MODE_FOREACH};

static struct golden_cases golden_cases;
static struct fuse_registry *registry;
static struct fuse_safetensors *weights;
static const struct fuse_backend *backend;
static void *devices[2]; /* of one thread and of two */

static const struct fuse_component *find(enum fuse_kind kind, const char *name)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    if (fuse_registry_find(registry, kind, name, &component, &file, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    return component;
}

static int set_up(void **state)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    (void)state;
    golden_cases_read(GOLDEN_FOLDER "/whole_optimizers.txt", &golden_cases);
    if (fuse_registry_new(NULL, 0, NULL, &registry, &error) != FUSERUN_OK ||
        fuse_safetensors_open(GOLDEN_FOLDER "/whole_optimizers.safetensors", &weights, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    backend = find(FUSERUN_KIND_BACKEND, "cpu")->api;
    for (uint32_t i = 0; i < 2; i++) {
        const struct fuse_backend_options options = {.struct_size =
                                                         FUSERUN_STRUCT_SIZE(fuse_backend_options, precision),
                                                     .thread_count = i + 1,
                                                     .precision = FUSERUN_FLOAT32};
        assert_int_equal(backend->open(fuse_host(), &options, &devices[i], &error), FUSERUN_OK);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++)
        backend->close(devices[i]);
    fuse_safetensors_close(&weights);
    fuse_registry_free(&registry);
    golden_cases_free(&golden_cases);
    return 0;
}

/* ---- a dict without a network ------------------------------------------------------------------------------------ */

struct rig {
    struct fuse_graph *graph;
    struct fuse_dict *dict;
    struct fuse_options *options[2];
    float *gradients[MAX_SHAPES];
};

struct group {
    const char *name;
    const char *match; /* NULL: default */
    const char *plugin;
    const char *const *pairs;
    size_t pair_count;
};

/* Parameters p0, p1, ... of these shapes. *error tells why it did not work. */
static int rig_up(struct rig *rig, const struct shape *shapes, size_t shape_count, const struct group *groups,
                  size_t group_count, const char *const *driven, size_t driven_count, enum fuse_mode mode, void *device,
                  struct fuse_error *error)
{
    static const struct fuse_init init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, -1, 1);
    const int64_t input[] = {1, 1};
    struct fuse_group_spec specs[2];
    memset(rig, 0, sizeof *rig);
    assert_true(shape_count <= MAX_SHAPES && group_count <= 2);
    assert_int_equal(fuse_graph_new(2, input, &rig->graph, error), FUSERUN_OK);
    for (size_t i = 0; i < shape_count; i++) {
        const char name[] = {'p', (char)('0' + i), '\0'};
        assert_non_null(fuse_graph_services()->parameter(rig->graph, name, shapes[i].rank, shapes[i].sizes, &init));
    }
    for (size_t g = 0; g < group_count; g++) {
        const struct fuse_component *component = find(FUSERUN_KIND_OPTIMIZER, groups[g].plugin);
        if (fuse_options_from_pairs(component, groups[g].pairs, groups[g].pair_count, &rig->options[g], error) !=
            FUSERUN_OK)
            fail_msg("%s", error->text);
        specs[g] = (struct fuse_group_spec){groups[g].name, &groups[g].match, groups[g].match != NULL, component,
                                            rig->options[g]};
    }
    const int status =
        fuse_dict_new(rig->graph, backend, device, mode, specs, group_count, driven, driven_count, &rig->dict, error);
    if (status != FUSERUN_OK)
        return status;
    assert_int_equal(fuse_dict_allocate(rig->dict, rig->graph, 1, error), FUSERUN_OK);
    assert_int_equal(fuse_dict_attach(rig->dict, rig->graph, error), FUSERUN_OK);
    for (size_t i = 0; i < shape_count; i++)
        rig->gradients[i] = test_calloc((size_t)rig->graph->parameters[i].element_count, sizeof(float));
    return FUSERUN_OK;
}

static void rig_down(struct rig *rig)
{
    for (size_t i = 0; i < MAX_SHAPES; i++)
        if (rig->gradients[i] != NULL)
            test_free(rig->gradients[i]);
    fuse_dict_free(&rig->dict);
    fuse_graph_free(&rig->graph);
    for (size_t g = 0; g < 2; g++)
        fuse_options_free(&rig->options[g]);
}

/* Elements are numbered through all parameters. */
static void fill(struct rig *rig, float *const *values, uint32_t stream)
{
    uint32_t at = 0;
    for (uint32_t p = 0; p < rig->graph->parameter_count; p++)
        for (int64_t i = 0; i < rig->graph->parameters[p].element_count; i++)
            values[p][i] = golden_value(stream, at++);
}

/* One update with the gradients that are there, as a program would do it. gradients[p] NULL: p gets none. */
static void update(struct rig *rig, float *const *gradients)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    fuse_dict_begin(rig->dict);
    for (uint32_t p = 0; p < rig->graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &rig->graph->parameters[p];
        const struct fuse_gradient gradient = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_gradient, count),
                                               .values = gradients[p],
                                               .count = parameter->element_count};
        if (gradients[p] != NULL)
            parameter->callbacks[0].gradient(parameter->callbacks[0].user, &gradient);
    }
    if (rig->dict->mode == FUSE_MODE_FOREACH)
        assert_int_equal(fuse_dict_after_backward(rig->dict, UINT32_MAX, gradients, &error), FUSERUN_OK);
    for (uint32_t p = 0; rig->dict->mode == FUSE_MODE_PER_PARAM && p < rig->graph->parameter_count; p++)
        assert_int_equal(fuse_dict_after_backward(rig->dict, p, gradients, &error), FUSERUN_OK);
    assert_int_equal(fuse_dict_end(rig->dict, &error), FUSERUN_OK);
}

static size_t collect(const struct rig *rig, float *values)
{
    size_t count = 0;
    for (uint32_t p = 0; p < rig->graph->parameter_count; p++) {
        const size_t elements = (size_t)rig->graph->parameters[p].element_count;
        assert_true(count + elements <= MAX_ELEMENTS);
        memcpy(values + count, rig->dict->parameters[p], elements * sizeof *values);
        count += elements;
    }
    return count;
}

static void up(struct rig *rig, const struct golden_case *golden, const struct shape *shapes, size_t shape_count,
               enum fuse_mode mode, void *device)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct group group = {"default", NULL, golden->plugin, golden->pairs, golden->pair_count};
    if (rig_up(rig, shapes, shape_count, &group, 1, golden->drives, golden->drive_count, mode, device, &error) !=
        FUSERUN_OK)
        fail_msg("%s: %s", golden->name, error.text);
    fill(rig, rig->dict->parameters, 0);
}

/* Update `step`, driven options at their configured value times its factor. */
static void golden_update(struct rig *rig, int step)
{
    struct fuse_group *group = &rig->dict->groups[0];
    for (uint32_t h = 0; h < group->hyper_count; h++)
        group->hyper[h] = group->is_driven[h] ? group->base[h] * golden_cases.factors[step - 1] : group->base[h];
    fill(rig, rig->gradients, (uint32_t)step);
    update(rig, rig->gradients);
}

/* ---- against the golden weights ---------------------------------------------------------------------------------- */

static void read_expected(const char *name, float *expected, size_t count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_safetensors_entry *entry = fuse_safetensors_find(weights, name);
    if (entry == NULL)
        fail_msg("no tensor %s", name);
    assert_int_equal(entry->byte_count, count * sizeof *expected);
    assert_int_equal(fuse_safetensors_read(weights, entry, 0, expected, entry->byte_count, &error), FUSERUN_OK);
}

/* 2e-6 of each tensor's largest element. */
static void compare(const char *name, const struct rig *rig, const float *actual, const float *expected)
{
    size_t at = 0;
    for (uint32_t p = 0; p < rig->graph->parameter_count; p++) {
        const size_t count = (size_t)rig->graph->parameters[p].element_count;
        float largest = 0.0f;
        for (size_t i = at; i < at + count; i++)
            largest = fmaxf(largest, fabsf(expected[i]));
        for (size_t i = at; i < at + count; i++)
            if (!(fabsf(actual[i] - expected[i]) <= 2e-6f * largest))
                fail_msg("%s, parameter %u, element %zu: %.9g, not %.9g (largest of its tensor %.9g)", name, p, i - at,
                         (double)actual[i], (double)expected[i], (double)largest);
        at += count;
    }
}

/* All modes, one thread and two: the same bits, and the golden weights. */
static void run_case(const struct golden_case *golden, const char *tensor, const struct shape *shapes,
                     size_t shape_count)
{
    static float expected[MAX_ELEMENTS], first[MAX_ELEMENTS], actual[MAX_ELEMENTS];
    for (size_t run = 0; run < 6; run++) {
        struct rig rig;
        up(&rig, golden, shapes, shape_count, modes[run % 3], devices[run / 3]);
        for (int step = 1; step <= UPDATES; step++)
            golden_update(&rig, step);
        const size_t count = collect(&rig, actual);
        if (run == 0)
            memcpy(first, actual, count * sizeof *first);
        read_expected(tensor, expected, count);
        compare(golden->name, &rig, actual, expected);
        if (run < 3)
            assert_memory_equal(actual, first, count * sizeof *actual);
        for (uint32_t e = 0; e < rig.dict->entry_count; e++)
            assert_int_equal(rig.dict->entries[e].step, UPDATES);
        rig_down(&rig);
    }
}

static void adafactor_equals_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < golden_cases.count; i++) {
        const struct golden_case *golden = &golden_cases.cases[i];
        if (strcmp(golden->plugin, "adafactor") != 0)
            continue;
        run_case(golden, golden->name, adafactor_shapes, 8);
        if (strcmp(golden->name, "adafactor.lr") == 0)
            run_case(golden, "adafactor_large.lr", large_shapes, 2);
    }
}

static void muon_equals_double_precision(void **state)
{
    (void)state;
    for (size_t i = 0; i < golden_cases.count; i++)
        if (strcmp(golden_cases.cases[i].plugin, "muon") == 0)
            run_case(&golden_cases.cases[i], golden_cases.cases[i].name, muon_shapes, 7);
}

/* PyTorch multiplies in bfloat16, of 8 bits: the first update, all parameters together, within 2e-2 of its size. */
static void muon_is_near_pytorch_in_bfloat16(void **state)
{
    size_t compared = 0;
    (void)state;
    for (size_t i = 0; i < golden_cases.count; i++) {
        static float start[MAX_ELEMENTS], expected[MAX_ELEMENTS], actual[MAX_ELEMENTS];
        const struct golden_case *golden = &golden_cases.cases[i];
        struct rig rig;
        char name[64] = "muon_bfloat16";
        if (strcmp(golden->plugin, "muon") != 0)
            continue;
        strcat(name, golden->name + strlen("muon"));
        if (fuse_safetensors_find(weights, name) == NULL)
            continue;
        up(&rig, golden, muon_shapes, 7, FUSE_MODE_FUSED, devices[0]);
        (void)collect(&rig, start);
        golden_update(&rig, 1);
        const size_t count = collect(&rig, actual);
        read_expected(name, expected, count);
        double error = 0.0, size = 0.0;
        for (size_t k = 0; k < count; k++) {
            error += pow((double)actual[k] - (double)expected[k], 2.0);
            size += pow((double)expected[k] - (double)start[k], 2.0);
        }
        if (!(sqrt(error) <= 2e-2 * sqrt(size)))
            fail_msg("%s: off by %.3g of the update", golden->name, sqrt(error / size));
        compared++;
        rig_down(&rig);
    }
    assert_int_equal(compared, 11);
}

/* ---- what the dict makes of it ----------------------------------------------------------------------------------- */

static void states_take_a_row_and_a_column(void **state)
{
    struct golden_case golden = {.name = "sizes", .plugin = "adafactor"};
    struct rig rig;
    (void)state;
    up(&rig, &golden, adafactor_shapes, 8, FUSE_MODE_FUSED, devices[0]);
    static const int64_t counts[8][3] = {{0, 0, 1},   {0, 0, 33}, {7, 33, 0}, {17, 5, 0},
                                         {24, 30, 0}, {1, 9, 0},  {1, 13, 0}, {13, 1, 0}};
    uint64_t bytes = 0;
    for (size_t p = 0; p < 8; p++)
        for (size_t s = 0; s < 3; s++) {
            assert_int_equal(rig.dict->entries[p].state_counts[s], counts[p][s]);
            bytes += (uint64_t)counts[p][s] * sizeof(float);
        }
    assert_int_equal(rig.dict->state_bytes, bytes);
    assert_true(rig.dict->scratch_bytes > 0);
    rig_down(&rig);
}

static void muon_refuses_what_is_no_matrix(void **state)
{
    static const struct shape shapes[] = {{2, {3, 4}}, {1, {5}}, {1, {7}}, {3, {2, 2, 2}}};
    static const char *const none[] = {NULL};
    const struct group alone = {"default", NULL, "muon", none, 0};
    const struct group groups[] = {{"default", NULL, "adamw", none, 0}, {"vectors", "p1", "muon", none, 0}};
    struct fuse_error error = FUSE_ERROR_INIT;
    struct rig rig;
    (void)state;
    assert_int_equal(rig_up(&rig, shapes, 4, &alone, 1, none, 0, FUSE_MODE_FUSED, devices[0], &error),
                     FUSERUN_ERROR_CONFIG);
    assert_string_equal(error.key, "optimizer|plugin");
    assert_string_equal(
        error.text, "group 'default', parameter 'p1' (and 2 more): muon updates matrices, this has 1 dimension: give "
                    "it a [group ...] with another plugin");
    rig_down(&rig);
    assert_int_equal(rig_up(&rig, shapes, 4, groups, 2, none, 0, FUSE_MODE_FUSED, devices[0], &error),
                     FUSERUN_ERROR_CONFIG);
    assert_string_equal(error.key, "group vectors|plugin");
    rig_down(&rig);
}

/* Matrices by muon and the rest by adamw, in one dict, are what each of them makes alone. */
static void groups_may_have_different_optimizers(void **state)
{
    static const struct shape shapes[] = {{2, {7, 33}}, {1, {33}}};
    static const char *const muon_pairs[] = {"lr=0.05"}, *const adamw_pairs[] = {"lr=0.01", "weight_decay=0.1"};
    static const char *const none[] = {NULL};
    const struct group both[] = {{"default", NULL, "adamw", adamw_pairs, 2}, {"matrices", "p0", "muon", muon_pairs, 1}};
    const struct group muon = {"default", NULL, "muon", muon_pairs, 1};
    static float expected[MAX_ELEMENTS], actual[MAX_ELEMENTS];
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        struct fuse_error error = FUSE_ERROR_INIT;
        struct rig rig;
        assert_int_equal(rig_up(&rig, shapes, 1, &muon, 1, none, 0, modes[m], devices[0], &error), FUSERUN_OK);
        fill(&rig, rig.dict->parameters, 0);
        for (int step = 1; step <= 3; step++)
            golden_update(&rig, step);
        (void)collect(&rig, expected);
        rig_down(&rig);
        assert_int_equal(rig_up(&rig, shapes, 2, &both[0], 1, none, 0, modes[m], devices[0], &error), FUSERUN_OK);
        fill(&rig, rig.dict->parameters, 0);
        for (int step = 1; step <= 3; step++)
            golden_update(&rig, step);
        (void)collect(&rig, actual);
        memcpy(expected + 231, actual + 231, 33 * sizeof(float));
        rig_down(&rig);
        assert_int_equal(rig_up(&rig, shapes, 2, both, 2, none, 0, modes[m], devices[0], &error), FUSERUN_OK);
        fill(&rig, rig.dict->parameters, 0);
        for (int step = 1; step <= 3; step++)
            golden_update(&rig, step);
        (void)collect(&rig, actual);
        assert_memory_equal(actual, expected, (231 + 33) * sizeof(float));
        rig_down(&rig);
    }
}

/* nadam's product of momenta moves with a parameter's own updates: not with one that is not done. */
static void numbers_move_only_with_an_update(void **state)
{
    static const struct shape shapes[] = {{1, {3}}, {1, {5}}};
    const struct golden_case golden = {.name = "nadam", .plugin = "nadam"};
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        struct rig rig;
        up(&rig, &golden, shapes, 2, modes[m], devices[0]);
        const struct fuse_entry *entries = rig.dict->entries;
        golden_update(&rig, 1);
        const double first = entries[0].numbers[0];
        assert_true(first > 0.0 && first == entries[1].numbers[0]);
        float *const only_second[] = {NULL, rig.gradients[1]};
        update(&rig, only_second);
        assert_int_equal(entries[0].step, 1);
        assert_int_equal(entries[1].step, 2);
        assert_true(entries[0].numbers[0] == first && entries[1].numbers[0] < first);
        /* The two are at different counts now, and then again at the same with the same product. */
        float *const only_first[] = {rig.gradients[0], NULL};
        update(&rig, only_first);
        assert_true(entries[0].numbers[0] == entries[1].numbers[0]);
        rig_down(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adafactor_equals_pytorch),         cmocka_unit_test(muon_equals_double_precision),
        cmocka_unit_test(muon_is_near_pytorch_in_bfloat16), cmocka_unit_test(states_take_a_row_and_a_column),
        cmocka_unit_test(muon_refuses_what_is_no_matrix),   cmocka_unit_test(groups_may_have_different_optimizers),
        cmocka_unit_test(numbers_move_only_with_an_update),
    };
    return cmocka_run_group_tests_name("whole optimizers", tests, set_up, tear_down);
}
