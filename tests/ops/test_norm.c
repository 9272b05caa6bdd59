/* Sums of squares: of a gradient, and of a linear weight's that is never formed, by blocks and by panels. */
#include "bfloat16.h"
#include "rig.h"

#include <math.h>
#include <string.h>

static double squares(const float *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}

static void sums_of_squares(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 3, 17, 65535, 65536, 65537, 300001};
    for (uint32_t threads = 1; threads <= (uint32_t)fuse_rig_sets(); threads++) {
        struct fuse_rig rig;
        fuse_rig_open(&rig, threads);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            float *values = fuse_random_floats(i + 1, counts[i], 3.0);
            double *sum = fuse_guarded_new(sizeof *sum);
            struct fuse_op op = fuse_op_new(FUSERUN_OP_SUM_SQUARES, 0);
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 1, counts[i], 0, 0));
            fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT64, 1, 1, 0, 0));
            const void *inputs[] = {values};
            void *outputs[] = {sum};
            fuse_rig_run(&rig, &op, inputs, outputs, NULL, NULL);
            const double expected = squares(values, counts[i]);
            assert_true(fabs(*sum - expected) <= 1e-12 * expected);
            fuse_guarded_free(sum, sizeof *sum);
            fuse_guarded_free(values, (size_t)counts[i] * sizeof *values);
        }
        fuse_rig_close(&rig);
    }
}

/* ||dy^T x||^2 in double, by its definition. */
static double product_squares(const float *dy, const float *x, int64_t batch, int64_t n, int64_t k)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++) {
            double element = 0;
            for (int64_t b = 0; b < batch; b++)
                element += (double)dy[b * n + i] * (double)x[b * k + j];
            sum += element * element;
        }
    return sum;
}

static void norms_of_gradients_that_do_not_exist(void **state)
{
    (void)state;
    /* few rows (blocks of the symmetric products, one and several, ragged), many rows (panels, one and several) */
    static const int64_t shapes[][3] = {{1, 5, 7},       {3, 64, 70}, {31, 130, 65}, {64, 300, 200},  {65, 300, 200},
                                        {130, 400, 330}, {40, 3, 5},  {257, 33, 17}, {300, 1030, 70}, {9, 1, 1}};
    double first[sizeof shapes / sizeof shapes[0]] = {0};
    for (uint32_t threads = 1; threads <= (uint32_t)fuse_rig_sets(); threads++) {
        struct fuse_rig rig;
        fuse_rig_open(&rig, threads);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            const int64_t batch = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
            float *dy = fuse_random_floats(2 * i + 1, batch * n, 1.0),
                  *x = fuse_random_floats(2 * i + 2, batch * k, 1.0);
            double *sum = fuse_guarded_new(sizeof *sum);
            struct fuse_op op = fuse_op_new(FUSERUN_OP_LINEAR_DW_NORM, 0);
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, batch, n, 0));
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, batch, k, 0));
            fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT64, 1, 1, 0, 0));
            const void *inputs[] = {dy, x};
            void *outputs[] = {sum};
            fuse_rig_run(&rig, &op, inputs, outputs, NULL, NULL);
            /* the products are float32 sums of up to max(n, k, batch) terms */
            assert_true(fabs(*sum - product_squares(dy, x, batch, n, k)) <= 1e-5 * *sum);
            if (threads == 1)
                first[i] = *sum;
            assert_memory_equal(&first[i], sum, sizeof *sum); /* whatever the number of threads */
            fuse_guarded_free(sum, sizeof *sum);
            fuse_guarded_free(dy, (size_t)(batch * n) * sizeof *dy);
            fuse_guarded_free(x, (size_t)(batch * k) * sizeof *x);
        }
        fuse_rig_close(&rig);
    }
}

