/* Multi-head attention: softmax(q k^T / sqrt d) v for each sample and head by itself, as matrix products of a group of
 * heads at a time with kernels between them (kernels/attention.cu, which says what is computed). Scores exist for one
 * group only, in the workspace; where even one head's are too many, for a block of its query rows. In bfloat16 the
 * products' factors are all that, probabilities too: an input in float32 is rounded into the workspace beforehand. What
 * comes out is rounded once: dk and dv of several blocks are summed in float32 first. */
#include "product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the scores of a group. */
#define GROUP_FLOATS (4 << 20)
/* And heads, however short: cuBLAS has counted batches in 16 bits. */
#define GROUP_MOST 32768

/* What tensor cores want of every matrix. cuBLAS sees that of a single product and goes another way where it is not so;
 * of a batch, whose pointers are on the device, it takes it for granted. */
#define ALIGNMENT_BYTES 16
#define ROW_FLOATS                                                                                                     \
    8 /* rows of scores are multiples of it: two such of floats, one of the bfloat16 that they become                  \
       */

/* Arrays of pointers to each head's matrices. SCORES become the probabilities, DP becomes ds. */
enum { Q, K, V, SCORES, OUT, FORWARD_ARRAYS, DY = OUT, DP, DQ, DK, DV, BACKWARD_ARRAYS };
_Static_assert(BACKWARD_ARRAYS == FUSE_ATTENTION_ARRAYS, "as many arrays as the kernel's argument has room for");

struct attention {
    struct fuse_kernel kernel;
    int64_t batch, tokens, heads, head_width, width; /* width = heads * head_width */
    int64_t group;                                   /* tasks (a sample's head each) at a time */
    int64_t rows;                                    /* query rows at a time */
    int64_t pitch;                                   /* floats from row to row of scores */
    double probability;                              /* of being dropped */
    uint64_t stream;
    bool adds;
    bool is_bfloat16; /* products are */
    bool rounds_qkv, rounds_dy, is_out_bfloat16;
    bool has_sums; /* dk and dv in float32, on their way */
    int bfloat16;  /* of the softmax kernels' arguments */
    /* Of the workspace: the pointers, scores, dp, qkv and dy as bfloat16, dk and dv of a head (tokens, d). */
    uint64_t table_bytes, scores_bytes, dp_bytes, qkv_bytes, dy_bytes, sums_bytes;
};

/* Where it all is, in one run. */
struct places {
    char *scores, *dp;
    const void *qkv, *dy; /* factors of products */
    char *sums;
};

/* One group's rows. */
struct piece {
    int64_t first_task, count;
    int64_t first_row, rows;
};

static struct places find_places(const struct attention *self, const struct fuse_kernel_call *call, const void *qkv,
                                 const void *dy)
{
    char *const scores = (char *)call->workspace + self->table_bytes, *const dp = scores + self->scores_bytes;
    char *const rounded_qkv = dp + self->dp_bytes, *const rounded_dy = rounded_qkv + self->qkv_bytes;
    return (struct places){.scores = scores,
                           .dp = dp,
                           .qkv = self->rounds_qkv ? rounded_qkv : qkv,
                           .dy = self->rounds_dy ? rounded_dy : dy,
                           .sums = rounded_dy + self->dy_bytes};
}

/* count of them become bfloat16. */
static int round_whole(struct fuse_cuda *cuda, const void *from, int64_t count, const void *to,
                       struct fuse_error *error)
{
    const struct fuse_rows_arguments whole = {.from = from,
                                              .to = fuse_element(to, 0, true),
                                              .rows = 1,
                                              .columns = count,
                                              .from_stride = count,
                                              .to_stride = count,
                                              .bfloat16 = FUSE_BFLOAT16_OUT};
    return fuse_cuda_place_rows(cuda, &whole, error);
}

/* A matrix that is a part of a tensor of rows of `width` elements: of each head its columns, from a row on. */
static void place(struct fuse_pointers_arguments *arguments, int array, const struct attention *self,
                  const void *tensor, bool is_bfloat16, int64_t width, int64_t column, int64_t row)
{
    const int64_t size = (int64_t)(is_bfloat16 ? sizeof(uint16_t) : sizeof(float));
    arguments->base[array] = fuse_element(tensor, row * width + column, is_bfloat16);
    arguments->sample_bytes[array] = self->tokens * width * size;
    arguments->head_bytes[array] = self->head_width * size;
}

