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
#include "rule_parts.h"

#include <float.h>
#include <fuserun/tensor_rule.h>

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

/* A matrix, or several of one size, have row_var and col_var; a vector, taken as one row, has variance.
 * row_mean: max(mean of row_var, eps1) of each matrix; size: RMS(param), then alpha / max(1, RMS(u) / d). */
#define ARRAYS                                                                                                         \
    (row_var, col_var, variance), (row_mean, size), (sign, one_minus_beta2, rho, smallest, smallest_rms, clip, shrink)
enum { ROW_MEAN, SIZE }; /* scratches */

#define AT_LEAST(least, value) ((value) < (least) ? (least) : (value))
#define MOVED(from, to) ((float)((double)(from) + (double)one_minus_beta2 * ((to) - (double)(from))))
#define GRAD_SQUARE ((double)grad[i] * (double)grad[i])
#define COUNT ((double)matrices * (double)rows * (double)columns)
#define FACTORED AT_LEAST(smallest *smallest, row_var[row] / row_mean[matrix] * col_var[matrix * columns + column])
#define WHOLE AT_LEAST(smallest *smallest, variance[i])
#define STEP_SIZE                                                                                                      \
    ((float)((double)sign * AT_LEAST((double)smallest_rms, (double)size[0]) * (double)rho /                            \
             AT_LEAST(1.0, sqrt(sum / COUNT) / (double)clip)))

FUSERUN_PASS_ALL(measure_param, ARRAYS, ((double)param[i] * (double)param[i]), size[0] = (float)sqrt(sum / COUNT);)
FUSERUN_PASS_ROWS(follow_rows, ARRAYS, GRAD_SQUARE, row_var[at] = MOVED(row_var[at], sum / (double)columns);)
FUSERUN_PASS_COLUMNS(follow_columns, ARRAYS, GRAD_SQUARE, col_var[at] = MOVED(col_var[at], sum / (double)rows);)
/* Over row_var, of which a matrix's is one row. */
FUSERUN_PASS_ROWS(measure_rows, ARRAYS, ((double)row_var[i]),
                  row_mean[at] = AT_LEAST(smallest, (float)(sum / (double)columns));)
FUSERUN_PASS_ALL(measure_factored, ARRAYS, (GRAD_SQUARE / (double)(FACTORED)), size[0] = STEP_SIZE;)
FUSERUN_PASS_ELEMENTS(step_factored, ARRAYS, param[i] = shrink * param[i] - size[0] * (grad[i] / sqrtf(FACTORED));)
FUSERUN_PASS_ELEMENTS(follow_elements, ARRAYS, variance[i] = MOVED(variance[i], GRAD_SQUARE);)
FUSERUN_PASS_ALL(measure_whole, ARRAYS, (GRAD_SQUARE / (double)(WHOLE)), size[0] = STEP_SIZE;)
FUSERUN_PASS_ELEMENTS(step_whole, ARRAYS, param[i] = shrink * param[i] - size[0] * (grad[i] / sqrtf(WHOLE));)

FUSERUN_PASSES(passes, &measure_param, &follow_rows, &follow_columns, &measure_rows, &measure_factored, &step_factored,
               &follow_elements, &measure_whole, &step_whole)
enum {
    MEASURE_PARAM,
    FOLLOW_ROWS,
    FOLLOW_COLUMNS,
    MEASURE_ROWS,
    MEASURE_FACTORED,
    STEP_FACTORED,
    FOLLOW_ELEMENTS,
    MEASURE_WHOLE,
    STEP_WHOLE
};

struct sizes {
    int64_t matrices, rows, columns;
};

static struct sizes sizes_of(uint32_t rank, const int64_t *shape)
{
    struct sizes sizes = {1, rank >= 2 ? shape[rank - 2] : 1, rank >= 1 ? shape[rank - 1] : 1};
    for (uint32_t i = 0; i + 2 < rank; i++)
        sizes.matrices *= shape[i];
    return sizes;
}

static int update_tensor(const struct fuse_tensor_update *update, struct fuse_error *error)
{
    static const uint32_t of_vectors[] = {MEASURE_PARAM, FOLLOW_ELEMENTS, MEASURE_WHOLE, STEP_WHOLE};
    static const uint32_t of_matrices[] = {MEASURE_PARAM, FOLLOW_ROWS,      FOLLOW_COLUMNS,
                                           MEASURE_ROWS,  MEASURE_FACTORED, STEP_FACTORED};
    const struct sizes sizes = sizes_of(update->rank, update->shape);
    const uint32_t *const order = update->rank < 2 ? of_vectors : of_matrices;
    const size_t count = update->rank < 2 ? sizeof of_vectors : sizeof of_matrices;
    int status = FUSERUN_OK;
    for (size_t i = 0; i < count / sizeof *order && status == FUSERUN_OK; i++)
        status = order[i] == MEASURE_ROWS
                     ? update->run_pass(update, MEASURE_ROWS, 1, sizes.matrices, sizes.rows, error)
                     : update->run_pass(update, order[i], sizes.matrices, sizes.rows, sizes.columns, error);
    return status;
}

static int plan_tensor(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{
    const struct sizes sizes = sizes_of(plan->rank, plan->shape);
    const int64_t rows = sizes.matrices * sizes.rows, columns = sizes.matrices * sizes.columns;
    (void)host;
    (void)error;
    plan->state_counts[0] = plan->rank < 2 ? 0 : rows;
    plan->state_counts[1] = plan->rank < 2 ? 0 : columns;
    plan->state_counts[2] = plan->rank < 2 ? columns : 0;
    plan->scratch_counts[ROW_MEAN] = sizes.matrices;
    plan->scratch_counts[SIZE] = 1;
    plan->sum_count = rows > columns ? rows : columns;
    return FUSERUN_OK;
}

FUSERUN_TENSOR_RULE_OF_PASSES(adafactor, ARRAYS, passes, plan_tensor, update_tensor)

FUSERUN_TENSOR_OPTIMIZER(adafactor, "1.0.0", "MIT", "second moments by rows and columns, relative steps", options,
                         prepare, adafactor, check)
