/* LINEAR and its gradients against the reference, over odd shapes, batches and numbers of threads. */
#include "rig.h"

#include "bfloat16.h"
#include "reference.h"

#include <math.h>
#include <stdio.h>
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

struct shape {
    int64_t batch, n, k;
};

/* The later ones have several panels, of which the last is shorter or not; tiny, narrow and wide ones go other ways.
 * The last ones have few rows, or parts of many that are few, and strips of weights that are copied beside one tile,
 * or none; the very last is what a library makes illegal instructions of in bfloat16. */
static const struct shape shapes[] = {
    {1, 1, 1},       {2, 1, 3},     {1, 3, 7},       {8, 7, 1},       {31, 1, 17},     {3, 17, 64},    {8, 10, 128},
    {32, 128, 64},   {31, 65, 129}, {1, 257, 197},   {31, 197, 257},  {2, 33, 1000},   {7, 1000, 33},  {40, 48, 16},
    {65, 96, 96},    {8, 300, 700}, {1, 300, 700},   {31, 272, 513},  {197, 264, 257}, {5, 24, 70001}, {33, 2048, 64},
    {253, 40, 64},   {757, 20, 30}, {2, 1100, 1030}, {300, 300, 700}, {64, 200, 530},  {48, 300, 33},  {9, 31, 300},
    {100, 40, 3000}, {1, 520, 300}, {20, 40, 15},    {30, 600, 513},  {80, 17, 63},
};
#define SHAPE_COUNT (sizeof(shapes) / sizeof(shapes[0]))

/* One shape's numbers. The count of x is batch * k, and so on. */
struct numbers {
    struct shape s;
    int64_t x_count, w_count, y_count;
    float *x, *w, *b, *dy;
    double *x64, *w64, *b64, *dy64;
};

static void make_numbers(struct numbers *numbers, const struct shape *shape)
{
    *numbers = (struct numbers){.s = *shape,
                                .x_count = shape->batch * shape->k,
                                .w_count = shape->n * shape->k,
                                .y_count = shape->batch * shape->n};
    numbers->x = fuse_random_floats(1, numbers->x_count, 2.0);
    numbers->w = fuse_random_floats(2, numbers->w_count, 0.5);
    numbers->b = fuse_random_floats(3, shape->n, 1.0);
    numbers->dy = fuse_random_floats(4, numbers->y_count, 0.1);
    numbers->x64 = fuse_to_doubles(numbers->x, numbers->x_count);
    numbers->w64 = fuse_to_doubles(numbers->w, numbers->w_count);
    numbers->b64 = fuse_to_doubles(numbers->b, shape->n);
    numbers->dy64 = fuse_to_doubles(numbers->dy, numbers->y_count);
}

static void free_numbers(struct numbers *numbers)
{
    fuse_guarded_free(numbers->x, (size_t)numbers->x_count * sizeof(float));
    fuse_guarded_free(numbers->w, (size_t)numbers->w_count * sizeof(float));
    fuse_guarded_free(numbers->b, (size_t)numbers->s.n * sizeof(float));
    fuse_guarded_free(numbers->dy, (size_t)numbers->y_count * sizeof(float));
    free(numbers->x64);
    free(numbers->w64);
    free(numbers->b64);
    free(numbers->dy64);
}

static double *new_doubles(int64_t count)
{
    double *const values = calloc((size_t)count, sizeof(double));
    assert_non_null(values);
    return values;
}

static float *new_output(int64_t count, float fill)
{
    float *const values = fuse_guarded_new((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count && fill == fill; i++)
        values[i] = fill;
    return values;
}

static struct fuse_operand matrix(int64_t rows, int64_t columns)
{
    return fuse_operand_of(FUSERUN_FLOAT32, 2, rows, columns, 0);
}

static struct fuse_op linear_op(const struct shape *s, bool has_bias)
{
    struct fuse_op op = fuse_op_new(FUSERUN_OP_LINEAR, 0);
    fuse_op_add_input(&op, matrix(s->batch, s->k));
    fuse_op_add_input(&op, matrix(s->n, s->k));
    if (has_bias)
        fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 1, s->n, 0, 0));
    fuse_op_add_output(&op, matrix(s->batch, s->n));
    return op;
}

