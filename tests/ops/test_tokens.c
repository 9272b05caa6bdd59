/* Patches, the class token, positions, picking a token, dropout: they move numbers, so most are compared exactly. */
#include "transformer.h"

#include "base/random.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int64_t batch, tokens, width;
} shapes[] = {{1, 1, 1}, {2, 3, 5}, {5, 7, 1}, {3, 16, 33}, {2, 197, 96}, {4, 64, 300}};
#define SHAPE_COUNT (sizeof(shapes) / sizeof(shapes[0]))

/* An op of one or two inputs and one output against its reference. */
static void compare(const char *what, const struct fuse_op *op, const float *a, const float *b, const double *expected,
                    double tolerance, bool in_place)
{
    const int64_t count = fuse_operand_elements(&op->outputs[0]);
    double *const bound = fuse_doubles(count, tolerance);
    const void *const inputs[] = {a, b};
    fuse_rigs_compare(fuse_rigs, fuse_rig_sets(), what, op, inputs, &expected, (const double *const[]){bound},
                      in_place);
    free(bound);
}

static void compare_with_adding(const char *what, struct fuse_op *op, const float *a, const double *expected,
                                double tolerance)
{
    op->flags = 0;
    compare(what, op, a, NULL, expected, tolerance, false);
    op->flags = FUSERUN_OP_ACCUMULATE;
    compare(what, op, a, NULL, expected, tolerance, false);
}

static struct fuse_op unary_op(uint32_t kind, struct fuse_operand in, struct fuse_operand out)
{
    struct fuse_op op = fuse_op_new(kind, 0);
    fuse_op_add_input(&op, in);
    fuse_op_add_output(&op, out);
    return op;
}

static struct fuse_op binary_op(uint32_t kind, struct fuse_operand a, struct fuse_operand b, struct fuse_operand out)
{
    struct fuse_op op = fuse_op_new(kind, 0);
    fuse_op_add_input(&op, a);
    fuse_op_add_input(&op, b);
    fuse_op_add_output(&op, out);
    return op;
}

static struct fuse_op patches_op(int64_t batch, int64_t channels, int64_t rows, int64_t columns, int64_t patch)
{
    const int64_t tokens = patch > 0 ? (rows / patch) * (columns / patch) : 1;
    struct fuse_op op = unary_op(FUSERUN_OP_PATCHES, fuse_float_operand(4, batch, channels, rows, columns),
                                 fuse_float_operand(3, batch, tokens, channels * patch * patch, 0));
    op.integers[0] = patch;
    return op;
}

static void test_patches(void **state)
{
    (void)state;
    static const int64_t sizes[][5] = {{1, 1, 1, 1, 1},      {2, 3, 4, 6, 2},   {3, 1, 15, 5, 5},
                                       {1, 3, 224, 224, 16}, {5, 2, 21, 35, 7}, {2, 4, 9, 12, 3}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const int64_t *const s = sizes[i], count = s[0] * s[1] * s[2] * s[3];
        const struct fuse_op op = patches_op(s[0], s[1], s[2], s[3], s[4]);
        float *const x = fuse_random_floats(i, count, 1.0);
        double *const in = fuse_to_doubles(x, count), *const out = fuse_doubles(count, 0.0);
        fuse_reference_patches(s[0], s[1], s[2], s[3], s[4], in, out);
        compare("patches", &op, x, NULL, out, 0.0, false);
        fuse_guarded_free(x, (size_t)count * sizeof(float));
        free(in);
        free(out);
    }
}

static void test_prepend(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const int64_t batch = shapes[i].batch, tokens = shapes[i].tokens, width = shapes[i].width;
        const int64_t count = batch * tokens * width, longer = batch * (tokens + 1) * width;
        if (!fuse_is_tried(16 * count))
            continue;
        float *const x = fuse_random_floats(1, count, 1.0), *const token = fuse_random_floats(2, width, 1.0);
        float *const dy = fuse_random_floats(3, longer, 1.0);
        double *const in = fuse_to_doubles(x, count), *const token_in = fuse_to_doubles(token, width);
        double *const dy_in = fuse_to_doubles(dy, longer), *const out = fuse_doubles(longer, 0.0);
        const struct fuse_operand short_one = fuse_float_operand(3, batch, tokens, width, 0);
        const struct fuse_operand long_one = fuse_float_operand(3, batch, tokens + 1, width, 0);
        struct fuse_op op = binary_op(FUSERUN_OP_PREPEND, short_one, fuse_float_operand(3, 1, 1, width, 0), long_one);
        fuse_reference_prepend(batch, tokens, width, in, token_in, out);
        compare("prepend", &op, x, token, out, 0.0, false);
        op = unary_op(FUSERUN_OP_PREPEND_DX, long_one, short_one);
        fuse_reference_prepend_dx(batch, tokens, width, dy_in, out);
        compare_with_adding("prepend_dx", &op, dy, out, 0.0);
        op = unary_op(FUSERUN_OP_PREPEND_DW, long_one, fuse_float_operand(1, width, 0, 0, 0));
        fuse_reference_prepend_dw(batch, tokens, width, dy_in, out);
        compare_with_adding("prepend_dw", &op, dy, out, FUSE_EPS * (double)batch);
        fuse_guarded_free(x, (size_t)count * sizeof(float));
        fuse_guarded_free(token, (size_t)width * sizeof(float));
        fuse_guarded_free(dy, (size_t)longer * sizeof(float));
        free(in);
        free(token_in);
        free(dy_in);
        free(out);
    }
}

