#include "cuda.h"
#include "texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cuBLAS: what NVIDIA recommends for Hopper and newer, and for older devices. */
#define WORKSPACE_BYTES (32u << 20)
#define OLD_WORKSPACE_BYTES (8u << 20)
#define LEAST_BFLOAT16 80      /* tensor cores multiply bfloat16 from this capability on */
#define MOST_BLOCKS 2147483647 /* of a grid */

/* ---- failures -------------------------------------------------------------------------------------------------- */

int fuse_cuda_check(struct fuse_cuda *cuda, int result, const char *what, struct fuse_error *error)
{
    char text[256];
    if (result == FUSE_CU_SUCCESS)
        return FUSERUN_OK;
    cuda->is_full = cuda->is_full || result == FUSE_CU_OUT_OF_MEMORY;
    fuse_driver_error_text(result, text, sizeof(text));
    return cuda->host->fail(error, result == FUSE_CU_OUT_OF_MEMORY ? FUSERUN_ERROR_MEMORY : FUSERUN_ERROR_DEVICE, NULL,
                            "CUDA device %d: %s failed: %s", cuda->ordinal, what, text);
}

void fuse_cuda_note(struct fuse_cuda *cuda, int result, const char *what)
{
    if (result != FUSE_CU_SUCCESS && cuda->failure.code == FUSERUN_OK)
        (void)fuse_cuda_check(cuda, result, what, &cuda->failure);
}

int fuse_cuda_failed(const struct fuse_cuda *cuda, struct fuse_error *error)
{
    if (cuda->failure.code != FUSERUN_OK && error != NULL)
        *error = cuda->failure;
    return cuda->failure.code;
}

int fuse_cuda_begin(struct fuse_cuda *cuda, struct fuse_error *error)
{
    cuda->is_busy = cuda->is_computing = true;
    return fuse_cuda_failed(cuda, error);
}

void fuse_cuda_settle(struct fuse_cuda *cuda)
{
    if (!cuda->is_busy)
        return;
    cuda->is_busy = cuda->is_computing = false;
    if (cuda->stream != NULL)
        (void)cuda->driver->cuStreamSynchronize(cuda->stream);
    if (cuda->copy_stream != NULL)
        (void)cuda->driver->cuStreamSynchronize(cuda->copy_stream);
}

void *fuse_kernel_new(const struct fuse_cuda *cuda, size_t bytes, struct fuse_error *error)
{
    const struct fuse_op_checker checker = {cuda->host, "cuda", cuda->is_bfloat16};
    void *const kernel = calloc(1, bytes);
    if (kernel == NULL)
        (void)fuse_op_fail_memory(&checker, bytes, error);
    return kernel;
}

/* ---- launching ------------------------------------------------------------------------------------------------- */

int fuse_cuda_launch(struct fuse_cuda *cuda, void *function, const char *name, int64_t blocks, const void *argument,
                     struct fuse_error *error)
{
    char what[64];
    void *pointer;
    memcpy(&pointer, &argument, sizeof(pointer)); /* the driver's prototype lacks a const */
    void *parameters[] = {pointer};
    FUSE_TRY(fuse_cuda_begin(cuda, error));
    if (blocks == 0)
        return FUSERUN_OK;
    if (blocks > MOST_BLOCKS)
        return cuda->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                                "CUDA device %d: kernel %s would need %lld blocks, %d are possible", cuda->ordinal,
                                name, (long long)blocks, MOST_BLOCKS);
    const int result = cuda->driver->cuLaunchKernel(function, (unsigned)blocks, 1, 1, FUSE_BLOCK, 1, 1, 0, cuda->stream,
                                                    parameters, NULL);
    snprintf(what, sizeof(what), "launching kernel %s", name);
    return fuse_cuda_check(cuda, result, what, error);
}

int fuse_cuda_bfloat16_bits(const struct fuse_op *op)
{
    int bits = fuse_operand_is_bfloat16(&op->outputs[0]) ? FUSE_BFLOAT16_OUT : 0;
    for (uint32_t i = 0; i < op->input_count && i < 2; i++)
        bits |= fuse_operand_is_bfloat16(&op->inputs[i]) ? 1 << i : 0;
    return bits;
}

int64_t fuse_cuda_blocks(const struct fuse_cuda *cuda, int64_t count)
{
    const int64_t wanted = (count + FUSE_BLOCK - 1) / FUSE_BLOCK, full = (int64_t)cuda->multiprocessor_count * 32;
    return wanted < full ? wanted : full;
}

