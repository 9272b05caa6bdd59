/* Dropout: element i is 0 if random number i of the operation's stream is below p, else x / (1 - p). The same numbers
 * are drawn again for the derivative, so no mask is kept. */
#include "bfloat16.h"
#include "dropout.h"
#include "threads.h"

#include <stdlib.h>

struct dropout {
    struct fuse_kernel kernel;
    int64_t count;
    struct fuse_dropout dropout;
    bool is_x_bfloat16, is_y_bfloat16;
    bool accumulate;
};

struct run {
    const struct dropout *self;
    const struct fuse_host *host;
    uint64_t seed, draw;
    struct fuse_values x; /* (count) */
    struct fuse_values y; /* (count), maybe x */
};

/* A factor instead of a selection: what is dropped stays NaN if it was, as in PyTorch. */
FUSE_CLONES static void turn_into_factors(float *values, int64_t count, double probability, float scale)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)values[i] < probability ? 0.0f : scale;
}

void fuse_dropout_factors(const struct fuse_host *host, const struct fuse_dropout *dropout, uint64_t seed,
                          uint64_t draw, int64_t first, float *factors, int64_t count)
{
    host->random_uniform(seed, dropout->stream + draw, (uint64_t)first, factors, (size_t)count);
    turn_into_factors(factors, count, dropout->probability, (float)(1.0 / (1.0 - dropout->probability)));
}

FUSE_CLONES static void mask(float *y, const float *x, const float *factors, int64_t count, bool adds)
{
    if (adds) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] += x[i] * factors[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i] * factors[i];
    }
}

static void drop(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    float factors[FUSE_ROOM_FLOATS], x_room[FUSE_ROOM_FLOATS], y_room[FUSE_ROOM_FLOATS];
    for (int64_t at = begin; at < end; at += FUSE_ROOM_FLOATS) {
        const int64_t count = at + FUSE_ROOM_FLOATS < end ? FUSE_ROOM_FLOATS : end - at;
        const float *const x = fuse_values_read(run->x, at, count, x_room);
        float *const y = fuse_values_target(run->y, at, y_room);
        fuse_dropout_factors(run->host, &run->self->dropout, run->seed, run->draw, at, factors, count);
        if (run->self->accumulate)
            (void)fuse_values_read(run->y, at, count, y_room);
        mask(y, x, factors, count, run->self->accumulate);
        fuse_values_write(run->y, at, count, y);
    }
}

static int run_dropout(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                       struct fuse_error *error)
{
    const struct dropout *const self = (const struct dropout *)kernel;
    (void)error;
    const struct run run = {self,
                            cpu->host,
                            call->seed,
                            call->draw,
                            {call->inputs[0], self->is_x_bfloat16},
                            {call->outputs[0], self->is_y_bfloat16}};
    fuse_threads_split(cpu->thread_count, self->count, 16, FUSE_SERIAL_ELEMENTS / 8, drop, &run);
    return FUSERUN_OK;
}

static void destroy(struct fuse_kernel *kernel)
{
    free(kernel);
}

struct fuse_dropout fuse_dropout_read(const struct fuse_op *op, uint32_t stream_index)
{
    return (struct fuse_dropout){op->numbers[0], (uint64_t)op->integers[stream_index]};
}

int fuse_compile_dropout(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                         struct fuse_kernel_info *info, struct fuse_error *error)
{
    (void)info;
    struct dropout *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    self->kernel.run = run_dropout;
    self->kernel.destroy = destroy;
    self->count = fuse_operand_count(&op->inputs[0]);
    self->dropout = fuse_dropout_read(op, 0);
    self->is_x_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[0]);
    self->is_y_bfloat16 = fuse_operand_is_bfloat16(&op->outputs[0]);
    self->accumulate = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