static void test_add_batch(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const int64_t batch = shapes[i].batch, each = shapes[i].tokens * shapes[i].width, count = batch * each;
        if (!fuse_is_tried(16 * count))
            continue;
        float *const x = fuse_random_floats(1, count, 1.0), *const p = fuse_random_floats(2, each, 1.0);
        double *const in = fuse_to_doubles(x, count), *const p_in = fuse_to_doubles(p, each);
        double *const out = fuse_doubles(count, 0.0);
        const struct fuse_operand whole = fuse_float_operand(3, batch, shapes[i].tokens, shapes[i].width, 0);
        struct fuse_op op = binary_op(FUSERUN_OP_ADD_BATCH, whole,
                                      fuse_float_operand(3, 1, shapes[i].tokens, shapes[i].width, 0), whole);
        fuse_reference_add_batch(batch, each, in, p_in, out);
        compare("add_batch", &op, x, p, out, 2.0 * FUSE_EPS, false);
        compare("add_batch in place", &op, x, p, out, 2.0 * FUSE_EPS, true);
        op = unary_op(FUSERUN_OP_ADD_BATCH_DW, whole, fuse_float_operand(1, each, 0, 0, 0));
        fuse_reference_add_batch_dw(batch, each, in, out);
        compare_with_adding("add_batch_dw", &op, x, out, FUSE_EPS * (double)batch);
        fuse_guarded_free(x, (size_t)count * sizeof(float));
        fuse_guarded_free(p, (size_t)each * sizeof(float));
        free(in);
        free(p_in);
        free(out);
    }
}

static void test_select(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const int64_t batch = shapes[i].batch, tokens = shapes[i].tokens, width = shapes[i].width;
        if (!fuse_is_tried(16 * batch * tokens * width))
            continue;
        const int64_t count = batch * tokens * width, places[] = {0, tokens - 1, tokens / 2};
        float *const x = fuse_random_floats(1, count, 1.0), *const dy = fuse_random_floats(3, batch * width, 1.0);
        double *const in = fuse_to_doubles(x, count), *const dy_in = fuse_to_doubles(dy, batch * width);
        double *const out = fuse_doubles(count, 0.0);
        const struct fuse_operand sequence = fuse_float_operand(3, batch, tokens, width, 0);
        const struct fuse_operand matrix = fuse_float_operand(2, batch, width, 0, 0);
        for (size_t j = 0; j < sizeof(places) / sizeof(places[0]); j++) {
            struct fuse_op op = unary_op(FUSERUN_OP_SELECT, sequence, matrix);
            op.integers[0] = places[j];
            fuse_reference_select(batch, tokens, width, places[j], in, out);
            compare("select", &op, x, NULL, out, 0.0, false);
            op = unary_op(FUSERUN_OP_SELECT_DX, matrix, sequence);
            op.integers[0] = places[j];
            fuse_reference_select_dx(batch, tokens, width, places[j], dy_in, out);
            compare_with_adding("select_dx", &op, dy, out, 0.0);
        }
        fuse_guarded_free(x, (size_t)count * sizeof(float));
        fuse_guarded_free(dy, (size_t)(batch * width) * sizeof(float));
        free(in);
        free(dy_in);
        free(out);
    }
}

/* ---- dropout ------------------------------------------------------------------------------------------------- */

static struct fuse_op dropout_op(int64_t count, double probability, uint32_t flags)
{
    struct fuse_op op =
        unary_op(FUSERUN_OP_DROPOUT, fuse_float_operand(1, count, 0, 0, 0), fuse_float_operand(1, count, 0, 0, 0));
    op.flags = flags;
    op.integers[0] = 0x4000020000000000;
    op.numbers[0] = probability;
    return op;
}

static void set_draw(uint64_t seed, uint64_t draw)
{
    for (int t = 0; t < FUSE_THREAD_SETS; t++) {
        fuse_rigs[t].seed = seed;
        fuse_rigs[t].draw = draw;
    }
}

