/* Multi-head attention: y = softmax(q k^T / sqrt d) v for each sample and head by itself. The probabilities of a head
 * exist only for a block of query rows at a time, in a worker's scratch; the backward pass makes them again from q, k
 * and the row's log of the sum of exponentials (T. Dao et al., "FlashAttention", 2022):
 *   p = exp(q k^T / sqrt d - lse), dv = p^T dy, dp = dy v^T, ds = p (dp - sum(dy y)) / sqrt d, dq = ds k, dk = ds^T q.
 * Every product runs on one thread, so the result does not depend on their number. */
#include "bfloat16.h"
#include "dropout.h"
#include "float_math.h"
#include "product.h"
#include "threads.h"

#include <stdlib.h>

/* Scores of one block: they stay in a core's cache, and long sequences cost no more memory. */
#define BLOCK_FLOATS 65536
#define BLOCK_MIN_ROWS 16
#define CHUNK_ELEMENTS 1024
#define ROWS_AHEAD 8         /* of y, fetched while a row is differentiated */
#define FETCHED_FLOATS 32768 /* of each of q, k, v, dy and y at most: most of it stays in a core's cache */
/* Multiplications below which waking threads costs more than it saves. */
#define SERIAL_PRODUCTS 500000.0

/* The products of a block of query rows; the last may be shorter, and all but the first add to dk and dv. Queries, keys
 * and values, what comes out and the gradients of all these may be bfloat16; scores and probabilities are floats,
 * rounded on their way into a product. */
struct block {
    int64_t rows;
    struct fuse_product *scores; /* q k^T, forward and backward */
    struct fuse_product *values; /* p v */
    struct fuse_product *dp, *dv, *dk, *dq;
};

enum { FIRST_BLOCK, MIDDLE_BLOCK, LAST_BLOCK, BLOCK_KINDS };

struct attention {
    struct fuse_kernel kernel;
    int64_t batch, tokens, heads, head_width;
    int64_t width; /* heads * head_width */
    double scale;
    struct fuse_dropout dropout;
    int64_t block_rows, block_count;
    int64_t score_row; /* floats from one row of scores to the next */
    bool is_padded;    /* to whole lines; a library's bfloat16 products want dense rows */
    struct block blocks[BLOCK_KINDS];
    int64_t block_floats; /* from one block's scratch to the next */
    int64_t sum_floats;   /* of scratch behind two blocks: dk and dv where several blocks add to them and they are
                             bfloat16, which is rounded once; else 0 */
    bool is_qkv_bfloat16, is_dy_bfloat16, is_y_bfloat16, is_out_bfloat16;
    bool accumulate;
    uint64_t worker_bytes; /* from one worker's scratch to the next */
};

/* One run. */
struct run {
    const struct attention *self;
    const struct fuse_host *host;
    uint64_t seed, draw;
    struct fuse_values qkv;   /* (B, S, 3 D) */
    struct fuse_values dy, y; /* (B, S, D) */
    const float *lse;         /* (B, H, S) */
    struct fuse_values out;   /* y (B, S, D), or dqkv (B, S, 3 D) */
    float *new_lse;           /* (B, H, S) */
    char *workspace;
    struct fuse_error *error;
    int status; /* the first failure's */
};

/* Where one sample's head lies. */
struct head {
    const void *k, *v;     /* rows 3 D apart */
    int64_t row;           /* of its first query among all (B, H, S) */
    int64_t input_offset;  /* of its q in qkv */
    int64_t output_offset; /* of its y in y */
};

static struct head find_head(const struct run *run, int64_t task)
{
    const struct attention *const self = run->self;
    const int64_t sample = task / self->heads, head = task % self->heads;
    const int64_t in = sample * self->tokens * 3 * self->width + head * self->head_width;
    return (struct head){.k = fuse_values_at(run->qkv, in + self->width),
                         .v = fuse_values_at(run->qkv, in + 2 * self->width),
                         .row = task * self->tokens,
                         .input_offset = in,
                         .output_offset = sample * self->tokens * self->width + head * self->head_width};
}

/* A head's rows of `values`, `stride` apart from `first` on. */
static void fetch_rows(const struct attention *self, struct fuse_values values, int64_t first, int64_t stride)
{
    for (int64_t i = 0; i < self->tokens && self->tokens * self->head_width <= FETCHED_FLOATS; i++)
        fuse_values_fetch(values, first + i * stride, self->head_width);
}

