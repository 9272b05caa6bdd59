/* Sums of squares of gradients, for a norm over all of them: of one that exists, and of a linear weight's that does
 * not.
 *
 * For dw = dy^T x,
 *     ||dy^T x||^2 = trace(x^T dy dy^T x) = trace(x x^T dy dy^T) = sum over i, j of (x x^T)_ij (dy dy^T)_ij
 * costs B^2 (N + K) / 2 multiply-adds, half of each symmetric product, dw itself B N K: with few rows the first is
 * cheaper. Over several micro-batches the rows of all of them stand one below the other: the earlier ones' in one
 * piece, then the present one's. Products are in float, what is summed up in double, partial sums in a fixed order.
 *
 * x x^T holds squares: it may leave the range of floats where no element of dw does; and where samples' gradients
 * cancel, what is left of the sum is as small as its terms' rounding. Where either shows, the elements of dw are formed
 * after all: a panel at a time, or, over several micro-batches, piece by piece. */
#include "bfloat16.h"
#include "product.h"
#include "threads.h"

#include <math.h>
#include <stdlib.h>

#define CHUNK_ELEMENTS 65536
#define BLOCK_ROWS 64

struct norm {
    struct fuse_kernel kernel;
    fuse_task_body *body;
    int64_t task_count;
    int worker_count;
    int64_t count;       /* SUM_SQUARES: elements */
    int64_t batch, n, k; /* LINEAR_DW_NORM */
    bool is_dy_bfloat16, is_x_bfloat16;
    int64_t earlier; /* rows of earlier micro-batches; their blocks come first */
    int64_t earlier_blocks;
    int64_t task_rows;     /* rows of a panel of dw, or of a block of the symmetric products */
    uint64_t worker_bytes; /* of workspace, behind the partial sums */
    uint64_t partial_bytes;
    uint64_t product_bytes;         /* of it, what the products need */
    struct fuse_product **products; /* panels: a full and a short one; blocks: of each, x x^T within its piece and of an
                                       earlier with the present one, then dy dy^T likewise */
    int64_t product_count;
    struct fuse_kernel *panels; /* blocks of one micro-batch: the way by panels, for sums that cannot be trusted */
};

/* One run. */
struct run {
    const struct norm *self;
    const float *g;
    struct fuse_values dy, x; /* (B, N) and (B, K) */
    struct fuse_values earlier_dy, earlier_x;
    double
        *partials; /* (task_count, 2): a sum, and the sum of its terms' magnitudes, which panels and chunks leave out */
    char *scratch; /* worker_bytes a worker */
    struct fuse_error *error;
    int status;
};

FUSE_CLONES static double sum_squares_of(const float *values, int64_t count)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}

double fuse_sum_squares(const float *values, int64_t count)
{
    return sum_squares_of(values, count);
}

/* Adds weight times the products and their magnitudes to sums[0] and [1]. */
FUSE_CLONES static void add_products(const float *a, const float *b, int64_t count, double weight, double sums[2])
{
    double sum = 0.0, magnitude = 0.0;
#pragma omp simd reduction(+ : sum, magnitude)
    for (int64_t i = 0; i < count; i++) {
        const double term = (double)a[i] * (double)b[i];
        sum += term;
        magnitude += fabs(term);
    }
    sums[0] += weight * sum;
    sums[1] += weight * magnitude;
}

static void chunk_squares(const void *context, int64_t task, int worker)
{
    struct run *const run = *(struct run *const *)context;
    const int64_t begin = task * CHUNK_ELEMENTS, left = run->self->count - begin;
    (void)worker;
    run->partials[2 * task] = sum_squares_of(run->g + begin, left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS);
}

static bool run_product(struct run *run, int64_t product, int worker, const void *a, const void *b, float *c)
{
    const struct norm *const self = run->self;
    struct fuse_error error = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_error, text)};
    const int status = fuse_product_run(self->products[product], worker, a, b, NULL, c,
                                        run->scratch + (uint64_t)worker * self->worker_bytes, &error);
    if (status != FUSERUN_OK)
        fuse_keep_failure(&run->status, run->error, status, &error);
    return status == FUSERUN_OK;
}

/* A worker's room for the products' results, behind what the library wants. */
static float *results_of(const struct run *run, int worker)
{
    return (float *)(void *)(run->scratch + (uint64_t)worker * run->self->worker_bytes + run->self->product_bytes);
}

