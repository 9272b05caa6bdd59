/* Losses against the reference: statistics in double, gradients to float32's rounding, the same bits on any threads. */
#include "rig.h"

#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define THREAD_SETS 3

static struct fuse_rig rigs[THREAD_SETS]; /* 1, 2 and 3 threads */

static int open_rigs(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < THREAD_SETS; i++)
        fuse_rig_open(&rigs[i], i + 1);
    return 0;
}

static int close_rigs(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < THREAD_SETS; i++)
        fuse_rig_close(&rigs[i]);
    return 0;
}

static double *new_doubles(int64_t count)
{
    double *const values = calloc((size_t)count, sizeof(double));
    assert_non_null(values);
    return values;
}

static struct fuse_op loss_op(uint32_t kind, int64_t batch, int64_t columns, bool has_gradient)
{
    struct fuse_op op = fuse_op_new(kind, 0);
    const struct fuse_operand y = fuse_operand_of(FUSERUN_FLOAT32, 2, batch, columns, 0);
    fuse_op_add_input(&op, y);
    if (kind == FUSERUN_OP_CROSS_ENTROPY)
        fuse_op_add_input(&op, fuse_operand_of(FUSERUN_INT64, 1, batch, 0, 0));
    if (kind == FUSERUN_OP_MSE)
        fuse_op_add_input(&op, y);
    fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT64, 1, 2, 0, 0));
    if (has_gradient)
        fuse_op_add_output(&op, y);
    return op;
}

/* Runs without a gradient, with one that is absent, and with one, on each number of threads. */
static void check(const char *what, const struct fuse_op *with, const void *const *inputs, double scale,
                  const double *statistics, double statistics_bound, const double *gradient, const double *bound)
{
    const int64_t count = with->inputs[0].shape[0] * with->inputs[0].shape[1];
    const size_t bytes = (size_t)count * sizeof(float);
    struct fuse_op without = *with;
    without.output_count = 1;
    float *first = NULL;
    double first_loss = 0.0;
    for (int t = 0; t < fuse_rig_sets(); t++)
        for (int form = 0; form < 3; form++) {
            double *const got = fuse_guarded_new(2 * sizeof(double));
            float *const out = fuse_guarded_new(bytes);
            void *const outputs[] = {got, form == 2 ? out : NULL};
            fuse_rig_run(&rigs[t], form == 0 ? &without : with, inputs, outputs, &scale, NULL);
            if (!(fabs(got[0] - statistics[0]) <= statistics_bound) || got[1] != statistics[1])
                fail_msg("%s: loss %.17g and %g correct, expected %.17g and %g", what, got[0], got[1], statistics[0],
                         statistics[1]);
            if (t == 0 && form == 2)
                first_loss = got[0];
            if (t > 0 && form == 2 && got[0] != first_loss)
                fail_msg("%s: the loss depends on the threads", what);
            fuse_guarded_free(got, 2 * sizeof(double));
            if (form == 2) {
                fuse_assert_close(what, count, out, gradient, bound);
                if (first != NULL && memcmp(first, out, bytes) != 0)
                    fail_msg("%s: %d threads give other bits than 1", what, t + 1);
            }
            if (form == 2 && first == NULL)
                first = out;
            else
                fuse_guarded_free(out, bytes);
        }
    fuse_guarded_free(first, bytes);
}

static const struct {
    int64_t batch, columns;
} shapes[] = {{1, 1}, {1, 2}, {2, 3}, {8, 10}, {31, 17}, {32, 1000}, {257, 7}, {1, 70001}, {3000, 11}};
#define SHAPE_COUNT (sizeof(shapes) / sizeof(shapes[0]))

static void test_cross_entropy(void **state)
{
    (void)state;
    static const double smoothings[] = {0.0, 0.1, 1.0};
    static const double sizes[] = {1.0, 60.0};
    for (size_t i = 0; i < SHAPE_COUNT; i++)
        for (size_t j = 0; j < 6; j++) {
            const int64_t batch = shapes[i].batch, classes = shapes[i].columns, count = batch * classes;
            if (!fuse_is_tried(16 * count))
                continue;
            const double smoothing = smoothings[j / 2], scale = 1.0 / (double)batch;
            float *const logits = fuse_random_floats(3 + j, count, sizes[j % 2]);
            double *const logits64 = fuse_to_doubles(logits, count);
            int64_t *const labels = malloc((size_t)batch * sizeof(int64_t));
            double *const gradient = new_doubles(count), *const bound = new_doubles(count), statistics[2];
            assert_non_null(labels);
            for (int64_t row = 0; row < batch; row++)
                labels[row] = row * 7 % classes;
            fuse_reference_cross_entropy(batch, classes, logits64, labels, smoothing, scale, statistics, gradient);
            for (int64_t k = 0; k < count; k++) /* of p and of the target, which partly cancel */
                bound[k] = 4.0 * FUSE_EPS * (fabs(gradient[k]) + scale * smoothing / (double)classes) + 1e-44;
            for (int64_t row = 0; row < batch; row++) /* p - 1 in double, with an exponential good to 1e-10 */
                bound[row * classes + labels[row]] += 1e-9 * scale;
            struct fuse_op op = loss_op(FUSERUN_OP_CROSS_ENTROPY, batch, classes, true);
            op.numbers[0] = smoothing;
            const void *const inputs[] = {logits, labels};
            check("cross_entropy", &op, inputs, scale, statistics, 1e-9 * (double)batch * (1.0 + sizes[j % 2]),
                  gradient, bound);
            fuse_guarded_free(logits, (size_t)count * sizeof(float));
            free(logits64);
            free(labels);
            free(gradient);
            free(bound);
        }
}

