/* adafactor - Adam's second moment kept as one number for each row and one for each column, as torch.optim.Adafactor
 * (_adafactor.py):
 *
 *     1 - beta2 = t^beta2_decay       rho = min(lr, 1 / sqrt(t))       alpha = max(eps2, RMS(param)) rho
 *     param <- (1 - lr weight_decay) param
 *     row_var <- row_var + (1 - beta2) (mean over the row of g g - row_var), col_var likewise over the column
 *     v = row_var col_var / max(mean of row_var, eps1)
 *     u = g / sqrt(max(v, eps1^2))    param <- param - alpha / max(1, RMS(u) / d) u
 *
 * Vectors keep the whole variance: v = variance <- variance + (1 - beta2) (g g - variance). With more than two
 * dimensions the last two are rows and columns, and the others count matrices.
 * Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost" (ICML 2018), algorithm 4, with
 * PyTorch's use of lr and of eps1 (none: the smallest step of float32 at 1). */
#include "tensor_parts.h"

#include <float.h>

enum { CHUNK = 1024 }; /* elements of a vector that are one row of work */

enum { LR, BETA2_DECAY, EPS1, EPS2, D, WEIGHT_DECAY, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("1e-2", "largest relative step, and factor of weight_decay"),
    FUSERUN_OPTION(.key = "beta2_decay", .type = FUSERUN_OPTION_NUMBER, .default_text = "-0.8", .range = "(-inf, 0]",
                   .help = "power of the update count that a new squared gradient weighs"),
    FUSERUN_OPTION(.key = "eps", .type = FUSERUN_OPTION_NUMBER,
                   .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_NONE_ALLOWED, .list_count = 2,
                   .default_text = "none, 1e-3", .range = "[0, inf)", .elements = "eps1|eps2",
                   .help = "smallest root of the variance (none: 1.19e-7); smallest root mean square of a parameter"),
    FUSERUN_OPTION(.key = "d", .type = FUSERUN_OPTION_NUMBER, .default_text = "1", .range = "[1, inf)",
                   .help = "largest root mean square of an update before it is scaled"),
    WEIGHT_DECAY_OPTION("0", DECOUPLED_HELP),
    MAXIMIZE_OPTION,
};

enum { SIGN, ONE_MINUS_BETA2, RHO, SMALLEST, SMALLEST_RMS, CLIP, SHRINK };

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    const double step = (double)update->step;
    scalars[SIGN] = followed_sign(hyper[MAXIMIZE]);
    scalars[ONE_MINUS_BETA2] = pow(step, hyper[BETA2_DECAY]);
    scalars[RHO] = fmin(hyper[LR], 1.0 / sqrt(step));
    scalars[SMALLEST] = isnan(hyper[EPS1]) ? (double)FLT_EPSILON : hyper[EPS1];
    scalars[SMALLEST_RMS] = hyper[EPS2];
    scalars[CLIP] = hyper[D];
    scalars[SHRINK] = 1.0 - hyper[LR] * hyper[WEIGHT_DECAY];
}

static int check(const struct fuse_host *host, const struct fuse_options *values, struct fuse_error *error)
{
    size_t count;
    if (isnan(host->option_numbers(values, "eps", &count)[1]))
        return host->fail(error, FUSERUN_ERROR_CONFIG, "eps", "only the first of eps may be none");
    return FUSERUN_OK;
}

/* ---- one update ------------------------------------------------------------------------------------------------ */

/* A parameter as rows of `columns` elements: a vector as chunks, the last of which may be shorter. */
struct work {
    const struct fuse_tensor_update *update;
    int64_t count, rows, columns;
    int64_t matrix_rows; /* rows of each of the matrices; 0: a vector */
    float *row_var;      /* (rows) */
    float *col_var;      /* (matrices, columns) */
    float *variance;     /* (count), of vectors */
    double *row_sums;    /* (rows) scratch */
    double *col_sums;    /* (matrices, columns) scratch */
    double *row_scales;  /* (matrices) scratch: 1 / max(mean of row_var, eps1) */
    float smallest_square;
    float step; /* alpha / max(1, RMS(u) / d), with the sign of the gradient to follow */
};

