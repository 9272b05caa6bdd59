/* What is held between micro-batches: where it lies, and the instructions that keep it and use it. */
#include "base/align.h"
#include "graph/builder.h"

#include <stdlib.h>

int fuse_hold_new(uint32_t parameter_count, int64_t earlier_count, int64_t operand_limit, struct fuse_hold **hold,
                  struct fuse_error *error)
{
    struct fuse_hold *made = calloc(1, sizeof *made);
    if (made != NULL) {
        *made = (struct fuse_hold){
            .parameter_count = parameter_count, .earlier_count = earlier_count, .operand_limit = operand_limit};
        made->parameters = calloc((size_t)parameter_count + 1, sizeof *made->parameters);
    }
    if (made == NULL || made->parameters == NULL) {
        fuse_hold_free(&made);
        return fuse_fail_memory(error, "the accumulation", parameter_count * sizeof(struct fuse_held));
    }
    *hold = made;
    return FUSERUN_OK;
}

void fuse_hold_free(struct fuse_hold **hold)
{
    if (*hold == NULL)
        return;
    free((*hold)->parameters);
    free(*hold);
    *hold = NULL;
}

static uint64_t take_bytes(struct fuse_hold *hold, uint64_t bytes)
{
    const uint64_t offset = hold->bytes;
    hold->bytes += fuse_aligned(bytes);
    return offset;
}

const struct fuse_held *fuse_hold_gradient(struct fuse_hold *hold, uint32_t parameter, uint64_t bytes)
{
    struct fuse_held *held = &hold->parameters[parameter];
    if (held->kind == FUSE_HELD_NOTHING) {
        *held = (struct fuse_held){.kind = FUSE_HELD_GRADIENT, .offset = take_bytes(hold, bytes)};
        hold->gradient_count++;
        hold->gradient_bytes += bytes;
    }
    return held;
}

const struct fuse_held *fuse_hold_operands(struct fuse_hold *hold, uint32_t parameter, int64_t rows, uint64_t x_bytes,
                                           uint64_t dy_bytes)
{
    struct fuse_held *held = &hold->parameters[parameter];
    if (held->kind == FUSE_HELD_NOTHING) {
        const uint64_t count = (uint64_t)hold->earlier_count;
        *held = (struct fuse_held){.kind = FUSE_HELD_OPERANDS, .rows = rows};
        held->offset = take_bytes(hold, count * x_bytes);
        held->dy_offset = take_bytes(hold, count * dy_bytes);
        hold->operands_count++;
        hold->operand_bytes += count * (x_bytes + dy_bytes);
    }
    return held;
}

/* ---- in a program ---------------------------------------------------------------------------------------------- */

static void fix_buffer(struct fuse_builder *builder, uint32_t buffer, uint64_t offset)
{
    const enum fuse_part part = builder->program->options.part;
    struct fuse_buffer *fixed = &builder->program->buffers[buffer];
    fixed->is_fixed = true;
    fixed->comes_in = part != FUSE_PART_FIRST;
    fixed->stays = part != FUSE_PART_LAST;
    fixed->offset = offset;
}

void fuse_builder_hold_gradient(struct fuse_builder *builder, uint32_t parameter, uint32_t buffer)
{
    struct fuse_hold *hold = builder->program->options.hold;
    if (hold == NULL || hold->parameters[parameter].kind == FUSE_HELD_OPERANDS)
        return;
    fix_buffer(builder, buffer, fuse_hold_gradient(hold, parameter, builder->program->buffers[buffer].bytes)->offset);
}

bool fuse_builder_holds_operands(const struct fuse_builder *builder, uint32_t index)
{
    const struct fuse_program_options *options = &builder->program->options;
    const struct fuse_node *node = &builder->graph->nodes[index];
    const struct fuse_tensor *weight = builder->graph->tensors[node->inputs[1]];
    if (options->hold == NULL)
        return false;
    if (options->hold->parameters[weight->parameter].kind != FUSE_HELD_NOTHING)
        return options->hold->parameters[weight->parameter].kind == FUSE_HELD_OPERANDS;
    const double operands = (double)fuse_builder_tensor_bytes(builder, node->inputs[0]) +
                            (double)fuse_builder_tensor_bytes(builder, node->output);
    /* a tied weight's gradient is gathered whole in any case */
    return options->gradients == FUSE_GRADIENTS_RELEASE && options->hold->operand_limit > 0 &&
           builder->use_counts[weight->parameter] == 1 &&
           (double)options->hold->operand_limit * operands <
               (double)fuse_builder_tensor_bytes(builder, node->inputs[1]);
}