static struct fuse_op dx_op(const struct shape *s, uint32_t flags)
{
    struct fuse_op op = fuse_op_new(FUSERUN_OP_LINEAR_DX, flags);
    fuse_op_add_input(&op, matrix(s->batch, s->n));
    fuse_op_add_input(&op, matrix(s->n, s->k));
    fuse_op_add_output(&op, matrix(s->batch, s->k));
    return op;
}

static struct fuse_op dw_op(const struct shape *s, uint32_t flags)
{
    struct fuse_op op = fuse_op_new(FUSERUN_OP_LINEAR_DW, flags);
    fuse_op_add_input(&op, matrix(s->batch, s->n));
    fuse_op_add_input(&op, matrix(s->batch, s->k));
    fuse_op_add_output(&op, matrix(s->n, s->k));
    return op;
}

static struct fuse_op db_op(const struct shape *s, uint32_t flags)
{
    struct fuse_op op = fuse_op_new(FUSERUN_OP_LINEAR_DB, flags);
    fuse_op_add_input(&op, matrix(s->batch, s->n));
    fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT32, 1, s->n, 0, 0));
    return op;
}

/* Runs with every number of threads, on outputs filled with `fill` (NaN: left as NaN), and compares with the reference
 * plus what was there; must_equal: the same bits for every number of threads. */
static void check(const char *what, const struct fuse_op *op, const void *const *inputs, int64_t count,
                  const double *expected, const double *bound, float fill, bool must_equal)
{
    float *first = NULL;
    double *const sum = new_doubles(count);
    for (int64_t i = 0; i < count; i++)
        sum[i] = expected[i] + (fill == fill ? (double)fill : 0.0);
    for (int t = 0; t < fuse_rig_sets(); t++) {
        float *const out = new_output(count, fill);
        void *const outputs[] = {out};
        fuse_rig_run(&rigs[t], op, inputs, outputs, NULL, NULL);
        fuse_assert_close(what, count, out, sum, bound);
        if (must_equal && first != NULL && memcmp(first, out, (size_t)count * sizeof(float)) != 0)
            fail_msg("%s: %d threads give other bits than 1", what, t + 1);
        if (first == NULL)
            first = out;
        else
            fuse_guarded_free(out, (size_t)count * sizeof(float));
    }
    fuse_guarded_free(first, (size_t)count * sizeof(float));
    free(sum);
}

#define NOT_FILLED ((float)(0.0f / zero))
static volatile float zero = 0.0f;

static void test_forward(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct shape *const s = &shapes[i];
        struct numbers numbers;
        if (!fuse_is_tried(s->batch * s->n * s->k))
            continue;
        make_numbers(&numbers, s);
        for (int bias = 0; bias < 3; bias++) { /* none, declared but NULL, there */
            const struct fuse_op op = linear_op(s, bias > 0);
            const void *const inputs[] = {numbers.x, numbers.w, bias == 2 ? numbers.b : NULL};
            double *const y = new_doubles(numbers.y_count), *const bound = new_doubles(numbers.y_count);
            fuse_reference_linear(s->batch, s->n, s->k, numbers.x64, numbers.w64, bias == 2 ? numbers.b64 : NULL, y,
                                  bound);
            fuse_bound_from_magnitude(numbers.y_count, bound, s->k + 1);
            check("linear", &op, inputs, numbers.y_count, y, bound, NOT_FILLED, false);
            free(y);
            free(bound);
        }
        free_numbers(&numbers);
    }
}

