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

static bool is_product(const struct fuse_instruction *instruction)
{
    return (instruction->op.kind == FUSERUN_OP_LINEAR_DW && (instruction->op.flags & FUSERUN_OP_ACCUMULATE) == 0) ||
           instruction->op.kind == FUSERUN_OP_LINEAR_DW_SUM;
}

/* A gradient that need not exist: one product makes it all, nothing reads the weight afterwards, every callback takes
 * pieces, and a norm, if one is wanted, is known by then (norm: index of its instruction; UINT32_MAX: none is). */
static bool may_panel(const struct fuse_builder *builder, uint32_t p, const struct use *use, uint32_t norm)
{
    const struct fuse_program *program = builder->program;
    return program->options.gradients == FUSE_GRADIENTS_RELEASE && use->contribution_count == 1 &&
           is_product(&program->instructions[use->last_contribution]) &&
           (use->last_read == UINT32_MAX || use->last_read < use->last_contribution) &&
           (norm == UINT32_MAX || norm < use->last_contribution) && are_all_for_panels(&builder->graph->parameters[p]);
}

static void find_uses(const struct fuse_builder *builder, struct use *uses, uint32_t norm)
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
        uses[p].takes_panels = may_panel(builder, p, &uses[p], norm);
}

static uint32_t later(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Where the callbacks of a parameter with a whole gradient go: behind its last contribution, the last read of the
 * weight, and, where gradients are applied by callbacks, the norm. */
static uint32_t place_of(const struct fuse_builder *builder, const struct use *use, uint32_t norm)
{
    uint32_t place = use->last_contribution;
    if (use->last_read != UINT32_MAX)
        place = later(place, use->last_read);
    if (norm != UINT32_MAX && builder->program->options.gradients == FUSE_GRADIENTS_RELEASE)
        place = later(place, norm);
    return place;
}

static int add_callbacks(struct fuse_builder *builder, uint32_t parameter, uint32_t node)
{
    struct fuse_instruction callbacks = fuse_instruction_of(0, FUSE_PHASE_BACKWARD, node);
    callbacks.kind = FUSE_RUN_CALLBACKS;
    callbacks.parameter = parameter;
    callbacks.inputs[callbacks.op.input_count++] = builder->parameter_gradients[parameter];
    return fuse_builder_add_instruction(builder, &callbacks);
}

/* Sets the list down again with the callbacks in their places. first and next are chains of the parameters that have
 * the same place, in their order: first[place], then next[parameter]. */
static int set_down(struct fuse_builder *builder, const struct use *uses, struct fuse_instruction *drafted,
                    uint32_t drafted_count, const uint32_t *first, const uint32_t *next)
{
    for (uint32_t i = 0; i < drafted_count; i++) {
        struct fuse_instruction *instruction = &drafted[i];
        const uint32_t maker = instruction->parameter;
        if (maker != UINT32_MAX && uses[maker].takes_panels)
            instruction->op.flags |= FUSERUN_OP_PANELS;
        FUSE_TRY(fuse_builder_add_instruction(builder, instruction));
        for (uint32_t p = first[i]; p != UINT32_MAX; p = next[p])
            FUSE_TRY(add_callbacks(builder, p, instruction->node));
    }
    return FUSERUN_OK;
}

static int place_callbacks(struct fuse_builder *builder, const struct use *uses, uint32_t norm)
{
    struct fuse_program *program = builder->program;
    struct fuse_instruction *drafted = program->instructions;
    const uint32_t drafted_count = program->instruction_count, parameter_count = builder->graph->parameter_count;
    const size_t bytes = ((size_t)drafted_count + parameter_count + 1) * sizeof(uint32_t);
    uint32_t *first = malloc(bytes);
    if (first == NULL)
        return fuse_fail_memory(builder->error, "the backward pass", bytes);
    uint32_t *next = first + drafted_count;
    for (uint32_t i = 0; i < drafted_count; i++)
        first[i] = UINT32_MAX;
    for (uint32_t p = parameter_count; p-- > 0;) {
        const struct use *use = &uses[p];
        if (use->contribution_count == 0 || builder->graph->parameters[p].callback_count == 0 || use->takes_panels)
            continue;
        const uint32_t place = place_of(builder, use, norm);
        next[p] = first[place];
        first[place] = p;
    }
    program->instructions = NULL;
    program->instruction_count = program->instruction_capacity = 0;
    const int status = set_down(builder, uses, drafted, drafted_count, first, next);
    free(first);
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

static int derive_all(struct fuse_builder *builder)
{
    for (uint32_t i = builder->graph->node_count; i-- > 0;)
        FUSE_TRY(fuse_builder_derive(builder, i));
    return FUSERUN_OK;
}

static void forget(uint32_t *buffers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        buffers[i] = FUSE_NO_BUFFER;
}

/* The norm's place in the list: every sum of squares stands before it. */
static int add_norm(struct fuse_builder *builder, uint32_t *norm)
{
    FUSE_TRY(fuse_builder_measure_whole(builder));
    struct fuse_instruction run = fuse_instruction_of(0, FUSE_PHASE_BACKWARD, UINT32_MAX);
    run.kind = FUSE_RUN_NORM;
    *norm = builder->program->instruction_count;
    return fuse_builder_add_instruction(builder, &run);
}

/* Is this gradient held, and so complete after the first backward pass? */
static bool is_held(const struct fuse_builder *builder, uint32_t parameter)
{
    const uint32_t buffer = parameter == UINT32_MAX ? FUSE_NO_BUFFER : builder->parameter_gradients[parameter];
    return buffer != FUSE_NO_BUFFER && builder->program->buffers[buffer].is_fixed;
}

/* The first of two backward passes: measures every gradient and leaves nothing but the norm, and the gradients that
 * hold earlier micro-batches: the second pass makes what is missing. */
static int measure_first(struct fuse_builder *builder, uint32_t *norm)
{
    struct fuse_program *program = builder->program;
    const uint32_t output = builder->graph->tensors[builder->graph->output]->storage;
    const uint32_t loss_gradient = builder->gradients[output], begin = program->instruction_count;
    builder->measures = builder->keeps_loss_gradient = true;
    FUSE_TRY(derive_all(builder));
    FUSE_TRY(add_norm(builder, norm));
    builder->measures = builder->keeps_loss_gradient = false;
    for (uint32_t i = begin; i < program->instruction_count; i++)
        if (!is_held(builder, program->instructions[i].parameter))
            program->instructions[i].parameter = UINT32_MAX; /* nothing of this pass is applied */
    forget(builder->gradients, builder->graph->tensor_count);
    forget(builder->again, builder->graph->tensor_count);
    for (uint32_t p = 0; p < builder->graph->parameter_count; p++)
        if (!is_held(builder, p))
            builder->parameter_gradients[p] = FUSE_NO_BUFFER;
    builder->gradients[output] = loss_gradient;
    fuse_builder_mark_gradients(builder);
    return FUSERUN_OK;
}

/* Behind the norm: the products that waited, in the order of the backward pass. */
static int form_deferred(struct fuse_builder *builder)
{
    forget(builder->again, builder->graph->tensor_count);
    for (uint32_t i = 0; i < builder->deferred_count; i++)
        FUSE_TRY(fuse_builder_form_deferred(builder, &builder->deferred[i]));
    return FUSERUN_OK;
}

static int derive_with_norm(struct fuse_builder *builder, uint32_t *norm)
{
    switch (builder->program->options.norm) {
    case FUSE_NORM_TWICE:
        FUSE_TRY(measure_first(builder, norm));
        return derive_all(builder);
    case FUSE_NORM_DEFER:
        builder->measures = builder->defers = true;
        FUSE_TRY(derive_all(builder));
        FUSE_TRY(add_norm(builder, norm));
        return form_deferred(builder);
    case FUSE_NORM_KEEP:
        FUSE_TRY(derive_all(builder));
        return add_norm(builder, norm);
    case FUSE_NORM_NONE:
        break;
    }
    return derive_all(builder);
}

int fuse_builder_add_backward(struct fuse_builder *builder)
{
    int status = FUSERUN_OK;
    uint32_t norm = UINT32_MAX;
    const size_t bytes = (builder->graph->parameter_count + 1) * sizeof(struct use);
    const size_t deferred_bytes = (builder->graph->node_count + 1) * sizeof *builder->deferred;
    struct use *uses = malloc(bytes);
    builder->deferred = malloc(deferred_bytes);
    if (uses == NULL || builder->deferred == NULL) {
        status = fuse_fail_memory(builder->error, "the backward pass", bytes + deferred_bytes);
        goto out;
    }
    FUSE_TRY_OUT(derive_with_norm(builder, &norm));
    if (builder->program->options.part == FUSE_PART_FIRST || builder->program->options.part == FUSE_PART_MORE)
        goto out; /* nobody takes the gradients yet */
    find_uses(builder, uses, norm);
    FUSE_TRY_OUT(place_callbacks(builder, uses, norm));
    if (builder->program->options.gradients != FUSE_GRADIENTS_RELEASE)
        FUSE_TRY_OUT(add_after_backward(builder));
out:
    free(builder->deferred);
    builder->deferred = NULL;
    free(uses);
    return status;
}
