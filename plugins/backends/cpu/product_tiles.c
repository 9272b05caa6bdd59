/* Blocks as in K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34 (2008): a
 * block of a stays in the second-level cache, a strip of b, one tile wide, in the first, a tile of c in registers. */
#include "product_tiles.h"
#include "bfloat16.h"
#include "product_tiles_ahead.h"
#include "threads.h"

#include <string.h>

#define BLOCK_ROWS 252 /* a multiple of every KERNEL_ROWS */
#define BLOCK_DEPTH 256
#define FEW_ROWS 64       /* of c; for more it pays to pack a column-major b */
#define BLOCK_COLUMNS 512 /* a multiple of every tile's columns */
#define MAX_TILE_WIDTH 32
#define MIN_TILE_WIDTH 8
#define STRIPS 4           /* of a row-major b, packed side by side for few rows */
#define DIRECT_COLUMNS 224 /* of c; for no more, packing a row-major a costs more than it saves */
#define PART_ROWS 12       /* threads share c in multiples of every tile's rows, */
#define PART_COLUMNS 32    /* or of every tile's columns */
#define SERIAL_PRODUCT (128.0 * 1024.0)
#define LIBRARY_PRODUCT 1e6 /* multiplications from which a library that multiplies bfloat16 is worth its call */

/* Even blocks: ceil(size / most) of them, each a multiple of `multiple`. */
static int64_t block_size(int64_t size, int64_t most, int64_t multiple)
{
    const int64_t blocks = (size + most - 1) / most;
    const int64_t even = (size + blocks - 1) / blocks;
    return (even + multiple - 1) / multiple * multiple;
}

#define NEAR_FLOATS 262144 /* of a b that stays in a core's caches */

/* Whether a row-major b comes from memory, and strips of it may be packed together. */
static bool comes_in_pieces(const struct fuse_product_shape *shape)
{
    return shape->b_column == 1 && shape->n * shape->k > NEAR_FLOATS;
}

/* One tile of c, and what is fetched from memory while it is made. */
struct tile {
    int64_t count; /* of products that are summed up */
    const float *a;
    int64_t a_row; /* 0: packed */
    const float *b;
    bool add; /* to what c holds */
    const float *bias;
    float *c;
    int64_t c_row;
    struct fetch fetch, beside;
    const float *next_c; /* so many rows of the c that is made next: next_fetches of them for FETCH_STEPS steps */
    int64_t next_rows, next_fetches;
    struct copy *copy; /* as far as it has come */
};

typedef void tile_function(const struct tile *tile);

/* What a packed tile does between its steps besides fetching b and c and copying b. It is compiled by itself: what a
 * tile does not do must not cost it anything. */
enum beside {
    BESIDE_NOTHING,
    BESIDE_FETCHING, /* tile.beside */
    BESIDE_COUNT
};

/* Rows cut into as few tiles as possible, whose heights differ by one at most: `tall` of height + 1, then the rest. */
struct cut {
    int64_t tiles, tall, height;
};

static inline struct cut cut_rows(int64_t rows, int64_t most)
{
    const int64_t tiles = (rows + most - 1) / most;
    return (struct cut){tiles, rows % tiles, rows / tiles};
}

static inline int64_t tile_rows(struct cut cut, int64_t tile)
{
    return tile < cut.tall ? cut.height + 1 : cut.height;
}

/* fuse_narrow_one() for the bits of many floats at once, the result in their upper halves. */
#define ROUND_BITS(type, bits)                                                                                         \
    ((((type)(((bits)&0x7fffffffu) > 0x7f800000u) & ((bits) | 0x400000u)) |                                            \
      (~(type)(((bits)&0x7fffffffu) > 0x7f800000u) & ((bits) + 0x7fffu + (((bits) >> 16) & 1u)))) &                    \
     0xffff0000u)

typedef void pack_function(const struct fuse_product_shape *shape, const void *from, int64_t size, int64_t other_size,
                           float *to);

