/* Linear layers: y = x w^T + b and its three gradients. */
#include "bfloat16.h"
#include "product.h"
#include "product_tiles.h"
#include "threads.h"

#include <stdlib.h>

/* A weight's gradient is formed a panel of rows at a time. A panel reads all of x, so many rows make the product run at
 * full speed; a panel that is small stays in a core's cache until it is used, and many panels keep many cores busy. */
#define PANEL_PARTS 8 /* at least, of a weight that is not small */
#define PANEL_MIN_FLOATS 32768
#define PANEL_MAX_FLOATS 524288
#define PANEL_CACHE_FLOATS 131072 /* that stay in a core's second-level cache beside p, m and v, if rows are enough */
#define PANEL_MAX_ROWS 128
#define PANEL_GOOD_ROWS 64
#define PANEL_MIN_ROWS 8
#define FETCH_CACHE_BYTES 1048576 /* a smaller cache has no room for p, m and v beside what a product needs */
#define PANEL_TEAM 4              /* so many threads, or half as many, get panels of one size, and equally many */

/* ---- y (B, N) = x (B, K) w (N, K)^T + b, dx (B, K) = dy (B, N) w (N, K) -------------------------------------- */

struct linear {
    struct fuse_kernel kernel;
    bool has_bias;
    struct fuse_product *product;
};

static int run_linear(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                      struct fuse_error *error)
{
    const struct linear *const self = (const struct linear *)kernel;
    const float *bias = NULL;
    if (self->has_bias)
        bias = call->inputs[2] != NULL ? call->inputs[2] : cpu->zeros;
    return fuse_product_run(self->product, 0, call->inputs[0], call->inputs[1], bias, call->outputs[0], call->workspace,
                            error);
}

static void destroy_linear(struct fuse_kernel *kernel)
{
    struct linear *const self = (struct linear *)kernel;
    fuse_product_free(&self->product);
    free(self);
}

static int reserve_zeros(struct fuse_cpu *cpu, int64_t count, struct fuse_error *error)
{
    if (count <= cpu->zero_count)
        return FUSERUN_OK;
    float *const zeros = calloc((size_t)count, sizeof(zeros[0]));
    if (zeros == NULL)
        return fuse_fail_op_memory(cpu, (size_t)count * sizeof(zeros[0]), error);
    free(cpu->zeros);
    cpu->zeros = zeros;
    cpu->zero_count = count;
    return FUSERUN_OK;
}

static int compile_product(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                           struct fuse_kernel_info *info, struct fuse_error *error)
{
    const bool is_forward = op->kind == FUSERUN_OP_LINEAR;
    const struct fuse_operand *const in = &op->inputs[0], *const w = &op->inputs[1], *const out = &op->outputs[0];
    const int64_t batch = fuse_operand_rows(in), n = w->shape[0], k = w->shape[1];
    const bool has_bias = op->input_count > 2 && op->inputs[2].dtype != 0;
    struct linear *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    self->kernel.run = run_linear;
    self->kernel.destroy = destroy_linear;
    self->has_bias = has_bias;
    const struct fuse_product_shape shape = {
        .m = batch,
        .n = is_forward ? n : k,
        .k = is_forward ? k : n,
        .a_row = is_forward ? k : n,
        .a_column = 1,
        .b_row = is_forward ? 1 : k,
        .b_column = is_forward ? k : 1,
        .has_bias = has_bias,
        .accumulate = (op->flags & FUSERUN_OP_ACCUMULATE) != 0,
        .is_bfloat16 = cpu->is_bfloat16,
        .a_is_bfloat16 = fuse_operand_is_bfloat16(in),
        .c_is_bfloat16 = fuse_operand_is_bfloat16(out),
    };
    int status = has_bias ? reserve_zeros(cpu, n, error) : FUSERUN_OK;
    if (status == FUSERUN_OK)
        status = fuse_product_create(cpu->products, &shape, &self->product, error);
    if (status != FUSERUN_OK) {
        destroy_linear(&self->kernel);
        return status;
    }
    info->workspace_bytes = fuse_product_workspace_bytes(self->product);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}

/* ---- dw (N, K) = dy (B, N)^T x (B, K), and its sum over micro-batches ------------------------------------------ */

/* The products that a panel is made of: the first earlier micro-batch's, the other earlier ones', the present one's. */
enum { PRODUCT_EARLIEST, PRODUCT_EARLIER, PRODUCT_PRESENT, PRODUCT_COUNT };