int fuse_cuda_forget(struct fuse_cuda *cuda, unsigned *noticed, struct fuse_error *error)
{
    FUSE_TRY(fuse_cuda_failed(cuda, error));
    cuda->is_busy = true;
    return fuse_cuda_check(cuda,
                           cuda->driver->cuMemsetD8Async(fuse_address(noticed), 0xff, sizeof(*noticed), cuda->stream),
                           "clearing memory", error);
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

int fuse_cuda_count(const struct fuse_host *host, struct fuse_error *error)
{
    const struct fuse_driver *driver;
    char text[256];
    int count = 0;
    if (fuse_driver_load(host, &driver, error) != FUSERUN_OK)
        return 0;
    int result = driver->cuInit(0);
    if (result == FUSE_CU_SUCCESS)
        result = driver->cuDeviceGetCount(&count);
    if (result != FUSE_CU_SUCCESS || count < 1) {
        fuse_driver_error_text(result != FUSE_CU_SUCCESS ? result : FUSE_CU_NO_DEVICE, text, sizeof(text));
        (void)host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "CUDA cannot be used here: %s", text);
        return 0;
    }
    if (fuse_driver_load_libraries(host, error) == FUSERUN_OK)
        return count;
    if (error->code == FUSERUN_ERROR_UNSUPPORTED)
        error->code = FUSERUN_ERROR_DEVICE; /* there is a device: worth a word, where `auto` goes on without it */
    return 0;
}

static int check_cublas(const struct fuse_cuda *cuda, int result, const char *what, struct fuse_error *error)
{
    if (result == FUSE_CUBLAS_SUCCESS)
        return FUSERUN_OK;
    return cuda->host->fail(error, FUSERUN_ERROR_DEVICE, NULL, "CUDA device %d: %s failed: cuBLAS status %d",
                            cuda->ordinal, what, result);
}

static int open_context(struct fuse_cuda *cuda, struct fuse_error *error)
{
    const struct fuse_driver *const driver = cuda->driver;
    int device = 0, major = 0, minor = 0;
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuDeviceGet(&device, cuda->ordinal), "finding it", error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuDeviceGetAttribute(&major, FUSE_CU_CAPABILITY_MAJOR, device),
                             "asking what it can do", error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuDeviceGetAttribute(&minor, FUSE_CU_CAPABILITY_MINOR, device),
                             "asking what it can do", error));
    FUSE_TRY(fuse_cuda_check(
        cuda, driver->cuDeviceGetAttribute(&cuda->multiprocessor_count, FUSE_CU_MULTIPROCESSOR_COUNT, device),
        "asking what it can do", error));
    cuda->capability = 10 * major + minor;
    if (cuda->is_bfloat16 && cuda->capability < LEAST_BFLOAT16)
        return cuda->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, "precision",
                                "CUDA device %d has compute capability %d.%d, bf16 begins with %d.%d; allowed: fp32",
                                cuda->ordinal, major, minor, LEAST_BFLOAT16 / 10, LEAST_BFLOAT16 % 10);
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuDevicePrimaryCtxRetain(&cuda->context, device), "opening it", error));
    cuda->device = device;
    return fuse_cuda_check(cuda, driver->cuCtxSetCurrent(cuda->context), "opening it", error);
}

static int open_streams(struct fuse_cuda *cuda, struct fuse_error *error)
{
    const struct fuse_driver *const driver = cuda->driver;
    const unsigned stream = FUSE_CU_STREAM_NON_BLOCKING, event = FUSE_CU_EVENT_DISABLE_TIMING;
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuStreamCreate(&cuda->stream, stream), "creating a stream", error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuStreamCreate(&cuda->copy_stream, stream), "creating a stream", error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuEventCreate(&cuda->computed, event), "creating an event", error));
    return fuse_cuda_check(cuda, driver->cuEventCreate(&cuda->copied, event), "creating an event", error);
}

static int open_memory(struct fuse_cuda *cuda, struct fuse_error *error)
{
    const uint64_t workspace_bytes = cuda->capability >= 90 ? WORKSPACE_BYTES : OLD_WORKSPACE_BYTES;
    void *own = NULL, *bounce = NULL;
    cuda->own_bytes = workspace_bytes + sizeof(struct fuse_cuda_results);
    FUSE_TRY(fuse_cuda_allocate(cuda, cuda->own_bytes, &own, error));
    cuda->own = own;
    cuda->results = (struct fuse_cuda_results *)(void *)(cuda->own + workspace_bytes);
    FUSE_TRY(fuse_cuda_pin(cuda, FUSE_BOUNCE_BYTES, &bounce, error));
    cuda->bounce = bounce;
    FUSE_TRY(check_cublas(cuda, cuda->driver->cublasCreate_v2(&cuda->cublas), "opening cuBLAS", error));
    FUSE_TRY(check_cublas(cuda, cuda->driver->cublasSetStream_v2(cuda->cublas, cuda->stream), "opening cuBLAS", error));
    /* Without it parts of a long sum may be added up in bfloat16 where the result is that. */
    FUSE_TRY(check_cublas(cuda, cuda->driver->cublasSetMathMode(cuda->cublas, FUSE_CUBLAS_FULL_REDUCTIONS),
                          "opening cuBLAS", error));
    return check_cublas(cuda, cuda->driver->cublasSetWorkspace_v2(cuda->cublas, cuda->own, workspace_bytes),
                        "giving cuBLAS its workspace", error);
}

