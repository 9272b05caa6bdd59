/* Every gradient of the reference against central differences of its forward op, in double: the loops that the kernels
 * are compared with are themselves right. The loss is sum(y * r) with fixed r, or the loss op itself. */
#include "rig.h"

#include "reference.h"

#include <math.h>

enum { BATCH = 3, N = 4, K = 5 };

static double x[BATCH * K], w[N * K], b[N], r[BATCH * N];

static int make_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < BATCH * K; i++)
        x[i] = sin(1.0 + 1.7 * i);
    for (int i = 0; i < N * K; i++)
        w[i] = cos(0.3 + 2.3 * i);
    for (int i = 0; i < N; i++)
        b[i] = sin(5.0 * i);
    for (int i = 0; i < BATCH * N; i++)
        r[i] = cos(3.1 * i);
    return 0;
}

static double linear_loss(void)
{
    double y[BATCH * N], sum = 0.0;
    fuse_reference_linear(BATCH, N, K, x, w, b, y, NULL);
    for (int i = 0; i < BATCH * N; i++)
        sum += y[i] * r[i];
    return sum;
}

static void test_linear(void **state)
{
    (void)state;
    double dx[BATCH * K], dw[N * K], db[N];
    fuse_reference_linear_dx(BATCH, N, K, r, w, dx, NULL);
    fuse_reference_linear_dw(BATCH, N, K, r, x, dw, NULL);
    fuse_reference_linear_db(BATCH, N, r, db, NULL);
    fuse_check_gradient("linear_dx", linear_loss, x, BATCH * K, dx);
    fuse_check_gradient("linear_dw", linear_loss, w, N * K, dw);
    fuse_check_gradient("linear_db", linear_loss, b, N, db);
}

static double (*unary)(double);

static double unary_loss(void)
{
    double sum = 0.0;
    for (int i = 0; i < N * K; i++)
        sum += unary(3.0 * w[i]) * (1.0 + 0.1 * i);
    return sum;
}

static void test_activations(void **state)
{
    (void)state;
    double gradient[N * K];
    unary = fuse_reference_relu;
    for (int i = 0; i < N * K; i++)
        gradient[i] = 3.0 * fuse_reference_relu_dx(1.0 + 0.1 * i, fuse_reference_relu(3.0 * w[i]));
    fuse_check_gradient("relu_dx", unary_loss, w, N * K, gradient);
    unary = fuse_reference_gelu;
    for (int i = 0; i < N * K; i++)
        gradient[i] = 3.0 * fuse_reference_gelu_dx(1.0 + 0.1 * i, 3.0 * w[i]);
    fuse_check_gradient("gelu_dx", unary_loss, w, N * K, gradient);
    unary = fuse_reference_tanh;
    for (int i = 0; i < N * K; i++)
        gradient[i] = 3.0 * fuse_reference_tanh_dx(1.0 + 0.1 * i, fuse_reference_tanh(3.0 * w[i]));
    fuse_check_gradient("tanh_dx", unary_loss, w, N * K, gradient);
}

static const int64_t labels[BATCH] = {4, 0, 2};
static double smoothing;

static double cross_entropy_loss(void)
{
    double statistics[2];
    fuse_reference_cross_entropy(BATCH, K, x, labels, smoothing, 1.0, statistics, NULL);
    return 0.25 * statistics[0];
}

static double mse_loss(void)
{
    double statistics[2];
    fuse_reference_mse(BATCH * K, x, w, 1.0, statistics, NULL);
    return 0.25 * statistics[0];
}

static double sum_loss(void)
{
    double statistics[2];
    fuse_reference_sum(BATCH * K, x, 1.0, statistics, NULL);
    return 0.25 * statistics[0];
}

static void test_losses(void **state)
{
    (void)state;
    double gradient[BATCH * K], statistics[2];
    for (int i = 0; i < 3; i++) {
        smoothing = 0.15 * i;
        fuse_reference_cross_entropy(BATCH, K, x, labels, smoothing, 0.25, statistics, gradient);
        fuse_check_gradient("cross_entropy", cross_entropy_loss, x, BATCH * K, gradient);
    }
    fuse_reference_mse(BATCH * K, x, w, 0.25, statistics, gradient);
    fuse_check_gradient("mse", mse_loss, x, BATCH * K, gradient);
    fuse_reference_sum(BATCH * K, x, 0.25, statistics, gradient);
    fuse_check_gradient("sum", sum_loss, x, BATCH * K, gradient);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_losses),
    };
    return cmocka_run_group_tests(tests, make_numbers, NULL);
}
