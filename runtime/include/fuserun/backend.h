/* fuserun/backend.h - how to write a device backend.
 *
 * A backend owns memory on a device and runs operations on it. fuserun plans a training step ahead as a list of
 * operations on planned buffers; for each it asks the backend once for a kernel, then runs the kernels in order, every
 * step. All of a step's memory, workspaces too, comes from buffers that fuserun allocated before the first step.
 *
 * Element-wise operations (RELU to ADD, ADD_BATCH, DROPOUT) must work with output 0 in the same memory as input 0 (all of it, exactly).
 *
 * All tensors are dense and row-major. "rows" of a tensor is the product of all dimensions but the last. */
#ifndef FUSERUN_BACKEND_H
#define FUSERUN_BACKEND_H

#include <fuserun/abi.h>
#include <fuserun/optimizer.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FUSERUN_MAX_OPERANDS 8

/* Operations: inputs -> outputs; dy is the gradient of the loss with respect to y. B = rows.
 * Losses: `scale` is call->scalars[0], by which the gradient is multiplied (1 / samples of the update for a mean);
 * statistics are float64: [0] the loss summed over the batch's samples (or elements), [1] correct predictions. */
enum fuse_op_kind {
    FUSERUN_OP_LINEAR = 1,       /* x (B, K), w (N, K)[, b (N)] -> y (B, N) = x w^T + b */
    FUSERUN_OP_LINEAR_DX = 2,    /* dy (B, N), w (N, K) -> dx (B, K) = dy w */
    FUSERUN_OP_LINEAR_DW = 3,    /* dy (B, N), x (B, K) -> dw (N, K) = dy^T x; formed a panel of rows at a time, see below */
    FUSERUN_OP_LINEAR_DB = 4,    /* dy (B, N) -> db (N), the sum over rows */
    FUSERUN_OP_RELU = 5,         /* x -> y = max(x, 0) */
    FUSERUN_OP_RELU_DX = 6,      /* dy, y -> dx = y > 0 ? dy : 0 */
    FUSERUN_OP_GELU = 7,         /* x -> y = x/2 (1 + erf(x / sqrt 2)) */
    FUSERUN_OP_GELU_DX = 8,      /* dy, x -> dx */
    FUSERUN_OP_TANH = 9,         /* x -> y */
    FUSERUN_OP_TANH_DX = 10,     /* dy, y -> dx = dy (1 - y^2) */
    FUSERUN_OP_ADD = 11,         /* a, b -> a + b, equal shapes */
    FUSERUN_OP_COPY = 12,        /* a -> a */
    FUSERUN_OP_CROSS_ENTROPY = 13, /* logits (B, C), classes (B) int64 -> statistics (2)[, dlogits (B, C)]; numbers[0] =
                                      label smoothing */
    FUSERUN_OP_MSE = 14,         /* y, target (equal shapes) -> statistics (2)[, dy = 2 (y - target) scale]; the loss sums
                                    squares over elements */
    FUSERUN_OP_SUM_LOSS = 15,    /* y -> statistics (2)[, dy = scale]; the loss is the sum of all elements */

