/* The backend's table, and the way to each op's file. */
#include "cuda.h"
#include "update.h"

#include <stdlib.h>

static int open_backend(const struct fuse_host *host, const struct fuse_backend_options *options, void **instance,
                        struct fuse_error *error)
{
    struct fuse_cuda *cuda = NULL;
    *instance = NULL;
    const int status = fuse_cuda_open(host, options, &cuda, error);
    *instance = cuda;
    return status;
}

static void close_backend(void *instance)
{
    fuse_cuda_close(instance);
}

static void describe(const void *instance, struct fuse_backend_info *info)
{
    const struct fuse_cuda *const cuda = instance;
    info->worker_count = 1; /* panels come one after the other on the stream */
    info->name = "cuda";
    info->description = cuda->description;
    if (info->struct_size >= FUSERUN_STRUCT_SIZE(fuse_backend_info, own_bytes))
        info->own_bytes = cuda->own_bytes;
    if (info->struct_size >= FUSERUN_STRUCT_SIZE(fuse_backend_info, total_bytes))
        fuse_cuda_measure(cuda, &info->free_bytes, &info->total_bytes);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static int allocate(void *instance, uint64_t bytes, void **memory, struct fuse_error *error)
{
    return fuse_cuda_allocate(instance, bytes, memory, error);
}

static void release(void *instance, void *memory, uint64_t bytes)
{
    (void)bytes;
    if (memory != NULL)
        fuse_cuda_release(instance, memory);
}

static int upload(void *instance, void *device, const void *host_memory, uint64_t bytes, struct fuse_error *error)
{
    return fuse_cuda_upload(instance, device, host_memory, bytes, error);
}

static int download(void *instance, void *host_memory, const void *device, uint64_t bytes, struct fuse_error *error)
{
    return fuse_cuda_download(instance, host_memory, device, bytes, error);
}

static int synchronize(void *instance, struct fuse_error *error)
{
    return fuse_cuda_synchronize(instance, error);
}

static int clear(void *instance, void *memory, uint64_t bytes, struct fuse_error *error)
{
    return fuse_cuda_clear(instance, memory, bytes, error);
}

static int allocate_staging(void *instance, uint64_t bytes, void **memory, struct fuse_error *error)
{
    return fuse_cuda_pin(instance, bytes, memory, error);
}

static void release_staging(void *instance, void *memory, uint64_t bytes)
{
    (void)bytes;
    if (memory != NULL)
        fuse_cuda_unpin(instance, memory);
}

static int upload_staged(void *instance, void *device, const void *staging, uint64_t bytes, struct fuse_error *error)
{
    return fuse_cuda_upload_staged(instance, device, staging, bytes, error);
}

/* ---- kernels --------------------------------------------------------------------------------------------------- */

static fuse_compiler *const compilers[] = {
    [FUSERUN_OP_LINEAR] = fuse_compile_linear,
    [FUSERUN_OP_LINEAR_DX] = fuse_compile_linear,
    [FUSERUN_OP_LINEAR_DW] = fuse_compile_linear,
    [FUSERUN_OP_LINEAR_DB] = fuse_compile_sums,
    [FUSERUN_OP_RELU] = fuse_compile_elementwise,
    [FUSERUN_OP_RELU_DX] = fuse_compile_elementwise,
    [FUSERUN_OP_GELU] = fuse_compile_elementwise,
    [FUSERUN_OP_GELU_DX] = fuse_compile_elementwise,
    [FUSERUN_OP_TANH] = fuse_compile_elementwise,
    [FUSERUN_OP_TANH_DX] = fuse_compile_elementwise,
    [FUSERUN_OP_ADD] = fuse_compile_elementwise,
    [FUSERUN_OP_COPY] = fuse_compile_elementwise,
    [FUSERUN_OP_CROSS_ENTROPY] = fuse_compile_loss,
    [FUSERUN_OP_MSE] = fuse_compile_loss,
    [FUSERUN_OP_SUM_LOSS] = fuse_compile_loss,
    [FUSERUN_OP_PATCHES] = fuse_compile_tokens,
    [FUSERUN_OP_LAYER_NORM] = fuse_compile_layer_norm,
    [FUSERUN_OP_LAYER_NORM_DX] = fuse_compile_layer_norm,
    [FUSERUN_OP_LAYER_NORM_DW] = fuse_compile_layer_norm,
    [FUSERUN_OP_ATTENTION] = fuse_compile_attention,
    [FUSERUN_OP_ATTENTION_DX] = fuse_compile_attention,
    [FUSERUN_OP_PREPEND] = fuse_compile_tokens,
    [FUSERUN_OP_PREPEND_DX] = fuse_compile_tokens,
    [FUSERUN_OP_PREPEND_DW] = fuse_compile_sums,
    [FUSERUN_OP_ADD_BATCH] = fuse_compile_tokens,
    [FUSERUN_OP_ADD_BATCH_DW] = fuse_compile_sums,
    [FUSERUN_OP_SELECT] = fuse_compile_tokens,
    [FUSERUN_OP_SELECT_DX] = fuse_compile_tokens,
    [FUSERUN_OP_DROPOUT] = fuse_compile_elementwise,
    [FUSERUN_OP_SUM_SQUARES] = fuse_compile_norm,
    [FUSERUN_OP_LINEAR_DW_NORM] = fuse_compile_norm,
    [FUSERUN_OP_LINEAR_DW_SUM] = fuse_compile_linear,
    [FUSERUN_OP_LINEAR_DW_SUM_NORM] = fuse_compile_norm,
};

static int compile(void *instance, const struct fuse_op *op, struct fuse_kernel **kernel, struct fuse_kernel_info *info,
                   struct fuse_error *error)
{
    struct fuse_cuda *const cuda = instance;
    const struct fuse_op_checker checker = {cuda->host, "cuda", cuda->is_bfloat16};
    *kernel = NULL;
    info->panel_count = 0;
    info->panel_rows = 0;
    info->workspace_bytes = 0;
    FUSE_TRY(fuse_op_check(&checker, op, error));
    return compilers[op->kind](cuda, op, kernel, info, error);
}

static void discard(void *instance, struct fuse_kernel *kernel)
{
    (void)instance;
    free(kernel);
}

static int run(void *instance, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error)
{
    return kernel->run(instance, kernel, call, error);
}

/* ---- updates --------------------------------------------------------------------------------------------------- */

static int compile_rule(void *instance, const struct fuse_rule *rule, struct fuse_compiled_rule **compiled,
                        struct fuse_error *error)
{
    return fuse_update_compile(instance, rule, compiled, error);
}

static void discard_rule(void *instance, struct fuse_compiled_rule *compiled)
{
    fuse_update_discard(instance, compiled);
}

static int update(void *instance, struct fuse_compiled_rule *compiled, const struct fuse_slice *slices,
                  int64_t slice_count, struct fuse_error *error)
{
    return fuse_update_slices(instance, compiled, slices, slice_count, error);
}

static int compile_tensor(void *instance, const struct fuse_rule *rule, const struct fuse_tensor_plan *plan,
                          struct fuse_compiled_tensor **compiled, uint64_t *workspace_bytes, struct fuse_error *error)
{
    return fuse_tensor_compile(instance, rule, plan, compiled, workspace_bytes, error);
}

static void discard_tensor(void *instance, struct fuse_compiled_tensor *compiled)
{
    fuse_tensor_discard(instance, compiled);
}

static int update_tensor(void *instance, struct fuse_compiled_tensor *compiled, const struct fuse_tensor_update *whole,
                         struct fuse_error *error)
{
    return fuse_tensor_update(instance, compiled, whole, error);
}

/* For functions that can tell nobody. */
static void keep(struct fuse_cuda *cuda, int status, const struct fuse_error *error)
{
    if (status != FUSERUN_OK && cuda->failure.code == FUSERUN_OK)
        cuda->failure = *error;
}

static struct fuse_error no_error(void)
{
    return (struct fuse_error){.struct_size = FUSERUN_STRUCT_SIZE(fuse_error, text)};
}

static void update_panel(void *instance, struct fuse_compiled_rule *compiled, const struct fuse_slice *slice)
{
    struct fuse_error error = no_error();
    keep(instance, fuse_update_slices(instance, compiled, slice, 1, &error), &error);
}

/* ---- gradients as a whole -------------------------------------------------------------------------------------- */

static int watch_into(struct fuse_cuda *cuda, const float *values, int64_t count, uint32_t number, unsigned *noticed,
                      struct fuse_error *error)
{
    const struct fuse_watch_arguments arguments = {
        .values = values, .noticed = noticed, .count = count, .number = number};
    return FUSE_LAUNCH(cuda, watch_values, fuse_cuda_blocks(cuda, count), &arguments, error);
}

static int watch_begin(void *instance, struct fuse_error *error)
{
    struct fuse_cuda *const cuda = instance;
    return fuse_cuda_forget(cuda, &cuda->results->noticed, error);
}

static void watch(void *instance, const float *values, int64_t count, uint32_t number)
{
    struct fuse_cuda *const cuda = instance;
    struct fuse_error error = no_error();
    keep(cuda, watch_into(cuda, values, count, number, &cuda->results->noticed, &error), &error);
}

static int watched(void *instance, uint32_t *number, struct fuse_error *error)
{
    struct fuse_cuda *const cuda = instance;
    return fuse_cuda_download(cuda, number, &cuda->results->noticed, sizeof(*number), error);
}

static int find_nonfinite(struct fuse_cuda *cuda, const float *values, int64_t count, uint32_t *found,
                          struct fuse_error *error)
{
    FUSE_TRY(fuse_cuda_forget(cuda, &cuda->results->nonfinite, error));
    FUSE_TRY(watch_into(cuda, values, count, 1, &cuda->results->nonfinite, error));
    return fuse_cuda_download(cuda, found, &cuda->results->nonfinite, sizeof(*found), error);
}

static int has_nonfinite(void *instance, const float *values, int64_t count)
{
    struct fuse_error error = no_error();
    uint32_t found = FUSE_NOTHING;
    keep(instance, find_nonfinite(instance, values, count, &found, &error), &error);
    return found != FUSE_NOTHING;
}

static struct fuse_elementwise_arguments in_place(float *values, int64_t count, float number)
{
    return (struct fuse_elementwise_arguments){.a = values, .out = values, .count = count, .number = number};
}

static void scale(void *instance, float *values, int64_t count, float factor, int is_panel)
{
    struct fuse_cuda *const cuda = instance;
    const struct fuse_elementwise_arguments arguments = in_place(values, count, factor);
    struct fuse_error error = no_error();
    (void)is_panel;
    keep(cuda, FUSE_LAUNCH(cuda, scale_values, fuse_cuda_blocks(cuda, count), &arguments, &error), &error);
}

static void clamp(void *instance, float *values, int64_t count, float limit, int is_panel)
{
    struct fuse_cuda *const cuda = instance;
    const struct fuse_elementwise_arguments arguments = in_place(values, count, limit);
    struct fuse_error error = no_error();
    (void)is_panel;
    keep(cuda, FUSE_LAUNCH(cuda, clamp_values, fuse_cuda_blocks(cuda, count), &arguments, &error), &error);
}

/* As many partial sums at a time as there is room for. */
static int add_squares(struct fuse_cuda *cuda, const float *values, int64_t count, double *sum,
                       struct fuse_error *error)
{
    const int64_t most = (int64_t)FUSE_OWN_PARTIALS * FUSE_SUM_CHUNK;
    for (int64_t at = 0; at == 0 || at < count; at += most) {
        const int64_t here = count - at < most ? count - at : most;
        FUSE_TRY(fuse_cuda_sum_products(cuda, values + at, values + at, here, at > 0, 1, cuda->results->partials,
                                        &cuda->results->sum, error));
    }
    return fuse_cuda_download(cuda, sum, &cuda->results->sum, sizeof(*sum), error);
}

static double sum_squares(void *instance, const float *values, int64_t count)
{
    struct fuse_error error = no_error();
    double sum = 0.0;
    keep(instance, add_squares(instance, values, count, &sum, &error), &error);
    return sum;
}

static const struct fuse_backend backend = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_backend, describe_libraries),
    .device_count = fuse_cuda_count,
    .open = open_backend,
    .close = close_backend,
    .describe = describe,
    .allocate = allocate,
    .release = release,
    .upload = upload,
    .download = download,
    .synchronize = synchronize,
    .compile = compile,
    .discard = discard,
    .run = run,
    .compile_rule = compile_rule,
    .discard_rule = discard_rule,
    .update = update,
    .update_panel = update_panel,
    .compile_tensor = compile_tensor,
    .discard_tensor = discard_tensor,
    .update_tensor = update_tensor,
    .has_nonfinite = has_nonfinite,
    .scale = scale,
    .clamp = clamp,
    .sum_squares = sum_squares,
    .clear = clear,
    .allocate_staging = allocate_staging,
    .release_staging = release_staging,
    .upload_staged = upload_staged,
    .watch_begin = watch_begin,
    .watch = watch,
    .watched = watched,
    .describe_libraries = fuse_driver_describe,
};

static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_BACKEND, .name = "cuda", .summary = "an NVIDIA GPU: cuBLAS, NVRTC",
                      .api = &backend),
};

FUSERUN_PLUGIN("cuda", "0.1.0", "MIT", components)
