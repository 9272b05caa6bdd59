/* plugins/backends/cuda/ - the CUDA backend: every op of fuserun/backend.h on a device of NVIDIA's. Matrix products are
 * cuBLAS's, all else are kernels of our own (kernels/), which NVRTC compiles when a device is opened; so are the
 * optimizers' rules, from the text that their plugins carry. Nothing of NVIDIA's is needed to build it: driver.h finds
 * the libraries when a device is asked for, and is where tests put an emulation.
 *
 *   driver    NVIDIA's functions, found at run time
 *   device    opening a device, launching kernels, failures
 *   compiler  NVRTC, and cache: what it made, kept on disk
 *   memory    device memory, copies to and from the host
 *   product   cuBLAS, and rounding: what bfloat16 needs around it
 *   backend   the table, and the way to each op's file
 *
 * Everything runs in order on one stream, on which the host never waits but where it reads results (download,
 * synchronize, watched, has_nonfinite, sum_squares); batches arrive on a second one (memory.c), with events between the
 * two. All is called from the main thread.
 *
 * What holds for every op: the same input gives the same bits every time; a weight's gradient is made of the same panel
 * products in every mode; sums for statistics are in double, in an order that sizes alone decide; a NaN that goes in
 * comes out.
 *
 * A failure of the device that a function cannot report is kept, and every later call that can reports it. */
#ifndef FUSE_CUDA_H
#define FUSE_CUDA_H

#include "driver.h"
#include "kernels/arguments.h"

#include "../op_check.h"

/* The kernels of kernels/ by name. */
#define FUSE_KERNELS(KERNEL)                                                                                           \
    KERNEL(copy)                                                                                                       \
    KERNEL(relu)                                                                                                       \
    KERNEL(relu_dx)                                                                                                    \
    KERNEL(gelu)                                                                                                       \
    KERNEL(gelu_dx)                                                                                                    \
    KERNEL(tanh_forward)                                                                                               \
    KERNEL(tanh_dx)                                                                                                    \
    KERNEL(add)                                                                                                        \
    KERNEL(add_period)                                                                                                 \
    KERNEL(place_rows)                                                                                                 \
    KERNEL(scale_values)                                                                                               \
    KERNEL(clamp_values)                                                                                               \
    KERNEL(dropout)                                                                                                    \
    KERNEL(sum_columns)                                                                                                \
    KERNEL(layer_norm_dw)                                                                                              \
    KERNEL(sum_products)                                                                                               \
    KERNEL(sum_partials)                                                                                               \
    KERNEL(norm_rows)                                                                                                  \
    KERNEL(norm_finish)                                                                                                \
    KERNEL(watch_values)                                                                                               \
    KERNEL(cross_entropy)                                                                                              \
    KERNEL(mse)                                                                                                        \
    KERNEL(sum_loss)                                                                                                   \
    KERNEL(layer_norm)                                                                                                 \
    KERNEL(layer_norm_dx)                                                                                              \
    KERNEL(patches)                                                                                                    \
    KERNEL(prepend)                                                                                                    \
    KERNEL(prepend_dx)                                                                                                 \
    KERNEL(select_token)                                                                                               \
    KERNEL(select_dx)                                                                                                  \
    KERNEL(attention_pointers)                                                                                         \
    KERNEL(attention_softmax)                                                                                          \
    KERNEL(attention_softmax_dx)
#define FUSE_KERNEL_FIELD_(name) void *name;

/* Small results, on the device. */
#define FUSE_OWN_PARTIALS 16384
struct fuse_cuda_results {
    unsigned noticed;                   /* of watch */
    unsigned nonfinite;                 /* of has_nonfinite */
    double sum;                         /* of sum_squares */
    double partials[FUSE_OWN_PARTIALS]; /* of sum_squares */
};