static void fetch_head(const struct run *run, const struct head *head)
{
    const int64_t width = run->self->width;
    for (int64_t part = 1; part <= 3; part++) /* k first */
        fetch_rows(run->self, run->qkv, head->input_offset + part % 3 * width, 3 * width);
}

static const struct block *find_block(const struct attention *self, int64_t index)
{
    if (index == 0)
        return &self->blocks[FIRST_BLOCK];
    return &self->blocks[index + 1 < self->block_count ? MIDDLE_BLOCK : LAST_BLOCK];
}

/* A worker's scratch: two blocks of scores, sums of dk and dv, then what a product wants. */
static float *scratch_of(const struct run *run, int worker)
{
    return (float *)(void *)(run->workspace + (uint64_t)worker * run->self->worker_bytes);
}

static void *product_scratch_of(const struct run *run, int worker)
{
    return scratch_of(run, worker) + 2 * run->self->block_floats + run->self->sum_floats;
}

/* So many scores of a row are taken at a time: what a compiler does with the last few, one by one, took as long as the
 * row. Padded rows have room for whole numbers of these; the last of others go through a room. */
#define LANES 16

FUSE_INLINE float *take_last(float *scores, int64_t count, bool is_padded, float *room)
{
    if (is_padded)
        return scores;
    for (int64_t i = 0; i < LANES; i++)
        room[i] = i < count ? scores[i] : 0.0f;
    return room;
}

FUSE_INLINE void put_last(float *scores, int64_t count, const float *last)
{
    for (int64_t i = 0; i < count && last != scores; i++)
        scores[i] = last[i];
}

FUSE_INLINE void exponentiate(float *scores, float largest, float slope)
{
#pragma omp simd
    for (int64_t i = 0; i < LANES; i++)
        scores[i] = fuse_exp_float((scores[i] - largest) * slope);
}

FUSE_INLINE void add_up(double *sums, const float *scores)
{
#pragma omp simd
    for (int64_t i = 0; i < LANES; i++)
        sums[i] += (double)scores[i];
}

/* Pair by pair: a reduction that the compiler makes is a chain of all lanes, longer than a short row. */
FUSE_INLINE double sum_lanes(double *lanes)
{
    for (int64_t i = 0; i < LANES / 2; i++)
        lanes[i] += lanes[i + LANES / 2];
    for (int64_t i = 0; i < LANES / 4; i++)
        lanes[i] += lanes[i + LANES / 4];
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

/* scores (count) become probabilities, what pads them zeros; returns the log of the sum of exponentials. */
FUSE_CLONES static float softmax_row(float *scores, int64_t count, bool is_padded, double scale)
{
    const float largest = fuse_largest(scores, count);
    const float slope = (float)scale;
    const int64_t whole = count / LANES * LANES, rest = count - whole;
    double sums[LANES] = {0};
    float room[LANES];
    for (int64_t i = 0; i < whole; i += LANES) {
        exponentiate(scores + i, largest, slope);
        add_up(sums, scores + i);
    }
    if (rest > 0) {
        float *const last = take_last(scores + whole, rest, is_padded, room);
        exponentiate(last, largest, slope);
        for (int64_t i = rest; i < LANES; i++)
            last[i] = 0.0f;
        add_up(sums, last);
        put_last(scores + whole, rest, last);
    }
    const double sum = sum_lanes(sums);
    const float factor = (float)(1.0 / sum);
    const int64_t end = is_padded && rest > 0 ? whole + LANES : count;
#pragma omp simd
    for (int64_t i = 0; i < end; i++)
        scores[i] *= factor;
    return (float)((double)largest * scale + log(sum));
}

FUSE_CLONES static void mask_probabilities(float *values, const float *factors, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] *= factors[i];
}

/* Multiplies a row of (probabilities) by what dropout does to each. row: among all (B, H, S). */
static void drop_row(const struct run *run, int64_t row, float *values)
{
    const int64_t tokens = run->self->tokens;
    float factors[CHUNK_ELEMENTS];
    for (int64_t at = 0; at < tokens; at += CHUNK_ELEMENTS) {
        const int64_t count = at + CHUNK_ELEMENTS < tokens ? CHUNK_ELEMENTS : tokens - at;
        fuse_dropout_factors(run->host, &run->self->dropout, run->seed, run->draw, row * tokens + at, factors, count);
        mask_probabilities(values + at, factors, count);
    }
}

