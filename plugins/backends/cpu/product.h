/* Matrix products, prepared once and run many times. Exactly one of product_onednn.c, product_cblas.c and
 * product_plain.c is built; all of them leave some shapes to our own product_tiles.c, which says which. */
#ifndef FUSE_CPU_PRODUCT_H
#define FUSE_CPU_PRODUCT_H

#include <fuserun/abi.h>

#include <stdbool.h>

/* c (m, n) = a (m, k) b (k, n) [+ bias (n)] [+ c]. Element (i, j) of a is a[i * a_row + j * a_column], of b likewise;
 * one stride of each is 1. c is row-major, dense or with c_row from row to row. */
struct fuse_product_shape {
    int64_t m, n, k;
    int64_t a_row, a_column;
    int64_t b_row, b_column;
    int64_t c_row; /* 0: n */
    bool has_bias;
    bool accumulate;
    int worker_count; /* 0: one call at a time, on all threads; else: up to that many calls at the same time, each on
                         its calling thread alone, with results that do not depend on worker_count */
};

static inline int64_t fuse_product_c_row(const struct fuse_product_shape *shape)
{
    return shape->c_row != 0 ? shape->c_row : shape->n;
}

struct fuse_products; /* the library, opened for one backend instance */
struct fuse_product;

/* Logs once if products will be slow. */
int fuse_products_open(const struct fuse_host *host, int thread_count, struct fuse_products **products,
                       struct fuse_error *error);
void fuse_products_close(struct fuse_products **products);
void fuse_products_describe(char *text, size_t size); /* "oneDNN 2.6.3" */

int fuse_product_create(struct fuse_products *products, const struct fuse_product_shape *shape,
                        struct fuse_product **product, struct fuse_error *error);
void fuse_product_free(struct fuse_product **product);

/* What one call needs; calls at the same time need one each, aligned to 64 bytes. */
uint64_t fuse_product_workspace_bytes(const struct fuse_product *product);

/* worker: 0, or the caller's number below worker_count. */
int fuse_product_run(const struct fuse_product *product, int worker, const float *a, const float *b, const float *bias,
                     float *c, void *workspace, struct fuse_error *error);

#endif
