/* Forward nodes as instructions: once in the forward pass, and again in the backward pass for values that were not
 * kept. */
#include "graph/builder.h"

#include <string.h>

static bool is_structured(enum fuse_op_kind kind)
{
    return kind >= FUSERUN_OP_PATCHES && kind != FUSERUN_OP_LAYER_NORM;
}

void fuse_instruction_add_node_input(struct fuse_instruction *instruction, const struct fuse_builder *builder,
                                     const struct fuse_node *node, uint32_t input, uint32_t buffer)
{
    const struct fuse_tensor *tensor = builder->graph->tensors[node->inputs[input]];
    const bool is_weight = node->kind == FUSERUN_OP_LINEAR && input == 1;
    const int64_t rows = tensor->rank == 0 ? 1 : tensor->shape[0];
    const int64_t weight_shape[] = {rows, fuse_element_count(tensor->rank, tensor->shape) / rows};
    if (is_weight)
        fuse_instruction_add_input(instruction, buffer, FUSERUN_FLOAT32, 2, weight_shape);
    else if (is_structured(node->kind) || tensor->role == FUSE_TENSOR_PARAMETER)
        fuse_instruction_add_input(instruction, buffer, FUSERUN_FLOAT32, tensor->rank, tensor->shape);
    else
        fuse_instruction_add_input_tensor(instruction, buffer, tensor);
}

int fuse_builder_add_node(struct fuse_builder *builder, uint32_t index, enum fuse_phase phase, const uint32_t *values,
                          uint32_t output)
{
    const struct fuse_graph *graph = builder->graph;
    const struct fuse_node *node = &graph->nodes[index];
    const struct fuse_tensor *y = graph->tensors[node->output];
    struct fuse_instruction run = fuse_instruction_of(node->kind, phase, index);
    run.op.integers[0] = node->integers[0];
    run.op.integers[1] = node->integers[1];
    run.op.numbers[0] = node->numbers[0];
    if ((node->kind == FUSERUN_OP_ATTENTION || node->kind == FUSERUN_OP_DROPOUT) &&
        builder->program->options.gradients == FUSE_GRADIENTS_NONE)
        run.op.numbers[0] = 0; /* no dropout in evaluation */
    for (uint32_t j = 0; j < node->input_count; j++)
        if (node->inputs[j] != UINT32_MAX)
            fuse_instruction_add_node_input(&run, builder, node, j, values[j]);
    if (is_structured(node->kind))
        fuse_instruction_add_output(&run, output, FUSERUN_FLOAT32, y->rank, y->shape);
    else
        fuse_instruction_add_output_tensor(&run, output, y);
    for (uint32_t j = 0; j < node->extra_count; j++) {
        const struct fuse_tensor *extra = graph->tensors[node->extras[j]];
        fuse_instruction_add_output(&run, builder->values[extra->storage], FUSERUN_FLOAT32, extra->rank, extra->shape);
    }
    return fuse_builder_add_instruction(builder, &run);
}

/* A layer norm's mean and rstd, an attention's lse: float32 in any precision. */
static int add_statistics(struct fuse_builder *builder, uint32_t tensor, uint32_t *buffer)
{
    const struct fuse_tensor *shape = builder->graph->tensors[tensor];
    const uint64_t bytes = (uint64_t)fuse_element_count(shape->rank, shape->shape) * sizeof(float);
    return fuse_builder_add_buffer(builder, FUSE_CATEGORY_ACTIVATION, UINT32_MAX, bytes, buffer);
}

/* Evaluation drops nothing: a dropout's output is its input, unless one is to be rounded and the other not. */
static bool is_no_op(const struct fuse_builder *builder, const struct fuse_node *node, uint32_t input)
{
    return node->kind == FUSERUN_OP_DROPOUT && builder->program->options.gradients == FUSE_GRADIENTS_NONE &&
           builder->program->buffers[input].is_bfloat16 == fuse_builder_is_bfloat16(builder, node->output);
}

int fuse_builder_add_forward(struct fuse_builder *builder)
{
    const struct fuse_graph *graph = builder->graph;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct fuse_node *node = &graph->nodes[i];
        uint32_t values[4];
        for (uint32_t j = 0; j < node->input_count; j++)
            values[j] = node->inputs[j] == UINT32_MAX ? FUSE_NO_BUFFER
                                                      : builder->values[graph->tensors[node->inputs[j]]->storage];
        builder->producer[node->output] = i;
        if (is_no_op(builder, node, values[0])) {
            builder->values[node->output] = values[0];
            continue;
        }
        FUSE_TRY(fuse_builder_add_activation(builder, node->output, &builder->values[node->output]));
        for (uint32_t j = 0; j < node->extra_count; j++)
            FUSE_TRY(add_statistics(builder, node->extras[j], &builder->values[node->extras[j]]));
        FUSE_TRY(fuse_builder_add_node(builder, i, FUSE_PHASE_FORWARD, values, builder->values[node->output]));
    }
    for (uint32_t i = 0; i < graph->node_count; i++)
        for (uint32_t j = 0; j < graph->nodes[i].input_count; j++) {
            const uint32_t input = graph->nodes[i].inputs[j];
            if (input != UINT32_MAX && graph->tensors[input]->role == FUSE_TENSOR_PARAMETER)
                builder->use_counts[graph->tensors[input]->parameter]++;
            const uint32_t producer =
                input == UINT32_MAX ? UINT32_MAX : builder->producer[graph->tensors[input]->storage];
            if (producer != UINT32_MAX && graph->nodes[producer].block != graph->nodes[i].block)
                builder->crosses_blocks[graph->tensors[input]->storage] = true;
        }
    return FUSERUN_OK;
}

/* Made again from what is kept anyway, in one pass over memory: never worth its place from forward to backward. */
static bool is_cheap(enum fuse_op_kind kind)
{
    return kind == FUSERUN_OP_LAYER_NORM || kind == FUSERUN_OP_GELU || kind == FUSERUN_OP_DROPOUT ||
           kind == FUSERUN_OP_PATCHES;
}

/* The last block is not made again: the backward pass needs it at once. */
static bool is_dropped(const struct fuse_builder *builder, const struct fuse_node *node)
{
    return builder->program->options.recomputes_blocks && node->block > 0 && node->block < builder->graph->block_count;
}

int fuse_builder_value(struct fuse_builder *builder, uint32_t tensor, uint32_t *buffer)
{
    const struct fuse_graph *graph = builder->graph;
    const uint32_t storage = graph->tensors[tensor]->storage;
    const uint32_t producer = builder->producer[storage];
    *buffer = builder->values[storage];
    if (producer == UINT32_MAX || builder->crosses_blocks[storage])
        return FUSERUN_OK;
    const struct fuse_node *node = &graph->nodes[producer];
    if (!is_cheap(node->kind) && !is_dropped(builder, node))
        return FUSERUN_OK;
    if (builder->again[storage] == FUSE_NO_BUFFER) {
        uint32_t values[4];
        for (uint32_t j = 0; j < node->input_count; j++) {
            values[j] = FUSE_NO_BUFFER;
            if (node->inputs[j] != UINT32_MAX)
                FUSE_TRY(fuse_builder_value(builder, node->inputs[j], &values[j]));
        }
        uint32_t made;
        FUSE_TRY(fuse_builder_add_activation(builder, node->output, &made));
        builder->again[storage] = made;
        FUSE_TRY(fuse_builder_add_node(builder, producer, FUSE_PHASE_BACKWARD, values, made));
    }
    *buffer = builder->again[storage];
    return FUSERUN_OK;
}
