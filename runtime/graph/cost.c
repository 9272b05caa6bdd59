#include "graph/cost.h"

static double bytes_of(const struct fuse_operand *operand)
{
    double count = operand->dtype == 0 ? 0 : 1;
    for (uint32_t i = 0; i < operand->rank; i++)
        count *= (double)operand->shape[i];
    switch (operand->dtype) {
    case FUSERUN_BFLOAT16:
        return 2 * count;
    case FUSERUN_FLOAT64:
    case FUSERUN_INT64:
        return 8 * count;
    default:
        return 4 * count;
    }
}

static double rows_of(const struct fuse_operand *operand)
{
    double rows = 1;
    for (uint32_t i = 0; i + 1 < operand->rank; i++)
        rows *= (double)operand->shape[i];
    return rows;
}

static double columns_of(const struct fuse_operand *operand)
{
    return operand->rank > 0 ? (double)operand->shape[operand->rank - 1] : 1;
}

/* A multiplication and an addition are two. Attention: two products of (S, S) and (S, d) for each head, five in
 * backward, where the probabilities are made again. */
static double flop_of(const struct fuse_op *op)
{
    const struct fuse_operand *const in = op->inputs;
    switch (op->kind) {
    case FUSERUN_OP_LINEAR:
        return 2 * rows_of(&in[0]) * columns_of(&in[0]) * rows_of(&in[1]);
    case FUSERUN_OP_LINEAR_DX:
        return 2 * rows_of(&in[0]) * columns_of(&in[0]) * columns_of(&in[1]);
    case FUSERUN_OP_LINEAR_DW:
        return 2 * rows_of(&in[0]) * columns_of(&in[0]) * columns_of(&in[1]);
    case FUSERUN_OP_LINEAR_DW_SUM:
        return 2 * (rows_of(&in[0]) + rows_of(&in[2])) * columns_of(&in[0]) * columns_of(&in[1]);
    case FUSERUN_OP_ATTENTION:
        return 2 * 2 * rows_of(&in[0]) * (double)in[0].shape[1] * columns_of(&in[0]) / 3;
    case FUSERUN_OP_ATTENTION_DX:
        return 5 * 2 * rows_of(&in[1]) * (double)in[1].shape[1] * columns_of(&in[1]) / 3;
    default:
        return 0;
    }
}

/* Weight and state, read and written. */
static double update_bytes(const struct fuse_program *program, uint32_t parameter, const double *state_counts)
{
    return 2 * 4 * (double)program->graph->parameters[parameter].element_count * (1 + state_counts[parameter]);
}

struct fuse_cost fuse_instruction_cost(const struct fuse_program *program, uint32_t index, const double *state_counts)
{
    const struct fuse_instruction *const instruction = &program->instructions[index];
    const struct fuse_op *const op = &instruction->op;
    struct fuse_cost cost = {0};
    if (instruction->kind == FUSE_RUN_CALLBACKS || instruction->kind == FUSE_RUN_AFTER) {
        const bool updates =
            instruction->kind == FUSE_RUN_AFTER || program->options.gradients == FUSE_GRADIENTS_RELEASE;
        for (uint32_t p = 0; p < program->graph->parameter_count; p++)
            if (program->gradient_buffers[p] != FUSE_NO_BUFFER &&
                (instruction->parameter == UINT32_MAX || instruction->parameter == p))
                cost.bytes += 4 * (double)program->graph->parameters[p].element_count +
                              (updates ? update_bytes(program, p, state_counts) : 0);
        return cost;
    }
    if (instruction->kind != FUSE_RUN_KERNEL)
        return cost;
    const bool is_panels = (op->flags & FUSERUN_OP_PANELS) != 0; /* they stay in a cache */
    cost.flop = flop_of(op);
    for (uint32_t i = 0; i < op->input_count; i++)
        cost.bytes += bytes_of(&op->inputs[i]);
    for (uint32_t i = is_panels ? 1 : 0; i < op->output_count; i++)
        cost.bytes += bytes_of(&op->outputs[i]) * ((op->flags & FUSERUN_OP_ACCUMULATE) != 0 ? 2 : 1);
    if (is_panels && instruction->parameter != UINT32_MAX)
        cost.bytes += update_bytes(program, instruction->parameter, state_counts);
    return cost;
}
