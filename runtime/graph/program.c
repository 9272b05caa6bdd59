#include "base/align.h"
#include "graph/builder.h"

#include <stdlib.h>
#include <string.h>

/* ---- building blocks ------------------------------------------------------------------------------------------ */

static int grow(void **array, uint32_t count, uint32_t *capacity, size_t size, struct fuse_error *error)
{
    if (count < *capacity)
        return FUSERUN_OK;
    const uint32_t wanted = *capacity == 0 ? 32 : *capacity * 2;
    void *grown = realloc(*array, wanted * size);
    if (grown == NULL)
        return fuse_fail_memory(error, "the program", wanted * size);
    *array = grown;
    *capacity = wanted;
    return FUSERUN_OK;
}

int fuse_builder_add_buffer(struct fuse_builder *builder, enum fuse_category category, uint32_t parameter,
                            uint64_t bytes, uint32_t *buffer)
{
    struct fuse_program *program = builder->program;
    FUSE_TRY(grow((void **)&program->buffers, program->buffer_count, &program->buffer_capacity,
                  sizeof *program->buffers, builder->error));
    *buffer = program->buffer_count++;
    program->buffers[*buffer] = (struct fuse_buffer){
        .category = category, .parameter = parameter, .bytes = bytes, .first = UINT32_MAX, .last = 0};
    return FUSERUN_OK;
}

bool fuse_builder_is_bfloat16(const struct fuse_builder *builder, uint32_t tensor)
{
    const struct fuse_graph *graph = builder->graph;
    const uint32_t storage = graph->tensors[tensor]->storage;
    return builder->program->options.is_bfloat16 && graph->tensors[storage]->role == FUSE_TENSOR_ACTIVATION &&
           storage != graph->tensors[graph->output]->storage;
}

uint64_t fuse_builder_tensor_bytes(const struct fuse_builder *builder, uint32_t tensor)
{
    const struct fuse_tensor *shape = builder->graph->tensors[tensor];
    return (uint64_t)fuse_element_count(shape->rank, shape->shape) *
           (fuse_builder_is_bfloat16(builder, tensor) ? sizeof(uint16_t) : sizeof(float));
}

int fuse_builder_add_activation(struct fuse_builder *builder, uint32_t tensor, uint32_t *buffer)
{
    FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_ACTIVATION, UINT32_MAX,
                                     fuse_builder_tensor_bytes(builder, tensor), buffer));
    builder->program->buffers[*buffer].is_bfloat16 = fuse_builder_is_bfloat16(builder, tensor);
    return FUSERUN_OK;
}

int fuse_builder_add_instruction(struct fuse_builder *builder, const struct fuse_instruction *instruction)
{
    struct fuse_program *program = builder->program;
    FUSE_TRY(grow((void **)&program->instructions, program->instruction_count, &program->instruction_capacity,
                  sizeof *program->instructions, builder->error));
    program->instructions[program->instruction_count++] = *instruction;
    return FUSERUN_OK;
}

struct fuse_instruction fuse_instruction_of(enum fuse_op_kind kind, enum fuse_phase phase, uint32_t node)
{
    struct fuse_instruction instruction = {
        .kind = FUSE_RUN_KERNEL, .phase = phase, .parameter = UINT32_MAX, .node = node, .workspace = FUSE_NO_BUFFER};
    instruction.op.struct_size = FUSERUN_STRUCT_SIZE(fuse_op, numbers);
    instruction.op.kind = kind;
    return instruction;
}

static struct fuse_operand operand_of(enum fuse_dtype dtype, uint32_t rank, const int64_t *shape)
{
    struct fuse_operand operand = {.dtype = dtype, .rank = rank};
    memcpy(operand.shape, shape, rank * sizeof *shape);
    return operand;
}

