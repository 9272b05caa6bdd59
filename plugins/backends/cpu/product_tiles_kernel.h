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

/* block (KERNEL_LANES, KERNEL_LANES) = block^T: pairs of floats, pairs of pairs, then whole quarters of vectors. */
#define SHUFFLE __builtin_shufflevector
#if KERNEL_LANES == 4
#define LOW_FLOATS(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define HIGH_FLOATS(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#define LOW_PAIRS(a, b) SHUFFLE(a, b, 0, 1, 4, 5)
#define HIGH_PAIRS(a, b) SHUFFLE(a, b, 2, 3, 6, 7)
#elif KERNEL_LANES == 8
#define LOW_FLOATS(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH_FLOATS(a, b) SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW_PAIRS(a, b) SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH_PAIRS(a, b) SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define LOW_HALVES(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH_HALVES(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#else
#define LOW_FLOATS(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH_FLOATS(a, b) SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define LOW_PAIRS(a, b) SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_PAIRS(a, b) SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define EVEN_QUARTERS(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD_QUARTERS(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#endif

KERNEL_TARGET static inline __attribute__((always_inline)) void KERNEL_NAME(transpose_block)(VECTOR *block)
{
    VECTOR pairs[KERNEL_LANES];
    UNROLL_16
    for (int64_t i = 0; i < KERNEL_LANES; i += 2) {
        pairs[i] = LOW_FLOATS(block[i], block[i + 1]);
        pairs[i + 1] = HIGH_FLOATS(block[i], block[i + 1]);
    }
    UNROLL_16
    for (int64_t i = 0; i < KERNEL_LANES; i += 4)
        for (int64_t j = 0; j < 2; j++) {
            block[i + 2 * j] = LOW_PAIRS(pairs[i + j], pairs[i + j + 2]);
            block[i + 2 * j + 1] = HIGH_PAIRS(pairs[i + j], pairs[i + j + 2]);
        }
#if KERNEL_LANES == 8
    UNROLL_16
    for (int64_t i = 0; i < 4; i++) {
        const VECTOR low = LOW_HALVES(block[i], block[i + 4]), high = HIGH_HALVES(block[i], block[i + 4]);
        block[i] = low;
        block[i + 4] = high;
    }
#elif KERNEL_LANES == 16
    UNROLL_16
    for (int64_t i = 0; i < 4; i++) {
        const VECTOR low_even = EVEN_QUARTERS(block[i], block[i + 4]), low_odd = ODD_QUARTERS(block[i], block[i + 4]);
        const VECTOR high_even = EVEN_QUARTERS(block[i + 8], block[i + 12]);
        const VECTOR high_odd = ODD_QUARTERS(block[i + 8], block[i + 12]);
        block[i] = EVEN_QUARTERS(low_even, high_even);
        block[i + 8] = ODD_QUARTERS(low_even, high_even);
        block[i + 4] = EVEN_QUARTERS(low_odd, high_odd);
        block[i + 12] = ODD_QUARTERS(low_odd, high_odd);
    }
#endif
}

/* bfloat16 into floats; and floats rounded to bfloat16's precision, as fuse_narrow_one() does. */
KERNEL_TARGET static inline __attribute__((always_inline)) VECTOR KERNEL_NAME(widen)(const uint16_t *from)
{
    const KERNEL_NAME(half) half = *(const KERNEL_NAME(half) *)from;
    return (VECTOR)(__builtin_convertvector(half, KERNEL_NAME(bits)) << 16);
}

KERNEL_TARGET static inline __attribute__((always_inline)) VECTOR KERNEL_NAME(round)(const float *from)
{
    const KERNEL_NAME(bits) bits = *(const KERNEL_NAME(bits) *)from;
    return (VECTOR)ROUND_BITS(KERNEL_NAME(bits), bits);
}

#define PACK_NAME(stem) KERNEL_NAME(stem##_float)
#define PACK_SOURCE float
#define PACK_1(from) (*(from))
#define PACK_VECTOR(from) (*(const VECTOR *)(from))
#include "product_tiles_pack.h"

#define PACK_NAME(stem) KERNEL_NAME(stem##_rounded)
#define PACK_SOURCE float
#define PACK_1(from) fuse_widen_one(fuse_narrow_one(*(from)))
#define PACK_VECTOR(from) KERNEL_NAME(round)(from)
#include "product_tiles_pack.h"

#define PACK_NAME(stem) KERNEL_NAME(stem##_bfloat16)
#define PACK_SOURCE uint16_t
#define PACK_1(from) fuse_widen_one(*(from))
#define PACK_VECTOR(from) KERNEL_NAME(widen)(from)
#include "product_tiles_pack.h"

