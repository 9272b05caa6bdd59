/* Layer normalization and its gradients; the bias's is LINEAR_DB. */
#include "cuda.h"

#include <stdlib.h>

struct layer_norm {
    struct fuse_kernel kernel;
    int64_t rows, columns;
    double eps;
    int bfloat16;
    bool adds;
};

static int run_forward(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                       struct fuse_error *error)
{
    const struct layer_norm *const self = (const struct layer_norm *)kernel;
    const struct fuse_layer_norm_arguments arguments = {.x = call->inputs[0],
                                                        .w = call->inputs[1],
                                                        .b = call->inputs[2],
                                                        .out = call->outputs[0],
                                                        .mean = call->outputs[1],
                                                        .rstd = call->outputs[2],
                                                        .rows = self->rows,
                                                        .columns = self->columns,
                                                        .eps = self->eps,
                                                        .bfloat16 = self->bfloat16};
    return FUSE_LAUNCH(cuda, layer_norm, self->rows, &arguments, error);
}

static int run_input_gradient(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                              struct fuse_error *error)
{
    const struct layer_norm *const self = (const struct layer_norm *)kernel;
    const struct fuse_layer_norm_arguments arguments = {.dy = call->inputs[0],
                                                        .x = call->inputs[1],
                                                        .w = call->inputs[2],
                                                        .mean = call->inputs[3],
                                                        .rstd = call->inputs[4],
                                                        .out = call->outputs[0],
                                                        .rows = self->rows,
                                                        .columns = self->columns,
                                                        .bfloat16 = self->bfloat16,
                                                        .adds = self->adds};
    return FUSE_LAUNCH(cuda, layer_norm_dx, self->rows, &arguments, error);
}

static int run_weight_gradient(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                               struct fuse_error *error)
{
    const struct layer_norm *const self = (const struct layer_norm *)kernel;
    const struct fuse_columns_arguments arguments = {.rows = call->inputs[0],
                                                     .x = call->inputs[1],
                                                     .mean = call->inputs[2],
                                                     .rstd = call->inputs[3],
                                                     .sums = call->outputs[0],
                                                     .row_count = self->rows,
                                                     .row_stride = self->columns,
                                                     .columns = self->columns,
                                                     .bfloat16 = self->bfloat16,
                                                     .adds = self->adds};
    return FUSE_LAUNCH(cuda, layer_norm_dw, fuse_cuda_column_blocks(self->columns), &arguments, error);
}

int fuse_compile_layer_norm(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                            struct fuse_kernel_info *info, struct fuse_error *error)
{
    (void)info;
    struct layer_norm *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->kernel.run = op->kind == FUSERUN_OP_LAYER_NORM      ? run_forward
                       : op->kind == FUSERUN_OP_LAYER_NORM_DX ? run_input_gradient
                                                              : run_weight_gradient;
    self->rows = fuse_operand_rows(&op->inputs[0]);
    self->columns = fuse_operand_columns(&op->inputs[0]);
    self->eps = op->numbers[0];
    self->bfloat16 = fuse_cuda_bfloat16_bits(op);
    self->adds = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
