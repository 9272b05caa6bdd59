/* Multi-head attention: softmax(q k^T / sqrt d) v for each sample and head by itself, as matrix products of a group of
 * heads at a time with kernels between them (kernels/attention.cu, which says what is computed). Scores exist for one
 * group only, in the workspace; where even one head's are too many, for a block of its query rows. */
#include "product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the scores of a group. */
#define GROUP_FLOATS (4 << 20)

/* Arrays of pointers to each head's matrices. SCORES become the probabilities, DP becomes ds. */
enum { Q, K, V, SCORES, OUT, FORWARD_ARRAYS, DY = OUT, DP, DQ, DK, DV, BACKWARD_ARRAYS };
_Static_assert(BACKWARD_ARRAYS == FUSE_ATTENTION_ARRAYS, "as many arrays as the kernel's argument has room for");

struct attention {
    struct fuse_kernel kernel;
    int64_t batch, tokens, heads, head_width, width; /* width = heads * head_width */
    int64_t group;                                   /* tasks (a sample's head each) at a time */
    int64_t rows;                                    /* query rows at a time */
    double probability;                              /* of being dropped */
    uint64_t stream;
    bool adds;
    uint64_t table_bytes, scores_bytes; /* of the workspace: the pointers, then scores, then dp */
};

/* One group's rows. */
struct piece {
    int64_t first_task, count;
    int64_t first_row, rows;
};

static const void *const *array_of(const struct fuse_kernel_call *call, const struct piece *piece, int array)
{
    return (const void *const *)call->workspace + array * piece->count;
}

static void *const *results_of(const struct fuse_kernel_call *call, const struct piece *piece, int array)
{
    return (void *const *)call->workspace + array * piece->count;
}

/* A matrix that is a part of a tensor of rows of `width` elements: of each head its columns, from a row on. */
static void place(struct fuse_pointers_arguments *arguments, int array, const struct attention *self, void *tensor,
                  int64_t width, int64_t column, int64_t row)
{
    arguments->base[array] = (char *)tensor + (row * width + column) * (int64_t)sizeof(float);
    arguments->sample_bytes[array] = self->tokens * width * (int64_t)sizeof(float);
    arguments->head_bytes[array] = self->head_width * (int64_t)sizeof(float);
}

static void place_scratch(struct fuse_pointers_arguments *arguments, int array, const struct attention *self,
                          const struct piece *piece, char *scratch)
{
    arguments->base[array] = scratch;
    arguments->task_bytes[array] = piece->rows * self->tokens * (int64_t)sizeof(float);
}

static int run_pointers(struct fuse_cuda *cuda, const struct attention *self, const struct piece *piece,
                        struct fuse_pointers_arguments *arguments, int arrays, void *table, struct fuse_error *error)
{
    arguments->table = table;
    arguments->first_task = piece->first_task;
    arguments->count = piece->count;
    arguments->heads = self->heads;
    arguments->arrays = arrays;
    return FUSE_LAUNCH(cuda, attention_pointers, fuse_cuda_blocks(cuda, arrays * piece->count), arguments, error);
}

static struct fuse_attention_arguments softmax_arguments(const struct attention *self, const struct piece *piece,
                                                         const struct fuse_kernel_call *call)
{
    char *const scores = (char *)call->workspace + self->table_bytes;
    return (struct fuse_attention_arguments){.scores = (float *)(void *)scores,
                                             .dp = (float *)(void *)(scores + self->scores_bytes),
                                             .rows = piece->rows,
                                             .tokens = self->tokens,
                                             .heads = self->heads,
                                             .head_width = self->head_width,
                                             .first_task = piece->first_task,
                                             .first_row = piece->first_row,
                                             .scale = 1.0 / sqrt((double)self->head_width),
                                             .probability = self->probability,
                                             .seed = call->seed,
                                             .stream = self->stream + call->draw};
}