struct weight_gradient {
    struct fuse_kernel kernel;
    int64_t n, k;
    int64_t panel_rows, panel_count;
    bool is_dy_bfloat16, is_x_bfloat16;
    int worker_count;
    bool is_scratch;       /* output 0 is one panel a worker; with no more panels than workers, one a panel */
    uint64_t panel_floats; /* from one worker's scratch to the next */
    uint64_t workspace_bytes;
    int64_t earlier_rows, earlier_count;             /* of each earlier micro-batch, and how many there are */
    struct fuse_product *products[PRODUCT_COUNT][2]; /* a full panel, and the last one where it is shorter; else NULL */
    bool shares_x; /* our own tiles make the panels, from the present x packed once for all of them */
    struct fuse_product_shape shared; /* the present product of a full panel */
};

/* One run. */
struct panels {
    const struct weight_gradient *self;
    struct fuse_values dy, x, earlier_dy, earlier_x;
    float *out;
    char *workspace;
    void *shared_x; /* the present one, for our own tiles; NULL: not shared */
    const struct fuse_panel_hook *hook;
    uint32_t (*spans)(void *user, int64_t row_begin, int64_t row_end, struct fuse_span *spans); /* or NULL */
    uint64_t core_cache_bytes;
    struct fuse_error *error;
    int status; /* the first failure's; written under a compare and swap */
};

/* What the hook goes through with the panel of rows [begin, end), to be fetched beside the product: if all of it stays
 * in the core's cache beside the panel. Elsewhere the two would push each other out. */
static struct fuse_spans spans_of(const struct panels *run, int64_t begin, int64_t end)
{
    struct fuse_spans spans = {0};
    if (run->hook == NULL || run->hook->panel == NULL || run->spans == NULL)
        return spans;
    spans.count = run->spans(run->hook->user, begin, end, spans.spans);
    uint64_t bytes = (uint64_t)((end - begin) * run->self->k) * sizeof(float);
    for (uint32_t i = 0; i < spans.count; i++)
        bytes += spans.spans[i].bytes;
    if (run->core_cache_bytes < FETCH_CACHE_BYTES || bytes > run->core_cache_bytes)
        spans.count = 0;
    return spans;
}

/* Rows of dw from `begin` on. */
static int sum_products(const struct panels *run, int worker, int64_t begin, bool is_short, float *out,
                        struct fuse_error *error)
{
    const struct weight_gradient *const self = run->self;
    void *const workspace = run->workspace + (uint64_t)worker * self->workspace_bytes;
    for (int64_t i = 0; i < self->earlier_count; i++) {
        const int64_t row = i * self->earlier_rows;
        FUSE_TRY(fuse_product_run(self->products[i == 0 ? PRODUCT_EARLIEST : PRODUCT_EARLIER][is_short], worker,
                                  fuse_values_at(run->earlier_dy, row * self->n + begin),
                                  fuse_values_at(run->earlier_x, row * self->k), NULL, out, workspace, error));
    }
    if (run->shared_x == NULL)
        return fuse_product_run(self->products[PRODUCT_PRESENT][is_short], worker, fuse_values_at(run->dy, begin),
                                run->x.at, NULL, out, workspace, error);
    struct fuse_product_shape shape = self->shared;
    shape.m = is_short ? self->n - begin : self->panel_rows;
    const struct fuse_spans spans = spans_of(run, begin, begin + shape.m);
    fuse_tiles_product_shared(&shape, worker, fuse_values_at(run->dy, begin), run->x.at, run->shared_x, &spans, out,
                              workspace);
    return FUSERUN_OK;
}

static void form_panel(const void *context, int64_t task, int worker)
{
    struct panels *const run = *(struct panels *const *)context;
    const struct weight_gradient *const self = run->self;
    const int64_t begin = task * self->panel_rows;
    const int64_t end = begin + self->panel_rows < self->n ? begin + self->panel_rows : self->n;
    const bool is_short = end - begin < self->panel_rows;
    const bool has_room = !self->is_scratch || self->panel_count <= self->worker_count;
    float *const out = has_room ? run->out + begin * self->k : run->out + (uint64_t)worker * self->panel_floats;
    struct fuse_error error = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_error, text)};
    const int status = sum_products(run, worker, begin, is_short, out, &error);
    if (status != FUSERUN_OK) {
        fuse_keep_failure(&run->status, run->error, status, &error);
        return;
    }
    if (run->hook != NULL && run->hook->panel != NULL)
        run->hook->panel(run->hook->user, begin, end, out);
}

