/* One instruction set's loops; included by product_tiles.c with
 *   KERNEL_NAME(stem)  the names' suffix      KERNEL_TARGET  the function attribute, or nothing
 *   KERNEL_LANES       floats in a vector     KERNEL_ROWS    6 or 12 rows of a tile; a tile is 2 vectors wide */

#define TILE_WIDTH (2 * KERNEL_LANES)

typedef float KERNEL_NAME(vector) __attribute__((vector_size(KERNEL_LANES * 4), aligned(4), may_alias));
#define VECTOR KERNEL_NAME(vector)

#define EACH_6(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define EACH_12(X) EACH_6(X) X(6) X(7) X(8) X(9) X(10) X(11)
#if KERNEL_ROWS == 12
#define EACH_ROW EACH_12
#else
#define EACH_ROW EACH_6
#endif

/* out (KERNEL_ROWS, TILE_WIDTH), rows `stride` apart, = a (count, KERNEL_ROWS)^T b (count, TILE_WIDTH) [+ out] [+
 * bias]. The sums stay in registers: two vectors a row. */
KERNEL_TARGET static void KERNEL_NAME(tile)(int64_t count, const float *a, const float *b, bool add, const float *bias,
                                            float *out, int64_t stride)
{
#define ZERO(r) VECTOR low##r = {0}, high##r = {0};
#define STEP(r)                                                                                                        \
    low##r += a[r] * b_low;                                                                                            \
    high##r += a[r] * b_high;
#define ADD(r)                                                                                                         \
    low##r += *(const VECTOR *)(out + r * stride);                                                                     \
    high##r += *(const VECTOR *)(out + r * stride + KERNEL_LANES);
#define BIAS(r)                                                                                                        \
    low##r += *(const VECTOR *)bias;                                                                                   \
    high##r += *(const VECTOR *)(bias + KERNEL_LANES);
#define STORE(r)                                                                                                       \
    *(VECTOR *)(out + r * stride) = low##r;                                                                            \
    *(VECTOR *)(out + r * stride + KERNEL_LANES) = high##r;
    EACH_ROW(ZERO)
    for (int64_t i = 0; i < count; i++) {
        const VECTOR b_low = *(const VECTOR *)b, b_high = *(const VECTOR *)(b + KERNEL_LANES);
        EACH_ROW(STEP)
        a += KERNEL_ROWS;
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
#undef STEP
#undef ADD
#undef BIAS
#undef STORE
}

/* A tile of which only rows x columns exist: through a whole one beside it. */
KERNEL_TARGET static void KERNEL_NAME(edge)(int64_t count, const float *a, const float *b, bool add, const float *bias,
                                            float *out, int64_t stride, int64_t rows, int64_t columns)
{
    float whole[KERNEL_ROWS * TILE_WIDTH], whole_bias[TILE_WIDTH];
    for (int64_t j = 0; bias != NULL && j < TILE_WIDTH; j++)
        whole_bias[j] = j < columns ? bias[j] : 0.0f;
    for (int64_t i = 0; add && i < KERNEL_ROWS; i++)
        for (int64_t j = 0; j < TILE_WIDTH; j++)
            whole[i * TILE_WIDTH + j] = i < rows && j < columns ? out[i * stride + j] : 0.0f;
    KERNEL_NAME(tile)(count, a, b, add, bias != NULL ? whole_bias : NULL, whole, TILE_WIDTH);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[i * stride + j] = whole[i * TILE_WIDTH + j];
}

/* `columns` columns of b over `count` of its rows, as strips of (count, TILE_WIDTH), missing columns zero. Whole strips
 * of a row-major b are taken side by side: rows lie far apart, so each costs a page's look-up. */
KERNEL_TARGET static void KERNEL_NAME(pack_b)(const struct fuse_product_shape *shape, const float *b, int64_t count,
                                              int64_t columns, float *to)
{
    const int64_t strip_floats = count * TILE_WIDTH;
    int64_t column = 0;
    if (shape->b_column == 1) {
        const int64_t strips = columns / TILE_WIDTH;
        for (int64_t i = 0; i < count; i++)
            for (int64_t s = 0; s < strips; s++) {
                const float *const from = b + i * shape->b_row + s * TILE_WIDTH;
                float *const at = to + s * strip_floats + i * TILE_WIDTH;
                *(VECTOR *)at = *(const VECTOR *)from;
                *(VECTOR *)(at + KERNEL_LANES) = *(const VECTOR *)(from + KERNEL_LANES);
            }
        column = strips * TILE_WIDTH;
    }
    for (; column < columns; column += TILE_WIDTH) {
        const int64_t here = columns - column < TILE_WIDTH ? columns - column : TILE_WIDTH;
        const float *const from = b + column * shape->b_column;
        float *const at = to + column * count;
        if (here < TILE_WIDTH)
            memset(at, 0, (size_t)strip_floats * sizeof(float));
        if (shape->b_column == 1) {
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < here; j++)
                    at[i * TILE_WIDTH + j] = from[i * shape->b_row + j];
            continue;
        }
        int64_t j = 0;
        for (; j + 4 <= here; j += 4)
            transpose_4(from + j * shape->b_column, shape->b_column, count, at + j, TILE_WIDTH);
        for (; j < here; j++)
            for (int64_t i = 0; i < count; i++)
                at[i * TILE_WIDTH + j] = from[j * shape->b_column + i];
    }
}

