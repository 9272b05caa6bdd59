/* Products by plain loops over register-sized tiles, on the calling thread: for shapes so small that a library's call
 * overhead shows, and the fallback where there is no library. */
#ifndef FUSE_CPU_PRODUCT_SMALL_H
#define FUSE_CPU_PRODUCT_SMALL_H

#include "product.h"

/* Whether these loops are the better choice for a shape: a function of the shape alone. */
bool fuse_small_product_pays(const struct fuse_product_shape *shape);
uint64_t fuse_small_product_workspace_bytes(const struct fuse_product_shape *shape);

/* Columns [column_begin, column_end) of c; column_begin is a multiple of FUSE_SMALL_STRIP. */
#define FUSE_SMALL_STRIP 32
void fuse_small_product(const struct fuse_product_shape *shape, int64_t column_begin, int64_t column_end,
                        const float *a, const float *b, const float *bias, float *c, void *workspace);

#endif