static void test_input_gradient(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct shape *const s = &shapes[i];
        struct numbers numbers;
        if (!fuse_is_tried(s->batch * s->n * s->k))
            continue;
        make_numbers(&numbers, s);
        double *const dx = new_doubles(numbers.x_count), *const bound = new_doubles(numbers.x_count);
        const void *const inputs[] = {numbers.dy, numbers.w};
        fuse_reference_linear_dx(s->batch, s->n, s->k, numbers.dy64, numbers.w64, dx, bound);
        for (int64_t j = 0; j < numbers.x_count; j++)
            bound[j] += 1.5;
        fuse_bound_from_magnitude(numbers.x_count, bound, s->n + 1);
        const struct fuse_op op = dx_op(s, 0), op_add = dx_op(s, FUSERUN_OP_ACCUMULATE);
        check("linear_dx added", &op_add, inputs, numbers.x_count, dx, bound, 1.5f, false);
        fuse_reference_linear_dx(s->batch, s->n, s->k, numbers.dy64, numbers.w64, dx, bound);
        fuse_bound_from_magnitude(numbers.x_count, bound, s->n);
        check("linear_dx", &op, inputs, numbers.x_count, dx, bound, NOT_FILLED, false);
        free(dx);
        free(bound);
        free_numbers(&numbers);
    }
}

/* Collects panels into a whole gradient. */
struct collector {
    float *whole; /* (n, k) */
    int64_t n, k;
    int seen[4096], asked[4096]; /* by first row */
};

/* Memory beside the panel: rows of the whole gradient, and none; once the panel was handed over it is too late. */
static uint32_t tell(void *user, int64_t row_begin, int64_t row_end, struct fuse_span *spans)
{
    struct collector *const self = user;
    assert_true(row_begin >= 0 && row_end > row_begin && row_end <= self->n);
    assert_int_equal(__atomic_load_n(&self->seen[row_begin % 4096], __ATOMIC_RELAXED), 0);
    __atomic_add_fetch(&self->asked[row_begin % 4096], 1, __ATOMIC_RELAXED);
    for (int i = 0; i < FUSERUN_MAX_SPANS; i++)
        spans[i] = (struct fuse_span){self->whole + row_begin * self->k,
                                      i == 3 ? 0 : (uint64_t)((row_end - row_begin) * self->k) * sizeof(float)};
    return FUSERUN_MAX_SPANS;
}

static void collect(void *user, int64_t row_begin, int64_t row_end, float *gradient)
{
    struct collector *const self = user;
    memcpy(self->whole + row_begin * self->k, gradient, (size_t)((row_end - row_begin) * self->k) * sizeof(float));
    __atomic_add_fetch(&self->seen[row_begin % 4096], 1, __ATOMIC_RELAXED);
    memset(gradient, 0xff, (size_t)((row_end - row_begin) * self->k) * sizeof(float)); /* it is ours to spoil */
}

/* op: LINEAR_DW or its sum over micro-batches, with panels. */
static void check_panels(const struct shape *s, struct fuse_op op, const void *const *inputs, const float *whole)
{
    static struct collector collector;
    const size_t bytes = (size_t)(s->n * s->k) * sizeof(float);
    op.flags = FUSERUN_OP_PANELS;
    for (int t = 0; t < fuse_rig_sets(); t++) {
        struct fuse_kernel_info info;
        fuse_rig_info(&rigs[t], &op, &info);
        const size_t panel_bytes = ((size_t)(info.panel_rows * s->k) * sizeof(float) + 63) / 64 * 64;
        const size_t scratch_bytes =
            info.panel_count > rigs[t].worker_count ? panel_bytes * rigs[t].worker_count : bytes;
        assert_int_equal(info.panel_count, (s->n + info.panel_rows - 1) / info.panel_rows);
        collector = (struct collector){.whole = fuse_guarded_new(bytes), .n = s->n, .k = s->k};
        void *const scratch = fuse_guarded_new(scratch_bytes);
        void *const outputs[] = {scratch};
        const struct fuse_panel_hook hook = {collect, &collector};
        rigs[t].panel_spans = tell;
        fuse_rig_run(&rigs[t], &op, inputs, outputs, NULL, &hook);
        rigs[t].panel_spans = NULL;
        fuse_guarded_free(scratch, scratch_bytes);
        int panels = 0, asked = 0;
        for (size_t i = 0; i < sizeof(collector.seen) / sizeof(collector.seen[0]); i++) {
            panels += collector.seen[i];
            asked += collector.asked[i];
            assert_true(collector.asked[i] == 0 || collector.asked[i] == collector.seen[i]);
        }
        assert_int_equal(panels, info.panel_count);
        assert_true(asked == 0 || asked == panels); /* who does not fetch does not ask */
        if (memcmp(collector.whole, whole, bytes) != 0)
            fail_msg("op %u (%lld, %lld, %lld): panels on %d threads give other bits than the whole", op.kind,
                     (long long)s->batch, (long long)s->n, (long long)s->k, t + 1);
        fuse_guarded_free(collector.whole, bytes);
    }
}