void fuse_instruction_add_input(struct fuse_instruction *instruction, uint32_t buffer, enum fuse_dtype dtype,
                                uint32_t rank, const int64_t *shape)
{
    instruction->inputs[instruction->op.input_count] = buffer;
    instruction->op.inputs[instruction->op.input_count++] = operand_of(dtype, rank, shape);
}

void fuse_instruction_add_output(struct fuse_instruction *instruction, uint32_t buffer, enum fuse_dtype dtype,
                                 uint32_t rank, const int64_t *shape)
{
    instruction->outputs[instruction->op.output_count] = buffer;
    instruction->op.outputs[instruction->op.output_count++] = operand_of(dtype, rank, shape);
}

/* (rows, last dimension): kernels need not know how many dimensions a batch has. */
static void flat_shape(const struct fuse_tensor *tensor, int64_t shape[2])
{
    const int64_t columns = tensor->rank == 0 ? 1 : tensor->shape[tensor->rank - 1];
    shape[0] = fuse_element_count(tensor->rank, tensor->shape) / columns;
    shape[1] = columns;
}

void fuse_instruction_add_input_tensor(struct fuse_instruction *instruction, uint32_t buffer,
                                       const struct fuse_tensor *tensor)
{
    int64_t shape[2];
    flat_shape(tensor, shape);
    fuse_instruction_add_input(instruction, buffer, FUSERUN_FLOAT32, 2, shape);
}

void fuse_instruction_add_output_tensor(struct fuse_instruction *instruction, uint32_t buffer,
                                        const struct fuse_tensor *tensor)
{
    int64_t shape[2];
    flat_shape(tensor, shape);
    fuse_instruction_add_output(instruction, buffer, FUSERUN_FLOAT32, 2, shape);
}

/* ---- forward and loss ----------------------------------------------------------------------------------------- */

static int add_parameters(struct fuse_builder *builder)
{
    const struct fuse_graph *graph = builder->graph;
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const struct fuse_parameter *parameter = &graph->parameters[i];
        uint32_t *buffer = &builder->values[parameter->tensor];
        FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_PARAMETER, i,
                                         (uint64_t)parameter->element_count * sizeof(float), buffer));
        builder->program->buffers[*buffer].is_parameter = true;
    }
    return FUSERUN_OK;
}

/* The batch arrives: inputs, and what the loss compares with. */
static int add_load(struct fuse_builder *builder)
{
    struct fuse_program *program = builder->program;
    const struct fuse_tensor *input = builder->graph->tensors[0];
    const struct fuse_tensor *output = builder->graph->tensors[builder->graph->output];
    const int64_t batch = input->shape[0];
    program->batch_size = batch;
    struct fuse_instruction load = fuse_instruction_of(0, FUSE_PHASE_FORWARD, UINT32_MAX);
    load.kind = FUSE_RUN_LOAD;
    const uint64_t input_bytes = (uint64_t)fuse_element_count(input->rank, input->shape) * sizeof(float);
    FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_DATA, UINT32_MAX, input_bytes, &program->input_buffer));
    builder->values[0] = program->input_buffer;
    load.outputs[load.op.output_count++] = program->input_buffer;
    uint64_t target_bytes = 0;
    if (program->options.loss == FUSE_LOSS_CROSS_ENTROPY)
        target_bytes = (uint64_t)batch * sizeof(int64_t);
    else if (program->options.loss == FUSE_LOSS_MSE) {
        program->target_elements = fuse_element_count(output->rank, output->shape);
        target_bytes = (uint64_t)program->target_elements * sizeof(float);
    }
    if (target_bytes > 0) {
        FUSE_TRY(
            fuse_builder_add_buffer(builder, FUSE_CATEGORY_DATA, UINT32_MAX, target_bytes, &program->target_buffer));
        load.outputs[load.op.output_count++] = program->target_buffer;
    }
    return fuse_builder_add_instruction(builder, &load);
}

