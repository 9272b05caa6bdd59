/* Layer normalization and its gradients against the reference, on odd shapes and any number of threads. */
#include "transformer.h"

#include "bfloat16.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    int64_t rows, columns;
} shapes[] = {{1, 1}, {1, 7}, {3, 2}, {5, 33}, {17, 48}, {197, 65}, {64, 1024}, {1, 2049}, {300, 127}, {70, 515}};
#define SHAPE_COUNT (sizeof(shapes) / sizeof(shapes[0]))

struct numbers {
    int64_t rows, columns, count;
    float *x, *w, *b, *dy;
    double *dx, *dw, *db, *ddy; /* the same in double */
    double *y, *mean, *rstd;    /* of the reference */
};

/* Rows with means of their own, some far from zero. */
static struct numbers make_numbers(int64_t rows, int64_t columns, double shift)
{
    struct numbers n = {.rows = rows, .columns = columns, .count = rows * columns};
    n.x = fuse_random_floats(1, n.count, 2.0);
    n.w = fuse_random_floats(2, columns, 1.5);
    n.b = fuse_random_floats(3, columns, 1.0);
    n.dy = fuse_random_floats(4, n.count, 1.0);
    for (int64_t i = 0; i < n.count; i++)
        n.x[i] = fuse_activation(n.x[i] + (float)(shift * (double)(i / columns % 3)));
    n.dx = fuse_to_doubles(n.x, n.count);
    n.dw = fuse_to_doubles(n.w, columns);
    n.db = fuse_to_doubles(n.b, columns);
    n.ddy = fuse_to_doubles(n.dy, n.count);
    n.y = fuse_doubles(n.count, 0.0);
    n.mean = fuse_doubles(rows, 0.0);
    n.rstd = fuse_doubles(rows, 0.0);
    fuse_reference_layer_norm(rows, columns, n.dx, n.dw, n.db, 1e-6, n.y, n.mean, n.rstd);
    return n;
}

static void free_numbers(struct numbers *n)
{
    fuse_guarded_free(n->x, (size_t)n->count * sizeof(float));
    fuse_guarded_free(n->w, (size_t)n->columns * sizeof(float));
    fuse_guarded_free(n->b, (size_t)n->columns * sizeof(float));
    fuse_guarded_free(n->dy, (size_t)n->count * sizeof(float));
    double *const doubles[] = {n->dx, n->dw, n->db, n->ddy, n->y, n->mean, n->rstd};
    for (size_t i = 0; i < sizeof(doubles) / sizeof(doubles[0]); i++)
        free(doubles[i]);
}

static struct fuse_op forward_op(int64_t rows, int64_t columns)
{
    struct fuse_op op = fuse_op_new(FUSERUN_OP_LAYER_NORM, 0);
    op.numbers[0] = 1e-6;
    fuse_op_add_input(&op, fuse_float_operand(2, rows, columns, 0, 0));
    fuse_op_add_input(&op, fuse_float_operand(1, columns, 0, 0, 0));
    fuse_op_add_input(&op, fuse_float_operand(1, columns, 0, 0, 0));
    fuse_op_add_output(&op, fuse_float_operand(2, rows, columns, 0, 0));
    fuse_op_add_output(&op, fuse_float_operand(1, rows, 0, 0, 0));
    fuse_op_add_output(&op, fuse_float_operand(1, rows, 0, 0, 0));
    return op;
}

/* The float32 mean is off by eps |mean|, which stands in every y as that times rstd |w|. */
static void check_forward(const struct numbers *n)
{
    const struct fuse_op op = forward_op(n->rows, n->columns);
    double *const y_bound = fuse_doubles(n->count, 0.0), *const mean_bound = fuse_doubles(n->rows, 0.0);
    double *const rstd_bound = fuse_doubles(n->rows, 0.0);
    for (int64_t i = 0; i < n->count; i++) {
        const int64_t row = i / n->columns, column = i % n->columns;
        const double slope = n->rstd[row] * fabs(n->dw[column]);
        y_bound[i] = FUSE_EPS * (8.0 * fabs(n->y[i]) + 2.0 * fabs(n->db[column]) +
                                 2.0 * slope * (fabs(n->mean[row]) + fabs(n->dx[i]))) +
                     1e-37;
    }
    for (int64_t i = 0; i < n->rows; i++) {
        mean_bound[i] = 2.0 * FUSE_EPS * (fabs(n->mean[i]) + 1e-9);
        rstd_bound[i] = 2.0 * FUSE_EPS * n->rstd[i];
    }
    const void *const inputs[] = {n->x, n->w, n->b};
    const double *const expected[] = {n->y, n->mean, n->rstd}, *const bound[] = {y_bound, mean_bound, rstd_bound};
    fuse_rigs_compare(fuse_rigs, fuse_rig_sets(), "layer_norm", &op, inputs, expected, bound, false);
    free(y_bound);
    free(mean_bound);
    free(rstd_bound);
}