/* Scores and dp are (rows, S); q, k, v and their gradients have rows 3 D apart, y and dy D. */
static int attend(struct fuse_cuda *cuda, const struct attention *self, const struct piece *piece,
                  const struct fuse_kernel_call *call, struct fuse_error *error)
{
    const int64_t rows = piece->rows, tokens = self->tokens, d = self->head_width;
    const int64_t in = 3 * self->width, out = self->width;
    void *const qkv = call->inputs[0];
    struct fuse_pointers_arguments pointers = {0};
    place(&pointers, Q, self, qkv, in, 0, piece->first_row);
    place(&pointers, K, self, qkv, in, self->width, 0);
    place(&pointers, V, self, qkv, in, 2 * self->width, 0);
    place_scratch(&pointers, SCORES, self, piece, (char *)call->workspace + self->table_bytes);
    place(&pointers, OUT, self, call->outputs[0], out, 0, piece->first_row);
    FUSE_TRY(run_pointers(cuda, self, piece, &pointers, FORWARD_ARRAYS, call->workspace, error));

    const struct fuse_product scores = {
        .m = rows, .n = tokens, .k = d, .a_row = in, .a_column = 1, .b_row = 1, .b_column = in, .c_row = tokens};
    const struct fuse_product values = {
        .m = rows, .n = d, .k = tokens, .a_row = tokens, .a_column = 1, .b_row = in, .b_column = 1, .c_row = out};
    struct fuse_attention_arguments softmax = softmax_arguments(self, piece, call);
    softmax.lse = call->outputs[1];
    FUSE_TRY(fuse_products_run(cuda, &scores, array_of(call, piece, Q), array_of(call, piece, K),
                               results_of(call, piece, SCORES), piece->count, error));
    FUSE_TRY(FUSE_LAUNCH(cuda, attention_softmax, piece->count * rows, &softmax, error));
    return fuse_products_run(cuda, &values, array_of(call, piece, SCORES), array_of(call, piece, V),
                             results_of(call, piece, OUT), piece->count, error);
}

static int differentiate(struct fuse_cuda *cuda, const struct attention *self, const struct piece *piece,
                         const struct fuse_kernel_call *call, struct fuse_error *error)
{
    const int64_t rows = piece->rows, tokens = self->tokens, d = self->head_width;
    const int64_t in = 3 * self->width, out = self->width;
    void *const qkv = call->inputs[1], *const dqkv = call->outputs[0];
    char *const scratch = (char *)call->workspace + self->table_bytes;
    struct fuse_pointers_arguments pointers = {0};
    place(&pointers, Q, self, qkv, in, 0, piece->first_row);
    place(&pointers, K, self, qkv, in, self->width, 0);
    place(&pointers, V, self, qkv, in, 2 * self->width, 0);
    place_scratch(&pointers, SCORES, self, piece, scratch);
    place(&pointers, DY, self, call->inputs[0], out, 0, piece->first_row);
    place_scratch(&pointers, DP, self, piece, scratch + self->scores_bytes);
    place(&pointers, DQ, self, dqkv, in, 0, piece->first_row);
    place(&pointers, DK, self, dqkv, in, self->width, 0);
    place(&pointers, DV, self, dqkv, in, 2 * self->width, 0);
    FUSE_TRY(run_pointers(cuda, self, piece, &pointers, BACKWARD_ARRAYS, call->workspace, error));

    const bool adds = self->adds, adds_sums = self->adds || piece->first_row > 0; /* dk and dv are sums over all rows */
    const struct fuse_product scores = {
        .m = rows, .n = tokens, .k = d, .a_row = in, .a_column = 1, .b_row = 1, .b_column = in, .c_row = tokens};
    const struct fuse_product dp = {
        .m = rows, .n = tokens, .k = d, .a_row = out, .a_column = 1, .b_row = 1, .b_column = in, .c_row = tokens};
    const struct fuse_product dv = {.m = tokens,
                                    .n = d,
                                    .k = rows,
                                    .a_row = 1,
                                    .a_column = tokens,
                                    .b_row = out,
                                    .b_column = 1,
                                    .c_row = in,
                                    .adds = adds_sums};
    const struct fuse_product dk = {.m = tokens,
                                    .n = d,
                                    .k = rows,
                                    .a_row = 1,
                                    .a_column = tokens,
                                    .b_row = in,
                                    .b_column = 1,
                                    .c_row = in,
                                    .adds = adds_sums};
    const struct fuse_product dq = {.m = rows,
                                    .n = d,
                                    .k = tokens,
                                    .a_row = tokens,
                                    .a_column = 1,
                                    .b_row = in,
                                    .b_column = 1,
                                    .c_row = in,
                                    .adds = adds};
    struct fuse_attention_arguments softmax = softmax_arguments(self, piece, call);
    softmax.dy = call->inputs[0];
    softmax.y = call->inputs[2];
    softmax.lse = call->inputs[3];
#define MULTIPLY(product, a, b, c)                                                                                     \
    FUSE_TRY(fuse_products_run(cuda, &(product), array_of(call, piece, a), array_of(call, piece, b),                   \
                               results_of(call, piece, c), piece->count, error))
    MULTIPLY(scores, Q, K, SCORES);
    MULTIPLY(dp, DY, V, DP);
    FUSE_TRY(FUSE_LAUNCH(cuda, attention_softmax_dx, piece->count * rows, &softmax, error));
    MULTIPLY(dv, SCORES, DY, DV);
    MULTIPLY(dk, DP, Q, DK);
    MULTIPLY(dq, DP, K, DQ);
#undef MULTIPLY
    return FUSERUN_OK;
}

