/* Reverse-mode differentiation on the list of forward nodes, and where post-accumulate callbacks go.
 *
 * The order within a linear layer is the heart of the fused step: dX first (it still reads the old weight), then the
 * bias's gradient, then dW, whose panels may go straight into the update. */
#include "graph/builder.h"

#include <stdlib.h>
#include <string.h>

static const struct fuse_tensor *tensor_of(const struct fuse_builder *builder, uint32_t index)
{
    return builder->graph->tensors[index];
}

static uint32_t storage_of(const struct fuse_builder *builder, uint32_t index)
{
    return builder->graph->tensors[index]->storage;
}

static bool wants_gradient(const struct fuse_builder *builder, uint32_t tensor)
{
    return tensor != UINT32_MAX && builder->needs_gradient[storage_of(builder, tensor)];
}

/* Marks every tensor that a wanted gradient flows through. A parameter's gradient is wanted if somebody takes it. */
int fuse_builder_mark_gradients(struct fuse_builder *builder)
{
    const struct fuse_graph *graph = builder->graph;
    const enum fuse_gradient_use use = builder->program->options.gradients;
    if (use == FUSE_GRADIENTS_NONE)
        return FUSERUN_OK;
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const struct fuse_parameter *parameter = &graph->parameters[i];
        builder->needs_gradient[parameter->tensor] =
            !parameter->is_frozen && (use != FUSE_GRADIENTS_RELEASE || parameter->callback_count > 0);
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct fuse_node *node = &graph->nodes[i];
        for (uint32_t j = 0; j < node->input_count; j++)
            if (wants_gradient(builder, node->inputs[j]))
                builder->needs_gradient[storage_of(builder, node->output)] = true;
    }
    return FUSERUN_OK;
}

/* The buffer for one more contribution to an activation's gradient; *adds tells whether there was one before. */
static int gradient_target(struct fuse_builder *builder, uint32_t tensor, uint32_t *buffer, bool *adds)
{
    uint32_t *slot = &builder->gradients[storage_of(builder, tensor)];
    *adds = *slot != FUSE_NO_BUFFER;
    if (!*adds) {
        const struct fuse_tensor *shape = tensor_of(builder, tensor);
        const uint64_t bytes = (uint64_t)fuse_element_count(shape->rank, shape->shape) * sizeof(float);
        FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_ACTIVATION, UINT32_MAX, bytes, slot));
    }
    *buffer = *slot;
    return FUSERUN_OK;
}

/* The same for a parameter. */
static int parameter_target(struct fuse_builder *builder, uint32_t parameter, uint32_t *buffer, bool *adds)
{
    uint32_t *slot = &builder->parameter_gradients[parameter];
    *adds = *slot != FUSE_NO_BUFFER;
    if (!*adds) {
        const uint64_t bytes = (uint64_t)builder->graph->parameters[parameter].element_count * sizeof(float);
        FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_GRADIENT, parameter, bytes, slot));
    }
    *buffer = *slot;
    return FUSERUN_OK;
}

static int add_contribution(struct fuse_builder *builder, struct fuse_instruction *instruction, bool adds)
{
    if (adds)
        instruction->op.flags |= FUSERUN_OP_ACCUMULATE;
    return fuse_builder_add_instruction(builder, instruction);
}

static int linear_backward(struct fuse_builder *builder, uint32_t index, uint32_t dy)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    const struct fuse_tensor *y = tensor_of(builder, node->output);
    const uint32_t x = node->inputs[0], weight = node->inputs[1], bias = node->inputs[2];
    uint32_t target;
    bool adds;
    if (wants_gradient(builder, x)) {
        FUSE_TRY(gradient_target(builder, x, &target, &adds));
        struct fuse_instruction dx = fuse_instruction_of(FUSERUN_OP_LINEAR_DX, FUSE_PHASE_BACKWARD, index);
        fuse_instruction_add_input_tensor(&dx, dy, y);
        fuse_instruction_add_input_tensor(&dx, builder->values[weight], tensor_of(builder, weight));
        fuse_instruction_add_output_tensor(&dx, target, tensor_of(builder, x));
        FUSE_TRY(add_contribution(builder, &dx, adds));
    }
    if (wants_gradient(builder, bias)) {
        const struct fuse_tensor *tensor = tensor_of(builder, bias);
        FUSE_TRY(parameter_target(builder, tensor->parameter, &target, &adds));
        struct fuse_instruction db = fuse_instruction_of(FUSERUN_OP_LINEAR_DB, FUSE_PHASE_BACKWARD, index);
        db.parameter = tensor->parameter;
        fuse_instruction_add_input_tensor(&db, dy, y);
        fuse_instruction_add_output(&db, target, FUSERUN_FLOAT32, tensor->rank, tensor->shape);
        FUSE_TRY(add_contribution(builder, &db, adds));
    }
    if (wants_gradient(builder, weight)) {
        const struct fuse_tensor *tensor = tensor_of(builder, weight);
        FUSE_TRY(parameter_target(builder, tensor->parameter, &target, &adds));
        struct fuse_instruction dw = fuse_instruction_of(FUSERUN_OP_LINEAR_DW, FUSE_PHASE_BACKWARD, index);
        dw.parameter = tensor->parameter;
        fuse_instruction_add_input_tensor(&dw, dy, y);
        fuse_instruction_add_input_tensor(&dw, builder->values[storage_of(builder, x)], tensor_of(builder, x));
        fuse_instruction_add_output_tensor(&dw, target, tensor);
        FUSE_TRY(add_contribution(builder, &dw, adds));
    }
    return FUSERUN_OK;
}