static struct work work_of(uint32_t rank, const int64_t *shape)
{
    struct work work = {.count = 1};
    for (uint32_t i = 0; i < rank; i++)
        work.count *= shape[i];
    work.columns = rank >= 2 ? shape[rank - 1] : CHUNK;
    work.matrix_rows = rank >= 2 ? shape[rank - 2] : 0;
    work.rows = (work.count + work.columns - 1) / work.columns;
    return work;
}

static int64_t column_count(const struct work *work)
{
    return work->rows / work->matrix_rows * work->columns;
}

static int64_t row_length(const struct work *work, int64_t row)
{
    const int64_t rest = work->count - row * work->columns;
    return rest < work->columns ? rest : work->columns;
}

static float moved(float from, double to, float share)
{
    return (float)((double)from + (double)share * (to - (double)from));
}

static void measure_parameter(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    for (int64_t row = begin; row < end; row++)
        work->row_sums[row] = sum_squares(work->update->param + row * work->columns, row_length(work, row));
}

static void update_rows(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    const float share = work->update->scalars[ONE_MINUS_BETA2];
    for (int64_t row = begin; row < end; row++) {
        const double squares = sum_squares(work->update->grad + row * work->columns, work->columns);
        work->row_var[row] = moved(work->row_var[row], squares / (double)work->columns, share);
    }
}

/* Columns [begin, end) of all matrices side by side. */
static void update_columns(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    const float share = work->update->scalars[ONE_MINUS_BETA2];
    for (int64_t from = begin, to; from < end; from = to) {
        const int64_t matrix = from / work->columns, first = from % work->columns;
        to = (matrix + 1) * work->columns < end ? (matrix + 1) * work->columns : end;
        double *sums = work->col_sums + from;
        const float *grad = work->update->grad + matrix * work->matrix_rows * work->columns + first;
        for (int64_t i = 0; i < to - from; i++)
            sums[i] = 0.0;
        for (int64_t row = 0; row < work->matrix_rows; row++, grad += work->columns)
            for (int64_t i = 0; i < to - from; i++)
                sums[i] += (double)grad[i] * (double)grad[i];
        for (int64_t i = 0; i < to - from; i++)
            work->col_var[from + i] = moved(work->col_var[from + i], sums[i] / (double)work->matrix_rows, share);
    }
}

static void update_variance(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    const float share = work->update->scalars[ONE_MINUS_BETA2];
    const float *grad = work->update->grad;
    const int64_t stop = end * work->columns < work->count ? end * work->columns : work->count;
    for (int64_t i = begin * work->columns; i < stop; i++)
        work->variance[i] = moved(work->variance[i], (double)grad[i] * (double)grad[i], share);
}

enum { PIECE = 256 }; /* elements of an update that exist at a time */

/* u of elements [at, at + count) of one row. */
static void form_update(const struct work *work, int64_t row, int64_t at, int64_t count, float *piece)
{
    const float *grad = work->update->grad + row * work->columns + at;
    const float smallest = work->smallest_square;
    if (work->matrix_rows == 0) {
        const float *variance = work->variance + row * work->columns + at;
        for (int64_t i = 0; i < count; i++)
            piece[i] = grad[i] / sqrtf(variance[i] < smallest ? smallest : variance[i]);
        return;
    }
    const int64_t matrix = row / work->matrix_rows;
    const float *col_var = work->col_var + matrix * work->columns + at;
    const float scale = (float)((double)work->row_var[row] * work->row_scales[matrix]);
    for (int64_t i = 0; i < count; i++) {
        const float variance = scale * col_var[i];
        piece[i] = grad[i] / sqrtf(variance < smallest ? smallest : variance);
    }
}

