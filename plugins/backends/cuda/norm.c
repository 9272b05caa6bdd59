/* Sums of squares of gradients, for a norm over all of them: of one that exists, and of a linear weight's that does
 * not.
 *
 * For dw = dy^T x,
 *     ||dy^T x||^2 = trace(x^T dy dy^T x) = trace(x x^T dy dy^T) = sum over i, j of (x x^T)_ij (dy dy^T)_ij
 * costs B^2 (N + K) multiply-adds, dw itself B N K: with few rows the first is cheaper. Products are in float, what is
 * summed up in double.
 *
 * x x^T holds squares: it may leave the range of floats where no element of dw does; and where samples' gradients
 * cancel, what is left of the sum is as small as its terms' rounding. Kernels that stand ready behind each such sum
 * form the elements of dw where either shows, so that the host need not wait to see. */
#include "product.h"

#include <stdlib.h>

/* Of each of the two products that exist at a time; more rows than fit are taken a block at a time. */
#define BLOCK_FLOATS (4 << 20)

struct norm {
    struct fuse_kernel kernel;
    int64_t count;       /* SUM_SQUARES: elements */
    int64_t batch, n, k; /* LINEAR_DW_NORM */
    struct fuse_earlier earlier;
    int64_t rows; /* of a panel of dw, or of a block of the two products */
    uint64_t partial_bytes;
    uint64_t floats_bytes; /* of one result */
    bool is_dy_bfloat16, is_x_bfloat16;
};

/* A panel of dw. */
static struct fuse_product panel_product(const struct fuse_cuda *cuda, const struct norm *self)
{
    return (struct fuse_product){.m = self->rows,
                                 .n = self->k,
                                 .k = self->batch,
                                 .a_row = 1,
                                 .a_column = self->n,
                                 .b_row = self->k,
                                 .b_column = 1,
                                 .c_row = self->k,
                                 .is_bfloat16 = cuda->is_bfloat16,
                                 .a_is_bfloat16 = self->is_dy_bfloat16,
                                 .b_is_bfloat16 = self->is_x_bfloat16};
}

/* A block of rows of m m^T, m (batch, width). */
static struct fuse_product square_product(const struct fuse_cuda *cuda, const struct norm *self, int64_t width,
                                          bool is_m_bfloat16)
{
    return (struct fuse_product){.m = self->rows,
                                 .n = self->batch,
                                 .k = width,
                                 .a_row = width,
                                 .a_column = 1,
                                 .b_row = 1,
                                 .b_column = width,
                                 .c_row = self->batch,
                                 .is_bfloat16 = cuda->is_bfloat16,
                                 .a_is_bfloat16 = is_m_bfloat16,
                                 .b_is_bfloat16 = is_m_bfloat16};
}

static int run_sum_squares(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                           struct fuse_error *error)
{
    const struct norm *const self = (const struct norm *)kernel;
    const float *const g = call->inputs[0];
    return fuse_cuda_sum_products(cuda, g, g, self->count, false, 1, call->workspace, call->outputs[0], error);
}

/* A panel of dw at a time, formed, squared and forgotten. */
static int run_panels(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                      struct fuse_error *error)
{
    const struct norm *const self = (const struct norm *)kernel;
    float *const panel = (float *)(void *)((char *)call->workspace + self->partial_bytes);
    struct fuse_product product = panel_product(cuda, self);
    for (int64_t begin = 0; begin < self->n; begin += self->rows) {
        product.m = begin + self->rows < self->n ? self->rows : self->n - begin;
        FUSE_TRY(fuse_form_panel(cuda, product, &self->earlier, call->inputs, begin, panel,
                                 (char *)panel + self->floats_bytes, error));
        FUSE_TRY(fuse_cuda_sum_products(cuda, panel, panel, product.m * self->k, begin > 0, 1, call->workspace,
                                        call->outputs[0], error));
    }
    return FUSERUN_OK;
}

/* Rows [begin, begin + product.m) of it. */
static int square(struct fuse_cuda *cuda, const struct fuse_product *product, const void *m, int64_t begin, float *out,
                  void *workspace, struct fuse_error *error)
{
    return fuse_product_run_rounded(cuda, product, fuse_element(m, begin * product->a_row, product->a_is_bfloat16), m,
                                    NULL, out, workspace, error);
}

/* A block of rows of both products at a time. The workspace begins with the sum and its magnitude, then partial sums.
 */
