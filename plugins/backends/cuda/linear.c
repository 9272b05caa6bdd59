/* Linear layers: y = x w^T + b and its gradients in x and w. */
#include "product.h"

#include <stdlib.h>

/* A weight's gradient is formed a panel of rows at a time: few enough for each to keep the device busy, small enough to
 * be a fraction of the weight, and of the weight's shape alone, so that every mode forms the same sums. */
#define PANEL_MIN_FLOATS (1 << 20)
#define PANEL_MAX_FLOATS (4 << 20)
#define PANEL_PARTS 4
#define PANEL_MIN_ROWS 8

/* ---- y (B, N) = x (B, K) w (N, K)^T + b, dx (B, K) = dy (B, N) w (N, K) ---------------------------------------- */

struct linear {
    struct fuse_kernel kernel;
    struct fuse_product product;
    bool has_bias;
};

static int run_linear(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                      struct fuse_error *error)
{
    const struct linear *const self = (const struct linear *)kernel;
    return fuse_product_run_rounded(cuda, &self->product, call->inputs[0], call->inputs[1],
                                    self->has_bias ? call->inputs[2] : NULL, call->outputs[0], call->workspace, error);
}

static int compile_product(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                           struct fuse_kernel_info *info, struct fuse_error *error)
{
    const bool is_forward = op->kind == FUSERUN_OP_LINEAR;
    const struct fuse_operand *const in = &op->inputs[0], *const w = &op->inputs[1];
    const int64_t batch = fuse_operand_rows(in), n = w->shape[0], k = w->shape[1];
    const bool has_bias = op->input_count > 2 && op->inputs[2].dtype != 0;
    const struct fuse_product product = {
        .m = batch,
        .n = is_forward ? n : k,
        .k = is_forward ? k : n,
        .a_row = is_forward ? k : n,
        .a_column = 1,
        .b_row = is_forward ? 1 : k,
        .b_column = is_forward ? k : 1,
        .c_row = is_forward ? n : k,
        .is_bfloat16 = cuda->is_bfloat16,
        .a_is_bfloat16 = fuse_operand_is_bfloat16(in),
        .c_is_bfloat16 = fuse_operand_is_bfloat16(&op->outputs[0]),
        .adds = (op->flags & FUSERUN_OP_ACCUMULATE) != 0,
    };
    FUSE_TRY(fuse_product_check(cuda, &product, error));
    struct linear *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->kernel.run = run_linear;
    self->product = product;
    self->has_bias = has_bias;
    info->workspace_bytes = fuse_product_workspace_bytes(&product, has_bias);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}

/* ---- dw (N, K) = dy (B, N)^T x (B, K), and its sum over micro-batches
 * ------------------------------------------------------------------------------------------- */

struct weight_gradient {
    struct fuse_kernel kernel;
    int64_t n, k, panel_rows;
    struct fuse_earlier earlier;
    bool is_scratch;             /* output 0 is one panel */
    struct fuse_product product; /* of a panel of the present batch; m is set at each */
};

/* Rows [begin, begin + product.m) of the sum over micro-batches. */
int fuse_form_panel(struct fuse_cuda *cuda, struct fuse_product product, const struct fuse_earlier *earlier,
                    void *const *inputs, int64_t begin, float *out, void *workspace, struct fuse_error *error)
{
    const int64_t n = product.a_column, k = product.n, batch = product.k;
    product.k = earlier->rows;
    for (int64_t i = 0; i < earlier->count; i++) {
        const int64_t row = i * earlier->rows;
        FUSE_TRY(fuse_product_run_rounded(
            cuda, &product, fuse_element(inputs[2], row * n + begin, product.a_is_bfloat16),
            fuse_element(inputs[3], row * k, product.b_is_bfloat16), NULL, out, workspace, error));
        product.adds = true;
    }
    product.k = batch;
    return fuse_product_run_rounded(cuda, &product, fuse_element(inputs[0], begin, product.a_is_bfloat16), inputs[1],
                                    NULL, out, workspace, error);
}

