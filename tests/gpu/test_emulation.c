/* The emulated device finds what it is there to find. Each case is a process of its own: settings are read once. */
/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "backends/cuda/driver.h"

#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- in the child --------------------------------------------------------------------------------------------------
 */

static struct fuse_driver cuda;
static void *context;

#define LOOK_UP(result, name, parameters, arguments)                                                                   \
    symbol = dlsym(library, #name);                                                                                    \
    memcpy(&cuda.name, &symbol, sizeof symbol);

static void need(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "not so: %s\n", what);
    _exit(3);
}
#define NEED(condition) need(condition, #condition)

static void open_device(void)
{
    void *symbol, *const library = dlopen(FUSE_EMULATION, RTLD_NOW | RTLD_LOCAL);
    need(library != NULL, "the emulation can be loaded");
    FUSE_DRIVER_CALLS(LOOK_UP)
    FUSE_CUBLAS_CALLS(LOOK_UP)
    FUSE_NVRTC_CALLS(LOOK_UP)
    NEED(cuda.cuInit(0) == 0);
    NEED(cuda.cuDevicePrimaryCtxRetain(&context, 0) == 0);
    NEED(cuda.cuCtxSetCurrent(context) == 0);
}

static float *pinned(int count)
{
    void *memory = NULL;
    NEED(cuda.cuMemHostAlloc(&memory, (size_t)count * sizeof(float), 0) == 0);
    return memory;
}

static fuse_device_address device_memory(size_t bytes)
{
    fuse_device_address memory = 0;
    NEED(cuda.cuMemAlloc_v2(&memory, bytes) == 0);
    return memory;
}

static void *new_stream(void)
{
    void *stream = NULL;
    NEED(cuda.cuStreamCreate(&stream, FUSE_CU_STREAM_NON_BLOCKING) == 0);
    return stream;
}

static void *new_event(void)
{
    void *event = NULL;
    NEED(cuda.cuEventCreate(&event, FUSE_CU_EVENT_DISABLE_TIMING) == 0);
    return event;
}

struct arguments {
    fuse_device_address x;
    long long count;
};

static const char texts[] = "struct arguments { float *x; long long count; };\n"
                            "FUSE_KERNEL(add_one, struct arguments, a)\n"
                            "{\n"
                            "    const long long i = FUSE_BLOCK_INDEX * 256 + FUSE_THREAD;\n"
                            "    if (i < a.count) a.x[i] += 1.0f;\n"
                            "}\n"
                            "FUSE_KERNEL(reverse, struct arguments, a)\n"
                            "{\n"
                            "    FUSE_SHARED float cells[256];\n"
                            "    cells[FUSE_THREAD] = a.x[FUSE_THREAD];\n"
                            "    FUSE_SYNC();\n"
                            "    a.x[FUSE_THREAD] = cells[255 - FUSE_THREAD];\n"
                            "}\n"
                            "FUSE_KERNEL(reverse_without_barrier, struct arguments, a)\n"
                            "{\n"
                            "    FUSE_SHARED float cells[256];\n"
                            "    cells[FUSE_THREAD] = a.x[FUSE_THREAD];\n"
                            "    a.x[FUSE_THREAD] = cells[255 - FUSE_THREAD];\n"
                            "}\n"
                            "FUSE_KERNEL(half_at_barrier, struct arguments, a)\n"
                            "{\n"
                            "    if (FUSE_THREAD < a.count) FUSE_SYNC();\n"
                            "}\n"
                            "FUSE_KERNEL(two_barriers, struct arguments, a)\n"
                            "{\n"
                            "    if (FUSE_THREAD < a.count)\n"
                            "        FUSE_SYNC();\n"
                            "    else\n"
                            "        FUSE_SYNC();\n"
                            "}\n"
                            "FUSE_KERNEL(outside_shared, struct arguments, a)\n"
                            "{\n"
                            "    FUSE_SHARED float cells[256];\n"
                            "    cells[FUSE_THREAD + a.count] = 0.0f;\n"
                            "    a.x[0] = cells[0];\n"
                            "}\n";