/* Rows [0, rows) of a over `count` of its columns, as tiles of (count, KERNEL_ROWS), missing rows zero. */
KERNEL_TARGET static void KERNEL_NAME(pack_a)(const struct fuse_product_shape *shape, const float *a, int64_t rows,
                                              int64_t count, float *to)
{
    const int64_t tile_floats = count * KERNEL_ROWS, whole = rows / KERNEL_ROWS * KERNEL_ROWS;
    if (whole < rows)
        memset(to + whole * count, 0, (size_t)tile_floats * sizeof(float));
    if (shape->a_column != 1) {
        for (int64_t i = 0; i < count; i++) {
            const float *const from = a + i * shape->a_column;
            float *const at = to + i * KERNEL_ROWS;
            for (int64_t r = 0; r < whole; r += KERNEL_ROWS)
                memcpy(at + r * count, from + r, KERNEL_ROWS * sizeof(float));
            for (int64_t r = whole; r < rows; r++)
                at[whole * count + r - whole] = from[r];
        }
        return;
    }
    for (int64_t first = 0; first < rows; first += KERNEL_ROWS) {
        const float *const from = a + first * shape->a_row;
        float *const at = to + first * count;
        const int64_t here = rows - first < KERNEL_ROWS ? rows - first : KERNEL_ROWS;
        int64_t r = 0;
        for (; r + 4 <= here; r += 4)
            transpose_4(from + r * shape->a_row, shape->a_row, count, at + r, KERNEL_ROWS);
        for (; r < here; r++)
            for (int64_t i = 0; i < count; i++)
                at[i * KERNEL_ROWS + r] = from[r * shape->a_row + i];
    }
}

/* One strip of c: columns [0, columns) of it, `rows` rows. Each tile fetches some lines of what is packed next. */
KERNEL_TARGET static void KERNEL_NAME(strip)(int64_t depth, int64_t rows, int64_t columns, const float *packed_a,
                                             const float *packed_b, bool add, const float *bias, float *c,
                                             int64_t c_row, struct ahead *ahead)
{
    for (int64_t r = 0; r < rows; r += KERNEL_ROWS) {
        const float *const a = packed_a + r * depth;
        float *const out = c + r * c_row;
        fetch_ahead(ahead);
        if (rows - r >= KERNEL_ROWS && columns == TILE_WIDTH)
            KERNEL_NAME(tile)(depth, a, packed_b, add, bias, out, c_row);
        else
            KERNEL_NAME(edge)
        (depth, a, packed_b, add, bias, out, c_row, rows - r < KERNEL_ROWS ? rows - r : KERNEL_ROWS, columns);
    }
}

