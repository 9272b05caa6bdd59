#include "rig.h"
#include "bfloat16.h"

#include "base/random.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 128
#define GUARD_VALUE 0xa5

static void log_line(enum fuse_log_level level, const char *format, ...)
{
    va_list arguments;
    (void)level;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

static const struct fuse_host host = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_host, random_bits),
    .abi_major = FUSERUN_ABI_MAJOR,
    .abi_minor = FUSERUN_ABI_MINOR,
    .log = log_line,
    .fail = fuse_fail,
    .random_uniform = fuse_random_uniform,
    .random_bits = fuse_random_bits,
};

static const struct fuse_component *load_backend(void)
{
    static const struct fuse_component *component;
    if (component != NULL)
        return component;
    const char *const other = getenv("FUSE_TEST_BACKEND"); /* another build of it */
    void *const library = dlopen(other != NULL ? other : FUSE_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fail_msg("%s", dlerror());
    void *const symbol = dlsym(library, FUSERUN_ENTRY_NAME);
    assert_non_null(symbol);
    fuse_plugin_entry *entry;
    memcpy(&entry, &symbol, sizeof(entry));
    const struct fuse_plugin *const plugin = entry(&host);
    assert_non_null(plugin);
    assert_int_equal(plugin->component_count, 1);
    assert_int_equal(plugin->components[0].kind, FUSERUN_KIND_BACKEND);
    component = &plugin->components[0];
    return component;
}

void fuse_rig_open(struct fuse_rig *rig, uint32_t thread_count)
{
    const struct fuse_component *const component = load_backend();
    *rig = (struct fuse_rig){.backend = component->api, .error = FUSE_ERROR_INIT};
    const struct fuse_backend_options options = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_options, precision),
                                                 .thread_count = thread_count,
                                                 .precision =
                                                     fuse_is_bfloat16_test() ? FUSERUN_BFLOAT16 : FUSERUN_FLOAT32};
    assert_int_equal(rig->backend->device_count(&host, &rig->error), 1);
    if (rig->backend->open(&host, &options, &rig->instance, &rig->error) != FUSERUN_OK)
        fail_msg("%s", rig->error.text);
    struct fuse_backend_info info = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_info, own_bytes)};
    rig->backend->describe(rig->instance, &info);
    rig->worker_count = info.worker_count;
    assert_string_equal(info.name, component->name);
    assert_true(strlen(info.description) > 0);
}

void fuse_rig_close(struct fuse_rig *rig)
{
    rig->backend->close(rig->instance);
    rig->instance = NULL;
}

int fuse_rig_sets(void)
{
    const struct fuse_backend *const backend = load_backend()->api;
    return backend->allocate_staging != NULL ? 1 : 3;
}

bool fuse_is_tried(int64_t work)
{
    const char *const most = getenv("FUSE_TEST_MOST");
    return most == NULL || work <= atoll(most);
}

void *fuse_guarded_new(size_t bytes)
{
    const size_t whole = (bytes + 2 * GUARD_BYTES + 63) / 64 * 64;
    unsigned char *const base = aligned_alloc(64, whole);
    assert_non_null(base);
    memset(base, GUARD_VALUE, whole);
    memset(base + GUARD_BYTES, 0xff, bytes);
    return base + GUARD_BYTES;
}

void fuse_guarded_check(const void *data, size_t bytes)
{
    const unsigned char *const at = data;
    for (size_t i = 1; i <= GUARD_BYTES; i++)
        if (*(at - i) != GUARD_VALUE)
            fail_msg("written %zu bytes before the memory", i);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (at[bytes + i] != GUARD_VALUE)
            fail_msg("written %zu bytes past the memory", i);
}

void fuse_guarded_free(void *data, size_t bytes)
{
    fuse_guarded_check(data, bytes);
    free((unsigned char *)data - GUARD_BYTES);
}