static void *module_of(const char *text)
{
    static const char *const options[] = {"--gpu-architecture=sm_90"};
    void *program = NULL, *module = NULL;
    size_t bytes = 0;
    NEED(cuda.nvrtcCreateProgram(&program, text, "texts", 0, NULL, NULL) == 0);
    NEED(cuda.nvrtcCompileProgram(program, 1, options) == 0);
    NEED(cuda.nvrtcGetCUBINSize(program, &bytes) == 0);
    char *const image = malloc(bytes);
    NEED(image != NULL && cuda.nvrtcGetCUBIN(program, image) == 0);
    NEED(cuda.nvrtcDestroyProgram(&program) == 0);
    NEED(cuda.cuModuleLoadData(&module, image) == 0);
    free(image);
    return module;
}

static void *kernel_of(void *module, const char *name)
{
    void *function = NULL;
    NEED(cuda.cuModuleGetFunction(&function, module, name) == 0);
    return function;
}

static int launch(void *function, unsigned blocks, void *stream, fuse_device_address x, long long count)
{
    struct arguments arguments = {x, count};
    void *parameters[] = {&arguments};
    const int status = cuda.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
    memset(&arguments, 0xff, sizeof arguments);
    return status;
}

/* x (count) of 0, 1, 2, ... on the device. */
static fuse_device_address counting(int count, void *stream)
{
    const fuse_device_address x = device_memory((size_t)count * sizeof(float));
    float *const values = pinned(count);
    for (int i = 0; i < count; i++)
        values[i] = (float)i;
    NEED(cuda.cuMemcpyHtoDAsync_v2(x, values, (size_t)count * sizeof(float), stream) == 0);
    NEED(cuda.cuStreamSynchronize(stream) == 0);
    NEED(cuda.cuMemFreeHost(values) == 0);
    return x;
}

static void fetch(float *values, fuse_device_address x, int count, void *stream)
{
    NEED(cuda.cuMemcpyDtoHAsync_v2(values, x, (size_t)count * sizeof(float), stream) == 0);
    NEED(cuda.cuStreamSynchronize(stream) == 0);
}

/* ---- in the parent --------------------------------------------------------------------------------------------------
 */

static char said[4096];

/* The status of a child that runs `work` with some settings, "NAME=VALUE", up to NULL; said holds its stderr. */
static int status_of(void (*work)(void), ...)
{
    int ends[2], status = 0;
    size_t length = 0;
    ssize_t got;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        va_list settings;
        close(ends[0]);
        dup2(ends[1], 2);
        va_start(settings, work);
        for (char *setting = va_arg(settings, char *); setting != NULL; setting = va_arg(settings, char *))
            putenv(setting);
        va_end(settings);
        signal(SIGABRT, SIG_DFL); /* cmocka has one */
        open_device();
        work();
        exit(0);
    }
    close(ends[1]);
    while (length + 1 < sizeof said && (got = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void holds(int status)
{
    if (status != 0)
        fail_msg("status %d: %s", status, said);
}

static void dies(int status, const char *words)
{
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || strstr(said, words) == NULL)
        fail_msg("status %d, not aborted with '%s': %s", status, words, said);
}

/* ---- memory
 * ------------------------------------------------------------------------------------------------------------ */

static void use_fresh_memory(void)
{
    void *const stream = new_stream();
    float *const values = pinned(5);
    const fuse_device_address x = device_memory(5 * sizeof(float));
    fetch(values, x, 5, stream);
    for (int i = 0; i < 5; i++)
        NEED(isnan(values[i]));
    NEED(cuda.cuMemFree_v2(x) == 0);
    NEED(cuda.cuMemcpyDtoHAsync_v2(values, x, 4, stream) != 0);
    NEED(cuda.cuMemFree_v2(x) != 0);
}

static void touch_from_host(void)
{
    float *const x = (float *)(uintptr_t)device_memory(64);
    x[3] = 1.0f;
}

static void write_past_end(void)
{
    void *const stream = new_stream(), *const module = module_of(texts);
    const fuse_device_address x = device_memory(256 * sizeof(float));
    launch(kernel_of(module, "add_one"), 2, stream, x, 257);
    cuda.cuStreamSynchronize(stream);
}

static void write_a_little_past_end(void)
{
    void *const stream = new_stream(), *const module = module_of(texts);
    const fuse_device_address x = device_memory(100 * sizeof(float));
    NEED(launch(kernel_of(module, "add_one"), 1, stream, x, 101) == 0);
    NEED(cuda.cuMemFree_v2(x) == 0);
}

static void write_outside_shared(void)
{
    void *const stream = new_stream(), *const module = module_of(texts);
    launch(kernel_of(module, "outside_shared"), 1, stream, device_memory(64), 1);
    cuda.cuStreamSynchronize(stream);
}

static void use_up_memory(void)
{
    fuse_device_address memory = 0;
    size_t free_bytes = 0, total_bytes = 0;
    device_memory(700);
    NEED(cuda.cuMemAlloc_v2(&memory, 301) == FUSE_CU_OUT_OF_MEMORY);
    NEED(cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes) == 0 && free_bytes == 300 && total_bytes == 1000);
    device_memory(300);
}