/* Where a row-major a comes from that is packed tile by tile. */
struct source {
    const struct fuse_product_shape *shape;
    pack_function *pack_a;
    const void *a;
    float *packed;
};

/* `count` of its rows: a line of each for FETCH_STEPS steps. */
static inline struct fetch fetch_rows(const struct source *source, int64_t row, int64_t count)
{
    const int64_t size = (int64_t)(source->shape->a_is_bfloat16 ? sizeof(uint16_t) : sizeof(float));
    return (struct fetch){.at = fuse_product_a(source->shape, source->a, row, 0),
                          .count = count,
                          .stride_bytes = source->shape->a_row * size,
                          .run_bytes = FETCH_STEPS * size};
}

/* Not under sanitizers, whose checks would make compiling this take minutes. */
#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define UNROLL_8 _Pragma("clang loop unroll(disable)")
#define UNROLL_16 _Pragma("clang loop unroll(disable)")
#else
#define UNROLL_8 _Pragma("clang loop unroll_count(8)")
#define UNROLL_16 _Pragma("clang loop unroll(full)")
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL_8 _Pragma("GCC unroll 1")
#define UNROLL_16 _Pragma("GCC unroll 1")
#else
#define UNROLL_8 _Pragma("GCC unroll 8")
#define UNROLL_16 _Pragma("GCC unroll 16")
#endif

#define KERNEL_NAME(stem) stem##_plain
#define KERNEL_TARGET
#define KERNEL_LANES 4
#define KERNEL_ROWS 6
#include "product_tiles_kernel.h"

#if defined(__x86_64__)
/* prefetchw: where a processor with AVX2 does not know it, it does nothing. */
#define KERNEL_NAME(stem) stem##_avx2
#define KERNEL_TARGET __attribute__((target("avx2,fma,prfchw")))
#define KERNEL_LANES 8
#define KERNEL_ROWS 6
#include "product_tiles_kernel.h"

#define KERNEL_NAME(stem) stem##_avx512
#define KERNEL_TARGET __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma,prfchw")))
#define KERNEL_LANES 16
#define KERNEL_ROWS 12
#include "product_tiles_kernel.h"
#endif

typedef void columns_function(const struct fuse_product_shape *shape, int64_t begin, int64_t end, const void *a,
                              const void *b, const struct shared *shared, const float *bias, bool accumulate, float *c,
                              int64_t c_row, float *workspace);