/* y = f(x), with `kept` the tensor (x or y) that the derivative is written in. */
static int unary_backward(struct fuse_builder *builder, uint32_t index, uint32_t dy, enum fuse_op_kind kind,
                          uint32_t kept)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    uint32_t target;
    bool adds;
    FUSE_TRY(gradient_target(builder, node->inputs[0], &target, &adds));
    struct fuse_instruction dx = fuse_instruction_of(kind, FUSE_PHASE_BACKWARD, index);
    fuse_instruction_add_input_tensor(&dx, dy, tensor_of(builder, node->output));
    fuse_instruction_add_input_tensor(&dx, builder->values[storage_of(builder, kept)], tensor_of(builder, kept));
    fuse_instruction_add_output_tensor(&dx, target, tensor_of(builder, node->inputs[0]));
    return add_contribution(builder, &dx, adds);
}

/* Both inputs of a sum get dy itself. The first one without a gradient so far simply takes over dy's buffer: nobody
 * else needs it any more. */
static int add_backward(struct fuse_builder *builder, uint32_t index, uint32_t dy)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    uint32_t heir = UINT32_MAX;
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t input = node->inputs[j];
        if (heir == UINT32_MAX && wants_gradient(builder, input) &&
            builder->gradients[storage_of(builder, input)] == FUSE_NO_BUFFER)
            heir = j;
    }
    if (heir != UINT32_MAX)
        builder->gradients[storage_of(builder, node->inputs[heir])] = dy;
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t input = node->inputs[j];
        if (j == heir || !wants_gradient(builder, input))
            continue;
        uint32_t target;
        bool adds;
        FUSE_TRY(gradient_target(builder, input, &target, &adds));
        struct fuse_instruction give =
            fuse_instruction_of(adds ? FUSERUN_OP_ADD : FUSERUN_OP_COPY, FUSE_PHASE_BACKWARD, index);
        if (adds)
            fuse_instruction_add_input_tensor(&give, target, tensor_of(builder, input));
        fuse_instruction_add_input_tensor(&give, dy, tensor_of(builder, node->output));
        fuse_instruction_add_output_tensor(&give, target, tensor_of(builder, input));
        FUSE_TRY(fuse_builder_add_instruction(builder, &give));
    }
    return FUSERUN_OK;
}

static int node_backward(struct fuse_builder *builder, uint32_t index)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    const uint32_t dy = builder->gradients[storage_of(builder, node->output)];
    if (dy == FUSE_NO_BUFFER || !wants_gradient(builder, node->output))
        return FUSERUN_OK; /* the loss does not depend on it, or nothing behind it learns */
    switch (node->kind) {
    case FUSERUN_OP_LINEAR:
        return linear_backward(builder, index, dy);
    case FUSERUN_OP_RELU:
        return unary_backward(builder, index, dy, FUSERUN_OP_RELU_DX, node->output);
    case FUSERUN_OP_GELU:
        return unary_backward(builder, index, dy, FUSERUN_OP_GELU_DX, node->inputs[0]);
    case FUSERUN_OP_TANH:
        return unary_backward(builder, index, dy, FUSERUN_OP_TANH_DX, node->output);
    case FUSERUN_OP_ADD:
        return add_backward(builder, index, dy);
    default:
        return fuse_fail(builder->error, FUSERUN_ERROR_INTERNAL, NULL, "operation %d has no backward pass",
                         (int)node->kind);
    }
}

/* ---- post-accumulate callbacks ------------------------------------------------------------------------------- */

/* What the list says about one parameter. */
struct use {
    uint32_t contribution_count;
    uint32_t last_contribution; /* index of the instruction */
    uint32_t last_read;         /* of the weight; UINT32_MAX: never */
    bool takes_panels;          /* its gradient need not exist */
};

static bool are_all_for_panels(const struct fuse_parameter *parameter)
{
    for (uint32_t i = 0; i < parameter->callback_count; i++)
        if (parameter->callbacks[i].form != FUSERUN_GRADIENT_PANELS)
            return false;
    return true;
}