static void test_memory(void **state)
{
    (void)state;
    holds(status_of(use_fresh_memory, NULL));
    assert_non_null(strstr(said, "memory 1 (20 bytes) was freed twice"));
    dies(status_of(touch_from_host, NULL), "the host reached for byte 12 of memory 1");
    dies(status_of(write_past_end, NULL), "kernel add_one, block 1, thread 0 reached for byte 1024 of memory 1 (1024 ");
    holds(status_of(write_a_little_past_end, NULL));
    assert_non_null(strstr(said, "memory 1 (400 bytes) was written 0 bytes past its end"));
    dies(status_of(write_outside_shared, NULL), "kernel outside_shared, block 0, thread 255: an index outside");
    holds(status_of(use_up_memory, "FUSERUN_EMULATION_MEMORY=1000", NULL));
}

/* ---- order
 * --------------------------------------------------------------------------------------------------------------- */

static void copy_late(void)
{
    void *const stream = new_stream();
    float *const from = pinned(1), *const to = pinned(1), pageable = 3.0f;
    const fuse_device_address x = device_memory(8);
    from[0] = 1.0f;
    NEED(cuda.cuMemcpyHtoDAsync_v2(x, from, 4, stream) == 0);
    NEED(cuda.cuMemcpyHtoDAsync_v2(x + 4, &pageable, 4, stream) == 0);
    from[0] = 2.0f;
    to[0] = 0.0f;
    NEED(cuda.cuMemcpyDtoHAsync_v2(to, x, 4, stream) == 0);
    NEED(isnan(to[0]));
    NEED(cuda.cuStreamSynchronize(stream) == 0);
    NEED(to[0] == 2.0f);
}

static void copy_staged(void)
{
    void *const stream = new_stream();
    float value = 1.0f, got = 0.0f;
    const fuse_device_address x = device_memory(4);
    NEED(cuda.cuMemcpyHtoDAsync_v2(x, &value, 4, stream) == 0);
    value = 2.0f;
    NEED(cuda.cuMemcpyDtoHAsync_v2(&got, x, 4, stream) == 0);
    NEED(got == 1.0f);
}

/* One stream fills, another one reads behind an event; then the first one overwrites behind another event. */
static void hand_over(void)
{
    void *const one = new_stream(), *const two = new_stream(), *const filled = new_event(), *const read = new_event();
    const fuse_device_address x = device_memory(4), y = device_memory(4);
    float *const values = pinned(2);
    NEED(cuda.cuMemsetD8Async(x, 1, 4, one) == 0 && cuda.cuEventRecord(filled, one) == 0);
    NEED(cuda.cuStreamWaitEvent(two, filled, 0) == 0 && cuda.cuMemcpyDtoDAsync_v2(y, x, 4, two) == 0);
    NEED(cuda.cuEventRecord(read, two) == 0 && cuda.cuStreamWaitEvent(one, read, 0) == 0);
    NEED(cuda.cuMemsetD8Async(x, 2, 4, one) == 0);
    NEED(cuda.cuMemcpyDtoHAsync_v2(&values[0], x, 4, one) == 0 && cuda.cuStreamSynchronize(one) == 0);
    NEED(cuda.cuMemcpyDtoHAsync_v2(&values[1], y, 4, two) == 0 && cuda.cuStreamSynchronize(two) == 0);
    uint32_t bits[2];
    memcpy(bits, values, sizeof bits);
    fprintf(stderr, "%x %x", bits[0], bits[1]);
}

