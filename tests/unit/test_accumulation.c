/* Updates of several micro-batches: equal to the large batch; the same bits whatever is held between them and in every
 * mode; what is alive when, as the ledger saw it. */
#include "device.h"
#include "nets.h"

#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum fuse_mode modes[] = {FUSE_MODE_FOREACH, FUSE_MODE_PER_PARAM, FUSE_MODE_FUSED};

/* A net and its data. */
struct net {
    struct fuse_graph *(*build)(int64_t batch);
    int64_t sample, classes; /* values of a sample */
};
static const struct net wide = {net_wide, 70, 10}, tied = {net_tied, 96, 96},
                        transformer = {net_transformer, NET_TOKENS *NET_WIDTH, NET_CLASSES};

/* How an update is made. */
struct way {
    enum fuse_mode mode;
    enum fuse_norm_use norm;
    bool holds_operands;
    bool recomputes;
    double max_norm;
};

enum { MOST_SAMPLES = 8, MOST_PROGRAMS = 3, UPDATES = 2 };

/* The programs of an update, which share the rig's dict and graph. The rig's own program is for one batch as large as a
 * micro-batch and not run. */
struct update_rig {
    struct rig rig;
    struct fuse_graph *last_graph; /* of the last micro-batch */
    struct fuse_hold *hold;
    struct fuse_program *programs[MOST_PROGRAMS]; /* first, more, last; more: NULL for updates of two */
    struct fuse_ledger *ledger;
    char *arena;
    uint64_t arena_bytes;
    uint64_t draw;
    double loss;
};

static void check(int status, const struct fuse_error *error)
{
    if (status != FUSERUN_OK)
        fail_msg("%d: %s", status, error->text);
}

static void compile(struct update_rig *update, const struct fuse_graph *graph, const struct way *way,
                    enum fuse_part part, int64_t earlier_count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct rig *rig = &update->rig;
    const struct fuse_program_options options = {
        .loss = FUSE_LOSS_CROSS_ENTROPY,
        .gradients = fuse_dict_gradient_use(rig->dict),
        .recomputes_blocks = way->recomputes,
        .seed = 5,
        .norm = part == FUSE_PART_LAST ? way->norm : FUSE_NORM_NONE,
        .part = part,
        .earlier_count = earlier_count,
        .hold = update->hold,
        .after_backward = fuse_dict_after_backward,
        .on_norm = fuse_clip_on_norm,
        .user = rig->dict,
    };
    struct fuse_program **program = &update->programs[part - FUSE_PART_FIRST];
    check(fuse_program_compile(graph, rig->backend, rig->device, &options, program, &error), &error);
    check(fuse_ledger_add_pass(update->ledger, (*program)->ledger_buffers, (*program)->buffer_count, (*program)->phases,
                               (*program)->instruction_count, &(*program)->ledger_pass, &error),
          &error);
    if ((*program)->arena_bytes > update->arena_bytes)
        update->arena_bytes = (*program)->arena_bytes;
}

/* Updates of `count` micro-batches of `batch` samples, the last one of `last`. */
static void update_up(struct update_rig *update, const struct net *net, const struct way *way, const char *optimizer,
                      int64_t batch, int64_t count, int64_t last)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    static const char *const pairs[] = {"lr=0.02", "weight_decay=0.1"};
    *update = (struct update_rig){0};
    rig_up(&update->rig, net->build(batch), 2, FUSE_LOSS_CROSS_ENTROPY, way->mode, optimizer, pairs, 2);
    struct fuse_dict *dict = update->rig.dict;
    dict->clip.max_norm = way->max_norm;
    check(fuse_ledger_new(&update->ledger, &error), &error);
    const int64_t limit = count - 1 + (way->norm == FUSE_NORM_DEFER ? 1 : 0);
    check(fuse_hold_new(update->rig.graph->parameter_count, count - 1, way->holds_operands ? limit : 0, &update->hold,
                        &error),
          &error);
    compile(update, update->rig.graph, way, FUSE_PART_FIRST, 0);
    if (count > 2)
        compile(update, update->rig.graph, way, FUSE_PART_MORE, 0);
    update->last_graph = net->build(last);
    check(fuse_dict_attach(dict, update->last_graph, &error), &error);
    compile(update, update->last_graph, way, FUSE_PART_LAST, count - 1);
    void *arena = NULL;
    check(update->rig.backend->allocate(update->rig.device, update->arena_bytes, &arena, &error), &error);
    memset(arena, 0xff, update->arena_bytes); /* whatever is read before it was written shows */
    update->arena = arena;
    for (int i = 0; i < MOST_PROGRAMS; i++)
        if (update->programs[i] != NULL)
            fuse_program_bind(update->programs[i], update->arena, dict->parameters);
}

