/* Running a program: kernels in order, gradients handed to their callbacks, every use told to the ledger. */
#include "base/now.h"
#include "graph/describe.h"

#include <stdlib.h>
#include <string.h>

/* What a panel hook knows: whose gradient its panels are of. */
struct fuse_panel_user {
    const struct fuse_parameter *parameter;
};

static void give_gradient(const struct fuse_parameter *parameter, float *values, int64_t first, int64_t count,
                          bool is_panel)
{
    struct fuse_gradient gradient = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_gradient, is_panel),
                                     .rank = parameter->rank,
                                     .parameter = parameter->name,
                                     .values = values,
                                     .first = first,
                                     .count = count,
                                     .is_panel = is_panel};
    memcpy(gradient.shape, parameter->shape, sizeof gradient.shape);
    for (uint32_t i = 0; i < parameter->callback_count; i++)
        parameter->callbacks[i].gradient(parameter->callbacks[i].user, &gradient);
}

static void panel_hook(void *user, int64_t row_begin, int64_t row_end, float *gradient)
{
    const struct fuse_parameter *parameter = ((const struct fuse_panel_user *)user)->parameter;
    const int64_t columns = parameter->element_count / parameter->shape[0];
    give_gradient(parameter, gradient, row_begin * columns, (row_end - row_begin) * columns, true);
}

/* Of the first callback that knows any. */
static uint32_t panel_spans(void *user, int64_t row_begin, int64_t row_end, struct fuse_span *spans)
{
    const struct fuse_parameter *parameter = ((const struct fuse_panel_user *)user)->parameter;
    const int64_t columns = parameter->element_count / parameter->shape[0];
    uint32_t count = 0;
    for (uint32_t i = 0; i < parameter->callback_count && count == 0; i++)
        if (parameter->callbacks[i].spans != NULL)
            count = parameter->callbacks[i].spans(parameter->callbacks[i].user, row_begin * columns,
                                                  (row_end - row_begin) * columns, spans);
    return count <= FUSERUN_MAX_SPANS ? count : 0; /* a plugin's mistake must not become the backend's */
}

int fuse_program_prepare_callbacks(struct fuse_program *program, const uint32_t *parameter_gradients,
                                   struct fuse_error *error)
{
    const struct fuse_graph *graph = program->graph;
    program->panel_users = calloc(program->instruction_count, sizeof *program->panel_users);
    program->gradient_buffers = malloc((graph->parameter_count + 1) * sizeof *program->gradient_buffers);
    if (program->panel_users == NULL || program->gradient_buffers == NULL)
        return fuse_fail_memory(error, "the callbacks", program->instruction_count * sizeof *program->panel_users);
    memcpy(program->gradient_buffers, parameter_gradients, graph->parameter_count * sizeof *parameter_gradients);
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        struct fuse_instruction *instruction = &program->instructions[i];
        if (instruction->kind != FUSE_RUN_KERNEL || (instruction->op.flags & FUSERUN_OP_PANELS) == 0)
            continue;
        program->panel_users[i].parameter = &graph->parameters[instruction->parameter];
        instruction->panel = (struct fuse_panel_hook){panel_hook, &program->panel_users[i]};
        program->gradient_buffers[instruction->parameter] = FUSE_NO_BUFFER;
    }
    return FUSERUN_OK;
}

static void *address_of(const struct fuse_program *program, uint32_t buffer, float *const *parameters)
{
    const struct fuse_buffer *found = &program->buffers[buffer];
    return found->is_parameter ? (void *)parameters[found->parameter] : (void *)(program->arena + found->offset);
}

void fuse_program_bind(struct fuse_program *program, char *arena, float *const *parameters)
{
    program->arena = arena;
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        struct fuse_instruction *instruction = &program->instructions[i];
        for (uint32_t j = 0; j < instruction->op.input_count; j++)
            instruction->input_pointers[j] = address_of(program, instruction->inputs[j], parameters);
        for (uint32_t j = 0; j < instruction->op.output_count; j++)
            instruction->output_pointers[j] = address_of(program, instruction->outputs[j], parameters);
        if (instruction->workspace != FUSE_NO_BUFFER)
            instruction->workspace_pointer = address_of(program, instruction->workspace, parameters);
    }
    for (uint32_t p = 0; p < program->graph->parameter_count; p++)
        program->gradients[p] = program->gradient_buffers[p] == FUSE_NO_BUFFER
                                    ? NULL
                                    : address_of(program, program->gradient_buffers[p], parameters);
}

float *fuse_program_inputs(const struct fuse_program *program)
{
    return (float *)(void *)(program->arena + program->buffers[program->input_buffer].offset);
}

void *fuse_program_targets(const struct fuse_program *program)
{
    return program->target_buffer == FUSE_NO_BUFFER ? NULL
                                                    : program->arena + program->buffers[program->target_buffer].offset;
}

/* What differs from one run of a program to the next. */
struct batch {
    double scalars[1];
    uint64_t draw;
    uint64_t earlier_count;
};

