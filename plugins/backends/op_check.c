#include "op_check.h"

#include <string.h>

/* What an op's operands are, for the checks and for messages. */
struct op_form {
    const char *name;
    uint32_t min_inputs, max_inputs;
    uint32_t min_outputs, max_outputs;
    bool may_accumulate;
    uint32_t bfloat16_inputs, bfloat16_outputs; /* bit by bit: the operands that may be bfloat16 */
};

static const struct op_form forms[] = {
    [FUSERUN_OP_LINEAR] = {"linear", 2, 3, 1, 1, false, 1, 1},
    [FUSERUN_OP_LINEAR_DX] = {"linear_dx", 2, 2, 1, 1, true, 1, 1},
    [FUSERUN_OP_LINEAR_DW] = {"linear_dw", 2, 2, 1, 1, true, 3, 0},
    [FUSERUN_OP_LINEAR_DB] = {"linear_db", 1, 1, 1, 1, true, 1, 0},
    [FUSERUN_OP_RELU] = {"relu", 1, 1, 1, 1, false, 1, 1},
    [FUSERUN_OP_RELU_DX] = {"relu_dx", 2, 2, 1, 1, true, 3, 1},
    [FUSERUN_OP_GELU] = {"gelu", 1, 1, 1, 1, false, 1, 1},
    [FUSERUN_OP_GELU_DX] = {"gelu_dx", 2, 2, 1, 1, true, 3, 1},
    [FUSERUN_OP_TANH] = {"tanh", 1, 1, 1, 1, false, 1, 1},
    [FUSERUN_OP_TANH_DX] = {"tanh_dx", 2, 2, 1, 1, true, 3, 1},
    [FUSERUN_OP_ADD] = {"add", 2, 2, 1, 1, false, 3, 1},
    [FUSERUN_OP_COPY] = {"copy", 1, 1, 1, 1, false, 1, 1},
    [FUSERUN_OP_CROSS_ENTROPY] = {"cross_entropy", 2, 2, 1, 2, false, 0, 0},
    [FUSERUN_OP_MSE] = {"mse", 2, 2, 1, 2, false, 0, 0},
    [FUSERUN_OP_SUM_LOSS] = {"sum", 1, 1, 1, 2, false, 0, 0},
    [FUSERUN_OP_PATCHES] = {"patches", 1, 1, 1, 1, false, 1, 1},
    [FUSERUN_OP_LAYER_NORM] = {"layer_norm", 3, 3, 3, 3, false, 1, 1},
    [FUSERUN_OP_LAYER_NORM_DX] = {"layer_norm_dx", 5, 5, 1, 1, true, 3, 1},
    [FUSERUN_OP_LAYER_NORM_DW] = {"layer_norm_dw", 4, 4, 1, 1, true, 3, 0},
    [FUSERUN_OP_ATTENTION] = {"attention", 1, 1, 2, 2, false, 1, 1},
    [FUSERUN_OP_ATTENTION_DX] = {"attention_dx", 4, 4, 1, 1, true, 7, 1},
    [FUSERUN_OP_PREPEND] = {"prepend", 2, 2, 1, 1, false, 1, 1},
    [FUSERUN_OP_PREPEND_DX] = {"prepend_dx", 1, 1, 1, 1, true, 1, 1},
    [FUSERUN_OP_PREPEND_DW] = {"prepend_dw", 1, 1, 1, 1, true, 1, 0},
    [FUSERUN_OP_ADD_BATCH] = {"add_batch", 2, 2, 1, 1, false, 1, 1},
    [FUSERUN_OP_ADD_BATCH_DW] = {"add_batch_dw", 1, 1, 1, 1, true, 1, 0},
    [FUSERUN_OP_SELECT] = {"select", 1, 1, 1, 1, false, 1, 1},
    [FUSERUN_OP_SELECT_DX] = {"select_dx", 1, 1, 1, 1, true, 1, 1},
    [FUSERUN_OP_DROPOUT] = {"dropout", 1, 1, 1, 1, true, 1, 1},
    [FUSERUN_OP_SUM_SQUARES] = {"sum_squares", 1, 1, 1, 1, false, 0, 0},
    [FUSERUN_OP_LINEAR_DW_NORM] = {"linear_dw_norm", 2, 2, 1, 1, false, 3, 0},
    [FUSERUN_OP_LINEAR_DW_SUM] = {"linear_dw_sum", 4, 4, 1, 1, false, 15, 0},
    [FUSERUN_OP_LINEAR_DW_SUM_NORM] = {"linear_dw_sum_norm", 4, 4, 1, 1, false, 15, 0},
};