struct fuse_cuda {
    const struct fuse_host *host;
    const struct fuse_driver *driver;
    int ordinal, device; /* our number of it, and the driver's handle */
    int capability;      /* 90 for 9.0 */
    int multiprocessor_count;
    void *context;
    void *stream;      /* everything but batches */
    void *copy_stream; /* batches */
    void *computed;    /* events: what the stream was asked to do so far is done; */
    void *copied;      /* the last batch has arrived */
    void *cublas;
    int compute_type; /* of products of float32 */
    bool is_bfloat16; /* activations may be, and products are of it */
    void *module;
    struct {
        FUSE_KERNELS(FUSE_KERNEL_FIELD_)
    } kernels; /* functions of the module */
    char *own; /* device memory: cuBLAS's workspace, then the results */
    struct fuse_cuda_results *results;
    uint64_t own_bytes;                  /* with what compiled rules hold */
    struct fuse_compiled_passes *passes; /* of all rules in use (tensor.c) */
    char *bounce;                        /* pinned: what copies from and to ordinary host memory go through */
    struct fuse_error failure;           /* the first that nobody could be told of; code FUSERUN_OK: none */
    /* Since the host last waited: the device was asked for something; for something that may use what a batch is copied
     * to. */
    bool is_busy, is_computing;
    bool is_full; /* the device could not give memory */
    int nvrtc_major, nvrtc_minor;
    char description[256];
};

/* ---- device.c ------------------------------------------------------------------------------------------------- */

/* How many devices there are; 0 with *error filled. */
int fuse_cuda_count(const struct fuse_host *host, struct fuse_error *error);
int fuse_cuda_open(const struct fuse_host *host, const struct fuse_backend_options *options, struct fuse_cuda **cuda,
                   struct fuse_error *error);
void fuse_cuda_close(struct fuse_cuda *cuda);

/* FUSERUN_OK, or the error of a call to the driver; what: "copying to the device". */
int fuse_cuda_check(struct fuse_cuda *cuda, int result, const char *what, struct fuse_error *error);
/* The same for who has nobody to tell: the failure is kept. */
void fuse_cuda_note(struct fuse_cuda *cuda, int result, const char *what);
/* FUSERUN_OK, or the failure that was kept. */
int fuse_cuda_failed(const struct fuse_cuda *cuda, struct fuse_error *error);

/* Before the device is asked for something: FUSERUN_OK, or the failure that was kept. */
int fuse_cuda_begin(struct fuse_cuda *cuda, struct fuse_error *error);
/* Before something is given back: waits if the device may still be at work, whatever comes of it. */
void fuse_cuda_settle(struct fuse_cuda *cuda);

/* Launches a kernel on the stream with its argument, which is copied. name: for the error. */
int fuse_cuda_launch(struct fuse_cuda *cuda, void *function, const char *name, int64_t blocks, const void *argument,
                     struct fuse_error *error);
