/* Products without any library: our own tiles for every shape. */
#include "product.h"
#include "product_tiles.h"

#include <stdio.h>
#include <stdlib.h>

struct fuse_products {
    const struct fuse_host *host;
    int thread_count;
};

struct fuse_product {
    const struct fuse_products *products;
    struct fuse_product_shape shape;
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
        host->log(FUSERUN_LOG_WARNING, "products in bf16 may be slower than they could be: this build has no oneDNN "
                                       "(libdnnl-dev)");
    return FUSERUN_OK;
}

void fuse_products_close(struct fuse_products **products)
{
    free(*products);
    *products = NULL;
}

void fuse_products_describe(char *text, size_t size)
{
    snprintf(text, size, "own tiles");
}

bool fuse_product_uses_tiles(const struct fuse_products *products, const struct fuse_product_shape *shape)
{
    (void)products, (void)shape;
    return true;
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
    return FUSERUN_OK;
}

void fuse_product_free(struct fuse_product **product)
{
    free(*product);
    *product = NULL;
}

uint64_t fuse_product_workspace_bytes(const struct fuse_product *product)
{
    return fuse_tiles_workspace_bytes(&product->shape, product->products->thread_count);
}

int fuse_product_run(const struct fuse_product *product, int worker, const void *a, const void *b, const float *bias,
                     void *c, void *workspace, struct fuse_error *error)
{
    (void)worker, (void)error;
    fuse_tiles_product(&product->shape, product->products->thread_count, a, b, bias, c, workspace);
    return FUSERUN_OK;
}