/* Rows [begin, end) of dw, formed, squared and forgotten. */
static void panel_squares(const void *context, int64_t task, int worker)
{
    struct run *const run = *(struct run *const *)context;
    const struct norm *const self = run->self;
    const int64_t begin = task * self->task_rows, left = self->n - begin;
    const int64_t rows = left < self->task_rows ? left : self->task_rows;
    float *const panel = results_of(run, worker);
    if (run_product(run, rows < self->task_rows ? 1 : 0, worker, fuse_values_at(run->dy, begin), run->x.at, panel))
        run->partials[2 * task] = sum_squares_of(panel, rows * self->k);
}

/* A block of rows of both symmetric products, and where they end. */
struct block {
    bool is_earlier;
    int64_t begin, rows; /* in its piece */
    int64_t own;         /* columns in its piece, from the diagonal on */
    int64_t columns;     /* those, and for an earlier one the present piece's */
};

static struct block block_of(const struct norm *self, int64_t task)
{
    const bool is_earlier = task < self->earlier_blocks;
    const int64_t begin = (is_earlier ? task : task - self->earlier_blocks) * self->task_rows;
    const int64_t own = (is_earlier ? self->earlier : self->batch) - begin;
    return (struct block){.is_earlier = is_earlier,
                          .begin = begin,
                          .rows = own < self->task_rows ? own : self->task_rows,
                          .own = own,
                          .columns = own + (is_earlier ? self->batch : 0)};
}

/* Rows [begin, end) of both symmetric products, from the diagonal on; what lies right of the diagonal block counts
 * twice. */
static void block_squares(const void *context, int64_t task, int worker)
{
    struct run *const run = *(struct run *const *)context;
    const struct norm *const self = run->self;
    const struct block block = block_of(self, task);
    const int64_t rows = block.rows, columns = block.columns;
    float *const inputs = results_of(run, worker);
    float *const outputs = inputs + self->task_rows * (self->earlier + self->batch);
    const void *const x = fuse_values_at(block.is_earlier ? run->earlier_x : run->x, block.begin * self->k);
    const void *const dy = fuse_values_at(block.is_earlier ? run->earlier_dy : run->dy, block.begin * self->n);
    if (!run_product(run, 4 * task, worker, x, x, inputs) || !run_product(run, 4 * task + 2, worker, dy, dy, outputs))
        return;
    if (block.is_earlier && (!run_product(run, 4 * task + 1, worker, x, run->x.at, inputs + block.own) ||
                             !run_product(run, 4 * task + 3, worker, dy, run->dy.at, outputs + block.own)))
        return;
    double sums[2] = {0.0, 0.0};
    for (int64_t i = 0; i < rows; i++) {
        add_products(inputs + i * columns, outputs + i * columns, rows, 1.0, sums);
        add_products(inputs + i * columns + rows, outputs + i * columns + rows, columns - rows, 2.0, sums);
    }
    run->partials[2 * task] = sums[0];
    run->partials[2 * task + 1] = sums[1];
}

/* dy[b][row] x[b][first...] is added to a piece of row `row` of dw, for each b. */
static void add_rows(float *piece, struct fuse_values dy, struct fuse_values x, int64_t batch, const struct norm *self,
                     int64_t row, int64_t first, int64_t count)
{
    float room[FUSE_ROOM_FLOATS], factor_room;
    for (int64_t b = 0; b < batch; b++) {
        const float factor = *fuse_values_read(dy, b * self->n + row, 1, &factor_room);
        const float *const values = fuse_values_read(x, b * self->k + first, count, room);
        for (int64_t j = 0; j < count; j++)
            piece[j] += factor * values[j];
    }
}

/* By the elements themselves; ends at the first that is not finite, as all are where a NaN went round. */
static double element_squares(const struct run *run)
{
    const struct norm *const self = run->self;
    double sum = 0.0;
    for (int64_t row = 0; row < self->n; row++)
        for (int64_t first = 0; first < self->k && isfinite(sum); first += FUSE_ROOM_FLOATS) {
            const int64_t count = fuse_values_piece(true, self->k - first);
            float piece[FUSE_ROOM_FLOATS] = {0};
            add_rows(piece, run->earlier_dy, run->earlier_x, self->earlier, self, row, first, count);
            add_rows(piece, run->dy, run->x, self->batch, self, row, first, count);
            sum += sum_squares_of(piece, count);
        }
    return sum;
}

