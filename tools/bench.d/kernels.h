/* tools/bench.d/ - what tools/bench is made of: rows.py says what is measured and what must hold, sides.py runs
 * fuserun, these helpers and PyTorch, torch_peer.py is PyTorch's side, no_optimizer.c an optimizer that does nothing,
 * kernels.c measures the machine and single kernels of the CPU backend, library_product.c a product library alone. */
#ifndef FUSE_BENCH_KERNELS_H
#define FUSE_BENCH_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

double fuse_bench_seconds(void);

/* The i-th of small numbers of both signs: what a processor multiplies as fast as any, but does not find all zero. */
static inline float fuse_bench_value(int64_t i)
{
    return (float)((i * 7919) % 1009 - 504) * 1e-4f;
}

/* c (m, n) = a (m, k) b (k, n), where a transposed factor lies as its transpose, dense and row-major. */
struct fuse_bench_product {
    int64_t m, n, k;
    bool is_a_transposed, is_b_transposed;
};

/* The best time of one product by oneDNN on all threads, over `repeats` runs of each way to lay the factors: as they
 * lie, both row-major, and as the library likes best. 0 where this build has no oneDNN. */
double fuse_bench_library_seconds(const struct fuse_bench_product *product, const float *a, const float *b, float *c,
                                  int repeats);

#endif