    /* Structured operations: their operands keep all dimensions. */
    FUSERUN_OP_PATCHES = 16,        /* x (B, C, H, W) -> (B, (H/p)(W/p), C p p), p = integers[0]: each row is one patch in
                                       the order (c, y, x), patches row by row */
    FUSERUN_OP_LAYER_NORM = 17,     /* x (B, D), w (D), b (D) -> y (B, D), mean (B), rstd (B); eps = numbers[0] */
    FUSERUN_OP_LAYER_NORM_DX = 18,  /* dy, x, w, mean, rstd -> dx */
    FUSERUN_OP_LAYER_NORM_DW = 19,  /* dy, x, mean, rstd -> dw (D) = sum over rows of dy (x - mean) rstd; db is LINEAR_DB */
    FUSERUN_OP_ATTENTION = 20,      /* qkv (B, S, 3 D) -> y (B, S, D), lse (B, H, S); H = integers[0] heads of d = D / H:
                                       softmax(q k^T / sqrt d) v per head; q, k, v are the thirds of the last dimension;
                                       lse: log of the softmax's denominator, its maximum included. Dropout on the
                                       probabilities: p = numbers[0], stream = integers[1], element
                                       ((b H + h) S + row) S + column, what stays times 1 / (1 - p) */
    FUSERUN_OP_ATTENTION_DX = 21,   /* dy, qkv, y, lse -> dqkv; same integers and numbers; probabilities made again */
    FUSERUN_OP_PREPEND = 22,        /* x (B, S, D), token (D elements) -> y (B, S + 1, D): the token stands first */
    FUSERUN_OP_PREPEND_DX = 23,     /* dy (B, S + 1, D) -> dx (B, S, D) */
    FUSERUN_OP_PREPEND_DW = 24,     /* dy (B, S + 1, D) -> dtoken (D), summed over the batch */
    FUSERUN_OP_ADD_BATCH = 25,      /* x (B, ...), p (as many elements as a sample) -> x + p for every sample */
    FUSERUN_OP_ADD_BATCH_DW = 26,   /* dy (B, ...) -> dp, summed over the batch */
    FUSERUN_OP_SELECT = 27,         /* x (B, S, D) -> y (B, D) = x[:, integers[0]] */
    FUSERUN_OP_SELECT_DX = 28,      /* dy (B, D) -> dx (B, S, D): dy at integers[0], zero elsewhere */
    FUSERUN_OP_DROPOUT = 29,        /* x -> y: element i (of the whole tensor) is 0 if host->random_uniform(call->seed,
                                       integers[0] + call->draw, i) < p, else x / (1 - p); p = numbers[0]. Its own
                                       derivative. Element-wise */

    /* For a norm over all gradients. */
    FUSERUN_OP_SUM_SQUARES = 30,    /* g -> float64 (1): the sum of squares, in double */
    FUSERUN_OP_LINEAR_DW_NORM = 31, /* dy (B, N), x (B, K) -> float64 (1): the sum of squares of dy^T x, which need not
                                       exist: ||dy^T x||^2 = sum over (x x^T) o (dy dy^T), or panel by panel, whichever is
                                       cheaper for the shape */

    /* Accumulation. A backend may lack these: then gradients are kept between micro-batches. */
    FUSERUN_OP_LINEAR_DW_SUM = 32,     /* dy (B, N), x (B, K), earlier dy (E, N), earlier x (E, K) -> dw (N, K): the sum over
                                          an update's micro-batches, the earlier ones of integers[0] rows each. The same
                                          sums in the same order as LINEAR_DW for the first of them, then LINEAR_DW with
                                          FUSERUN_OP_ACCUMULATE for each of the others, dy and x last */
    FUSERUN_OP_LINEAR_DW_SUM_NORM = 33 /* the same inputs -> float64 (1): the sum of squares of that dw */
};

enum fuse_op_flag {
    FUSERUN_OP_ACCUMULATE = 1u << 0, /* add to the last output instead of overwriting it; gradients only (_DX, _DW, _DB, and DROPOUT as its own derivative) */
    FUSERUN_OP_PANELS = 1u << 1      /* LINEAR_DW, LINEAR_DW_SUM: output 0 is scratch for worker_count panels, from one to the next
                                        rounded up to 64 bytes, or where there are no more than that for the whole
                                        gradient; each finished panel goes to call->panel and is dropped */
};

struct fuse_operand {
    uint32_t dtype; /* enum fuse_dtype */
    uint32_t rank;
    int64_t shape[FUSERUN_MAX_DIMS];
};

struct fuse_op {
    uint32_t struct_size;
    uint32_t kind;  /* enum fuse_op_kind */
    uint32_t flags; /* enum fuse_op_flag */
    uint32_t input_count;
    uint32_t output_count;
    uint32_t reserved;
    struct fuse_operand inputs[FUSERUN_MAX_OPERANDS];
    struct fuse_operand outputs[FUSERUN_MAX_OPERANDS];
    int64_t integers[8];
    double numbers[8];
};

/* A piece of a weight's gradient: rows [row_begin, row_end) of dw, dense, in scratch that is reused after the call.
 * [worker] [no-alloc]: called from the thread that made the panel, so that it is still in that thread's cache. */