float *fuse_random_floats(uint64_t seed, int64_t count, double size)
{
    float *const values = fuse_guarded_new((size_t)count * sizeof(float));
    fuse_random_uniform(seed, 7, 0, values, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        values[i] = fuse_activation((float)(((double)values[i] * 2.0 - 1.0) * size));
    return values;
}

double *fuse_to_doubles(const float *values, int64_t count)
{
    double *const result = malloc((size_t)count * sizeof(double));
    assert_non_null(result);
    for (int64_t i = 0; i < count; i++)
        result[i] = (double)values[i];
    return result;
}

struct fuse_operand fuse_operand_of(uint32_t dtype, uint32_t rank, int64_t a, int64_t b, int64_t c)
{
    return (struct fuse_operand){.dtype = dtype, .rank = rank, .shape = {a, b, c}};
}

int64_t fuse_operand_elements(const struct fuse_operand *operand)
{
    int64_t count = 1;
    for (uint32_t i = 0; i < operand->rank; i++)
        count *= operand->shape[i];
    return count;
}

struct fuse_op fuse_op_new(uint32_t kind, uint32_t flags)
{
    return (struct fuse_op){.struct_size = FUSERUN_STRUCT_SIZE(fuse_op, numbers), .kind = kind, .flags = flags};
}

void fuse_op_add_input(struct fuse_op *op, struct fuse_operand operand)
{
    op->inputs[op->input_count++] = operand;
}

void fuse_op_add_output(struct fuse_op *op, struct fuse_operand operand)
{
    op->outputs[op->output_count++] = operand;
}

/* ---- the device's memory ---------------------------------------------------------------------------------------- */

bool fuse_rig_is_device(const struct fuse_rig *rig)
{
    return rig->backend->allocate_staging != NULL;
}

void *fuse_rig_to_device(struct fuse_rig *rig, const void *memory, size_t bytes)
{
    void *device = NULL;
    if (memory == NULL || bytes == 0 || !fuse_rig_is_device(rig)) {
        memcpy(&device, &memory, sizeof(device));
        return device;
    }
    if (rig->backend->allocate(rig->instance, bytes, &device, &rig->error) != FUSERUN_OK ||
        rig->backend->upload(rig->instance, device, memory, bytes, &rig->error) != FUSERUN_OK)
        fail_msg("to the device: %s", rig->error.text);
    return device;
}

void fuse_rig_from_device(struct fuse_rig *rig, void *memory, void *device, size_t bytes)
{
    if (device == memory)
        return;
    if (rig->backend->download(rig->instance, memory, device, bytes, &rig->error) != FUSERUN_OK)
        fail_msg("from the device: %s", rig->error.text);
    rig->backend->release(rig->instance, device, bytes);
}

static size_t operand_bytes(const struct fuse_operand *operand)
{
    static const size_t sizes[] = {
        [FUSERUN_FLOAT32] = 4, [FUSERUN_BFLOAT16] = 2, [FUSERUN_FLOAT64] = 8, [FUSERUN_INT64] = 8, [FUSERUN_UINT8] = 1};
    return (size_t)fuse_operand_elements(operand) * sizes[operand->dtype];
}

/* One run: its operands on the device. */
struct run {
    struct fuse_rig *rig;
    const struct fuse_op *op;
    void *inputs[FUSERUN_MAX_OPERANDS], *outputs[FUSERUN_MAX_OPERANDS];
    size_t input_bytes[FUSERUN_MAX_OPERANDS], output_bytes[FUSERUN_MAX_OPERANDS];
    const struct fuse_panel_hook *hook; /* the test's, which wants the host's memory */
};

static void on_panel(void *user, int64_t row_begin, int64_t row_end, float *gradient)
{
    const struct run *const run = user;
    if (!fuse_rig_is_device(run->rig)) {
        run->hook->panel(run->hook->user, row_begin, row_end, gradient);
        return;
    }
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_operand *const x = &run->op->inputs[1];
    const size_t bytes = (size_t)((row_end - row_begin) * x->shape[x->rank - 1]) * sizeof(float);
    float *const copy = fuse_guarded_new(bytes);
    if (run->rig->backend->download(run->rig->instance, copy, gradient, bytes, &error) != FUSERUN_OK)
        fail_msg("a panel: %s", error.text);
    run->hook->panel(run->hook->user, row_begin, row_end, copy);
    if (run->rig->backend->upload(run->rig->instance, gradient, copy, bytes, &error) != FUSERUN_OK)
        fail_msg("a panel: %s", error.text);
    fuse_guarded_free(copy, bytes);
}

static uint32_t on_spans(void *user, int64_t row_begin, int64_t row_end, struct fuse_span *spans)
{
    const struct run *const run = user;
    return run->rig->panel_spans(run->hook->user, row_begin, row_end, spans);
}

static void take_to_device(struct run *run, const struct fuse_kernel_info *info, const void *const *inputs,
                           void *const *outputs)
{
    for (uint32_t i = 0; i < run->op->input_count; i++) {
        run->input_bytes[i] = operand_bytes(&run->op->inputs[i]);
        run->inputs[i] = fuse_rig_to_device(run->rig, inputs[i], run->input_bytes[i]);
    }
    for (uint32_t o = 0; o < run->op->output_count; o++) {
        run->output_bytes[o] = operand_bytes(&run->op->outputs[o]);
        if (o == 0 && run->hook != NULL) { /* panels for each worker */
            const struct fuse_operand *const x = &run->op->inputs[1];
            const size_t panel = (size_t)(info->panel_rows * x->shape[x->rank - 1]) * sizeof(float);
            run->output_bytes[o] = (panel + 63) / 64 * 64 * run->rig->worker_count;
        }
        for (uint32_t i = 0; i < run->op->input_count; i++)
            if (outputs[o] == inputs[i])
                run->outputs[o] = run->inputs[i];
        if (run->outputs[o] == NULL)
            run->outputs[o] = fuse_rig_to_device(run->rig, outputs[o], run->output_bytes[o]);
    }
}

static void take_from_device(struct run *run, const void *const *inputs, void *const *outputs)
{
    for (uint32_t o = 0; o < run->op->output_count; o++) {
        if (outputs[o] != NULL)
            fuse_rig_from_device(run->rig, outputs[o], run->outputs[o], run->output_bytes[o]);
    }
    for (uint32_t i = 0; i < run->op->input_count; i++) {
        bool is_output = run->inputs[i] == inputs[i]; /* the host's, or NULL */
        for (uint32_t o = 0; o < run->op->output_count; o++)
            is_output = is_output || run->inputs[i] == run->outputs[o];
        if (!is_output)
            run->rig->backend->release(run->rig->instance, run->inputs[i], run->input_bytes[i]);
    }
}

static void run_op(struct fuse_rig *rig, const struct fuse_op *op, const void *const *inputs, void *const *outputs,
                   const double *scalars, const struct fuse_panel_hook *hook)
{
    struct fuse_kernel *kernel = NULL;
    struct fuse_kernel_info info = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_info, workspace_bytes)};
    if (rig->backend->compile(rig->instance, op, &kernel, &info, &rig->error) != FUSERUN_OK)
        fail_msg("compile: %s", rig->error.text);
    struct run run = {.rig = rig, .op = op, .hook = hook};
    take_to_device(&run, &info, inputs, outputs);
    void *const workspace = fuse_guarded_new(info.workspace_bytes);
    void *const device_workspace = fuse_rig_to_device(rig, workspace, info.workspace_bytes);
    const struct fuse_panel_hook panel = {on_panel, &run};
    const struct fuse_kernel_call call = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_call, panel_spans),
                                          .inputs = run.inputs,
                                          .outputs = run.outputs,
                                          .workspace = device_workspace,
                                          .scalars = scalars,
                                          .panel = hook != NULL ? &panel : NULL,
                                          .seed = rig->seed,
                                          .draw = rig->draw,
                                          .panel_spans = hook != NULL && rig->panel_spans != NULL ? on_spans : NULL};
    if (rig->backend->run(rig->instance, kernel, &call, &rig->error) != FUSERUN_OK)
        fail_msg("run: %s", rig->error.text);
    take_from_device(&run, inputs, outputs);
    fuse_rig_from_device(rig, workspace, device_workspace, info.workspace_bytes);
    fuse_guarded_free(workspace, info.workspace_bytes);
    rig->backend->discard(rig->instance, kernel);
}

