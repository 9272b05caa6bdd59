/* The gradients of the transformer operations' references against central differences of their forward loops. */
#include "rig.h"

#include "reference.h"

#include <math.h>

enum {
    BATCH = 2,
    TOKENS = 3,
    HEADS = 2,
    HEAD_WIDTH = 2,
    WIDTH = HEADS * HEAD_WIDTH,
    MOST = BATCH * TOKENS * 3 * WIDTH
};

static double x[MOST], w[MOST], b[MOST], r[MOST], mask[BATCH * HEADS * TOKENS * TOKENS];

static int make_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < MOST; i++) {
        x[i] = sin(1.0 + 1.7 * i);
        w[i] = cos(0.3 + 2.3 * i);
        b[i] = sin(5.0 * i);
        r[i] = cos(3.1 * i);
    }
    for (int i = 0; i < BATCH * HEADS * TOKENS * TOKENS; i++)
        mask[i] = i % 3 == 0 ? 0.0 : 1.5;
    return 0;
}

static double weighted(const double *y, int count)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++)
        sum += y[i] * r[i];
    return sum;
}

enum { ROWS = 3, COLUMNS = 5 };

static double layer_norm_loss(void)
{
    double y[ROWS * COLUMNS], mean[ROWS], rstd[ROWS];
    fuse_reference_layer_norm(ROWS, COLUMNS, x, w, b, 0.01, y, mean, rstd);
    return weighted(y, ROWS * COLUMNS);
}

static void test_layer_norm(void **state)
{
    (void)state;
    double y[ROWS * COLUMNS], mean[ROWS], rstd[ROWS], dx[ROWS * COLUMNS], dw[COLUMNS], db[COLUMNS];
    fuse_reference_layer_norm(ROWS, COLUMNS, x, w, b, 0.01, y, mean, rstd);
    fuse_reference_layer_norm_dx(ROWS, COLUMNS, r, x, w, mean, rstd, dx, NULL);
    fuse_reference_layer_norm_dw(ROWS, COLUMNS, r, x, mean, rstd, dw, NULL);
    fuse_reference_linear_db(ROWS, COLUMNS, r, db, NULL);
    fuse_check_gradient("layer_norm_dx", layer_norm_loss, x, ROWS * COLUMNS, dx);
    fuse_check_gradient("layer_norm_dw", layer_norm_loss, w, COLUMNS, dw);
    fuse_check_gradient("layer_norm_db", layer_norm_loss, b, COLUMNS, db);
}

static struct fuse_reference_heads heads = {BATCH, TOKENS, HEADS, HEAD_WIDTH, NULL};

static double attention_loss(void)
{
    double y[BATCH * TOKENS * WIDTH], lse[BATCH * HEADS * TOKENS];
    fuse_reference_attention(&heads, x, y, lse);
    return weighted(y, BATCH * TOKENS * WIDTH);
}

static void test_attention(void **state)
{
    (void)state;
    double y[BATCH * TOKENS * WIDTH], lse[BATCH * HEADS * TOKENS], dqkv[MOST];
    const double *const masks[] = {NULL, mask};
    for (int i = 0; i < 2; i++) {
        heads.factors = masks[i];
        fuse_reference_attention(&heads, x, y, lse);
        fuse_reference_attention_dx(&heads, r, x, y, lse, dqkv, NULL);
        fuse_check_gradient(i == 0 ? "attention_dx" : "attention_dx with dropout", attention_loss, x, MOST, dqkv);
    }
}

static double prepend_loss(void)
{
    double y[BATCH * (TOKENS + 1) * WIDTH];
    fuse_reference_prepend(BATCH, TOKENS, WIDTH, x, w, y);
    return weighted(y, BATCH * (TOKENS + 1) * WIDTH);
}

static double add_batch_loss(void)
{
    double y[BATCH * TOKENS * WIDTH];
    fuse_reference_add_batch(BATCH, TOKENS * WIDTH, x, w, y);
    return weighted(y, BATCH * TOKENS * WIDTH);
}

static double select_loss(void)
{
    double y[BATCH * WIDTH];
    fuse_reference_select(BATCH, TOKENS, WIDTH, 1, x, y);
    return weighted(y, BATCH * WIDTH);
}

static void test_tokens(void **state)
{
    (void)state;
    double gradient[MOST];
    fuse_reference_prepend_dx(BATCH, TOKENS, WIDTH, r, gradient);
    fuse_check_gradient("prepend_dx", prepend_loss, x, BATCH * TOKENS * WIDTH, gradient);
    fuse_reference_prepend_dw(BATCH, TOKENS, WIDTH, r, gradient);
    fuse_check_gradient("prepend_dw", prepend_loss, w, WIDTH, gradient);
    fuse_reference_add_batch_dw(BATCH, TOKENS * WIDTH, r, gradient);
    fuse_check_gradient("add_batch_dw", add_batch_loss, w, TOKENS * WIDTH, gradient);
    fuse_reference_select_dx(BATCH, TOKENS, WIDTH, 1, r, gradient);
    fuse_check_gradient("select_dx", select_loss, x, BATCH * TOKENS * WIDTH, gradient);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, make_numbers, NULL);
}