static void test_order(void **state)
{
    (void)state;
    holds(status_of(copy_late, NULL));
    holds(status_of(copy_staged, NULL));
    static const char *const orders[] = {"late", "eager", "1", "2", "3", "4", "5"};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        char setting[64];
        snprintf(setting, sizeof setting, "FUSERUN_EMULATION_ORDER=%s", orders[i]);
        holds(status_of(hand_over, setting, NULL));
        assert_string_equal(said, "2020202 1010101");
    }
    /* Without the first wait two reads what is not there; without the second one does not let it read in time. */
    char eager[] = "FUSERUN_EMULATION_ORDER=eager", first[] = "FUSERUN_EMULATION_NO_WAIT=1";
    char second[] = "FUSERUN_EMULATION_NO_WAIT=2";
    holds(status_of(hand_over, second, NULL));
    assert_string_equal(said, "2020202 2020202");
    holds(status_of(hand_over, eager, second, NULL));
    assert_string_equal(said, "2020202 1010101");
    int found = 0;
    for (int seed = 0; seed < 20; seed++) {
        char setting[64];
        snprintf(setting, sizeof setting, "FUSERUN_EMULATION_ORDER=%d", seed);
        holds(status_of(hand_over, setting, first, NULL));
        found += strcmp(said, "2020202 ffffffff") == 0;
    }
    assert_true(found > 0);
}

/* ---- kernels
 * ---------------------------------------------------------------------------------------------------------------- */

static void run_kernels(void)
{
    void *const stream = new_stream(), *const module = module_of(texts);
    const fuse_device_address x = counting(1000, stream);
    float *const values = pinned(1000);
    NEED(launch(kernel_of(module, "add_one"), 4, stream, x, 1000) == 0);
    fetch(values, x, 1000, stream);
    for (int i = 0; i < 1000; i++)
        NEED(values[i] == (float)i + 1.0f);
    NEED(launch(kernel_of(module, "reverse"), 1, stream, x, 256) == 0);
    fetch(values, x, 256, stream);
    for (int i = 0; i < 256; i++)
        NEED(values[i] == (float)(256 - i));
    NEED(launch(kernel_of(module, "reverse_without_barrier"), 1, stream, x, 256) == 0);
    fetch(values, x, 256, stream);
    int unread = 0;
    for (int i = 0; i < 256; i++)
        unread += isnan(values[i]);
    NEED(unread > 0);
    NEED(cuda.cuModuleUnload(module) == 0);
}

static void leave_half(void)
{
    void *const stream = new_stream();
    launch(kernel_of(module_of(texts), "half_at_barrier"), 1, stream, 0, 128);
    cuda.cuStreamSynchronize(stream);
}

static void part_ways(void)
{
    void *const stream = new_stream();
    launch(kernel_of(module_of(texts), "two_barriers"), 1, stream, 0, 128);
    cuda.cuStreamSynchronize(stream);
}

static void compile_nonsense(void)
{
    static const char *const options[] = {"--gpu-architecture=sm_90"};
    void *program = NULL;
    size_t bytes = 0;
    char log[4096];
    NEED(cuda.nvrtcCreateProgram(&program, "FUSE_KERNEL(", "nonsense", 0, NULL, NULL) == 0);
    NEED(cuda.nvrtcCompileProgram(program, 1, options) == FUSE_NVRTC_COMPILATION);
    NEED(cuda.nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes > 1 && bytes <= sizeof log);
    NEED(cuda.nvrtcGetProgramLog(program, log) == 0 && strstr(log, "error") != NULL);
    NEED(cuda.nvrtcDestroyProgram(&program) == 0);
}

static void test_kernels(void **state)
{
    (void)state;
    holds(status_of(run_kernels, NULL));
    dies(status_of(leave_half, NULL), "128 of a block's 256 threads came to the barrier");
    dies(status_of(part_ways, NULL), "threads of one block are at different barriers");
    holds(status_of(compile_nonsense, NULL));
}

/* ---- failures
 * ----------------------------------------------------------------------------------------------------------------- */