static const struct op_form *find_form(uint32_t kind)
{
    if (kind >= sizeof(forms) / sizeof(forms[0]) || forms[kind].name == NULL)
        return NULL;
    return &forms[kind];
}

const char *fuse_op_name(uint32_t kind)
{
    const struct op_form *const form = find_form(kind);
    return form != NULL ? form->name : "unknown";
}

int64_t fuse_operand_rows(const struct fuse_operand *operand)
{
    int64_t rows = 1;
    for (uint32_t i = 0; i + 1 < operand->rank; i++)
        rows *= operand->shape[i];
    return rows;
}

int64_t fuse_operand_columns(const struct fuse_operand *operand)
{
    return operand->rank > 0 ? operand->shape[operand->rank - 1] : 1;
}

int64_t fuse_operand_count(const struct fuse_operand *operand)
{
    return fuse_operand_rows(operand) * fuse_operand_columns(operand);
}

bool fuse_operand_is_bfloat16(const struct fuse_operand *operand)
{
    return operand->dtype == FUSERUN_BFLOAT16;
}

bool fuse_op_same_shape(const struct fuse_operand *a, const struct fuse_operand *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) == 0;
}

int fuse_op_fail_memory(const struct fuse_op_checker *checker, size_t bytes, struct fuse_error *error)
{
    return checker->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for an op (%zu bytes)", bytes);
}

/* The losses' labels and statistics, and sums of squares, are the only operands that are neither float32 nor, for some,
 * bfloat16. */
static uint32_t expected_dtype(const struct fuse_op *op, bool is_output, uint32_t index)
{
    const bool is_sum = op->kind == FUSERUN_OP_CROSS_ENTROPY || op->kind == FUSERUN_OP_MSE ||
                        op->kind == FUSERUN_OP_SUM_LOSS || op->kind == FUSERUN_OP_SUM_SQUARES ||
                        op->kind == FUSERUN_OP_LINEAR_DW_NORM || op->kind == FUSERUN_OP_LINEAR_DW_SUM_NORM;
    if (is_sum && is_output && index == 0)
        return FUSERUN_FLOAT64;
    if (op->kind == FUSERUN_OP_CROSS_ENTROPY && !is_output && index == 1)
        return FUSERUN_INT64;
    return FUSERUN_FLOAT32;
}

static bool may_be_bfloat16(const struct fuse_op_checker *checker, const struct fuse_op *op, bool is_output,
                            uint32_t index)
{
    const struct op_form *const form = find_form(op->kind);
    const struct fuse_operand *const operand = is_output ? &op->outputs[index] : &op->inputs[index];
    return checker->is_bfloat16 && operand->dtype == FUSERUN_BFLOAT16 &&
           ((is_output ? form->bfloat16_outputs : form->bfloat16_inputs) >> index & 1u) != 0;
}