/* The first of equal maxima is the prediction; large logits do not overflow. */
static void test_cross_entropy_edges(void **state)
{
    (void)state;
    const float logits[4][3] = {
        {2.0f, 2.0f, 1.0f}, {2.0f, 2.0f, 1.0f}, {3e38f, -3e38f, 0.0f}, {0.0f, -(float)INFINITY, 0.0f}};
    const int64_t labels[] = {0, 1, 0, 2};
    float gradient[4][3];
    double statistics[2];
    const double scale = 1.0;
    const struct fuse_op op = loss_op(FUSERUN_OP_CROSS_ENTROPY, 4, 3, true);
    const void *const inputs[] = {logits, labels};
    void *const outputs[] = {statistics, gradient};
    fuse_rig_run(&rigs[0], &op, inputs, outputs, &scale, NULL);
    const double first = log(2.0 + exp(-1.0));
    assert_true(fabs(statistics[0] - (2.0 * first + log(2.0))) < 1e-8);
    assert_true(statistics[1] == 2.0);
    assert_true(gradient[2][0] == 0.0f && gradient[2][1] == 0.0f);
    assert_true(gradient[3][1] == 0.0f && fabsf(gradient[3][2] + 0.5f) < 1e-6f);

    float bad[4][3];
    memcpy(bad, logits, sizeof(bad));
    bad[1][2] = (float)NAN;
    const void *const bad_inputs[] = {bad, labels};
    fuse_rig_run(&rigs[0], &op, bad_inputs, outputs, &scale, NULL);
    assert_true(isnan(statistics[0]) && isnan(gradient[1][0]) && !isnan(gradient[0][0]));
}

static void test_mse_and_sum(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const int64_t count = shapes[i].batch * shapes[i].columns;
        const double scale = 1.0 / (double)count;
        if (!fuse_is_tried(16 * count))
            continue;
        float *const y = fuse_random_floats(1, count, 4.0), *const target = fuse_random_floats(2, count, 4.0);
        double *const y64 = fuse_to_doubles(y, count), *const target64 = fuse_to_doubles(target, count);
        double *const gradient = new_doubles(count), *const bound = new_doubles(count), statistics[2];
        const void *const inputs[] = {y, target};
        for (int kind = 0; kind < 2; kind++) {
            if (kind == 0)
                fuse_reference_mse(count, y64, target64, scale, statistics, gradient);
            else
                fuse_reference_sum(count, y64, scale, statistics, gradient);
            for (int64_t k = 0; k < count; k++)
                bound[k] = 2.0 * FUSE_EPS * fabs(gradient[k]) + 1e-44;
            const struct fuse_op op =
                loss_op(kind == 0 ? FUSERUN_OP_MSE : FUSERUN_OP_SUM_LOSS, shapes[i].batch, shapes[i].columns, true);
            check(kind == 0 ? "mse" : "sum", &op, inputs, scale, statistics, 1e-12 * 64.0 * (double)count, gradient,
                  bound);
        }
        fuse_guarded_free(y, (size_t)count * sizeof(float));
        fuse_guarded_free(target, (size_t)count * sizeof(float));
        free(y64);
        free(target64);
        free(gradient);
        free(bound);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct fuse_op op = loss_op(FUSERUN_OP_CROSS_ENTROPY, 4, 3, true);
    op.inputs[1].shape[0] = 5;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = loss_op(FUSERUN_OP_CROSS_ENTROPY, 4, 3, true);
    op.inputs[1].dtype = FUSERUN_FLOAT32;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_UNSUPPORTED);
    op = loss_op(FUSERUN_OP_CROSS_ENTROPY, 4, 3, true);
    op.numbers[0] = 1.5;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = loss_op(FUSERUN_OP_MSE, 4, 3, true);
    op.inputs[1].shape[1] = 2;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = loss_op(FUSERUN_OP_SUM_LOSS, 4, 3, true);
    op.outputs[0].shape[0] = 1;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = loss_op(FUSERUN_OP_SUM_LOSS, 4, 3, true);
    op.outputs[1].shape[0] = 1;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_cross_entropy_edges),
        cmocka_unit_test(test_mse_and_sum),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_rigs, close_rigs);
}
