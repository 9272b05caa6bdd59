/* Element-wise ops against the reference: within 2 units in the last place (gelu: 8 in its tail, and down to what is no
 * normal number any more), on any number of threads, in place too. */
#include "rig.h"

#include "bfloat16.h"
#include "reference.h"

#include <float.h>
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

static double unary_relu(double a, double b)
{
    (void)b;
    return fuse_reference_relu(a);
}

static double unary_gelu(double a, double b)
{
    (void)b;
    return fuse_reference_gelu(a);
}

static double unary_tanh(double a, double b)
{
    (void)b;
    return fuse_reference_tanh(a);
}

static double binary_add(double a, double b)
{
    return a + b;
}

static double unary_copy(double a, double b)
{
    (void)b;
    return a;
}

static const struct {
    const char *name;
    uint32_t kind;
    int inputs;
    double (*reference)(double a, double b);
    bool is_gradient;
    double size; /* of the numbers fed to b, or to a where there is no b */
} cases[] = {
    {"relu", FUSERUN_OP_RELU, 1, unary_relu, false, 3.0},
    {"relu_dx", FUSERUN_OP_RELU_DX, 2, fuse_reference_relu_dx, true, 1.0},
    {"gelu", FUSERUN_OP_GELU, 1, unary_gelu, false, 16.0},
    {"gelu_dx", FUSERUN_OP_GELU_DX, 2, fuse_reference_gelu_dx, true, 16.0},
    {"tanh", FUSERUN_OP_TANH, 1, unary_tanh, false, 11.0},
    {"tanh_dx", FUSERUN_OP_TANH_DX, 2, fuse_reference_tanh_dx, true, 0.999},
    {"add", FUSERUN_OP_ADD, 2, binary_add, false, 5.0},
    {"copy", FUSERUN_OP_COPY, 1, unary_copy, false, 5.0},
};
#define CASE_COUNT (sizeof(cases) / sizeof(cases[0]))

static struct fuse_op op_of(size_t c, uint32_t flags, int64_t count)
{
    struct fuse_op op = fuse_op_new(cases[c].kind, flags);
    for (int i = 0; i < cases[c].inputs; i++)
        fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 1, count, 0, 0));
    fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT32, 1, count, 0, 0));
    return op;
}

/* Units in the last place of the value, with the smallest subnormals for tiny ones. */
static double ulps(double count, double value)
{
    const double size = fabs(value);
    if (size < (double)FLT_MIN)
        return count * 0x1p-149;
    int exponent;
    frexp(size, &exponent);
    return count * ldexp(1.0, exponent - 24);
}

/* What case c may be off by, where the reference gives `value`. */
static double bound_of(size_t c, double a, double b, double value)
{
    switch (cases[c].kind) {
    case FUSERUN_OP_GELU:
        return ulps(fabs(a) < 1.0 ? 4.0 : 8.0, value) + 1.2e-38;
    case FUSERUN_OP_GELU_DX: /* a sum of two terms, which may cancel; both are at most 1.2 */
        return ulps(2.0, value) + fabs(a) * (4.0 * FUSE_EPS * fmin(1.2, exp(-0.25 * b * b) + (b > 0.0)) + 2e-37);
    case FUSERUN_OP_TANH_DX: /* products of a gradient round once more */
        return ulps(2.0, value) + 2.0 * FUSE_EPS * fabs(a);
    default:
        return ulps(2.0, value);
    }
}

static void check_case(size_t c, int64_t count, uint32_t flags, bool in_place)
{
    const struct fuse_op op = op_of(c, flags, count);
    const size_t bytes = (size_t)count * sizeof(float);
    const bool is_added = (flags & FUSERUN_OP_ACCUMULATE) != 0;
    float *const a = fuse_random_floats(11, count, cases[c].inputs == 1 ? cases[c].size : 1.0);
    float *const b = fuse_random_floats(12, count, cases[c].size);
    float *first = NULL;
    double *const expected = malloc((size_t)count * sizeof(double)), *const bound =
                                                                         malloc((size_t)count * sizeof(double));
    assert_true(expected != NULL && bound != NULL);
    for (int64_t i = 0; i < count; i++) {
        const double value = cases[c].reference((double)a[i], (double)b[i]);
        expected[i] = value + (is_added ? 0.5 : 0.0);
        bound[i] = bound_of(c, (double)a[i], (double)b[i], value) + (is_added ? FUSE_EPS * (fabs(value) + 0.5) : 0.0);
    }
    for (int t = 0; t < fuse_rig_sets(); t++) {
        float *const out = fuse_guarded_new(bytes);
        if (in_place)
            memcpy(out, a, bytes);
        for (int64_t i = 0; i < count && is_added; i++)
            out[i] = 0.5f;
        const void *const inputs[] = {in_place ? out : a, b};
        void *const outputs[] = {out};
        fuse_rig_run(&rigs[t], &op, inputs, outputs, NULL, NULL);
        fuse_assert_close(cases[c].name, count, out, expected, bound);
        if (first != NULL && memcmp(first, out, bytes) != 0)
            fail_msg("%s: %d threads give other bits than 1", cases[c].name, t + 1);
        if (first == NULL)
            first = out;
        else
            fuse_guarded_free(out, bytes);
    }
    fuse_guarded_free(first, bytes);
    fuse_guarded_free(a, bytes);
    fuse_guarded_free(b, bytes);
    free(expected);
    free(bound);
}

