/* Reverse-mode differentiation of one forward node at a time.
 *
 * The order within a linear layer is the heart of the fused step: dX first (it still reads the old weight), then the
 * bias's gradient, then dW, whose panels may go straight into the update. */
#include "graph/builder.h"

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

/* Marks every tensor that a wanted gradient flows through. A parameter's gradient is wanted if somebody takes it, and
 * as long as it is not there. */
void fuse_builder_mark_gradients(struct fuse_builder *builder)
{
    const struct fuse_graph *graph = builder->graph;
    const enum fuse_gradient_use use = builder->program->options.gradients;
    memset(builder->needs_gradient, 0, graph->tensor_count * sizeof *builder->needs_gradient);
    if (use == FUSE_GRADIENTS_NONE)
        return;
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const struct fuse_parameter *parameter = &graph->parameters[i];
        builder->needs_gradient[parameter->tensor] = !parameter->is_frozen &&
                                                     (use != FUSE_GRADIENTS_RELEASE || parameter->callback_count > 0) &&
                                                     builder->parameter_gradients[i] == FUSE_NO_BUFFER;
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct fuse_node *node = &graph->nodes[i];
        for (uint32_t j = 0; j < node->input_count; j++)
            if (wants_gradient(builder, node->inputs[j]))
                builder->needs_gradient[storage_of(builder, node->output)] = true;
    }
}

/* The buffer for one more contribution to an activation's gradient; *adds tells whether there was one before. */
static int gradient_target(struct fuse_builder *builder, uint32_t tensor, uint32_t *buffer, bool *adds)
{
    uint32_t *slot = &builder->gradients[storage_of(builder, tensor)];
    *adds = *slot != FUSE_NO_BUFFER;
    if (!*adds)
        FUSE_TRY(fuse_builder_add_activation(builder, tensor, slot));
    *buffer = *slot;
    return FUSERUN_OK;
}

/* The same for a parameter: an earlier micro-batch's contribution counts too. */
static int parameter_target(struct fuse_builder *builder, uint32_t parameter, uint32_t *buffer, bool *adds)
{
    uint32_t *slot = &builder->parameter_gradients[parameter];
    *adds = *slot != FUSE_NO_BUFFER;
    if (!*adds) {
        const uint64_t bytes = (uint64_t)builder->graph->parameters[parameter].element_count * sizeof(float);
        FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_GRADIENT, parameter, bytes, slot));
        fuse_builder_hold_gradient(builder, parameter, *slot);
        *adds = builder->program->buffers[*slot].comes_in;
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

static struct fuse_instruction derivative(enum fuse_op_kind kind, uint32_t node)
{
    return fuse_instruction_of(kind, FUSE_PHASE_BACKWARD, node);
}

/* The gradient of a parameter that is node's input: an instruction that so far has its inputs. */
static int add_parameter_gradient(struct fuse_builder *builder, struct fuse_instruction *instruction, uint32_t tensor)
{
    const struct fuse_tensor *parameter = tensor_of(builder, tensor);
    const int64_t shape[] = {parameter->shape[0], fuse_element_count(parameter->rank, parameter->shape) /
                                                      (parameter->rank == 0 ? 1 : parameter->shape[0])};
    uint32_t target;
    bool adds;
    FUSE_TRY(parameter_target(builder, parameter->parameter, &target, &adds));
    instruction->parameter = parameter->parameter;
    if (instruction->op.kind == FUSERUN_OP_LINEAR_DW || instruction->op.kind == FUSERUN_OP_LINEAR_DW_SUM)
        fuse_instruction_add_output(instruction, target, FUSERUN_FLOAT32, 2, shape);
    else {
        const int64_t count = fuse_element_count(parameter->rank, parameter->shape);
        fuse_instruction_add_output(instruction, target, FUSERUN_FLOAT32, 1, &count);
    }
    return add_contribution(builder, instruction, adds);
}

