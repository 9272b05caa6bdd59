/* How the shapes of each operation's operands must go together (fuserun/backend.h). */
#include "op_check.h"

typedef const char *shape_rule(const struct fuse_op *op); /* NULL: they fit; else what they should be */

/* Is each operand of [first, end) as many elements? */
static bool have_count(const struct fuse_operand *operands, uint32_t first, uint32_t end, int64_t count)
{
    for (uint32_t i = first; i < end; i++)
        if (operands[i].dtype != 0 && fuse_operand_count(&operands[i]) != count)
            return false;
    return true;
}

static bool is_matrix(const struct fuse_operand *operand, int64_t rows, int64_t columns)
{
    return operand->rank == 2 && operand->shape[0] == rows && operand->shape[1] == columns;
}

static bool is_sequence(const struct fuse_operand *operand, int64_t batch, int64_t tokens, int64_t width)
{
    return operand->rank == 3 && operand->shape[0] == batch && operand->shape[1] == tokens &&
           operand->shape[2] == width;
}

static const char *linear(const struct fuse_op *op)
{
    const struct fuse_operand *const x = &op->inputs[0], *const w = &op->inputs[1], *const y = &op->outputs[0];
    const bool fits = w->rank == 2 && fuse_operand_columns(x) == w->shape[1] &&
                      fuse_operand_columns(y) == w->shape[0] && fuse_operand_rows(x) == fuse_operand_rows(y) &&
                      (op->input_count < 3 || have_count(op->inputs, 2, 3, w->shape[0]));
    return fits ? NULL : "x (B, K), w (N, K), b (N), y (B, N)";
}

static const char *linear_dx(const struct fuse_op *op)
{
    const struct fuse_operand *const dy = &op->inputs[0], *const w = &op->inputs[1], *const dx = &op->outputs[0];
    const bool fits = w->rank == 2 && fuse_operand_columns(dy) == w->shape[0] &&
                      fuse_operand_columns(dx) == w->shape[1] && fuse_operand_rows(dy) == fuse_operand_rows(dx);
    return fits ? NULL : "dy (B, N), w (N, K), dx (B, K)";
}

static const char *linear_dw(const struct fuse_op *op)
{
    const struct fuse_operand *const dy = &op->inputs[0], *const x = &op->inputs[1], *const dw = &op->outputs[0];
    const int64_t n = fuse_operand_columns(dy), k = fuse_operand_columns(x);
    int64_t bytes;
    const bool fits = fuse_operand_rows(dy) == fuse_operand_rows(x) && !__builtin_mul_overflow(n, k, &bytes) &&
                      !__builtin_mul_overflow(bytes, 8, &bytes) &&
                      ((op->flags & FUSERUN_OP_PANELS) != 0 || is_matrix(dw, n, k));
    return fits ? NULL : "dy (B, N), x (B, K), dw (N, K)";
}

static const char *linear_db(const struct fuse_op *op)
{
    return have_count(op->outputs, 0, 1, fuse_operand_columns(&op->inputs[0])) ? NULL : "dy (B, N), db (N)";
}

static const char *linear_dw_norm(const struct fuse_op *op)
{
    return fuse_operand_rows(&op->inputs[0]) == fuse_operand_rows(&op->inputs[1]) ? NULL : "dy (B, N), x (B, K)";
}

static const char *linear_dw_sum(const struct fuse_op *op)
{
    const struct fuse_operand *const in = op->inputs;
    const int64_t rows = op->integers[0], all = fuse_operand_rows(&in[2]);
    const bool fits = rows >= 1 && all % rows == 0 && fuse_operand_rows(&in[3]) == all &&
                      fuse_operand_columns(&in[2]) == fuse_operand_columns(&in[0]) &&
                      fuse_operand_columns(&in[3]) == fuse_operand_columns(&in[1]) && in[2].dtype == in[0].dtype &&
                      in[3].dtype == in[1].dtype;
    if (!fits)
        return "dy (B, N), x (B, K), earlier dy (E, N) and x (E, K) of the same types, E a multiple of the rows of "
               "each";
    return op->kind == FUSERUN_OP_LINEAR_DW_SUM ? linear_dw(op) : linear_dw_norm(op);
}