static int add_loss(struct fuse_builder *builder)
{
    static const enum fuse_op_kind kinds[] = {[FUSE_LOSS_CROSS_ENTROPY] = FUSERUN_OP_CROSS_ENTROPY,
                                              [FUSE_LOSS_MSE] = FUSERUN_OP_MSE,
                                              [FUSE_LOSS_SUM] = FUSERUN_OP_SUM_LOSS};
    struct fuse_program *program = builder->program;
    const struct fuse_tensor *output = builder->graph->tensors[builder->graph->output];
    const uint32_t storage = output->storage;
    if (program->options.loss == FUSE_LOSS_CROSS_ENTROPY && output->rank != 2)
        return fuse_fail(builder->error, FUSERUN_ERROR_CONFIG, "loss|kind",
                         "cross_entropy needs a model whose output is (batch, classes)");
    struct fuse_instruction loss = fuse_instruction_of(kinds[program->options.loss], FUSE_PHASE_FORWARD, UINT32_MAX);
    loss.op.numbers[0] = program->options.label_smoothing;
    fuse_instruction_add_input_tensor(&loss, builder->values[storage], output);
    if (program->options.loss == FUSE_LOSS_CROSS_ENTROPY)
        fuse_instruction_add_input(&loss, program->target_buffer, FUSERUN_INT64, 1, output->shape);
    else if (program->options.loss == FUSE_LOSS_MSE)
        fuse_instruction_add_input_tensor(&loss, program->target_buffer, output);
    static const int64_t two[] = {2};
    FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_WORKSPACE, UINT32_MAX, 2 * sizeof(double),
                                     &program->statistics_buffer));
    fuse_instruction_add_output(&loss, program->statistics_buffer, FUSERUN_FLOAT64, 1, two);
    if (builder->needs_gradient[storage]) {
        FUSE_TRY(fuse_builder_add_activation(builder, builder->graph->output, &builder->gradients[storage]));
        fuse_instruction_add_output_tensor(&loss, builder->gradients[storage], output);
    }
    return fuse_builder_add_instruction(builder, &loss);
}

/* ---- kernels -------------------------------------------------------------------------------------------------- */

/* What is described as float32 is as the buffer is that it lies in. */
static void take_types(const struct fuse_program *program, struct fuse_instruction *instruction)
{
    for (uint32_t j = 0; j < instruction->op.input_count; j++)
        if (instruction->op.inputs[j].dtype == FUSERUN_FLOAT32 && program->buffers[instruction->inputs[j]].is_bfloat16)
            instruction->op.inputs[j].dtype = FUSERUN_BFLOAT16;
    for (uint32_t j = 0; j < instruction->op.output_count; j++)
        if (instruction->op.outputs[j].dtype == FUSERUN_FLOAT32 &&
            program->buffers[instruction->outputs[j]].is_bfloat16)
            instruction->op.outputs[j].dtype = FUSERUN_BFLOAT16;
}

/* Compiles every kernel, and gives each the scratch that it asks for. */
static int compile_kernels(struct fuse_builder *builder)
{
    struct fuse_program *program = builder->program;
    struct fuse_backend_info device = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_info, own_bytes)};
    program->backend->describe(program->device, &device);
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        struct fuse_instruction *instruction = &program->instructions[i];
        if (instruction->kind != FUSE_RUN_KERNEL)
            continue;
        take_types(program, instruction);
        instruction->info.struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_info, workspace_bytes);
        FUSE_TRY(program->backend->compile(program->device, &instruction->op, &instruction->kernel, &instruction->info,
                                           builder->error));
        if (instruction->info.workspace_bytes > 0)
            FUSE_TRY(fuse_builder_add_buffer(builder, FUSE_CATEGORY_WORKSPACE, UINT32_MAX,
                                             instruction->info.workspace_bytes, &instruction->workspace));
        if ((instruction->op.flags & FUSERUN_OP_PANELS) != 0) {
            const int64_t columns = instruction->op.outputs[0].shape[1];
            const uint64_t panel_bytes =
                fuse_aligned((uint64_t)(instruction->info.panel_rows * columns) * sizeof(float));
            const uint32_t panels = instruction->info.panel_count;
            if (panels > device.worker_count) /* else they take as much as the whole gradient */
                program->buffers[instruction->outputs[0]].bytes = device.worker_count * panel_bytes;
        }
    }
    return FUSERUN_OK;
}

