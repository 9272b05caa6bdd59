/* Matrix products by cuBLAS. */
#ifndef FUSE_CUDA_PRODUCT_H
#define FUSE_CUDA_PRODUCT_H

#include "cuda.h"

/* c (m, n) = a (m, k) b (k, n) [+ c]. Element (i, j) of a is a[i * a_row + j * a_column], of b likewise; one stride of
 * each is 1. c is row-major, with c_row from row to row. Both factors are of one type. */
struct fuse_product {
    int64_t m, n, k;
    int64_t a_row, a_column;
    int64_t b_row, b_column;
    int64_t c_row;
    bool is_bfloat16; /* the factors */
    bool is_c_bfloat16;
    bool adds;
};

/* Whether cuBLAS can count so far. */
int fuse_product_check(const struct fuse_cuda *cuda, const struct fuse_product *product, struct fuse_error *error);

int fuse_product_run(struct fuse_cuda *cuda, const struct fuse_product *product, const void *a, const void *b, void *c,
                     struct fuse_error *error);

/* count of them; the arrays of pointers are on the device. */
int fuse_products_run(struct fuse_cuda *cuda, const struct fuse_product *product, const void *const *a,
                      const void *const *b, void *const *c, int64_t count, struct fuse_error *error);

/* The earlier micro-batches of LINEAR_DW_SUM: rows of each, and how many there are. */
struct fuse_earlier {
    int64_t rows, count;
};

/* linear.c: what an op has of them; and rows [begin, begin + product.m) of dy^T x, summed over all micro-batches in
 * order, inputs being the op's. product: of the present batch. */
struct fuse_earlier fuse_earlier_of(const struct fuse_op *op);
int fuse_form_panel(struct fuse_cuda *cuda, struct fuse_product product, const struct fuse_earlier *earlier,
                    void *const *inputs, int64_t begin, float *out, struct fuse_error *error);

#endif
