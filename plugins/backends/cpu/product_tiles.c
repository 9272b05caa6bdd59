/* Blocks as in K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34 (2008): a
 * block of a stays in the second-level cache, a strip of b, one tile wide, in the first, a tile of c in registers. */
#include "product_tiles.h"
#include "threads.h"

#include <string.h>

#define BLOCK_ROWS 252 /* a multiple of every KERNEL_ROWS */
#define BLOCK_DEPTH 256
#define MAX_TILE_WIDTH 32
#define STRIPS 4        /* of b, packed side by side */
#define PART_ROWS 12    /* threads share c in multiples of every tile's rows, */
#define PART_COLUMNS 32 /* or of every tile's columns */
#define SERIAL_PRODUCT (128.0 * 1024.0)
#define LIBRARY_PRODUCT 1e6 /* multiplications from which a library made for AVX-512 is worth its call */

/* Even blocks: ceil(size / most) of them, each a multiple of `multiple`. */
static int64_t block_size(int64_t size, int64_t most, int64_t multiple)
{
    const int64_t blocks = (size + most - 1) / most;
    const int64_t even = (size + blocks - 1) / blocks;
    return (even + multiple - 1) / multiple * multiple;
}

/* Lines of b that are packed next, fetched while this strip is computed: b is a weight, which comes from memory, and
 * its rows lie too far apart for the processor to foresee. */
struct ahead {
    const char *row;
    int64_t row_bytes, stride_bytes, rows_left;
    int64_t at; /* in the row */
    int64_t lines_each;
};

#define LINE_BYTES 64

/* What fetches columns [begin, begin + width) of `depth` rows of b from row k on, in `tiles` steps. */
static inline struct ahead look_ahead(const struct fuse_product_shape *shape, const float *b, int64_t k, int64_t depth,
                                      int64_t begin, int64_t end, int64_t tiles, int64_t width)
{
    const int64_t columns = end - begin < width ? end - begin : width;
    const int64_t rows = shape->k - k < depth ? shape->k - k : depth;
    if (rows <= 0)
        return (struct ahead){0};
    const bool is_row_major = shape->b_column == 1;
    const int64_t row_bytes = (is_row_major ? columns : rows) * (int64_t)sizeof(float);
    const int64_t count = is_row_major ? rows : columns;
    return (struct ahead){
        .row = (const char *)(b + k * shape->b_row + begin * shape->b_column),
        .row_bytes = row_bytes,
        .stride_bytes = (is_row_major ? shape->b_row : shape->b_column) * (int64_t)sizeof(float),
        .rows_left = count,
        .lines_each = (count * ((row_bytes + LINE_BYTES - 1) / LINE_BYTES) + tiles - 1) / tiles,
    };
}

static inline __attribute__((always_inline)) void fetch_ahead(struct ahead *ahead)
{
    for (int64_t i = 0; i < ahead->lines_each && ahead->rows_left > 0; i++) {
        __builtin_prefetch(ahead->row + ahead->at, 0, 2);
        ahead->at += LINE_BYTES;
        if (ahead->at >= ahead->row_bytes) {
            ahead->at = 0;
            ahead->row += ahead->stride_bytes;
            ahead->rows_left--;
        }
    }
}

typedef float vector_4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t index_4 __attribute__((vector_size(16)));

#if defined(__clang__)
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (index_4){i, j, k, l})
#endif

/* to (count, 4), rows to_stride apart, = from (4, count)^T, rows from_stride apart. */
static inline __attribute__((always_inline)) void transpose_4(const float *from, int64_t from_stride, int64_t count,
                                                              float *to, int64_t to_stride)
{
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const vector_4 a = *(const vector_4 *)(from + i), b = *(const vector_4 *)(from + from_stride + i);
        const vector_4 c = *(const vector_4 *)(from + 2 * from_stride + i);
        const vector_4 d = *(const vector_4 *)(from + 3 * from_stride + i);
        const vector_4 ab_low = SHUFFLE(a, b, 0, 4, 1, 5), ab_high = SHUFFLE(a, b, 2, 6, 3, 7);
        const vector_4 cd_low = SHUFFLE(c, d, 0, 4, 1, 5), cd_high = SHUFFLE(c, d, 2, 6, 3, 7);
        *(vector_4 *)(to + i * to_stride) = SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
        *(vector_4 *)(to + (i + 1) * to_stride) = SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
        *(vector_4 *)(to + (i + 2) * to_stride) = SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
        *(vector_4 *)(to + (i + 3) * to_stride) = SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
    }
    for (; i < count; i++)
        for (int64_t j = 0; j < 4; j++)
            to[i * to_stride + j] = from[j * from_stride + i];
}

#define KERNEL_NAME(stem) stem##_plain
#define KERNEL_TARGET
#define KERNEL_LANES 4
#define KERNEL_ROWS 6
#include "product_tiles_kernel.h"

#if defined(__x86_64__)
#define KERNEL_NAME(stem) stem##_avx2
#define KERNEL_TARGET __attribute__((target("avx2,fma")))
#define KERNEL_LANES 8
#define KERNEL_ROWS 6
#include "product_tiles_kernel.h"

#define KERNEL_NAME(stem) stem##_avx512
#define KERNEL_TARGET __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma")))
#define KERNEL_LANES 16
#define KERNEL_ROWS 12
#include "product_tiles_kernel.h"
#endif

typedef void columns_function(const struct fuse_product_shape *shape, int64_t begin, int64_t end, const float *a,
                              const float *b, const float *shared_b, const float *bias, float *c, float *workspace);
typedef void share_function(const struct fuse_product_shape *shape, int64_t begin, int64_t end, const float *b,
                            float *shared_b);

