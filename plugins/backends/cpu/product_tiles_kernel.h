/* One instruction set's loops; included by product_tiles.c with
 *   KERNEL_NAME(stem)  the names' suffix      KERNEL_TARGET  the function attribute, or nothing
 *   KERNEL_LANES       floats in a vector     KERNEL_ROWS    6 or 12 rows of a tile; a tile is 2 vectors wide */

#define TILE_WIDTH (2 * KERNEL_LANES)

typedef float KERNEL_NAME(vector) __attribute__((vector_size(KERNEL_LANES * 4), aligned(4), may_alias));
#define VECTOR KERNEL_NAME(vector)
typedef uint32_t KERNEL_NAME(bits) __attribute__((vector_size(KERNEL_LANES * 4), aligned(4), may_alias));
typedef uint16_t KERNEL_NAME(half) __attribute__((vector_size(KERNEL_LANES * 2), aligned(2), may_alias));

#define EACH_6(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define EACH_12(X) EACH_6(X) X(6) X(7) X(8) X(9) X(10) X(11)
#if KERNEL_ROWS == 12
#define EACH_ROW EACH_12
#else
#define EACH_ROW EACH_6
#endif

/* out (rows, TILE_WIDTH), rows `stride` apart, = a^T b (count, TILE_WIDTH) [+ out] [+ bias], where a's element for row
 * r and step i is a[r * a_row + i * a_step]; `rows` is known where this is compiled. The sums stay in registers: two
 * vectors a row. Rows of c lie too far apart for the processor to foresee, and their stores would wait for memory one
 * after the other: so they are fetched, to be written, while the sums are made. Counting takes turns from multiplying
 * where two threads share a core, hence eight steps at a time. */
KERNEL_TARGET static inline __attribute__((always_inline)) void KERNEL_NAME(rows)(const int rows, int64_t count,
                                                                                  const float *a, int64_t a_row,
                                                                                  int64_t a_step, const float *b,
                                                                                  bool add, const float *bias,
                                                                                  float *out, int64_t stride)
{
#define ZERO(r) VECTOR low##r = {0}, high##r = {0};
#define FETCH(r)                                                                                                       \
    if (r < rows)                                                                                                      \
        __builtin_prefetch(out + r * stride, 1, 3);
#define STEP(r)                                                                                                        \
    if (r < rows) {                                                                                                    \
        low##r += a[r * a_row] * b_low;                                                                                \
        high##r += a[r * a_row] * b_high;                                                                              \
    }
#define ADD(r)                                                                                                         \
    if (r < rows) {                                                                                                    \
        low##r += *(const VECTOR *)(out + r * stride);                                                                 \
        high##r += *(const VECTOR *)(out + r * stride + KERNEL_LANES);                                                 \
    }
#define BIAS(r)                                                                                                        \
    low##r += *(const VECTOR *)bias;                                                                                   \
    high##r += *(const VECTOR *)(bias + KERNEL_LANES);
#define STORE(r)                                                                                                       \
    if (r < rows) {                                                                                                    \
        *(VECTOR *)(out + r * stride) = low##r;                                                                        \
        *(VECTOR *)(out + r * stride + KERNEL_LANES) = high##r;                                                        \
    }
    EACH_ROW(ZERO)
    EACH_ROW(FETCH)
    UNROLL_8
    for (int64_t i = 0; i < count; i++) {
        const VECTOR b_low = *(const VECTOR *)b, b_high = *(const VECTOR *)(b + KERNEL_LANES);
        EACH_ROW(STEP)
        a += a_step;
        b += TILE_WIDTH;
    }
    if (add) {
        EACH_ROW(ADD)
    }
    if (bias != NULL) {
        EACH_ROW(BIAS)
    }
    EACH_ROW(STORE)
#undef ZERO
#undef FETCH
#undef STEP
#undef ADD
#undef BIAS
#undef STORE
}