static void update_down(struct update_rig *update)
{
    for (int i = 0; i < MOST_PROGRAMS; i++)
        fuse_program_free(&update->programs[i]);
    update->rig.backend->release(update->rig.device, update->arena, update->arena_bytes);
    fuse_ledger_free(&update->ledger);
    fuse_hold_free(&update->hold);
    fuse_graph_free(&update->last_graph);
    rig_down(&update->rig);
}

static void run_update(struct update_rig *update, const struct net *net, const float *inputs, const int64_t *classes,
                       int64_t batch, int64_t count, int64_t last)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const int64_t samples = batch * (count - 1) + last;
    update->loss = 0;
    fuse_dict_begin(update->rig.dict);
    for (int64_t i = 0; i < count; i++) {
        const enum fuse_part part = i == 0 ? FUSE_PART_FIRST : i + 1 < count ? FUSE_PART_MORE : FUSE_PART_LAST;
        struct fuse_program *program = update->programs[part - FUSE_PART_FIRST];
        const size_t size = (size_t)(i + 1 < count ? batch : last);
        double statistics[2];
        memcpy(fuse_program_inputs(program), inputs + i * batch * net->sample,
               size * (size_t)net->sample * sizeof *inputs);
        memcpy(fuse_program_targets(program), classes + i * batch, size * sizeof *classes);
        check(fuse_program_run(program, 1.0 / (double)samples, update->draw++, i, update->ledger, statistics, &error),
              &error);
        update->loss += statistics[0] / (double)samples;
    }
    check(fuse_dict_end(update->rig.dict, &error), &error);
}

/* All weights in a row. */
static float *weights_of(const struct rig *rig, size_t *count)
{
    *count = rig->dict->parameter_bytes / sizeof(float);
    float *weights = test_malloc(rig->dict->parameter_bytes), *next = weights;
    for (uint32_t p = 0; p < rig->graph->parameter_count; p++) {
        const size_t elements = (size_t)rig->graph->parameters[p].element_count;
        memcpy(next, rig->dict->parameters[p], elements * sizeof *next);
        next += elements;
    }
    return weights;
}

struct data {
    float *inputs;
    int64_t classes[MOST_SAMPLES];
};

static struct data data_of(const struct net *net)
{
    struct data data = {.inputs = test_calloc((size_t)(MOST_SAMPLES * net->sample), sizeof(float))};
    fuse_random_uniform(3, 9, 0, data.inputs, (size_t)(MOST_SAMPLES * net->sample));
    for (int64_t i = 0; i < MOST_SAMPLES; i++)
        data.classes[i] = (7 * i + 3) % net->classes;
    return data;
}

/* Each life as planned, the peak as planned. */
static void check_ledger_against_plans(const struct update_rig *update)
{
    struct fuse_peak greatest = {0};
    for (int i = 0; i < MOST_PROGRAMS; i++) {
        const struct fuse_program *program = update->programs[i];
        if (program == NULL)
            continue;
        for (uint32_t b = 0; b < program->buffer_count; b++) {
            uint32_t first = UINT32_MAX, last = 0;
            (void)fuse_ledger_life(update->ledger, program->ledger_pass, b, &first, &last);
            assert_int_equal(first, program->planned_first[b]);
            assert_int_equal(last, program->planned_last[b]);
        }
        struct fuse_peak planned;
        fuse_program_peak(program, fuse_ledger_persistent(update->ledger), &planned);
        if (planned.bytes > greatest.bytes)
            greatest = planned;
    }
    assert_memory_equal(&greatest, fuse_ledger_peak(update->ledger), sizeof greatest);
}

