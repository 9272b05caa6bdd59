/* Our own products: packed blocks and register tiles, in C with vector types, for several instruction sets. Used where
 * a library's call overhead shows, where the library is slower (product_tiles.c says when), and where there is none.
 * They need no memory but the caller's, and an element's sum is formed in one order whatever the threads. */
#ifndef FUSE_CPU_PRODUCT_TILES_H
#define FUSE_CPU_PRODUCT_TILES_H

#include "product.h"

#include <fuserun/backend.h>

/* Whether to prefer this to a library, for a shape on this machine; not of threads. */
bool fuse_tiles_pay(const struct fuse_product_shape *shape);

/* Threads that share one product when its shape has no worker_count: 1 for small ones. */
int fuse_tiles_thread_count(const struct fuse_product_shape *shape, int thread_count);
/* For that many threads. */
uint64_t fuse_tiles_workspace_bytes(const struct fuse_product_shape *shape, int thread_count);
void fuse_tiles_product(const struct fuse_product_shape *shape, int thread_count, const void *a, const void *b,
                        const float *bias, void *c, void *workspace);

struct fuse_spans {
    struct fuse_span spans[FUSERUN_MAX_SPANS];
    uint32_t count;
};

/* Several products with one b, each on its calling thread, of up to shape->worker_count at the same time: what one
 * packs of b the others take, whatever their m. The sums are those of fuse_tiles_product. c is float32. shared_b:
 * fuse_tiles_shared_bytes, aligned to 64; fuse_tiles_share_b comes before the first product with a b. afterwards: what
 * the thread goes through next, fetched into its cache meanwhile. */
uint64_t fuse_tiles_shared_bytes(const struct fuse_product_shape *shape);
void fuse_tiles_share_b(const struct fuse_product_shape *shape, void *shared_b);
void fuse_tiles_product_shared(const struct fuse_product_shape *shape, int worker, const void *a, const void *b,
                               void *shared_b, const struct fuse_spans *afterwards, float *c, void *workspace);

#endif