/* Earlier micro-batches of `rows` rows each and a last one: the same as all rows in one piece. */
static void norms_over_micro_batches(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {/* batch, n, k, rows, count */
                                        {1, 5, 7, 1, 1},      {3, 64, 70, 3, 3},     {64, 300, 200, 64, 2},
                                        {9, 300, 200, 65, 3}, {130, 400, 330, 7, 1}, {65, 33, 17, 70, 2}};
    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct fuse_rig rig;
        fuse_rig_open(&rig, threads);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            const int64_t batch = shapes[i][0], n = shapes[i][1], k = shapes[i][2], rows = shapes[i][3];
            const int64_t earlier = rows * shapes[i][4];
            float *dy = fuse_random_floats(2 * i + 1, (earlier + batch) * n, 1.0);
            float *x = fuse_random_floats(2 * i + 2, (earlier + batch) * k, 1.0);
            double *sum = fuse_guarded_new(sizeof *sum);
            struct fuse_op op = fuse_op_new(FUSERUN_OP_LINEAR_DW_SUM_NORM, 0);
            op.integers[0] = rows;
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, batch, n, 0));
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, batch, k, 0));
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, earlier, n, 0));
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, earlier, k, 0));
            fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT64, 1, 1, 0, 0));
            const void *inputs[] = {dy + earlier * n, x + earlier * k, dy, x};
            void *outputs[] = {sum};
            fuse_rig_run(&rig, &op, inputs, outputs, NULL, NULL);
            assert_true(fabs(*sum - product_squares(dy, x, earlier + batch, n, k)) <= 1e-5 * *sum);
            fuse_guarded_free(sum, sizeof *sum);
            fuse_guarded_free(dy, (size_t)((earlier + batch) * n) * sizeof *dy);
            fuse_guarded_free(x, (size_t)((earlier + batch) * k) * sizeof *x);
        }
        fuse_rig_close(&rig);
    }
}

static void a_nan_is_seen(void **state)
{
    (void)state;
    struct fuse_rig rig;
    fuse_rig_open(&rig, 1);
    float *dy = fuse_random_floats(1, 6 * 40, 1.0), *x = fuse_random_floats(2, 6 * 30, 1.0);
    dy[17] = NAN;
    double *sum = fuse_guarded_new(sizeof *sum);
    struct fuse_op op = fuse_op_new(FUSERUN_OP_LINEAR_DW_NORM, 0);
    fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, 6, 40, 0));
    fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, 6, 30, 0));
    fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT64, 1, 1, 0, 0));
    const void *inputs[] = {dy, x};
    void *outputs[] = {sum};
    fuse_rig_run(&rig, &op, inputs, outputs, NULL, NULL);
    assert_true(isnan(*sum));
    fuse_guarded_free(sum, sizeof *sum);
    fuse_guarded_free(dy, 6 * 40 * sizeof *dy);
    fuse_guarded_free(x, 6 * 30 * sizeof *x);
    fuse_rig_close(&rig);
}

/* Squares of x leave the range of floats; no element of dw does. */
static void a_gradient_is_in_range_where_squares_are_not(void **state)
{
    (void)state;
    struct fuse_rig rig;
    fuse_rig_open(&rig, 1);
    static const int cases[][2] = {{6, 0}, {6, 3}, {1, 0}}; /* rows, and how many of them are earlier ones */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int rows = cases[i][0], earlier = cases[i][1];
        float *dy = fuse_random_floats(1, 6 * 40, 1e-12), *x = fuse_random_floats(2, 6 * 1100, 1e25);
        double *sum = fuse_guarded_new(sizeof *sum);
        struct fuse_op op = fuse_op_new(earlier > 0 ? FUSERUN_OP_LINEAR_DW_SUM_NORM : FUSERUN_OP_LINEAR_DW_NORM, 0);
        op.integers[0] = earlier;
        fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, rows - earlier, 40, 0));
        fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, rows - earlier, 1100, 0));
        if (earlier > 0) {
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, earlier, 40, 0));
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, earlier, 1100, 0));
        }
        fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT64, 1, 1, 0, 0));
        const void *inputs[] = {dy + earlier * 40, x + earlier * 1100, dy, x};
        void *outputs[] = {sum};
        fuse_rig_run(&rig, &op, inputs, outputs, NULL, NULL);
        const double expected = product_squares(dy, x, rows, 40, 1100);
        assert_true(fabs(*sum - expected) <= 1e-5 * expected);
        fuse_guarded_free(sum, sizeof *sum);
        fuse_guarded_free(dy, 6 * 40 * sizeof *dy);
        fuse_guarded_free(x, 6 * 1100 * sizeof *x);
    }
    fuse_rig_close(&rig);
}