/* The gradient of an activation that is node's input. */
static int add_activation_gradient(struct fuse_builder *builder, struct fuse_instruction *instruction, uint32_t tensor,
                                   bool is_structured)
{
    const struct fuse_tensor *shape = tensor_of(builder, tensor);
    uint32_t target;
    bool adds;
    FUSE_TRY(gradient_target(builder, tensor, &target, &adds));
    if (is_structured)
        fuse_instruction_add_output(instruction, target, FUSERUN_FLOAT32, shape->rank, shape->shape);
    else
        fuse_instruction_add_output_tensor(instruction, target, shape);
    return add_contribution(builder, instruction, adds);
}

static void add_whole_input(struct fuse_instruction *instruction, uint32_t buffer, const struct fuse_tensor *tensor)
{
    fuse_instruction_add_input(instruction, buffer, FUSERUN_FLOAT32, tensor->rank, tensor->shape);
}

static void copy_attributes(struct fuse_instruction *instruction, const struct fuse_node *node)
{
    instruction->op.integers[0] = node->integers[0];
    instruction->op.integers[1] = node->integers[1];
    instruction->op.numbers[0] = node->numbers[0];
}

/* The two operands of a linear weight's gradient, and those of earlier micro-batches where they are held. */
static int add_product_inputs(struct fuse_builder *builder, const struct fuse_deferred *deferred,
                              struct fuse_instruction *instruction)
{
    const struct fuse_node *node = &builder->graph->nodes[deferred->node];
    uint32_t value;
    FUSE_TRY(fuse_builder_value(builder, node->inputs[0], &value));
    fuse_instruction_add_input_tensor(instruction, deferred->dy, tensor_of(builder, node->output));
    fuse_instruction_add_input_tensor(instruction, value, tensor_of(builder, node->inputs[0]));
    if (!fuse_builder_holds_operands(builder, deferred->node))
        return FUSERUN_OK;
    instruction->op.kind =
        instruction->op.kind == FUSERUN_OP_LINEAR_DW ? FUSERUN_OP_LINEAR_DW_SUM : FUSERUN_OP_LINEAR_DW_SUM_NORM;
    return fuse_builder_add_earlier_operands(builder, deferred, instruction);
}

int fuse_builder_form_deferred(struct fuse_builder *builder, const struct fuse_deferred *deferred)
{
    struct fuse_instruction dw = derivative(FUSERUN_OP_LINEAR_DW, deferred->node);
    FUSE_TRY(add_product_inputs(builder, deferred, &dw));
    return add_parameter_gradient(builder, &dw, builder->graph->nodes[deferred->node].inputs[1]);
}

/* Where parameter p's sum of squares goes. */
static int add_norm_output(struct fuse_builder *builder, uint32_t p, struct fuse_instruction *instruction)
{
    static const int64_t one[] = {1};
    uint32_t *buffer = &builder->program->norm_buffers[p];
    FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_WORKSPACE, UINT32_MAX, sizeof(double), buffer));
    fuse_instruction_add_output(instruction, *buffer, FUSERUN_FLOAT64, 1, one);
    return fuse_builder_add_instruction(builder, instruction);
}

static int measure_product(struct fuse_builder *builder, const struct fuse_deferred *deferred)
{
    const uint32_t weight = builder->graph->nodes[deferred->node].inputs[1];
    struct fuse_instruction norm = derivative(FUSERUN_OP_LINEAR_DW_NORM, deferred->node);
    FUSE_TRY(add_product_inputs(builder, deferred, &norm));
    return add_norm_output(builder, tensor_of(builder, weight)->parameter, &norm);
}

int fuse_builder_measure_whole(struct fuse_builder *builder)
{
    for (uint32_t p = 0; p < builder->graph->parameter_count; p++) {
        if (builder->parameter_gradients[p] == FUSE_NO_BUFFER)
            continue;
        const int64_t count = builder->graph->parameters[p].element_count;
        struct fuse_instruction norm = derivative(FUSERUN_OP_SUM_SQUARES, UINT32_MAX);
        fuse_instruction_add_input(&norm, builder->parameter_gradients[p], FUSERUN_FLOAT32, 1, &count);
        FUSE_TRY(add_norm_output(builder, p, &norm));
    }
    return FUSERUN_OK;
}

