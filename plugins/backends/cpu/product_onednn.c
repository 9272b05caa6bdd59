/* Products from oneDNN's matmul primitive (its sgemm is slower for a transposed b). Weights are used as they lie, by
 * strides; scratch is the caller's. A primitive made under one thread's setting and run under the same does its sums in
 * an order of its own, whatever the number of workers around it.
 *
 * In bfloat16, where the processor multiplies it, operands that are float32 are rounded into scratch first: a weight a
 * block of c's columns at a time, whose thread then multiplies by it from its cache. So no second copy of a weight is
 * kept or written to memory, and every sum is one thread's. What lies apart in memory goes through scratch as well: the
 * library has its fast kernels (AMX) for dense matrices alone, and others for the rest, whose sums differ in the last
 * bits. Other processors have our own tiles do it. */
#include "bfloat16.h"
#include "product.h"
#include "product_tiles.h"
#include "threads.h"

#include <oneapi/dnnl/dnnl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARGUMENTS 5
#define BLOCK_COLUMNS 256 /* of c: enough to be multiplied well, and few enough that a block of b stays in a core's */
#define BLOCK_NUMBERS 524288 /* cache and that every thread gets some */
#define BLOCK_COLUMNS_LEAST 64
#define BLOCK_PARTS 4

struct fuse_products {
    const struct fuse_host *host;
    int thread_count;
    dnnl_engine_t engine;
    dnnl_data_type_t narrow; /* how operands of bfloat16 products are multiplied; undefined: not by the library */
};

/* What one call at a time needs for itself. */
struct lane {
    dnnl_stream_t stream;
    dnnl_memory_t a, b, bias, c, scratch;
    int argument_count;
    dnnl_exec_arg_t arguments[MAX_ARGUMENTS];
};

/* One primitive, and what its calls need. */
struct matmul {
    const struct fuse_products *products;
    struct fuse_product_shape shape; /* of the operands that it is given */
    int inner_threads;
    uint64_t scratch_bytes;
    dnnl_primitive_t primitive;
    int lane_count;
    struct lane *lanes;
};