void fuse_rig_run(struct fuse_rig *rig, const struct fuse_op *op, const void *const *inputs, void *const *outputs,
                  const double *scalars, const struct fuse_panel_hook *hook)
{
    struct fuse_narrowed narrowed;
    if (!fuse_is_bfloat16_test()) {
        run_op(rig, op, inputs, outputs, scalars, hook);
        return;
    }
    fuse_narrowed_begin(&narrowed, op, inputs, outputs);
    run_op(rig, &narrowed.op, narrowed.inputs, narrowed.outputs, scalars, hook);
    fuse_narrowed_finish(&narrowed, outputs);
}

int fuse_rig_compile_status(struct fuse_rig *rig, const struct fuse_op *op)
{
    struct fuse_kernel *kernel = NULL;
    struct fuse_kernel_info info = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_info, workspace_bytes)};
    const int status = rig->backend->compile(rig->instance, op, &kernel, &info, &rig->error);
    if (status == FUSERUN_OK)
        rig->backend->discard(rig->instance, kernel);
    else
        assert_null(kernel);
    return status;
}

void fuse_rig_info(struct fuse_rig *rig, const struct fuse_op *op, struct fuse_kernel_info *info)
{
    struct fuse_kernel *kernel = NULL;
    *info = (struct fuse_kernel_info){.struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_info, workspace_bytes)};
    if (rig->backend->compile(rig->instance, op, &kernel, info, &rig->error) != FUSERUN_OK)
        fail_msg("compile: %s", rig->error.text);
    rig->backend->discard(rig->instance, kernel);
}