static void place_scratch(struct fuse_pointers_arguments *arguments, int array, char *scratch, int64_t floats)
{
    arguments->base[array] = scratch;
    arguments->task_bytes[array] = floats * (int64_t)sizeof(float);
}

static bool is_aligned(const struct fuse_pointers_arguments *arguments, int arrays)
{
    unsigned long long bits = 0;
    for (int i = 0; i < arrays; i++)
        bits |= (unsigned long long)(uintptr_t)arguments->base[i] | (unsigned long long)arguments->sample_bytes[i] |
                (unsigned long long)arguments->head_bytes[i] | (unsigned long long)arguments->task_bytes[i];
    return bits % ALIGNMENT_BYTES == 0;
}

/* arguments->arrays becomes 0 if the products are to be single ones. */
static int run_pointers(struct fuse_cuda *cuda, const struct attention *self, const struct piece *piece,
                        struct fuse_pointers_arguments *arguments, int arrays, void *table, struct fuse_error *error)
{
    const bool uses_tensor_cores = self->is_bfloat16 || cuda->compute_type != FUSE_CUBLAS_COMPUTE_FLOAT32;
    arguments->table = table;
    arguments->first_task = piece->first_task;
    arguments->count = piece->count;
    arguments->heads = self->heads;
    arguments->arrays = uses_tensor_cores && !is_aligned(arguments, arrays) ? 0 : arrays;
    if (arguments->arrays == 0)
        return FUSERUN_OK;
    return FUSE_LAUNCH(cuda, attention_pointers, fuse_cuda_blocks(cuda, arrays * piece->count), arguments, error);
}

/* As the kernel attention_pointers. */
static void *pointer_of(const struct fuse_pointers_arguments *arguments, int array, int64_t i)
{
    const int64_t task = arguments->first_task + i;
    return arguments->base[array] + task / arguments->heads * arguments->sample_bytes[array] +
           task % arguments->heads * arguments->head_bytes[array] + i * arguments->task_bytes[array];
}

/* c = a b for each task of a group. */
static int multiply(struct fuse_cuda *cuda, const struct fuse_pointers_arguments *pointers,
                    const struct fuse_product *product, int a, int b, int c, struct fuse_error *error)
{
    const int64_t count = pointers->count;
    const void *const *const table = (const void *const *)pointers->table;
    if (pointers->arrays > 0)
        return fuse_products_run(cuda, product, table + a * count, table + b * count, pointers->table + c * count,
                                 count, error);
    for (int64_t i = 0; i < count; i++)
        FUSE_TRY(fuse_product_run(cuda, product, pointer_of(pointers, a, i), pointer_of(pointers, b, i),
                                  pointer_of(pointers, c, i), error));
    return FUSERUN_OK;
}

static struct fuse_attention_arguments softmax_arguments(const struct attention *self, const struct piece *piece,
                                                         const struct places *places,
                                                         const struct fuse_kernel_call *call)
{
    return (struct fuse_attention_arguments){.scores = (float *)(void *)places->scores,
                                             .dp = (float *)(void *)places->dp,
                                             .rows = piece->rows,
                                             .tokens = self->tokens,
                                             .pitch = self->pitch,
                                             .heads = self->heads,
                                             .head_width = self->head_width,
                                             .first_task = piece->first_task,
                                             .first_row = piece->first_row,
                                             .scale = 1.0 / sqrt((double)self->head_width),
                                             .probability = self->probability,
                                             .seed = call->seed,
                                             .stream = self->stream + call->draw,
                                             .bfloat16 = self->bfloat16};
}

/* Of products: factors are in memory as they have to be. */
#define FACTORS(self)                                                                                                  \
    .is_bfloat16 = (self)->is_bfloat16, .a_is_bfloat16 = (self)->is_bfloat16, .b_is_bfloat16 = (self)->is_bfloat16