/* A whole tile: a packed (count, KERNEL_ROWS); and row-major, its rows a_row apart. */
KERNEL_TARGET static void KERNEL_NAME(packed)(int64_t count, const float *a, const float *b, bool add,
                                              const float *bias, float *out, int64_t stride)
{
    KERNEL_NAME(rows)(KERNEL_ROWS, count, a, 1, KERNEL_ROWS, b, add, bias, out, stride);
}

KERNEL_TARGET static void KERNEL_NAME(direct)(int64_t count, const float *a, int64_t a_row, const float *b, bool add,
                                              const float *bias, float *out, int64_t stride)
{
    KERNEL_NAME(rows)(KERNEL_ROWS, count, a, a_row, 1, b, add, bias, out, stride);
}

/* Either of them: a_row 0 is packed. */
KERNEL_TARGET static inline void KERNEL_NAME(tile)(int64_t count, const float *a, int64_t a_row, const float *b,
                                                   bool add, const float *bias, float *out, int64_t stride)
{
    if (a_row == 0)
        KERNEL_NAME(packed)(count, a, b, add, bias, out, stride);
    else
        KERNEL_NAME(direct)(count, a, a_row, b, add, bias, out, stride);
}

/* Two thirds or a third of a packed one: with these a panel of 8 n rows has nothing left over. */
KERNEL_TARGET static void KERNEL_NAME(two_thirds)(int64_t count, const float *a, const float *b, bool add,
                                                  const float *bias, float *out, int64_t stride)
{
    KERNEL_NAME(rows)(2 * KERNEL_ROWS / 3, count, a, 1, KERNEL_ROWS, b, add, bias, out, stride);
}

KERNEL_TARGET static void KERNEL_NAME(third)(int64_t count, const float *a, const float *b, bool add, const float *bias,
                                             float *out, int64_t stride)
{
    KERNEL_NAME(rows)(KERNEL_ROWS / 3, count, a, 1, KERNEL_ROWS, b, add, bias, out, stride);
}

/* A tile of which only rows x columns exist: through a whole one beside it. a_row as above. */
KERNEL_TARGET static void KERNEL_NAME(edge)(int64_t count, const float *a, int64_t a_row, const float *b, bool add,
                                            const float *bias, float *out, int64_t stride, int64_t rows,
                                            int64_t columns)
{
    float whole[KERNEL_ROWS * TILE_WIDTH], whole_bias[TILE_WIDTH];
    for (int64_t j = 0; bias != NULL && j < TILE_WIDTH; j++)
        whole_bias[j] = j < columns ? bias[j] : 0.0f;
    for (int64_t i = 0; add && i < KERNEL_ROWS; i++)
        for (int64_t j = 0; j < TILE_WIDTH; j++)
            whole[i * TILE_WIDTH + j] = i < rows && j < columns ? out[i * stride + j] : 0.0f;
    KERNEL_NAME(tile)(count, a, a_row, b, add, bias != NULL ? whole_bias : NULL, whole, TILE_WIDTH);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[i * stride + j] = whole[i * TILE_WIDTH + j];
}

/* bfloat16 into floats; and floats rounded to bfloat16's precision, as fuse_narrow_one() does. */
KERNEL_TARGET static inline __attribute__((always_inline)) void KERNEL_NAME(widen)(float *to, const uint16_t *from)
{
    const KERNEL_NAME(half) half = *(const KERNEL_NAME(half) *)from;
    *(KERNEL_NAME(bits) *)to = __builtin_convertvector(half, KERNEL_NAME(bits)) << 16;
}

KERNEL_TARGET static inline __attribute__((always_inline)) void KERNEL_NAME(round)(float *to, const float *from)
{
    const KERNEL_NAME(bits) bits = *(const KERNEL_NAME(bits) *)from;
    *(KERNEL_NAME(bits) *)to = ROUND_BITS(KERNEL_NAME(bits), bits);
}

#define PACK_NAME(stem) KERNEL_NAME(stem##_float)
#define PACK_SOURCE float
#define PACK_1(from) (*(from))
#define PACK_4(from) (*(const vector_4 *)(from))
#define PACK_VECTOR(to, from) (*(VECTOR *)(to) = *(const VECTOR *)(from))
#include "product_tiles_pack.h"