static int run_kernel(struct fuse_program *program, struct fuse_instruction *instruction, const struct batch *batch,
                      struct fuse_error *error)
{
    void *outputs[FUSERUN_MAX_OPERANDS];
    memcpy(outputs, instruction->output_pointers, sizeof outputs);
    if (instruction->slice_bytes > 0)
        outputs[0] = (char *)outputs[0] + batch->earlier_count * instruction->slice_bytes;
    const struct fuse_kernel_call call = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_call, panel_spans),
        .inputs = instruction->input_pointers,
        .outputs = outputs,
        .workspace = instruction->workspace_pointer,
        .scalars = batch->scalars,
        .panel = instruction->panel.panel != NULL ? &instruction->panel : NULL,
        .seed = program->options.seed,
        .draw = batch->draw,
        .panel_spans = instruction->panel.panel != NULL ? panel_spans : NULL,
    };
    return program->backend->run(program->device, instruction->kernel, &call, error);
}

/* What the instruction really used, from the operands it was given. */
static void tell_ledger(const struct fuse_program *program, const struct fuse_instruction *instruction,
                        struct fuse_ledger *ledger, uint32_t time)
{
    for (uint32_t j = 0; j < instruction->op.input_count; j++)
        fuse_ledger_touch(ledger, instruction->inputs[j], time);
    for (uint32_t j = 0; j < instruction->op.output_count; j++)
        fuse_ledger_touch(ledger, instruction->outputs[j], time);
    if (instruction->workspace != FUSE_NO_BUFFER)
        fuse_ledger_touch(ledger, instruction->workspace, time);
    for (uint32_t p = 0; p < program->graph->parameter_count && instruction->kind == FUSE_RUN_NORM; p++)
        if (program->norm_buffers[p] != FUSE_NO_BUFFER)
            fuse_ledger_touch(ledger, program->norm_buffers[p], time);
    if (instruction->kind != FUSE_RUN_AFTER)
        return;
    for (uint32_t p = 0; p < program->graph->parameter_count; p++)
        if (program->gradient_buffers[p] != FUSE_NO_BUFFER &&
            (instruction->parameter == UINT32_MAX || instruction->parameter == p))
            fuse_ledger_touch(ledger, program->gradient_buffers[p], time);
}

/* What an earlier micro-batch left is alive from the beginning, what a later one needs until the end. */
static void tell_held(const struct fuse_program *program, struct fuse_ledger *ledger)
{
    for (uint32_t b = 0; b < program->buffer_count; b++) {
        if (program->buffers[b].comes_in)
            fuse_ledger_touch(ledger, b, 0);
        if (program->buffers[b].stays)
            fuse_ledger_touch(ledger, b, program->instruction_count - 1);
    }
}

/* Brings the sums of squares together and hands them over. */
static int run_norm(struct fuse_program *program, struct fuse_error *error)
{
    for (uint32_t p = 0; p < program->graph->parameter_count; p++) {
        const uint32_t buffer = program->norm_buffers[p];
        if (buffer != FUSE_NO_BUFFER)
            FUSE_TRY(program->backend->download(program->device, &program->norm_sums[p],
                                                program->arena + program->buffers[buffer].offset,
                                                sizeof program->norm_sums[p], error));
    }
    return program->options.on_norm(program->options.user, program->norm_sums, error);
}

static int run_instruction(struct fuse_program *program, struct fuse_instruction *instruction,
                           const struct batch *batch, struct fuse_error *error)
{
    const struct fuse_parameter *parameter;
    switch (instruction->kind) {
    case FUSE_RUN_KERNEL:
        return run_kernel(program, instruction, batch, error);
    case FUSE_RUN_CALLBACKS:
        parameter = &program->graph->parameters[instruction->parameter];
        give_gradient(parameter, program->gradients[instruction->parameter], 0, parameter->element_count, false);
        return FUSERUN_OK;
    case FUSE_RUN_AFTER:
        return program->options.after_backward(program->options.user, instruction->parameter, program->gradients,
                                               error);
    case FUSE_RUN_NORM:
        return run_norm(program, error);
    case FUSE_RUN_LOAD:
        break; /* the batch is in place */
    }
    return FUSERUN_OK;
}

/* What the device has been asked for is done before the clock is read. */
static int mark(struct fuse_program *program, uint32_t instruction, struct fuse_error *error)
{
    FUSE_TRY(program->backend->synchronize(program->device, error));
    program->marks_ns[instruction] = fuse_now_ns();
    return FUSERUN_OK;
}

const struct fuse_place fuse_program_run_place = {"runtime/graph/run.c", __LINE__ + 2, "fuse_program_run"};

int fuse_program_run(struct fuse_program *program, double scale, uint64_t draw, int64_t earlier_count,
                     struct fuse_ledger *ledger, double statistics[2], struct fuse_error *error)
{
    const struct batch batch = {{scale}, draw, (uint64_t)earlier_count};
    if (ledger != NULL) {
        fuse_ledger_begin(ledger, program->ledger_pass);
        tell_held(program, ledger);
    }
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        struct fuse_instruction *instruction = &program->instructions[i];
        if (program->marks_ns != NULL)
            FUSE_TRY(mark(program, i, error));
        FUSE_TRY(run_instruction(program, instruction, &batch, error));
        if (ledger == NULL)
            continue;
        tell_ledger(program, instruction, ledger, i);
        fuse_ledger_done(ledger, i);
    }
    if (ledger != NULL) {
        fuse_ledger_touch(ledger, program->statistics_buffer, program->instruction_count - 1);
        fuse_ledger_end(ledger);
    }
    if (program->marks_ns != NULL)
        FUSE_TRY(mark(program, program->instruction_count, error));
    const void *source = program->arena + program->buffers[program->statistics_buffer].offset;
    return program->backend->download(program->device, statistics, source, 2 * sizeof(double), error);
}
