/* The three modes: the same weights bit for bit; what is alive when, as the ledger saw it; and the users' reports about
 * tied, reused, frozen and unused parameters that concern the dict. */
#include "device.h"
#include "nets.h"

#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const enum fuse_mode modes[] = {FUSE_MODE_FUSED, FUSE_MODE_PER_PARAM, FUSE_MODE_FOREACH};
static const struct fuse_init init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, -0.05, 0.05);

struct batch {
    float *inputs;
    int64_t *classes;
};

static struct batch new_batch(int64_t count, int64_t width, int64_t classes)
{
    struct batch batch = {test_calloc((size_t)(count * width), sizeof(float)),
                          test_calloc((size_t)count, sizeof(int64_t))};
    fuse_random_uniform(3, 9, 0, batch.inputs, (size_t)(count * width));
    for (int64_t i = 0; i < count; i++)
        batch.classes[i] = (7 * i + 3) % classes;
    return batch;
}

static void free_batch(struct batch *batch)
{
    test_free(batch->inputs);
    test_free(batch->classes);
}

/* Weights after some updates, all parameters in a row. */
static float *train(struct fuse_graph *graph, enum fuse_mode mode, uint32_t threads, int64_t width, int64_t classes,
                    const char *optimizer, const char *const *pairs, size_t pair_count, int updates, size_t *count)
{
    struct rig rig;
    const int64_t batch_size = graph->tensors[0]->shape[0];
    struct batch batch = new_batch(batch_size, width, classes);
    rig_up(&rig, graph, threads, FUSE_LOSS_CROSS_ENTROPY, mode, optimizer, pairs, pair_count);
    for (int i = 0; i < updates; i++)
        rig_update(&rig, batch.inputs, batch.classes, 1.0 / (double)batch_size);
    *count = rig.dict->parameter_bytes / sizeof(float);
    float *weights = test_malloc(rig.dict->parameter_bytes), *next = weights;
    for (uint32_t p = 0; p < rig.graph->parameter_count; p++) {
        const size_t elements = (size_t)rig.graph->parameters[p].element_count;
        memcpy(next, rig.dict->parameters[p], elements * sizeof *next);
        next += elements;
    }
    for (uint32_t e = 0; e < rig.dict->entry_count; e++)
        assert_int_equal(rig.dict->entries[e].step, updates); /* tied ones too: once an update */
    rig_down(&rig);
    free_batch(&batch);
    return weights;
}

static void check_modes(struct fuse_graph *(*build)(int64_t), int64_t width, int64_t classes)
{
    const int64_t batches[] = {1, 8, 5, 33};
    static const struct {
        const char *name;
        const char *pairs[2];
    } optimizers[] = {{"adamw", {"lr=1e-2", "weight_decay=0.1"}},
                      {"adam", {"lr=1e-2", "amsgrad=yes"}},
                      {"sgd", {"lr=0.1", "momentum=0.9"}},
                      {"nadam", {"lr=1e-2", "weight_decay=0.1"}},
                      {"adafactor", {"lr=1e-2", "weight_decay=0.1"}}};
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++)
        for (size_t o = 0; o < sizeof optimizers / sizeof optimizers[0]; o++) {
            float *expected = NULL;
            size_t count = 0;
            for (size_t m = 0; m < 3; m++)
                for (uint32_t threads = 1; threads <= 2; threads++) {
                    float *weights = train(build(batches[b]), modes[m], threads, width, classes, optimizers[o].name,
                                           optimizers[o].pairs, 2, 4, &count);
                    if (threads == 1 && m > 0)
                        assert_memory_equal(weights, expected, count * sizeof *weights);
                    if (expected == NULL)
                        expected = weights;
                    else
                        test_free(weights);
                }
            test_free(expected);
        }
}

static void modes_agree_bitwise_on_a_wide_net(void **state)
{
    (void)state;
    check_modes(net_wide, 70, 10);
}

static void row_25_26_tied_and_reused_weights_agree_bitwise_in_all_modes(void **state)
{
    (void)state;
    check_modes(net_tied, 96, 96);
}

/* Row 26: a weight that is read again after its first use must be read as it was. A net of its own arithmetic tells:
 * with the update applied early, dX would see the new weight and the earlier layer's gradient would differ. */