static int attend_block(const struct run *run, int64_t task, int worker, struct fuse_error *error)
{
    const struct attention *const self = run->self;
    const struct head head = find_head(run, task / self->block_count);
    const int64_t index = task % self->block_count, first = index * self->block_rows;
    const struct block *const block = find_block(self, index);
    float *const scores = scratch_of(run, worker);
    void *const scratch = product_scratch_of(run, worker);
    const void *const q = fuse_values_at(run->qkv, head.input_offset + first * 3 * self->width);
    fetch_head(run, &head);
    FUSE_TRY(fuse_product_run(block->scores, worker, q, head.k, NULL, scores, scratch, error));
    for (int64_t i = 0; i < block->rows; i++) {
        float *const row = scores + i * self->score_row;
        run->new_lse[head.row + first + i] = softmax_row(row, self->tokens, self->is_padded, self->scale);
        if (self->dropout.probability > 0.0)
            drop_row(run, head.row + first + i, row);
    }
    return fuse_product_run(block->values, worker, scores, head.v, NULL,
                            fuse_values_at(run->out, head.output_offset + first * self->width), scratch, error);
}

FUSE_INLINE void differentiate_lanes(float *scores, float *dp, float slope, float lse, float sum)
{
#pragma omp simd
    for (int64_t i = 0; i < LANES; i++) {
        const float p = fuse_exp_negative(scores[i] * slope - lse);
        scores[i] = p;
        dp[i] = p * (dp[i] - sum) * slope;
    }
}

/* scores (count) become probabilities, dp becomes ds; what pads them is of no use afterwards. */
FUSE_CLONES static void differentiate_softmax(float *scores, float *dp, int64_t count, bool is_padded, double scale,
                                              float lse, float sum)
{
    const int64_t whole = count / LANES * LANES, rest = count - whole;
    float scores_room[LANES], dp_room[LANES];
    for (int64_t i = 0; i < whole; i += LANES)
        differentiate_lanes(scores + i, dp + i, (float)scale, lse, sum);
    if (rest > 0) {
        float *const last = take_last(scores + whole, rest, is_padded, scores_room);
        float *const last_dp = take_last(dp + whole, rest, is_padded, dp_room);
        differentiate_lanes(last, last_dp, (float)scale, lse, sum);
        put_last(scores + whole, rest, last);
        put_last(dp + whole, rest, last_dp);
    }
}

FUSE_CLONES static double dot(const float *a, const float *b, int64_t count)
{
    const int64_t whole = count / LANES * LANES;
    double lanes[LANES] = {0};
    for (int64_t i = 0; i < whole; i += LANES) {
#pragma omp simd
        for (int64_t j = 0; j < LANES; j++)
            lanes[j] += (double)a[i + j] * (double)b[i + j];
    }
    for (int64_t i = whole; i < count; i++)
        lanes[i - whole] += (double)a[i] * (double)b[i];
    return sum_lanes(lanes);
}

/* Of dy and y: from `at` on, a head's width. */
static double dot_rows(const struct run *run, int64_t at)
{
    const int64_t width = run->self->head_width;
    const int64_t most = fuse_values_piece(run->dy.is_bfloat16 || run->y.is_bfloat16, width);
    float dy[FUSE_ROOM_FLOATS], y[FUSE_ROOM_FLOATS];
    double sum = 0.0;
    for (int64_t i = 0; i < width; i += most) {
        const int64_t count = i + most < width ? most : width - i;
        sum += dot(fuse_values_read(run->dy, at + i, count, dy), fuse_values_read(run->y, at + i, count, y), count);
    }
    return sum;
}

/* The sums of a head's dk and dv (S, d each), rounded into their places. */
static void put_sums(const struct run *run, const struct head *head, const float *sums)
{
    const struct attention *const self = run->self;
    float room[FUSE_ROOM_FLOATS];
    for (int64_t row = 0; row < 2 * self->tokens; row++) {
        const int64_t token = row % self->tokens, part = 1 + row / self->tokens;
        const int64_t to = head->input_offset + token * 3 * self->width + part * self->width;
        for (int64_t i = 0; i < self->head_width; i += FUSE_ROOM_FLOATS) {
            const int64_t left = self->head_width - i, count = left < FUSE_ROOM_FLOATS ? left : FUSE_ROOM_FLOATS;
            const float *const from = sums + row * self->head_width + i;
            for (int64_t j = 0; j < count && !self->accumulate; j++)
                room[j] = from[j];
            if (self->accumulate) {
                (void)fuse_values_read(run->out, to + i, count, room);
                for (int64_t j = 0; j < count; j++)
                    room[j] += from[j];
            }
            fuse_values_write(run->out, to + i, count, room);
        }
    }
}