/* The buffers of X and dY of the earlier micro-batches of this weight. */
static int operand_buffers(struct fuse_builder *builder, const struct fuse_deferred *deferred, uint32_t **buffers,
                           const struct fuse_held **held)
{
    const struct fuse_graph *graph = builder->graph;
    struct fuse_hold *hold = builder->program->options.hold;
    const struct fuse_node *node = &graph->nodes[deferred->node];
    const struct fuse_tensor *dy = graph->tensors[node->output];
    const uint32_t tensors[] = {node->inputs[0], node->output};
    const uint64_t bytes[] = {fuse_builder_tensor_bytes(builder, tensors[0]),
                              fuse_builder_tensor_bytes(builder, tensors[1])};
    const uint32_t parameter = graph->tensors[node->inputs[1]]->parameter;
    const int64_t rows = fuse_element_count(dy->rank, dy->shape) / dy->shape[dy->rank - 1];
    *held = fuse_hold_operands(hold, parameter, rows, bytes[0], bytes[1]);
    *buffers = &builder->operand_buffers[2 * (size_t)parameter];
    if ((*buffers)[0] != FUSE_NO_BUFFER)
        return FUSERUN_OK;
    const uint64_t all_rows = (uint64_t)(hold->earlier_count * (*held)->rows);
    for (int i = 0; i < 2; i++) {
        FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_ACTIVATION, parameter,
                                         all_rows * (bytes[i] / (uint64_t)rows), &(*buffers)[i]));
        builder->program->buffers[(*buffers)[i]].is_bfloat16 = fuse_builder_is_bfloat16(builder, tensors[i]);
        fix_buffer(builder, (*buffers)[i], i == 0 ? (*held)->offset : (*held)->dy_offset);
    }
    return FUSERUN_OK;
}

/* Copies an operand into the present micro-batch's place among its like. */
static int keep_operand(struct fuse_builder *builder, uint32_t node, uint32_t operand, uint32_t from, uint32_t to)
{
    const struct fuse_tensor *tensor = builder->graph->tensors[operand];
    struct fuse_instruction copy = fuse_instruction_of(FUSERUN_OP_COPY, FUSE_PHASE_BACKWARD, node);
    fuse_instruction_add_input_tensor(&copy, from, tensor);
    fuse_instruction_add_output_tensor(&copy, to, tensor);
    copy.slice_bytes = fuse_builder_tensor_bytes(builder, operand);
    return fuse_builder_add_instruction(builder, &copy);
}

int fuse_builder_keep_operands(struct fuse_builder *builder, const struct fuse_deferred *deferred)
{
    const struct fuse_node *node = &builder->graph->nodes[deferred->node];
    uint32_t value, *buffers;
    const struct fuse_held *held;
    FUSE_TRY(operand_buffers(builder, deferred, &buffers, &held));
    FUSE_TRY(fuse_builder_value(builder, node->inputs[0], &value));
    FUSE_TRY(keep_operand(builder, deferred->node, node->inputs[0], value, buffers[0]));
    return keep_operand(builder, deferred->node, node->output, deferred->dy, buffers[1]);
}

int fuse_builder_add_earlier_operands(struct fuse_builder *builder, const struct fuse_deferred *deferred,
                                      struct fuse_instruction *instruction)
{
    uint32_t *buffers;
    const struct fuse_held *held;
    FUSE_TRY(operand_buffers(builder, deferred, &buffers, &held));
    const int64_t rows = builder->program->options.earlier_count * held->rows;
    const int64_t dy_shape[] = {rows, instruction->op.inputs[0].shape[1]};
    const int64_t x_shape[] = {rows, instruction->op.inputs[1].shape[1]};
    fuse_instruction_add_input(instruction, buffers[1], FUSERUN_FLOAT32, 2, dy_shape);
    fuse_instruction_add_input(instruction, buffers[0], FUSERUN_FLOAT32, 2, x_shape);
    instruction->op.integers[0] = held->rows;
    return FUSERUN_OK;
}
