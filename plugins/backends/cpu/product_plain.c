/* Products without any library: the small loops for every shape, spread over threads by columns. Right, but slow for
 * large matrices. */
#include "product.h"
#include "product_small.h"
#include "threads.h"

#include <stdio.h>
#include <stdlib.h>

#define TILE_COLUMNS (4 * FUSE_SMALL_STRIP)

struct fuse_products {
    const struct fuse_host *host;
    int thread_count;
};

struct fuse_product {
    const struct fuse_products *products;
    struct fuse_product_shape shape;
    int thread_count;
    uint64_t tile_workspace_bytes; /* of one thread */
};

int fuse_products_open(const struct fuse_host *host, int thread_count, struct fuse_products **products,
                       struct fuse_error *error)
{
    static int said;
    struct fuse_products *const self = calloc(1, sizeof(*self));
    *products = self;
    if (self == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the CPU backend");
    self->host = host;
    self->thread_count = thread_count;
    if (said++ == 0)
        host->log(FUSERUN_LOG_WARNING, "matrix products run in plain loops, slowly: this build has neither oneDNN "
                                       "(libdnnl-dev) nor a CBLAS");
    return FUSERUN_OK;
}

void fuse_products_close(struct fuse_products **products)
{
    free(*products);
    *products = NULL;
}

void fuse_products_describe(char *text, size_t size)
{
    snprintf(text, size, "plain loops");
}

int fuse_product_create(struct fuse_products *products, const struct fuse_product_shape *shape,
                        struct fuse_product **product, struct fuse_error *error)
{
    struct fuse_product *const self = calloc(1, sizeof(*self));
    *product = self;
    if (self == NULL)
        return products->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a matrix product");
    self->products = products;
    self->shape = *shape;
    self->thread_count = shape->worker_count > 0 || fuse_small_product_pays(shape) ? 1 : products->thread_count;
    self->tile_workspace_bytes = (fuse_small_product_workspace_bytes(shape) + 63) / 64 * 64;
    return FUSERUN_OK;
}

void fuse_product_free(struct fuse_product **product)
{
    free(*product);
    *product = NULL;
}

uint64_t fuse_product_workspace_bytes(const struct fuse_product *product)
{
    return product->tile_workspace_bytes * (uint64_t)product->thread_count;
}

struct run {
    const struct fuse_product *product;
    const float *a, *b, *bias;
    float *c;
    char *workspace;
};

static void run_tile(const void *context, int64_t task, int worker)
{
    const struct run *const run = context;
    const struct fuse_product *const self = run->product;
    const int64_t begin = task * TILE_COLUMNS, n = self->shape.n;
    fuse_small_product(&self->shape, begin, begin + TILE_COLUMNS < n ? begin + TILE_COLUMNS : n, run->a, run->b,
                       run->bias, run->c, run->workspace + self->tile_workspace_bytes * (uint64_t)worker);
}

int fuse_product_run(const struct fuse_product *product, int worker, const float *a, const float *b, const float *bias,
                     float *c, void *workspace, struct fuse_error *error)
{
    const struct fuse_product_shape *const shape = &product->shape;
    const struct run run = {product, a, b, bias, c, workspace};
    (void)worker, (void)error;
    if (product->thread_count == 1)
        fuse_small_product(shape, 0, shape->n, a, b, bias, c, workspace);
    else
        fuse_threads_tasks(product->thread_count, (shape->n + TILE_COLUMNS - 1) / TILE_COLUMNS, run_tile, &run);
    return FUSERUN_OK;
}
