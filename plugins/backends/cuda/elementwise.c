/* Ops that look at one element at a time, dropout among them. */
#include "cuda.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- one element of each input --------------------------------------------------------------------------------- */

struct elementwise {
    struct fuse_kernel kernel;
    void *function;
    const char *name;
    struct fuse_elementwise_arguments arguments;
};

static int run_elementwise(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                           struct fuse_error *error)
{
    const struct elementwise *const self = (const struct elementwise *)kernel;
    struct fuse_elementwise_arguments arguments = self->arguments;
    arguments.a = call->inputs[0];
    arguments.b = call->inputs[1];
    arguments.out = call->outputs[0];
    if (self->function == cuda->kernels.copy && arguments.a == arguments.out)
        return FUSERUN_OK;
    return fuse_cuda_launch(cuda, self->function, self->name, fuse_cuda_blocks(cuda, arguments.count), &arguments,
                            error);
}

static int run_unary(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                     struct fuse_error *error)
{
    void *const inputs[] = {call->inputs[0], NULL};
    struct fuse_kernel_call complete = *call;
    complete.inputs = inputs;
    return run_elementwise(cuda, kernel, &complete, error);
}

static void find_function(const struct fuse_cuda *cuda, uint32_t kind, struct elementwise *self)
{
#define CASE(op, kernel_name)                                                                                          \
    case op:                                                                                                           \
        self->function = cuda->kernels.kernel_name;                                                                    \
        self->name = #kernel_name;                                                                                     \
        break;
    switch (kind) {
        CASE(FUSERUN_OP_RELU, relu)
        CASE(FUSERUN_OP_RELU_DX, relu_dx)
        CASE(FUSERUN_OP_GELU, gelu)
        CASE(FUSERUN_OP_GELU_DX, gelu_dx)
        CASE(FUSERUN_OP_TANH, tanh_forward)
        CASE(FUSERUN_OP_TANH_DX, tanh_dx)
        CASE(FUSERUN_OP_ADD, add)
        CASE(FUSERUN_OP_COPY, copy)
    }
#undef CASE
}

static int compile_plain(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                         struct fuse_error *error)
{
    struct elementwise *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->kernel.run = op->input_count == 1 ? run_unary : run_elementwise;
    find_function(cuda, op->kind, self);
    self->arguments.count = fuse_operand_count(&op->inputs[0]);
    self->arguments.bfloat16 = fuse_cuda_bfloat16_bits(op);
    self->arguments.adds = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}

/* ---- dropout --------------------------------------------------------------------------------------------------- */

struct dropout {
    struct fuse_kernel kernel;
    uint64_t stream;
    struct fuse_dropout_arguments arguments;
};

static int run_dropout(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                       struct fuse_error *error)
{
    const struct dropout *const self = (const struct dropout *)kernel;
    struct fuse_dropout_arguments arguments = self->arguments;
    arguments.x = call->inputs[0];
    arguments.y = call->outputs[0];
    arguments.seed = call->seed;
    arguments.stream = self->stream + call->draw;
    return FUSE_LAUNCH(cuda, dropout, fuse_cuda_blocks(cuda, arguments.count), &arguments, error);
}

static int compile_dropout(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                           struct fuse_error *error)
{
    struct dropout *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->kernel.run = run_dropout;
    self->stream = (uint64_t)op->integers[0];
    self->arguments.count = fuse_operand_count(&op->inputs[0]);
    self->arguments.probability = op->numbers[0];
    self->arguments.bfloat16 = fuse_cuda_bfloat16_bits(op);
    self->arguments.adds = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}

int fuse_compile_elementwise(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                             struct fuse_kernel_info *info, struct fuse_error *error)
{
    (void)info;
    return op->kind == FUSERUN_OP_DROPOUT ? compile_dropout(cuda, op, kernel, error)
                                          : compile_plain(cuda, op, kernel, error);
}