/* Element by element from the definition: forward, in place, and as its own derivative. */
static void test_dropout_values(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 3, 17, 1023, 1025, 4099, 100003};
    static const double probabilities[] = {0.0, 0.1, 0.5, 0.97};
    set_draw(99, 5);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (size_t j = 0; j < sizeof(probabilities) / sizeof(probabilities[0]); j++) {
            const int64_t count = counts[i];
            const double p = probabilities[j];
            float *const x = fuse_random_floats(1, count, 1.0);
            float *const numbers = fuse_guarded_new((size_t)count * sizeof(float));
            double *const out = fuse_doubles(count, 0.0);
            fuse_random_uniform(99, 0x4000020000000000u + 5u, 0, numbers, (size_t)count);
            for (int64_t k = 0; k < count; k++)
                out[k] = (double)numbers[k] < p ? 0.0 : (double)x[k] / (1.0 - p);
            struct fuse_op op = dropout_op(count, p, 0);
            compare("dropout", &op, x, NULL, out, 2.0 * FUSE_EPS / (1.0 - p), false);
            compare("dropout in place", &op, x, NULL, out, 2.0 * FUSE_EPS / (1.0 - p), true);
            op.flags = FUSERUN_OP_ACCUMULATE;
            compare("dropout added", &op, x, NULL, out, 2.0 * FUSE_EPS / (1.0 - p), false);
            fuse_guarded_free(x, (size_t)count * sizeof(float));
            fuse_guarded_free(numbers, (size_t)count * sizeof(float));
            free(out);
        }
}

/* The mean stays, the part that is dropped is p (both within 5 standard deviations), other draws drop others. */
static void test_dropout_statistics(void **state)
{
    (void)state;
    const int64_t count = 200000;
    const double p = 0.3;
    const struct fuse_op op = dropout_op(count, p, 0);
    const size_t bytes = (size_t)count * sizeof(float);
    float *const x = fuse_guarded_new(bytes), *const first = fuse_guarded_new(bytes),
                 *const y = fuse_guarded_new(bytes);
    for (int64_t i = 0; i < count; i++)
        x[i] = 1.0f;
    const void *const inputs[] = {x};
    for (uint64_t draw = 0; draw < 3; draw++) {
        double sum = 0.0;
        int64_t dropped = 0, same = 0;
        set_draw(7, draw);
        fuse_rig_run(&fuse_rigs[1], &op, inputs, (void *const[]){draw == 0 ? first : y}, NULL, NULL);
        const float *const out = draw == 0 ? first : y;
        for (int64_t i = 0; i < count; i++) {
            sum += (double)out[i];
            dropped += out[i] == 0.0f;
            same += (out[i] == 0.0f) == (first[i] == 0.0f);
        }
        const double spread = 5.0 * sqrt(p * (1.0 - p) / (double)count);
        assert_true(fabs((double)dropped / (double)count - p) < spread);
        assert_true(fabs(sum / (double)count - 1.0) < spread / (1.0 - p));
        /* independent masks agree with probability p^2 + (1 - p)^2 = 0.58 */
        assert_true(draw == 0 ? same == count : fabs((double)same / (double)count - 0.58) < 0.01);
    }
    fuse_guarded_free(x, bytes);
    fuse_guarded_free(first, bytes);
    fuse_guarded_free(y, bytes);
}

static void test_refusals(void **state)
{
    (void)state;
    struct fuse_op op = patches_op(1, 3, 8, 8, 4);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_OK);
    op.integers[0] = 3;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op.integers[0] = 0;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    const struct fuse_operand sequence = fuse_float_operand(3, 2, 4, 5, 0), matrix = fuse_float_operand(2, 2, 5, 0, 0);
    op = unary_op(FUSERUN_OP_SELECT, sequence, matrix);
    op.integers[0] = 4;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op.integers[0] = -1;
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = binary_op(FUSERUN_OP_PREPEND, sequence, fuse_float_operand(1, 5, 0, 0, 0), sequence);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = binary_op(FUSERUN_OP_ADD_BATCH, sequence, fuse_float_operand(1, 21, 0, 0, 0), sequence);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = unary_op(FUSERUN_OP_ADD_BATCH_DW, sequence, fuse_float_operand(1, 21, 0, 0, 0));
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = dropout_op(5, 1.0, 0);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = dropout_op(5, (double)NAN, 0);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = dropout_op(5, 0.5, FUSERUN_OP_PANELS);
    assert_int_equal(fuse_rig_compile_status(&fuse_rigs[0], &op), FUSERUN_ERROR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patches),        cmocka_unit_test(test_prepend),
        cmocka_unit_test(test_add_batch),      cmocka_unit_test(test_select),
        cmocka_unit_test(test_dropout_values), cmocka_unit_test(test_dropout_statistics),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, fuse_rigs_open, fuse_rigs_close);
}
