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
    bool is_bfloat16; /* a and b are multiplied as bfloat16: what is in floats is rounded first, on its way. Sums are in
                         float, and c is rounded once */
    bool a_is_bfloat16, b_is_bfloat16, c_is_bfloat16; /* as they lie in memory; else floats. Only with is_bfloat16 */
};

static inline int64_t fuse_product_c_row(const struct fuse_product_shape *shape)
{
    return shape->c_row != 0 ? shape->c_row : shape->n;
}

/* Where an element lies. */
static inline const void *fuse_product_a(const struct fuse_product_shape *shape, const void *a, int64_t i, int64_t j)
{
    const int64_t size = shape->a_is_bfloat16 ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(float);
    return (const char *)a + (i * shape->a_row + j * shape->a_column) * size;
}

static inline const void *fuse_product_b(const struct fuse_product_shape *shape, const void *b, int64_t i, int64_t j)
{
    const int64_t size = shape->b_is_bfloat16 ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(float);
    return (const char *)b + (i * shape->b_row + j * shape->b_column) * size;
}

static inline void *fuse_product_c(const struct fuse_product_shape *shape, void *c, int64_t i, int64_t j)
{
    const int64_t size = shape->c_is_bfloat16 ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(float);
    return (char *)c + (i * fuse_product_c_row(shape) + j) * size;
}

struct fuse_products; /* the library, opened for one backend instance */
struct fuse_product;

/* Logs once if products will be slow. */
int fuse_products_open(const struct fuse_host *host, int thread_count, struct fuse_products **products,
                       struct fuse_error *error);
void fuse_products_close(struct fuse_products **products);
void fuse_products_describe(char *text, size_t size); /* "oneDNN 2.6.3" */

/* Whether our own tiles will make such a product. */
bool fuse_product_uses_tiles(const struct fuse_products *products, const struct fuse_product_shape *shape);

int fuse_product_create(struct fuse_products *products, const struct fuse_product_shape *shape,
                        struct fuse_product **product, struct fuse_error *error);
void fuse_product_free(struct fuse_product **product);

/* What one call needs; calls at the same time need one each, aligned to 64 bytes. */
uint64_t fuse_product_workspace_bytes(const struct fuse_product *product);

/* worker: 0, or the caller's number below worker_count. */
int fuse_product_run(const struct fuse_product *product, int worker, const void *a, const void *b, const float *bias,
                     void *c, void *workspace, struct fuse_error *error);

#endif
