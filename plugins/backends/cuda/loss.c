/* Losses: a kernel leaves each row's or chunk's share in the workspace, another adds them up. */
#include "cuda.h"

#include <stdlib.h>

struct loss {
    struct fuse_kernel kernel;
    void *function;
    const char *name;
    int64_t blocks; /* rows or chunks */
    bool has_target, has_gradient;
    struct fuse_loss_arguments arguments;
};

static int run(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error)
{
    const struct loss *const self = (const struct loss *)kernel;
    struct fuse_loss_arguments arguments = self->arguments;
    arguments.y = call->inputs[0];
    arguments.target = self->has_target ? call->inputs[1] : NULL;
    arguments.gradient = self->has_gradient ? call->outputs[1] : NULL;
    arguments.partials = call->workspace;
    arguments.scale = call->scalars != NULL ? call->scalars[0] : 1.0;
    FUSE_TRY(fuse_cuda_launch(cuda, self->function, self->name, self->blocks, &arguments, error));
    return fuse_cuda_sum_partials(cuda, arguments.partials, self->blocks, 2, false, call->outputs[0], error);
}

int fuse_compile_loss(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                      struct fuse_kernel_info *info, struct fuse_error *error)
{
    struct loss *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->kernel.run = run;
    self->has_target = op->kind != FUSERUN_OP_SUM_LOSS;
    self->has_gradient = op->output_count > 1 && op->outputs[1].dtype != 0;
    self->arguments.rows = fuse_operand_rows(&op->inputs[0]);
    self->arguments.columns = fuse_operand_columns(&op->inputs[0]);
    self->arguments.count = fuse_operand_count(&op->inputs[0]);
    self->blocks = (self->arguments.count + FUSE_LOSS_CHUNK - 1) / FUSE_LOSS_CHUNK;
    switch (op->kind) {
    case FUSERUN_OP_CROSS_ENTROPY:
        self->function = cuda->kernels.cross_entropy;
        self->name = "cross_entropy";
        self->blocks = self->arguments.rows;
        self->arguments.smoothing = op->numbers[0];
        break;
    case FUSERUN_OP_MSE:
        self->function = cuda->kernels.mse;
        self->name = "mse";
        break;
    default:
        self->function = cuda->kernels.sum_loss;
        self->name = "sum_loss";
    }
    info->workspace_bytes = (uint64_t)self->blocks * 2 * sizeof(double);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
