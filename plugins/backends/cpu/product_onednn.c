/* Products from oneDNN's matmul primitive (its sgemm is slower for a transposed b). Weights are used as they lie, by
 * strides; scratch is the caller's. A primitive made under one thread's setting and run under the same does its sums in
 * an order of its own, whatever the number of workers around it. */
#include "product.h"
#include "product_tiles.h"
#include "threads.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdio.h>
#include <stdlib.h>

#define MAX_ARGUMENTS 5

struct fuse_products {
    const struct fuse_host *host;
    int thread_count;
    dnnl_engine_t engine;
};

/* What one call at a time needs for itself. */
struct lane {
    dnnl_stream_t stream;
    dnnl_memory_t a, b, bias, c, scratch;
    int argument_count;
    dnnl_exec_arg_t arguments[MAX_ARGUMENTS];
};

struct fuse_product {
    const struct fuse_products *products;
    struct fuse_product_shape shape;
    bool is_tiles;
    int inner_threads;
    uint64_t workspace_bytes;
    dnnl_primitive_t primitive;
    int lane_count;
    struct lane *lanes;
};

#define TRY_DNNL(what, expression)                                                                                     \
    do {                                                                                                               \
        const dnnl_status_t dnnl_status = (expression);                                                                \
        if (dnnl_status != dnnl_success) {                                                                             \
            status = fail_dnnl(host, what, dnnl_status, error);                                                        \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int fail_dnnl(const struct fuse_host *host, const char *what, dnnl_status_t dnnl_status,
                     struct fuse_error *error)
{
    const int code = dnnl_status == dnnl_out_of_memory   ? FUSERUN_ERROR_MEMORY
                     : dnnl_status == dnnl_unimplemented ? FUSERUN_ERROR_UNSUPPORTED
                                                         : FUSERUN_ERROR_INTERNAL;
    return host->fail(error, code, NULL, "oneDNN could not %s (dnnl_status_t %d)", what, (int)dnnl_status);
}

int fuse_products_open(const struct fuse_host *host, int thread_count, struct fuse_products **products,
                       struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_products *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the CPU backend");
    self->host = host;
    self->thread_count = thread_count;
    TRY_DNNL("make its CPU engine", dnnl_engine_create(&self->engine, dnnl_cpu, 0));
out:
    if (status != FUSERUN_OK)
        fuse_products_close(&self);
    *products = self;
    return status;
}

void fuse_products_close(struct fuse_products **products)
{
    if (*products == NULL)
        return;
    if ((*products)->engine != NULL)
        dnnl_engine_destroy((*products)->engine);
    free(*products);
    *products = NULL;
}

void fuse_products_describe(char *text, size_t size)
{
    const dnnl_version_t *const version = dnnl_version();
    snprintf(text, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

static int create_primitive(struct fuse_product *self, dnnl_memory_desc_t *a, dnnl_memory_desc_t *b,
                            dnnl_memory_desc_t *bias, dnnl_memory_desc_t *c, dnnl_memory_desc_t *scratch,
                            struct fuse_error *error)
{
    const struct fuse_host *const host = self->products->host;
    const struct fuse_product_shape *const shape = &self->shape;
    int status = FUSERUN_OK;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t post_ops = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_matmul_desc_t matmul;
    const dnnl_data_type_t f32 = dnnl_f32;

    TRY_DNNL("describe a matrix", dnnl_memory_desc_init_by_strides(a, 2, (const dnnl_dims_t){shape->m, shape->k}, f32,
                                                                   (const dnnl_dims_t){shape->a_row, shape->a_column}));
    TRY_DNNL("describe a matrix", dnnl_memory_desc_init_by_strides(b, 2, (const dnnl_dims_t){shape->k, shape->n}, f32,
                                                                   (const dnnl_dims_t){shape->b_row, shape->b_column}));
    TRY_DNNL("describe a bias", dnnl_memory_desc_init_by_strides(bias, 2, (const dnnl_dims_t){1, shape->n}, f32,
                                                                 (const dnnl_dims_t){shape->n, 1}));
    TRY_DNNL("describe a matrix", dnnl_memory_desc_init_by_strides(c, 2, (const dnnl_dims_t){shape->m, shape->n}, f32,
                                                                   (const dnnl_dims_t){fuse_product_c_row(shape), 1}));
    TRY_DNNL("describe a product", dnnl_matmul_desc_init(&matmul, a, b, shape->has_bias ? bias : NULL, c));
    TRY_DNNL("make attributes", dnnl_primitive_attr_create(&attributes));
    TRY_DNNL("set attributes", dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
    if (shape->accumulate) {
        TRY_DNNL("make post-ops", dnnl_post_ops_create(&post_ops));
        TRY_DNNL("make post-ops", dnnl_post_ops_append_sum(post_ops, 1.0f));
        TRY_DNNL("set attributes", dnnl_primitive_attr_set_post_ops(attributes, post_ops));
    }
    TRY_DNNL("find a kernel for a matrix product",
             dnnl_primitive_desc_create(&description, &matmul, attributes, self->products->engine, NULL));
    *scratch = *dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    self->workspace_bytes = dnnl_memory_desc_get_size(scratch);
    TRY_DNNL("make a matrix product", dnnl_primitive_create(&self->primitive, description));
out:
    if (description != NULL)
        dnnl_primitive_desc_destroy(description);
    if (post_ops != NULL)
        dnnl_post_ops_destroy(post_ops);
    if (attributes != NULL)
        dnnl_primitive_attr_destroy(attributes);
    return status;
}

static int create_argument(struct fuse_product *self, struct lane *lane, int argument,
                           const dnnl_memory_desc_t *description, dnnl_memory_t *memory, struct fuse_error *error)
{
    const struct fuse_host *const host = self->products->host;
    int status = FUSERUN_OK;
    TRY_DNNL("make a memory object", dnnl_memory_create(memory, description, self->products->engine, DNNL_MEMORY_NONE));
    lane->arguments[lane->argument_count].arg = argument;
    lane->arguments[lane->argument_count].memory = *memory;
    lane->argument_count++;
out:
    return status;
}

static int create_lane(struct fuse_product *self, struct lane *lane,
                       const dnnl_memory_desc_t descriptions[MAX_ARGUMENTS], struct fuse_error *error)
{
    const struct fuse_host *const host = self->products->host;
    int status = FUSERUN_OK;
    TRY_DNNL("make a stream", dnnl_stream_create(&lane->stream, self->products->engine, dnnl_stream_default_flags));
    if ((status = create_argument(self, lane, DNNL_ARG_SRC, &descriptions[0], &lane->a, error)) != FUSERUN_OK ||
        (status = create_argument(self, lane, DNNL_ARG_WEIGHTS, &descriptions[1], &lane->b, error)) != FUSERUN_OK ||
        (status = create_argument(self, lane, DNNL_ARG_DST, &descriptions[3], &lane->c, error)) != FUSERUN_OK)
        goto out;
    if (self->shape.has_bias &&
        (status = create_argument(self, lane, DNNL_ARG_BIAS, &descriptions[2], &lane->bias, error)) != FUSERUN_OK)
        goto out;
    if (self->workspace_bytes > 0)
        status = create_argument(self, lane, DNNL_ARG_SCRATCHPAD, &descriptions[4], &lane->scratch, error);
out:
    return status;
}

int fuse_product_create(struct fuse_products *products, const struct fuse_product_shape *shape,
                        struct fuse_product **product, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    dnnl_memory_desc_t descriptions[MAX_ARGUMENTS]; /* a, b, bias, c, scratch */
    const int lane_count = shape->worker_count > 0 ? shape->worker_count : 1;
    struct fuse_product *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return products->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a matrix product");
    self->products = products;
    self->shape = *shape;
    self->is_tiles = fuse_tiles_pay(shape);
    self->inner_threads = shape->worker_count > 0 ? 1 : products->thread_count;
    if (self->is_tiles) {
        self->workspace_bytes = fuse_tiles_workspace_bytes(shape, products->thread_count);
        *product = self;
        return FUSERUN_OK;
    }

    const int threads_before = fuse_threads_set_inner(self->inner_threads);
    self->lanes = calloc((size_t)lane_count, sizeof(self->lanes[0]));
    if (self->lanes == NULL) {
        status = products->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a matrix product");
        goto out;
    }
    self->lane_count = lane_count;
    status = create_primitive(self, &descriptions[0], &descriptions[1], &descriptions[2], &descriptions[3],
                              &descriptions[4], error);
    for (int i = 0; i < lane_count && status == FUSERUN_OK; i++)
        status = create_lane(self, &self->lanes[i], descriptions, error);
out:
    fuse_threads_set_inner(threads_before);
    if (status != FUSERUN_OK)
        fuse_product_free(&self);
    *product = self;
    return status;
}

void fuse_product_free(struct fuse_product **product)
{
    struct fuse_product *const self = *product;
    if (self == NULL)
        return;
    for (int i = 0; i < self->lane_count; i++) {
        struct lane *const lane = &self->lanes[i];
        for (int j = 0; j < lane->argument_count; j++)
            dnnl_memory_destroy(lane->arguments[j].memory);
        if (lane->stream != NULL)
            dnnl_stream_destroy(lane->stream);
    }
    if (self->primitive != NULL)
        dnnl_primitive_destroy(self->primitive);
    free(self->lanes);
    free(self);
    *product = NULL;
}

uint64_t fuse_product_workspace_bytes(const struct fuse_product *product)
{
    return product->workspace_bytes;
}

/* oneDNN writes neither a nor b. */
static dnnl_status_t point(dnnl_memory_t memory, const void *at)
{
    union {
        const void *from;
        void *to;
    } pointer = {at};
    return memory == NULL ? dnnl_success : dnnl_memory_set_data_handle(memory, pointer.to);
}

int fuse_product_run(const struct fuse_product *product, int worker, const void *a, const void *b, const float *bias,
                     void *c, void *workspace, struct fuse_error *error)
{
    const struct fuse_host *const host = product->products->host;
    int status = FUSERUN_OK;
    if (product->is_tiles) {
        fuse_tiles_product(&product->shape, product->products->thread_count, a, b, bias, c, workspace);
        return status;
    }
    struct lane *const lane = &product->lanes[worker];
    const int threads_before = fuse_threads_set_inner(product->inner_threads);
    TRY_DNNL("use a matrix", point(lane->a, a));
    TRY_DNNL("use a matrix", point(lane->b, b));
    TRY_DNNL("use a bias", point(lane->bias, bias));
    TRY_DNNL("use a matrix", point(lane->c, c));
    TRY_DNNL("use a scratchpad", point(lane->scratch, workspace));
    TRY_DNNL("run a matrix product",
             dnnl_primitive_execute(product->primitive, lane->stream, lane->argument_count, lane->arguments));
    TRY_DNNL("finish a matrix product", dnnl_stream_wait(lane->stream));
out:
    fuse_threads_set_inner(threads_before);
    return status;
}
