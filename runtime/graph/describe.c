#include "graph/describe.h"

#include <string.h>

const char *fuse_op_name(enum fuse_op_kind kind)
{
    static const char *const names[] = {
        [FUSERUN_OP_LINEAR] = "linear",
        [FUSERUN_OP_LINEAR_DX] = "linear_dx",
        [FUSERUN_OP_LINEAR_DW] = "linear_dw",
        [FUSERUN_OP_LINEAR_DB] = "linear_db",
        [FUSERUN_OP_RELU] = "relu",
        [FUSERUN_OP_RELU_DX] = "relu_dx",
        [FUSERUN_OP_GELU] = "gelu",
        [FUSERUN_OP_GELU_DX] = "gelu_dx",
        [FUSERUN_OP_TANH] = "tanh",
        [FUSERUN_OP_TANH_DX] = "tanh_dx",
        [FUSERUN_OP_ADD] = "add",
        [FUSERUN_OP_COPY] = "copy",
        [FUSERUN_OP_CROSS_ENTROPY] = "cross_entropy",
        [FUSERUN_OP_MSE] = "mse",
        [FUSERUN_OP_SUM_LOSS] = "sum",
        [FUSERUN_OP_PATCHES] = "patches",
        [FUSERUN_OP_LAYER_NORM] = "layer_norm",
        [FUSERUN_OP_LAYER_NORM_DX] = "layer_norm_dx",
        [FUSERUN_OP_LAYER_NORM_DW] = "layer_norm_dw",
        [FUSERUN_OP_ATTENTION] = "attention",
        [FUSERUN_OP_ATTENTION_DX] = "attention_dx",
        [FUSERUN_OP_PREPEND] = "prepend",
        [FUSERUN_OP_PREPEND_DX] = "prepend_dx",
        [FUSERUN_OP_PREPEND_DW] = "prepend_dw",
        [FUSERUN_OP_ADD_BATCH] = "add_batch",
        [FUSERUN_OP_ADD_BATCH_DW] = "add_batch_dw",
        [FUSERUN_OP_SELECT] = "select",
        [FUSERUN_OP_SELECT_DX] = "select_dx",
        [FUSERUN_OP_DROPOUT] = "dropout",
        [FUSERUN_OP_SUM_SQUARES] = "sum_squares",
        [FUSERUN_OP_LINEAR_DW_NORM] = "linear_dw_norm",
        [FUSERUN_OP_LINEAR_DW_SUM] = "linear_dw_sum",
        [FUSERUN_OP_LINEAR_DW_SUM_NORM] = "linear_dw_sum_norm",
    };
    const size_t index = (size_t)kind;
    return index < sizeof names / sizeof names[0] && names[index] != NULL ? names[index] : "operation";
}

/* A forward operation in the backward pass: its value was not kept. Dropout is its own derivative. */
static bool is_made_again(const struct fuse_program *program, const struct fuse_instruction *instruction)
{
    return instruction->phase == FUSE_PHASE_BACKWARD && instruction->node != UINT32_MAX &&
           instruction->op.kind != FUSERUN_OP_DROPOUT &&
           program->graph->nodes[instruction->node].kind == (enum fuse_op_kind)instruction->op.kind;
}

void fuse_program_add_operation(const struct fuse_program *program, uint32_t index, struct fuse_text *text)
{
    const struct fuse_instruction *instruction = &program->instructions[index];
    switch (instruction->kind) {
    case FUSE_RUN_LOAD:
        fuse_text_add(text, "load");
        return;
    case FUSE_RUN_CALLBACKS:
        fuse_text_add(text, program->options.gradients == FUSE_GRADIENTS_RELEASE ? "update" : "gradient callbacks");
        return;
    case FUSE_RUN_AFTER:
        fuse_text_add(text, "update");
        return;
    case FUSE_RUN_NORM:
        fuse_text_add(text, "norm");
        return;
    case FUSE_RUN_KERNEL:
        break;
    }
    fuse_text_add(text, fuse_op_name((enum fuse_op_kind)instruction->op.kind));
    if ((instruction->op.flags & FUSERUN_OP_PANELS) != 0)
        fuse_text_add(text, " + update");
    else if (is_made_again(program, instruction))
        fuse_text_add(text, " again");
}

static uint32_t parameter_of_node(const struct fuse_graph *graph, const struct fuse_node *node)
{
    for (uint32_t j = 0; j < node->input_count; j++) {
        if (node->inputs[j] == UINT32_MAX)
            continue;
        const struct fuse_tensor *tensor = graph->tensors[graph->tensors[node->inputs[j]]->storage];
        if (tensor->role == FUSE_TENSOR_PARAMETER)
            return tensor->parameter;
    }
    return UINT32_MAX;
}