static void row_26_reads_see_the_old_weight(void **state)
{
    (void)state;
    struct rig rig;
    struct batch batch = new_batch(4, 96, 96);
    const char *const pairs[] = {"lr=0.5"};
    rig_up(&rig, net_tied(4), 1, FUSE_LOSS_CROSS_ENTROPY, FUSE_MODE_FUSED, "sgd", pairs, 1);
    const struct fuse_program *program = rig.program;
    rig_update(&rig, batch.inputs, batch.classes, 0.25);
    for (uint32_t p = 0; p < rig.graph->parameter_count; p++) {
        uint32_t updated_at = UINT32_MAX;
        for (uint32_t i = 0; i < program->instruction_count; i++)
            if (program->instructions[i].parameter == p &&
                (program->instructions[i].kind == FUSE_RUN_CALLBACKS ||
                 (program->instructions[i].op.flags & FUSERUN_OP_PANELS) != 0)) {
                assert_int_equal(updated_at, UINT32_MAX); /* once */
                updated_at = i;
            }
        uint32_t first, last;
        assert_true(fuse_ledger_life(rig.ledger, program->ledger_pass, p, &first, &last)); /* parameters come first */
        assert_true(last < updated_at);
    }
    rig_down(&rig);
    free_batch(&batch);
}

/* ---- what is alive when --------------------------------------------------------------------------------------- */

static void check_ledger_against_plan(const struct rig *rig)
{
    const struct fuse_program *program = rig->program;
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        uint32_t first = UINT32_MAX, last = 0;
        (void)fuse_ledger_life(rig->ledger, program->ledger_pass, i, &first, &last);
        assert_int_equal(first, program->planned_first[i]);
        assert_int_equal(last, program->planned_last[i]);
    }
    struct fuse_peak planned;
    fuse_program_peak(program, fuse_ledger_persistent(rig->ledger), &planned);
    assert_memory_equal(&planned, fuse_ledger_peak(rig->ledger), sizeof planned);
}

static void gradients_live_as_each_mode_promises(void **state)
{
    (void)state;
    const uint64_t all = (1030 * 70 + 1030 + 1100 * 1030 + 1100 + 10 * 1100 + 10) * sizeof(float);
    for (size_t m = 0; m < 3; m++) {
        struct rig rig;
        struct batch batch = new_batch(8, 70, 10);
        rig_up(&rig, net_wide(8), 2, FUSE_LOSS_CROSS_ENTROPY, modes[m], "adam", NULL, 0);
        rig_update(&rig, batch.inputs, batch.classes, 1.0 / 8);
        rig_update(&rig, batch.inputs, batch.classes, 1.0 / 8);
        check_ledger_against_plan(&rig);
        const uint64_t peak = fuse_ledger_category_peak(rig.ledger, rig.program->ledger_pass, FUSE_CATEGORY_GRADIENT);
        if (modes[m] == FUSE_MODE_FUSED) {
            /* At most one operation's gradient, and of a large weight one panel a thread. */
            uint64_t largest = 0;
            for (uint32_t i = 0; i < rig.program->instruction_count; i++) {
                const struct fuse_instruction *instruction = &rig.program->instructions[i];
                if (instruction->op.kind != FUSERUN_OP_LINEAR_DW || instruction->kind != FUSE_RUN_KERNEL)
                    continue;
                assert_true((instruction->op.flags & FUSERUN_OP_PANELS) != 0);
                const uint64_t panels = 2 * (uint64_t)instruction->info.panel_rows *
                                        (uint64_t)instruction->op.outputs[0].shape[1] * sizeof(float);
                largest = panels > largest ? panels : largest;
            }
            assert_true(peak <= largest + 2 * 64);
            assert_true(peak < all / 2);
            assert_int_equal(fuse_ledger_peak(rig.ledger)->phase, FUSE_PHASE_BACKWARD);
        } else
            assert_int_equal(peak, all);
        rig_down(&rig);
        free_batch(&batch);
    }
}