static void test_weight_gradient(void **state)
{
    (void)state;
    int many = 0;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        const struct shape *const s = &shapes[i];
        struct numbers numbers;
        if (!fuse_is_tried(s->batch * s->n * s->k))
            continue;
        make_numbers(&numbers, s);
        double *const dw = new_doubles(numbers.w_count), *const bound = new_doubles(numbers.w_count);
        const void *const inputs[] = {numbers.dy, numbers.x};
        fuse_reference_linear_dw(s->batch, s->n, s->k, numbers.dy64, numbers.x64, dw, bound);
        for (int64_t j = 0; j < numbers.w_count; j++)
            bound[j] += 0.25;
        fuse_bound_from_magnitude(numbers.w_count, bound, s->batch + 1);
        const struct fuse_op op = dw_op(s, 0), op_add = dw_op(s, FUSERUN_OP_ACCUMULATE);
        check("linear_dw added", &op_add, inputs, numbers.w_count, dw, bound, -0.25f, true);
        fuse_reference_linear_dw(s->batch, s->n, s->k, numbers.dy64, numbers.x64, dw, bound);
        fuse_bound_from_magnitude(numbers.w_count, bound, s->batch);
        check("linear_dw", &op, inputs, numbers.w_count, dw, bound, NOT_FILLED, true);

        float *const whole = new_output(numbers.w_count, NOT_FILLED);
        void *const outputs[] = {whole};
        struct fuse_kernel_info info;
        fuse_rig_info(&rigs[1], &op, &info);
        many += info.panel_count > 1;
        fuse_rig_run(&rigs[1], &op, inputs, outputs, NULL, NULL);
        check_panels(s, op, inputs, whole);
        fuse_guarded_free(whole, (size_t)numbers.w_count * sizeof(float));
        free(dw);
        free(bound);
        free_numbers(&numbers);
    }
    assert_true(many >= (fuse_rig_is_device(&rigs[0]) ? 1 : 4)); /* else this tests no panels */
}

static struct fuse_op dw_sum_op(const struct shape *s, int64_t rows, int64_t count)
{
    struct fuse_op op = dw_op(s, 0);
    op.kind = FUSERUN_OP_LINEAR_DW_SUM;
    op.integers[0] = rows;
    fuse_op_add_input(&op, matrix(rows * count, s->n));
    fuse_op_add_input(&op, matrix(rows * count, s->k));
    return op;
}

/* Threads pack parts of x for each other, or for themselves where another is still at it: which depends on their
 * speeds, so a gradient of many panels, one strip wide and several blocks deep, is made many times by more threads than
 * there are cores. */