#define PACK_NAME(stem) KERNEL_NAME(stem##_rounded)
#define PACK_SOURCE float
#define PACK_1(from) fuse_widen_one(fuse_narrow_one(*(from)))
#define PACK_4(from) round_4(from)
#define PACK_VECTOR(to, from) KERNEL_NAME(round)(to, from)
#include "product_tiles_pack.h"

#define PACK_NAME(stem) KERNEL_NAME(stem##_bfloat16)
#define PACK_SOURCE uint16_t
#define PACK_1(from) fuse_widen_one(*(from))
#define PACK_4(from) widen_4(from)
#define PACK_VECTOR(to, from) KERNEL_NAME(widen)(to, from)
#include "product_tiles_pack.h"

static pack_function *KERNEL_NAME(choose_pack_a)(const struct fuse_product_shape *shape)
{
    if (shape->a_is_bfloat16)
        return KERNEL_NAME(pack_a_bfloat16);
    return shape->is_bfloat16 ? KERNEL_NAME(pack_a_rounded) : KERNEL_NAME(pack_a_float);
}

static pack_function *KERNEL_NAME(choose_pack_b)(const struct fuse_product_shape *shape)
{
    if (shape->b_is_bfloat16)
        return KERNEL_NAME(pack_b_bfloat16);
    return shape->is_bfloat16 ? KERNEL_NAME(pack_b_rounded) : KERNEL_NAME(pack_b_float);
}

/* One strip of c: columns [0, columns) of it, `rows` rows. Each tile fetches some lines of what is packed next. */
KERNEL_TARGET static void KERNEL_NAME(strip)(int64_t depth, int64_t rows, int64_t columns, const struct left *left,
                                             const float *packed_b, bool add, const float *bias, float *c,
                                             int64_t c_row, struct ahead *ahead)
{
    for (int64_t r = 0; r < rows; r += KERNEL_ROWS) {
        const bool is_packed = r >= left->lying_rows;
        const float *const a = is_packed ? left->packed + r * depth : left->lying + r * left->row;
        const int64_t a_row = is_packed ? 0 : left->row;
        float *const out = c + r * c_row;
        fetch_ahead(ahead);
        if (columns == TILE_WIDTH && rows - r >= KERNEL_ROWS)
            KERNEL_NAME(tile)(depth, a, a_row, packed_b, add, bias, out, c_row);
        else if (columns == TILE_WIDTH && rows - r == 2 * KERNEL_ROWS / 3)
            KERNEL_NAME(two_thirds)(depth, a, packed_b, add, bias, out, c_row);
        else if (columns == TILE_WIDTH && rows - r == KERNEL_ROWS / 3)
            KERNEL_NAME(third)(depth, a, packed_b, add, bias, out, c_row);
        else
            KERNEL_NAME(edge)
        (depth, a, a_row, packed_b, add, bias, out, c_row, rows - r < KERNEL_ROWS ? rows - r : KERNEL_ROWS, columns);
    }
}

/* Columns [begin, end) of c, in floats: the first of them at c; begin is a multiple of TILE_WIDTH if b is packed
 * already (shared_b, else NULL). */