/* From row to row of probabilities and ds, in elements: they stand in the rows of floats that they were made of. */
static int64_t score_row(const struct attention *self)
{
    return self->is_bfloat16 ? 2 * self->pitch : self->pitch;
}

/* q k^T of some of q's rows; forward and backward make the same bits of it. */
static struct fuse_product scores_product(const struct attention *self, int64_t rows)
{
    return (struct fuse_product){.m = rows,
                                 .n = self->tokens,
                                 .k = self->head_width,
                                 .a_row = 3 * self->width,
                                 .a_column = 1,
                                 .b_row = 1,
                                 .b_column = 3 * self->width,
                                 .c_row = self->pitch,
                                 FACTORS(self)};
}

/* Scores and dp are (rows, S); q, k, v and their gradients have rows 3 D apart, y and dy D. */
static int attend(struct fuse_cuda *cuda, const struct attention *self, const struct piece *piece,
                  const struct fuse_kernel_call *call, struct fuse_error *error)
{
    const int64_t rows = piece->rows, tokens = self->tokens, d = self->head_width;
    const int64_t in = 3 * self->width, out = self->width;
    const bool is_bfloat16 = self->is_bfloat16;
    const struct places places = find_places(self, call, call->inputs[0], NULL);
    struct fuse_pointers_arguments pointers = {0};
    place(&pointers, Q, self, places.qkv, is_bfloat16, in, 0, piece->first_row);
    place(&pointers, K, self, places.qkv, is_bfloat16, in, self->width, 0);
    place(&pointers, V, self, places.qkv, is_bfloat16, in, 2 * self->width, 0);
    place_scratch(&pointers, SCORES, places.scores, rows * self->pitch);
    place(&pointers, OUT, self, call->outputs[0], self->is_out_bfloat16, out, 0, piece->first_row);
    FUSE_TRY(run_pointers(cuda, self, piece, &pointers, FORWARD_ARRAYS, call->workspace, error));

    const struct fuse_product scores = scores_product(self, rows);
    const struct fuse_product values = {.m = rows,
                                        .n = d,
                                        .k = tokens,
                                        .a_row = score_row(self),
                                        .a_column = 1,
                                        .b_row = in,
                                        .b_column = 1,
                                        .c_row = out,
                                        FACTORS(self),
                                        .c_is_bfloat16 = self->is_out_bfloat16};
    struct fuse_attention_arguments softmax = softmax_arguments(self, piece, &places, call);
    softmax.lse = call->outputs[1];
    FUSE_TRY(multiply(cuda, &pointers, &scores, Q, K, SCORES, error));
    FUSE_TRY(FUSE_LAUNCH(cuda, attention_softmax, piece->count * rows, &softmax, error));
    return multiply(cuda, &pointers, &values, SCORES, V, OUT, error);
}

/* The sums dk and dv (tokens, d each) of a head, whose last rows are done, go where they belong. */
static int place_sums(struct fuse_cuda *cuda, const struct attention *self, int64_t task, const char *sums, void *out,
                      struct fuse_error *error)
{
    const int64_t sample = task / self->heads, head = task % self->heads;
    for (int part = 1; part <= 2; part++) {
        const int64_t first = sample * self->tokens * 3 * self->width + part * self->width + head * self->head_width;
        const struct fuse_rows_arguments rows = {
            .from = fuse_element(sums, (part - 1) * self->tokens * self->head_width, false),
            .to = fuse_element(out, first, true),
            .rows = self->tokens,
            .columns = self->head_width,
            .from_stride = self->head_width,
            .to_stride = 3 * self->width,
            .bfloat16 = FUSE_BFLOAT16_OUT,
            .adds = self->adds,
        };
        FUSE_TRY(fuse_cuda_place_rows(cuda, &rows, error));
    }
    return FUSERUN_OK;
}