static void test_values(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 3, 7, 17, 64, 197, 257, 4099, 100003};
    for (size_t c = 0; c < CASE_COUNT; c++)
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            if (!fuse_is_tried(64 * counts[i]))
                continue;
            check_case(c, counts[i], 0, false);
            check_case(c, counts[i], 0, true);
            if (cases[c].is_gradient)
                check_case(c, counts[i], FUSERUN_OP_ACCUMULATE, false);
        }
}

static float run_one(uint32_t kind, float a, float b)
{
    struct fuse_op op = fuse_op_new(kind, 0);
    const bool is_binary = kind == FUSERUN_OP_RELU_DX || kind == FUSERUN_OP_GELU_DX || kind == FUSERUN_OP_TANH_DX;
    for (int i = 0; i < (is_binary ? 2 : 1); i++)
        fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 0, 0, 0, 0));
    fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT32, 0, 0, 0, 0));
    float out = -1.0f;
    const void *const inputs[] = {&a, &b};
    void *const outputs[] = {&out};
    fuse_rig_run(&rigs[0], &op, inputs, outputs, NULL, NULL);
    return out;
}

/* Every 4,096th float of all, bit pattern by bit pattern: small, large, subnormal. */
static void test_all_magnitudes(void **state)
{
    (void)state;
    const int64_t count = 1 << 20;
    const size_t bytes = (size_t)count * sizeof(float);
    static const size_t unary[] = {2, 4}; /* gelu, tanh */
    float *const a = fuse_guarded_new(bytes), *const out = fuse_guarded_new(bytes);
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        const uint32_t bits = i << 12 | (i * 2654435761u >> 20);
        memcpy(&a[i], &bits, sizeof(bits));
        a[i] = fuse_activation(a[i]);
    }
    for (size_t u = 0; u < 2; u++) {
        const size_t index = unary[u];
        const struct fuse_op op = op_of(index, 0, count);
        const void *const inputs[] = {a};
        void *const outputs[] = {out};
        fuse_rig_run(&rigs[1], &op, inputs, outputs, NULL, NULL);
        for (int64_t i = 0; i < count; i++) {
            const double value = cases[index].reference((double)a[i], 0.0);
            if (!isfinite(a[i]) || fabs(value) > (double)FLT_MAX)
                continue;
            const double bound = bound_of(index, (double)a[i], 0.0, value);
            if (!(fabs((double)out[i] - value) <= fuse_bound_of(out[i], value, bound)))
                fail_msg("%s(%.9g) is %.9g, expected %.9g", cases[index].name, (double)a[i], (double)out[i], value);
        }
    }
    fuse_guarded_free(a, bytes);
    fuse_guarded_free(out, bytes);
}

static void test_special_values(void **state)
{
    (void)state;
    const float inf = (float)INFINITY, nan_value = (float)NAN;
    assert_true(isnan(run_one(FUSERUN_OP_RELU, nan_value, 0.0f)));
    assert_true(isnan(run_one(FUSERUN_OP_GELU, nan_value, 0.0f)));
    assert_true(isnan(run_one(FUSERUN_OP_TANH, nan_value, 0.0f)));
    assert_true(isnan(run_one(FUSERUN_OP_GELU_DX, 1.0f, nan_value)));
    assert_true(isnan(run_one(FUSERUN_OP_TANH_DX, 1.0f, nan_value)));
    assert_true(isnan(run_one(FUSERUN_OP_RELU_DX, nan_value, 1.0f)));
    assert_true(run_one(FUSERUN_OP_RELU, inf, 0.0f) == inf);
    assert_true(run_one(FUSERUN_OP_RELU, -inf, 0.0f) == 0.0f);
    assert_true(run_one(FUSERUN_OP_GELU, inf, 0.0f) == inf);
    assert_true(run_one(FUSERUN_OP_TANH, inf, 0.0f) == 1.0f);
    assert_true(run_one(FUSERUN_OP_TANH, -inf, 0.0f) == -1.0f);
    assert_true(run_one(FUSERUN_OP_TANH, fuse_activation(1e-30f), 0.0f) == fuse_activation(1e-30f));
    assert_true(run_one(FUSERUN_OP_GELU, -200.0f, 0.0f) == 0.0f);
    assert_true(run_one(FUSERUN_OP_GELU_DX, 1.0f, 200.0f) == 1.0f);
    assert_true(run_one(FUSERUN_OP_RELU_DX, 5.0f, 0.0f) == 0.0f);
}