static int derive_linear(struct fuse_builder *builder, uint32_t index, uint32_t dy)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    const struct fuse_tensor *y = tensor_of(builder, node->output);
    const uint32_t x = node->inputs[0], weight = node->inputs[1], bias = node->inputs[2];
    if (wants_gradient(builder, x)) {
        struct fuse_instruction dx = derivative(FUSERUN_OP_LINEAR_DX, index);
        fuse_instruction_add_input_tensor(&dx, dy, y);
        fuse_instruction_add_node_input(&dx, builder, node, 1, builder->values[weight]);
        FUSE_TRY(add_activation_gradient(builder, &dx, x, false));
    }
    if (wants_gradient(builder, bias)) {
        struct fuse_instruction db = derivative(FUSERUN_OP_LINEAR_DB, index);
        fuse_instruction_add_input_tensor(&db, dy, y);
        FUSE_TRY(add_parameter_gradient(builder, &db, bias));
    }
    if (!wants_gradient(builder, weight))
        return FUSERUN_OK;
    /* a tied weight's norm is not the sum of its uses' norms, nor that of several micro-batches the sum of theirs: such
     * a gradient is gathered whole in any case */
    const bool is_alone = builder->use_counts[tensor_of(builder, weight)->parameter] == 1;
    const struct fuse_deferred here = {index, dy};
    const enum fuse_part part = builder->program->options.part;
    const bool holds_operands = fuse_builder_holds_operands(builder, index);
    if (holds_operands && part != FUSE_PART_LAST)
        return fuse_builder_keep_operands(builder, &here);
    if (builder->measures && is_alone && (holds_operands || part == FUSE_PART_ONLY)) {
        FUSE_TRY(measure_product(builder, &here));
        if (builder->defers)
            builder->deferred[builder->deferred_count++] = here;
        return FUSERUN_OK;
    }
    return fuse_builder_form_deferred(builder, &here);
}

/* y = f(x), with `kept` the tensor (x or y) that the derivative is written in. */
static int derive_unary(struct fuse_builder *builder, uint32_t index, uint32_t dy, enum fuse_op_kind kind,
                        uint32_t kept)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    uint32_t value;
    FUSE_TRY(fuse_builder_value(builder, kept, &value));
    struct fuse_instruction dx = derivative(kind, index);
    fuse_instruction_add_input_tensor(&dx, dy, tensor_of(builder, node->output));
    fuse_instruction_add_input_tensor(&dx, value, tensor_of(builder, kept));
    return add_activation_gradient(builder, &dx, node->inputs[0], false);
}

/* Gives dy itself to an input: its first contribution takes over dy's buffer if `may_take` and it is of the right kind,
 * else copies; later ones add. */
static int hand_on(struct fuse_builder *builder, uint32_t index, uint32_t dy, uint32_t input, bool may_take)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    uint32_t *slot = &builder->gradients[storage_of(builder, input)];
    if (*slot == FUSE_NO_BUFFER && may_take && !builder->keeps_loss_gradient &&
        builder->program->buffers[dy].is_bfloat16 == fuse_builder_is_bfloat16(builder, input)) {
        *slot = dy;
        return FUSERUN_OK;
    }
    uint32_t target;
    bool adds;
    FUSE_TRY(gradient_target(builder, input, &target, &adds));
    struct fuse_instruction give = derivative(adds ? FUSERUN_OP_ADD : FUSERUN_OP_COPY, index);
    if (adds)
        fuse_instruction_add_input_tensor(&give, target, tensor_of(builder, input));
    fuse_instruction_add_input_tensor(&give, dy, tensor_of(builder, node->output));
    fuse_instruction_add_output_tensor(&give, target, tensor_of(builder, input));
    return fuse_builder_add_instruction(builder, &give);
}

/* In y = a + b, may b's gradient lie in the buffer that a's has taken over? Only if nothing is added to either before
 * b's producer has read it: b is used here alone, every other use of a comes before b is made (so its contribution
 * comes after, backwards), and b's producer does not hand its gradient on in turn. */