/* Columns [begin, end) of c; begin is a multiple of TILE_WIDTH if b is packed already (shared_b, else NULL). */
KERNEL_TARGET static void KERNEL_NAME(columns)(const struct fuse_product_shape *shape, int64_t begin, int64_t end,
                                               const float *a, const float *b, const float *shared_b, const float *bias,
                                               float *c, float *workspace)
{
    const int64_t block_rows = block_size(shape->m, BLOCK_ROWS, KERNEL_ROWS);
    const int64_t block_depth = block_size(shape->k, BLOCK_DEPTH, 1), c_row = fuse_product_c_row(shape);
    const int64_t shared_columns = (shape->n + TILE_WIDTH - 1) / TILE_WIDTH * TILE_WIDTH;
    float *const own_b = workspace, *const packed_a = workspace + STRIPS * MAX_TILE_WIDTH * block_depth;
    for (int64_t k = 0; k < shape->k; k += block_depth) {
        const int64_t depth = k + block_depth < shape->k ? block_depth : shape->k - k;
        const bool add = k > 0 || shape->accumulate;
        for (int64_t i = 0; i < shape->m; i += block_rows) {
            const int64_t rows = i + block_rows < shape->m ? block_rows : shape->m - i;
            KERNEL_NAME(pack_a)(shape, a + i * shape->a_row + k * shape->a_column, rows, depth, packed_a);
            for (int64_t group = begin; group < end; group += STRIPS * TILE_WIDTH) {
                const int64_t stop = group + STRIPS * TILE_WIDTH < end ? group + STRIPS * TILE_WIDTH : end;
                const float *const packed_b = shared_b != NULL ? shared_b + k * shared_columns + group * depth : own_b;
                struct ahead ahead = {0};
                if (shared_b == NULL) {
                    KERNEL_NAME(pack_b)
                    (shape, b + k * shape->b_row + group * shape->b_column, depth, stop - group, own_b);
                    const int64_t tiles = STRIPS * ((rows + KERNEL_ROWS - 1) / KERNEL_ROWS);
                    if (stop < end)
                        ahead = look_ahead(shape, b, k, depth, stop, end, tiles, STRIPS * TILE_WIDTH);
                    else if (i + block_rows < shape->m)
                        ahead = look_ahead(shape, b, k, depth, begin, end, tiles, STRIPS * TILE_WIDTH);
                    else
                        ahead = look_ahead(shape, b, k + depth, block_depth, begin, end, tiles, STRIPS * TILE_WIDTH);
                }
                for (int64_t j = group; j < stop; j += TILE_WIDTH)
                    KERNEL_NAME(strip)
                (depth, rows, stop - j < TILE_WIDTH ? stop - j : TILE_WIDTH, packed_a, packed_b + (j - group) * depth,
                 add, k == 0 && shape->has_bias ? bias + j : NULL, c + i * c_row + j, c_row, &ahead);
            }
        }
    }
}

/* Columns [begin, end) of b as columns() takes them: block of depth after block, strip after strip. begin is a multiple
 * of TILE_WIDTH. */
KERNEL_TARGET static void KERNEL_NAME(share_b)(const struct fuse_product_shape *shape, int64_t begin, int64_t end,
                                               const float *b, float *shared_b)
{
    const int64_t block_depth = block_size(shape->k, BLOCK_DEPTH, 1);
    const int64_t shared_columns = (shape->n + TILE_WIDTH - 1) / TILE_WIDTH * TILE_WIDTH;
    for (int64_t k = 0; k < shape->k; k += block_depth) {
        const int64_t depth = k + block_depth < shape->k ? block_depth : shape->k - k;
        KERNEL_NAME(pack_b)
        (shape, b + k * shape->b_row + begin * shape->b_column, depth, end - begin,
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