struct fuse_panel_hook {
    void (*panel)(void *user, int64_t row_begin, int64_t row_end, float *gradient);
    void *user;
};

struct fuse_kernel_call {
    uint32_t struct_size;
    uint32_t reserved;
    void *const *inputs;  /* device pointers, input_count of them; an absent optional one is NULL */
    void *const *outputs; /* output_count of them; with a panel hook output 0 is the panels' scratch */
    void *workspace;      /* workspace_bytes, aligned to 64 */
    const double *scalars;
    const struct fuse_panel_hook *panel; /* FUSERUN_OP_PANELS only */
    uint64_t seed;        /* of the run, for dropout */
    uint64_t draw;        /* number of this batch in the run: the same again when an operation is recomputed */
    /* What the panel hook, handed these rows, will go through besides the gradient: writes up to FUSERUN_MAX_SPANS spans
     * and returns how many. A backend may fetch them into a cache while it makes the panel. user: the hook's. NULL: not
     * known. [worker] [no-alloc] */
    uint32_t (*panel_spans)(void *user, int64_t row_begin, int64_t row_end, struct fuse_span *spans);
};

/* What a kernel wants, known when it is compiled. */
struct fuse_kernel_info {
    uint32_t struct_size;
    uint32_t panel_count;     /* LINEAR_DW, LINEAR_DW_SUM: panels; a function of the weight's shape alone, so that every mode and any
                                 number of threads forms the same sums in the same order */
    int64_t panel_rows;       /* rows of a panel; the last may be shorter */
    uint64_t workspace_bytes;
};

struct fuse_backend_options {
    uint32_t struct_size;
    uint32_t device_index;
    uint32_t thread_count;   /* 0: the backend chooses */
    uint32_t precision;      /* FUSERUN_FLOAT32; or FUSERUN_BFLOAT16: LINEAR*, ATTENTION* multiply in bfloat16 (float32
                                operands are rounded for it) and sum in float32, and operands that are activations or
                                their gradients may be bfloat16, each for itself. Parameters and their gradients,
                                statistics, a loss's operands and what SUM_SQUARES reads are float32 always */
    uint32_t allows_tf32;    /* products may round float32 factors to 10 bits of mantissa, where the device has that */
};

struct fuse_backend_info {
    uint32_t struct_size;
    uint32_t worker_count;   /* threads that may run panel hooks at the same time */
    const char *name;        /* "cpu" */
    const char *description; /* "AMD EPYC, 2 threads, oneDNN 2.6.3, AVX2" */
    uint64_t own_bytes;      /* device memory that it holds for itself, whatever it is asked to do */
    uint64_t free_bytes;     /* device memory that is free now, of total_bytes; both 0: it is the machine's own, or nobody knows */
    uint64_t total_bytes;
};

struct fuse_kernel;        /* the backend's own */
struct fuse_compiled_rule; /* the backend's own */
struct fuse_compiled_tensor; /* the backend's own */

struct fuse_backend {
    uint32_t struct_size;

    /* How many devices can be used here. 0 with *error filled: why not; FUSERUN_ERROR_DEVICE where there is one all the
     * same, which something else keeps from being used. */
    int (*device_count)(const struct fuse_host *host, struct fuse_error *error);
    int (*open)(const struct fuse_host *host, const struct fuse_backend_options *options, void **instance,
                struct fuse_error *error);
    void (*close)(void *instance);
    void (*describe)(const void *instance, struct fuse_backend_info *info);

    /* Device memory, aligned to 256 at least, zeroed, not resident before it is touched where the system allows that. */
    int (*allocate)(void *instance, uint64_t bytes, void **memory, struct fuse_error *error);
    void (*release)(void *instance, void *memory, uint64_t bytes);
    int (*upload)(void *instance, void *device, const void *host_memory, uint64_t bytes, struct fuse_error *error);
    int (*download)(void *instance, void *host_memory, const void *device, uint64_t bytes, struct fuse_error *error);
    int (*synchronize)(void *instance, struct fuse_error *error);