typedef int piece_body(struct fuse_cuda *cuda, const struct attention *self, const struct piece *piece,
                       const struct fuse_kernel_call *call, struct fuse_error *error);

static int run_pieces(struct fuse_cuda *cuda, const struct attention *self, const struct fuse_kernel_call *call,
                      piece_body *body, struct fuse_error *error)
{
    const int64_t tasks = self->batch * self->heads;
    for (int64_t task = 0; task < tasks; task += self->group)
        for (int64_t row = 0; row < self->tokens; row += self->rows) {
            const struct piece piece = {
                .first_task = task,
                .count = task + self->group < tasks ? self->group : tasks - task,
                .first_row = row,
                .rows = row + self->rows < self->tokens ? self->rows : self->tokens - row,
            };
            FUSE_TRY(body(cuda, self, &piece, call, error));
        }
    return FUSERUN_OK;
}

static int run_forward(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                       struct fuse_error *error)
{
    return run_pieces(cuda, (const struct attention *)kernel, call, attend, error);
}

static int run_backward(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                        struct fuse_error *error)
{
    return run_pieces(cuda, (const struct attention *)kernel, call, differentiate, error);
}

int fuse_compile_attention(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                           struct fuse_kernel_info *info, struct fuse_error *error)
{
    const bool is_backward = op->kind == FUSERUN_OP_ATTENTION_DX;
    const struct fuse_operand *const qkv = &op->inputs[is_backward ? 1 : 0];
    const struct fuse_product largest = {.m = qkv->shape[1], .n = qkv->shape[1], .c_row = qkv->shape[2]};
    FUSE_TRY(fuse_product_check(cuda, &largest, error));
    struct attention *const self = fuse_kernel_new(cuda, sizeof(*self), error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->kernel.run = is_backward ? run_backward : run_forward;
    self->batch = qkv->shape[0];
    self->tokens = qkv->shape[1];
    self->heads = op->integers[0];
    self->width = qkv->shape[2] / 3;
    self->head_width = self->width / self->heads;
    self->probability = op->numbers[0];
    self->stream = (uint64_t)op->integers[1];
    self->adds = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    const int64_t tasks = self->batch * self->heads;
    self->rows = GROUP_FLOATS / self->tokens < 1 ? 1 : GROUP_FLOATS / self->tokens;
    self->rows = self->rows < self->tokens ? self->rows : self->tokens;
    self->group = GROUP_FLOATS / (self->rows * self->tokens) < 1 ? 1 : GROUP_FLOATS / (self->rows * self->tokens);
    self->group = self->group < tasks ? self->group : tasks;
    self->table_bytes = fuse_round_up((uint64_t)self->group * FUSE_ATTENTION_ARRAYS * sizeof(void *), 64);
    self->scores_bytes = fuse_round_up((uint64_t)(self->group * self->rows * self->tokens) * sizeof(float), 64);
    info->workspace_bytes = self->table_bytes + (is_backward ? 2 : 1) * self->scores_bytes;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