/* Among the first `looked_at` of values (count). */
static int found_nonfinite(struct fuse_rig *rig, float *values, int64_t count, int64_t looked_at)
{
    const size_t bytes = (size_t)count * sizeof(float);
    float *const device = fuse_rig_to_device(rig, values, bytes);
    const int found = rig->backend->has_nonfinite(rig->instance, device, looked_at);
    fuse_rig_from_device(rig, values, device, bytes);
    return found;
}

static void test_has_nonfinite(void **state)
{
    (void)state;
    const int64_t count = 300001;
    float *const values = fuse_random_floats(5, count, 3e38);
    static const int64_t places[] = {0, 1, 15, 4095, 4096, 131071, 299999, 300000};
    for (int t = 0; t < fuse_rig_sets(); t++) {
        struct fuse_rig *const rig = &rigs[t];
        assert_int_equal(found_nonfinite(rig, values, count, count), 0);
        assert_int_equal(found_nonfinite(rig, values, count, 0), 0);
        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
            const float kept = values[places[i]];
            const float bad[] = {(float)NAN, (float)INFINITY, -(float)INFINITY};
            values[places[i]] = bad[i % 3];
            assert_int_not_equal(found_nonfinite(rig, values, count, count), 0);
            assert_int_equal(found_nonfinite(rig, values, count, places[i]), 0);
            values[places[i]] = kept;
        }
    }
    fuse_guarded_free(values, (size_t)count * sizeof(float));
}

static void test_refusals(void **state)
{
    (void)state;
    struct fuse_op op = op_of(6, 0, 5);
    op.inputs[1].shape[0] = 4;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = op_of(0, 0, 5);
    op.outputs[0].shape[0] = 6;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_INTERNAL);
    op = op_of(0, FUSERUN_OP_ACCUMULATE, 5);
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_UNSUPPORTED);
    op = op_of(1, FUSERUN_OP_PANELS, 5);
    assert_int_equal(fuse_rig_compile_status(&rigs[0], &op), FUSERUN_ERROR_UNSUPPORTED);
}

/* Zeroed, aligned, and what was copied in comes out. */
static void test_memory(void **state)
{
    (void)state;
    struct fuse_rig *const rig = &rigs[1];
    static const uint64_t sizes[] = {1, 4096, 4097, 100000, (64u << 20) + 12345u};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *memory = NULL;
        assert_int_equal(rig->backend->allocate(rig->instance, sizes[i], &memory, &rig->error), FUSERUN_OK);
        assert_int_equal((uintptr_t)memory % 256, 0);
        unsigned char *const bytes = memory;
        const unsigned char in = 77;
        unsigned char out = 1, first = 1;
        assert_int_equal(rig->backend->download(rig->instance, &first, bytes, 1, &rig->error), FUSERUN_OK);
        assert_int_equal(rig->backend->download(rig->instance, &out, bytes + sizes[i] - 1, 1, &rig->error), FUSERUN_OK);
        assert_int_equal(first, 0);
        assert_int_equal(out, 0);
        assert_int_equal(rig->backend->upload(rig->instance, bytes + sizes[i] - 1, &in, 1, &rig->error), FUSERUN_OK);
        assert_int_equal(rig->backend->synchronize(rig->instance, &rig->error), FUSERUN_OK);
        assert_int_equal(rig->backend->download(rig->instance, &out, bytes + sizes[i] - 1, 1, &rig->error), FUSERUN_OK);
        assert_int_equal(out, 77);
        rig->backend->release(rig->instance, memory, sizes[i]);
    }
    int marker = 0;
    void *memory = &marker;
    assert_int_equal(rig->backend->allocate(rig->instance, UINT64_MAX - 100, &memory, &rig->error),
                     FUSERUN_ERROR_MEMORY);
    assert_null(memory);
    assert_non_null(strstr(rig->error.text, "18446744073709551515"));
    assert_int_equal(rig->backend->allocate(rig->instance, 1ull << 60, &memory, &rig->error), FUSERUN_ERROR_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),         cmocka_unit_test(test_all_magnitudes),
        cmocka_unit_test(test_special_values), cmocka_unit_test(test_has_nonfinite),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, open_rigs, close_rigs);
}