static void test_weight_gradient_many_times(void **state)
{
    (void)state;
    static const struct shape hard[] = {{600, 512, 32}, {70, 2048, 65}};
    for (size_t i = 0; i < sizeof(hard) / sizeof(hard[0]) && !fuse_rig_is_device(&rigs[0]); i++) {
        struct numbers numbers;
        make_numbers(&numbers, &hard[i]);
        const void *const inputs[] = {numbers.dy, numbers.x};
        float *const once = new_output(numbers.w_count, NOT_FILLED);
        float *const again = new_output(numbers.w_count, NOT_FILLED);
        const struct fuse_op op = dw_op(&hard[i], 0);
        struct fuse_rig many;
        fuse_rig_open(&many, 7);
        fuse_rig_run(&rigs[0], &op, inputs, (void *[]){once}, NULL, NULL);
        for (int turn = 0; turn < 100; turn++) {
            memset(again, 0xff, (size_t)numbers.w_count * sizeof(float));
            fuse_rig_run(&many, &op, inputs, (void *[]){again}, NULL, NULL);
            if (memcmp(once, again, (size_t)numbers.w_count * sizeof(float)) != 0)
                fail_msg("(%lld, %lld, %lld): turn %d on 7 threads gives other bits than 1", (long long)hard[i].batch,
                         (long long)hard[i].n, (long long)hard[i].k, turn);
        }
        fuse_rig_close(&many);
        fuse_guarded_free(once, (size_t)numbers.w_count * sizeof(float));
        fuse_guarded_free(again, (size_t)numbers.w_count * sizeof(float));
        free_numbers(&numbers);
    }
}