/* Four samples whose gradients are +-n T, +-2 n T and something small besides: nearly all of it cancels. */
static void gradients_that_cancel_are_measured_exactly(void **state)
{
    (void)state;
    enum { N = 40, K = 90, ROWS = 4 };
    static const double much[ROWS] = {1, -1, 2, -2};
    struct fuse_rig rig;
    fuse_rig_open(&rig, 1);
    if (fuse_is_bfloat16_test()) {
        fuse_rig_close(&rig);
        print_message("of float32\n");
        skip();
    }
    for (int earlier = 0; earlier <= 2; earlier += 2)
        for (double n = 1; n <= 1000; n *= 10) {
            float *dy = fuse_random_floats(1, ROWS * N, 1), *x = fuse_random_floats(2, ROWS * K, 1);
            for (int row = 1; row < ROWS; row++)
                memcpy(x + row * K, x, K * sizeof *x);
            for (int i = 0; i < ROWS * N; i++)
                dy[i] += (float)(n * much[i / N] * (1 + i % N));
            double *sum = fuse_guarded_new(sizeof *sum);
            struct fuse_op op = fuse_op_new(earlier > 0 ? FUSERUN_OP_LINEAR_DW_SUM_NORM : FUSERUN_OP_LINEAR_DW_NORM, 0);
            op.integers[0] = earlier;
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, ROWS - earlier, N, 0));
            fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, ROWS - earlier, K, 0));
            if (earlier > 0) {
                fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, earlier, N, 0));
                fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 2, earlier, K, 0));
            }
            fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT64, 1, 1, 0, 0));
            const void *inputs[] = {dy + earlier * N, x + earlier * K, dy, x};
            void *outputs[] = {sum};
            fuse_rig_run(&rig, &op, inputs, outputs, NULL, NULL);
            /* an element is a sum of four terms of up to 2 n N, each rounded once, against a rest of about 1 */
            const double expected = product_squares(dy, x, ROWS, N, K);
            assert_true(fabs(*sum - expected) <= (1e-5 + 4 * 2 * n * N * 6e-8) * expected);
            fuse_guarded_free(sum, sizeof *sum);
            fuse_guarded_free(dy, ROWS * N * sizeof *dy);
            fuse_guarded_free(x, ROWS * K * sizeof *x);
        }
    fuse_rig_close(&rig);
}

static void scaling(void **state)
{
    (void)state;
    struct fuse_rig rig;
    fuse_rig_open(&rig, 2);
    for (int is_panel = 0; is_panel < 2; is_panel++) {
        float *values = fuse_random_floats(4, 200001, 2.0), *kept = fuse_random_floats(4, 200001, 2.0);
        float *const device = fuse_rig_to_device(&rig, values, 200001 * sizeof *values);
        rig.backend->scale(rig.instance, device, 200000, 0.3f, is_panel);
        fuse_rig_from_device(&rig, values, device, 200001 * sizeof *values);
        for (int i = 0; i < 200000; i++)
            assert_true(values[i] == kept[i] * 0.3f);
        assert_true(values[200000] == kept[200000]);
        fuse_guarded_free(values, 200001 * sizeof *values);
        fuse_guarded_free(kept, 200001 * sizeof *kept);
    }
    fuse_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_squares),
        cmocka_unit_test(norms_of_gradients_that_do_not_exist),
        cmocka_unit_test(norms_over_micro_batches),
        cmocka_unit_test(a_nan_is_seen),
        cmocka_unit_test(a_gradient_is_in_range_where_squares_are_not),
        cmocka_unit_test(gradients_that_cancel_are_measured_exactly),
        cmocka_unit_test(scaling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