static const char *elementwise(const struct fuse_op *op)
{
    for (uint32_t i = 1; i < op->input_count; i++)
        if (!fuse_op_same_shape(&op->inputs[0], &op->inputs[i]))
            return "all inputs have the same shape";
    if (!fuse_op_same_shape(&op->inputs[0], &op->outputs[0]))
        return op->input_count == 1 ? "the output has the input's shape" : "the output has the inputs' shape";
    return NULL;
}

static const char *loss(const struct fuse_op *op)
{
    const struct fuse_operand *const y = &op->inputs[0];
    if (!have_count(op->outputs, 0, 1, 2))
        return "the statistics are two numbers";
    if (op->output_count > 1 && op->outputs[1].dtype != 0 && !fuse_op_same_shape(y, &op->outputs[1]))
        return "the gradient has the prediction's shape";
    if (op->kind == FUSERUN_OP_MSE && !fuse_op_same_shape(y, &op->inputs[1]))
        return "the target has the prediction's shape";
    if (op->kind == FUSERUN_OP_CROSS_ENTROPY && !have_count(op->inputs, 1, 2, fuse_operand_rows(y)))
        return "one label for each row of logits";
    return NULL;
}

static const char *layer_norm(const struct fuse_op *op)
{
    const struct fuse_operand *const in = op->inputs, *const out = op->outputs;
    const int64_t rows = fuse_operand_rows(&in[0]), columns = fuse_operand_columns(&in[0]);
    switch (op->kind) {
    case FUSERUN_OP_LAYER_NORM:
        if (!fuse_op_same_shape(&in[0], &out[0]) || !have_count(in, 1, 3, columns) || !have_count(out, 1, 3, rows))
            return "x (B, D), w (D), b (D), y (B, D), mean (B), rstd (B)";
        return op->numbers[0] >= 0.0 ? NULL : "eps must not be negative";
    case FUSERUN_OP_LAYER_NORM_DX:
        if (!fuse_op_same_shape(&in[0], &in[1]) || !fuse_op_same_shape(&in[0], &out[0]) ||
            !have_count(in, 2, 3, columns) || !have_count(in, 3, 5, rows))
            return "dy (B, D), x (B, D), w (D), mean (B), rstd (B), dx (B, D)";
        return NULL;
    default:
        if (!fuse_op_same_shape(&in[0], &in[1]) || !have_count(in, 2, 4, rows) || !have_count(out, 0, 1, columns))
            return "dy (B, D), x (B, D), mean (B), rstd (B), dw (D)";
        return NULL;
    }
}

static const char *patches(const struct fuse_op *op)
{
    const struct fuse_operand *const x = &op->inputs[0];
    const int64_t patch = op->integers[0];
    const bool fits = x->rank == 4 && patch >= 1 && x->shape[2] % patch == 0 && x->shape[3] % patch == 0 &&
                      is_sequence(&op->outputs[0], x->shape[0], (x->shape[2] / patch) * (x->shape[3] / patch),
                                  x->shape[1] * patch * patch);
    return fits ? NULL : "x (B, C, H, W), y (B, (H/p)(W/p), C p p), p divides H and W";
}

static const char *prepend(const struct fuse_op *op)
{
    const bool is_forward = op->kind == FUSERUN_OP_PREPEND;
    const struct fuse_operand *const longer = is_forward ? &op->outputs[0] : &op->inputs[0];
    const struct fuse_operand *const shorter = is_forward ? &op->inputs[0] : &op->outputs[0];
    bool fits = longer->rank == 3;
    if (fits && op->kind == FUSERUN_OP_PREPEND_DW)
        fits = have_count(op->outputs, 0, 1, longer->shape[2]);
    else if (fits)
        fits = is_sequence(shorter, longer->shape[0], longer->shape[1] - 1, longer->shape[2]) &&
               (!is_forward || have_count(op->inputs, 1, 2, longer->shape[2]));
    return fits ? NULL : "x (B, S, D), token (D), y (B, S + 1, D)";
}

static const char *add_batch(const struct fuse_op *op)
{
    const struct fuse_operand *const x = &op->inputs[0];
    const bool is_forward = op->kind == FUSERUN_OP_ADD_BATCH;
    const bool fits =
        x->rank >= 1 && (!is_forward || fuse_op_same_shape(x, &op->outputs[0])) &&
        fuse_operand_count(is_forward ? &op->inputs[1] : &op->outputs[0]) == fuse_operand_count(x) / x->shape[0];
    return fits ? NULL : "x (B, ...), p as many elements as a sample";
}