static int run_blocks(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                      struct fuse_error *error)
{
    const struct norm *const self = (const struct norm *)kernel;
    double *const sums = call->workspace, *const partials = sums + 2;
    char *const results = (char *)call->workspace + self->partial_bytes;
    float *const of_x = (float *)(void *)results, *const of_dy = (float *)(void *)(results + self->floats_bytes);
    void *const rounded = results + 2 * self->floats_bytes;
    struct fuse_product x = square_product(cuda, self, self->k, self->is_x_bfloat16);
    struct fuse_product dy = square_product(cuda, self, self->n, self->is_dy_bfloat16);
    for (int64_t begin = 0; begin < self->batch; begin += self->rows) {
        const int64_t rows = begin + self->rows < self->batch ? self->rows : self->batch - begin;
        x.m = dy.m = rows;
        FUSE_TRY(square(cuda, &x, call->inputs[1], begin, of_x, rounded, error));
        FUSE_TRY(square(cuda, &dy, call->inputs[0], begin, of_dy, rounded, error));
        FUSE_TRY(fuse_cuda_sum_products(cuda, of_x, of_dy, rows * self->batch, begin > 0, 2, partials, sums, error));
    }
    const struct fuse_norm_arguments arguments = {.dy = call->inputs[0],
                                                  .x = call->inputs[1],
                                                  .sums = sums,
                                                  .partials = partials,
                                                  .out = call->outputs[0],
                                                  .batch = self->batch,
                                                  .n = self->n,
                                                  .k = self->k,
                                                  .least_share = FUSE_NORM_LEAST_SHARE,
                                                  .bfloat16 = self->is_dy_bfloat16 | self->is_x_bfloat16 << 1,
                                                  .rounds = cuda->is_bfloat16};
    FUSE_TRY(FUSE_LAUNCH(cuda, norm_rows, self->n, &arguments, error));
    return FUSE_LAUNCH(cuda, norm_finish, 1, &arguments, error);
}

/* Of what is rounded. */
static uint64_t rounded_bytes(const struct fuse_cuda *cuda, const struct norm *self)
{
    if (self->kernel.run == run_sum_squares)
        return 0;
    if (self->kernel.run == run_panels) {
        const struct fuse_product panel = panel_product(cuda, self);
        return fuse_form_panel_bytes(&panel, &self->earlier);
    }
    const struct fuse_product x = square_product(cuda, self, self->k, self->is_x_bfloat16);
    const struct fuse_product dy = square_product(cuda, self, self->n, self->is_dy_bfloat16);
    const uint64_t x_bytes = fuse_product_workspace_bytes(&x, false),
                   dy_bytes = fuse_product_workspace_bytes(&dy, false);
    return x_bytes > dy_bytes ? x_bytes : dy_bytes;
}

static int check_size(const struct fuse_cuda *cuda, const struct norm *self, struct fuse_error *error)
{
    const struct fuse_product largest = {.m = self->n, .n = self->k, .k = self->batch};
    return fuse_product_check(cuda, &largest, error);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int fuse_compile_norm(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                      struct fuse_kernel_info *info, struct fuse_error *error)
{
    struct norm *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    int64_t floats = 0, result_count = 0, sum_count = 0;
    if (op->kind == FUSERUN_OP_SUM_SQUARES) {
        self->kernel.run = run_sum_squares;
        self->count = fuse_operand_count(&op->inputs[0]);
    } else {
        self->batch = fuse_operand_rows(&op->inputs[0]);
        self->n = fuse_operand_columns(&op->inputs[0]);
        self->k = fuse_operand_columns(&op->inputs[1]);
        self->earlier = fuse_earlier_of(op);
        self->is_dy_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[0]);
        self->is_x_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[1]);
        /* The products of few rows have no elements of dw; what would have to be formed to check them cannot be formed
         * as the device does it where that rounds to TF32. */
        const bool is_few_rows = self->earlier.count == 0 && cuda->compute_type != FUSE_CUBLAS_COMPUTE_TF32 &&
                                 (double)self->batch * (double)(self->n + self->k) <= (double)self->n * (double)self->k;
        self->kernel.run = is_few_rows ? run_blocks : run_panels;
        self->rows = is_few_rows ? BLOCK_FLOATS / self->batch : fuse_panel_rows(self->n, self->k);
        self->rows = self->rows < 1 ? 1 : self->rows;
        if (is_few_rows && self->rows > self->batch)
            self->rows = self->batch;
        floats = self->rows * (is_few_rows ? self->batch : self->k);
        result_count = is_few_rows ? 2 : 1;
        sum_count = is_few_rows ? larger(self->n, 2 * fuse_cuda_chunks(floats)) + 2 : 0;
    }
    const int status = check_size(cuda, self, error);
    if (status != FUSERUN_OK) {
        free(self);
        return status;
    }
    const int64_t summed = self->count > 0 ? self->count : floats;
    self->partial_bytes = fuse_round_up((uint64_t)larger(sum_count, fuse_cuda_chunks(summed)) * sizeof(double), 64);
    self->floats_bytes = fuse_round_up((uint64_t)floats * sizeof(float), 64);
    info->workspace_bytes =
        self->partial_bytes + (uint64_t)result_count * self->floats_bytes + rounded_bytes(cuda, self);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
