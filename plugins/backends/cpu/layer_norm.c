/* Layer normalization (Ba, Kiros, Hinton 2016), a row at a time: y = (x - mean) rstd w + b with
 * rstd = 1 / sqrt(variance + eps). The sums are in double, in two passes, so that a mean far from zero costs nothing.
 */
#include "bfloat16.h"
#include "threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLUMN_TILE 256
/* Sums over rows are made of so many parts, on any number of threads: as many threads, times the tiles of columns,
 * share them. */
#define ROW_PARTS 8
#define ROWS_AHEAD 8       /* of a tile of columns, fetched while rows are summed up */
#define WHOLE_ROWS_AHEAD 4 /* fetched while a row is normalized */

struct layer_norm {
    struct fuse_kernel kernel;
    int64_t rows, columns;
    int64_t piece; /* columns that are read and written at a time: all, unless they are bfloat16 */
    double eps;
    bool is_first_bfloat16, is_second_bfloat16, is_out_bfloat16; /* the first two inputs, and output 0 */
    bool accumulate;
};

/* One run. */
struct run {
    const struct layer_norm *self;
    struct fuse_values x, dy; /* (rows, columns) */
    struct fuse_values out;   /* y or dx (rows, columns) */
    const float *w, *b;       /* (columns) */
    const float *mean, *rstd; /* (rows) */
    double *parts;            /* (ROW_PARTS, columns): of dw */
    float *new_mean, *new_rstd;
};

static inline int64_t piece_at(const struct layer_norm *self, int64_t at)
{
    return at + self->piece < self->columns ? self->piece : self->columns - at;
}

FUSE_CLONES static void normalize_row(const struct run *run, int64_t row)
{
    const struct layer_norm *const self = run->self;
    const int64_t columns = self->columns, first = row * columns;
    float x_room[FUSE_ROOM_FLOATS], y_room[FUSE_ROOM_FLOATS];
    double sum = 0.0, squares = 0.0;
    if (row + WHOLE_ROWS_AHEAD < self->rows)
        fuse_values_fetch(run->x, first + WHOLE_ROWS_AHEAD * columns, columns);
    for (int64_t at = 0; at < columns; at += self->piece) {
        const int64_t count = piece_at(self, at);
        const float *const x = fuse_values_read(run->x, first + at, count, x_room);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += (double)x[i];
    }
    const double center = sum / (double)columns;
    for (int64_t at = 0; at < columns; at += self->piece) {
        const int64_t count = piece_at(self, at);
        const float *const x = fuse_values_read(run->x, first + at, count, x_room);
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < count; i++) {
            const double distance = (double)x[i] - center;
            squares += distance * distance;
        }
    }
    const float mean = (float)center, rstd = (float)(1.0 / sqrt(squares / (double)columns + self->eps));
    run->new_mean[row] = mean;
    run->new_rstd[row] = rstd;
    for (int64_t at = 0; at < columns; at += self->piece) {
        const int64_t count = piece_at(self, at);
        const float *const x = fuse_values_read(run->x, first + at, count, x_room);
        const float *const w = run->w + at, *const b = run->b + at;
        float *const y = fuse_values_target(run->out, first + at, y_room);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = (x[i] - mean) * rstd * w[i] + b[i];
        fuse_values_write(run->out, first + at, count, y);
    }
}

static void normalize(const void *context, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++)
        normalize_row(context, row);
}

/* With g = dy w and n = (x - mean) rstd: dx = rstd (g - avg(g) - n avg(g n)). */
FUSE_CLONES static void normalize_backward(const struct run *run, int64_t row)
{
    const struct layer_norm *const self = run->self;
    const int64_t columns = self->columns, first = row * columns;
    const float mean = run->mean[row], rstd = run->rstd[row];
    float x_room[FUSE_ROOM_FLOATS], dy_room[FUSE_ROOM_FLOATS], dx_room[FUSE_ROOM_FLOATS];
    double sum = 0.0, product = 0.0;
    if (row + WHOLE_ROWS_AHEAD < self->rows) {
        fuse_values_fetch(run->x, first + WHOLE_ROWS_AHEAD * columns, columns);
        fuse_values_fetch(run->dy, first + WHOLE_ROWS_AHEAD * columns, columns);
    }
    for (int64_t at = 0; at < columns; at += self->piece) {
        const int64_t count = piece_at(self, at);
        const float *const x = fuse_values_read(run->x, first + at, count, x_room), *const w = run->w + at;
        const float *const dy = fuse_values_read(run->dy, first + at, count, dy_room);
#pragma omp simd reduction(+ : sum, product)
        for (int64_t i = 0; i < count; i++) {
            const float g = dy[i] * w[i];
            sum += (double)g;
            product += (double)(g * ((x[i] - mean) * rstd));
        }
    }
    const float average = (float)(sum / (double)columns), slope = (float)(product / (double)columns);
    for (int64_t at = 0; at < columns; at += self->piece) {
        const int64_t count = piece_at(self, at);
        const float *const x = fuse_values_read(run->x, first + at, count, x_room), *const w = run->w + at;
        const float *const dy = fuse_values_read(run->dy, first + at, count, dy_room);
        float *const dx = fuse_values_target(run->out, first + at, dx_room);
        if (self->accumulate) {
            (void)fuse_values_read(run->out, first + at, count, dx_room);
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                dx[i] += rstd * (dy[i] * w[i] - average - (x[i] - mean) * rstd * slope);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                dx[i] = rstd * (dy[i] * w[i] - average - (x[i] - mean) * rstd * slope);
        }
        fuse_values_write(run->out, first + at, count, dx);
    }
}

static void differentiate(const void *context, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++)
        normalize_backward(context, row);
}

