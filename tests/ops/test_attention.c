/* Attention and its gradient against the reference: one block of query rows and several, one head and many, with and
 * without dropout. */
#include "transformer.h"

#include "base/random.h"
#include "bfloat16.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int64_t batch, tokens, heads, head_width;
} shapes[] = {{1, 1, 1, 1},   {2, 3, 1, 5},    {3, 5, 2, 3},   {1, 17, 3, 7},
              {2, 50, 4, 16}, {1, 197, 2, 64}, {2, 300, 1, 9}, {1, 523, 2, 8}};
#define SHAPE_COUNT (sizeof(shapes) / sizeof(shapes[0]))

#define SEED 123456789u
#define STREAM 0x4000010000000000
#define DRAW 17u

static struct fuse_op new_op(const struct fuse_reference_heads *h, bool is_backward, uint32_t flags, double probability)
{
    const int64_t width = h->heads * h->head_width;
    const struct fuse_operand qkv = fuse_float_operand(3, h->batch, h->tokens, 3 * width, 0);
    const struct fuse_operand y = fuse_float_operand(3, h->batch, h->tokens, width, 0);
    const struct fuse_operand lse = fuse_float_operand(3, h->batch, h->heads, h->tokens, 0);
    struct fuse_op op = fuse_op_new(is_backward ? FUSERUN_OP_ATTENTION_DX : FUSERUN_OP_ATTENTION, flags);
    op.integers[0] = h->heads;
    op.integers[1] = (int64_t)STREAM;
    op.numbers[0] = probability;
    if (is_backward) {
        fuse_op_add_input(&op, y);
        fuse_op_add_input(&op, qkv);
        fuse_op_add_input(&op, y);
        fuse_op_add_input(&op, lse);
        fuse_op_add_output(&op, qkv);
    } else {
        fuse_op_add_input(&op, qkv);
        fuse_op_add_output(&op, y);
        fuse_op_add_output(&op, lse);
    }
    return op;
}

/* Each probability's factor, from the definition: element i of the stream, i counting (B, H, S, S). */
static double *make_factors(const struct fuse_reference_heads *h, double probability)
{
    if (probability == 0.0)
        return NULL;
    const int64_t count = h->batch * h->heads * h->tokens * h->tokens;
    double *const factors = fuse_doubles(count, 0.0);
    for (int64_t i = 0; i < count; i++) {
        float number;
        fuse_random_uniform(SEED, (uint64_t)STREAM + DRAW, (uint64_t)i, &number, 1);
        factors[i] = (double)number < probability ? 0.0 : 1.0 / (1.0 - probability);
    }
    return factors;
}

/* A score's error is at most (d + 4) eps times the sum of its terms' sizes, of which `size` is the largest; as a
 * probability's relative error it counts twice, for the row's sum has it too. */
static double relative_error(const struct fuse_reference_heads *h, double size)
{
    const double score_size = sqrt((double)h->head_width) * size * size;
    return 2.0 * ((double)h->head_width + 4.0) * score_size + (double)h->tokens + 16.0;
}

/* What is added to it where probabilities, or their gradients, are rounded before they are multiplied. */
static double product_error(void)
{
    return fuse_is_bfloat16_test() ? FUSE_EPS_BFLOAT16 / FUSE_EPS : 0.0;
}