#define FUSE_LAUNCH(cuda, name, blocks, argument, error)                                                               \
    fuse_cuda_launch(cuda, (cuda)->kernels.name, #name, blocks, argument, error)

/* *noticed = FUSE_NOTHING, on the device. */
int fuse_cuda_forget(struct fuse_cuda *cuda, unsigned *noticed, struct fuse_error *error);

/* Blocks for a kernel that goes over count elements with a stride. */
int64_t fuse_cuda_blocks(const struct fuse_cuda *cuda, int64_t count);

/* FUSE_BFLOAT16_... bits of an op's operands: inputs 0 and 1, and output 0. */
int fuse_cuda_bfloat16_bits(const struct fuse_op *op);

static inline fuse_device_address fuse_address(const void *device)
{
    return (fuse_device_address)(uintptr_t)device;
}

/* ---- compiler.c ------------------------------------------------------------------------------------------------ */

/* Behind the architecture. No contraction: what the CPU and the device compute by one text has the same bits. */
#define FUSE_COMPILER_OPTIONS "--fmad=false", "-default-device"

/* Compiles the texts, one behind the other (or finds what they became in the cache), and loads the result. name: for
 * messages. */
int fuse_cuda_compile(struct fuse_cuda *cuda, const char *name, const char *const *texts, size_t text_count,
                      void **module, struct fuse_error *error);

/* ---- memory.c -------------------------------------------------------------------------------------------------- */

#define FUSE_BOUNCE_BYTES (4u << 20)

/* Host memory that the device reads and writes by itself. */
int fuse_cuda_pin(struct fuse_cuda *cuda, uint64_t bytes, void **memory, struct fuse_error *error);
void fuse_cuda_unpin(struct fuse_cuda *cuda, void *memory);
/* Of the device; both 0: it does not tell. */
void fuse_cuda_measure(const struct fuse_cuda *cuda, uint64_t *free_bytes, uint64_t *total_bytes);
int fuse_cuda_allocate(struct fuse_cuda *cuda, uint64_t bytes, void **memory, struct fuse_error *error);
void fuse_cuda_release(struct fuse_cuda *cuda, void *memory);
int fuse_cuda_clear(struct fuse_cuda *cuda, void *memory, uint64_t bytes, struct fuse_error *error);
int fuse_cuda_upload(struct fuse_cuda *cuda, void *device, const void *host, uint64_t bytes, struct fuse_error *error);
int fuse_cuda_download(struct fuse_cuda *cuda, void *host, const void *device, uint64_t bytes,
                       struct fuse_error *error);
int fuse_cuda_upload_staged(struct fuse_cuda *cuda, void *device, const void *staging, uint64_t bytes,
                            struct fuse_error *error);
int fuse_cuda_synchronize(struct fuse_cuda *cuda, struct fuse_error *error);

/* ---- ops ------------------------------------------------------------------------------------------------------- */

/* Every kernel begins with this; free() ends it. */
struct fuse_kernel {
    int (*run)(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error);
};

/* Compilers of the families of ops; each is handed only checked ops of its own. */
typedef int fuse_compiler(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                          struct fuse_kernel_info *info, struct fuse_error *error);
fuse_compiler fuse_compile_linear;
fuse_compiler fuse_compile_elementwise;
fuse_compiler fuse_compile_sums;
fuse_compiler fuse_compile_loss;
fuse_compiler fuse_compile_layer_norm;
fuse_compiler fuse_compile_attention;
fuse_compiler fuse_compile_tokens;
fuse_compiler fuse_compile_norm;

/* A kernel of that size that begins as the ops' kernels do, all else zero; NULL with the error set. */
void *fuse_kernel_new(const struct fuse_cuda *cuda, size_t bytes, struct fuse_error *error);

/* Rows of a panel of a weight's gradient (n, k): of the weight's shape alone. (linear.c) */
int64_t fuse_panel_rows(int64_t n, int64_t k);

/* Blocks of a kernel that sums columns, 32 a block. */
static inline int64_t fuse_cuda_column_blocks(int64_t columns)
{
    return (columns + 31) / 32;
}

/* sums (width) = the sum of partials (count, width) [+ sums], in double, on the device. (sums.c) */
int fuse_cuda_sum_partials(struct fuse_cuda *cuda, const double *partials, int64_t count, int width, bool adds,
                           double *sums, struct fuse_error *error);
/* sums (width) = the sum of the products of a and b (count) [+ sums], and with a width of 2 that of their magnitudes;
 * partials: room for `width` doubles a chunk. (sums.c) */
int fuse_cuda_sum_products(struct fuse_cuda *cuda, const float *a, const float *b, int64_t count, bool adds, int width,
                           double *partials, double *sums, struct fuse_error *error);
static inline int64_t fuse_cuda_chunks(int64_t count)
{
    return (count + FUSE_SUM_CHUNK - 1) / FUSE_SUM_CHUNK;
}

static inline uint64_t fuse_round_up(uint64_t bytes, uint64_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

#endif