/* What has no parameter of its own belongs to the layer whose output it works on: the nearest one before it. */
static uint32_t nearest_parameter(const struct fuse_graph *graph, uint32_t node)
{
    uint32_t parameter = UINT32_MAX;
    for (uint32_t i = node + 1; i-- > 0 && parameter == UINT32_MAX;)
        parameter = parameter_of_node(graph, &graph->nodes[i]);
    for (uint32_t i = node + 1; i < graph->node_count && parameter == UINT32_MAX; i++)
        parameter = parameter_of_node(graph, &graph->nodes[i]);
    return parameter;
}

static bool ends_in(const char *name, size_t length, const char *ending)
{
    const size_t count = strlen(ending);
    return length >= count && memcmp(name + length - count, ending, count) == 0;
}

/* "a.layer_11.mlp.0.weight" -> "a.layer_11 · mlp.0": without the parameter's own word, and a dot where the number of a
 * repeated part ends. */
static void add_layer_of(const char *parameter, struct fuse_text *text)
{
    size_t length = strlen(parameter);
    const char *dot = strrchr(parameter, '.');
    if (dot != NULL && (ends_in(parameter, length, "weight") || ends_in(parameter, length, "bias")))
        length = (size_t)(dot - parameter);
    size_t cut = 0; /* where the first component that ends in a digit ends, if more follows */
    for (size_t i = 1; i < length && cut == 0; i++)
        if (parameter[i] == '.' && parameter[i - 1] >= '0' && parameter[i - 1] <= '9')
            cut = i;
    if (cut == 0) {
        fuse_text_add_bytes(text, parameter, length);
        return;
    }
    fuse_text_add_bytes(text, parameter, cut);
    fuse_text_add(text, " \u00b7 ");
    fuse_text_add_bytes(text, parameter + cut + 1, length - cut - 1);
}

void fuse_program_add_layer(const struct fuse_program *program, uint32_t index, struct fuse_text *text)
{
    const struct fuse_graph *graph = program->graph;
    const struct fuse_instruction *instruction = &program->instructions[index];
    uint32_t parameter = instruction->parameter;
    if (parameter == UINT32_MAX && instruction->node != UINT32_MAX)
        parameter = nearest_parameter(graph, instruction->node);
    if (parameter != UINT32_MAX)
        add_layer_of(graph->parameters[parameter].name, text);
    else if (instruction->kind == FUSE_RUN_AFTER)
        fuse_text_add(text, "all parameters");
    else if (instruction->kind == FUSE_RUN_LOAD)
        fuse_text_add(text, "batch");
    else
        fuse_text_add(text, instruction->node == UINT32_MAX ? "loss" : "model");
}

static void add_maker(const struct fuse_program *program, uint32_t index, struct fuse_text *text)
{
    fuse_program_add_operation(program, index, text);
    fuse_text_add(text, ", ");
    fuse_program_add_layer(program, index, text);
}

void fuse_program_add_buffer(const struct fuse_program *program, uint32_t buffer, struct fuse_text *text)
{
    const struct fuse_buffer *described = &program->buffers[buffer];
    if (described->parameter != UINT32_MAX) {
        const char *name = program->graph->parameters[described->parameter].name;
        if (described->is_parameter)
            fuse_text_add(text, name);
        else if (described->category == FUSE_CATEGORY_ACTIVATION)
            fuse_text_addf(text, "operands of the gradient of %s", name);
        else
            fuse_text_addf(text, "gradient of %s%s", name,
                           program->gradient_buffers[described->parameter] == FUSE_NO_BUFFER ? ", panels" : "");
        return;
    }
    if (buffer == program->input_buffer || buffer == program->target_buffer || buffer == program->statistics_buffer) {
        fuse_text_add(text, buffer == program->input_buffer    ? "the batch's inputs"
                            : buffer == program->target_buffer ? "the batch's targets"
                                                               : "the loss's statistics");
        return;
    }
    for (uint32_t i = described->first; i < program->instruction_count && i <= described->last; i++) {
        const struct fuse_instruction *instruction = &program->instructions[i];
        if (instruction->workspace == buffer) {
            fuse_text_add(text, "workspace of ");
            add_maker(program, i, text);
            return;
        }
        for (uint32_t j = 0; j < instruction->op.output_count; j++) {
            if (instruction->outputs[j] != buffer)
                continue;
            fuse_text_add(text, j == 0                            ? "output of "
                                : instruction->node == UINT32_MAX ? "gradient from "
                                                                  : "statistics of ");
            add_maker(program, i, text);
            return;
        }
    }
    fuse_text_add(text, "unused");
}