static int check_operand(const struct fuse_op_checker *checker, const struct fuse_op *op, bool is_output,
                         uint32_t index, struct fuse_error *error)
{
    const struct fuse_operand *const operand = is_output ? &op->outputs[index] : &op->inputs[index];
    const char *const side = is_output ? "output" : "input";
    if (operand->dtype != expected_dtype(op, is_output, index) && !may_be_bfloat16(checker, op, is_output, index))
        return checker->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                                   "backend %s: op %s: %s %u has dtype %u, only %u can be done", checker->backend,
                                   fuse_op_name(op->kind), side, index, operand->dtype,
                                   expected_dtype(op, is_output, index));
    if (operand->rank > FUSERUN_MAX_DIMS)
        return checker->host->fail(error, FUSERUN_ERROR_INTERNAL, NULL, "backend %s: op %s: %s %u has %u dimensions",
                                   checker->backend, fuse_op_name(op->kind), side, index, operand->rank);
    int64_t bytes = 8;
    for (uint32_t i = 0; i < operand->rank; i++)
        if (operand->shape[i] < 1 || __builtin_mul_overflow(bytes, operand->shape[i], &bytes))
            return checker->host->fail(error, FUSERUN_ERROR_INTERNAL, NULL,
                                       "backend %s: op %s: dimension %u of %s %u is %lld", checker->backend,
                                       fuse_op_name(op->kind), i, side, index, (long long)operand->shape[i]);
    return FUSERUN_OK;
}

static int check_numbers(const struct fuse_op_checker *checker, const struct fuse_op *op, struct fuse_error *error)
{
    const double number = op->numbers[0];
    if (op->kind == FUSERUN_OP_CROSS_ENTROPY && !(number >= 0.0 && number <= 1.0))
        return checker->host->fail(error, FUSERUN_ERROR_INTERNAL, NULL,
                                   "backend %s: label smoothing %g, allowed [0, 1]", checker->backend, number);
    const bool drops =
        op->kind == FUSERUN_OP_DROPOUT || op->kind == FUSERUN_OP_ATTENTION || op->kind == FUSERUN_OP_ATTENTION_DX;
    if (drops && !(number >= 0.0 && number < 1.0))
        return checker->host->fail(error, FUSERUN_ERROR_INTERNAL, NULL,
                                   "backend %s: op %s: a dropout probability of %g is not in [0, 1)", checker->backend,
                                   fuse_op_name(op->kind), number);
    return FUSERUN_OK;
}

int fuse_op_check(const struct fuse_op_checker *checker, const struct fuse_op *op, struct fuse_error *error)
{
    const struct op_form *const form = find_form(op->kind);
    if (form == NULL)
        return checker->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "backend %s: it has no op %u",
                                   checker->backend, op->kind);
    if (op->input_count < form->min_inputs || op->input_count > form->max_inputs ||
        op->output_count < form->min_outputs || op->output_count > form->max_outputs)
        return checker->host->fail(error, FUSERUN_ERROR_INTERNAL, NULL, "backend %s: op %s: %u inputs and %u outputs",
                                   checker->backend, form->name, op->input_count, op->output_count);
    const bool has_panels = op->kind == FUSERUN_OP_LINEAR_DW || op->kind == FUSERUN_OP_LINEAR_DW_SUM;
    const uint32_t allowed =
        (form->may_accumulate ? FUSERUN_OP_ACCUMULATE : 0u) | (has_panels ? FUSERUN_OP_PANELS : 0u);
    if ((op->flags & ~allowed) != 0 || op->flags == (FUSERUN_OP_ACCUMULATE | FUSERUN_OP_PANELS))
        return checker->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "backend %s: op %s: flags %#x",
                                   checker->backend, form->name, op->flags);
    for (uint32_t i = 0; i < op->input_count; i++)
        if (i < form->min_inputs || op->inputs[i].dtype != 0)
            FUSE_TRY(check_operand(checker, op, false, i, error));
    for (uint32_t i = 0; i < op->output_count; i++)
        if (i < form->min_outputs || op->outputs[i].dtype != 0)
            FUSE_TRY(check_operand(checker, op, true, i, error));
    const char *const rule = fuse_op_shape_rule(op);
    if (rule != NULL)
        return checker->host->fail(error, FUSERUN_ERROR_INTERNAL, NULL, "backend %s: op %s: the shapes do not fit: %s",
                                   checker->backend, form->name, rule);
    return check_numbers(checker, op, error);
}