static int run_weight_gradient(const struct fuse_cpu *cpu, struct fuse_kernel *kernel,
                               const struct fuse_kernel_call *call, struct fuse_error *error)
{
    const struct weight_gradient *const self = (const struct weight_gradient *)kernel;
    struct panels run = {
        .self = self,
        .dy = {call->inputs[0], self->is_dy_bfloat16},
        .x = {call->inputs[1], self->is_x_bfloat16},
        .earlier_dy = {self->earlier_count > 0 ? call->inputs[2] : NULL, self->is_dy_bfloat16},
        .earlier_x = {self->earlier_count > 0 ? call->inputs[3] : NULL, self->is_x_bfloat16},
        .out = call->outputs[0],
        .workspace = call->workspace,
        .hook = self->is_scratch ? call->panel : NULL,
        .spans = call->struct_size >= FUSERUN_STRUCT_SIZE(fuse_kernel_call, panel_spans) ? call->panel_spans : NULL,
        .core_cache_bytes = cpu->core_cache_bytes,
        .error = error,
        .status = FUSERUN_OK};
    const struct panels *const context = &run;
    if (self->shares_x) {
        run.shared_x = run.workspace + (uint64_t)self->worker_count * self->workspace_bytes;
        fuse_tiles_share_b(&self->shared, run.shared_x);
    }
    fuse_threads_tasks(self->worker_count, self->panel_count, form_panel, &context);
    return run.status;
}

