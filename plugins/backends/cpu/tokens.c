/* Images as sequences: patches, the class token, positions, and picking one token. They move numbers, and add them. */
#include "bfloat16.h"
#include "threads.h"

#include <stdlib.h>
#include <string.h>

struct tokens {
    struct fuse_kernel kernel;
    fuse_range_body *body;
    int64_t count;        /* what the body's range runs over */
    int64_t serial_count; /* so many of them are not worth waking threads */
    int64_t batch, tokens, width;
    int64_t channels, image_rows, image_columns, patch; /* PATCHES */
    int64_t index;                                      /* SELECT */
    bool is_x_bfloat16, is_out_bfloat16;                /* input 0 and output 0 */
    bool is_unary, accumulate;
};

/* One run: a and b are the inputs (b a parameter), out the output. */
struct run {
    const struct tokens *self;
    struct fuse_values a, b, out;
};

FUSE_CLONES static void add_all(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* `count` numbers of `to` from `at` on = those of `from` from `from_at` on, or += them. */
static void give(struct fuse_values to, int64_t at, struct fuse_values from, int64_t from_at, int64_t count, bool adds)
{
    float to_room[FUSE_ROOM_FLOATS], from_room[FUSE_ROOM_FLOATS];
    if (!adds && to.is_bfloat16 == from.is_bfloat16) {
        memcpy(fuse_values_at(to, at), fuse_values_at(from, from_at),
               (size_t)count * (to.is_bfloat16 ? sizeof(uint16_t) : sizeof(float)));
        return;
    }
    for (int64_t done = 0; done < count; done += FUSE_ROOM_FLOATS) {
        const int64_t some = done + FUSE_ROOM_FLOATS < count ? FUSE_ROOM_FLOATS : count - done;
        const float *const values = fuse_values_read(from, from_at + done, some, from_room);
        float *const target = fuse_values_target(to, at + done, to_room);
        if (adds) {
            (void)fuse_values_read(to, at + done, some, to_room);
            add_all(target, values, some);
        } else {
            memcpy(target, values, (size_t)some * sizeof(float));
        }
        fuse_values_write(to, at + done, some, target);
    }
}

/* Rows of patches: one of them is `patch` rows of pixels of every channel. */
static void cut_patches(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    const struct tokens *const self = run->self;
    const int64_t patch = self->patch, across = self->image_columns / patch, down = self->image_rows / patch;
    for (int64_t at = begin; at < end; at++) {
        const int64_t sample = at / down, top = at % down * patch;
        int64_t to = at * across * self->width;
        for (int64_t left = 0; left < self->image_columns; left += patch)
            for (int64_t channel = 0; channel < self->channels; channel++) {
                int64_t from =
                    ((sample * self->channels + channel) * self->image_rows + top) * self->image_columns + left;
                for (int64_t y = 0; y < patch; y++, from += self->image_columns, to += patch)
                    give(run->out, to, run->a, from, patch, false);
            }
    }
}

/* Tokens of the longer sequence. */
static void prepend(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    const int64_t tokens = run->self->tokens, width = run->self->width;
    for (int64_t at = begin; at < end; at++) {
        const int64_t sample = at / tokens, token = at % tokens;
        if (token == 0)
            give(run->out, at * width, run->b, 0, width, false);
        else
            give(run->out, at * width, run->a, (sample * (tokens - 1) + token - 1) * width, width, false);
    }
}

/* Tokens of the shorter sequence. */
static void prepend_dx(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    const int64_t tokens = run->self->tokens, width = run->self->width;
    for (int64_t at = begin; at < end; at++)
        give(run->out, at * width, run->a, (at + at / (tokens - 1) + 1) * width, width, run->self->accumulate);
}

/* a + b; in place is allowed: the loop says so. */
FUSE_CLONES static void add_positions(float *out, const float *a, const float *b, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

/* Elements of a sample. */
static void add_batch(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    const int64_t sample_count = run->self->tokens * run->self->width;
    const int64_t most = fuse_values_piece(run->a.is_bfloat16 || run->out.is_bfloat16, end - begin);
    float a_room[FUSE_ROOM_FLOATS], out_room[FUSE_ROOM_FLOATS];
    for (int64_t sample = 0; sample < run->self->batch; sample++)
        for (int64_t at = begin; at < end; at += most) {
            const int64_t count = at + most < end ? most : end - at, first = sample * sample_count + at;
            const float *const a = fuse_values_read(run->a, first, count, a_room);
            float *const out = fuse_values_target(run->out, first, out_room);
            add_positions(out, a, (const float *)run->b.at + at, count);
            fuse_values_write(run->out, first, count, out);
        }
}

static void select_token(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    const int64_t width = run->self->width;
    for (int64_t sample = begin; sample < end; sample++)
        give(run->out, sample * width, run->a, (sample * run->self->tokens + run->self->index) * width, width, false);
}

/* Tokens. */
static void select_dx(const void *context, int64_t begin, int64_t end)
{
    const struct run *const run = context;
    const int64_t tokens = run->self->tokens, width = run->self->width;
    for (int64_t at = begin; at < end; at++) {
        if (at % tokens == run->self->index)
            give(run->out, at * width, run->a, at / tokens * width, width, run->self->accumulate);
        else if (!run->self->accumulate)
            memset(fuse_values_at(run->out, at * width), 0,
                   (size_t)width * (run->out.is_bfloat16 ? sizeof(uint16_t) : sizeof(float)));
    }
}

static int run_body(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                    struct fuse_error *error)
{
    const struct tokens *const self = (const struct tokens *)kernel;
    (void)error;
    const struct run run = {self,
                            {call->inputs[0], self->is_x_bfloat16},
                            {self->is_unary ? NULL : call->inputs[1], false},
                            {call->outputs[0], self->is_out_bfloat16}};
    fuse_threads_split(cpu->thread_count, self->count, 1, self->serial_count, self->body, &run);
    return FUSERUN_OK;
}

/* `count` elements at the start of every sample, summed over the batch: the class token's gradient, or the positions'.
 */
static int run_batch_sum(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                         struct fuse_error *error)
{
    const struct tokens *const self = (const struct tokens *)kernel;
    (void)error;
    const struct fuse_values dy = {call->inputs[0], self->is_x_bfloat16};
    fuse_sum_columns(cpu, dy, self->batch, self->tokens * self->width, self->count, self->accumulate, call->outputs[0]);
    return FUSERUN_OK;
}

static void destroy(struct fuse_kernel *kernel)
{
    free(kernel);
}

/* Fills in the sizes. */
static void measure_patches(struct tokens *self, const struct fuse_op *op)
{
    const struct fuse_operand *const x = &op->inputs[0];
    const int64_t patch = op->integers[0];
    self->batch = x->shape[0];
    self->channels = x->shape[1];
    self->image_rows = x->shape[2];
    self->image_columns = x->shape[3];
    self->patch = patch;
    self->tokens = (self->image_rows / patch) * (self->image_columns / patch);
    self->width = self->channels * patch * patch;
    self->body = cut_patches;
    self->count = self->batch * (self->image_rows / patch);
    self->serial_count = FUSE_SERIAL_ELEMENTS / (self->channels * self->image_columns * patch);
}

static void measure_prepend(struct tokens *self, const struct fuse_op *op)
{
    const bool is_forward = op->kind == FUSERUN_OP_PREPEND;
    const struct fuse_operand *const longer = is_forward ? &op->outputs[0] : &op->inputs[0];
    self->batch = longer->shape[0];
    self->tokens = longer->shape[1];
    self->width = longer->shape[2];
    self->serial_count = FUSE_SERIAL_ELEMENTS / self->width;
    if (op->kind == FUSERUN_OP_PREPEND_DW) {
        self->count = self->width;
        return;
    }
    self->body = is_forward ? prepend : prepend_dx;
    self->count = self->batch * (is_forward ? self->tokens : self->tokens - 1);
}

static void measure_add_batch(struct tokens *self, const struct fuse_op *op)
{
    const struct fuse_operand *const x = &op->inputs[0];
    self->batch = x->shape[0];
    self->tokens = 1;
    self->width = fuse_operand_count(x) / x->shape[0];
    self->body = add_batch;
    self->count = self->width;
    self->serial_count = FUSE_SERIAL_ELEMENTS / self->batch;
}

static void measure_select(struct tokens *self, const struct fuse_op *op)
{
    const bool is_forward = op->kind == FUSERUN_OP_SELECT;
    const struct fuse_operand *const sequence = is_forward ? &op->inputs[0] : &op->outputs[0];
    self->index = op->integers[0];
    self->batch = sequence->shape[0];
    self->tokens = sequence->shape[1];
    self->width = sequence->shape[2];
    self->body = is_forward ? select_token : select_dx;
    self->count = is_forward ? self->batch : self->batch * self->tokens;
    self->serial_count = FUSE_SERIAL_ELEMENTS / self->width;
}

int fuse_compile_tokens(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                        struct fuse_kernel_info *info, struct fuse_error *error)
{
    (void)info;
    struct tokens *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    switch (op->kind) {
    case FUSERUN_OP_PATCHES:
        measure_patches(self, op);
        break;
    case FUSERUN_OP_ADD_BATCH:
    case FUSERUN_OP_ADD_BATCH_DW:
        measure_add_batch(self, op);
        break;
    case FUSERUN_OP_SELECT:
    case FUSERUN_OP_SELECT_DX:
        measure_select(self, op);
        break;
    default:
        measure_prepend(self, op);
    }
    const bool is_sum = op->kind == FUSERUN_OP_PREPEND_DW || op->kind == FUSERUN_OP_ADD_BATCH_DW;
    self->kernel.run = is_sum ? run_batch_sum : run_body;
    self->kernel.destroy = destroy;
    self->is_unary = op->input_count == 1;
    self->is_x_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[0]);
    self->is_out_bfloat16 = fuse_operand_is_bfloat16(&op->outputs[0]);
    self->accumulate = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