static void fail_when_told(void)
{
    fuse_device_address memory = 0;
    const char *name = NULL;
    device_memory(16);
    NEED(cuda.cuMemAlloc_v2(&memory, 16) == FUSE_CU_OUT_OF_MEMORY);
    device_memory(16);
    NEED(cuda.cuGetErrorName(FUSE_CU_OUT_OF_MEMORY, &name) == 0 && strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
}

static void lose_device(void)
{
    void *const stream = new_stream(), *const module = module_of(texts);
    void *const function = kernel_of(module, "add_one");
    const fuse_device_address x = counting(256, stream);
    void *handle = NULL;
    NEED(cuda.cublasCreate_v2(&handle) == 0);
    NEED(launch(function, 1, stream, x, 256) == 0);
    NEED(launch(function, 1, stream, x, 256) == 0);
    NEED(cuda.cuStreamSynchronize(stream) == 719);
    NEED(launch(function, 1, stream, x, 256) == 719);
    NEED(cuda.cublasSetStream_v2(handle, stream) != 0);
    NEED(cuda.cuMemFree_v2(x) == 719);
    NEED(cuda.cuStreamDestroy_v2(stream) == 719);
    NEED(cuda.cuModuleUnload(module) == 719);
}

static void leak(void)
{
    device_memory(16);
    NEED(cuda.cuMemFree_v2(device_memory(32)) == 0);
    new_event();
}

static void test_failures(void **state)
{
    (void)state;
    char report[] = "/tmp/test-emulation-XXXXXX", setting[64], text[2048] = "";
    holds(status_of(fail_when_told, "FUSERUN_EMULATION_FAIL=cuMemAlloc_v2:2:2", NULL));
    holds(status_of(lose_device, "FUSERUN_EMULATION_FAIL=launch:2:719", NULL));
    const int file = mkstemp(report);
    assert_true(file >= 0);
    snprintf(setting, sizeof setting, "FUSERUN_EMULATION_REPORT=%s", report);
    holds(status_of(leak, setting, NULL));
    assert_true(read(file, text, sizeof text - 1) > 0);
    close(file);
    unlink(report);
    assert_non_null(strstr(text, "\"leaks\": {\"context\": 1, \"memory\": 1, \"event\": 1}"));
    assert_non_null(strstr(text, "\"peak_bytes\": 48"));
    assert_non_null(strstr(text, "\"cuMemAlloc_v2\": 2"));
}

/* ---- products
 * --------------------------------------------------------------------------------------------------------------- */

enum { M = 9, N = 6, K = 37 };

static float entry(int which, int i, int j)
{
    return (float)((i * 7 + j * 13 + which * 5) % 17 - 8) / 7.0f;
}

/* c (M, N) from a and b that lie transposed or not; rows_done of c's M, as a panel would. */
static void product(void *handle, bool is_a_transposed, bool is_b_transposed, int rows, float beta, int compute,
                    float *got)
{
    float a[M * K], b[K * N], c[M * N];
    void *const stream = new_stream();
    const fuse_device_address da = device_memory(sizeof a), db = device_memory(sizeof b), dc = device_memory(sizeof c);
    const float alpha = 1.0f;
    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++)
            a[is_a_transposed ? i * K + k : k * M + i] = entry(0, i, k);
    for (int k = 0; k < K; k++)
        for (int j = 0; j < N; j++)
            b[is_b_transposed ? k * N + j : j * K + k] = entry(1, k, j);
    for (int i = 0; i < M * N; i++)
        c[i] = 0.5f;
    NEED(cuda.cublasSetStream_v2(handle, stream) == 0);
    NEED(cuda.cuMemcpyHtoDAsync_v2(da, a, sizeof a, stream) == 0);
    NEED(cuda.cuMemcpyHtoDAsync_v2(db, b, sizeof b, stream) == 0);
    if (beta != 0.0f)
        NEED(cuda.cuMemcpyHtoDAsync_v2(dc, c, sizeof c, stream) == 0);
    NEED(cuda.cublasGemmEx(handle, is_a_transposed, is_b_transposed, rows, N, K, &alpha, (const void *)(uintptr_t)da, 0,
                           is_a_transposed ? K : M, (const void *)(uintptr_t)db, 0, is_b_transposed ? N : K, &beta,
                           (void *)(uintptr_t)dc, 0, M, compute, -1) == 0);
    fetch(got, dc, M * N, stream);
}

static void check_product(const float *got, float beta, double tolerance)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0.5 * (double)beta;
            for (int k = 0; k < K; k++)
                sum += (double)entry(0, i, k) * (double)entry(1, k, j);
            NEED(fabs((double)got[j * M + i] - sum) <= tolerance);
        }
}