/* A gradient that need not exist: one product makes it, nothing reads the weight afterwards, and every callback takes
 * pieces. */
static bool may_panel(const struct fuse_builder *builder, uint32_t p, const struct use *use)
{
    const struct fuse_program *program = builder->program;
    return program->options.gradients == FUSE_GRADIENTS_RELEASE && use->contribution_count == 1 &&
           program->instructions[use->last_contribution].op.kind == FUSERUN_OP_LINEAR_DW &&
           (use->last_read == UINT32_MAX || use->last_read < use->last_contribution) &&
           are_all_for_panels(&builder->graph->parameters[p]);
}

static void find_uses(const struct fuse_builder *builder, struct use *uses)
{
    const struct fuse_program *program = builder->program;
    for (uint32_t p = 0; p < builder->graph->parameter_count; p++)
        uses[p] = (struct use){.last_read = UINT32_MAX};
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        const struct fuse_instruction *instruction = &program->instructions[i];
        if (instruction->parameter != UINT32_MAX) {
            uses[instruction->parameter].contribution_count++;
            uses[instruction->parameter].last_contribution = i;
        }
        for (uint32_t j = 0; j < instruction->op.input_count; j++) {
            const struct fuse_buffer *buffer = &program->buffers[instruction->inputs[j]];
            if (buffer->is_parameter)
                uses[buffer->parameter].last_read = i;
        }
    }
    for (uint32_t p = 0; p < builder->graph->parameter_count; p++)
        uses[p].takes_panels = may_panel(builder, p, &uses[p]);
}

/* Sets the list down again with the callbacks in their places: behind the last contribution and the last read. */
static int place_callbacks(struct fuse_builder *builder, const struct use *uses)
{
    struct fuse_program *program = builder->program;
    struct fuse_instruction *drafted = program->instructions;
    const uint32_t drafted_count = program->instruction_count;
    int status = FUSERUN_OK;
    program->instructions = NULL;
    program->instruction_count = program->instruction_capacity = 0;
    for (uint32_t i = 0; i < drafted_count && status == FUSERUN_OK; i++) {
        struct fuse_instruction *instruction = &drafted[i];
        const uint32_t maker = instruction->parameter;
        if (maker != UINT32_MAX && uses[maker].takes_panels)
            instruction->op.flags |= FUSERUN_OP_PANELS;
        status = fuse_builder_add_instruction(builder, instruction);
        for (uint32_t p = 0; p < builder->graph->parameter_count && status == FUSERUN_OK; p++) {
            const struct use *use = &uses[p];
            const uint32_t last_read = use->last_read == UINT32_MAX ? 0 : use->last_read;
            const uint32_t place = use->last_contribution > last_read ? use->last_contribution : last_read;
            if (use->contribution_count == 0 || place != i || builder->graph->parameters[p].callback_count == 0 ||
                use->takes_panels)
                continue;
            struct fuse_instruction callbacks = fuse_instruction_of(0, FUSE_PHASE_BACKWARD, instruction->node);
            callbacks.kind = FUSE_RUN_CALLBACKS;
            callbacks.parameter = p;
            callbacks.inputs[callbacks.op.input_count++] = builder->parameter_gradients[p];
            status = fuse_builder_add_instruction(builder, &callbacks);
        }
    }
    free(drafted);
    return status;
}

static int add_after_backward(struct fuse_builder *builder)
{
    const struct fuse_program *program = builder->program;
    struct fuse_instruction after = fuse_instruction_of(0, FUSE_PHASE_OPTIMIZER, UINT32_MAX);
    after.kind = FUSE_RUN_AFTER;
    if (program->options.gradients == FUSE_GRADIENTS_KEEP_ALL)
        return fuse_builder_add_instruction(builder, &after);
    for (uint32_t p = 0; p < builder->graph->parameter_count; p++) {
        if (builder->parameter_gradients[p] == FUSE_NO_BUFFER)
            continue;
        after.parameter = p;
        FUSE_TRY(fuse_builder_add_instruction(builder, &after));
    }
    return FUSERUN_OK;
}

int fuse_builder_add_backward(struct fuse_builder *builder)
{
    int status = FUSERUN_OK;
    struct use *uses = NULL;
    for (uint32_t i = builder->graph->node_count; i-- > 0;)
        FUSE_TRY_OUT(node_backward(builder, i));
    const size_t bytes = (builder->graph->parameter_count + 1) * sizeof *uses;
    uses = malloc(bytes);
    if (uses == NULL) {
        status = fuse_fail_memory(builder->error, "the backward pass", bytes);
        goto out;
    }
    find_uses(builder, uses);
    FUSE_TRY_OUT(place_callbacks(builder, uses));
    if (builder->program->options.gradients != FUSE_GRADIENTS_RELEASE)
        FUSE_TRY_OUT(add_after_backward(builder));
out:
    free(uses);
    return status;
}