struct fuse_product {
    const struct fuse_products *products;
    struct fuse_product_shape shape;
    bool is_tiles;
    bool converts_a, converts_b;        /* into scratch, before they are multiplied: rounded, or only dense */
    bool gathers_c;                     /* in scratch: its block is not dense */
    int64_t block_columns;              /* of c, that one matmul makes */
    struct matmul block, last;          /* last: the last block, where it is narrower */
    uint64_t a_bytes, b_bytes, c_bytes; /* of what goes through scratch: a, and one block of b and c */
    uint64_t worker_bytes;              /* a worker's scratch */
    uint64_t workspace_bytes;
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
    if ((dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16)
        self->narrow = dnnl_bf16;
#ifdef FUSE_TILES_NEVER /* tests: the same way, with the rounded numbers in floats */
    else
        self->narrow = dnnl_f32;
#endif
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

static dnnl_data_type_t type_of(bool is_bfloat16)
{
    return is_bfloat16 ? dnnl_bf16 : dnnl_f32;
}

static int create_primitive(struct matmul *self, dnnl_memory_desc_t descriptions[MAX_ARGUMENTS],
                            struct fuse_error *error)
{
    const struct fuse_host *const host = self->products->host;
    const struct fuse_product_shape *const shape = &self->shape;
    int status = FUSERUN_OK;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t post_ops = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_matmul_desc_t matmul;
    dnnl_memory_desc_t *const a = &descriptions[0], *const b = &descriptions[1], *const bias = &descriptions[2];
    dnnl_memory_desc_t *const c = &descriptions[3], *const scratch = &descriptions[4];

    TRY_DNNL("describe a matrix", dnnl_memory_desc_init_by_strides(a, 2, (const dnnl_dims_t){shape->m, shape->k},
                                                                   type_of(shape->a_is_bfloat16),
                                                                   (const dnnl_dims_t){shape->a_row, shape->a_column}));
    TRY_DNNL("describe a matrix", dnnl_memory_desc_init_by_strides(b, 2, (const dnnl_dims_t){shape->k, shape->n},
                                                                   type_of(shape->b_is_bfloat16),
                                                                   (const dnnl_dims_t){shape->b_row, shape->b_column}));
    TRY_DNNL("describe a bias", dnnl_memory_desc_init_by_strides(bias, 2, (const dnnl_dims_t){1, shape->n}, dnnl_f32,
                                                                 (const dnnl_dims_t){shape->n, 1}));
    TRY_DNNL("describe a matrix", dnnl_memory_desc_init_by_strides(c, 2, (const dnnl_dims_t){shape->m, shape->n},
                                                                   type_of(shape->c_is_bfloat16),
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
    self->scratch_bytes = dnnl_memory_desc_get_size(scratch);
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

static int create_argument(struct matmul *self, struct lane *lane, int argument, const dnnl_memory_desc_t *description,
                           dnnl_memory_t *memory, struct fuse_error *error)
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

static int create_lane(struct matmul *self, struct lane *lane, const dnnl_memory_desc_t descriptions[MAX_ARGUMENTS],
                       struct fuse_error *error)
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
    if (self->scratch_bytes > 0)
        status = create_argument(self, lane, DNNL_ARG_SCRATCHPAD, &descriptions[4], &lane->scratch, error);
out:
    return status;
}

static int create_matmul(const struct fuse_products *products, const struct fuse_product_shape *shape, int lane_count,
                         int inner_threads, struct matmul *self, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    dnnl_memory_desc_t descriptions[MAX_ARGUMENTS]; /* a, b, bias, c, scratch */
    *self = (struct matmul){.products = products, .shape = *shape, .inner_threads = inner_threads};
    const int threads_before = fuse_threads_set_inner(inner_threads);
    self->lanes = calloc((size_t)lane_count, sizeof(self->lanes[0]));
    if (self->lanes == NULL) {
        status = products->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a matrix product");
        goto out;
    }
    self->lane_count = lane_count;
    status = create_primitive(self, descriptions, error);
    for (int i = 0; i < lane_count && status == FUSERUN_OK; i++)
        status = create_lane(self, &self->lanes[i], descriptions, error);
out:
    fuse_threads_set_inner(threads_before);
    return status;
}

static void free_matmul(struct matmul *self)
{
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
    *self = (struct matmul){0};
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

static int run_matmul(const struct matmul *self, int worker, const void *a, const void *b, const float *bias, void *c,
                      void *scratch, struct fuse_error *error)
{
    const struct fuse_host *const host = self->products->host;
    int status = FUSERUN_OK;
    struct lane *const lane = &self->lanes[worker];
    const int threads_before = fuse_threads_set_inner(self->inner_threads);
    TRY_DNNL("use a matrix", point(lane->a, a));
    TRY_DNNL("use a matrix", point(lane->b, b));
    TRY_DNNL("use a bias", point(lane->bias, bias));
    TRY_DNNL("use a matrix", point(lane->c, c));
    TRY_DNNL("use a scratchpad", point(lane->scratch, scratch));
    TRY_DNNL("run a matrix product",
             dnnl_primitive_execute(self->primitive, lane->stream, lane->argument_count, lane->arguments));
    TRY_DNNL("finish a matrix product", dnnl_stream_wait(lane->stream));
out:
    fuse_threads_set_inner(threads_before);
    return status;
}

/* ---- products ------------------------------------------------------------------------------------------------- */

/* oneDNN 2.6.3 with AMX makes illegal instructions of sums of just so many bfloat16 products, where rows are more than
 * 64 and 1 to 16 more than a multiple of it. */
#define FAULTY_DEPTH 63

bool fuse_product_uses_tiles(const struct fuse_products *products, const struct fuse_product_shape *shape)
{
    if (shape->is_bfloat16 && (shape->k == FAULTY_DEPTH || products->narrow == dnnl_data_type_undef ||
                               (products->narrow == dnnl_f32 && shape->c_is_bfloat16)))
        return true;
    return fuse_tiles_pay(shape);
}

static uint64_t narrow_bytes(const struct fuse_products *products, int64_t count)
{
    return fuse_round_up((uint64_t)count * (products->narrow == dnnl_bf16 ? sizeof(uint16_t) : sizeof(float)), 64);
}

/* The shape of one block's matmul, whose converted operands are dense. */
static struct fuse_product_shape block_shape(const struct fuse_product *self, int64_t columns)
{
    struct fuse_product_shape shape = self->shape;
    const bool is_narrow = shape.is_bfloat16 && self->products->narrow == dnnl_bf16;
    shape.c_row = self->gathers_c ? columns : fuse_product_c_row(&self->shape);
    shape.n = columns;
    shape.a_is_bfloat16 = shape.b_is_bfloat16 = is_narrow;
    if (self->converts_a) {
        shape.a_row = shape.a_column == 1 ? shape.k : 1;
        shape.a_column = shape.a_column == 1 ? 1 : shape.m;
    }
    if (self->converts_b) {
        shape.b_row = shape.b_column == 1 ? columns : 1;
        shape.b_column = shape.b_column == 1 ? 1 : shape.k;
    }
    return shape;
}

static bool is_dense(int64_t rows, int64_t columns, int64_t row, int64_t column)
{
    return (column == 1 && row == columns) || (row == 1 && column == rows);
}

static int64_t block_columns(int64_t n, int64_t k)
{
    int64_t columns = BLOCK_NUMBERS / k < n / BLOCK_PARTS ? BLOCK_NUMBERS / k : n / BLOCK_PARTS;
    columns = columns < BLOCK_COLUMNS ? columns / BLOCK_COLUMNS_LEAST * BLOCK_COLUMNS_LEAST : BLOCK_COLUMNS;
    columns = columns > BLOCK_COLUMNS_LEAST ? columns : BLOCK_COLUMNS_LEAST;
    return columns < n ? columns : n;
}

static int create_blocks(struct fuse_product *self, struct fuse_error *error)
{
    const struct fuse_products *const products = self->products;
    const struct fuse_product_shape *const shape = &self->shape;
    const bool is_whole = shape->worker_count > 0 || !shape->is_bfloat16;
    const int workers = shape->worker_count > 0 ? shape->worker_count : is_whole ? 1 : products->thread_count;
    const int inner_threads = shape->worker_count > 0 || !is_whole ? 1 : products->thread_count;
    self->block_columns = is_whole ? shape->n : block_columns(shape->n, shape->k);
    self->converts_a = shape->is_bfloat16 && (!shape->a_is_bfloat16 || products->narrow != dnnl_bf16 ||
                                              !is_dense(shape->m, shape->k, shape->a_row, shape->a_column));
    self->converts_b = shape->is_bfloat16 && (!shape->b_is_bfloat16 || products->narrow != dnnl_bf16 ||
                                              !is_dense(shape->k, self->block_columns, shape->b_row, shape->b_column));
    self->gathers_c = shape->is_bfloat16 && fuse_product_c_row(shape) != self->block_columns;
    const int64_t rest = shape->n % self->block_columns;
    const struct fuse_product_shape block = block_shape(self, self->block_columns), last = block_shape(self, rest);
    FUSE_TRY(create_matmul(products, &block, workers, inner_threads, &self->block, error));
    if (rest > 0)
        FUSE_TRY(create_matmul(products, &last, workers, inner_threads, &self->last, error));
    self->a_bytes = self->converts_a ? narrow_bytes(products, shape->m * shape->k) : 0;
    self->b_bytes = self->converts_b ? narrow_bytes(products, self->block_columns * shape->k) : 0;
    const uint64_t c_size = shape->c_is_bfloat16 ? sizeof(uint16_t) : sizeof(float);
    self->c_bytes = self->gathers_c ? fuse_round_up((uint64_t)(shape->m * self->block_columns) * c_size, 64) : 0;
    const uint64_t scratch =
        self->block.scratch_bytes > self->last.scratch_bytes ? self->block.scratch_bytes : self->last.scratch_bytes;
    self->worker_bytes = self->b_bytes + self->c_bytes + fuse_round_up(scratch, 64);
    self->workspace_bytes = self->a_bytes + self->worker_bytes * (uint64_t)(is_whole ? 1 : products->thread_count);
    return FUSERUN_OK;
}

int fuse_product_create(struct fuse_products *products, const struct fuse_product_shape *shape,
                        struct fuse_product **product, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_product *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return products->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a matrix product");
    self->products = products;
    self->shape = *shape;
    self->is_tiles = fuse_product_uses_tiles(products, shape);
    if (!self->is_tiles)
        status = create_blocks(self, error);
    if (status == FUSERUN_ERROR_UNSUPPORTED && shape->is_bfloat16) { /* by this version of the library */
        free_matmul(&self->block);
        free_matmul(&self->last);
        self->is_tiles = true;
        status = FUSERUN_OK;
    }
    if (self->is_tiles)
        self->workspace_bytes = fuse_tiles_workspace_bytes(shape, products->thread_count);
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
    free_matmul(&self->block);
    free_matmul(&self->last);
    free(self);
    *product = NULL;
}

uint64_t fuse_product_workspace_bytes(const struct fuse_product *product)
{
    return product->workspace_bytes;
}

/* `count` numbers as they are multiplied. */
static void convert_run(const struct fuse_products *products, void *to, int64_t at, const void *from, bool is_bfloat16,
                        int64_t count)
{
    if (products->narrow == dnnl_bf16 && is_bfloat16) {
        memcpy((uint16_t *)to + at, from, (size_t)count * sizeof(uint16_t));
    } else if (products->narrow == dnnl_bf16) {
        fuse_narrow((uint16_t *)to + at, from, count);
    } else if (is_bfloat16) {
        fuse_widen((float *)to + at, from, count);
    } else {
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[at + i] = fuse_widen_one(fuse_narrow_one(((const float *)from)[i]));
    }
}

/* One call, or with worker_count 0 all of its blocks. */
struct call {
    const struct fuse_product *self;
    const void *a; /* converted */
    const void *b;
    const float *bias;
    void *c;
    char *workspace; /* a worker's, or all workers' */
    struct fuse_error *error;
    int status; /* the first failure's */
};

static const void *convert_a(const struct fuse_product *self, const void *a, void *to)
{
    const struct fuse_product_shape *const shape = &self->shape;
    const bool by_rows = shape->a_column == 1;
    const int64_t count = by_rows ? shape->m : shape->k, run = by_rows ? shape->k : shape->m;
    for (int64_t i = 0; i < count; i++)
        convert_run(self->products, to, i * run, fuse_product_a(shape, a, by_rows ? i : 0, by_rows ? 0 : i),
                    shape->a_is_bfloat16, run);
    return to;
}

static const void *convert_b(const struct fuse_product *self, const void *b, int64_t begin, int64_t columns, void *to)
{
    const struct fuse_product_shape *const shape = &self->shape;
    const bool by_rows = shape->b_column == 1;
    const int64_t count = by_rows ? shape->k : columns, run = by_rows ? columns : shape->k;
    for (int64_t i = 0; i < count; i++)
        convert_run(self->products, to, i * run, fuse_product_b(shape, b, by_rows ? i : 0, by_rows ? begin : begin + i),
                    shape->b_is_bfloat16, run);
    return to;
}

/* Columns [begin, begin + columns) of c to a dense block, or back. */
static void copy_block(const struct fuse_product_shape *shape, void *c, int64_t begin, int64_t columns, char *block,
                       bool is_back)
{
    const size_t bytes = (size_t)columns * (shape->c_is_bfloat16 ? sizeof(uint16_t) : sizeof(float));
    for (int64_t i = 0; i < shape->m; i++) {
        void *const row = fuse_product_c(shape, c, i, begin);
        if (is_back)
            memcpy(row, block + (size_t)i * bytes, bytes);
        else
            memcpy(block + (size_t)i * bytes, row, bytes);
    }
}

/* Columns [task * block_columns, ...) of c. */
static int run_block(const struct call *call, int64_t task, int worker, char *workspace, struct fuse_error *error)
{
    const struct fuse_product *const self = call->self;
    const int64_t begin = task * self->block_columns, left = self->shape.n - begin;
    const bool is_last = left < self->block_columns;
    const int64_t columns = is_last ? left : self->block_columns;
    const void *const b = self->converts_b ? convert_b(self, call->b, begin, columns, workspace)
                                           : fuse_product_b(&self->shape, call->b, 0, begin);
    char *const block = workspace + self->b_bytes;
    if (self->gathers_c && self->shape.accumulate)
        copy_block(&self->shape, call->c, begin, columns, block, false);
    FUSE_TRY(run_matmul(is_last ? &self->last : &self->block, worker, call->a, b,
                        call->bias != NULL ? call->bias + begin : NULL,
                        self->gathers_c ? block : fuse_product_c(&self->shape, call->c, 0, begin),
                        workspace + self->b_bytes + self->c_bytes, error));
    if (self->gathers_c)
        copy_block(&self->shape, call->c, begin, columns, block, true);
    return FUSERUN_OK;
}

static void run_task(const void *context, int64_t task, int worker)
{
    struct call *const call = *(struct call *const *)context;
    struct fuse_error error = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_error, text)};
    const int status =
        run_block(call, task, worker, call->workspace + (uint64_t)worker * call->self->worker_bytes, &error);
    if (status != FUSERUN_OK)
        fuse_keep_failure(&call->status, call->error, status, &error);
}

int fuse_product_run(const struct fuse_product *product, int worker, const void *a, const void *b, const float *bias,
                     void *c, void *workspace, struct fuse_error *error)
{
    const struct fuse_product_shape *const shape = &product->shape;
    if (product->is_tiles) {
        fuse_tiles_product(shape, product->products->thread_count, a, b, bias, c, workspace);
        return FUSERUN_OK;
    }
    struct call call = {.self = product,
                        .a = product->converts_a ? convert_a(product, a, workspace) : a,
                        .b = b,
                        .bias = bias,
                        .c = c,
                        .workspace = (char *)workspace + product->a_bytes,
                        .error = error,
                        .status = FUSERUN_OK};
    if (shape->worker_count > 0 || !shape->is_bfloat16)
        return run_block(&call, 0, worker, call.workspace, error);
    struct call *const context = &call;
    fuse_threads_tasks(product->products->thread_count,
                       (shape->n + product->block_columns - 1) / product->block_columns, run_task, &context);
    return call.status;
}
