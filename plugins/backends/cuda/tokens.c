/* Images as sequences: patches, the class token, positions, and picking one token. */
#include "cuda.h"

#include <stdlib.h>

struct tokens {
    struct fuse_kernel kernel;
    void *function;
    const char *name;
    bool has_second;
    struct fuse_tokens_arguments arguments;
};

static int run(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error)
{
    const struct tokens *const self = (const struct tokens *)kernel;
    struct fuse_tokens_arguments arguments = self->arguments;
    arguments.a = call->inputs[0];
    arguments.b = self->has_second ? call->inputs[1] : NULL;
    arguments.out = call->outputs[0];
    return fuse_cuda_launch(cuda, self->function, self->name, fuse_cuda_blocks(cuda, arguments.count), &arguments,
                            error);
}

/* Positions are added as a bias is. */
static int run_add_batch(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                         struct fuse_error *error)
{
    const struct tokens *const self = (const struct tokens *)kernel;
    const struct fuse_elementwise_arguments arguments = {.a = call->inputs[0],
                                                         .b = call->inputs[1],
                                                         .out = call->outputs[0],
                                                         .count = self->arguments.count,
                                                         .period = self->arguments.width,
                                                         .bfloat16 = self->arguments.bfloat16};
    return FUSE_LAUNCH(cuda, add_period, fuse_cuda_blocks(cuda, arguments.count), &arguments, error);
}

static void measure_sequence(struct fuse_tokens_arguments *arguments, const struct fuse_operand *longer)
{
    arguments->batch = longer->shape[0];
    arguments->tokens = longer->shape[1];
    arguments->width = longer->shape[2];
}

static void measure_patches(struct fuse_tokens_arguments *arguments, const struct fuse_op *op)
{
    const struct fuse_operand *const x = &op->inputs[0];
    measure_sequence(arguments, &op->outputs[0]);
    arguments->channels = x->shape[1];
    arguments->image_rows = x->shape[2];
    arguments->image_columns = x->shape[3];
    arguments->patch = op->integers[0];
}

#define USE(kernel_name) (self->function = cuda->kernels.kernel_name, self->name = #kernel_name)

int fuse_compile_tokens(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                        struct fuse_kernel_info *info, struct fuse_error *error)
{
    (void)info;
    struct tokens *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    struct fuse_tokens_arguments *const arguments = &self->arguments;
    self->kernel.run = run;
    self->has_second = op->input_count > 1;
    arguments->count = fuse_operand_count(&op->outputs[0]);
    arguments->bfloat16 = fuse_cuda_bfloat16_bits(op);
    arguments->adds = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    switch (op->kind) {
    case FUSERUN_OP_PATCHES:
        USE(patches);
        measure_patches(arguments, op);
        break;
    case FUSERUN_OP_PREPEND:
        USE(prepend);
        measure_sequence(arguments, &op->outputs[0]);
        break;
    case FUSERUN_OP_PREPEND_DX:
        USE(prepend_dx);
        measure_sequence(arguments, &op->inputs[0]);
        break;
    case FUSERUN_OP_SELECT:
        USE(select_token);
        measure_sequence(arguments, &op->inputs[0]);
        arguments->index = op->integers[0];
        break;
    case FUSERUN_OP_SELECT_DX:
        USE(select_dx);
        measure_sequence(arguments, &op->outputs[0]);
        arguments->index = op->integers[0];
        break;
    default:
        self->kernel.run = run_add_batch;
        arguments->width = fuse_operand_count(&op->inputs[1]);
    }
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