    /* Kernels. compile: everything that can be prepared ahead is; an op it cannot do is FUSERUN_ERROR_UNSUPPORTED.
     * run: [no-alloc] but for what libraries do inside. Different kernels never run at the same time. */
    int (*compile)(void *instance, const struct fuse_op *op, struct fuse_kernel **kernel,
                   struct fuse_kernel_info *info, struct fuse_error *error);
    void (*discard)(void *instance, struct fuse_kernel *kernel);
    int (*run)(void *instance, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error);

    /* Update rules. update: all slices, spread over the device's threads (foreach: many slices; per_param: one).
     * update_panel: one slice, on the calling thread; called from panel hooks. [worker] [no-alloc] */
    int (*compile_rule)(void *instance, const struct fuse_rule *rule, struct fuse_compiled_rule **compiled,
                        struct fuse_error *error);
    void (*discard_rule)(void *instance, struct fuse_compiled_rule *compiled);
    int (*update)(void *instance, struct fuse_compiled_rule *compiled, const struct fuse_slice *slices,
                  int64_t slice_count, struct fuse_error *error);
    void (*update_panel)(void *instance, struct fuse_compiled_rule *compiled, const struct fuse_slice *slice);

    /* Non-zero if any of count float32 is infinite or NaN. */
    int (*has_nonfinite)(void *instance, const float *values, int64_t count);

    /* values (count) *= factor. [worker] if is_panel: on the calling thread. */
    void (*scale)(void *instance, float *values, int64_t count, float factor, int is_panel);

    /* values (count) into [-limit, limit]; a NaN stays. is_panel as above. */
    void (*clamp)(void *instance, float *values, int64_t count, float limit, int is_panel);

    /* The sum of squares of values (count), in double and in an order of count's alone. Any thread; [no-alloc] */
    double (*sum_squares)(void *instance, const float *values, int64_t count);

    /* Zeroes device memory. */
    int (*clear)(void *instance, void *memory, uint64_t bytes, struct fuse_error *error);

    /* Rules with update_tensor; all three or none (then such optimizers are refused on this device). compile_tensor makes
     * the plan's products ready, for which *workspace_bytes is what each update is handed. update_tensor completes the
     * update that it is given (split, multiply, backend) and has the rule do it. */
    int (*compile_tensor)(void *instance, const struct fuse_rule *rule, const struct fuse_tensor_plan *plan,
                          struct fuse_compiled_tensor **compiled, uint64_t *workspace_bytes, struct fuse_error *error);
    void (*discard_tensor)(void *instance, struct fuse_compiled_tensor *compiled);
    int (*update_tensor)(void *instance, struct fuse_compiled_tensor *compiled, const struct fuse_tensor_update *update,
                         struct fuse_error *error); /* [no-alloc] */

    /* Devices with memory of their own: all three. Without them the host reads and writes what allocate gives.
     * Staging is host memory that the device copies from while the host goes on. upload_staged need not be over on return,
     * though whatever the device is asked to do later sees its data; staging must stay as it is until the next
     * synchronize or download has returned. [no-alloc] */
    int (*allocate_staging)(void *instance, uint64_t bytes, void **memory, struct fuse_error *error);
    void (*release_staging)(void *instance, void *memory, uint64_t bytes);
    int (*upload_staged)(void *instance, void *device, const void *staging, uint64_t bytes, struct fuse_error *error);

    /* Devices that work behind the host's back: all three. Without them has_nonfinite is asked.
     * watch_begin: nothing is noticed. watch: if nothing was noticed before and any of count values is infinite or NaN,
     * `number` is noticed. As long as a number is noticed update, update_panel and update_tensor do nothing. watched waits
     * for all of that; UINT32_MAX: nothing was noticed. [no-alloc] */
    int (*watch_begin)(void *instance, struct fuse_error *error);
    void (*watch)(void *instance, const float *values, int64_t count, uint32_t number);
    int (*watched)(void *instance, uint32_t *number, struct fuse_error *error);

    /* May be NULL. One line for `fuserun --version`: which libraries it looks for when it opens a device, by their files'
     * names, and which of them are here. No device is touched. */
    void (*describe_libraries)(char *text, size_t size);
};

#ifdef __cplusplus
}
#endif
#endif
