/* oneDNN's matrix product by itself. */
#include "kernels.h"

#ifdef FUSE_BENCH_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#include <stdio.h>
#include <stdlib.h>

enum layout { AS_IT_LIES, ROW_MAJOR, LIBRARY_S_OWN, LAYOUTS };

static void must(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "oneDNN could not %s (%d)\n", what, (int)status);
    exit(1);
}

static void describe(dnnl_memory_desc_t *matrix, int64_t rows, int64_t columns, bool is_transposed, enum layout layout)
{
    const dnnl_dims_t sizes = {rows, columns};
    const dnnl_dims_t row_major = {columns, 1}, transposed = {1, rows};
    if (layout == LIBRARY_S_OWN) {
        must(dnnl_memory_desc_init_by_tag(matrix, 2, sizes, dnnl_f32, dnnl_format_tag_any), "describe a matrix");
        return;
    }
    const bool is_swapped = layout == AS_IT_LIES && is_transposed;
    must(dnnl_memory_desc_init_by_strides(matrix, 2, sizes, dnnl_f32, is_swapped ? transposed : row_major),
         "describe a matrix");
}

/* The library's own memory holds whatever was there before: perhaps numbers that take a processor much longer. */
static void fill(dnnl_memory_t memory, const dnnl_memory_desc_t *matrix)
{
    void *values = NULL;
    must(dnnl_memory_get_data_handle(memory, &values), "give its memory");
    const size_t count = dnnl_memory_desc_get_size(matrix) / sizeof(float);
    for (size_t i = 0; i < count; i++)
        ((float *)values)[i] = fuse_bench_value((int64_t)i);
}

/* Memory for a factor in the layout that the primitive wants: the caller's where it fits, else the library's own. */
static dnnl_memory_t memory_for(dnnl_primitive_desc_t description, dnnl_query_t what, dnnl_engine_t engine,
                                const float *values, enum layout layout)
{
    union {
        const float *from;
        void *to;
    } pointer = {values};
    const dnnl_memory_desc_t *matrix = dnnl_primitive_desc_query_md(description, what, 0);
    dnnl_memory_t memory = NULL;
    must(dnnl_memory_create(&memory, matrix, engine, layout == LIBRARY_S_OWN ? DNNL_MEMORY_ALLOCATE : pointer.to),
         "make a matrix");
    if (layout == LIBRARY_S_OWN)
        fill(memory, matrix);
    return memory;
}

static double best_of_layout(const struct fuse_bench_product *product, const float *a, const float *b, float *c,
                             int repeats, enum layout layout)
{
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_matmul_desc_t matmul;
    dnnl_memory_desc_t a_matrix, b_matrix, c_matrix;
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_t primitive = NULL;
    must(dnnl_engine_create(&engine, dnnl_cpu, 0), "make an engine");
    must(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "make a stream");
    describe(&a_matrix, product->m, product->k, product->is_a_transposed, layout);
    describe(&b_matrix, product->k, product->n, product->is_b_transposed, layout);
    describe(&c_matrix, product->m, product->n, false, ROW_MAJOR);
    must(dnnl_matmul_desc_init(&matmul, &a_matrix, &b_matrix, NULL, &c_matrix), "describe a product");
    must(dnnl_primitive_desc_create(&description, &matmul, NULL, engine, NULL), "find a kernel");
    must(dnnl_primitive_create(&primitive, description), "make a product");
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, memory_for(description, dnnl_query_src_md, engine, a, layout)},
        {DNNL_ARG_WEIGHTS, memory_for(description, dnnl_query_weights_md, engine, b, layout)},
        {DNNL_ARG_DST, memory_for(description, dnnl_query_dst_md, engine, c, ROW_MAJOR)},
    };
    double best = 1e30;
    for (int i = 0; i <= repeats; i++) { /* the first warms up */
        const double begin = fuse_bench_seconds();
        must(dnnl_primitive_execute(primitive, stream, 3, arguments), "multiply");
        must(dnnl_stream_wait(stream), "finish");
        const double taken = fuse_bench_seconds() - begin;
        best = i > 0 && taken < best ? taken : best;
    }
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(arguments[i].memory);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(description);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return best;
}

double fuse_bench_library_seconds(const struct fuse_bench_product *product, const float *a, const float *b, float *c,
                                  int repeats)
{
    double best = 1e30;
    for (enum layout layout = AS_IT_LIES; layout < LAYOUTS; layout++) {
        const double taken = best_of_layout(product, a, b, c, repeats, layout);
        best = taken < best ? taken : best;
    }
    return best;
}
#else
double fuse_bench_library_seconds(const struct fuse_bench_product *product, const float *a, const float *b, float *c,
                                  int repeats)
{
    (void)product, (void)a, (void)b, (void)c, (void)repeats;
    return 0;
}
#endif
