/* How an operand of one kind is packed for one instruction set's tiles; included by product_tiles_kernel.h with
 *   PACK_NAME(stem)        the names' suffix
 *   PACK_SOURCE            the type of its numbers
 *   PACK_1(from)           one of them as a float
 *   PACK_VECTOR(from)      KERNEL_LANES of them, as a VECTOR */

/* to (count, rows), rows to_stride apart, = from (rows <= KERNEL_LANES, count)^T, rows from_stride apart. Whole vectors
 * are written, in the order of to's rows: where a row has no room for them (floats from its begin to the next one's),
 * the next row covers what is too much, and the last is written float by float. */
KERNEL_TARGET static inline __attribute__((always_inline)) void PACK_NAME(transpose)(const PACK_SOURCE *from,
                                                                                     int64_t from_stride, int64_t rows,
                                                                                     int64_t count, float *to,
                                                                                     int64_t to_stride, int64_t room)
{
    const int64_t in_vectors = room < KERNEL_LANES ? count - 1 : count;
    int64_t i = 0;
    while (in_vectors >= KERNEL_LANES && i < in_vectors) {
        VECTOR block[KERNEL_LANES];
        i = i + KERNEL_LANES <= in_vectors ? i : in_vectors - KERNEL_LANES; /* some once more rather than one by one */
        UNROLL_16
        for (int64_t j = 0; j < KERNEL_LANES; j++)
            block[j] = j < rows ? PACK_VECTOR(from + j * from_stride + i) : (VECTOR){0};
        KERNEL_NAME(transpose_block)(block);
        UNROLL_16
        for (int64_t j = 0; j < KERNEL_LANES; j++)
            *(VECTOR *)(to + (i + j) * to_stride) = block[j];
        i += KERNEL_LANES;
    }
    for (; i < count; i++)
        for (int64_t j = 0; j < rows; j++)
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
                *(VECTOR *)at = PACK_VECTOR(from);
                *(VECTOR *)(at + KERNEL_LANES) = PACK_VECTOR(from + KERNEL_LANES);
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
        for (int64_t j = 0; j < here; j += KERNEL_LANES)
            PACK_NAME(transpose)
        (from + j * shape->b_column, shape->b_column, here - j < KERNEL_LANES ? here - j : KERNEL_LANES, count, at + j,
         TILE_WIDTH, KERNEL_LANES);
    }
}

/* Rows [0, rows) of a over `count` of its columns, cut as strip() does, as tiles of (count, KERNEL_ROWS). Pieces of
 * columns lie too far apart for the processor to foresee. */
KERNEL_TARGET static void PACK_NAME(pack_a)(const struct fuse_product_shape *shape, const void *source, int64_t rows,
                                            int64_t count, float *to)
{
    const PACK_SOURCE *const a = source;
    const int64_t tile_floats = count * KERNEL_ROWS;
    const struct cut cut = cut_rows(rows, KERNEL_ROWS);
    if (shape->a_column == 1) {
        const PACK_SOURCE *from = a;
        for (int64_t t = 0; t < cut.tiles; t++) {
            const int64_t here = tile_rows(cut, t);
            /* the later rows first: what they write too much, the earlier ones cover */
            for (int64_t r = (here - 1) / KERNEL_LANES * KERNEL_LANES; r >= 0; r -= KERNEL_LANES)
                PACK_NAME(transpose)
            (from + r * shape->a_row, shape->a_row, here - r < KERNEL_LANES ? here - r : KERNEL_LANES, count,
             to + t * tile_floats + r, KERNEL_ROWS, KERNEL_ROWS - r);
            from += here * shape->a_row;
        }
        return;
    }
    const int64_t in_vectors = (KERNEL_ROWS + KERNEL_LANES - 1) / KERNEL_LANES * KERNEL_LANES;
    for (int64_t i = 0; i < count; i++) {
        const PACK_SOURCE *from = a + i * shape->a_column;
        float *at = to + i * KERNEL_ROWS;
        for (int64_t r = 0; i + ROWS_AHEAD < count && r < rows; r += LINE_BYTES / (int64_t)sizeof(from[0]))
            __builtin_prefetch(from + ROWS_AHEAD * shape->a_column + r, 0, 3);
        for (int64_t t = 0; t < cut.tiles; t++) {
            const int64_t here = tile_rows(cut, t);
            /* Whole vectors, up to where the next column's rows end: it also covers what is written too much. */
            if (i + 1 < count && in_vectors <= shape->a_column + here)
                for (int64_t j = 0; j < in_vectors; j += KERNEL_LANES)
                    *(VECTOR *)(at + j) = PACK_VECTOR(from + j);
            else
                for (int64_t j = 0; j < here; j++)
                    at[j] = PACK_1(from + j);
            at += tile_floats;
            from += here;
        }
    }
}

#undef PACK_NAME
#undef PACK_SOURCE
#undef PACK_1
#undef PACK_VECTOR