/* ---- lives ---------------------------------------------------------------------------------------------------- */

static void use_buffer(struct fuse_program *program, uint32_t buffer, uint32_t time)
{
    struct fuse_buffer *used = &program->buffers[buffer];
    used->first = time < used->first ? time : used->first;
    used->last = time > used->last ? time : used->last;
}

static void find_lives(struct fuse_builder *builder)
{
    struct fuse_program *program = builder->program;
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        program->buffers[i].first = UINT32_MAX;
        program->buffers[i].last = 0;
    }
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        const struct fuse_instruction *instruction = &program->instructions[i];
        for (uint32_t j = 0; j < instruction->op.input_count; j++)
            use_buffer(program, instruction->inputs[j], i);
        for (uint32_t j = 0; j < instruction->op.output_count; j++)
            use_buffer(program, instruction->outputs[j], i);
        if (instruction->workspace != FUSE_NO_BUFFER)
            use_buffer(program, instruction->workspace, i);
        if (instruction->kind == FUSE_RUN_NORM)
            for (uint32_t p = 0; p < builder->graph->parameter_count; p++)
                if (program->norm_buffers[p] != FUSE_NO_BUFFER)
                    use_buffer(program, program->norm_buffers[p], i);
        if (instruction->kind == FUSE_RUN_AFTER)
            for (uint32_t p = 0; p < builder->graph->parameter_count; p++)
                if (builder->parameter_gradients[p] != FUSE_NO_BUFFER &&
                    (instruction->parameter == UINT32_MAX || instruction->parameter == p))
                    use_buffer(program, builder->parameter_gradients[p], i);
    }
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        if (program->buffers[i].comes_in)
            use_buffer(program, i, 0);
        if (program->buffers[i].stays)
            use_buffer(program, i, program->instruction_count - 1);
    }
    /* Read when everything is done. */
    use_buffer(program, program->statistics_buffer, program->instruction_count - 1);
}

static bool is_element_wise(enum fuse_op_kind kind)
{
    return kind == FUSERUN_OP_RELU || kind == FUSERUN_OP_GELU || kind == FUSERUN_OP_TANH || kind == FUSERUN_OP_ADD ||
           kind == FUSERUN_OP_RELU_DX || kind == FUSERUN_OP_GELU_DX || kind == FUSERUN_OP_TANH_DX ||
           kind == FUSERUN_OP_ADD_BATCH || kind == FUSERUN_OP_DROPOUT;
}

static void replace_buffer(struct fuse_program *program, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        struct fuse_instruction *instruction = &program->instructions[i];
        for (uint32_t j = 0; j < instruction->op.input_count; j++)
            if (instruction->inputs[j] == from)
                instruction->inputs[j] = to;
        for (uint32_t j = 0; j < instruction->op.output_count; j++)
            if (instruction->outputs[j] == from)
                instruction->outputs[j] = to;
    }
}