static int run_norm(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                    struct fuse_error *error)
{
    const struct norm *const self = (const struct norm *)kernel;
    struct run run = {.self = self,
                      .g = call->inputs[0],
                      .dy = {call->inputs[0], self->is_dy_bfloat16},
                      .x = {self->count > 0 ? NULL : call->inputs[1], self->is_x_bfloat16},
                      .earlier_dy = {self->earlier > 0 ? call->inputs[2] : NULL, self->is_dy_bfloat16},
                      .earlier_x = {self->earlier > 0 ? call->inputs[3] : NULL, self->is_x_bfloat16},
                      .partials = call->workspace,
                      .scratch = (char *)call->workspace + self->partial_bytes,
                      .error = error,
                      .status = FUSERUN_OK};
    struct run *const context = &run;
    fuse_threads_tasks(self->worker_count, self->task_count, self->body, &context);
    const bool is_blocks = self->body == block_squares;
    double sum = 0.0, magnitude = 0.0;
    for (int64_t i = 0; i < self->task_count && run.status == FUSERUN_OK; i++) {
        sum += run.partials[2 * i];
        magnitude += is_blocks ? run.partials[2 * i + 1] : 0.0;
    }
    if (is_blocks && run.status == FUSERUN_OK && !(isfinite(magnitude) && sum >= FUSE_NORM_LEAST_SHARE * magnitude)) {
        if (self->panels != NULL)
            return self->panels->run(cpu, self->panels, call, error);
        sum = element_squares(&run);
    }
    *(double *)call->outputs[0] = sum;
    return run.status;
}

static void destroy_norm(struct fuse_kernel *kernel)
{
    struct norm *const self = (struct norm *)kernel;
    if (self->panels != NULL)
        destroy_norm(self->panels);
    for (int64_t i = 0; i < self->product_count; i++)
        fuse_product_free(&self->products[i]);
    free(self->products);
    free(self);
}

static int add_product(struct fuse_cpu *cpu, struct norm *self, int64_t index, const struct fuse_product_shape *shape,
                       struct fuse_error *error)
{
    struct fuse_product **const product = &self->products[index];
    FUSE_TRY(fuse_product_create(cpu->products, shape, product, error));
    const uint64_t bytes = fuse_round_up(fuse_product_workspace_bytes(*product), 64);
    self->product_bytes = bytes > self->product_bytes ? bytes : self->product_bytes;
    return FUSERUN_OK;
}

static int add_chunks(struct fuse_cpu *cpu, struct norm *self, struct fuse_error *error)
{
    (void)error;
    self->body = chunk_squares;
    self->task_count = (self->count + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS;
    self->worker_count = fuse_threads_workers(cpu->thread_count, self->task_count);
    return FUSERUN_OK;
}

static int add_panels(struct fuse_cpu *cpu, struct norm *self, struct fuse_error *error)
{
    self->body = panel_squares;
    self->task_rows = fuse_panel_rows(self->n, self->k);
    self->task_count = (self->n + self->task_rows - 1) / self->task_rows;
    self->worker_count = fuse_threads_workers(cpu->thread_count, self->task_count);
    struct fuse_product_shape shape = {.m = self->task_rows,
                                       .n = self->k,
                                       .k = self->batch,
                                       .a_row = 1,
                                       .a_column = self->n,
                                       .b_row = self->k,
                                       .b_column = 1,
                                       .worker_count = self->worker_count,
                                       .is_bfloat16 = cpu->is_bfloat16,
                                       .a_is_bfloat16 = self->is_dy_bfloat16,
                                       .b_is_bfloat16 = self->is_x_bfloat16};
    self->products = calloc(2, sizeof(self->products[0]));
    if (self->products == NULL)
        return fuse_fail_op_memory(cpu, 2 * sizeof(self->products[0]), error);
    self->product_count = 2;
    FUSE_TRY(add_product(cpu, self, 0, &shape, error));
    shape.m = self->n % self->task_rows;
    if (shape.m != 0)
        FUSE_TRY(add_product(cpu, self, 1, &shape, error));
    self->worker_bytes = self->product_bytes + fuse_round_up((uint64_t)(self->task_rows * self->k) * sizeof(float), 64);
    return FUSERUN_OK;
}

static int add_blocks(struct fuse_cpu *cpu, struct norm *self, struct fuse_error *error)
{
    self->body = block_squares;
    const int64_t rows = self->batch > self->earlier ? self->batch : self->earlier;
    self->task_rows = rows < BLOCK_ROWS ? rows : BLOCK_ROWS;
    self->earlier_blocks = (self->earlier + self->task_rows - 1) / self->task_rows;
    self->task_count = self->earlier_blocks + (self->batch + self->task_rows - 1) / self->task_rows;
    /* two small blocks are not worth a second worker's memory */
    self->worker_count =
        self->earlier + self->batch <= BLOCK_ROWS ? 1 : fuse_threads_workers(cpu->thread_count, self->task_count);
    const size_t most = 4 * (size_t)self->task_count;
    self->products = calloc(most, sizeof(self->products[0]));
    if (self->products == NULL)
        return fuse_fail_op_memory(cpu, most * sizeof(self->products[0]), error);
    self->product_count = 4 * self->task_count;
    for (int64_t task = 0; task < self->task_count; task++)
        for (int side = 0; side < 4; side++) {
            const bool is_bfloat16 = side < 2 ? self->is_x_bfloat16 : self->is_dy_bfloat16;
            const struct block block = block_of(self, task);
            const int64_t width = side < 2 ? self->k : self->n, columns = side % 2 == 0 ? block.own : self->batch;
            if (side % 2 == 1 && !block.is_earlier)
                continue;
            const struct fuse_product_shape shape = {.m = block.rows,
                                                     .n = columns,
                                                     .k = width,
                                                     .c_row = block.columns,
                                                     .a_row = width,
                                                     .a_column = 1,
                                                     .b_row = 1,
                                                     .b_column = width,
                                                     .worker_count = self->worker_count,
                                                     .is_bfloat16 = cpu->is_bfloat16,
                                                     .a_is_bfloat16 = is_bfloat16,
                                                     .b_is_bfloat16 = is_bfloat16};
            FUSE_TRY(add_product(cpu, self, 4 * task + side, &shape, error));
        }
    self->worker_bytes =
        self->product_bytes +
        fuse_round_up(2 * (uint64_t)(self->task_rows * (self->earlier + self->batch)) * sizeof(float), 64);
    return FUSERUN_OK;
}

static void read_product(struct norm *self, const struct fuse_op *op)
{
    self->batch = fuse_operand_rows(&op->inputs[0]);
    self->n = fuse_operand_columns(&op->inputs[0]);
    self->k = fuse_operand_columns(&op->inputs[1]);
    self->is_dy_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[0]);
    self->is_x_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[1]);
    self->earlier = op->kind == FUSERUN_OP_LINEAR_DW_SUM_NORM ? fuse_operand_rows(&op->inputs[2]) : 0;
}