static const char *select_token(const struct fuse_op *op)
{
    const bool is_forward = op->kind == FUSERUN_OP_SELECT;
    const struct fuse_operand *const sequence = is_forward ? &op->inputs[0] : &op->outputs[0];
    const struct fuse_operand *const token = is_forward ? &op->outputs[0] : &op->inputs[0];
    const bool fits = sequence->rank == 3 && op->integers[0] >= 0 && op->integers[0] < sequence->shape[1] &&
                      is_matrix(token, sequence->shape[0], sequence->shape[2]);
    return fits ? NULL : "x (B, S, D), y (B, D), 0 <= index < S";
}

static const char *attention(const struct fuse_op *op)
{
    const bool is_backward = op->kind == FUSERUN_OP_ATTENTION_DX;
    const struct fuse_operand *const in = op->inputs, *const out = op->outputs, *const qkv = &in[is_backward ? 1 : 0];
    const int64_t heads = op->integers[0];
    bool fits = qkv->rank == 3 && heads >= 1 && qkv->shape[2] % 3 == 0 && qkv->shape[2] / 3 % heads == 0;
    if (fits) {
        const int64_t batch = qkv->shape[0], tokens = qkv->shape[1], width = qkv->shape[2] / 3;
        fits = is_backward ? is_sequence(&in[0], batch, tokens, width) && is_sequence(&in[2], batch, tokens, width) &&
                                 is_sequence(&in[3], batch, heads, tokens) && fuse_op_same_shape(qkv, &out[0])
                           : is_sequence(&out[0], batch, tokens, width) && is_sequence(&out[1], batch, heads, tokens);
    }
    return fits ? NULL : "qkv (B, S, 3 D), y (B, S, D), lse (B, H, S), H divides D";
}

static shape_rule *const rules[] = {
    [FUSERUN_OP_LINEAR] = linear,
    [FUSERUN_OP_LINEAR_DX] = linear_dx,
    [FUSERUN_OP_LINEAR_DW] = linear_dw,
    [FUSERUN_OP_LINEAR_DB] = linear_db,
    [FUSERUN_OP_RELU] = elementwise,
    [FUSERUN_OP_RELU_DX] = elementwise,
    [FUSERUN_OP_GELU] = elementwise,
    [FUSERUN_OP_GELU_DX] = elementwise,
    [FUSERUN_OP_TANH] = elementwise,
    [FUSERUN_OP_TANH_DX] = elementwise,
    [FUSERUN_OP_ADD] = elementwise,
    [FUSERUN_OP_COPY] = elementwise,
    [FUSERUN_OP_CROSS_ENTROPY] = loss,
    [FUSERUN_OP_MSE] = loss,
    [FUSERUN_OP_SUM_LOSS] = loss,
    [FUSERUN_OP_PATCHES] = patches,
    [FUSERUN_OP_LAYER_NORM] = layer_norm,
    [FUSERUN_OP_LAYER_NORM_DX] = layer_norm,
    [FUSERUN_OP_LAYER_NORM_DW] = layer_norm,
    [FUSERUN_OP_ATTENTION] = attention,
    [FUSERUN_OP_ATTENTION_DX] = attention,
    [FUSERUN_OP_PREPEND] = prepend,
    [FUSERUN_OP_PREPEND_DX] = prepend,
    [FUSERUN_OP_PREPEND_DW] = prepend,
    [FUSERUN_OP_ADD_BATCH] = add_batch,
    [FUSERUN_OP_ADD_BATCH_DW] = add_batch,
    [FUSERUN_OP_SELECT] = select_token,
    [FUSERUN_OP_SELECT_DX] = select_token,
    [FUSERUN_OP_DROPOUT] = elementwise,
    [FUSERUN_OP_SUM_SQUARES] = NULL,
    [FUSERUN_OP_LINEAR_DW_NORM] = linear_dw_norm,
    [FUSERUN_OP_LINEAR_DW_SUM] = linear_dw_sum,
    [FUSERUN_OP_LINEAR_DW_SUM_NORM] = linear_dw_sum,
};

const char *fuse_op_shape_rule(const struct fuse_op *op)
{
    return op->kind < sizeof(rules) / sizeof(rules[0]) && rules[op->kind] != NULL ? rules[op->kind](op) : NULL;
}