static int differentiate(struct fuse_cuda *cuda, const struct attention *self, const struct piece *piece,
                         const struct fuse_kernel_call *call, struct fuse_error *error)
{
    const int64_t rows = piece->rows, tokens = self->tokens, d = self->head_width;
    const int64_t in = 3 * self->width, out = self->width;
    const bool is_bfloat16 = self->is_bfloat16, is_out_bfloat16 = self->is_out_bfloat16;
    void *const dqkv = call->outputs[0];
    const struct places places = find_places(self, call, call->inputs[1], call->inputs[0]);
    struct fuse_pointers_arguments pointers = {0};
    place(&pointers, Q, self, places.qkv, is_bfloat16, in, 0, piece->first_row);
    place(&pointers, K, self, places.qkv, is_bfloat16, in, self->width, 0);
    place(&pointers, V, self, places.qkv, is_bfloat16, in, 2 * self->width, 0);
    place_scratch(&pointers, SCORES, places.scores, rows * self->pitch);
    place(&pointers, DY, self, places.dy, is_bfloat16, out, 0, piece->first_row);
    place_scratch(&pointers, DP, places.dp, rows * self->pitch);
    place(&pointers, DQ, self, dqkv, is_out_bfloat16, in, 0, piece->first_row);
    if (self->has_sums) { /* a head at a time */
        place_scratch(&pointers, DK, places.sums, 0);
        place_scratch(&pointers, DV, fuse_element(places.sums, tokens * d, false), 0);
    } else {
        place(&pointers, DK, self, dqkv, is_out_bfloat16, in, self->width, 0);
        place(&pointers, DV, self, dqkv, is_out_bfloat16, in, 2 * self->width, 0);
    }
    FUSE_TRY(run_pointers(cuda, self, piece, &pointers, BACKWARD_ARRAYS, call->workspace, error));

    const struct fuse_product scores = scores_product(self, rows);
    const struct fuse_product dp = {.m = rows,
                                    .n = tokens,
                                    .k = d,
                                    .a_row = out,
                                    .a_column = 1,
                                    .b_row = 1,
                                    .b_column = in,
                                    .c_row = self->pitch,
                                    FACTORS(self)};
    /* dk and dv are sums over all rows. */
    const struct fuse_product dv = {.m = tokens,
                                    .n = d,
                                    .k = rows,
                                    .a_row = 1,
                                    .a_column = score_row(self),
                                    .b_row = out,
                                    .b_column = 1,
                                    .c_row = self->has_sums ? d : in,
                                    FACTORS(self),
                                    .c_is_bfloat16 = is_out_bfloat16 && !self->has_sums,
                                    .adds = (self->adds && !self->has_sums) || piece->first_row > 0};
    struct fuse_product dk = dv;
    dk.b_row = in;
    const struct fuse_product dq = {.m = rows,
                                    .n = d,
                                    .k = tokens,
                                    .a_row = score_row(self),
                                    .a_column = 1,
                                    .b_row = in,
                                    .b_column = 1,
                                    .c_row = in,
                                    FACTORS(self),
                                    .c_is_bfloat16 = is_out_bfloat16,
                                    .adds = self->adds};
    struct fuse_attention_arguments softmax = softmax_arguments(self, piece, &places, call);
    softmax.dy = call->inputs[0];
    softmax.y = call->inputs[2];
    softmax.lse = call->inputs[3];
    FUSE_TRY(multiply(cuda, &pointers, &scores, Q, K, SCORES, error));
    FUSE_TRY(multiply(cuda, &pointers, &dp, DY, V, DP, error));
    FUSE_TRY(FUSE_LAUNCH(cuda, attention_softmax_dx, piece->count * rows, &softmax, error));
    FUSE_TRY(multiply(cuda, &pointers, &dv, SCORES, DY, DV, error));
    FUSE_TRY(multiply(cuda, &pointers, &dk, DP, Q, DK, error));
    FUSE_TRY(multiply(cuda, &pointers, &dq, DP, K, DQ, error));
    if (!self->has_sums || piece->first_row + rows < tokens)
        return FUSERUN_OK;
    return place_sums(cuda, self, piece->first_task, places.sums, dqkv, error);
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
    const struct attention *const self = (const struct attention *)kernel;
    const struct places places = find_places(self, call, NULL, NULL);
    if (self->rounds_qkv)
        FUSE_TRY(round_whole(cuda, call->inputs[0], self->batch * self->tokens * 3 * self->width, places.qkv, error));
    return run_pieces(cuda, self, call, attend, error);
}

