/* How an operand of one kind is packed for one instruction set's tiles; included by product_tiles_kernel.h with
 *   PACK_NAME(stem)        the names' suffix
 *   PACK_SOURCE            the type of its numbers
 *   PACK_1(from)           one of them as a float
 *   PACK_4(from)           4 as a vector_4
 *   PACK_VECTOR(to, from)  KERNEL_LANES of them, to a float * */

/* to (count, 4), rows to_stride apart, = from (4, count)^T, rows from_stride apart. */
KERNEL_TARGET static inline __attribute__((always_inline)) void PACK_NAME(transpose)(const PACK_SOURCE *from,
                                                                                     int64_t from_stride, int64_t count,
                                                                                     float *to, int64_t to_stride)
{
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const vector_4 a = PACK_4(from + i), b = PACK_4(from + from_stride + i);
        const vector_4 c = PACK_4(from + 2 * from_stride + i), d = PACK_4(from + 3 * from_stride + i);
        const vector_4 ab_low = SHUFFLE(a, b, 0, 4, 1, 5), ab_high = SHUFFLE(a, b, 2, 6, 3, 7);
        const vector_4 cd_low = SHUFFLE(c, d, 0, 4, 1, 5), cd_high = SHUFFLE(c, d, 2, 6, 3, 7);
        *(vector_4 *)(to + i * to_stride) = SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
        *(vector_4 *)(to + (i + 1) * to_stride) = SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
        *(vector_4 *)(to + (i + 2) * to_stride) = SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
        *(vector_4 *)(to + (i + 3) * to_stride) = SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
    }
    for (; i < count; i++)
        for (int64_t j = 0; j < 4; j++)
            to[i * to_stride + j] = PACK_1(from + j * from_stride + i);
}

/* `columns` columns of b over `count` of its rows, as strips of (count, TILE_WIDTH), missing columns zero. Whole strips
 * of a row-major b are taken side by side: rows lie far apart, so each costs a page's look-up. */
KERNEL_TARGET static void PACK_NAME(pack_b)(const struct fuse_product_shape *shape, const void *source, int64_t count,
                                            int64_t columns, float *to)
{
    const PACK_SOURCE *const b = source;
    const int64_t strip_floats = count * TILE_WIDTH;
    int64_t column = 0;
    if (shape->b_column == 1) {
        const int64_t strips = columns / TILE_WIDTH;
        for (int64_t i = 0; i < count; i++)
            for (int64_t s = 0; s < strips; s++) {
                const PACK_SOURCE *const from = b + i * shape->b_row + s * TILE_WIDTH;
                float *const at = to + s * strip_floats + i * TILE_WIDTH;
                PACK_VECTOR(at, from);
                PACK_VECTOR(at + KERNEL_LANES, from + KERNEL_LANES);
            }
        column = strips * TILE_WIDTH;
    }
    for (; column < columns; column += TILE_WIDTH) {
        const int64_t here = columns - column < TILE_WIDTH ? columns - column : TILE_WIDTH;
        const PACK_SOURCE *const from = b + column * shape->b_column;
        float *const at = to + column * count;
        if (here < TILE_WIDTH)
            memset(at, 0, (size_t)strip_floats * sizeof(float));
        if (shape->b_column == 1) {
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < here; j++)
                    at[i * TILE_WIDTH + j] = PACK_1(from + i * shape->b_row + j);
            continue;
        }
        int64_t j = 0;
        for (; j + 4 <= here; j += 4)
            PACK_NAME(transpose)(from + j * shape->b_column, shape->b_column, count, at + j, TILE_WIDTH);
        for (; j < here; j++)
            for (int64_t i = 0; i < count; i++)
                at[i * TILE_WIDTH + j] = PACK_1(from + j * shape->b_column + i);
    }
}

/* Rows [0, rows) of a over `count` of its columns, as tiles of (count, KERNEL_ROWS), missing rows zero. Pieces of
 * columns lie too far apart for the processor to foresee. */
KERNEL_TARGET static void PACK_NAME(pack_a)(const struct fuse_product_shape *shape, const void *source, int64_t rows,
                                            int64_t count, float *to)
{
    const PACK_SOURCE *const a = source;
    const int64_t tile_floats = count * KERNEL_ROWS, whole = rows / KERNEL_ROWS * KERNEL_ROWS;
    if (whole < rows)
        memset(to + whole * count, 0, (size_t)tile_floats * sizeof(float));
    if (shape->a_column != 1) {
        for (int64_t i = 0; i < count; i++) {
            const PACK_SOURCE *const from = a + i * shape->a_column;
            float *const at = to + i * KERNEL_ROWS;
            for (int64_t r = 0; i + ROWS_AHEAD < count && r < rows; r += LINE_BYTES / (int64_t)sizeof(from[0]))
                __builtin_prefetch(from + ROWS_AHEAD * shape->a_column + r, 0, 3);
            int64_t first = 0;
#if KERNEL_LANES >= KERNEL_ROWS
            /* A vector is more than a column of a tile: the next column covers what is too much, the last has none. */
            for (; i + 1 < count && first + KERNEL_LANES <= rows && first < whole; first += KERNEL_ROWS)
                PACK_VECTOR(at + first * count, from + first);
#endif
            for (int64_t r = first; r < whole; r += KERNEL_ROWS) {
                int64_t j = 0;
                for (; j + 4 <= KERNEL_ROWS; j += 4)
                    *(vector_4 *)(at + r * count + j) = PACK_4(from + r + j);
                for (; j < KERNEL_ROWS; j++)
                    at[r * count + j] = PACK_1(from + r + j);
            }
            for (int64_t r = whole; r < rows; r++)
                at[whole * count + r - whole] = PACK_1(from + r);
        }
        return;
    }
    for (int64_t first = 0; first < rows; first += KERNEL_ROWS) {
        const PACK_SOURCE *const from = a + first * shape->a_row;
        float *const at = to + first * count;
        const int64_t here = rows - first < KERNEL_ROWS ? rows - first : KERNEL_ROWS;
        int64_t r = 0;
        for (; r + 4 <= here; r += 4)
            PACK_NAME(transpose)(from + r * shape->a_row, shape->a_row, count, at + r, KERNEL_ROWS);
        for (; r < here; r++)
            for (int64_t i = 0; i < count; i++)
                at[i * KERNEL_ROWS + r] = PACK_1(from + r * shape->a_row + i);
    }
}

#undef PACK_NAME
#undef PACK_SOURCE
#undef PACK_1
#undef PACK_4
#undef PACK_VECTOR