/* The ledger does not believe the plan: a life made one instruction too short, planned anew and run, shows. */
static void a_life_cut_short_is_noticed(void **state)
{
    (void)state;
    struct rig rig;
    struct fuse_error error = FUSE_ERROR_INIT;
    struct batch batch = new_batch(8, 70, 10);
    rig_up(&rig, net_wide(8), 1, FUSE_LOSS_CROSS_ENTROPY, FUSE_MODE_FOREACH, "adam", NULL, 0);
    struct fuse_program *program = rig.program;
    int noticed = 0, cut = 0;
    for (uint32_t victim = 0; victim < program->buffer_count; victim++) {
        struct fuse_buffer *buffer = &program->buffers[victim];
        if (buffer->is_parameter || buffer->first >= buffer->last || buffer->category != FUSE_CATEGORY_ACTIVATION)
            continue;
        buffer->last--;
        program->planned_last[victim]--;
        uint64_t extent = 0;
        assert_int_equal(fuse_plan_offsets(program->buffers, program->buffer_count, &extent, &error), FUSERUN_OK);
        assert_true(extent <= program->arena_bytes);
        fuse_program_bind(program, rig.arena, rig.dict->parameters);
        rig_update(&rig, batch.inputs, batch.classes, 1.0 / 8);
        uint32_t first, last;
        assert_true(fuse_ledger_life(rig.ledger, program->ledger_pass, victim, &first, &last));
        cut++;
        noticed += last > program->planned_last[victim];
        buffer->last++;
        program->planned_last[victim]++;
    }
    assert_true(cut >= 4);
    assert_int_equal(noticed, cut);
    rig_down(&rig);
    free_batch(&batch);
}

/* ---- parameters that take no part ----------------------------------------------------------------------------- */

static struct fuse_graph *partial_graph(void)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_graph_api *api = fuse_graph_services();
    const int64_t input[] = {2, 6}, unused[] = {5};
    struct fuse_graph *graph = NULL;
    assert_int_equal(fuse_graph_new(2, input, &graph, &error), FUSERUN_OK);
    struct fuse_tensor *x = api->relu(graph, net_layer(graph, "a", fuse_graph_input(graph), 6, 8));
    (void)api->parameter(graph, "unused", 1, unused, &init);
    graph->output = net_layer(graph, "b", x, 8, 4)->index;
    graph->parameters[0].is_frozen = true; /* a.weight */
    return graph;
}

static void row_27_29_frozen_and_unused_parameters_stay_as_they_are(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        struct rig rig;
        struct batch batch = new_batch(2, 6, 4);
        const char *const pairs[] = {"lr=0.1", "weight_decay=0.5"};
        rig_up(&rig, partial_graph(), 1, FUSE_LOSS_CROSS_ENTROPY, modes[m], "adamw", pairs, 2);
        /* no state for the frozen one: a.bias 8, unused 5, b.weight 32, b.bias 4, two moments each */
        assert_int_equal(rig.dict->state_bytes, 2 * (8 + 5 + 32 + 4) * sizeof(float));
        float frozen[48], unused[5], bias[8];
        memcpy(frozen, rig_parameter(&rig, "a.weight"), sizeof frozen);
        memcpy(unused, rig_parameter(&rig, "unused"), sizeof unused);
        memcpy(bias, rig_parameter(&rig, "a.bias"), sizeof bias);
        rig_update(&rig, batch.inputs, batch.classes, 0.5);
        assert_memory_equal(frozen, rig_parameter(&rig, "a.weight"), sizeof frozen);
        assert_memory_equal(unused, rig_parameter(&rig, "unused"), sizeof unused); /* not even decayed */
        assert_memory_not_equal(bias, rig_parameter(&rig, "a.bias"), sizeof bias);
        for (uint32_t e = 0; e < rig.dict->entry_count; e++) {
            const char *name = rig.graph->parameters[rig.dict->entries[e].parameter].name;
            assert_string_not_equal(name, "a.weight");
            assert_int_equal(rig.dict->entries[e].step, strcmp(name, "unused") == 0 ? 0 : 1);
        }
        rig_down(&rig);
        free_batch(&batch);
    }
}

/* A gradient of zero is not a missing one: the weight still decays. AdamW, lr .1, decay .5: 1 -> .95. */
static void row_29_a_zero_gradient_still_decays(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        struct rig rig;
        const char *const pairs[] = {"lr=0.1", "weight_decay=0.5"};
        const float zeros[12] = {0}; /* inputs of zero: the first weight's gradient is zero */
        const int64_t classes[] = {0, 1};
        struct fuse_graph *graph = partial_graph();
        graph->parameters[0].is_frozen = false;
        rig_up(&rig, graph, 1, FUSE_LOSS_CROSS_ENTROPY, modes[m], "adamw", pairs, 2);
        for (int i = 0; i < 48; i++)
            rig_parameter(&rig, "a.weight")[i] = 1.0f;
        rig_update(&rig, zeros, classes, 0.5);
        for (int i = 0; i < 48; i++)
            assert_float_equal(rig_parameter(&rig, "a.weight")[i], 0.95f, 6e-8);
        assert_int_equal(rig.dict->entries[0].step, 1);
        rig_down(&rig);
    }
}