uint64_t fuse_form_panel_bytes(const struct fuse_product *product, const struct fuse_earlier *earlier)
{
    struct fuse_product before = *product;
    before.k = earlier->rows;
    const uint64_t present_bytes = fuse_product_workspace_bytes(product, false);
    const uint64_t before_bytes = earlier->count > 0 ? fuse_product_workspace_bytes(&before, false) : 0;
    return present_bytes > before_bytes ? present_bytes : before_bytes;
}

static int run_weight_gradient(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                               struct fuse_error *error)
{
    const struct weight_gradient *const self = (const struct weight_gradient *)kernel;
    struct fuse_product product = self->product;
    for (int64_t begin = 0; begin < self->n; begin += self->panel_rows) {
        const int64_t end = begin + self->panel_rows < self->n ? begin + self->panel_rows : self->n;
        float *const out = (float *)call->outputs[0] + (self->is_scratch ? 0 : begin * self->k);
        product.m = end - begin;
        FUSE_TRY(fuse_form_panel(cuda, product, &self->earlier, call->inputs, begin, out, call->workspace, error));
        if (self->is_scratch && call->panel != NULL && call->panel->panel != NULL)
            call->panel->panel(call->panel->user, begin, end, out);
    }
    return fuse_cuda_failed(cuda, error); /* the hook can tell nobody */
}

struct fuse_earlier fuse_earlier_of(const struct fuse_op *op)
{
    if (op->kind != FUSERUN_OP_LINEAR_DW_SUM && op->kind != FUSERUN_OP_LINEAR_DW_SUM_NORM)
        return (struct fuse_earlier){0};
    return (struct fuse_earlier){op->integers[0], fuse_operand_rows(&op->inputs[2]) / op->integers[0]};
}

int64_t fuse_panel_rows(int64_t n, int64_t k)
{
    int64_t floats = n * k / PANEL_PARTS;
    floats = floats < PANEL_MIN_FLOATS ? PANEL_MIN_FLOATS : floats;
    floats = floats > PANEL_MAX_FLOATS ? PANEL_MAX_FLOATS : floats;
    int64_t rows = floats / k;
    rows = rows >= 16 ? rows / 16 * 16 : PANEL_MIN_ROWS;
    return rows < n ? rows : n;
}

static int compile_weight_gradient(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                                   struct fuse_kernel_info *info, struct fuse_error *error)
{
    const struct fuse_operand *const dy = &op->inputs[0], *const x = &op->inputs[1];
    const int64_t batch = fuse_operand_rows(dy), n = fuse_operand_columns(dy), k = fuse_operand_columns(x);
    const bool is_scratch = (op->flags & FUSERUN_OP_PANELS) != 0;
    const struct fuse_product product = {
        .m = n, /* the largest it can be */
        .n = k,
        .k = batch,
        .a_row = 1,
        .a_column = n,
        .b_row = k,
        .b_column = 1,
        .c_row = k,
        .is_bfloat16 = cuda->is_bfloat16,
        .a_is_bfloat16 = fuse_operand_is_bfloat16(dy),
        .b_is_bfloat16 = fuse_operand_is_bfloat16(x),
        .adds = (op->flags & FUSERUN_OP_ACCUMULATE) != 0,
    };
    FUSE_TRY(fuse_product_check(cuda, &product, error));
    struct weight_gradient *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->kernel.run = run_weight_gradient;
    self->n = n;
    self->k = k;
    self->panel_rows = fuse_panel_rows(n, k);
    self->is_scratch = is_scratch;
    self->earlier = fuse_earlier_of(op);
    self->product = product;
    info->workspace_bytes = fuse_form_panel_bytes(&product, &self->earlier);
    info->panel_rows = self->panel_rows;
    info->panel_count = (uint32_t)((n + self->panel_rows - 1) / self->panel_rows);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}

int fuse_compile_linear(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                        struct fuse_kernel_info *info, struct fuse_error *error)
{
    const bool is_gradient = op->kind == FUSERUN_OP_LINEAR_DW || op->kind == FUSERUN_OP_LINEAR_DW_SUM;
    return is_gradient ? compile_weight_gradient(cuda, op, kernel, info, error)
                       : compile_product(cuda, op, kernel, info, error);
}