void fuse_assert_close(const char *what, int64_t count, const float *got, const double *expected, const double *bound)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - expected[i]) <= fuse_bound_of(got[i], expected[i], bound[i])))
            fail_msg("%s: element %lld is %.9g, expected %.9g within %.3g", what, (long long)i, (double)got[i],
                     expected[i], bound[i]);
}

void fuse_bound_from_magnitude(int64_t count, double *magnitude, int64_t terms)
{
    for (int64_t i = 0; i < count; i++)
        magnitude[i] = ((double)terms + 8.0) * FUSE_EPS * magnitude[i] + 1e-44;
}

static void compare_output(const char *what, const struct fuse_op *op, uint32_t output, const float *got,
                           const double *expected, const double *bound)
{
    const int64_t count = fuse_operand_elements(&op->outputs[output]);
    const bool is_added = (op->flags & FUSERUN_OP_ACCUMULATE) != 0 && output + 1 == op->output_count;
    for (int64_t i = 0; i < count; i++) {
        const double value = expected[i] + (is_added ? 0.5 : 0.0);
        const double slack = fuse_bound_of(got[i], value, bound[i] + (is_added ? FUSE_EPS * (fabs(value) + 0.5) : 0.0));
        if (!(fabs((double)got[i] - value) <= slack))
            fail_msg("%s: output %u, element %lld is %.9g, expected %.9g within %.3g", what, output, (long long)i,
                     (double)got[i], value, slack);
    }
}

void fuse_rigs_compare(struct fuse_rig *rigs, int rig_count, const char *what, const struct fuse_op *op,
                       const void *const *inputs, const double *const *expected, const double *const *bound,
                       bool in_place)
{
    float *first[FUSERUN_MAX_OPERANDS] = {NULL};
    const uint32_t outputs = op->output_count;
    for (int run = 0; run < 2 * rig_count; run++) {
        const void *from[FUSERUN_MAX_OPERANDS] = {NULL};
        void *to[FUSERUN_MAX_OPERANDS] = {NULL};
        for (uint32_t i = 0; i < op->input_count; i++)
            from[i] = inputs[i];
        for (uint32_t o = 0; o < outputs; o++) {
            const int64_t count = fuse_operand_elements(&op->outputs[o]);
            float *const values = fuse_guarded_new((size_t)count * sizeof(float));
            for (int64_t i = 0; i < count && (op->flags & FUSERUN_OP_ACCUMULATE) != 0 && o + 1 == outputs; i++)
                values[i] = 0.5f;
            to[o] = values;
        }
        if (in_place) {
            memcpy(to[0], from[0], (size_t)fuse_operand_elements(&op->inputs[0]) * sizeof(float));
            from[0] = to[0];
        }
        fuse_rig_run(&rigs[run / 2], op, from, to, NULL, NULL);
        for (uint32_t o = 0; o < outputs; o++) {
            const size_t bytes = (size_t)fuse_operand_elements(&op->outputs[o]) * sizeof(float);
            if (run == 0) {
                compare_output(what, op, o, to[o], expected[o], bound[o]);
                first[o] = to[o];
                continue;
            }
            if (memcmp(first[o], to[o], bytes) != 0)
                fail_msg("%s: output %u has other bits in run %d on %d threads", what, o, run % 2 + 1, run / 2 + 1);
            fuse_guarded_free(to[o], bytes);
        }
    }
    for (uint32_t o = 0; o < outputs; o++)
        fuse_guarded_free(first[o], (size_t)fuse_operand_elements(&op->outputs[o]) * sizeof(float));
}

void fuse_check_gradient(const char *what, double (*loss)(void), double *values, int count, const double *gradient)
{
    const double step = 1e-5;
    for (int i = 0; i < count; i++) {
        const double kept = values[i];
        values[i] = kept + step;
        const double above = loss();
        values[i] = kept - step;
        const double below = loss();
        values[i] = kept;
        const double slope = (above - below) / (2.0 * step);
        if (!(fabs(slope - gradient[i]) <= 1e-7 * (1.0 + fabs(slope))))
            fail_msg("%s: gradient %d is %.12g, differences say %.12g", what, i, gradient[i], slope);
    }
}
