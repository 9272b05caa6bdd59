/* Matrix products: by cuBLAS (product.c), and with what bfloat16 needs around them (rounding.c). */
#ifndef FUSE_CUDA_PRODUCT_H
#define FUSE_CUDA_PRODUCT_H

#include "cuda.h"

/* c (m, n) = a (m, k) b (k, n) [+ c]. Element (i, j) of a is a[i * a_row + j * a_column], of b likewise; one stride of
 * each is 1. c is row-major, with c_row from row to row. */
struct fuse_product {
    int64_t m, n, k;
    int64_t a_row, a_column;
    int64_t b_row, b_column;
    int64_t c_row;
    bool is_bfloat16; /* a and b are multiplied as bfloat16. Sums are in float32 either way */
    bool a_is_bfloat16, b_is_bfloat16, c_is_bfloat16; /* as they lie in memory; else float32. Only with is_bfloat16 */
    bool adds;
};

/* Where an element lies, `index` elements behind the first. */
static inline void *fuse_element(const void *first, int64_t index, bool is_bfloat16)
{
    return (char *)(uintptr_t)first + index * (int64_t)(is_bfloat16 ? sizeof(uint16_t) : sizeof(float));
}

/* b and a as they lie: row by row, or column by column. (A single row or column has both strides 1; then only one of
 * the forms has a length that cuBLAS accepts.) */
static inline bool fuse_product_has_rows(int64_t row_stride, int64_t column_stride, int64_t columns)
{
    return column_stride == 1 && row_stride >= columns;
}

/* Whether cuBLAS can count so far. */
int fuse_product_check(const struct fuse_cuda *cuda, const struct fuse_product *product, struct fuse_error *error);

/* In bfloat16 both factors have to be in memory as such. */
int fuse_product_run(struct fuse_cuda *cuda, const struct fuse_product *product, const void *a, const void *b, void *c,
                     struct fuse_error *error);

/* count of them; the arrays of pointers are on the device. */
int fuse_products_run(struct fuse_cuda *cuda, const struct fuse_product *product, const void *const *a,
                      const void *const *b, void *const *c, int64_t count, struct fuse_error *error);

/* The product [+ bias (n), without adds], whatever is bfloat16 of it: factors in float32 are rounded into the workspace
 * for it, and each element of c is rounded once. bias may be NULL. */
int fuse_product_run_rounded(struct fuse_cuda *cuda, const struct fuse_product *product, const void *a, const void *b,
                             const float *bias, void *c, void *workspace, struct fuse_error *error);
/* The workspace of it, for any m up to product's. */
uint64_t fuse_product_workspace_bytes(const struct fuse_product *product, bool has_bias);

/* to = from [+ bias] [+ to], row by row, as arguments.h says. */
int fuse_cuda_place_rows(struct fuse_cuda *cuda, const struct fuse_rows_arguments *rows, struct fuse_error *error);

/* The earlier micro-batches of LINEAR_DW_SUM: rows of each, and how many there are. */
struct fuse_earlier {
    int64_t rows, count;
};

/* linear.c: what an op has of them; and rows [begin, begin + product.m) of dy^T x, summed over all micro-batches in
 * order, inputs being the op's. product: of the present batch; workspace: fuse_form_panel_bytes. */
struct fuse_earlier fuse_earlier_of(const struct fuse_op *op);
int fuse_form_panel(struct fuse_cuda *cuda, struct fuse_product product, const struct fuse_earlier *earlier,
                    void *const *inputs, int64_t begin, float *out, void *workspace, struct fuse_error *error);
uint64_t fuse_form_panel_bytes(const struct fuse_product *product, const struct fuse_earlier *earlier);

#endif