/* A part of the rows one after the other, a tile of columns at a time. Threads take other rows, not other columns: so
 * did the ops before, and what a core has is nearer to it. */
FUSE_CLONES static void sum_weight_tile(const struct run *run, int64_t part, int64_t begin, int64_t count)
{
    const int64_t columns = run->self->columns, end = (part + 1) * run->self->rows / ROW_PARTS;
    double sums[COLUMN_TILE] = {0};
    float x_room[COLUMN_TILE], dy_room[COLUMN_TILE];
    for (int64_t row = part * run->self->rows / ROW_PARTS; row < end; row++) {
        const int64_t next = (row + ROWS_AHEAD) * columns + begin;
        if (row + ROWS_AHEAD < end) {
            fuse_values_fetch(run->x, next, count);
            fuse_values_fetch(run->dy, next, count);
        }
        const float *const x = fuse_values_read(run->x, row * columns + begin, count, x_room);
        const float *const dy = fuse_values_read(run->dy, row * columns + begin, count, dy_room);
        const float mean = run->mean[row], rstd = run->rstd[row];
        for (int64_t i = 0; i < count; i++)
            sums[i] += (double)(dy[i] * ((x[i] - mean) * rstd));
    }
    memcpy(run->parts + part * columns + begin, sums, (size_t)count * sizeof(sums[0]));
}

static int64_t tile_count(const struct layer_norm *self)
{
    return (self->columns + COLUMN_TILE - 1) / COLUMN_TILE;
}

/* Tiles [begin, end), those of a part one behind the other. */
static void sum_weight(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    const int64_t columns = run->self->columns, tiles = tile_count(run->self);
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i % tiles * COLUMN_TILE;
        sum_weight_tile(run, i / tiles, first, first + COLUMN_TILE < columns ? COLUMN_TILE : columns - first);
    }
}

static int run_forward(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                       struct fuse_error *error)
{
    const struct layer_norm *const self = (const struct layer_norm *)kernel;
    (void)error;
    const struct run run = {.self = self,
                            .x = {call->inputs[0], self->is_first_bfloat16},
                            .w = call->inputs[1],
                            .b = call->inputs[2],
                            .out = {call->outputs[0], self->is_out_bfloat16},
                            .new_mean = call->outputs[1],
                            .new_rstd = call->outputs[2]};
    fuse_threads_split(cpu->thread_count, self->rows, 1, FUSE_SERIAL_ELEMENTS / self->columns, normalize, &run);
    return FUSERUN_OK;
}

static int run_input_gradient(const struct fuse_cpu *cpu, struct fuse_kernel *kernel,
                              const struct fuse_kernel_call *call, struct fuse_error *error)
{
    const struct layer_norm *const self = (const struct layer_norm *)kernel;
    (void)error;
    const struct run run = {.self = self,
                            .dy = {call->inputs[0], self->is_first_bfloat16},
                            .x = {call->inputs[1], self->is_second_bfloat16},
                            .w = call->inputs[2],
                            .mean = call->inputs[3],
                            .rstd = call->inputs[4],
                            .out = {call->outputs[0], self->is_out_bfloat16}};
    fuse_threads_split(cpu->thread_count, self->rows, 1, FUSE_SERIAL_ELEMENTS / self->columns, differentiate, &run);
    return FUSERUN_OK;
}

static int run_weight_gradient(const struct fuse_cpu *cpu, struct fuse_kernel *kernel,
                               const struct fuse_kernel_call *call, struct fuse_error *error)
{
    const struct layer_norm *const self = (const struct layer_norm *)kernel;
    (void)error;
    const struct run run = {.self = self,
                            .dy = {call->inputs[0], self->is_first_bfloat16},
                            .x = {call->inputs[1], self->is_second_bfloat16},
                            .mean = call->inputs[2],
                            .rstd = call->inputs[3],
                            .parts = call->workspace};
    float *const dw = call->outputs[0];
    const int64_t columns = self->columns, tiles = ROW_PARTS * tile_count(self);
    fuse_threads_split(cpu->thread_count, tiles, 1, self->rows * columns <= FUSE_SERIAL_ELEMENTS ? tiles : 0,
                       sum_weight, &run);
    for (int64_t i = 0; i < columns; i++) {
        double sum = self->accumulate ? (double)dw[i] : 0.0;
        for (int64_t part = 0; part < ROW_PARTS; part++)
            sum += run.parts[part * columns + i];
        dw[i] = (float)sum;
    }
    return FUSERUN_OK;
}

static void destroy(struct fuse_kernel *kernel)
{
    free(kernel);
}

int fuse_compile_layer_norm(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                            struct fuse_kernel_info *info, struct fuse_error *error)
{
    const struct fuse_operand *const in = op->inputs, *const out = op->outputs;
    struct layer_norm *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    self->kernel.run = op->kind == FUSERUN_OP_LAYER_NORM      ? run_forward
                       : op->kind == FUSERUN_OP_LAYER_NORM_DX ? run_input_gradient
                                                              : run_weight_gradient;
    self->kernel.destroy = destroy;
    self->rows = fuse_operand_rows(&in[0]);
    self->columns = fuse_operand_columns(&in[0]);
    self->is_first_bfloat16 = fuse_operand_is_bfloat16(&in[0]);
    self->is_second_bfloat16 = fuse_operand_is_bfloat16(&in[1]);
    self->is_out_bfloat16 = fuse_operand_is_bfloat16(&out[0]);
    self->piece =
        fuse_values_piece(self->is_first_bfloat16 || self->is_second_bfloat16 || self->is_out_bfloat16, self->columns);
    self->eps = op->numbers[0];
    self->accumulate = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    if (op->kind == FUSERUN_OP_LAYER_NORM_DW)
        info->workspace_bytes = (uint64_t)(ROW_PARTS * self->columns) * sizeof(double);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