static int differentiate_block(const struct run *run, const struct head *head, int64_t index, int worker,
                               struct fuse_error *error)
{
    const struct attention *const self = run->self;
    const struct block *const block = find_block(self, index);
    const int64_t first = index * self->block_rows, out = head->output_offset + first * self->width;
    const int64_t in = head->input_offset + first * 3 * self->width;
    const void *const q = fuse_values_at(run->qkv, in), *const dy = fuse_values_at(run->dy, out);
    float *const scores = scratch_of(run, worker), *const dp = scores + self->block_floats;
    float *const sums = dp + self->block_floats;
    const bool has_sums = self->sum_floats > 0;
    void *const dq = fuse_values_at(run->out, in);
    void *const dk = has_sums ? sums : fuse_values_at(run->out, head->input_offset + self->width);
    void *const dv = has_sums ? sums + self->tokens * self->head_width
                              : fuse_values_at(run->out, head->input_offset + 2 * self->width);
    void *const scratch = product_scratch_of(run, worker);
    FUSE_TRY(fuse_product_run(block->scores, worker, q, head->k, NULL, scores, scratch, error));
    FUSE_TRY(fuse_product_run(block->dp, worker, dy, head->v, NULL, dp, scratch, error));
    for (int64_t i = 0; i < block->rows; i++) {
        const int64_t row = head->row + first + i;
        float *const s = scores + i * self->score_row, *const ds = dp + i * self->score_row;
        if (i + ROWS_AHEAD < block->rows)
            fuse_values_fetch(run->y, out + (i + ROWS_AHEAD) * self->width, self->head_width);
        const float sum = (float)dot_rows(run, out + i * self->width);
        if (self->dropout.probability > 0.0)
            drop_row(run, row, ds);
        differentiate_softmax(s, ds, self->tokens, self->is_padded, self->scale, run->lse[row], sum);
        if (self->dropout.probability > 0.0)
            drop_row(run, row, s);
    }
    FUSE_TRY(fuse_product_run(block->dv, worker, scores, dy, NULL, dv, scratch, error));
    FUSE_TRY(fuse_product_run(block->dk, worker, dp, q, NULL, dk, scratch, error));
    return fuse_product_run(block->dq, worker, dp, head->k, NULL, dq, scratch, error);
}

static void attend(const void *context, int64_t task, int worker)
{
    struct run *const run = *(struct run *const *)context;
    struct fuse_error error = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_error, text)};
    const int status = attend_block(run, task, worker, &error);
    if (status != FUSERUN_OK)
        fuse_keep_failure(&run->status, run->error, status, &error);
}

/* A head's blocks in order: each adds to the head's dk and dv. */
static void differentiate(const void *context, int64_t task, int worker)
{
    struct run *const run = *(struct run *const *)context;
    struct fuse_error error = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_error, text)};
    const struct head head = find_head(run, task);
    int status = FUSERUN_OK;
    fetch_head(run, &head);
    fetch_rows(run->self, run->dy, head.output_offset, run->self->width);
    fetch_rows(run->self, run->y, head.output_offset, run->self->width);
    for (int64_t i = 0; i < run->self->block_count && status == FUSERUN_OK; i++)
        status = differentiate_block(run, &head, i, worker, &error);
    if (status == FUSERUN_OK && run->self->sum_floats > 0)
        put_sums(run, &head, scratch_of(run, worker) + 2 * run->self->block_floats);
    if (status != FUSERUN_OK)
        fuse_keep_failure(&run->status, run->error, status, &error);
}

static int threads_for(const struct fuse_cpu *cpu, const struct attention *self)
{
    const double products = (double)(self->batch * self->tokens) * (double)(self->tokens * self->width);
    return products < SERIAL_PRODUCTS ? 1 : cpu->thread_count;
}

