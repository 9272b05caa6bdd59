/* What bfloat16 needs around cuBLAS, whose factors have to be of one type: a factor in float32 (a weight, a first
 * layer's input) is rounded into the workspace for the product, a tile of the result at a time, so that the room for it
 * has a bound. Whatever the tiles, each element of the result is one product over the whole length, summed in float32
 * and rounded once: where something is added to it, cuBLAS leaves the sums in float32 first. */
#include "product.h"

/* Of a rounded factor, and of sums, that exist at a time; more only for rows or columns that are longer than
 * TILE_ELEMENTS / TILE_LEAST. */
#define TILE_ELEMENTS (4 << 20)
#define TILE_LEAST 64

struct tiles {
    bool rounds_a, rounds_b;
    bool has_sums;         /* float32, on the way to c in bfloat16 */
    int64_t rows, columns; /* of c */
    uint64_t a_bytes, b_bytes, sums_bytes;
};

/* Rows or columns of that length, of `all`: a multiple of 16, so that every tile begins where tensor cores like it. */
static int64_t tile_length(int64_t all, int64_t length)
{
    int64_t count = TILE_ELEMENTS / length / 16 * 16;
    count = count < TILE_LEAST ? TILE_LEAST : count;
    return count < all ? count : all;
}

static struct tiles tiles_of(const struct fuse_product *product, bool has_bias)
{
    struct tiles tiles = {
        .rounds_a = product->is_bfloat16 && !product->a_is_bfloat16,
        .rounds_b = product->is_bfloat16 && !product->b_is_bfloat16,
        .has_sums = product->c_is_bfloat16 && has_bias,
        .rows = product->m,
        .columns = product->n,
    };
    if (tiles.rounds_b)
        tiles.columns = tile_length(product->n, product->k);
    if (tiles.rounds_a)
        tiles.rows = tile_length(product->m, product->k);
    if (tiles.has_sums) {
        const int64_t rows = tile_length(product->m, tiles.columns);
        tiles.rows = rows < tiles.rows ? rows : tiles.rows;
        tiles.sums_bytes = fuse_round_up((uint64_t)(tiles.rows * tiles.columns) * sizeof(float), 64);
    }
    if (tiles.rounds_a)
        tiles.a_bytes = fuse_round_up((uint64_t)(tiles.rows * product->k) * sizeof(uint16_t), 64);
    if (tiles.rounds_b)
        tiles.b_bytes = fuse_round_up((uint64_t)(tiles.columns * product->k) * sizeof(uint16_t), 64);
    return tiles;
}

uint64_t fuse_product_workspace_bytes(const struct fuse_product *product, bool has_bias)
{
    const struct tiles tiles = tiles_of(product, has_bias);
    return tiles.a_bytes + tiles.b_bytes + tiles.sums_bytes;
}

int fuse_cuda_place_rows(struct fuse_cuda *cuda, const struct fuse_rows_arguments *rows, struct fuse_error *error)
{
    const int64_t count = rows->rows * rows->columns;
    if (rows->bias != NULL || rows->from_stride != rows->columns || rows->to_stride != rows->columns) {
        const int64_t chunks = rows->rows * ((rows->columns + FUSE_ROW_CHUNK - 1) / FUSE_ROW_CHUNK);
        return FUSE_LAUNCH(cuda, place_rows, fuse_cuda_blocks(cuda, chunks * FUSE_BLOCK), rows, error);
    }
    const struct fuse_elementwise_arguments whole = {
        .a = rows->from, .out = rows->to, .count = count, .bfloat16 = rows->bfloat16, .adds = rows->adds};
    return FUSE_LAUNCH(cuda, copy, fuse_cuda_blocks(cuda, count), &whole, error);
}

/* A factor (rows, columns), or a part of it, becomes dense bfloat16; its strides become those of that. */
static int round_factor(struct fuse_cuda *cuda, const void *from, int64_t rows, int64_t columns, void *to,
                        int64_t *row_stride, int64_t *column_stride, struct fuse_error *error)
{
    const bool has_rows = fuse_product_has_rows(*row_stride, *column_stride, columns);
    const struct fuse_rows_arguments lines = {
        .from = from,
        .to = to,
        .rows = has_rows ? rows : columns,
        .columns = has_rows ? columns : rows,
        .from_stride = has_rows ? *row_stride : *column_stride,
        .to_stride = has_rows ? columns : rows,
        .bfloat16 = FUSE_BFLOAT16_OUT,
    };
    *row_stride = has_rows ? columns : 1;
    *column_stride = has_rows ? 1 : rows;
    return fuse_cuda_place_rows(cuda, &lines, error);
}

/* A tile of c: part is its product but for a, which is `a_part` as it lies in memory. */
static int run_tile(struct fuse_cuda *cuda, const struct tiles *tiles, struct fuse_product part, const void *a,
                    const void *b, const float *bias, void *c, char *workspace, struct fuse_error *error)
{
    const struct fuse_product whole = part;
    void *const rounded_a = workspace + tiles->b_bytes, *const sums = workspace + tiles->b_bytes + tiles->a_bytes;
    if (tiles->rounds_a)
        FUSE_TRY(round_factor(cuda, a, part.m, part.k, rounded_a, &part.a_row, &part.a_column, error));
    if (tiles->has_sums) {
        part.c_is_bfloat16 = false;
        part.c_row = part.n;
    }
    FUSE_TRY(fuse_product_run(cuda, &part, tiles->rounds_a ? rounded_a : a, b, tiles->has_sums ? sums : c, error));
    if (bias == NULL)
        return FUSERUN_OK;
    const struct fuse_rows_arguments rows = {.from = tiles->has_sums ? sums : c,
                                             .bias = bias,
                                             .to = c,
                                             .rows = part.m,
                                             .columns = part.n,
                                             .from_stride = part.c_row,
                                             .to_stride = whole.c_row,
                                             .bfloat16 = tiles->has_sums ? FUSE_BFLOAT16_OUT : 0};
    return fuse_cuda_place_rows(cuda, &rows, error);
}

int fuse_product_run_rounded(struct fuse_cuda *cuda, const struct fuse_product *product, const void *a, const void *b,
                             const float *bias, void *c, void *workspace, struct fuse_error *error)
{
    const struct tiles tiles = tiles_of(product, bias != NULL);
    for (int64_t column = 0; column < product->n; column += tiles.columns) {
        struct fuse_product part = *product;
        const void *b_part = fuse_element(b, column * product->b_column, product->b_is_bfloat16);
        part.n = column + tiles.columns < product->n ? tiles.columns : product->n - column;
        if (tiles.rounds_b) {
            FUSE_TRY(round_factor(cuda, b_part, part.k, part.n, workspace, &part.b_row, &part.b_column, error));
            b_part = workspace;
        }
        for (int64_t row = 0; row < product->m; row += tiles.rows) {
            part.m = row + tiles.rows < product->m ? tiles.rows : product->m - row;
            FUSE_TRY(run_tile(cuda, &tiles, part, fuse_element(a, row * product->a_row, product->a_is_bfloat16), b_part,
                              bias != NULL ? bias + column : NULL,
                              fuse_element(c, row * product->c_row + column, product->c_is_bfloat16), workspace,
                              error));
        }
    }
    return FUSERUN_OK;
}
