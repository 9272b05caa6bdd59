/* The norm over all gradients before any is applied: kept, deferred and twice give the norm of the gradients that a
 * plain backward pass gives, apply the same gradients afterwards, and leave no full set of gradients behind (but for
 * kept). */
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

enum { BATCH = 3, TOKENS = NET_TOKENS, WIDTH = NET_WIDTH };

/* What a run is asked to gather. */
struct gathered {
    float *values[32]; /* one a parameter */
    int64_t covered[32];
    double sums[32];
    int norm_calls;
    bool is_applied_before_norm;
    uint64_t gradient_peak_bytes, parameter_bytes;
    uint32_t parameter_count;
    bool needs_norm;
};

struct taker {
    struct gathered *gathered;
    uint32_t parameter;
};

static void take(void *user, const struct fuse_gradient *gradient)
{
    const struct taker *taker = user;
    struct gathered *gathered = taker->gathered;
    memcpy(gathered->values[taker->parameter] + gradient->first, gradient->values,
           (size_t)gradient->count * sizeof(float));
    (void)__atomic_fetch_add(&gathered->covered[taker->parameter], gradient->count, __ATOMIC_RELAXED);
    if (gathered->needs_norm && gathered->norm_calls == 0)
        gathered->is_applied_before_norm = true;
}

static int on_norm(void *user, const double *sums, struct fuse_error *error)
{
    struct gathered *gathered = user;
    (void)error;
    memcpy(gathered->sums, sums, gathered->parameter_count * sizeof *sums);
    gathered->norm_calls++;
    return FUSERUN_OK;
}

static void gather(enum fuse_norm_use use, bool recomputes, struct gathered *gathered)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_graph *graph = net_transformer(BATCH);
    struct taker takers[32];
    *gathered = (struct gathered){.needs_norm = use != FUSE_NORM_NONE, .parameter_count = graph->parameter_count};
    assert_true(graph->parameter_count <= 32);
    for (uint32_t p = 0; p < graph->parameter_count; p++) {
        takers[p] = (struct taker){gathered, p};
        gathered->values[p] = test_calloc((size_t)graph->parameters[p].element_count, sizeof(float));
        const struct fuse_gradient_callback callback = {.struct_size =
                                                            FUSERUN_STRUCT_SIZE(fuse_gradient_callback, user),
                                                        .form = FUSERUN_GRADIENT_PANELS,
                                                        .gradient = take,
                                                        .user = &takers[p]};
        assert_int_equal(fuse_graph_attach(graph, p, &callback, &error), FUSERUN_OK);
        gathered->parameter_bytes += (uint64_t)graph->parameters[p].element_count * sizeof(float);
    }
    struct rig rig;
    const struct fuse_program_options options = {.loss = FUSE_LOSS_CROSS_ENTROPY,
                                                 .gradients = FUSE_GRADIENTS_RELEASE,
                                                 .recomputes_blocks = recomputes,
                                                 .seed = 11,
                                                 .norm = use,
                                                 .on_norm = on_norm,
                                                 .user = gathered};
    rig_up_with(&rig, graph, 2, &options);
    float inputs[BATCH * TOKENS * WIDTH];
    const int64_t classes[BATCH] = {1, 6, 0};
    fuse_random_uniform(8, 1, 0, inputs, sizeof inputs / sizeof inputs[0]);
    rig_update(&rig, inputs, classes, 1.0 / BATCH);
    gathered->gradient_peak_bytes =
        fuse_ledger_category_peak(rig.ledger, rig.program->ledger_pass, FUSE_CATEGORY_GRADIENT);
    for (uint32_t i = 0; i < rig.program->buffer_count; i++) {
        uint32_t first = UINT32_MAX, last = 0;
        (void)fuse_ledger_life(rig.ledger, rig.program->ledger_pass, i, &first, &last);
        assert_int_equal(first, rig.program->planned_first[i]);
        assert_int_equal(last, rig.program->planned_last[i]);
    }
    for (uint32_t p = 0; p < rig.graph->parameter_count; p++)
        assert_int_equal(gathered->covered[p], rig.graph->parameters[p].element_count); /* each element once */
    rig_down(&rig);
}

static void let_go(struct gathered *gathered)
{
    for (size_t p = 0; p < 32; p++)
        if (gathered->values[p] != NULL)
            test_free(gathered->values[p]);
}

static void every_way_gives_the_norm_and_the_gradients(void **state)
{
    (void)state;
    struct gathered plain;
    gather(FUSE_NORM_NONE, false, &plain);
    const enum fuse_norm_use uses[] = {FUSE_NORM_KEEP, FUSE_NORM_DEFER, FUSE_NORM_TWICE};
    for (size_t u = 0; u < 3; u++)
        for (int recomputes = 0; recomputes < 2; recomputes++) {
            struct gathered with;
            gather(uses[u], recomputes != 0, &with);
            assert_int_equal(with.norm_calls, 1);
            assert_false(with.is_applied_before_norm);
            double total = 0, expected_total = 0;
            for (size_t p = 0; p < 32 && plain.values[p] != NULL; p++) {
                double expected = 0;
                for (int64_t i = 0; i < plain.covered[p]; i++)
                    expected += (double)plain.values[p][i] * (double)plain.values[p][i];
                assert_true(fabs(with.sums[p] - expected) <= 2e-5 * expected + 1e-14);
                /* the same bits: the same products in the same order, and the same random numbers */
                assert_memory_equal(plain.values[p], with.values[p], (size_t)plain.covered[p] * sizeof(float));
                total += with.sums[p];
                expected_total += expected;
            }
            assert_true(fabs(sqrt(total) - sqrt(expected_total)) <= 1e-5 * sqrt(expected_total));
            if (uses[u] == FUSE_NORM_KEEP)
                assert_int_equal(with.gradient_peak_bytes, with.parameter_bytes);
            else
                assert_true(with.gradient_peak_bytes < with.parameter_bytes);
            let_go(&with);
        }
    let_go(&plain);
}

/* Row 25: the tied weight under recomputation: one gradient, the sum of its three uses, handed over once; the same bits
 * as without, though the inner use is computed again in between. */
static void row_25_a_tied_weight_with_recompute_has_one_gradient(void **state)
{
    (void)state;
    struct gathered plain, again;
    gather(FUSE_NORM_NONE, false, &plain);
    gather(FUSE_NORM_NONE, true, &again);
    assert_int_equal(again.covered[0], WIDTH * WIDTH);
    for (uint32_t p = 0; p < plain.parameter_count; p++)
        assert_memory_equal(plain.values[p], again.values[p], (size_t)plain.covered[p] * sizeof(float));
    let_go(&plain);
    let_go(&again);
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
        cmocka_unit_test(every_way_gives_the_norm_and_the_gradients),
        cmocka_unit_test(row_25_a_tied_weight_with_recompute_has_one_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
