/* plugins/backends/cpu/ - the CPU backend: every op of fuserun/backend.h in C, matrix products from whichever library
 * the build found (product.h), threads from OpenMP (threads.h). It owns the memory it allocates and one pool of
 * threads; it calls nothing of fuserun's but the host's services. Operands may be bfloat16 (bfloat16.h): it computes in
 * float32 all the same.
 *
 * What holds for every op: the result does not depend on the number of threads, except that of LINEAR and LINEAR_DX,
 * whose library may split a sum differently; sums for statistics are in double, over chunks of fixed size in a fixed
 * order; an element-wise op may run in place; a NaN that goes in comes out. */
#ifndef FUSE_CPU_H
#define FUSE_CPU_H

#include "../op_check.h"

struct fuse_products; /* product.h */

/* An operand's numbers, dense; bfloat16.h reads and writes them. */
struct fuse_values {
    void *at;
    bool is_bfloat16; /* else float32 */
};

/* One opened backend. */
struct fuse_cpu {
    const struct fuse_host *host;
    int thread_count;
    bool is_bfloat16; /* opened for that precision: operands may be bfloat16, and linear layers and attention multiply
                         so */
    struct fuse_products *products;
    uint64_t core_cache_bytes; /* a core's second-level cache; 0: not known */
    float *zeros;              /* (zero_count): stands in for a bias that is declared but absent */
    int64_t zero_count;
    char description[256];
};

/* Every kernel begins with this. */
struct fuse_kernel {
    int (*run)(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
               struct fuse_error *error);
    void (*destroy)(struct fuse_kernel *kernel);
};

/* Compilers of the families of ops; each is handed only ops of its own, that passed fuse_op_check. */
typedef int fuse_compiler(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                          struct fuse_kernel_info *info, struct fuse_error *error);
fuse_compiler fuse_compile_linear;
fuse_compiler fuse_compile_bias_gradient;
fuse_compiler fuse_compile_elementwise;
fuse_compiler fuse_compile_loss;
fuse_compiler fuse_compile_layer_norm;
fuse_compiler fuse_compile_attention;
fuse_compiler fuse_compile_tokens;
fuse_compiler fuse_compile_dropout;
fuse_compiler fuse_compile_norm;

/* ---- checks that compilers share (../op_check.h) --------------------------------------------------------------- */

static inline struct fuse_op_checker fuse_cpu_checker(const struct fuse_cpu *cpu)
{
    return (struct fuse_op_checker){cpu->host, "cpu", cpu->is_bfloat16};
}

static inline int fuse_op_check_cpu(const struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_error *error)
{
    const struct fuse_op_checker checker = fuse_cpu_checker(cpu);
    return fuse_op_check(&checker, op, error);
}

static inline int fuse_fail_op_memory(const struct fuse_cpu *cpu, size_t bytes, struct fuse_error *error)
{
    const struct fuse_op_checker checker = fuse_cpu_checker(cpu);
    return fuse_op_fail_memory(&checker, bytes, error);
}

static inline uint64_t fuse_round_up(uint64_t bytes, uint64_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

/* Rows of a panel of a weight's gradient (n, k): of the weight's shape alone. (linear.c) */
int64_t fuse_panel_rows(int64_t n, int64_t k);

/* ---- what several ops do ------------------------------------------------------------------------------------- */

/* For tasks on several threads: *status and *error become those of the first one to fail. (threads.c) */
void fuse_keep_failure(int *status, struct fuse_error *error, int new_status, const struct fuse_error *failure);

/* In double, on the calling thread. (norm.c) */
double fuse_sum_squares(const float *values, int64_t count);

/* sums (columns) = the sum over rows (row_count, columns), which begin row_stride apart [+ sums]. (sums.c) */
void fuse_sum_columns(const struct fuse_cpu *cpu, struct fuse_values rows, int64_t row_count, int64_t row_stride,
                      int64_t columns, bool accumulate, float *sums);

/* Loops are compiled for several instruction sets and chosen when the plugin is loaded; x86-64-v3 is AVX2 with fused
 * multiply-adds, which gcc knows from 12 on. clang 14 chooses that one for the wrong processors, and makes what chooses
 * a global symbol though the function is static: such functions need names of their own in the whole plugin. */
#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 12
#define FUSE_CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v3", "avx512f")))
#elif defined(__x86_64__) && defined(__GNUC__)
#define FUSE_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FUSE_CLONES
#endif

#endif
