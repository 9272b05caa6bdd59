/* Sums over rows (the gradients of whatever is added to every row), and sums of everything. */
#include "cuda.h"

#include <stdlib.h>

struct sums {
    struct fuse_kernel kernel;
    struct fuse_columns_arguments arguments;
};

static int run(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error)
{
    struct fuse_columns_arguments arguments = ((const struct sums *)kernel)->arguments;
    arguments.rows = call->inputs[0];
    arguments.sums = call->outputs[0];
    return FUSE_LAUNCH(cuda, sum_columns, fuse_cuda_column_blocks(arguments.columns), &arguments, error);
}

int fuse_compile_sums(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                      struct fuse_kernel_info *info, struct fuse_error *error)
{
    (void)info;
    struct sums *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    const struct fuse_operand *const dy = &op->inputs[0];
    const bool is_per_row = op->kind == FUSERUN_OP_LINEAR_DB; /* the others: per sample */
    self->kernel.run = run;
    self->arguments.row_count = is_per_row ? fuse_operand_rows(dy) : dy->shape[0];
    self->arguments.row_stride = fuse_operand_count(dy) / self->arguments.row_count;
    self->arguments.columns = fuse_operand_count(&op->outputs[0]);
    self->arguments.bfloat16 = fuse_cuda_bfloat16_bits(op);
    self->arguments.adds = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}

int fuse_cuda_sum_partials(struct fuse_cuda *cuda, const double *partials, int64_t count, int width, bool adds,
                           double *sums, struct fuse_error *error)
{
    const struct fuse_partials_arguments arguments = {
        .partials = partials, .sums = sums, .count = count, .width = width, .adds = adds};
    return FUSE_LAUNCH(cuda, sum_partials, 1, &arguments, error);
}

int fuse_cuda_sum_products(struct fuse_cuda *cuda, const float *a, const float *b, int64_t count, bool adds, int width,
                           double *partials, double *sums, struct fuse_error *error)
{
    const struct fuse_products_arguments arguments = {
        .a = a, .b = b, .partials = partials, .count = count, .width = width};
    FUSE_TRY(FUSE_LAUNCH(cuda, sum_products, fuse_cuda_chunks(count), &arguments, error));
    return fuse_cuda_sum_partials(cuda, partials, fuse_cuda_chunks(count), width, adds, sums, error);
}