static bool may_share(const struct fuse_builder *builder, uint32_t index, uint32_t a, uint32_t b)
{
    const struct fuse_graph *graph = builder->graph;
    const uint32_t producer = builder->producer[storage_of(builder, b)];
    const uint32_t a_producer = builder->producer[storage_of(builder, a)];
    if (producer == UINT32_MAX || (a_producer != UINT32_MAX && a_producer > producer) ||
        storage_of(builder, a) == storage_of(builder, b) || graph->nodes[producer].kind == FUSERUN_OP_ADD ||
        graph->nodes[producer].kind == FUSERUN_OP_ADD_BATCH)
        return false;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct fuse_node *other = &graph->nodes[i];
        for (uint32_t j = 0; j < other->input_count && i != index; j++) {
            if (other->inputs[j] == UINT32_MAX)
                continue;
            const uint32_t storage = storage_of(builder, other->inputs[j]);
            if (storage == storage_of(builder, b) || (storage == storage_of(builder, a) && i >= producer))
                return false;
        }
    }
    return true;
}

static int derive_add(struct fuse_builder *builder, uint32_t index, uint32_t dy)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    const uint32_t a = node->inputs[0], b = node->inputs[1];
    const bool wants_a = wants_gradient(builder, a), wants_b = wants_gradient(builder, b);
    const bool is_a_new = wants_a && builder->gradients[storage_of(builder, a)] == FUSE_NO_BUFFER;
    const bool shares =
        is_a_new && !builder->defers && (may_share(builder, index, a, b) || may_share(builder, index, b, a));
    /* the one that cannot take over goes first, while dy is still only dy */
    if (wants_b)
        FUSE_TRY(hand_on(builder, index, dy, b, !is_a_new || shares));
    if (wants_a)
        FUSE_TRY(hand_on(builder, index, dy, a, is_a_new || !wants_b));
    return FUSERUN_OK;
}

static int derive_layer_norm(struct fuse_builder *builder, uint32_t index, uint32_t dy)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    const struct fuse_tensor *y = tensor_of(builder, node->output), *x = tensor_of(builder, node->inputs[0]);
    const struct fuse_tensor *mean = tensor_of(builder, node->extras[0]), *rstd = tensor_of(builder, node->extras[1]);
    uint32_t value;
    FUSE_TRY(fuse_builder_value(builder, node->inputs[0], &value));
    if (wants_gradient(builder, node->inputs[1])) {
        struct fuse_instruction dw = derivative(FUSERUN_OP_LAYER_NORM_DW, index);
        fuse_instruction_add_input_tensor(&dw, dy, y);
        fuse_instruction_add_input_tensor(&dw, value, x);
        add_whole_input(&dw, builder->values[mean->storage], mean);
        add_whole_input(&dw, builder->values[rstd->storage], rstd);
        FUSE_TRY(add_parameter_gradient(builder, &dw, node->inputs[1]));
    }
    if (wants_gradient(builder, node->inputs[2])) {
        struct fuse_instruction db = derivative(FUSERUN_OP_LINEAR_DB, index);
        fuse_instruction_add_input_tensor(&db, dy, y);
        FUSE_TRY(add_parameter_gradient(builder, &db, node->inputs[2]));
    }
    if (wants_gradient(builder, node->inputs[0])) {
        struct fuse_instruction dx = derivative(FUSERUN_OP_LAYER_NORM_DX, index);
        fuse_instruction_add_input_tensor(&dx, dy, y);
        fuse_instruction_add_input_tensor(&dx, value, x);
        fuse_instruction_add_node_input(&dx, builder, node, 1, builder->values[node->inputs[1]]);
        add_whole_input(&dx, builder->values[mean->storage], mean);
        add_whole_input(&dx, builder->values[rstd->storage], rstd);
        FUSE_TRY(add_activation_gradient(builder, &dx, node->inputs[0], false));
    }
    return FUSERUN_OK;
}