/* An element-wise operation may write over its first input if nobody reads that again. */
static void share_in_place(struct fuse_builder *builder)
{
    struct fuse_program *program = builder->program;
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        struct fuse_instruction *instruction = &program->instructions[i];
        if (instruction->kind != FUSE_RUN_KERNEL || !is_element_wise(instruction->op.kind) ||
            (instruction->op.flags & FUSERUN_OP_ACCUMULATE) != 0)
            continue;
        /* a + b is b + a, to the bit: the one that may be written over comes first */
        if (instruction->op.kind == FUSERUN_OP_ADD && program->buffers[instruction->inputs[0]].last != i &&
            instruction->op.inputs[0].dtype == instruction->op.inputs[1].dtype) {
            const uint32_t first = instruction->inputs[0];
            instruction->inputs[0] = instruction->inputs[1];
            instruction->inputs[1] = first;
        }
        const uint32_t input = instruction->inputs[0], output = instruction->outputs[0];
        struct fuse_buffer *from = &program->buffers[output], *to = &program->buffers[input];
        if (input == output || to->category != FUSE_CATEGORY_ACTIVATION || from->category != to->category ||
            from->bytes != to->bytes || to->last != i || from->first != i)
            continue;
        to->last = from->last;
        from->first = UINT32_MAX; /* nobody's any more */
        from->last = 0;
        replace_buffer(program, output, input);
    }
}

/* ---- compile -------------------------------------------------------------------------------------------------- */

/* Copies for the ledger and for reports. Parameters weigh nothing here: they are counted once, for the whole run. */
static int publish_lives(struct fuse_builder *builder)
{
    struct fuse_program *program = builder->program;
    const uint32_t buffers = program->buffer_count, instructions = program->instruction_count;
    program->ledger_buffers = calloc(buffers, sizeof *program->ledger_buffers);
    program->planned_first = calloc(buffers, sizeof *program->planned_first);
    program->planned_last = calloc(buffers, sizeof *program->planned_last);
    program->phases = calloc(instructions, sizeof *program->phases);
    program->gradients = calloc(builder->graph->parameter_count + 1, sizeof *program->gradients);
    if (program->ledger_buffers == NULL || program->planned_first == NULL || program->planned_last == NULL ||
        program->phases == NULL || program->gradients == NULL)
        return fuse_fail_memory(builder->error, "the program's lives", buffers * sizeof *program->ledger_buffers);
    for (uint32_t i = 0; i < buffers; i++) {
        const struct fuse_buffer *buffer = &program->buffers[i];
        program->ledger_buffers[i] = (struct fuse_ledger_buffer){
            .name = buffer->parameter == UINT32_MAX ? "" : builder->graph->parameters[buffer->parameter].name,
            .category = buffer->category,
            .bytes = buffer->is_parameter ? 0 : buffer->bytes};
        program->planned_first[i] = buffer->first;
        program->planned_last[i] = buffer->last;
    }
    for (uint32_t i = 0; i < instructions; i++)
        program->phases[i] = program->instructions[i].phase;
    return FUSERUN_OK;
}

static int build(struct fuse_builder *builder)
{
    struct fuse_program *program = builder->program;
    fuse_builder_mark_gradients(builder);
    FUSE_TRY(add_parameters(builder));
    FUSE_TRY(add_load(builder));
    FUSE_TRY(fuse_builder_add_forward(builder));
    FUSE_TRY(add_loss(builder));
    if (program->options.gradients != FUSE_GRADIENTS_NONE)
        FUSE_TRY(fuse_builder_add_backward(builder));
    FUSE_TRY(compile_kernels(builder));
    find_lives(builder);
    share_in_place(builder);
    FUSE_TRY(fuse_plan_offsets(program->buffers, program->buffer_count, &program->arena_bytes, builder->error));
    FUSE_TRY(publish_lives(builder));
    return fuse_program_prepare_callbacks(program, builder->parameter_gradients, builder->error);
}