static uint64_t gradient_peak(const struct update_rig *update)
{
    uint64_t peak = 0;
    for (int i = 0; i < MOST_PROGRAMS; i++)
        if (update->programs[i] != NULL) {
            const uint64_t own =
                fuse_ledger_category_peak(update->ledger, update->programs[i]->ledger_pass, FUSE_CATEGORY_GRADIENT);
            peak = own > peak ? own : peak;
        }
    return peak;
}

/* Weights after some updates, which are one step of each parameter's count. */
static float *train(const struct net *net, const struct way *way, const char *optimizer, int64_t batch, int64_t count,
                    int64_t last, size_t *weight_count)
{
    struct update_rig update;
    struct data data = data_of(net);
    assert_true(batch * (count - 1) + last <= MOST_SAMPLES);
    update_up(&update, net, way, optimizer, batch, count, last);
    for (int i = 0; i < UPDATES; i++)
        run_update(&update, net, data.inputs, data.classes, batch, count, last);
    for (uint32_t e = 0; e < update.rig.dict->entry_count; e++)
        assert_int_equal(update.rig.dict->entries[e].step, UPDATES);
    check_ledger_against_plans(&update);
    float *weights = weights_of(&update.rig, weight_count);
    update_down(&update);
    test_free(data.inputs);
    return weights;
}

/* Each parameter to `tolerance` of the largest weight. */
static void assert_close(const float *weights, const float *expected, size_t count, double tolerance)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)expected[i]));
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)weights[i] - (double)expected[i]) <= tolerance * largest))
            fail_msg("weight %zu: %g, not %g", i, (double)weights[i], (double)expected[i]);
}

static const struct {
    int64_t batch, count, last;
} splits[] = {{1, 4, 1}, {3, 2, 1}, {2, 3, 2}};

/* Rows 4 and 5: against one program for all samples. */
static void row_4_5_an_update_equals_that_of_the_large_batch(void **state)
{
    (void)state;
    static const struct net *const nets[] = {&wide, &tied};
    for (size_t n = 0; n < 2; n++)
        for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++) {
            const int64_t samples = splits[s].batch * (splits[s].count - 1) + splits[s].last;
            struct rig large;
            struct data data = data_of(nets[n]);
            static const char *const pairs[] = {"lr=0.02", "weight_decay=0.1"};
            rig_up(&large, nets[n]->build(samples), 2, FUSE_LOSS_CROSS_ENTROPY, FUSE_MODE_FOREACH, "sgd", pairs, 2);
            for (int i = 0; i < UPDATES; i++)
                rig_update(&large, data.inputs, data.classes, 1.0 / (double)samples);
            size_t count = 0;
            float *expected = weights_of(&large, &count);
            for (size_t m = 0; m < 3; m++)
                for (int holds = 0; holds < 2; holds++) {
                    const struct way way = {.mode = modes[m], .holds_operands = holds != 0};
                    float *weights =
                        train(nets[n], &way, "sgd", splits[s].batch, splits[s].count, splits[s].last, &count);
                    assert_close(weights, expected, count, 1e-6);
                    test_free(weights);
                }
            test_free(expected);
            test_free(data.inputs);
            rig_down(&large);
        }
}