KERNEL_TARGET static void KERNEL_NAME(columns)(const struct fuse_product_shape *shape, int64_t begin, int64_t end,
                                               const void *a, const void *b, const float *shared_b, const float *bias,
                                               bool accumulate, float *c, int64_t c_row, float *workspace)
{
    pack_function *const pack_a = KERNEL_NAME(choose_pack_a)(shape), *const pack_b = KERNEL_NAME(choose_pack_b)(shape);
    const int64_t block_rows = block_size(shape->m, BLOCK_ROWS, KERNEL_ROWS);
    const int64_t block_depth = block_size(shape->k, BLOCK_DEPTH, 1);
    const int64_t shared_columns = (shape->n + TILE_WIDTH - 1) / TILE_WIDTH * TILE_WIDTH;
    float *const own_b = workspace, *const packed_a = workspace + STRIPS * MAX_TILE_WIDTH * block_depth;
    const bool lies_well = end - begin <= DIRECT_COLUMNS && shape->a_column == 1 && !shape->is_bfloat16;
    for (int64_t k = 0; k < shape->k; k += block_depth) {
        const int64_t depth = k + block_depth < shape->k ? block_depth : shape->k - k;
        const bool add = k > 0 || accumulate;
        for (int64_t i = 0; i < shape->m; i += block_rows) {
            const int64_t rows = i + block_rows < shape->m ? block_rows : shape->m - i;
            const int64_t lying_rows = lies_well ? rows / KERNEL_ROWS * KERNEL_ROWS : 0;
            const struct left left = {packed_a, fuse_product_a(shape, a, i, k), shape->a_row, lying_rows};
            if (lying_rows < rows)
                pack_a(shape, fuse_product_a(shape, a, i + lying_rows, k), rows - lying_rows, depth,
                       packed_a + lying_rows * depth);
            for (int64_t group = begin; group < end; group += STRIPS * TILE_WIDTH) {
                const int64_t stop = group + STRIPS * TILE_WIDTH < end ? group + STRIPS * TILE_WIDTH : end;
                const float *const packed_b = shared_b != NULL ? shared_b + k * shared_columns + group * depth : own_b;
                const int64_t tiles = STRIPS * ((rows + KERNEL_ROWS - 1) / KERNEL_ROWS);
                struct ahead ahead = {0};
                if (shared_b != NULL) {
                    if (shared_columns * shape->k > NEAR_FLOATS)
                        ahead = look_ahead_packed(packed_b + (stop - group) * depth,
                                                  end - stop < STRIPS * TILE_WIDTH ? end - stop : STRIPS * TILE_WIDTH,
                                                  depth, tiles);
                } else {
                    pack_b(shape, fuse_product_b(shape, b, k, group), depth, stop - group, own_b);
                    if (stop < end)
                        ahead = look_ahead(shape, b, k, depth, stop, end, tiles, STRIPS * TILE_WIDTH);
                    else if (i + block_rows < shape->m)
                        ahead = look_ahead(shape, b, k, depth, begin, end, tiles, STRIPS * TILE_WIDTH);
                    else
                        ahead = look_ahead(shape, b, k + depth, block_depth, begin, end, tiles, STRIPS * TILE_WIDTH);
                }
                for (int64_t j = group; j < stop; j += TILE_WIDTH)
                    KERNEL_NAME(strip)
                (depth, rows, stop - j < TILE_WIDTH ? stop - j : TILE_WIDTH, &left, packed_b + (j - group) * depth, add,
                 k == 0 && shape->has_bias ? bias + j : NULL, c + i * c_row + j - begin, c_row, &ahead);
            }
        }
    }
}

/* Columns [begin, end) of b as columns() takes them: block of depth after block, strip after strip. begin is a multiple
 * of TILE_WIDTH. */
KERNEL_TARGET static void KERNEL_NAME(share_b)(const struct fuse_product_shape *shape, int64_t begin, int64_t end,
                                               const void *b, float *shared_b)
{
    pack_function *const pack_b = KERNEL_NAME(choose_pack_b)(shape);
    const int64_t block_depth = block_size(shape->k, BLOCK_DEPTH, 1);
    const int64_t shared_columns = (shape->n + TILE_WIDTH - 1) / TILE_WIDTH * TILE_WIDTH;
    for (int64_t k = 0; k < shape->k; k += block_depth) {
        const int64_t depth = k + block_depth < shape->k ? block_depth : shape->k - k;
        pack_b(shape, fuse_product_b(shape, b, k, begin), depth, end - begin,
               shared_b + k * shared_columns + begin * depth);
    }
}

#undef TILE_WIDTH
#undef VECTOR
#undef EACH_6
#undef EACH_12
#undef EACH_ROW
#undef KERNEL_NAME
#undef KERNEL_TARGET
#undef KERNEL_LANES
#undef KERNEL_ROWS
