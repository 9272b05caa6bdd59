/* What the backend uses of NVIDIA's libraries, found at run time: the driver, cuBLAS and NVRTC. One build serves
 * machines with and without them.
 *
 * The prototypes are our own, so that a build needs no toolkit: handles are void *, enumerations int, device addresses
 * unsigned long long, as the C ABI passes them. tests/gpu/prototypes.cpp compares them with the toolkit's headers where
 * those are.
 *
 * FUSERUN_CUDA_EMULATION=/path/to/lib.so in the environment puts one shared object that exports all of these names in
 * the place of all three libraries: for tests (tests/gpu). */
#ifndef FUSE_CUDA_DRIVER_H
#define FUSE_CUDA_DRIVER_H

#include <fuserun/abi.h>

#include <stddef.h>

#define FUSE_CUDA_EMULATION_VARIABLE "FUSERUN_CUDA_EMULATION"

typedef unsigned long long fuse_device_address;

/* CALL(result, name, (parameters), (arguments)). The names are those that the libraries export. */
#define FUSE_DRIVER_CALLS(CALL)                                                                                        \
    CALL(int, cuInit, (unsigned flags), (flags))                                                                       \
    CALL(int, cuDriverGetVersion, (int *version), (version))                                                           \
    CALL(int, cuDeviceGetCount, (int *count), (count))                                                                 \
    CALL(int, cuDeviceGet, (int *device, int ordinal), (device, ordinal))                                              \
    CALL(int, cuDeviceGetName, (char *name, int size, int device), (name, size, device))                               \
    CALL(int, cuDeviceGetAttribute, (int *value, int attribute, int device), (value, attribute, device))               \
    CALL(int, cuDevicePrimaryCtxRetain, (void **context, int device), (context, device))                               \
    CALL(int, cuDevicePrimaryCtxRelease_v2, (int device), (device))                                                    \
    CALL(int, cuCtxSetCurrent, (void *context), (context))                                                             \
    CALL(int, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes), (free_bytes, total_bytes))                 \
    CALL(int, cuMemAlloc_v2, (fuse_device_address * memory, size_t bytes), (memory, bytes))                            \
    CALL(int, cuMemFree_v2, (fuse_device_address memory), (memory))                                                    \
    CALL(int, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags), (memory, bytes, flags))                   \
    CALL(int, cuMemFreeHost, (void *memory), (memory))                                                                 \
    CALL(int, cuMemcpyHtoDAsync_v2, (fuse_device_address to, const void *from, size_t bytes, void *stream),            \
         (to, from, bytes, stream))                                                                                    \
    CALL(int, cuMemcpyDtoHAsync_v2, (void *to, fuse_device_address from, size_t bytes, void *stream),                  \
         (to, from, bytes, stream))                                                                                    \
    CALL(int, cuMemcpyDtoDAsync_v2, (fuse_device_address to, fuse_device_address from, size_t bytes, void *stream),    \
         (to, from, bytes, stream))                                                                                    \
    CALL(int, cuMemsetD8Async, (fuse_device_address memory, unsigned char value, size_t count, void *stream),          \
         (memory, value, count, stream))                                                                               \
    CALL(int, cuStreamCreate, (void **stream, unsigned flags), (stream, flags))                                        \
    CALL(int, cuStreamDestroy_v2, (void *stream), (stream))                                                            \
    CALL(int, cuStreamSynchronize, (void *stream), (stream))                                                           \
    CALL(int, cuStreamWaitEvent, (void *stream, void *event, unsigned flags), (stream, event, flags))                  \
    CALL(int, cuEventCreate, (void **event, unsigned flags), (event, flags))                                           \
    CALL(int, cuEventDestroy_v2, (void *event), (event))                                                               \
    CALL(int, cuEventRecord, (void *event, void *stream), (event, stream))                                             \
    CALL(int, cuEventSynchronize, (void *event), (event))                                                              \
    CALL(int, cuModuleLoadData, (void **module, const void *image), (module, image))                                   \
    CALL(int, cuModuleUnload, (void *module), (module))                                                                \
    CALL(int, cuModuleGetFunction, (void **function, void *module, const char *name), (function, module, name))        \
    CALL(int, cuLaunchKernel,                                                                                          \
         (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
          unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra),                     \
         (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra))       \
    CALL(int, cuGetErrorName, (int result, const char **name), (result, name))                                         \
    CALL(int, cuGetErrorString, (int result, const char **text), (result, text))

