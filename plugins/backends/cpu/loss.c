/* Losses. Each gives its statistics in double and, where asked, the gradient; all sums run over chunks of fixed size
 * whose partial sums lie in the workspace and are added in order, so that threads change nothing. */
#include "cpu.h"
#include "float_math.h"
#include "threads.h"

#include <stdlib.h>

#define CHUNK_ELEMENTS 4096

struct loss {
    struct fuse_kernel kernel;
    fuse_range_body *body;
    int64_t rows;    /* cross_entropy: samples; else chunks */
    int64_t columns; /* cross_entropy: classes */
    int64_t count;   /* elements */
    int64_t serial_rows;
    double smoothing;
    bool has_gradient;
};

/* What one chunk (or sample) gives. */
struct partial {
    double loss;
    double correct;
};

/* One run. */
struct run {
    const struct loss *self;
    const float *y;        /* (rows, columns) or (count) */
    const float *target;   /* (count) */
    const int64_t *labels; /* (rows) */
    float *gradient;       /* as y, or NULL */
    double scale;
    struct partial *partials; /* (rows) */
};

/* One sample. With p = softmax(x), s the smoothing and C classes (PyTorch's cross_entropy):
 *   loss = (1 - s) * -log p[label] + s / C * sum of -log p,  d loss / dx = p - ((1 - s) [label] + s / C). */
FUSE_CLONES static void cross_entropy_row(const struct run *run, int64_t row)
{
    const int64_t classes = run->self->columns;
    const double smoothing = run->self->smoothing;
    const float *const x = run->y + row * classes;
    const int64_t label = run->labels[row];
    double sum = 0.0, distance = 0.0;
    float *const gradient = run->gradient != NULL ? run->gradient + row * classes : NULL;

    const float max = fuse_largest(x, classes);
    int64_t best = 0;
    while (best < classes && !(x[best] == max))
        best++;
    const double top = (double)max;

    if (gradient != NULL) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < classes; i++) {
            const double e = fuse_exp((double)x[i] - top);
            sum += e;
            gradient[i] = (float)e;
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < classes; i++)
            sum += fuse_exp((double)x[i] - top);
    }
    if (label < 0 || label >= classes) { /* the caller has checked; this only keeps the read inside x */
        run->partials[row] = (struct partial){NAN, 0.0};
        return;
    }
    const double log_sum = log(sum), label_distance = (double)x[label] - top;
    double loss = log_sum - label_distance;
    if (smoothing != 0.0) {
#pragma omp simd reduction(+ : distance)
        for (int64_t i = 0; i < classes; i++)
            distance += (double)x[i] - top;
        loss = (1.0 - smoothing) * loss + smoothing * (log_sum - distance / (double)classes);
    }
    run->partials[row] = (struct partial){loss, best == label ? 1.0 : 0.0};
    if (gradient == NULL)
        return;
    const double factor = run->scale / sum, off = run->scale * smoothing / (double)classes;
#pragma omp simd
    for (int64_t i = 0; i < classes; i++)
        gradient[i] = (float)((double)gradient[i] * factor - off);
    gradient[label] = (float)(fuse_exp(label_distance) * factor - off - run->scale * (1.0 - smoothing));
}

static void cross_entropy(const void *context, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++)
        cross_entropy_row(context, row);
}

FUSE_CLONES static void mse_chunk(const struct run *run, int64_t chunk)
{
    const int64_t begin = chunk * CHUNK_ELEMENTS, count = run->self->count;
    const int64_t end = begin + CHUNK_ELEMENTS < count ? begin + CHUNK_ELEMENTS : count;
    const float *const y = run->y, *const target = run->target;
    float *const gradient = run->gradient;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; i++) {
        const double difference = (double)y[i] - (double)target[i];
        sum += difference * difference;
    }
    run->partials[chunk] = (struct partial){sum, 0.0};
    const double factor = 2.0 * run->scale;
    if (gradient != NULL) {
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            gradient[i] = (float)(((double)y[i] - (double)target[i]) * factor);
    }
}

static void mse(const void *context, int64_t begin, int64_t end)
{
    for (int64_t chunk = begin; chunk < end; chunk++)
        mse_chunk(context, chunk);
}

FUSE_CLONES static void sum_chunk(const struct run *run, int64_t chunk)
{
    const int64_t begin = chunk * CHUNK_ELEMENTS, count = run->self->count;
    const int64_t end = begin + CHUNK_ELEMENTS < count ? begin + CHUNK_ELEMENTS : count;
    const float *const y = run->y;
    float *const gradient = run->gradient;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; i++)
        sum += (double)y[i];
    run->partials[chunk] = (struct partial){sum, 0.0};
    const float scale = (float)run->scale;
    if (gradient != NULL)
        for (int64_t i = begin; i < end; i++)
            gradient[i] = scale;
}

static void sum_loss(const void *context, int64_t begin, int64_t end)
{
    for (int64_t chunk = begin; chunk < end; chunk++)
        sum_chunk(context, chunk);
}

static int run_loss(const struct fuse_cpu *cpu, struct fuse_kernel *kernel, const struct fuse_kernel_call *call,
                    struct fuse_error *error)
{
    const struct loss *const self = (const struct loss *)kernel;
    const bool has_second = self->body != sum_loss;
    double *const statistics = call->outputs[0];
    const struct run run = {.self = self,
                            .y = call->inputs[0],
                            .target = has_second ? call->inputs[1] : NULL,
                            .labels = has_second ? call->inputs[1] : NULL,
                            .gradient = self->has_gradient ? call->outputs[1] : NULL,
                            .scale = call->scalars != NULL ? call->scalars[0] : 1.0,
                            .partials = call->workspace};
    (void)error;
    fuse_threads_split(cpu->thread_count, self->rows, 1, self->serial_rows, self->body, &run);
    double loss = 0.0, correct = 0.0;
    for (int64_t i = 0; i < self->rows; i++) {
        loss += run.partials[i].loss;
        correct += run.partials[i].correct;
    }
    statistics[0] = loss;
    statistics[1] = correct;
    return FUSERUN_OK;
}

static void destroy(struct fuse_kernel *kernel)
{
    free(kernel);
}

int fuse_compile_loss(struct fuse_cpu *cpu, const struct fuse_op *op, struct fuse_kernel **kernel,
                      struct fuse_kernel_info *info, struct fuse_error *error)
{
    struct loss *const self = calloc(1, sizeof(*self));
    if (self == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*self), error);
    self->kernel.run = run_loss;
    self->kernel.destroy = destroy;
    self->count = fuse_operand_count(&op->inputs[0]);
    self->has_gradient = op->output_count > 1 && op->outputs[1].dtype != 0;
    if (op->kind == FUSERUN_OP_CROSS_ENTROPY) {
        self->body = cross_entropy;
        self->rows = fuse_operand_rows(&op->inputs[0]);
        self->columns = fuse_operand_columns(&op->inputs[0]);
        self->serial_rows = FUSE_SERIAL_ELEMENTS / 8 / self->columns;
        self->smoothing = op->numbers[0];
    } else {
        self->body = op->kind == FUSERUN_OP_MSE ? mse : sum_loss;
        self->rows = (self->count + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS;
        self->serial_rows = FUSE_SERIAL_ELEMENTS / CHUNK_ELEMENTS;
    }
    info->workspace_bytes = (uint64_t)self->rows * sizeof(struct partial);
    *kernel = &self->kernel;
    return FUSERUN_OK;
}