static int run_forward(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                       struct fuse_error *error)
{
    const struct attention *const self = (const struct attention *)kernel;
    struct run run = {.self = self,
                      .host = cpu->host,
                      .seed = call->seed,
                      .draw = call->draw,
                      .qkv = {call->inputs[0], self->is_qkv_bfloat16},
                      .out = {call->outputs[0], self->is_out_bfloat16},
                      .new_lse = call->outputs[1],
                      .workspace = call->workspace,
                      .error = error,
                      .status = FUSERUN_OK};
    const struct run *const context = &run;
    fuse_threads_tasks(threads_for(cpu, self), self->batch * self->heads * self->block_count, attend, &context);
    return run.status;
}

static int run_backward(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                        struct fuse_error *error)
{
    const struct attention *const self = (const struct attention *)kernel;
    struct run run = {.self = self,
                      .host = cpu->host,
                      .seed = call->seed,
                      .draw = call->draw,
                      .dy = {call->inputs[0], self->is_dy_bfloat16},
                      .qkv = {call->inputs[1], self->is_qkv_bfloat16},
                      .y = {call->inputs[2], self->is_y_bfloat16},
                      .lse = call->inputs[3],
                      .out = {call->outputs[0], self->is_out_bfloat16},
                      .workspace = call->workspace,
                      .error = error,
                      .status = FUSERUN_OK};
    const struct run *const context = &run;
    fuse_threads_tasks(threads_for(cpu, self), self->batch * self->heads, differentiate, &context);
    return run.status;
}

/* ---- compiling ----------------------------------------------------------------------------------------------- */

static void destroy(struct fuse_kernel *kernel)
{
    struct attention *const self = (struct attention *)kernel;
    for (int i = 0; i < BLOCK_KINDS; i++) {
        struct block *const block = &self->blocks[i];
        struct fuse_product **const products[] = {&block->scores, &block->values, &block->dp,
                                                  &block->dv,     &block->dk,     &block->dq};
        for (size_t j = 0; j < sizeof(products) / sizeof(products[0]); j++)
            fuse_product_free(products[j]);
    }
    free(self);
}

/* Scores and dp are (rows, S); q, k, v and their gradients have rows 3 D apart, y and dy D. */
static int create_products(struct fuse_cpu *cpu, const struct attention *self, struct block *block, bool is_backward,
                           bool is_first, struct fuse_error *error)
{
    const int64_t rows = block->rows, tokens = self->tokens, d = self->head_width;
    const int64_t in = 3 * self->width, out = self->width;
    const bool has_sums = self->sum_floats > 0;
    const struct fuse_product_shape all = {.worker_count = cpu->thread_count, .is_bfloat16 = cpu->is_bfloat16};
    struct fuse_product_shape scores = all, values = all, dp = all, dv = all, dk, dq = all;
    scores.m = rows, scores.n = tokens, scores.k = d;
    scores.a_row = in, scores.a_column = 1, scores.b_row = 1, scores.b_column = in, scores.c_row = self->score_row;
    scores.a_is_bfloat16 = scores.b_is_bfloat16 = self->is_qkv_bfloat16;

    values.m = rows, values.n = d, values.k = tokens;
    values.a_row = self->score_row, values.a_column = 1, values.b_row = in, values.b_column = 1, values.c_row = out;
    values.b_is_bfloat16 = self->is_qkv_bfloat16;
    values.c_is_bfloat16 = self->is_out_bfloat16;

    dp.m = rows, dp.n = tokens, dp.k = d;
    dp.a_row = out, dp.a_column = 1, dp.b_row = 1, dp.b_column = in, dp.c_row = self->score_row;
    dp.a_is_bfloat16 = self->is_dy_bfloat16;
    dp.b_is_bfloat16 = self->is_qkv_bfloat16;

    dv.m = tokens, dv.n = d, dv.k = rows;
    dv.a_row = 1, dv.a_column = self->score_row, dv.b_row = out, dv.b_column = 1, dv.c_row = has_sums ? d : in;
    dv.b_is_bfloat16 = self->is_dy_bfloat16;
    dv.c_is_bfloat16 = self->is_out_bfloat16 && !has_sums;
    dv.accumulate = !is_first || (self->accumulate && !has_sums);

    dk = dv;
    dk.b_row = in;
    dk.b_is_bfloat16 = self->is_qkv_bfloat16;

    dq.m = rows, dq.n = d, dq.k = tokens;
    dq.a_row = self->score_row, dq.a_column = 1, dq.b_row = in, dq.b_column = 1, dq.c_row = in;
    dq.b_is_bfloat16 = self->is_qkv_bfloat16;
    dq.c_is_bfloat16 = self->is_out_bfloat16;
    dq.accumulate = self->accumulate;
    FUSE_TRY(fuse_product_create(cpu->products, &scores, &block->scores, error));
    if (!is_backward)
        return fuse_product_create(cpu->products, &values, &block->values, error);
    FUSE_TRY(fuse_product_create(cpu->products, &dp, &block->dp, error));
    FUSE_TRY(fuse_product_create(cpu->products, &dv, &block->dv, error));
    FUSE_TRY(fuse_product_create(cpu->products, &dk, &block->dk, error));
    return fuse_product_create(cpu->products, &dq, &block->dq, error);
}