static int derive_attention(struct fuse_builder *builder, uint32_t index, uint32_t dy)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    const struct fuse_tensor *y = tensor_of(builder, node->output), *qkv = tensor_of(builder, node->inputs[0]);
    const struct fuse_tensor *lse = tensor_of(builder, node->extras[0]);
    uint32_t qkv_value, y_value;
    FUSE_TRY(fuse_builder_value(builder, node->inputs[0], &qkv_value));
    FUSE_TRY(fuse_builder_value(builder, node->output, &y_value));
    struct fuse_instruction dx = derivative(FUSERUN_OP_ATTENTION_DX, index);
    copy_attributes(&dx, node);
    add_whole_input(&dx, dy, y);
    add_whole_input(&dx, qkv_value, qkv);
    add_whole_input(&dx, y_value, y);
    add_whole_input(&dx, builder->values[lse->storage], lse);
    return add_activation_gradient(builder, &dx, node->inputs[0], true);
}

/* dy alone makes the gradient of the activation (and, with another operation, that of a parameter). */
static int derive_structured(struct fuse_builder *builder, uint32_t index, uint32_t dy, enum fuse_op_kind dx_kind,
                             enum fuse_op_kind dw_kind)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    const struct fuse_tensor *y = tensor_of(builder, node->output);
    if (node->input_count > 1 && wants_gradient(builder, node->inputs[1])) {
        struct fuse_instruction dw = derivative(dw_kind, index);
        add_whole_input(&dw, dy, y);
        FUSE_TRY(add_parameter_gradient(builder, &dw, node->inputs[1]));
    }
    if (!wants_gradient(builder, node->inputs[0]))
        return FUSERUN_OK;
    if (node->kind == FUSERUN_OP_ADD_BATCH)
        return hand_on(builder, index, dy, node->inputs[0], true);
    struct fuse_instruction dx = derivative(dx_kind, index);
    copy_attributes(&dx, node);
    add_whole_input(&dx, dy, y);
    return add_activation_gradient(builder, &dx, node->inputs[0], true);
}

int fuse_builder_derive(struct fuse_builder *builder, uint32_t index)
{
    const struct fuse_node *node = &builder->graph->nodes[index];
    const uint32_t dy = builder->gradients[storage_of(builder, node->output)];
    if (dy == FUSE_NO_BUFFER || !wants_gradient(builder, node->output))
        return FUSERUN_OK; /* the loss does not depend on it, or nothing behind it learns */
    switch (node->kind) {
    case FUSERUN_OP_LINEAR:
        return derive_linear(builder, index, dy);
    case FUSERUN_OP_RELU:
        return derive_unary(builder, index, dy, FUSERUN_OP_RELU_DX, node->output);
    case FUSERUN_OP_GELU:
        return derive_unary(builder, index, dy, FUSERUN_OP_GELU_DX, node->inputs[0]);
    case FUSERUN_OP_TANH:
        return derive_unary(builder, index, dy, FUSERUN_OP_TANH_DX, node->output);
    case FUSERUN_OP_ADD:
        return derive_add(builder, index, dy);
    case FUSERUN_OP_LAYER_NORM:
        return derive_layer_norm(builder, index, dy);
    case FUSERUN_OP_ATTENTION:
        return derive_attention(builder, index, dy);
    case FUSERUN_OP_PREPEND:
        return derive_structured(builder, index, dy, FUSERUN_OP_PREPEND_DX, FUSERUN_OP_PREPEND_DW);
    case FUSERUN_OP_ADD_BATCH:
        return derive_structured(builder, index, dy, FUSERUN_OP_COPY, FUSERUN_OP_ADD_BATCH_DW);
    case FUSERUN_OP_SELECT:
        return derive_structured(builder, index, dy, FUSERUN_OP_SELECT_DX, 0);
    case FUSERUN_OP_DROPOUT:
        return derive_structured(builder, index, dy, FUSERUN_OP_DROPOUT, 0);
    default:
        return fuse_fail(builder->error, FUSERUN_ERROR_INTERNAL, NULL, "operation %d has no backward pass",
                         (int)node->kind);
    }
}