static int run_backward(struct fuse_cuda *cuda, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                        struct fuse_error *error)
{
    const struct attention *const self = (const struct attention *)kernel;
    const struct places places = find_places(self, call, NULL, NULL);
    if (self->rounds_qkv)
        FUSE_TRY(round_whole(cuda, call->inputs[1], self->batch * self->tokens * 3 * self->width, places.qkv, error));
    if (self->rounds_dy)
        FUSE_TRY(round_whole(cuda, call->inputs[0], self->batch * self->tokens * self->width, places.dy, error));
    return run_pieces(cuda, self, call, differentiate, error);
}

/* What exists at a time, and the workspace for it. */
static void measure(struct attention *self, bool is_backward)
{
    const int64_t tasks = self->batch * self->heads, qkv_count = self->batch * self->tokens * 3 * self->width;
    self->pitch = (self->tokens + ROW_FLOATS - 1) / ROW_FLOATS * ROW_FLOATS;
    self->rows = GROUP_FLOATS / self->pitch < 1 ? 1 : GROUP_FLOATS / self->pitch;
    self->rows = self->rows < self->tokens ? self->rows : self->tokens;
    self->group = GROUP_FLOATS / (self->rows * self->pitch) < 1 ? 1 : GROUP_FLOATS / (self->rows * self->pitch);
    self->group = self->group < tasks ? self->group : tasks;
    self->group = self->group < GROUP_MOST ? self->group : GROUP_MOST;
    self->has_sums = is_backward && self->is_out_bfloat16 && self->rows < self->tokens; /* then a group is one task */
    self->table_bytes = fuse_round_up((uint64_t)self->group * FUSE_ATTENTION_ARRAYS * sizeof(void *), 64);
    self->scores_bytes = fuse_round_up((uint64_t)(self->group * self->rows * self->pitch) * sizeof(float), 64);
    self->dp_bytes = is_backward ? self->scores_bytes : 0;
    self->qkv_bytes = self->rounds_qkv ? fuse_round_up((uint64_t)qkv_count * sizeof(uint16_t), 64) : 0;
    self->dy_bytes = self->rounds_dy ? fuse_round_up((uint64_t)(qkv_count / 3) * sizeof(uint16_t), 64) : 0;
    self->sums_bytes =
        self->has_sums ? fuse_round_up(2 * (uint64_t)(self->tokens * self->head_width) * sizeof(float), 64) : 0;
}

int fuse_compile_attention(struct fuse_cuda *cuda, const struct fuse_op *op, struct fuse_kernel **kernel,
                           struct fuse_kernel_info *info, struct fuse_error *error)
{
    const bool is_backward = op->kind == FUSERUN_OP_ATTENTION_DX;
    const struct fuse_operand *const qkv = &op->inputs[is_backward ? 1 : 0];
    const struct fuse_product largest = {
        .m = qkv->shape[1], .a_row = 2 * (qkv->shape[1] + ROW_FLOATS), .c_row = qkv->shape[2]};
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
    self->is_bfloat16 = cuda->is_bfloat16;
    self->is_out_bfloat16 = fuse_operand_is_bfloat16(&op->outputs[0]);
    self->rounds_qkv = cuda->is_bfloat16 && !fuse_operand_is_bfloat16(qkv);
    self->rounds_dy = cuda->is_bfloat16 && is_backward && !fuse_operand_is_bfloat16(&op->inputs[0]);
    self->bfloat16 = cuda->is_bfloat16 ? FUSE_BFLOAT16_OUT : 0;
    if (is_backward)
        self->bfloat16 |=
            (fuse_operand_is_bfloat16(&op->inputs[0]) ? 1 : 0) | (fuse_operand_is_bfloat16(&op->inputs[2]) ? 2 : 0);
    measure(self, is_backward);
    info->workspace_bytes =
        self->table_bytes + self->scores_bytes + self->dp_bytes + self->qkv_bytes + self->dy_bytes + self->sums_bytes;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