/* One more row of the strips of b that are packed. What was in their place may have been another core's, whose caches
 * are far: it is fetched, to be written, as many rows ahead as what is copied. */
KERNEL_TARGET static inline __attribute__((always_inline)) void KERNEL_NAME(copy_row)(struct copy *copy)
{
    const float *from = copy->from, *ahead = from + (copy->rows > ROWS_AHEAD ? copy->ahead : copy->ahead_at_end);
    float *to = copy->to;
    for (int64_t i = 0; i < copy->strips; i++) {
        __builtin_prefetch(ahead, 0, 3), __builtin_prefetch(ahead + TILE_WIDTH - 1, 0, 3);
        __builtin_prefetch(to + ROWS_AHEAD * TILE_WIDTH, 1, 3);
        *(VECTOR *)to = *(const VECTOR *)from;
        *(VECTOR *)(to + KERNEL_LANES) = *(const VECTOR *)(from + KERNEL_LANES);
        from += TILE_WIDTH;
        ahead += TILE_WIDTH;
        to += copy->strip;
    }
    copy->from += copy->row;
    copy->to += TILE_WIDTH;
    copy->rows--;
}

/* The tile's c (rows, TILE_WIDTH) = a^T b (count, TILE_WIDTH) [+ c] [+ bias], where a's element for row r and step i is
 * a[r * a_row + i * a_step] and b is packed; `rows` and a_step are known where this is compiled.
 * The sums stay in registers: two vectors a row. Rows of c lie too far apart for the processor to foresee, and their
 * stores would wait for memory one after the other: so they are fetched, to be written, while the sums are made.
 * Counting takes turns from multiplying where two threads share a core, hence eight steps at a time. */
KERNEL_TARGET static inline __attribute__((always_inline)) void KERNEL_NAME(rows)(const int rows,
                                                                                  const struct tile *tile,
                                                                                  int64_t a_row, int64_t a_step,
                                                                                  enum beside beside)
{
#define ZERO(r) VECTOR low##r = {0}, high##r = {0};
#define MULTIPLY(r)                                                                                                    \
    if (r < rows) {                                                                                                    \
        low##r += a[r * a_row] * b_low;                                                                                \
        high##r += a[r * a_row] * b_high;                                                                              \
    }
#define STEP                                                                                                           \
    {                                                                                                                  \
        const VECTOR b_low = *(const VECTOR *)b, b_high = *(const VECTOR *)(b + KERNEL_LANES);                         \
        EACH_ROW(MULTIPLY)                                                                                             \
        a += a_step;                                                                                                   \
        b += TILE_WIDTH;                                                                                               \
    }
#define ADD(r)                                                                                                         \
    if (r < rows) {                                                                                                    \
        low##r += *(const VECTOR *)(c + r * c_row);                                                                    \
        high##r += *(const VECTOR *)(c + r * c_row + KERNEL_LANES);                                                    \
    }
#define BIAS(r)                                                                                                        \
    low##r += *(const VECTOR *)tile->bias;                                                                             \
    high##r += *(const VECTOR *)(tile->bias + KERNEL_LANES);
#define STORE(r)                                                                                                       \
    if (r < rows) {                                                                                                    \
        *(VECTOR *)(c + r * c_row) = low##r;                                                                           \
        *(VECTOR *)(c + r * c_row + KERNEL_LANES) = high##r;                                                           \
    }
    const float *a = tile->a, *b = tile->b;
    float *const c = tile->c;
    const int64_t c_row = tile->c_row;
    const char *fetch = tile->fetch.at, *fetch_beside = tile->beside.at;
    const float *next_c = tile->next_c;
    int64_t next_rows = tile->next_rows;
    int64_t left = tile->count;
    EACH_ROW(ZERO)
    for (; left >= FETCH_STEPS; left -= FETCH_STEPS) {
        for (int64_t i = 0; i < tile->fetch.count; i++, fetch += tile->fetch.stride_bytes)
            __builtin_prefetch(fetch, 0, 2);
        for (int64_t i = 0; beside == BESIDE_FETCHING && i < tile->beside.count; i++)
            __builtin_prefetch(fetch_beside + i * tile->beside.stride_bytes, 0, 2);
        if (beside == BESIDE_FETCHING)
            fetch_beside += tile->beside.run_bytes;
        for (int64_t i = 0; i < tile->next_fetches && next_rows > 0; i++, next_rows--, next_c += c_row)
            __builtin_prefetch(next_c, 1, 3), __builtin_prefetch(next_c + TILE_WIDTH - 1, 1, 3);
        for (int64_t i = 0; i < tile->copy->each && tile->copy->rows > 0; i++)
            KERNEL_NAME(copy_row)(tile->copy);
        for (int64_t half = 0; half < 2; half++) {
            UNROLL_8
            for (int64_t i = 0; i < FETCH_STEPS / 2; i++)
                STEP
        }
    }
    for (; left > 0; left--)
        STEP if (tile->add)
        {
            EACH_ROW(ADD)
        }
    if (tile->bias != NULL) {
        EACH_ROW(BIAS)
    }
    EACH_ROW(STORE)
#undef ZERO
#undef MULTIPLY
#undef STEP
#undef ADD
#undef BIAS
#undef STORE
}