struct loops {
    columns_function *columns;
    share_function *share_b;
};

static bool has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#else
    return false;
#endif
}

static struct loops choose(void)
{
#if defined(__x86_64__)
    if (has_avx512())
        return (struct loops){columns_avx512, share_b_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (struct loops){columns_avx2, share_b_avx2};
#endif
    return (struct loops){columns_plain, share_b_plain};
}

static double multiplications(const struct fuse_product_shape *shape)
{
    return (double)shape->m * (double)shape->n * (double)shape->k;
}

/* Measured on one core of a Zen 3 (AVX2), GFLOP/s forward / dx / dw of (197, 1024) x (1024, 4096): these tiles 65 / 71
 * / 68, OpenBLAS 0.3.21 52 / 64 / 69, oneDNN 2.6.3 50 / 31 / 20. On AVX-512 oneDNN has kernels made for it. */
bool fuse_tiles_pay(const struct fuse_product_shape *shape)
{
#ifdef FUSE_TILES_NEVER /* tests of the libraries */
    (void)shape;
    return false;
#else
    return !has_avx512() || multiplications(shape) <= LIBRARY_PRODUCT;
#endif
}

int fuse_tiles_thread_count(const struct fuse_product_shape *shape, int thread_count)
{
    return shape->worker_count > 0 || multiplications(shape) <= SERIAL_PRODUCT ? 1 : thread_count;
}

/* One thread's: strips of b, then a block of a, of whichever part of a's rows it gets. */
static uint64_t thread_bytes(const struct fuse_product_shape *shape)
{
    const uint64_t rows = (uint64_t)(shape->m < BLOCK_ROWS ? (shape->m + 11) / 12 * 12 : BLOCK_ROWS);
    const uint64_t depth = (uint64_t)block_size(shape->k, BLOCK_DEPTH, 1);
    return ((uint64_t)STRIPS * MAX_TILE_WIDTH + rows) * depth * sizeof(float) / 64 * 64 + 64;
}

uint64_t fuse_tiles_workspace_bytes(const struct fuse_product_shape *shape, int thread_count)
{
    return thread_bytes(shape) * (uint64_t)fuse_tiles_thread_count(shape, thread_count);
}

struct run {
    const struct fuse_product_shape *shape;
    columns_function *columns;
    const float *a, *b, *bias;
    float *c;
    float *workspace;
    uint64_t thread_bytes;
    int64_t part; /* columns, or where c is narrow rows, that one task forms */
    bool by_rows;
};

static void run_part(const void *context, int64_t task, int worker)
{
    const struct run *const run = context;
    float *const workspace = run->workspace + (uint64_t)worker * (run->thread_bytes / sizeof(float));
    const int64_t size = run->by_rows ? run->shape->m : run->shape->n, begin = task * run->part;
    const int64_t end = begin + run->part < size ? begin + run->part : size;
    if (!run->by_rows) {
        run->columns(run->shape, begin, end, run->a, run->b, NULL, run->bias, run->c, workspace);
        return;
    }
    struct fuse_product_shape shape = *run->shape;
    shape.m = end - begin;
    run->columns(&shape, 0, shape.n, run->a + begin * shape.a_row, run->b, NULL, run->bias,
                 run->c + begin * fuse_product_c_row(&shape), workspace);
}

void fuse_tiles_product(const struct fuse_product_shape *shape, int thread_count, const float *a, const float *b,
                        const float *bias, float *c, void *workspace)
{
    const int64_t threads = fuse_tiles_thread_count(shape, thread_count);
    struct run run = {.shape = shape,
                      .columns = choose().columns,
                      .a = a,
                      .b = b,
                      .bias = bias,
                      .c = c,
                      .workspace = workspace,
                      .thread_bytes = thread_bytes(shape),
                      .by_rows = shape->m > shape->n};
    if (threads == 1) {
        run.columns(shape, 0, shape->n, a, b, NULL, bias, c, workspace);
        return;
    }
    const int64_t size = run.by_rows ? shape->m : shape->n, unit = run.by_rows ? PART_ROWS : PART_COLUMNS;
    const int64_t units = (size + unit - 1) / unit;
    run.part = (units + threads - 1) / threads * unit;
    fuse_threads_tasks((int)threads, (size + run.part - 1) / run.part, run_part, &run);
}

/* ---- products with the same b -------------------------------------------------------------------------------- */

uint64_t fuse_tiles_shared_bytes(const struct fuse_product_shape *shape)
{
    const uint64_t columns = (uint64_t)((shape->n + MAX_TILE_WIDTH - 1) / MAX_TILE_WIDTH * MAX_TILE_WIDTH);
    return columns * (uint64_t)shape->k * sizeof(float);
}

struct share {
    const struct fuse_product_shape *shape;
    share_function *share_b;
    const float *b;
    float *shared_b;
};

static void share_range(const void *context, int64_t begin, int64_t end)
{
    const struct share *const self = context;
    self->share_b(self->shape, begin, end, self->b, self->shared_b);
}

void fuse_tiles_share_b(const struct fuse_product_shape *shape, int thread_count, const float *b, float *shared_b)
{
    const struct share self = {shape, choose().share_b, b, shared_b};
    fuse_threads_split(thread_count, shape->n, MAX_TILE_WIDTH, FUSE_SERIAL_ELEMENTS / shape->k, share_range, &self);
}

void fuse_tiles_product_shared(const struct fuse_product_shape *shape, const float *a, const float *shared_b, float *c,
                               void *workspace)
{
    choose().columns(shape, 0, shape->n, a, NULL, shared_b, NULL, c, workspace);
}