/* The sum over micro-batches has the bits of one LINEAR_DW after another, the last micro-batch as long or shorter. */
static void test_weight_gradient_over_micro_batches(void **state)
{
    (void)state;
    static const struct {
        struct shape last;
        int64_t rows, count;
    } cases[] = {{{1, 1, 1}, 1, 1},     {{3, 17, 64}, 3, 2},     {{2, 300, 700}, 8, 3},
                 {{8, 300, 700}, 8, 1}, {{1, 2048, 64}, 197, 2}, {{31, 272, 513}, 31, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct shape *const s = &cases[i].last;
        const struct shape earlier = {cases[i].rows, s->n, s->k};
        const int64_t all = cases[i].rows * cases[i].count, w_count = s->n * s->k;
        struct numbers numbers;
        if (!fuse_is_tried((all + s->batch) * w_count))
            continue;
        make_numbers(&numbers, s);
        float *const dy = fuse_random_floats(8, all * s->n, 0.1), *const x = fuse_random_floats(9, all * s->k, 2.0);
        float *const expected = new_output(w_count, NOT_FILLED), *const sum = new_output(w_count, NOT_FILLED);
        void *const outputs[] = {expected}, *const sum_outputs[] = {sum};
        for (int64_t m = 0; m <= cases[i].count; m++) {
            const struct fuse_op one = dw_op(m < cases[i].count ? &earlier : s, m > 0 ? FUSERUN_OP_ACCUMULATE : 0);
            const void *const inputs[] = {m < cases[i].count ? dy + m * cases[i].rows * s->n : numbers.dy,
                                          m < cases[i].count ? x + m * cases[i].rows * s->k : numbers.x};
            fuse_rig_run(&rigs[0], &one, inputs, outputs, NULL, NULL);
        }
        const struct fuse_op op = dw_sum_op(s, cases[i].rows, cases[i].count);
        const void *const inputs[] = {numbers.dy, numbers.x, dy, x};
        fuse_rig_run(&rigs[1], &op, inputs, sum_outputs, NULL, NULL);
        assert_memory_equal(sum, expected, (size_t)w_count * sizeof(float));
        check_panels(s, op, inputs, expected);
        fuse_guarded_free(sum, (size_t)w_count * sizeof(float));
        fuse_guarded_free(expected, (size_t)w_count * sizeof(float));
        fuse_guarded_free(dy, (size_t)(all * s->n) * sizeof(float));
        fuse_guarded_free(x, (size_t)(all * s->k) * sizeof(float));
        free_numbers(&numbers);
    }
}

/* Panels depend on the weight's shape alone, and a small weight is one. */
static void test_panel_sizes(void **state)
{
    (void)state;
    struct fuse_kernel_info a, b;
    const struct fuse_op one = dw_op(&(struct shape){1, 4096, 1024}, 0);
    const struct fuse_op batch = dw_op(&(struct shape){197, 4096, 1024}, FUSERUN_OP_PANELS);
    fuse_rig_info(&rigs[0], &one, &a);
    fuse_rig_info(&rigs[2], &batch, &b);
    assert_int_equal(a.panel_rows, b.panel_rows);
    assert_int_equal(a.panel_count, b.panel_count);
    if (!fuse_rig_is_device(&rigs[0])) /* a core's cache */
        assert_in_range((uintmax_t)(a.panel_rows * 1024 * 4), 256 << 10, 1 << 20);
    const struct fuse_op wide = dw_op(&(struct shape){32, 1024, 4096}, 0);
    fuse_rig_info(&rigs[2], &wide, &a);
    if (!fuse_rig_is_device(&rigs[0]))
        assert_in_range((uintmax_t)(a.panel_rows * 4096 * 4), 1 << 20, 2 << 20);
    const struct fuse_op small = dw_op(&(struct shape){32, 128, 64}, 0);
    fuse_rig_info(&rigs[2], &small, &a);
    assert_int_equal(a.panel_count, 1);
    assert_int_equal(a.panel_rows, 128);
}

static void test_bias_gradient(void **state)
{
    (void)state;
    static const struct shape extra[] = {{3000, 300, 1}, {5000, 3, 1}, {1, 5000, 1}};
    for (size_t i = 0; i < SHAPE_COUNT + 3; i++) {
        const struct shape *const s = i < SHAPE_COUNT ? &shapes[i] : &extra[i - SHAPE_COUNT];
        struct numbers numbers;
        if (!fuse_is_tried(s->batch * s->n * s->k))
            continue;
        make_numbers(&numbers, s);
        double *const db = new_doubles(s->n), *const bound = new_doubles(s->n);
        const void *const inputs[] = {numbers.dy};
        fuse_reference_linear_db(s->batch, s->n, numbers.dy64, db, bound);
        for (int64_t j = 0; j < s->n; j++) /* summed in double: one rounding, whatever the batch */
            bound[j] = FUSE_EPS * (1.0 + bound[j]);
        const struct fuse_op op = db_op(s, 0), op_add = db_op(s, FUSERUN_OP_ACCUMULATE);
        check("linear_db", &op, inputs, s->n, db, bound, NOT_FILLED, true);
        check("linear_db added", &op_add, inputs, s->n, db, bound, 0.75f, true);
        free(db);
        free(bound);
        free_numbers(&numbers);
    }
}

/* A leading dimension counts as rows: (2, 3, k) is (6, k). */
static void test_leading_dimensions(void **state)
{
    (void)state;
    float x[6 * 5], w[4 * 5], y[6 * 4];
    double x64[6 * 5], w64[4 * 5], y64[6 * 4], bound[6 * 4];
    for (int i = 0; i < 30; i++)
        x64[i] = (double)(x[i] = (float)(i % 7) - 3.0f);
    for (int i = 0; i < 20; i++)
        w64[i] = (double)(w[i] = (float)(i % 5) - 2.0f);
    struct fuse_op op = fuse_op_new(FUSERUN_OP_LINEAR, 0);
    fuse_op_add_input(&op, fuse_operand_of(FUSERUN_FLOAT32, 3, 2, 3, 5));
    fuse_op_add_input(&op, matrix(4, 5));
    fuse_op_add_output(&op, fuse_operand_of(FUSERUN_FLOAT32, 3, 2, 3, 4));
    const void *const inputs[] = {x, w};
    void *const outputs[] = {y};
    fuse_rig_run(&rigs[1], &op, inputs, outputs, NULL, NULL);
    fuse_reference_linear(6, 4, 5, x64, w64, NULL, y64, bound);
    fuse_bound_from_magnitude(24, bound, 5);
    fuse_assert_close("linear (2, 3, 5)", 24, y, y64, bound);
}

/* A product in bfloat16 rounds what is float32, each number once: weights, and a first layer's inputs. */
static void test_operands_are_rounded(void **state)
{
    (void)state;
    static const struct shape few[] = {{1, 5, 9}, {3, 16, 40}, {70, 33, 65}, {300, 70, 300}};
    if (!fuse_is_bfloat16_test()) {
        print_message("about bfloat16, and this run is of float32\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(few) / sizeof(few[0]); i++) {
        struct numbers n;
        make_numbers(&n, &few[i]);
        for (int64_t j = 0; j < n.w_count; j++) { /* past the middle, below, ties that go up and down */
            const float size = 1.0f + (float)(j % 128) / 128.0f;
            const float parts[] = {0.3f, 0.7f, 0.5f, -0.5f, -0.25f};
            n.w[j] = size + parts[j % 5] / 128.0f;
            n.w64[j] = (double)fuse_activation(n.w[j]);
        }
        double *const y = new_doubles(n.y_count), *const bound = new_doubles(n.y_count);
        double *const dx = new_doubles(n.x_count), *const dx_bound = new_doubles(n.x_count);
        const struct fuse_op op = linear_op(&few[i], false), back = dx_op(&few[i], 0);
        fuse_reference_linear(n.s.batch, n.s.n, n.s.k, n.x64, n.w64, NULL, y, bound);
        fuse_bound_from_magnitude(n.y_count, bound, n.s.k);
        check("linear", &op, (const void *const[]){n.x, n.w}, n.y_count, y, bound, NOT_FILLED, false);
        fuse_reference_linear_dx(n.s.batch, n.s.n, n.s.k, n.dy64, n.w64, dx, dx_bound);
        fuse_bound_from_magnitude(n.x_count, dx_bound, n.s.n);
        check("linear_dx", &back, (const void *const[]){n.dy, n.w}, n.x_count, dx, dx_bound, NOT_FILLED, false);
        free(y);
        free(bound);
        free(dx);
        free(dx_bound);
        free_numbers(&n);
    }
}

/* A device rounds at most 4 Mi numbers at a time, but 64 rows or columns: these are more, one way or the other. Sizes
 * decide which operands are in bfloat16. */
static void test_tiles(void **state)
{
    (void)state;
    static const struct shape large[] = {{2, 66, 70000}, {66, 70000, 1}, {68, 2, 70001}};
    static const struct shape long_sums[] = {{70000, 67, 2}, {70000, 2, 67}};
    if (!fuse_is_bfloat16_test() || !fuse_rig_is_device(&rigs[0])) {
        print_message("about bfloat16 on a device, which this run is not of\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        struct numbers n;
        make_numbers(&n, &large[i]);
        double *const y = new_doubles(n.y_count), *const bound = new_doubles(n.y_count);
        double *const dx = new_doubles(n.x_count), *const dx_bound = new_doubles(n.x_count);
        const struct fuse_op op = linear_op(&large[i], true), back = dx_op(&large[i], 0);
        fuse_reference_linear(n.s.batch, n.s.n, n.s.k, n.x64, n.w64, n.b64, y, bound);
        fuse_bound_from_magnitude(n.y_count, bound, n.s.k);
        check("linear", &op, (const void *const[]){n.x, n.w, n.b}, n.y_count, y, bound, NOT_FILLED, false);
        fuse_reference_linear_dx(n.s.batch, n.s.n, n.s.k, n.dy64, n.w64, dx, dx_bound);
        fuse_bound_from_magnitude(n.x_count, dx_bound, n.s.n);
        check("linear_dx", &back, (const void *const[]){n.dy, n.w}, n.x_count, dx, dx_bound, NOT_FILLED, false);
        free(y);
        free(bound);
        free(dx);
        free(dx_bound);
        free_numbers(&n);
    }
    for (size_t i = 0; i < sizeof(long_sums) / sizeof(long_sums[0]); i++) {
        struct numbers n;
        make_numbers(&n, &long_sums[i]);
        double *const dw = new_doubles(n.w_count), *const bound = new_doubles(n.w_count);
        const struct fuse_op op = dw_op(&long_sums[i], 0);
        fuse_reference_linear_dw(n.s.batch, n.s.n, n.s.k, n.dy64, n.x64, dw, bound);
        fuse_bound_from_magnitude(n.w_count, bound, n.s.batch);
        check("linear_dw", &op, (const void *const[]){n.dy, n.x}, n.w_count, dw, bound, NOT_FILLED, false);
        free(dw);
        free(bound);
        free_numbers(&n);
    }
}

/* Infinities and NaN get through; what is larger than bfloat16's largest number becomes infinite. */
static void test_special_operands(void **state)
{
    (void)state;
    const float inf = (float)INFINITY, large = 3.4e38f;
    uint32_t bits = 0x7f800001u; /* a NaN that cutting off would make infinite */
    float signalling, y[4];
    memcpy(&signalling, &bits, sizeof(signalling));
    const float x[] = {1.0f}, w[] = {inf, -inf, signalling, large};
    const struct fuse_op op = linear_op(&(struct shape){1, 4, 1}, false);
    const void *const inputs[] = {x, w};
    void *const outputs[] = {y};
    fuse_rig_run(&rigs[0], &op, inputs, outputs, NULL, NULL);
    assert_true(y[0] == inf && y[1] == -inf && isnan(y[2]));
    assert_true(y[3] == (fuse_is_bfloat16_test() ? inf : large));
}

static void expect_refusal(const struct fuse_op *op, int code, const char *text)
{
    rigs[0].error = (struct fuse_error)FUSE_ERROR_INIT;
    assert_int_equal(fuse_rig_compile_status(&rigs[0], op), code);
    assert_int_equal(rigs[0].error.code, code);
    if (strstr(rigs[0].error.text, text) == NULL)
        fail_msg("the message lacks '%s': %s", text, rigs[0].error.text);
}

static void test_refusals(void **state)
{
    (void)state;
    const struct shape s = {4, 3, 2};
    struct fuse_op op = linear_op(&s, true);
    op.inputs[1].shape[1] = 5;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "op linear: the shapes do not fit");
    op = linear_op(&s, true);
    op.inputs[2].shape[0] = 5;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "the shapes do not fit");
    op = linear_op(&s, false);
    op.outputs[0].shape[0] = 5;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "the shapes do not fit");
    op = linear_op(&s, false);
    op.inputs[0].shape[0] = 0;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "dimension 0 of input 0 is 0");
    op = linear_op(&s, false);
    op.inputs[0].rank = FUSERUN_MAX_DIMS + 1;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "dimensions");
    op = linear_op(&s, false);
    op.inputs[0].shape[0] = op.outputs[0].shape[0] = INT64_MAX / 4;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "dimension");
    op = linear_op(&s, false);
    op.inputs[1].dtype = FUSERUN_BFLOAT16;
    expect_refusal(&op, FUSERUN_ERROR_UNSUPPORTED, "dtype");
    op = linear_op(&s, false);
    op.flags = FUSERUN_OP_ACCUMULATE;
    expect_refusal(&op, FUSERUN_ERROR_UNSUPPORTED, "flags");
    op = linear_op(&s, false);
    op.input_count = 1;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "1 inputs");
    op.kind = 999;
    expect_refusal(&op, FUSERUN_ERROR_UNSUPPORTED, "op 999");
    op = dw_op(&s, FUSERUN_OP_ACCUMULATE | FUSERUN_OP_PANELS);
    expect_refusal(&op, FUSERUN_ERROR_UNSUPPORTED, "flags");
    op = dw_op(&s, 0);
    op.inputs[1].shape[0] = 9;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "the shapes do not fit");
    op = dw_sum_op(&s, 4, 3);
    op.integers[0] = 5; /* does not divide 12 */
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "the shapes do not fit");
    op.integers[0] = 0;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "the shapes do not fit");
    op = db_op(&s, 0);
    op.outputs[0].shape[0] = 9;
    expect_refusal(&op, FUSERUN_ERROR_INTERNAL, "the shapes do not fit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_input_gradient),
        cmocka_unit_test(test_weight_gradient),
        cmocka_unit_test(test_weight_gradient_many_times),
        cmocka_unit_test(test_weight_gradient_over_micro_batches),
        cmocka_unit_test(test_panel_sizes),
        cmocka_unit_test(test_bias_gradient),
        cmocka_unit_test(test_leading_dimensions),
        cmocka_unit_test(test_operands_are_rounded),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_special_operands),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_rigs, close_rigs);
}