struct loops {
    columns_function *columns;
    columns_function *few_rows;
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
        return (struct loops){columns_avx512, few_rows_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (struct loops){columns_avx2, few_rows_avx2};
#endif
    return (struct loops){columns_plain, few_rows_plain};
}

static double multiplications(const struct fuse_product_shape *shape)
{
    return (double)shape->m * (double)shape->n * (double)shape->k;
}

/* Measured, GFLOP/s forward / dx / dw of (197, 1024) x (1024, 4096). One core of a Zen 3 (AVX2): these tiles 65 / 71 /
 * 68, OpenBLAS 0.3.21 52 / 64 / 69, oneDNN 2.6.3 50 / 31 / 20. Two cores of a Xeon with AVX-512: these tiles 345 / 331
 * / 334, oneDNN 327 / 316 / 308. oneDNN also multiplies bfloat16, where a processor does; these tiles only round to it.
 */
bool fuse_tiles_pay(const struct fuse_product_shape *shape)
{
#ifdef FUSE_TILES_NEVER /* tests of the libraries */
    (void)shape;
    return false;
#else
    return !shape->is_bfloat16 || multiplications(shape) <= LIBRARY_PRODUCT;
#endif
}

int fuse_tiles_thread_count(const struct fuse_product_shape *shape, int thread_count)
{
    return shape->worker_count > 0 || multiplications(shape) <= SERIAL_PRODUCT ? 1 : thread_count;
}

/* Whether c's transpose is made, of the whole product's shape and so for every thread's part of it. */
static bool has_few_rows(const struct fuse_product_shape *shape)
{
    return shape->m <= FEW_ROWS && shape->b_column != 1 && !shape->is_bfloat16;
}

/* One thread's: strips of b, the ones that are multiplied and the ones that come next, then a block of a, of whichever
 * part of a's rows it gets. */
static uint64_t packing_bytes(const struct fuse_product_shape *shape)
{
    if (has_few_rows(shape))
        return (uint64_t)(shape->m + MAX_TILE_WIDTH - 1) / MAX_TILE_WIDTH * MAX_TILE_WIDTH * (uint64_t)shape->k *
               sizeof(float);
    const uint64_t rows = (uint64_t)(shape->m < BLOCK_ROWS ? (shape->m + 11) / 12 * 12 : BLOCK_ROWS);
    const uint64_t depth = (uint64_t)block_size(shape->k, BLOCK_DEPTH, 1);
    const uint64_t columns = 2 * (comes_in_pieces(shape) ? STRIPS : 1) * MAX_TILE_WIDTH;
    return (columns + rows) * depth * sizeof(float) / 64 * 64 + 64;
}

/* And behind it, where c is bfloat16, a block of c, whose sums are made in float and rounded once. */
static uint64_t thread_bytes(const struct fuse_product_shape *shape)
{
    const uint64_t rows = (uint64_t)(shape->m < BLOCK_ROWS ? shape->m : BLOCK_ROWS);
    const uint64_t columns = (uint64_t)(shape->n < BLOCK_COLUMNS ? shape->n : BLOCK_COLUMNS);
    return packing_bytes(shape) + (shape->c_is_bfloat16 ? (rows * columns * sizeof(float) + 63) / 64 * 64 : 0);
}

uint64_t fuse_tiles_workspace_bytes(const struct fuse_product_shape *shape, int thread_count)
{
    return thread_bytes(shape) * (uint64_t)fuse_tiles_thread_count(shape, thread_count);
}

struct run {
    const struct fuse_product_shape *shape;
    columns_function *columns;
    const void *a, *b;
    const float *bias;
    void *c;
    char *workspace;
    uint64_t packing_bytes, thread_bytes;
    int64_t part; /* columns, or where c is narrow rows, that one task forms */
    bool by_rows;
};

/* Rows [begin, end) of c, `columns` of its columns from `column` on: through a block in floats. */
static void run_block(const struct run *run, int64_t begin, int64_t end, int64_t column, int64_t columns,
                      char *workspace)
{
    struct fuse_product_shape shape = *run->shape;
    float *const block = (float *)(void *)(workspace + run->packing_bytes);
    shape.m = end - begin;
    /* whole rows lie one behind the other */
    const int64_t each = columns == fuse_product_c_row(&shape) ? end - begin : 1;
    for (int64_t i = begin; i < end && shape.accumulate; i += each)
        fuse_widen(block + (i - begin) * columns, fuse_product_c(&shape, run->c, i, column), each * columns);
    run->columns(&shape, column, column + columns, fuse_product_a(&shape, run->a, begin, 0), run->b, NULL, run->bias,
                 shape.accumulate, block, columns, (float *)(void *)workspace);
    for (int64_t i = begin; i < end; i += each)
        fuse_narrow(fuse_product_c(&shape, run->c, i, column), block + (i - begin) * columns, each * columns);
}

/* Rows [first, last) and columns [begin, end) of c. */
static void run_range(const struct run *run, int64_t first, int64_t last, int64_t begin, int64_t end, char *workspace)
{
    struct fuse_product_shape shape = *run->shape;
    if (!shape.c_is_bfloat16) {
        shape.m = last - first;
        run->columns(&shape, begin, end, fuse_product_a(&shape, run->a, first, 0), run->b, NULL, run->bias,
                     shape.accumulate, fuse_product_c(&shape, run->c, first, begin), fuse_product_c_row(&shape),
                     (float *)(void *)workspace);
        return;
    }
    for (int64_t j = begin; j < end; j += BLOCK_COLUMNS)
        for (int64_t i = first; i < last; i += BLOCK_ROWS)
            run_block(run, i, i + BLOCK_ROWS < last ? i + BLOCK_ROWS : last, j,
                      j + BLOCK_COLUMNS < end ? BLOCK_COLUMNS : end - j, workspace);
}

static void run_part(const void *context, int64_t task, int worker)
{
    const struct run *const run = context;
    char *const workspace = run->workspace + (uint64_t)worker * run->thread_bytes;
    const int64_t size = run->by_rows ? run->shape->m : run->shape->n, begin = task * run->part;
    const int64_t end = begin + run->part < size ? begin + run->part : size;
    if (run->by_rows)
        run_range(run, begin, end, 0, run->shape->n, workspace);
    else
        run_range(run, 0, run->shape->m, begin, end, workspace);
}

void fuse_tiles_product(const struct fuse_product_shape *shape, int thread_count, const void *a, const void *b,
                        const float *bias, void *c, void *workspace)
{
    const int64_t threads = fuse_tiles_thread_count(shape, thread_count);
    struct run run = {.shape = shape,
                      .columns = has_few_rows(shape) ? choose().few_rows : choose().columns,
                      .a = a,
                      .b = b,
                      .bias = bias,
                      .c = c,
                      .workspace = workspace,
                      .packing_bytes = packing_bytes(shape),
                      .thread_bytes = thread_bytes(shape),
                      .by_rows = shape->m > shape->n};
    if (threads == 1) {
        run_range(&run, 0, shape->m, 0, shape->n, run.workspace);
        return;
    }
    const int64_t size = run.by_rows ? shape->m : shape->n, unit = run.by_rows ? PART_ROWS : PART_COLUMNS;
    const int64_t units = (size + unit - 1) / unit;
    run.part = (units + threads - 1) / threads * unit;
    fuse_threads_tasks((int)threads, (size + run.part - 1) / run.part, run_part, &run);
}

/* ---- products with the same b -------------------------------------------------------------------------------- */

/* Of the strips alone. */
static uint64_t shared_strip_bytes(const struct fuse_product_shape *shape)
{
    const uint64_t columns = (uint64_t)((shape->n + MAX_TILE_WIDTH - 1) / MAX_TILE_WIDTH * MAX_TILE_WIDTH);
    return columns * (uint64_t)shape->k * sizeof(float);
}

static uint64_t state_count(const struct fuse_product_shape *shape)
{
    const int64_t block_depth = block_size(shape->k, BLOCK_DEPTH, 1);
    return (uint64_t)((shape->k + block_depth - 1) / block_depth * (shape->n / MIN_TILE_WIDTH + 1));
}

uint64_t fuse_tiles_shared_bytes(const struct fuse_product_shape *shape)
{
    return shared_strip_bytes(shape) + (state_count(shape) + 63) / 64 * 64;
}

static unsigned char *shared_states(const struct fuse_product_shape *shape, void *shared_b)
{
    return (unsigned char *)shared_b + shared_strip_bytes(shape);
}

void fuse_tiles_share_b(const struct fuse_product_shape *shape, void *shared_b)
{
    memset(shared_states(shape, shared_b), STRIP_FREE, state_count(shape));
}

void fuse_tiles_product_shared(const struct fuse_product_shape *shape, int worker, const void *a, const void *b,
                               void *shared_b, const struct fuse_spans *afterwards, float *c, void *workspace)
{
    const struct shared shared = {
        .packed = shared_b, .states = shared_states(shape, shared_b), .worker = worker, .afterwards = afterwards};
    choose().columns(shape, 0, shape->n, a, b, &shared, NULL, shape->accumulate, c, fuse_product_c_row(shape),
                     workspace);
}