static void multiply(void)
{
    float got[M * N], part[M * N];
    void *handle = NULL;
    int differing = 0;
    NEED(cuda.cublasCreate_v2(&handle) == 0);
    for (int form = 0; form < 4; form++) {
        product(handle, (form & 1) != 0, (form & 2) != 0, M, 0.0f, FUSE_CUBLAS_COMPUTE_FLOAT32, got);
        check_product(got, 0.0f, 4e-6); /* K * 2^-24 * the sum of |a b| */
        product(handle, (form & 1) != 0, (form & 2) != 0, M, 1.0f, FUSE_CUBLAS_COMPUTE_FLOAT32, got);
        check_product(got, 1.0f, 4e-6);
    }
    product(handle, false, false, M, 0.0f, FUSE_CUBLAS_COMPUTE_FLOAT32, got);
    product(handle, false, false, 5, 0.0f, FUSE_CUBLAS_COMPUTE_FLOAT32, part);
    for (int j = 0; j < N; j++)
        for (int i = 0; i < 5; i++)
            differing += got[j * M + i] != part[j * M + i];
    NEED(differing > 0 && isnan(part[5]));
    product(handle, false, false, M, 0.0f, FUSE_CUBLAS_COMPUTE_TF32, part);
    check_product(part, 0.0f, 2e-2);
    NEED(memcmp(got, part, sizeof got) != 0);
    NEED(cuda.cublasDestroy_v2(handle) == 0);
}

/* Of whole numbers, which bfloat16 has and whose sums float has: what is left is the rounding of c. */
static unsigned short whole_number(int which, int i, int j)
{
    const float value = (float)((i * 7 + j * 13 + which * 5) % 17);
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return (unsigned short)(bits >> 16);
}

static float widened(unsigned short half)
{
    const unsigned bits = (unsigned)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float nearest_bfloat16(float value)
{
    int exponent;
    const float fraction = frexpf(value, &exponent);
    return ldexpf(nearbyintf(ldexpf(fraction, 8)), exponent - 8);
}

/* c (M, N) = a b, all bfloat16; the number of elements that are not the sum's nearest. */
static int count_wrong(void *handle)
{
    unsigned short a[M * K], b[K * N], c[M * N];
    const float alpha = 1.0f, beta = 0.0f;
    void *const stream = new_stream();
    const fuse_device_address da = device_memory(sizeof a), db = device_memory(sizeof b), dc = device_memory(sizeof c);
    int wrong = 0;
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < M; i++)
            a[k * M + i] = whole_number(0, i, k);
        for (int j = 0; j < N; j++)
            b[j * K + k] = whole_number(1, k, j);
    }
    NEED(cuda.cublasSetStream_v2(handle, stream) == 0);
    NEED(cuda.cuMemcpyHtoDAsync_v2(da, a, sizeof a, stream) == 0);
    NEED(cuda.cuMemcpyHtoDAsync_v2(db, b, sizeof b, stream) == 0);
    const int types[] = {FUSE_CUBLAS_COMPUTE_TF32, FUSE_CUBLAS_COMPUTE_FLOAT32};
    for (int i = 0; i < 2; i++) /* TF32 is for float32 */
        NEED((cuda.cublasGemmEx(handle, 0, 0, M, N, K, &alpha, (const void *)(uintptr_t)da, FUSE_CUBLAS_BFLOAT16, M,
                                (const void *)(uintptr_t)db, FUSE_CUBLAS_BFLOAT16, K, &beta, (void *)(uintptr_t)dc,
                                FUSE_CUBLAS_BFLOAT16, M, types[i], -1) == 0) == (i == 1));
    NEED(cuda.cuMemcpyDtoHAsync_v2(c, dc, sizeof c, stream) == 0);
    NEED(cuda.cuStreamSynchronize(stream) == 0);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0.0f;
            for (int k = 0; k < K; k++)
                sum += widened(a[k * M + i]) * widened(b[j * K + k]);
            wrong += widened(c[j * M + i]) != nearest_bfloat16(sum);
        }
    return wrong;
}

static void multiply_bfloat16(void)
{
    void *handle = NULL;
    NEED(cuda.cublasCreate_v2(&handle) == 0);
    NEED(count_wrong(handle) > 0);
    NEED(cuda.cublasSetMathMode(handle, FUSE_CUBLAS_FULL_REDUCTIONS) == 0);
    NEED(count_wrong(handle) == 0);
    NEED(cuda.cublasDestroy_v2(handle) == 0);
}

static void test_products(void **state)
{
    (void)state;
    holds(status_of(multiply, NULL));
    holds(status_of(multiply_bfloat16, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),   cmocka_unit_test(test_order),    cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
