/* Sums over rows: the gradients of whatever is added to every row. */
#include "bfloat16.h"
#include "threads.h"

#define COLUMN_TILE 256
#define ROWS_AHEAD 8

struct column_sums {
    struct fuse_values rows; /* (row_count, columns), row_stride apart */
    int64_t row_count, row_stride;
    bool accumulate;
    float *sums; /* (columns) */
};

/* Row after row in double, a tile of columns at a time: exact enough for any batch, and the same whatever the threads.
 */
FUSE_CLONES static void sum_tile(const struct column_sums *run, int64_t begin, int64_t count)
{
    double sums[COLUMN_TILE] = {0};
    float room[COLUMN_TILE];
    for (int64_t row = 0; row < run->row_count; row++) {
        if (row + ROWS_AHEAD < run->row_count)
            fuse_values_fetch(run->rows, (row + ROWS_AHEAD) * run->row_stride + begin, count);
        const float *const values = fuse_values_read(run->rows, row * run->row_stride + begin, count, room);
        for (int64_t i = 0; i < count; i++)
            sums[i] += (double)values[i];
    }
    for (int64_t i = 0; i < count; i++)
        run->sums[begin + i] = (float)(run->accumulate ? (double)run->sums[begin + i] + sums[i] : sums[i]);
}

static void sum_range(const void *context, int64_t begin, int64_t end)
{
    for (int64_t tile = begin; tile < end; tile += COLUMN_TILE)
        sum_tile(context, tile, tile + COLUMN_TILE < end ? COLUMN_TILE : end - tile);
}

void fuse_sum_columns(const struct fuse_cpu *cpu, struct fuse_values rows, int64_t row_count, int64_t row_stride,
                      int64_t columns, bool accumulate, float *sums)
{
    const struct column_sums run = {rows, row_count, row_stride, accumulate, sums};
    fuse_threads_split(cpu->thread_count, columns, 16, FUSE_SERIAL_ELEMENTS / row_count, sum_range, &run);
}