static uint64_t largest_workspace(const struct attention *self)
{
    uint64_t largest = 0;
    for (int i = 0; i < BLOCK_KINDS; i++) {
        const struct block *const block = &self->blocks[i];
        const struct fuse_product *const products[] = {block->scores, block->values, block->dp,
                                                       block->dv,     block->dk,     block->dq};
        for (size_t j = 0; j < sizeof(products) / sizeof(products[0]); j++) {
            const uint64_t bytes = products[j] != NULL ? fuse_product_workspace_bytes(products[j]) : 0;
            largest = bytes > largest ? bytes : largest;
        }
    }
    return largest;
}

static int create_blocks(struct fuse_cpu *cpu, struct attention *self, bool is_backward, struct fuse_error *error)
{
    int64_t rows = BLOCK_FLOATS / self->tokens;
    rows = rows < BLOCK_MIN_ROWS ? BLOCK_MIN_ROWS : rows;
    self->block_rows = rows < self->tokens ? rows : self->tokens;
    self->block_count = (self->tokens + self->block_rows - 1) / self->block_rows;
    self->is_padded = !cpu->is_bfloat16;
    self->score_row = self->is_padded ? (self->tokens + LANES - 1) / LANES * LANES : self->tokens;
    self->block_floats = (self->block_rows * self->score_row + LANES - 1) / LANES * LANES;
    if (is_backward && self->is_out_bfloat16 && self->block_count > 1)
        self->sum_floats = (2 * self->tokens * self->head_width + 15) / 16 * 16;
    for (int i = 0; i < BLOCK_KINDS; i++) {
        struct block *const block = &self->blocks[i];
        const int64_t needed_from[BLOCK_KINDS] = {1, 3, 2};
        if (self->block_count < needed_from[i])
            continue;
        block->rows = i == LAST_BLOCK ? self->tokens - (self->block_count - 1) * self->block_rows : self->block_rows;
        FUSE_TRY(create_products(cpu, self, block, is_backward, i == FIRST_BLOCK, error));
    }
    self->worker_bytes = (uint64_t)(2 * self->block_floats + self->sum_floats) * sizeof(float) +
                         fuse_round_up(largest_workspace(self), 64);
    return FUSERUN_OK;
}

int fuse_compile_attention(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                           struct fuse_kernel_info *info, struct fuse_error *error)
{
    const bool is_backward = op->kind == FUSERUN_OP_ATTENTION_DX;
    struct attention *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    const struct fuse_operand *const qkv = &op->inputs[is_backward ? 1 : 0];
    self->kernel.run = is_backward ? run_backward : run_forward;
    self->kernel.destroy = destroy;
    self->batch = qkv->shape[0];
    self->tokens = qkv->shape[1];
    self->heads = op->integers[0];
    self->width = qkv->shape[2] / 3;
    self->head_width = self->width / self->heads;
    self->scale = 1.0 / sqrt((double)self->head_width);
    self->dropout = fuse_dropout_read(op, 1);
    self->is_qkv_bfloat16 = fuse_operand_is_bfloat16(qkv);
    self->is_dy_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[0]);
    self->is_y_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[2]);
    self->is_out_bfloat16 = fuse_operand_is_bfloat16(&op->outputs[0]);
    self->accumulate = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    const int status = create_blocks(cpu, self, is_backward, error);
    if (status != FUSERUN_OK) {
        destroy(&self->kernel);
        return status;
    }
    info->workspace_bytes = self->worker_bytes * (uint64_t)cpu->thread_count;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