static void modes_and_ways_of_holding_agree_bitwise(void **state)
{
    (void)state;
    static const struct net *const nets[] = {&wide, &tied, &transformer};
    static const char *const optimizers[] = {"adamw", "adafactor"};
    for (size_t n = 0; n < 3; n++)
        for (size_t o = 0; o < 2; o++)
            for (size_t s = 0; s < (o == 0 ? sizeof splits / sizeof splits[0] : 1); s++) {
                float *expected = NULL;
                size_t count = 0;
                for (size_t m = 0; m < 3; m++)
                    for (int holds = 0; holds < (modes[m] == FUSE_MODE_FUSED ? 2 : 1); holds++)
                        for (int recomputes = 0; recomputes < (n == 2 ? 2 : 1); recomputes++) {
                            const struct way way = {
                                .mode = modes[m], .holds_operands = holds != 0, .recomputes = recomputes != 0};
                            float *weights = train(nets[n], &way, optimizers[o], splits[s].batch, splits[s].count,
                                                   splits[s].last, &count);
                            if (expected == NULL)
                                expected = weights;
                            else {
                                assert_memory_equal(weights, expected, count * sizeof *weights);
                                test_free(weights);
                            }
                        }
                test_free(expected);
            }
}

static void every_way_to_the_norm_clips_the_sum(void **state)
{
    (void)state;
    static const struct net *const nets[] = {&wide, &tied, &transformer};
    static const enum fuse_norm_use norms[] = {FUSE_NORM_KEEP, FUSE_NORM_DEFER, FUSE_NORM_TWICE};
    for (size_t n = 0; n < 3; n++)
        for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++) {
            size_t count = 0;
            const struct way kept = {.mode = FUSE_MODE_FOREACH, .norm = FUSE_NORM_KEEP, .max_norm = 0.01};
            float *expected = train(nets[n], &kept, "sgd", splits[s].batch, splits[s].count, splits[s].last, &count);
            for (size_t u = 0; u < 3; u++)
                for (int holds = 0; holds < 2; holds++)
                    for (int recomputes = 0; recomputes < (n == 2 ? 2 : 1); recomputes++) {
                        const struct way way = {.mode = FUSE_MODE_FUSED,
                                                .norm = norms[u],
                                                .holds_operands = holds != 0 && norms[u] != FUSE_NORM_KEEP,
                                                .recomputes = recomputes != 0,
                                                .max_norm = 0.01};
                        float *weights =
                            train(nets[n], &way, "sgd", splits[s].batch, splits[s].count, splits[s].last, &count);
                        assert_close(weights, expected, count, 1e-6);
                        test_free(weights);
                    }
            test_free(expected);
        }
}

/* Kept gradients are all gradients; kept operands leave no full set of them, with a norm and without. */
static void operands_held_leave_no_full_set_of_gradients(void **state)
{
    (void)state;
    const uint64_t all = (1030 * 70 + 1030 + 1100 * 1030 + 1100 + 10 * 1100 + 10) * sizeof(float);
    static const struct way ways[] = {{.mode = FUSE_MODE_FOREACH},
                                      {.mode = FUSE_MODE_FUSED},
                                      {.mode = FUSE_MODE_FUSED, .holds_operands = true},
                                      {.mode = FUSE_MODE_FUSED, .norm = FUSE_NORM_DEFER, .holds_operands = true},
                                      {.mode = FUSE_MODE_FUSED, .norm = FUSE_NORM_TWICE, .holds_operands = true}};
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        struct update_rig update;
        struct data data = data_of(&wide);
        update_up(&update, &wide, &ways[w], "adam", 2, 4, 2);
        run_update(&update, &wide, data.inputs, data.classes, 2, 4, 2);
        check_ledger_against_plans(&update);
        if (!ways[w].holds_operands)
            assert_int_equal(gradient_peak(&update), all);
        else {
            /* a panel a thread of the largest weight, and the gradients of the small ones */
            assert_true(gradient_peak(&update) < all / 2);
            assert_int_equal(update.hold->operands_count, 3);
            assert_int_equal(update.hold->operand_bytes, 3 * 2 * (70 + 1030 + 1030 + 1100 + 1100 + 10) * sizeof(float));
            assert_int_equal(update.hold->gradient_count, 3); /* the biases' */
        }
        update_down(&update);
        test_free(data.inputs);
    }
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
        cmocka_unit_test(row_4_5_an_update_equals_that_of_the_large_batch),
        cmocka_unit_test(modes_and_ways_of_holding_agree_bitwise),
        cmocka_unit_test(every_way_to_the_norm_clips_the_sum),
        cmocka_unit_test(operands_held_leave_no_full_set_of_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
