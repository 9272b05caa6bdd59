/* The backward pass: every node's derivative in reverse order, then post-accumulate callbacks in their places. */
#include "graph/builder.h"

#include <stdlib.h>

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
        FUSE_TRY_OUT(fuse_builder_derive(builder, i));
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