#define FUSE_CUBLAS_CALLS(CALL)                                                                                        \
    CALL(int, cublasCreate_v2, (void **handle), (handle))                                                              \
    CALL(int, cublasDestroy_v2, (void *handle), (handle))                                                              \
    CALL(int, cublasGetVersion_v2, (void *handle, int *version), (handle, version))                                    \
    CALL(int, cublasSetStream_v2, (void *handle, void *stream), (handle, stream))                                      \
    CALL(int, cublasSetMathMode, (void *handle, int mode), (handle, mode))                                             \
    CALL(int, cublasSetWorkspace_v2, (void *handle, void *workspace, size_t bytes), (handle, workspace, bytes))        \
    CALL(int, cublasGemmEx,                                                                                            \
         (void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,       \
          int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,     \
          int compute_type, int algorithm),                                                                            \
         (handle, transpose_a, transpose_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc,      \
          compute_type, algorithm))                                                                                    \
    CALL(int, cublasGemmBatchedEx,                                                                                     \
         (void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,                      \
          const void *const *a, int a_type, int lda, const void *const *b, int b_type, int ldb, const void *beta,      \
          void *const *c, int c_type, int ldc, int count, int compute_type, int algorithm),                            \
         (handle, transpose_a, transpose_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc,      \
          count, compute_type, algorithm))

#define FUSE_NVRTC_CALLS(CALL)                                                                                         \
    CALL(int, nvrtcVersion, (int *major, int *minor), (major, minor))                                                  \
    CALL(int, nvrtcGetNumSupportedArchs, (int *count), (count))                                                        \
    CALL(int, nvrtcGetSupportedArchs, (int *architectures), (architectures))                                           \
    CALL(int, nvrtcCreateProgram,                                                                                      \
         (void **program, const char *source, const char *name, int header_count, const char *const *headers,          \
          const char *const *header_names),                                                                            \
         (program, source, name, header_count, headers, header_names))                                                 \
    CALL(int, nvrtcDestroyProgram, (void **program), (program))                                                        \
    CALL(int, nvrtcCompileProgram, (void *program, int option_count, const char *const *options),                      \
         (program, option_count, options))                                                                             \
    CALL(int, nvrtcGetCUBINSize, (void *program, size_t *bytes), (program, bytes))                                     \
    CALL(int, nvrtcGetCUBIN, (void *program, char *image), (program, image))                                           \
    CALL(int, nvrtcGetPTXSize, (void *program, size_t *bytes), (program, bytes))                                       \
    CALL(int, nvrtcGetPTX, (void *program, char *image), (program, image))                                             \
    CALL(int, nvrtcGetProgramLogSize, (void *program, size_t *bytes), (program, bytes))                                \
    CALL(int, nvrtcGetProgramLog, (void *program, char *log), (program, log))

/* NVIDIA's constants that we use, under our own names. */
enum {
    FUSE_CU_SUCCESS = 0,
    FUSE_CU_OUT_OF_MEMORY = 2,
    FUSE_CU_NO_DEVICE = 100,
    FUSE_CU_MULTIPROCESSOR_COUNT = 16,
    FUSE_CU_CAPABILITY_MAJOR = 75,
    FUSE_CU_CAPABILITY_MINOR = 76,
    FUSE_CU_STREAM_NON_BLOCKING = 1,
    FUSE_CU_EVENT_DISABLE_TIMING = 2,
    FUSE_CUBLAS_SUCCESS = 0,
    FUSE_CUBLAS_NO_TRANSPOSE = 0,
    FUSE_CUBLAS_TRANSPOSE = 1,
    FUSE_CUBLAS_FLOAT32 = 0,   /* CUDA_R_32F */
    FUSE_CUBLAS_BFLOAT16 = 14, /* CUDA_R_16BF */
    FUSE_CUBLAS_COMPUTE_FLOAT32 = 68,
    FUSE_CUBLAS_COMPUTE_TF32 = 77,
    FUSE_CUBLAS_DEFAULT_ALGORITHM = -1,
    FUSE_CUBLAS_FULL_REDUCTIONS = 16, /* CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, default mode otherwise */
    FUSE_NVRTC_SUCCESS = 0,
    FUSE_NVRTC_COMPILATION = 6
};

#define FUSE_CALL_POINTER_(result, name, parameters, arguments) result(*name) parameters;

/* Their functions, each under its own name. */
struct fuse_driver {
    FUSE_DRIVER_CALLS(FUSE_CALL_POINTER_)
    FUSE_CUBLAS_CALLS(FUSE_CALL_POINTER_)
    FUSE_NVRTC_CALLS(FUSE_CALL_POINTER_)
};

/* The driver, and then (fuse_driver_load_libraries) the two others: a machine without a driver is not asked for them.
 * Loaded once and kept for the life of the process. The error names the library and what is wrong with it. */
int fuse_driver_load(const struct fuse_host *host, const struct fuse_driver **driver, struct fuse_error *error);
int fuse_driver_load_libraries(const struct fuse_host *host, struct fuse_error *error);

/* "libcuda.so.1 found, libcublas.so.13 or libcublas.so.12 not found, ...": what loading would find. */
void fuse_driver_describe(char *text, size_t size);

/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" */
void fuse_driver_error_text(int result, char *text, size_t size);

/* The emulation that stands in for the libraries, or NULL. */
const char *fuse_driver_emulation(void);

#endif
