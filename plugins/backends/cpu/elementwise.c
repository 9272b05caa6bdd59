/* Ops that look at one element at a time. All may run in place: the loops say so (`omp simd`), where the compiler would
 * have to assume that outputs overlap inputs at an offset. */
#include "cpu.h"
#include "float_math.h"
#include "threads.h"

#include <stdlib.h>
#include <string.h>

struct elementwise {
    struct fuse_kernel kernel;
    fuse_range_body *body;
    int64_t count;
    int64_t serial_count;
};

/* One run's pointers: (count) each. */
struct operands {
    const float *a;
    const float *b;
    float *out;
};

/* NAME over [begin, end), and NAME_add, which adds to what is there. */
#define LOOP(name, ...)                                                                                                \
    FUSE_CLONES static void name(const void *context, int64_t begin, int64_t end)                                      \
    {                                                                                                                  \
        const float *const a = ((const struct operands *)context)->a, *const b =                                       \
                                                                          ((const struct operands *)context)->b;       \
        float *const out = ((const struct operands *)context)->out;                                                    \
        (void)a, (void)b;                                                                                              \
        _Pragma("omp simd") for (int64_t i = begin; i < end; i++) out[i] = (__VA_ARGS__);                              \
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

static int run(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error)
{
    const struct elementwise *const self = (const struct elementwise *)kernel;
    (void)error;
    const struct operands operands = {call->inputs[0], call->inputs[1], call->outputs[0]};
    fuse_threads_split(cpu->thread_count, self->count, 16, self->serial_count, self->body, &operands);
    return FUSERUN_OK;
}

static int run_unary(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                     struct fuse_error *error)
{
    const struct elementwise *const self = (const struct elementwise *)kernel;
    (void)error;
    const struct operands operands = {call->inputs[0], NULL, call->outputs[0]};
    fuse_threads_split(cpu->thread_count, self->count, 16, self->serial_count, self->body, &operands);
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
    for (uint32_t i = 1; i < op->input_count; i++)
        if (!fuse_op_same_shape(&op->inputs[0], &op->inputs[i]))
            return fuse_op_mismatch(cpu, op, "all inputs have the same shape", error);
    if (!fuse_op_same_shape(&op->inputs[0], &op->outputs[0]))
        return fuse_op_mismatch(cpu, op, "the output has the inputs' shape", error);
    struct elementwise *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return cpu->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for an op (%zu bytes)", sizeof(*self));
    self->kernel.run = op->input_count == 1 ? run_unary : run;
    self->kernel.destroy = destroy;
    self->body = (op->flags & FUSERUN_OP_ACCUMULATE) != 0 ? loops[op->kind].body_add : loops[op->kind].body;
    self->count = fuse_operand_rows(&op->inputs[0]) * fuse_operand_columns(&op->inputs[0]);
    self->serial_count = loops[op->kind].serial_count;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