static void the_first_parameter_with_a_bad_gradient_is_named(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        struct rig rig;
        struct batch batch = new_batch(2, 6, 4);
        rig_up(&rig, partial_graph(), 1, FUSE_LOSS_CROSS_ENTROPY, modes[m], "sgd", NULL, 0);
        rig_update(&rig, batch.inputs, batch.classes, 0.5);
        assert_int_equal(rig.dict->nonfinite_parameter, UINT32_MAX);
        batch.inputs[3] = NAN;
        rig_update(&rig, batch.inputs, batch.classes, 0.5);
        assert_string_equal(rig.graph->parameters[rig.dict->nonfinite_parameter].name, "b.bias");
        rig_down(&rig);
        free_batch(&batch);
    }
}

/* ---- two of everything ---------------------------------------------------------------------------------------- */

static void check_weights_equal(struct rig *rig, const float *expected)
{
    for (uint32_t p = 0; p < rig->graph->parameter_count; p++) {
        const size_t elements = (size_t)rig->graph->parameters[p].element_count;
        assert_memory_equal(rig->dict->parameters[p], expected, elements * sizeof *expected);
        expected += elements;
    }
}

/* Row 43: two models, each with a dict of its own, take turns in one process. Their parameters have the same names;
 * each is updated by its own rule and settings, as if it were alone. */
static void row_43_two_models_keep_to_their_own_dicts(void **state)
{
    (void)state;
    static const char *const fast[] = {"lr=0.5", "momentum=0.9"}, *const slow[] = {"lr=1e-3", "weight_decay=0.1"};
    struct batch batch = new_batch(5, 96, 96);
    for (size_t m = 0; m < 3; m++) {
        size_t count = 0;
        float *first_alone =
            train(net_tied(5), modes[m], 1, 96, 96, "sgd", fast, sizeof fast / sizeof fast[0], 3, &count);
        float *second_alone =
            train(net_tied(5), modes[m], 1, 96, 96, "adamw", slow, sizeof slow / sizeof slow[0], 3, &count);
        struct rig first, second;
        rig_up(&first, net_tied(5), 1, FUSE_LOSS_CROSS_ENTROPY, modes[m], "sgd", fast, 2);
        rig_up(&second, net_tied(5), 1, FUSE_LOSS_CROSS_ENTROPY, modes[m], "adamw", slow, 2);
        for (int i = 0; i < 3; i++) {
            rig_update(&first, batch.inputs, batch.classes, 1.0 / 5);
            rig_update(&second, batch.inputs, batch.classes, 1.0 / 5);
        }
        check_weights_equal(&first, first_alone);
        check_weights_equal(&second, second_alone);
        for (uint32_t e = 0; e < first.dict->entry_count; e++) {
            assert_int_equal(first.dict->entries[e].step, 3);
            assert_int_equal(second.dict->entries[e].step, 3);
        }
        rig_down(&first);
        rig_down(&second);
        test_free(first_alone);
        test_free(second_alone);
    }
    free_batch(&batch);
}

static int teardown(void **state)
{
    (void)state;
    device_close_all();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_agree_bitwise_on_a_wide_net),
        cmocka_unit_test(row_25_26_tied_and_reused_weights_agree_bitwise_in_all_modes),
        cmocka_unit_test(row_26_reads_see_the_old_weight),
        cmocka_unit_test(gradients_live_as_each_mode_promises),
        cmocka_unit_test(a_life_cut_short_is_noticed),
        cmocka_unit_test(row_27_29_frozen_and_unused_parameters_stay_as_they_are),
        cmocka_unit_test(row_29_a_zero_gradient_still_decays),
        cmocka_unit_test(the_first_parameter_with_a_bad_gradient_is_named),
        cmocka_unit_test(row_43_two_models_keep_to_their_own_dicts),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