static void check_case(struct fuse_reference_heads h, double size, double probability, uint32_t flags)
{
    const int64_t width = h.heads * h.head_width, count = h.batch * h.tokens * width;
    const int64_t sums = h.batch * h.heads * h.tokens;
    double *const factors = make_factors(&h, probability);
    h.factors = factors;
    float *const qkv = fuse_random_floats(1, 3 * count, size), *const dy = fuse_random_floats(2, count, 1.0);
    double *const dqkv = fuse_to_doubles(qkv, 3 * count), *const ddy = fuse_to_doubles(dy, count);
    double *const y = fuse_doubles(count, 0.0), *const lse = fuse_doubles(sums, 0.0);
    double *const gradient = fuse_doubles(3 * count, 0.0), *const gradient_bound = fuse_doubles(3 * count, 0.0);
    fuse_reference_attention(&h, dqkv, y, lse);

    /* y is an average of v, so its terms' sizes sum to at most `size` (more with dropout). */
    double *const y_bound = fuse_doubles(count, size / (1.0 - probability));
    double *const lse_bound = fuse_doubles(sums, 1.0);
    fuse_scale_bound(y_bound, count, relative_error(&h, size) + product_error());
    for (int64_t i = 0; i < sums; i++)
        lse_bound[i] += fabs(lse[i]);
    fuse_scale_bound(lse_bound, sums, relative_error(&h, size));
    struct fuse_op op = new_op(&h, false, 0, probability);
    const void *const inputs[] = {qkv};
    const double *const expected[] = {y, lse}, *const bound[] = {y_bound, lse_bound};
    fuse_rigs_compare(fuse_rigs, fuse_rig_sets(), "attention", &op, inputs, expected, bound, false);

    for (int64_t i = 0; i < count; i++)
        y[i] = (double)fuse_activation((float)y[i]);
    fuse_round_to_floats(lse, sums);
    float *const y_floats = fuse_to_floats(y, count), *const lse_floats = fuse_to_floats(lse, sums);
    fuse_reference_attention_dx(&h, ddy, dqkv, y, lse, gradient, gradient_bound);
    fuse_scale_bound(gradient_bound, 3 * count, relative_error(&h, size) + product_error());
    op = new_op(&h, true, flags, probability);
    const void *const dx_inputs[] = {dy, qkv, y_floats, lse_floats};
    const double *const dx_expected[] = {gradient}, *const dx_bound[] = {gradient_bound};
    fuse_rigs_compare(fuse_rigs, fuse_rig_sets(), "attention_dx", &op, dx_inputs, dx_expected, dx_bound, false);

    fuse_guarded_free(qkv, (size_t)(3 * count) * sizeof(float));
    fuse_guarded_free(dy, (size_t)count * sizeof(float));
    fuse_guarded_free(y_floats, (size_t)count * sizeof(float));
    fuse_guarded_free(lse_floats, (size_t)sums * sizeof(float));
    double *const doubles[] = {factors, dqkv, ddy, y, lse, gradient, gradient_bound, y_bound, lse_bound};
    for (size_t i = 0; i < sizeof(doubles) / sizeof(doubles[0]); i++)
        free(doubles[i]);
}

static void test_values(void **state)
{
    (void)state;
    for (int t = 0; t < FUSE_THREAD_SETS; t++) {
        fuse_rigs[t].seed = SEED;
        fuse_rigs[t].draw = DRAW;
    }
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct fuse_reference_heads h = {shapes[i].batch, shapes[i].tokens, shapes[i].heads, shapes[i].head_width,
                                               NULL};
        if (!fuse_is_tried(h.batch * h.heads * h.tokens * h.tokens * h.head_width))
            continue;
        check_case(h, 1.0, 0.0, 0);
        check_case(h, 1.0, 0.3, FUSERUN_OP_ACCUMULATE);
    }
    const struct fuse_reference_heads h = {2, 19, 2, 6, NULL};
    check_case(h, 3.0, 0.0, FUSERUN_OP_ACCUMULATE);
    check_case(h, 0.01, 0.9, 0);
}

/* A device has 4 Mi scores at a time: here of a part of a head's rows, and dk and dv are sums of two parts. */
static void test_rows_of_a_head(void **state)
{
    (void)state;
    if (!fuse_rig_is_device(&fuse_rigs[0])) {
        print_message("about a device, which this run is not of\n");
        skip();
    }
    check_case((struct fuse_reference_heads){1, 2057, 2, 1, NULL}, 1.0, 0.0, FUSERUN_OP_ACCUMULATE);
}

/* Scores whose exponentials would overflow, and rows where one token takes all. */
static void test_large_scores(void **state)
{
    (void)state;
    enum { TOKENS = 3 };
    const struct fuse_reference_heads h = {1, TOKENS, 1, 1, NULL};
    const float qkv[TOKENS][3] = {{1000.0f, 1.0f, 5.0f}, {1000.0f, 2.0f, 6.0f}, {-1000.0f, 3.0f, 7.0f}};
    const float expected[TOKENS] = {7.0f, 7.0f, 5.0f}, sums[TOKENS] = {3000.0f, 3000.0f, -1000.0f};
    float y[TOKENS], lse[TOKENS];
    const struct fuse_op op = new_op(&h, false, 0, 0.0);
    const void *const inputs[] = {qkv};
    void *const outputs[] = {y, lse};
    fuse_rig_run(&fuse_rigs[1], &op, inputs, outputs, NULL, NULL);
    for (int i = 0; i < TOKENS; i++) {
        assert_true(y[i] == expected[i]);
        assert_true(lse[i] == sums[i]);
    }
}

/* Scores of some 1e9, of which the log of the sum of exponentials is rounded by more than e^x can take: the gradient's
 * probabilities stay at most 1. */