/* The same for every number of rows, with a packed and with a row-major a, and what is done beside. */
#define DEFINE_TILE(r, name, a_row, a_step, beside)                                                                    \
    KERNEL_TARGET static void KERNEL_NAME(name##_##r)(const struct tile *tile)                                         \
    {                                                                                                                  \
        KERNEL_NAME(rows)(r + 1, tile, a_row, a_step, beside);                                                         \
    }
#define DEFINE_TILES(r)                                                                                                \
    DEFINE_TILE(r, packed, 1, KERNEL_ROWS, BESIDE_NOTHING)                                                             \
    DEFINE_TILE(r, packed_fetching, 1, KERNEL_ROWS, BESIDE_FETCHING)                                                   \
    DEFINE_TILE(r, direct, tile->a_row, 1, BESIDE_NOTHING)
EACH_ROW(DEFINE_TILES)
#undef DEFINE_TILES
#undef DEFINE_TILE

#define PACKED(r) KERNEL_NAME(packed_##r),
#define PACKED_FETCHING(r) KERNEL_NAME(packed_fetching_##r),
#define DIRECT(r) KERNEL_NAME(direct_##r),
static tile_function *const KERNEL_NAME(packed)[BESIDE_COUNT][KERNEL_ROWS] = {{EACH_ROW(PACKED)},
                                                                              {EACH_ROW(PACKED_FETCHING)}};
static tile_function *const KERNEL_NAME(direct)[KERNEL_ROWS] = {EACH_ROW(DIRECT)};
#undef PACKED
#undef PACKED_FETCHING
#undef DIRECT

/* A tile of which only `columns` columns exist: through a whole one beside it. */
KERNEL_TARGET static void KERNEL_NAME(edge)(tile_function *function, const struct tile *tile, int64_t rows,
                                            int64_t columns)
{
    float c[KERNEL_ROWS * TILE_WIDTH], bias[TILE_WIDTH];
    struct tile whole = *tile;
    whole.c = c;
    whole.c_row = TILE_WIDTH;
    if (tile->bias != NULL) {
        for (int64_t j = 0; j < TILE_WIDTH; j++)
            bias[j] = j < columns ? tile->bias[j] : 0.0f;
        whole.bias = bias;
    }
    for (int64_t i = 0; tile->add && i < rows; i++)
        for (int64_t j = 0; j < TILE_WIDTH; j++)
            c[i * TILE_WIDTH + j] = j < columns ? tile->c[i * tile->c_row + j] : 0.0f;
    function(&whole);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            tile->c[i * tile->c_row + j] = c[i * TILE_WIDTH + j];
}

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

/* One strip of c: columns [0, columns) of it, `rows` rows, cut evenly. `tile` is the first one, but for what is fetched
 * meanwhile; next_strip is where the strip that follows begins in c, or NULL. With a source (else NULL) a's rows are
 * packed from there, each tile's before it is made; the next tile's are fetched meanwhile, for another core may have
 * them. */
KERNEL_TARGET static void KERNEL_NAME(strip)(struct tile tile, int64_t rows, int64_t columns, float *next_strip,
                                             enum beside beside, struct ahead *ahead, struct afterwards *afterwards,
                                             const struct source *source)
{
    tile_function *const *const tiles = tile.a_row != 0 ? KERNEL_NAME(direct) : KERNEL_NAME(packed)[beside];
    const struct cut cut = cut_rows(rows, KERNEL_ROWS);
    float *packed = source != NULL ? source->packed : NULL;
    tile.next_fetches = KERNEL_ROWS * FETCH_STEPS / tile.count + 1;
    for (int64_t i = 0, row = 0; i < cut.tiles; i++) {
        const int64_t here = tile_rows(cut, i);
        const bool is_last = i + 1 == cut.tiles;
        tile.next_c = is_last ? next_strip : tile.c + here * tile.c_row;
        tile.next_rows = is_last && next_strip == NULL ? 0 : tile_rows(cut, is_last ? 0 : i + 1);
        tile.fetch = fetch_ahead(ahead);
        if (source != NULL) {
            source->pack_a(source->shape, fuse_product_a(source->shape, source->a, row, 0), here, tile.count, packed);
            packed += tile.count * KERNEL_ROWS;
            tile.beside = fetch_rows(source, row + here, is_last ? 0 : tile_rows(cut, i + 1));
        } else {
            tile.beside = fetch_afterwards(afterwards, tile.count / FETCH_STEPS);
        }
        if (columns == TILE_WIDTH)
            tiles[here - 1](&tile);
        else
            KERNEL_NAME(edge)(tiles[here - 1], &tile, here, columns);
        tile.a += tile.a_row != 0 ? here * tile.a_row : tile.count * KERNEL_ROWS;
        tile.c += here * tile.c_row;
        row += here;
    }
}

/* Columns [begin, end) of c, in floats, for few rows and a column-major b, whose packing would cost as much as
 * multiplying it: the tiles are c's transposes. b's columns, which are read as they lie and but once, from one end to
 * the other, take a's place, and a's transpose is packed in b's. The sums are the same to the bit. */
KERNEL_TARGET static void KERNEL_NAME(few_rows)(const struct fuse_product_shape *shape, int64_t begin, int64_t end,
                                                const void *a, const void *b, const struct shared *shared,
                                                const float *bias, bool accumulate, float *c, int64_t c_row,
                                                float *packed_a)
{
    (void)shared;
    const struct fuse_product_shape transposed = {.b_row = shape->a_column, .b_column = shape->a_row};
    const int64_t block_depth = block_size(shape->k, BLOCK_DEPTH, 1);
    const int64_t width = (shape->m + TILE_WIDTH - 1) / TILE_WIDTH * TILE_WIDTH;
    const struct cut cut = cut_rows(end - begin, KERNEL_ROWS);
    struct copy no_copy = {0};
    float sums[KERNEL_ROWS * TILE_WIDTH] = {0};
    for (int64_t k = 0; k < shape->k; k += block_depth)
        KERNEL_NAME(pack_b_float)
    (&transposed, fuse_product_a(shape, a, 0, k), k + block_depth < shape->k ? block_depth : shape->k - k, shape->m,
     packed_a + k * width);
    for (int64_t t = 0, j = begin; t < cut.tiles; j += tile_rows(cut, t++))
        for (int64_t i = 0; i < shape->m; i += TILE_WIDTH) {
            const int64_t columns = tile_rows(cut, t), rows = shape->m - i < TILE_WIDTH ? shape->m - i : TILE_WIDTH;
            float *const out = c + i * c_row + j - begin;
            for (int64_t q = 0; q < rows && accumulate; q++)
                for (int64_t r = 0; r < columns; r++)
                    sums[r * TILE_WIDTH + q] = out[q * c_row + r];
            for (int64_t k = 0; k < shape->k; k += block_depth) {
                const int64_t depth = k + block_depth < shape->k ? block_depth : shape->k - k;
                const struct tile tile = {.count = depth,
                                          .a = fuse_product_b(shape, b, k, j),
                                          .a_row = shape->b_column,
                                          .b = packed_a + k * width + i * depth,
                                          .add = k > 0 || accumulate,
                                          .c = sums,
                                          .c_row = TILE_WIDTH,
                                          .copy = &no_copy};
                KERNEL_NAME(direct)[columns - 1](&tile);
                for (int64_t r = 0; r < columns && k == 0 && shape->has_bias; r++)
                    for (int64_t q = 0; q < TILE_WIDTH; q++)
                        sums[r * TILE_WIDTH + q] += bias[j + r];
            }
            for (int64_t q = 0; q < rows; q++)
                for (int64_t r = 0; r < columns; r++)
                    out[q * c_row + r] = sums[r * TILE_WIDTH + q];
        }
}

/* Columns [begin, end) of c, in floats: the first of them at c. With shared strips (else NULL) these are all columns.
 */
KERNEL_TARGET static void KERNEL_NAME(columns)(const struct fuse_product_shape *shape, int64_t begin, int64_t end,
                                               const void *a, const void *b, const struct shared *shared,
                                               const float *bias, bool accumulate, float *c, int64_t c_row,
                                               float *workspace)
{
    pack_function *const pack_a = KERNEL_NAME(choose_pack_a)(shape), *const pack_b = KERNEL_NAME(choose_pack_b)(shape);
    const int64_t block_rows = block_size(shape->m, BLOCK_ROWS, KERNEL_ROWS);
    const int64_t block_depth = block_size(shape->k, BLOCK_DEPTH, 1);
    /* Strips that are packed together: where b is read hardly faster than it is multiplied, in longer pieces. */
    const int64_t group =
        comes_in_pieces(shape) && shape->m <= FEW_ROWS && shared == NULL ? STRIPS * TILE_WIDTH : TILE_WIDTH;
    const int64_t groups = (end - begin + group - 1) / group;
    const struct order order = {.shape = shape,
                                .b = b,
                                .shared = shared,
                                .width = TILE_WIDTH,
                                .begin = begin,
                                .end = end,
                                .group = group,
                                .groups = groups,
                                .turn = shared == NULL ? 0 : shared->worker * groups / shape->worker_count,
                                .row_blocks = (shape->m + block_rows - 1) / block_rows,
                                .block_depth = block_depth};
    float *room = workspace, *next_room = room + group * block_depth;
    float *const packed_a = next_room + group * block_depth;
    const bool a_lies_well = end - begin <= DIRECT_COLUMNS && shape->a_column == 1 && !shape->is_bfloat16;
    struct copy copy = {0};
    const int64_t all_tiles =
        (end - begin + TILE_WIDTH - 1) / TILE_WIDTH * ((shape->m + KERNEL_ROWS - 1) / KERNEL_ROWS);
    struct afterwards afterwards = plan_afterwards(shared, all_tiles * (shape->k / FETCH_STEPS));
    int64_t number = 0; /* of the strips, in their order */
    struct strips here = strips_at(&order, number);
    for (int64_t k = 0; k < shape->k; k += block_depth)
        for (int64_t i = 0; i < shape->m; i += block_rows) {
            const int64_t rows = i + block_rows < shape->m ? block_rows : shape->m - i;
            const void *const block = fuse_product_a(shape, a, i, k);
            const struct source source = {shape, pack_a, block, packed_a};
            if (!a_lies_well && shape->a_column != 1)
                pack_a(shape, block, rows, here.depth, packed_a);
            for (int64_t g = 0; g < groups; g++) {
                if (here.packed == NULL) {
                    take_strips(&order, &here, room);
                    if (!here.is_packed)
                        pack_b(shape, fuse_product_b(shape, b, k, here.first), here.depth, here.columns, here.packed);
                    put_strips(&here);
                }
                const int64_t tiles =
                    (here.columns + TILE_WIDTH - 1) / TILE_WIDTH * ((rows + KERNEL_ROWS - 1) / KERNEL_ROWS);
                const int64_t runs = tiles * (here.depth / FETCH_STEPS);
                const bool packs = g == 0 && !a_lies_well && shape->a_column == 1;
                struct strips next = strips_at(&order, ++number);
                struct ahead ahead = {0};
                const enum beside beside = packs || afterwards.lines > 0 ? BESIDE_FETCHING : BESIDE_NOTHING;
                if (runs > 0 && can_copy(&order, &next)) {
                    take_strips(&order, &next, next_room);
                    if (next.is_packed)
                        ahead = look_ahead_packed(&next, tiles);
                    else
                        copy = plan_copy(&order, &next, runs);
                } else {
                    ahead = look_ahead(&order, &next, tiles);
                }
                const int64_t stop = here.first + here.columns;
                for (int64_t j = here.first; j < stop; j += TILE_WIDTH) {
                    const struct tile tile = {.count = here.depth,
                                              .a = a_lies_well ? block : packed_a,
                                              .a_row = a_lies_well ? shape->a_row : 0,
                                              .b = here.packed + (j - here.first) * here.depth,
                                              .add = k > 0 || accumulate,
                                              .bias = k == 0 && shape->has_bias ? bias + j : NULL,
                                              .c = c + i * c_row + j - begin,
                                              .c_row = c_row,
                                              .copy = &copy};
                    KERNEL_NAME(strip)
                    (tile, rows, stop - j < TILE_WIDTH ? stop - j : TILE_WIDTH,
                     j + TILE_WIDTH < stop || next.first == stop ? tile.c + TILE_WIDTH : NULL, beside, &ahead,
                     &afterwards, packs && j == here.first ? &source : NULL);
                }
                while (copy.rows > 0)
                    KERNEL_NAME(copy_row)(&copy);
                put_strips(&next);
                here = next;
                float *const used = room;
                room = next_room;
                next_room = used;
            }
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
#undef SHUFFLE
#undef LOW_FLOATS
#undef HIGH_FLOATS
#undef LOW_PAIRS
#undef HIGH_PAIRS
#undef LOW_HALVES
#undef HIGH_HALVES
#undef EVEN_QUARTERS
#undef ODD_QUARTERS
