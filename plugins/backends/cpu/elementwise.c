/* Ops that look at one element at a time. All may run in place: the loops say so (`omp simd`), where the compiler would
 * have to assume that outputs overlap inputs at an offset. */
#include "bfloat16.h"
#include "float_math.h"
#include "threads.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 64
#define BLOCKS_AHEAD 16
#define LINE_FLOATS 16

struct elementwise {
    struct fuse_kernel kernel;
    fuse_range_body *body;
    int64_t count;
    int64_t serial_count;
    bool is_a_bfloat16, is_b_bfloat16, is_out_bfloat16;
    bool is_unary, accumulate;
};

/* What a loop runs over: (count) each. */
struct operands {
    const float *a;
    const float *b;
    float *out;
};

/* Asks for a block of each from `at` on, if it is there. */
static inline void fetch(const float *a, const float *b, const float *out, int64_t at, int64_t end)
{
    if (at + BLOCK > end)
        return;
    for (int64_t line = at; line < at + BLOCK; line += LINE_FLOATS) {
        __builtin_prefetch(a + line, 0, 3);
        __builtin_prefetch(b + line, 0, 3);
        __builtin_prefetch(out + line, 1, 3);
    }
}

/* NAME over [begin, end), and NAME_add, which adds to what is there. What an earlier op left lies in memory or in
 * another core's caches, farther than the processor looks ahead: so each block asks for the lines a fixed way behind
 * it. */
#define LOOP(name, ...)                                                                                                \
    FUSE_CLONES static void name(const void *context, int64_t begin, int64_t end)                                      \
    {                                                                                                                  \
        const float *const a = ((const struct operands *)context)->a, *const b =                                       \
                                                                          ((const struct operands *)context)->b;       \
        float *const out = ((const struct operands *)context)->out;                                                    \
        (void)b;                                                                                                       \
        for (int64_t block = begin; block < end; block += BLOCK) {                                                     \
            const int64_t stop = block + BLOCK < end ? block + BLOCK : end;                                            \
            fetch(a, b, out, block + BLOCKS_AHEAD * BLOCK, end);                                                       \
            _Pragma("omp simd") for (int64_t i = block; i < stop; i++) out[i] = (__VA_ARGS__);                         \
        }                                                                                                              \
    }
#define LOOPS(name, ...)                                                                                               \
    LOOP(name, __VA_ARGS__)                                                                                            \
    LOOP(name##_add, out[i] + (__VA_ARGS__))

LOOP(relu, a[i] <= 0.0f ? 0.0f : a[i])
LOOPS(relu_dx, b[i] > 0.0f ? a[i] : 0.0f)
LOOP(gelu, fuse_gelu(a[i]))
LOOPS(gelu_dx, a[i] * fuse_gelu_slope(b[i]))
LOOP(tanh_forward, fuse_tanh(a[i]))
LOOPS(tanh_dx, a[i] * (1.0f - b[i] * b[i]))
LOOP(add, a[i] + b[i])

static void copy(const void *context, int64_t begin, int64_t end)
{
    const struct operands *const operands = context;
    if (operands->out != operands->a)
        memcpy(operands->out + begin, operands->a + begin, (size_t)(end - begin) * sizeof(float));
}

/* Threads pay from fewer elements where each costs more. */
static const struct {
    fuse_range_body *body, *body_add;
    int64_t serial_count;
} loops[] = {
    [FUSERUN_OP_RELU] = {relu, NULL, FUSE_SERIAL_ELEMENTS},
    [FUSERUN_OP_RELU_DX] = {relu_dx, relu_dx_add, FUSE_SERIAL_ELEMENTS},
    [FUSERUN_OP_GELU] = {gelu, NULL, FUSE_SERIAL_ELEMENTS / 8},
    [FUSERUN_OP_GELU_DX] = {gelu_dx, gelu_dx_add, FUSE_SERIAL_ELEMENTS / 8},
    [FUSERUN_OP_TANH] = {tanh_forward, NULL, FUSE_SERIAL_ELEMENTS / 8},
    [FUSERUN_OP_TANH_DX] = {tanh_dx, tanh_dx_add, FUSE_SERIAL_ELEMENTS},
    [FUSERUN_OP_ADD] = {add, NULL, FUSE_SERIAL_ELEMENTS},
    [FUSERUN_OP_COPY] = {copy, NULL, FUSE_SERIAL_ELEMENTS},
};

/* One run. */
struct run {
    const struct elementwise *self;
    struct fuse_values a, b, out; /* (count) */
};

static void run_range(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    float a[FUSE_ROOM_FLOATS], b[FUSE_ROOM_FLOATS], out[FUSE_ROOM_FLOATS];
    const int64_t most =
        fuse_values_piece(run->a.is_bfloat16 || run->b.is_bfloat16 || run->out.is_bfloat16, end - begin);
    for (int64_t at = begin; at < end; at += most) {
        const int64_t count = at + most < end ? most : end - at;
        const struct operands operands = {fuse_values_read(run->a, at, count, a),
                                          fuse_values_read(run->b, at, count, b),
                                          fuse_values_target(run->out, at, out)};
        if (run->self->accumulate)
            (void)fuse_values_read(run->out, at, count, out);
        run->self->body(&operands, 0, count);
        fuse_values_write(run->out, at, count, out);
    }
}

static int run(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error)
{
    const struct elementwise *const self = (const struct elementwise *)kernel;
    (void)error;
    const struct fuse_values a = {call->inputs[0], self->is_a_bfloat16};
    const struct run run = {self,
                            a,
                            self->is_unary ? a : (struct fuse_values){call->inputs[1], self->is_b_bfloat16},
                            {call->outputs[0], self->is_out_bfloat16}};
    fuse_threads_split(cpu->thread_count, self->count, 16, self->serial_count, run_range, &run);
    return FUSERUN_OK;
}

static void destroy(struct fuse_kernel *kernel)
{
    free(kernel);
}

int fuse_compile_elementwise(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                             struct fuse_kernel_info *info, struct fuse_error *error)
{
    (void)info;
    struct elementwise *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    self->kernel.run = run;
    self->kernel.destroy = destroy;
    self->is_unary = op->input_count == 1;
    self->is_a_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[0]);
    self->is_b_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[1]);
    self->is_out_bfloat16 = fuse_operand_is_bfloat16(&op->outputs[0]);
    self->accumulate = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    self->body = self->accumulate ? loops[op->kind].body_add : loops[op->kind].body;
    self->count = fuse_operand_count(&op->inputs[0]);
    self->serial_count = loops[op->kind].serial_count;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