static int open_kernels(struct fuse_cuda *cuda, struct fuse_error *error)
{
    static const char *const texts[] = {FUSE_KERNELS_PROGRAM};
    FUSE_TRY(fuse_cuda_compile(cuda, "kernels", texts, sizeof(texts) / sizeof(texts[0]), &cuda->module, error));
#define FIND(name)                                                                                                     \
    FUSE_TRY(fuse_cuda_check(cuda, cuda->driver->cuModuleGetFunction(&cuda->kernels.name, cuda->module, #name),        \
                             "finding kernel " #name, error));
    FUSE_KERNELS(FIND)
#undef FIND
    return FUSERUN_OK;
}

static void describe(struct fuse_cuda *cuda)
{
    char name[128] = "CUDA device";
    int driver = 0, cublas = 0;
    (void)cuda->driver->cuDeviceGetName(name, (int)sizeof(name), cuda->device);
    (void)cuda->driver->cuDriverGetVersion(&driver);
    (void)cuda->driver->cublasGetVersion_v2(cuda->cublas, &cublas);
    name[sizeof(name) - 1] = '\0';
    snprintf(cuda->description, sizeof(cuda->description),
             "%s, sm_%d, driver for CUDA %d.%d, cuBLAS %d, NVRTC %d.%d%s%s", name, cuda->capability, driver / 1000,
             driver % 1000 / 10, cublas, cuda->nvrtc_major, cuda->nvrtc_minor,
             cuda->compute_type == FUSE_CUBLAS_COMPUTE_TF32 ? ", TF32" : "", cuda->is_bfloat16 ? ", bf16" : "");
}

static int open_all(struct fuse_cuda *cuda, struct fuse_error *error)
{
    FUSE_TRY(open_context(cuda, error));
    FUSE_TRY(open_streams(cuda, error));
    FUSE_TRY(open_memory(cuda, error));
    FUSE_TRY(fuse_cuda_forget(cuda, &cuda->results->noticed, error));
    return open_kernels(cuda, error);
}

int fuse_cuda_open(const struct fuse_host *host, const struct fuse_backend_options *options, struct fuse_cuda **cuda,
                   struct fuse_error *error)
{
    const int count = fuse_cuda_count(host, error);
    *cuda = NULL;
    if (count == 0)
        return FUSERUN_ERROR_UNSUPPORTED;
    if (options->device_index >= (uint32_t)count)
        return host->fail(error, FUSERUN_ERROR_CONFIG, NULL, "there is no CUDA device %u, only 0 to %d",
                          options->device_index, count - 1);
    struct fuse_cuda *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the CUDA backend (%zu bytes)",
                          sizeof(*made));
    made->host = host;
    made->ordinal = (int)options->device_index;
    made->is_bfloat16 = options->precision == FUSERUN_BFLOAT16;
    made->failure = (struct fuse_error){.struct_size = FUSERUN_STRUCT_SIZE(fuse_error, text)};
    made->compute_type =
        options->struct_size >= FUSERUN_STRUCT_SIZE(fuse_backend_options, allows_tf32) && options->allows_tf32
            ? FUSE_CUBLAS_COMPUTE_TF32
            : FUSE_CUBLAS_COMPUTE_FLOAT32;
    int status = fuse_driver_load(host, &made->driver, error);
    if (status == FUSERUN_OK)
        status = open_all(made, error);
    /* A device that is full already is one that cannot be used; memory of the host is another matter. */
    if (status == FUSERUN_ERROR_MEMORY && made->is_full)
        error->code = status = FUSERUN_ERROR_DEVICE;
    if (status != FUSERUN_OK) {
        fuse_cuda_close(made);
        return status;
    }
    describe(made);
    *cuda = made;
    return FUSERUN_OK;
}

/* Results are ignored: after a failure most of these fail too. */
void fuse_cuda_close(struct fuse_cuda *cuda)
{
    if (cuda == NULL)
        return;
    const struct fuse_driver *const driver = cuda->driver;
    fuse_cuda_settle(cuda);
    if (cuda->cublas != NULL)
        (void)driver->cublasDestroy_v2(cuda->cublas);
    if (cuda->module != NULL)
        (void)driver->cuModuleUnload(cuda->module);
    if (cuda->own != NULL)
        fuse_cuda_release(cuda, cuda->own);
    if (cuda->bounce != NULL)
        fuse_cuda_unpin(cuda, cuda->bounce);
    if (cuda->copied != NULL)
        (void)driver->cuEventDestroy_v2(cuda->copied);
    if (cuda->computed != NULL)
        (void)driver->cuEventDestroy_v2(cuda->computed);
    if (cuda->copy_stream != NULL)
        (void)driver->cuStreamDestroy_v2(cuda->copy_stream);
    if (cuda->stream != NULL)
        (void)driver->cuStreamDestroy_v2(cuda->stream);
    if (cuda->context != NULL)
        (void)driver->cuDevicePrimaryCtxRelease_v2(cuda->device);
    free(cuda);
}