/* mean and rstd as the kernel gets them, in float32. */
static void check_gradients(struct numbers *n, uint32_t flags)
{
    fuse_round_to_floats(n->mean, n->rows);
    fuse_round_to_floats(n->rstd, n->rows);
    float *const mean = fuse_to_floats(n->mean, n->rows), *const rstd = fuse_to_floats(n->rstd, n->rows);
    double *const dx = fuse_doubles(n->count, 0.0), *const dx_bound = fuse_doubles(n->count, 0.0);
    double *const dw = fuse_doubles(n->columns, 0.0), *const dw_bound = fuse_doubles(n->columns, 0.0);
    fuse_reference_layer_norm_dx(n->rows, n->columns, n->ddy, n->dx, n->dw, n->mean, n->rstd, dx, dx_bound);
    fuse_reference_layer_norm_dw(n->rows, n->columns, n->ddy, n->dx, n->mean, n->rstd, dw, dw_bound);
    fuse_scale_bound(dx_bound, n->count, 16.0);
    fuse_scale_bound(dw_bound, n->columns, 8.0);

    const struct fuse_operand matrix = fuse_float_operand(2, n->rows, n->columns, 0, 0);
    struct fuse_op op = fuse_op_new(FUSERUN_OP_LAYER_NORM_DX, flags);
    fuse_op_add_input(&op, matrix);
    fuse_op_add_input(&op, matrix);
    fuse_op_add_input(&op, fuse_float_operand(1, n->columns, 0, 0, 0));
    fuse_op_add_input(&op, fuse_float_operand(1, n->rows, 0, 0, 0));
    fuse_op_add_input(&op, fuse_float_operand(1, n->rows, 0, 0, 0));
    fuse_op_add_output(&op, matrix);
    const void *const dx_inputs[] = {n->dy, n->x, n->w, mean, rstd};
    const double *const dx_expected[] = {dx}, *const dx_bounds[] = {dx_bound};
    fuse_rigs_compare(fuse_rigs, fuse_rig_sets(), "layer_norm_dx", &op, dx_inputs, dx_expected, dx_bounds, false);

    op = fuse_op_new(FUSERUN_OP_LAYER_NORM_DW, flags);
    fuse_op_add_input(&op, matrix);
    fuse_op_add_input(&op, matrix);
    fuse_op_add_input(&op, fuse_float_operand(1, n->rows, 0, 0, 0));
    fuse_op_add_input(&op, fuse_float_operand(1, n->rows, 0, 0, 0));
    fuse_op_add_output(&op, fuse_float_operand(1, n->columns, 0, 0, 0));
    const void *const dw_inputs[] = {n->dy, n->x, mean, rstd};
    const double *const dw_expected[] = {dw}, *const dw_bounds[] = {dw_bound};
    fuse_rigs_compare(fuse_rigs, fuse_rig_sets(), "layer_norm_dw", &op, dw_inputs, dw_expected, dw_bounds, false);

    fuse_guarded_free(mean, (size_t)n->rows * sizeof(float));
    fuse_guarded_free(rstd, (size_t)n->rows * sizeof(float));
    free(dx);
    free(dx_bound);
    free(dw);
    free(dw_bound);
}

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++)
        for (int shift = 0; shift < 2; shift++) {
            if (!fuse_is_tried(16 * shapes[i].rows * shapes[i].columns))
                continue;
            struct numbers n = make_numbers(shapes[i].rows, shapes[i].columns, 100.0 * shift);
            check_forward(&n);
            check_gradients(&n, 0);
            check_gradients(&n, FUSERUN_OP_ACCUMULATE);
            free_numbers(&n);
        }
}

/* The same numbers far away have the same variance: x + 10000 with x on a grid that float32 keeps (bfloat16 does not).
 */
static void test_far_mean(void **state)
{
    (void)state;
    if (fuse_is_bfloat16_test()) {
        print_message("bfloat16 does not keep the grid of numbers far from zero\n");
        skip();
    }
    enum { COLUMNS = 64 };
    float x[COLUMNS], w[COLUMNS], b[COLUMNS] = {0}, y[2][COLUMNS], mean, rstd[2];
    const struct fuse_op op = forward_op(1, COLUMNS);
    for (int far = 0; far < 2; far++) {
        for (int i = 0; i < COLUMNS; i++) {
            x[i] = (float)(i % 7) * 0.125f + (far ? 10000.0f : 0.0f);
            w[i] = 1.0f;
        }
        const void *const inputs[] = {x, w, b};
        void *const outputs[] = {y[far], &mean, &rstd[far]};
        fuse_rig_run(&fuse_rigs[1], &op, inputs, outputs, NULL, NULL);
    }
    assert_true(fabsf(rstd[0] - rstd[1]) <= 1e-6f * rstd[0]);
    for (int i = 0; i < COLUMNS; i++)
        assert_true(fabsf(y[0][i] - y[1][i]) <= 0.002f); /* the mean is rounded to 1/1024 */
}

/* A row of equal numbers has no variance: eps alone stands under the root. A NaN stays in its row. */
static void test_special_rows(void **state)
{
    (void)state;
    const float x[2][3] = {{2.5f, 2.5f, 2.5f}, {1.0f, (float)NAN, 2.0f}}, w[] = {1.0f, 2.0f, 3.0f};
    const float b[] = {0.25f, -1.0f, 4.0f};
    float y[2][3], mean[2], rstd[2];
    const struct fuse_op op = forward_op(2, 3);
    const void *const inputs[] = {x, w, b};
    void *const outputs[] = {y, mean, rstd};
    fuse_rig_run(&fuse_rigs[0], &op, inputs, outputs, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        assert_true(y[0][i] == b[i]);
        assert_true(isnan(y[1][i]));
    }
    assert_true(mean[0] == 2.5f);
    assert_true(fabsf(rstd[0] - 1000.0f) < 0.001f);
}

static void test_refusals(void **state)
{
    (void)state;
    struct fuse_op op = forward_op(4, 5);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_OK);
    op.inputs[1].shape[0] = 4;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = forward_op(4, 5);
    op.outputs[2].shape[0] = 5;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = forward_op(4, 5);
    op.outputs[0].shape[1] = 6;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = forward_op(4, 5);
    op.flags = FUSERUN_OP_ACCUMULATE;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_UNSUPPORTED);
    op = forward_op(4, 5);
    op.numbers[0] = (double)NAN;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_far_mean),
        cmocka_unit_test(test_special_rows),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, fuse_rigs_open, fuse_rigs_close);
}