int fuse_program_compile(const struct fuse_graph *graph, const struct fuse_backend *backend, void *device,
                         const struct fuse_program_options *options, struct fuse_program **program,
                         struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_builder builder = {.graph = graph, .error = error};
    struct fuse_program *made = calloc(1, sizeof *made);
    const size_t tensors = graph->tensor_count, parameters = graph->parameter_count + 1;
    builder.values = malloc(tensors * sizeof *builder.values);
    builder.gradients = malloc(tensors * sizeof *builder.gradients);
    builder.parameter_gradients = malloc(parameters * sizeof *builder.parameter_gradients);
    builder.producer = malloc(tensors * sizeof *builder.producer);
    builder.again = malloc(tensors * sizeof *builder.again);
    builder.needs_gradient = calloc(tensors, sizeof *builder.needs_gradient);
    builder.crosses_blocks = calloc(tensors, sizeof *builder.crosses_blocks);
    builder.operand_buffers = malloc(2 * parameters * sizeof *builder.operand_buffers);
    builder.use_counts = calloc(parameters, sizeof *builder.use_counts);
    if (made == NULL || builder.values == NULL || builder.gradients == NULL || builder.parameter_gradients == NULL ||
        builder.producer == NULL || builder.again == NULL || builder.needs_gradient == NULL ||
        builder.crosses_blocks == NULL || builder.operand_buffers == NULL || builder.use_counts == NULL) {
        status = fuse_fail_memory(error, "the program", tensors * sizeof *builder.values);
        goto out;
    }
    memset(builder.values, 0xff, tensors * sizeof *builder.values);
    memset(builder.gradients, 0xff, tensors * sizeof *builder.gradients);
    memset(builder.producer, 0xff, tensors * sizeof *builder.producer);
    memset(builder.again, 0xff, tensors * sizeof *builder.again);
    memset(builder.operand_buffers, 0xff, 2 * parameters * sizeof *builder.operand_buffers);
    memset(builder.parameter_gradients, 0xff, parameters * sizeof *builder.parameter_gradients);
    made->graph = graph;
    made->backend = backend;
    made->device = device;
    made->options = *options;
    made->input_buffer = made->target_buffer = made->statistics_buffer = FUSE_NO_BUFFER;
    builder.program = made;
    made->norm_buffers = malloc(parameters * sizeof *made->norm_buffers);
    made->norm_sums = calloc(parameters, sizeof *made->norm_sums);
    if (made->norm_buffers == NULL || made->norm_sums == NULL) {
        status = fuse_fail_memory(error, "the program", parameters * sizeof *made->norm_sums);
        goto out;
    }
    memset(made->norm_buffers, 0xff, parameters * sizeof *made->norm_buffers);
    FUSE_TRY_OUT(build(&builder));
    made->options.hold = NULL;
    *program = made;
    made = NULL;
out:
    free(builder.values);
    free(builder.gradients);
    free(builder.parameter_gradients);
    free(builder.producer);
    free(builder.again);
    free(builder.needs_gradient);
    free(builder.crosses_blocks);
    free(builder.operand_buffers);
    free(builder.use_counts);
    fuse_program_free(&made);
    return status;
}

void fuse_program_free(struct fuse_program **program)
{
    struct fuse_program *freed = *program;
    if (freed == NULL)
        return;
    for (uint32_t i = 0; i < freed->instruction_count; i++)
        if (freed->instructions[i].kernel != NULL)
            freed->backend->discard(freed->device, freed->instructions[i].kernel);
    free(freed->instructions);
    free(freed->buffers);
    free(freed->ledger_buffers);
    free(freed->planned_first);
    free(freed->planned_last);
    free(freed->phases);
    free(freed->gradients);
    free(freed->gradient_buffers);
    free(freed->panel_users);
    free(freed->norm_buffers);
    free(freed->norm_sums);
    free(freed->marks_ns);
    free(freed);
    *program = NULL;
}

bool fuse_program_reaches(const struct fuse_program *program, uint32_t parameter)
{
    for (uint32_t i = 0; i < program->instruction_count; i++)
        if (program->instructions[i].kind == FUSE_RUN_KERNEL && program->instructions[i].parameter == parameter)
            return true;
    return false;
}

void fuse_program_peak(const struct fuse_program *program, const uint64_t persistent[FUSE_CATEGORY_COUNT],
                       struct fuse_peak *peak)
{
    fuse_peak_of(program->ledger_buffers, program->planned_first, program->planned_last, program->buffer_count,
                 program->phases, program->instruction_count, persistent, peak);
}
