/* The backend's table: opening, memory, and the way to each op's file. */
#include "cpu.h"
#include "product.h"
#include "threads.h"
#include "tensor.h"
#include "update.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES (2u << 20)
#define HUGE_ALLOCATION_BYTES (8u << 20)

static int device_count(const struct fuse_host *host, struct fuse_error *error)
{
    (void)host, (void)error;
    return 1;
}

static const char *instruction_set(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return "AVX-512";
    if (__builtin_cpu_supports("avx2"))
        return "AVX2";
    return "SSE2";
#elif defined(__aarch64__)
    return "NEON";
#else
    return "portable";
#endif
}

static void processor_name(char *name, size_t size)
{
    char line[256];
    snprintf(name, size, "CPU");
    FILE *const file = fopen("/proc/cpuinfo", "re");
    if (file == NULL)
        return;
    while (fgets(line, sizeof(line), file) != NULL) {
        const char *const colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    fclose(file);
}

static void close_backend(void *instance)
{
    struct fuse_cpu *const cpu = instance;
    if (cpu == NULL)
        return;
    fuse_products_close(&cpu->products);
    free(cpu->zeros);
    free(cpu);
}

static uint64_t core_cache_bytes(void)
{
#ifdef _SC_LEVEL2_CACHE_SIZE
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? (uint64_t)bytes : 0;
#else
    return 0;
#endif
}

static int open_backend(const struct fuse_host *host, const struct fuse_backend_options *options, void **instance,
                        struct fuse_error *error)
{
    char name[128], library[64];
    *instance = NULL;
    if (options->device_index != 0)
        return host->fail(error, FUSERUN_ERROR_CONFIG, NULL, "backend cpu has one device, 0; asked for %u",
                          options->device_index);
    struct fuse_cpu *cpu = calloc(1, sizeof(*cpu));
    if (cpu == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the CPU backend (%zu bytes)",
                          sizeof(*cpu));
    cpu->host = host;
    cpu->is_bfloat16 = options->precision == FUSERUN_BFLOAT16;
    cpu->thread_count = fuse_threads_choose(options->thread_count);
    cpu->core_cache_bytes = core_cache_bytes();
    const int status = fuse_products_open(host, cpu->thread_count, &cpu->products, error);
    if (status != FUSERUN_OK) {
        close_backend(cpu);
        return status;
    }
    processor_name(name, sizeof(name));
    fuse_products_describe(library, sizeof(library));
    const struct fuse_product_shape large = {.m = 4096, .n = 4096, .k = 4096, .is_bfloat16 = true};
    const char *const narrow = !cpu->is_bfloat16                                ? ""
                               : fuse_product_uses_tiles(cpu->products, &large) ? ", bf16 multiplied as float32"
                                                                                : ", bf16 multiplied as such";
    snprintf(cpu->description, sizeof(cpu->description), "%s, %d thread%s, %s, %s%s", name, cpu->thread_count,
             cpu->thread_count == 1 ? "" : "s", library, instruction_set(), narrow);
    *instance = cpu;
    return FUSERUN_OK;
}

static void describe(const void *instance, struct fuse_backend_info *info)
{
    const struct fuse_cpu *const cpu = instance;
    info->worker_count = (uint32_t)cpu->thread_count;
    info->name = "cpu";
    info->description = cpu->description;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static uint64_t mapped_bytes(uint64_t bytes)
{
    return (bytes + 4095u) / 4096u * 4096u;
}

/* Anonymous mappings are zero and not resident before they are touched. Large ones start at a huge page and ask for
 * them: fewer faults and fewer misses in the page table. */
static int allocate(void *instance, uint64_t bytes, void **memory, struct fuse_error *error)
{
    const struct fuse_cpu *const cpu = instance;
    const uint64_t size = mapped_bytes(bytes > 0 ? bytes : 1);
    const uint64_t slack = bytes >= HUGE_ALLOCATION_BYTES ? HUGE_PAGE_BYTES : 0;
    *memory = NULL;
    char *map = MAP_FAILED;
    if (size >= bytes && size + slack >= size && size + slack <= SIZE_MAX / 2)
        map = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    else
        errno = ENOMEM;
    if (map == MAP_FAILED)
        return cpu->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory: the CPU cannot give %llu bytes (%s)",
                               (unsigned long long)bytes, strerror(errno));
    if (slack > 0) {
        const uint64_t head = (HUGE_PAGE_BYTES - (uintptr_t)map % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
        if (head > 0)
            munmap(map, head);
        map += head;
        munmap(map + size, slack - head);
        madvise(map, size, MADV_HUGEPAGE);
    }
    *memory = map;
    return FUSERUN_OK;
}

static void release(void *instance, void *memory, uint64_t bytes)
{
    (void)instance;
    if (memory != NULL)
        munmap(memory, mapped_bytes(bytes > 0 ? bytes : 1));
}

static int upload(void *instance, void *device, const void *host_memory, uint64_t bytes, struct fuse_error *error)
{
    (void)instance, (void)error;
    memcpy(device, host_memory, bytes);
    return FUSERUN_OK;
}

static int download(void *instance, void *host_memory, const void *device, uint64_t bytes, struct fuse_error *error)
{
    (void)instance, (void)error;
    memcpy(host_memory, device, bytes);
    return FUSERUN_OK;
}

static int synchronize(void *instance, struct fuse_error *error)
{
    (void)instance, (void)error;
    return FUSERUN_OK;
}

/* ---- kernels ------------------------------------------------------------------------------------------------- */

static fuse_compiler *const compilers[] = {
    [FUSERUN_OP_LINEAR] = fuse_compile_linear,
    [FUSERUN_OP_LINEAR_DX] = fuse_compile_linear,
    [FUSERUN_OP_LINEAR_DW] = fuse_compile_linear,
    [FUSERUN_OP_LINEAR_DB] = fuse_compile_bias_gradient,
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
    [FUSERUN_OP_PREPEND_DW] = fuse_compile_tokens,
    [FUSERUN_OP_ADD_BATCH] = fuse_compile_tokens,
    [FUSERUN_OP_ADD_BATCH_DW] = fuse_compile_tokens,
    [FUSERUN_OP_SELECT] = fuse_compile_tokens,
    [FUSERUN_OP_SELECT_DX] = fuse_compile_tokens,
    [FUSERUN_OP_DROPOUT] = fuse_compile_dropout,
    [FUSERUN_OP_SUM_SQUARES] = fuse_compile_norm,
    [FUSERUN_OP_LINEAR_DW_NORM] = fuse_compile_norm,
    [FUSERUN_OP_LINEAR_DW_SUM] = fuse_compile_linear,
    [FUSERUN_OP_LINEAR_DW_SUM_NORM] = fuse_compile_norm,
};

static int compile(void *instance, const struct fuse_op *op, struct fuse_kernel **kernel, struct fuse_kernel_info *info,
                   struct fuse_error *error)
{
    struct fuse_cpu *const cpu = instance;
    *kernel = NULL;
    info->panel_count = 0;
    info->panel_rows = 0;
    info->workspace_bytes = 0;
    FUSE_TRY(fuse_op_check_cpu(cpu, op, error));
    return compilers[op->kind](cpu, op, kernel, info, error);
}

static void discard(void *instance, struct fuse_kernel *kernel)
{
    (void)instance;
    if (kernel != NULL)
        kernel->destroy(kernel);
}

static int run(void *instance, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error)
{
    return kernel->run(instance, kernel, call, error);
}

static int compile_rule(void *instance, const struct fuse_rule *rule, struct fuse_compiled_rule **compiled,
                        struct fuse_error *error)
{
    return fuse_update_compile(instance, rule, compiled, error);
}

static void discard_rule(void *instance, struct fuse_compiled_rule *compiled)
{
    (void)instance;
    fuse_update_discard(compiled);
}

static int update(void *instance, struct fuse_compiled_rule *compiled, const struct fuse_slice *slices,
                  int64_t slice_count, struct fuse_error *error)
{
    (void)error;
    return fuse_update_slices(instance, compiled, slices, slice_count);
}

static void update_panel(void *instance, struct fuse_compiled_rule *compiled, const struct fuse_slice *slice)
{
    (void)instance;
    fuse_update_panel(compiled, slice);
}

/* ---- finite or not ------------------------------------------------------------------------------------------- */

struct scan {
    const float *values; /* (count) */
    int *found;
};

FUSE_CLONES static int block_has_nonfinite(const float *values, int64_t count)
{
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found;
}

static void scan_range(const void *context, int64_t begin, int64_t end)
{
    const struct scan *const scan = context;
    for (int64_t at = begin; at < end; at += 4096)
        if (block_has_nonfinite(scan->values + at, at + 4096 < end ? 4096 : end - at)) {
            __atomic_store_n(scan->found, 1, __ATOMIC_RELAXED);
            return;
        }
}

static int has_nonfinite(void *instance, const float *values, int64_t count)
{
    const struct fuse_cpu *const cpu = instance;
    int found = 0;
    const struct scan scan = {values, &found};
    if (count > 0)
        fuse_threads_split(cpu->thread_count, count, 16, 4 * FUSE_SERIAL_ELEMENTS, scan_range, &scan);
    return found;
}

struct scaling {
    float *values;
    float factor;
};

FUSE_CLONES static void scale_range(const void *context, int64_t begin, int64_t end)
{
    const struct scaling *const self = context;
    float *const values = self->values;
    const float factor = self->factor;
    for (int64_t i = begin; i < end; i++)
        values[i] *= factor;
}

static void scale(void *instance, float *values, int64_t count, float factor, int is_panel)
{
    const struct fuse_cpu *const cpu = instance;
    const struct scaling self = {values, factor};
    fuse_threads_split(is_panel ? 1 : cpu->thread_count, count, 16, 4 * FUSE_SERIAL_ELEMENTS, scale_range, &self);
}

FUSE_CLONES static void clamp_range(const void *context, int64_t begin, int64_t end)
{
    const struct scaling *const self = context;
    float *const values = self->values;
    const float limit = self->factor;
    for (int64_t i = begin; i < end; i++) {
        const float low = values[i] < -limit ? -limit : values[i];
        values[i] = low > limit ? limit : low;
    }
}

static void clamp(void *instance, float *values, int64_t count, float limit, int is_panel)
{
    const struct fuse_cpu *const cpu = instance;
    const struct scaling self = {values, limit};
    fuse_threads_split(is_panel ? 1 : cpu->thread_count, count, 16, 4 * FUSE_SERIAL_ELEMENTS, clamp_range, &self);
}

static double sum_squares(void *instance, const float *values, int64_t count)
{
    (void)instance;
    return fuse_sum_squares(values, count);
}

static int clear(void *instance, void *memory, uint64_t bytes, struct fuse_error *error)
{
    (void)instance;
    (void)error;
    memset(memory, 0, bytes);
    return FUSERUN_OK;
}

static int compile_tensor(void *instance, const struct fuse_rule *rule, const struct fuse_tensor_plan *plan,
                          struct fuse_compiled_tensor **compiled, uint64_t *workspace_bytes, struct fuse_error *error)
{
    return fuse_tensor_compile(instance, rule, plan, compiled, workspace_bytes, error);
}

static void discard_tensor(void *instance, struct fuse_compiled_tensor *compiled)
{
    (void)instance;
    fuse_tensor_discard(compiled);
}

static int update_tensor(void *instance, struct fuse_compiled_tensor *compiled, const struct fuse_tensor_update *whole,
                         struct fuse_error *error)
{
    return fuse_tensor_update(instance, compiled, whole, error);
}

static const struct fuse_backend backend = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_backend, update_tensor),
    .device_count = device_count,
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
    .has_nonfinite = has_nonfinite,
    .compile_tensor = compile_tensor,
    .discard_tensor = discard_tensor,
    .update_tensor = update_tensor,
    .scale = scale,
    .clamp = clamp,
    .sum_squares = sum_squares,
    .clear = clear,
};

static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_BACKEND, .name = "cpu",
                      .summary = "the CPU: own tiles, bf16 by oneDNN if there", .api = &backend),
};

FUSERUN_PLUGIN("cpu", "0.1.0", "MIT", components)
