/* Products from any CBLAS, kept to one thread: c is cut into tiles of columns, of the shape alone, and our own threads
 * take the tiles. So the result does not depend on threads, and no two pools fight for the cores. */
#include "product.h"
#include "product_tiles.h"
#include "threads.h"

#include <cblas.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE_COLUMNS 256

/* Present in OpenBLAS and BLIS; other libraries are left as their environment sets them. */
extern void openblas_set_num_threads(int count) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));
extern void bli_thread_set_num_threads(int64_t count) __attribute__((weak));

struct fuse_products {
    const struct fuse_host *host;
    int thread_count;
};

struct fuse_product {
    const struct fuse_products *products;
    struct fuse_product_shape shape;
    bool is_tiles;
    CBLAS_TRANSPOSE a_form, b_form;
    int lda, ldb;
};

int fuse_products_open(const struct fuse_host *host, int thread_count, struct fuse_products **products,
                       struct fuse_error *error)
{
    struct fuse_products *const self = calloc(1, sizeof(*self));
    *products = self;
    if (self == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the CPU backend");
    self->host = host;
    self->thread_count = thread_count;
    if (openblas_set_num_threads != NULL)
        openblas_set_num_threads(1);
    if (bli_thread_set_num_threads != NULL)
        bli_thread_set_num_threads(1);
    return FUSERUN_OK;
}

void fuse_products_close(struct fuse_products **products)
{
    free(*products);
    *products = NULL;
}

void fuse_products_describe(char *text, size_t size)
{
    snprintf(text, size, "CBLAS");
    if (openblas_get_config != NULL) {
        const char *const config = openblas_get_config(); /* "OpenBLAS 0.3.21 DYNAMIC_ARCH ..." */
        const char *end = strchr(config, ' ');
        end = end != NULL ? strchr(end + 1, ' ') : NULL;
        if (end != NULL)
            snprintf(text, size, "%.*s", (int)(end - config), config);
    }
}

bool fuse_product_uses_tiles(const struct fuse_products *products, const struct fuse_product_shape *shape)
{
    (void)products;
    return shape->is_bfloat16 || fuse_tiles_pay(shape);
}

int fuse_product_create(struct fuse_products *products, const struct fuse_product_shape *shape,
                        struct fuse_product **product, struct fuse_error *error)
{
    *product = NULL;
    const int64_t sizes[] = {shape->m,        shape->n,     shape->k,        shape->a_row,
                             shape->a_column, shape->b_row, shape->b_column, shape->c_row};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i] > INT_MAX)
            return products->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                                        "a matrix dimension of %lld is too large for this build's CBLAS",
                                        (long long)sizes[i]);
    struct fuse_product *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return products->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a matrix product");
    self->products = products;
    self->shape = *shape;
    self->is_tiles = fuse_product_uses_tiles(products, shape);
    /* With one row (or column) both strides may be 1; the leading dimension must still be a valid one. */
    self->a_form = shape->a_column == 1 ? CblasNoTrans : CblasTrans;
    self->b_form = shape->b_column == 1 ? CblasNoTrans : CblasTrans;
    const int64_t lda = shape->a_column == 1 ? shape->a_row : shape->a_column;
    const int64_t ldb = shape->b_column == 1 ? shape->b_row : shape->b_column;
    const int64_t least_a = shape->a_column == 1 ? shape->k : shape->m;
    const int64_t least_b = shape->b_column == 1 ? shape->n : shape->k;
    self->lda = (int)(lda > least_a ? lda : least_a);
    self->ldb = (int)(ldb > least_b ? ldb : least_b);
    *product = self;
    return FUSERUN_OK;
}

void fuse_product_free(struct fuse_product **product)
{
    free(*product);
    *product = NULL;
}

uint64_t fuse_product_workspace_bytes(const struct fuse_product *product)
{
    return product->is_tiles ? fuse_tiles_workspace_bytes(&product->shape, product->products->thread_count) : 0;
}

struct run {
    const struct fuse_product *product;
    const float *a, *b, *bias;
    float *c;
};

static void run_columns(const struct run *run, int64_t begin, int64_t end)
{
    const struct fuse_product *const self = run->product;
    const struct fuse_product_shape *const shape = &self->shape;
    const int64_t c_row = fuse_product_c_row(shape);
    float *const c = run->c + begin;
    if (shape->has_bias)
        for (int64_t i = 0; i < shape->m; i++)
            for (int64_t j = 0; j < end - begin; j++)
                c[i * c_row + j] = (shape->accumulate ? c[i * c_row + j] : 0.0f) + run->bias[begin + j];
    cblas_sgemm(CblasRowMajor, self->a_form, self->b_form, (int)shape->m, (int)(end - begin), (int)shape->k, 1.0f,
                run->a, self->lda, run->b + begin * shape->b_column, self->ldb,
                shape->has_bias || shape->accumulate ? 1.0f : 0.0f, c, (int)c_row);
}

static void run_tile(const void *context, int64_t task, int worker)
{
    const struct run *const run = context;
    const int64_t begin = task * TILE_COLUMNS, n = run->product->shape.n;
    (void)worker;
    run_columns(run, begin, begin + TILE_COLUMNS < n ? begin + TILE_COLUMNS : n);
}

int fuse_product_run(const struct fuse_product *product, int worker, const void *a, const void *b, const float *bias,
                     void *c, void *workspace, struct fuse_error *error)
{
    const struct fuse_product_shape *const shape = &product->shape;
    const struct run run = {product, a, b, bias, c};
    (void)worker, (void)error;
    if (product->is_tiles)
        fuse_tiles_product(shape, product->products->thread_count, a, b, bias, c, workspace);
    else if (shape->worker_count > 0)
        run_columns(&run, 0, shape->n);
    else
        fuse_threads_tasks(product->products->thread_count, (shape->n + TILE_COLUMNS - 1) / TILE_COLUMNS, run_tile,
                           &run);
    return FUSERUN_OK;
}