static uint64_t workspace_bytes(const struct norm *self)
{
    return self->partial_bytes + (uint64_t)self->worker_count * self->worker_bytes;
}

/* add: which way. */
static int new_norm(struct fuse_cpu *cpu, const struct fuse_op *op,
                    int (*add)(struct fuse_cpu *cpu, struct norm *self, struct fuse_error *error), struct norm **norm,
                    struct fuse_error *error)
{
    struct norm *const self = calloc(1, sizeof(*self));
    *norm = NULL;
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    self->kernel.run = run_norm;
    self->kernel.destroy = destroy_norm;
    if (op->kind != FUSERUN_OP_SUM_SQUARES)
        read_product(self, op);
    else
        self->count = fuse_operand_count(&op->inputs[0]);
    const int status = add(cpu, self, error);
    if (status != FUSERUN_OK) {
        destroy_norm(&self->kernel);
        return status;
    }
    self->partial_bytes = fuse_round_up(2 * (uint64_t)self->task_count * sizeof(double), 64);
    *norm = self;
    return FUSERUN_OK;
}

int fuse_compile_norm(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                      struct fuse_kernel_info *info, struct fuse_error *error)
{
    struct norm *self = NULL, *panels = NULL;
    if (op->kind == FUSERUN_OP_SUM_SQUARES) {
        FUSE_TRY(new_norm(cpu, op, add_chunks, &self, error));
    } else if (op->kind == FUSERUN_OP_LINEAR_DW_SUM_NORM) {
        /* a sum's operands are only kept where they are smaller than dw: they have few rows */
        FUSE_TRY(new_norm(cpu, op, add_blocks, &self, error));
    } else {
        const double batch = (double)fuse_operand_rows(&op->inputs[0]);
        const double n = (double)fuse_operand_columns(&op->inputs[0]), k = (double)fuse_operand_columns(&op->inputs[1]);
        FUSE_TRY(new_norm(cpu, op, add_panels, &panels, error));
        if (batch * (n + k) > n * k) {
            self = panels;
        } else {
            const int status = new_norm(cpu, op, add_blocks, &self, error);
            if (status != FUSERUN_OK) {
                destroy_norm(&panels->kernel);
                return status;
            }
            self->panels = &panels->kernel;
        }
    }
    info->workspace_bytes = workspace_bytes(self);
    if (panels != NULL && workspace_bytes(panels) > info->workspace_bytes)
        info->workspace_bytes = workspace_bytes(panels);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