static void measure_update(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    float piece[PIECE];
    for (int64_t row = begin; row < end; row++) {
        const int64_t length = row_length(work, row);
        work->row_sums[row] = 0.0;
        for (int64_t at = 0; at < length; at += PIECE) {
            const int64_t count = length - at < PIECE ? length - at : PIECE;
            form_update(work, row, at, count, piece);
            work->row_sums[row] += sum_squares(piece, count);
        }
    }
}

static void apply_update(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    const float shrink = work->update->scalars[SHRINK], step = work->step;
    float piece[PIECE];
    for (int64_t row = begin; row < end; row++) {
        const int64_t length = row_length(work, row);
        for (int64_t at = 0; at < length; at += PIECE) {
            float *param = work->update->param + row * work->columns + at;
            const int64_t count = length - at < PIECE ? length - at : PIECE;
            form_update(work, row, at, count, piece);
            for (int64_t i = 0; i < count; i++)
                param[i] = shrink * param[i] - step * piece[i];
        }
    }
}

static void update_factors(struct work *work)
{
    const struct fuse_tensor_update *update = work->update;
    const double smallest = (double)update->scalars[SMALLEST];
    update->split(update, work->rows, work->columns, update_rows, work);
    update->split(update, column_count(work), work->matrix_rows, update_columns, work);
    for (int64_t matrix = 0; matrix < work->rows / work->matrix_rows; matrix++) {
        double mean = 0.0;
        for (int64_t row = 0; row < work->matrix_rows; row++)
            mean += (double)work->row_var[matrix * work->matrix_rows + row];
        mean /= (double)work->matrix_rows;
        work->row_scales[matrix] = 1.0 / (mean < smallest ? smallest : mean);
    }
}

static int update_tensor(const struct fuse_tensor_update *update, struct fuse_error *error)
{
    struct work work = work_of(update->rank, update->shape);
    const double count = (double)work.count;
    const float *scalars = update->scalars;
    (void)error;
    work.update = update;
    work.row_var = update->states[0];
    work.col_var = update->states[1];
    work.variance = update->states[2];
    work.row_sums = (double *)update->scratch;
    work.smallest_square = scalars[SMALLEST] * scalars[SMALLEST];
    update->split(update, work.rows, work.columns, measure_parameter, &work);
    const double rms = sqrt(sum(work.row_sums, work.rows) / count);
    if (work.matrix_rows == 0) {
        update->split(update, work.rows, work.columns, update_variance, &work);
    } else {
        work.col_sums = work.row_sums + work.rows;
        work.row_scales = work.col_sums + column_count(&work);
        update_factors(&work);
    }
    update->split(update, work.rows, work.columns, measure_update, &work);
    const double size = sqrt(sum(work.row_sums, work.rows) / count) / (double)scalars[CLIP];
    work.step = (float)((double)scalars[SIGN] * fmax((double)scalars[SMALLEST_RMS], rms) * (double)scalars[RHO] /
                        fmax(1.0, size));
    update->split(update, work.rows, work.columns, apply_update, &work);
    return FUSERUN_OK;
}

static int plan_tensor(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{
    const struct work work = work_of(plan->rank, plan->shape);
    int64_t doubles = work.rows;
    (void)host;
    (void)error;
    if (work.matrix_rows == 0) {
        plan->state_counts[2] = work.count;
    } else {
        plan->state_counts[0] = work.rows;
        plan->state_counts[1] = column_count(&work);
        doubles += column_count(&work) + work.rows / work.matrix_rows;
    }
    plan->scratch_bytes = (uint64_t)doubles * sizeof(double);
    return FUSERUN_OK;
}

FUSERUN_TENSOR_RULE(adafactor, (row_var, col_var, variance),
                    (sign, one_minus_beta2, rho, smallest, smallest_rms, clip, shrink), plan_tensor, update_tensor)

FUSERUN_TENSOR_OPTIMIZER(adafactor, "1.0.0", "MIT", "second moments by rows and columns, relative steps", options,
                         prepare, adafactor, check)