static void destroy_weight_gradient(struct fuse_kernel *kernel)
{
    struct weight_gradient *const self = (struct weight_gradient *)kernel;
    for (int i = 0; i < PRODUCT_COUNT; i++) {
        fuse_product_free(&self->products[i][0]);
        fuse_product_free(&self->products[i][1]);
    }
    free(self);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of the weight's shape alone, so that every mode and any number of threads forms the same sums. */
int64_t fuse_panel_rows(int64_t n, int64_t k)
{
    int64_t rows = most(n / PANEL_PARTS, least(n / 2, PANEL_GOOD_ROWS));
    rows = most(rows, PANEL_MIN_FLOATS / k);
    rows = least(rows, most(PANEL_GOOD_ROWS, PANEL_CACHE_FLOATS / k));
    rows = most(least(rows, least(PANEL_MAX_ROWS, PANEL_MAX_FLOATS / k)), PANEL_MIN_ROWS);
    int64_t count = (n + rows - 1) / rows;
    if (count > PANEL_TEAM)
        count = (count + PANEL_TEAM - 1) / PANEL_TEAM * PANEL_TEAM;
    rows = (n + count - 1) / count;
    rows = (rows + PANEL_MIN_ROWS - 1) / PANEL_MIN_ROWS * PANEL_MIN_ROWS;
    return least(rows, n);
}

/* One of PRODUCT_..., for full panels and, where there is one, the shorter last. */
static int create_products(struct fuse_cpu *cpu, struct weight_gradient *self, struct fuse_product_shape *shape,
                           int which, struct fuse_error *error)
{
    for (int is_short = 0; is_short < 2; is_short++) {
        struct fuse_product **const product = &self->products[which][is_short];
        shape->m = is_short ? self->n % self->panel_rows : self->panel_rows;
        if (shape->m == 0)
            continue;
        FUSE_TRY(fuse_product_create(cpu->products, shape, product, error));
        const uint64_t bytes = fuse_round_up(fuse_product_workspace_bytes(*product), 64);
        self->workspace_bytes = bytes > self->workspace_bytes ? bytes : self->workspace_bytes;
    }
    return FUSERUN_OK;
}

static int compile_weight_gradient(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                                   struct fuse_kernel_info *info, struct fuse_error *error)
{
    const struct fuse_operand *const dy = &op->inputs[0], *const x = &op->inputs[1];
    const int64_t batch = fuse_operand_rows(dy), n = fuse_operand_columns(dy), k = fuse_operand_columns(x);
    const bool is_scratch = (op->flags & FUSERUN_OP_PANELS) != 0;
    const bool is_sum = op->kind == FUSERUN_OP_LINEAR_DW_SUM;
    const int64_t panel_rows = fuse_panel_rows(n, k), panel_count = (n + panel_rows - 1) / panel_rows;
    const uint64_t panel_floats = fuse_round_up((uint64_t)(panel_rows * k) * sizeof(float), 64) / sizeof(float);
    struct weight_gradient *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    self->kernel.run = run_weight_gradient;
    self->kernel.destroy = destroy_weight_gradient;
    self->n = n;
    self->k = k;
    self->panel_rows = panel_rows;
    self->panel_count = panel_count;
    self->is_dy_bfloat16 = fuse_operand_is_bfloat16(dy);
    self->is_x_bfloat16 = fuse_operand_is_bfloat16(x);
    self->worker_count = fuse_threads_workers(cpu->thread_count, panel_count);
    self->is_scratch = is_scratch;
    self->panel_floats = panel_floats;
    if (is_sum) {
        self->earlier_rows = op->integers[0];
        self->earlier_count = fuse_operand_rows(&op->inputs[2]) / self->earlier_rows;
    }
    struct fuse_product_shape shape = {
        .n = k,
        .k = self->earlier_rows,
        .a_row = 1,
        .a_column = n,
        .b_row = k,
        .b_column = 1,
        .worker_count = self->worker_count,
        .is_bfloat16 = cpu->is_bfloat16,
        .a_is_bfloat16 = fuse_operand_is_bfloat16(dy),
        .b_is_bfloat16 = fuse_operand_is_bfloat16(x),
    };
    int status = is_sum ? create_products(cpu, self, &shape, PRODUCT_EARLIEST, error) : FUSERUN_OK;
    shape.accumulate = is_sum || (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    if (status == FUSERUN_OK && self->earlier_count > 1)
        status = create_products(cpu, self, &shape, PRODUCT_EARLIER, error);
    shape.k = batch;
    shape.m = panel_rows;
    self->shared = shape;
    self->shares_x = panel_count > 1 && fuse_product_uses_tiles(cpu->products, &shape);
    if (status == FUSERUN_OK)
        status = create_products(cpu, self, &shape, PRODUCT_PRESENT, error);
    if (status != FUSERUN_OK) {
        destroy_weight_gradient(&self->kernel);
        return status;
    }
    info->panel_count = (uint32_t)panel_count;
    info->panel_rows = panel_rows;
    info->workspace_bytes = self->workspace_bytes * (uint64_t)self->worker_count;
    if (self->shares_x)
        info->workspace_bytes += fuse_tiles_shared_bytes(&self->shared);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}

int fuse_compile_linear(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                        struct fuse_kernel_info *info, struct fuse_error *error)
{
    return op->kind == FUSERUN_OP_LINEAR_DW || op->kind == FUSERUN_OP_LINEAR_DW_SUM
               ? compile_weight_gradient(cpu, op, kernel, info, error)
               : compile_product(cpu, op, kernel, info, error);
}

/* ---- db (N), the sum over the rows of dy (B, N) -------------------------------------------------------------- */

struct bias_gradient {
    struct fuse_kernel kernel;
    int64_t batch, n;
    bool is_bfloat16;
    bool accumulate;
};

static int run_bias_gradient(const struct fuse_cpu *cpu, struct fuse_kernel *kernel,
                             const struct fuse_kernel_call *call, struct fuse_error *error)
{
    const struct bias_gradient *const self = (const struct bias_gradient *)kernel;
    (void)error;
    const struct fuse_values dy = {call->inputs[0], self->is_bfloat16};
    fuse_sum_columns(cpu, dy, self->batch, self->n, self->n, self->accumulate, call->outputs[0]);
    return FUSERUN_OK;
}

static void destroy_bias_gradient(struct fuse_kernel *kernel)
{
    free(kernel);
}

int fuse_compile_bias_gradient(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                               struct fuse_kernel_info *info, struct fuse_error *error)
{
    (void)info;
    struct bias_gradient *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    self->kernel.run = run_bias_gradient;
    self->kernel.destroy = destroy_bias_gradient;
    self->batch = fuse_operand_rows(&op->inputs[0]);
    self->n = fuse_operand_columns(&op->inputs[0]);
    self->is_bfloat16 = fuse_operand_is_bfloat16(&op->inputs[0]);
    self->accumulate = (op->flags & FUSERUN_OP_ACCUMULATE) != 0;
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