static void test_huge_scores(void **state)
{
    (void)state;
    enum { TOKENS = 5, WIDTH = 3 };
    const struct fuse_reference_heads h = {1, TOKENS, 1, WIDTH, NULL};
    for (int trial = 1; trial <= 50; trial++) {
        float qkv[TOKENS][3][WIDTH], y[TOKENS][WIDTH], dy[TOKENS][WIDTH], lse[TOKENS], dqkv[TOKENS][3][WIDTH];
        for (int i = 0; i < TOKENS; i++)
            for (int j = 0; j < WIDTH; j++) {
                qkv[i][0][j] = 10007.0f * (float)((7 * i + 3 * j + trial) % 11 - 5);
                qkv[i][1][j] = 10009.0f * (float)((5 * i + 2 * j + 3 * trial) % 13 - 6);
                qkv[i][2][j] = (float)((i + j) % 3 - 1);
                dy[i][j] = 1.0f;
            }
        const struct fuse_op forward = new_op(&h, false, 0, 0.0), backward = new_op(&h, true, 0, 0.0);
        const void *const inputs[] = {qkv}, *const all[] = {dy, qkv, y, lse};
        void *const outputs[] = {y, lse}, *const gradient[] = {dqkv};
        fuse_rig_run(&fuse_rigs[1], &forward, inputs, outputs, NULL, NULL);
        fuse_rig_run(&fuse_rigs[1], &backward, all, gradient, NULL, NULL);
        for (int i = 0; i < TOKENS; i++)
            for (int j = 0; j < WIDTH; j++) {
                assert_true(dqkv[i][2][j] >= 0.0f && dqkv[i][2][j] <= TOKENS); /* sums of p dy */
                for (int part = 0; part < 2; part++) /* |ds| <= |dp - sum| <= 2 WIDTH, times q or k */
                    assert_true(fabsf(dqkv[i][part][j]) <= 2.0f * WIDTH * TOKENS * 60054.0f);
            }
    }
}

static void test_nan(void **state)
{
    (void)state;
    const struct fuse_reference_heads h = {1, 4, 1, 2, NULL};
    float qkv[4 * 6], y[8], lse[4];
    for (int i = 0; i < 24; i++)
        qkv[i] = 0.1f * (float)i;
    qkv[6] = (float)NAN; /* of the second token's query */
    const struct fuse_op op = new_op(&h, false, 0, 0.0);
    const void *const inputs[] = {qkv};
    void *const outputs[] = {y, lse};
    fuse_rig_run(&fuse_rigs[0], &op, inputs, outputs, NULL, NULL);
    for (int i = 0; i < 8; i++)
        assert_int_equal(isnan(y[i]) != 0, i / 2 == 1);
    assert_true(isnan(lse[1]));
}

/* Never the probabilities of all heads, whatever the length: a few MiB a worker. */
static void test_workspace(void **state)
{
    (void)state;
    if (fuse_is_bfloat16_test()) {
        print_message("float32 operands of bfloat16 products are rounded whole\n");
        skip();
    }
    static const int64_t tokens[] = {197, 1024, 4096, 16384};
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            const struct fuse_reference_heads h = {8, tokens[i], 16, 64, NULL};
            const struct fuse_op op = new_op(&h, is_backward != 0, 0, 0.0);
            struct fuse_kernel_info info;
            fuse_rig_info(&fuse_rigs[1], &op, &info);
            /* A group of heads' scores, never all heads': 4 MiB on the CPU, 16 on a device, twice that in backward. */
            assert_true(info.workspace_bytes <= 2u * (fuse_rig_is_device(&fuse_rigs[1]) ? 17u << 20 : 4u << 20));
        }
}

static void test_refusals(void **state)
{
    (void)state;
    const struct fuse_reference_heads h = {2, 3, 2, 4, NULL};
    struct fuse_op op = new_op(&h, false, 0, 0.0);
    op.integers[0] = 3;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op.integers[0] = 0;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = new_op(&h, false, 0, 0.0);
    op.outputs[1].shape[1] = 3;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = new_op(&h, true, 0, 0.0);
    op.inputs[2].shape[1] = 4;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = new_op(&h, false, 0, 1.0);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    assert_non_null(strstr(fuse_rigs[0].error.text, "dropout"));
    op = new_op(&h, false, FUSERUN_OP_ACCUMULATE, 0.0);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_rows_of_a_head),
        cmocka_unit_test(test_large_scores), cmocka_unit_test(test_huge_scores),
        cmocka_unit_test(test_nan),          cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, fuse_rigs_open, fuse_rigs_close);
}
