/* muon - momentum whose matrix is made nearly orthogonal, as torch.optim.Muon (_muon.py), for matrices alone:
 *
 *     momentum_buffer <- momentum_buffer + (1 - momentum) (g - momentum_buffer)
 *     x = nesterov: g + momentum (momentum_buffer - g), else momentum_buffer
 *     x <- x / max(|x|, eps), then ns_steps times x <- a x + (b x x' + c (x x')^2) x        (Newton-Schulz)
 *     param <- (1 - lr weight_decay) param - lr adjustment x
 *     adjustment: original (none): sqrt(max(1, rows / columns)); match_rms_adamw: 0.2 sqrt(max(rows, columns))
 *
 * Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon, 2024);
 * match_rms_adamw: Liu et al., "Muon is scalable for LLM training" (arXiv:2502.16982, 2025). Products are in float32
 * here, in bfloat16 in PyTorch. A matrix with more rows than columns takes x' x on the other side, which is the same.
 */
#include "tensor_parts.h"

enum { LR, WEIGHT_DECAY, MOMENTUM, NESTEROV, A, B, C, EPS, NS_STEPS, ADJUSTMENT };
static const struct fuse_option options[] = {
    LR_OPTION("1e-3", "learning rate"),
    WEIGHT_DECAY_OPTION("0.1", DECOUPLED_HELP),
    FUSERUN_OPTION(.key = "momentum", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,
                   .default_text = "0.95", .range = "[0, inf)", .help = "decay of the running mean"),
    FUSERUN_OPTION(.key = "nesterov", .type = FUSERUN_OPTION_BOOL, .default_text = "yes",
                   .help = "look ahead along the momentum"),
    FUSERUN_OPTION(.key = "ns_coefficients", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_LIST,
                   .list_count = 3, .default_text = "3.4445, -4.775, 2.0315", .elements = "a|b|c",
                   .help = "coefficients of the Newton-Schulz iteration"),
    EPS_OPTION("1e-7", "smallest norm that is divided by"),
    FUSERUN_OPTION(.key = "ns_steps", .type = FUSERUN_OPTION_INTEGER, .default_text = "5", .range = "[0, 99]",
                   .help = "Newton-Schulz iterations"),
    FUSERUN_OPTION(.key = "adjust_lr_fn", .type = FUSERUN_OPTION_CHOICE, .default_text = "none",
                   .choices = "none|original|match_rms_adamw", .help = "how lr depends on the shape; none is original"),
};

enum { KEEP, AHEAD, COEFFICIENT_A, COEFFICIENT_B, COEFFICIENT_C, SMALLEST, STEPS, STEP_SIZE, SHRINK, MATCHES_ADAMW };

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    scalars[KEEP] = 1.0 - hyper[MOMENTUM];
    scalars[AHEAD] = hyper[NESTEROV] != 0.0 ? hyper[MOMENTUM] : 1.0; /* 1: x is the buffer itself */
    scalars[COEFFICIENT_A] = hyper[A];
    scalars[COEFFICIENT_B] = hyper[B];
    scalars[COEFFICIENT_C] = hyper[C];
    scalars[SMALLEST] = hyper[EPS];
    scalars[STEPS] = hyper[NS_STEPS];
    scalars[STEP_SIZE] = hyper[LR];
    scalars[SHRINK] = 1.0 - hyper[LR] * hyper[WEIGHT_DECAY];
    scalars[MATCHES_ADAMW] = hyper[ADJUSTMENT] == 2.0;
}

/* ---- one update ------------------------------------------------------------------------------------------------ */

enum { GRAM, SQUARE, APPLY }; /* the planned products */

struct work {
    const struct fuse_tensor_update *update;
    int64_t rows, columns, side; /* side: the shorter of the two */
    double *row_sums;            /* (rows) scratch */
    float *x, *product;          /* (rows, columns) scratch */
    float *gram, *polynomial;    /* (side, side) scratch */
    float factor;                /* of the scaling at hand */
};

static struct work work_of(const int64_t *shape)
{
    return (struct work){.rows = shape[0], .columns = shape[1], .side = shape[0] < shape[1] ? shape[0] : shape[1]};
}

/* Floats that doubles take, so that what follows keeps an alignment of 64 bytes. */
static int64_t padded(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

static void follow(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    const float keep = work->update->scalars[KEEP], ahead = work->update->scalars[AHEAD];
    for (int64_t row = begin; row < end; row++) {
        const float *grad = work->update->grad + row * work->columns;
        float *buffer = work->update->states[0] + row * work->columns, *x = work->x + row * work->columns;
        for (int64_t i = 0; i < work->columns; i++) {
            buffer[i] += keep * (grad[i] - buffer[i]);
            x[i] = ahead == 1.0f ? buffer[i] : grad[i] + ahead * (buffer[i] - grad[i]);
        }
        work->row_sums[row] = sum_squares(x, work->columns);
    }
}

static void scale(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    for (int64_t i = begin * work->columns; i < end * work->columns; i++)
        work->x[i] *= work->factor;
}

/* b gram + c gram gram, in place of the latter. */
static void add_gram(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    const float b = work->update->scalars[COEFFICIENT_B], c = work->update->scalars[COEFFICIENT_C];
    for (int64_t i = begin * work->side; i < end * work->side; i++)
        work->polynomial[i] = b * work->gram[i] + c * work->polynomial[i];
}

static void add_product(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    const float a = work->update->scalars[COEFFICIENT_A];
    for (int64_t i = begin * work->columns; i < end * work->columns; i++)
        work->x[i] = a * work->x[i] + work->product[i];
}

static void step(void *context, int64_t begin, int64_t end)
{
    const struct work *work = context;
    const float shrink = work->update->scalars[SHRINK];
    float *param = work->update->param;
    for (int64_t i = begin * work->columns; i < end * work->columns; i++)
        param[i] = shrink * param[i] - work->factor * work->x[i];
}

static int iterate(struct work *work, struct fuse_error *error)
{
    const struct fuse_tensor_update *update = work->update;
    const int is_tall = work->rows > work->columns;
    int status = update->multiply(update, GRAM, work->x, work->x, work->gram, error);
    if (status == FUSERUN_OK)
        status = update->multiply(update, SQUARE, work->gram, work->gram, work->polynomial, error);
    if (status != FUSERUN_OK)
        return status;
    update->split(update, work->side, work->side, add_gram, work);
    status = is_tall ? update->multiply(update, APPLY, work->x, work->polynomial, work->product, error)
                     : update->multiply(update, APPLY, work->polynomial, work->x, work->product, error);
    update->split(update, work->rows, work->columns, add_product, work);
    return status;
}

static int update_tensor(const struct fuse_tensor_update *update, struct fuse_error *error)
{
    struct work work = work_of(update->shape);
    const float *scalars = update->scalars;
    const double rows = (double)work.rows, columns = (double)work.columns;
    const int64_t size = padded(work.rows * work.columns), square = padded(work.side * work.side);
    work.update = update;
    work.row_sums = (double *)update->scratch;
    work.x = (float *)update->scratch + padded(2 * work.rows);
    work.product = work.x + size;
    work.gram = work.product + size;
    work.polynomial = work.gram + square;
    update->split(update, work.rows, work.columns, follow, &work);
    work.factor = (float)(1.0 / fmax(sqrt(sum(work.row_sums, work.rows)), (double)scalars[SMALLEST]));
    update->split(update, work.rows, work.columns, scale, &work);
    for (int i = 0; i < (int)scalars[STEPS]; i++) {
        const int status = iterate(&work, error);
        if (status != FUSERUN_OK)
            return status;
    }
    const double adjustment =
        scalars[MATCHES_ADAMW] != 0.0f ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1.0, rows / columns));
    work.factor = (float)((double)scalars[STEP_SIZE] * adjustment);
    update->split(update, work.rows, work.columns, step, &work);
    return FUSERUN_OK;
}

static int plan_tensor(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{
    if (plan->rank != 2)
        return host->fail(error, FUSERUN_ERROR_CONFIG, NULL,
                          "muon updates matrices, this has %u dimension%s: give it a [group ...] with another plugin",
                          plan->rank, plan->rank == 1 ? "" : "s");
    const struct work work = work_of(plan->shape);
    const int is_tall = work.rows > work.columns;
    const int64_t longer = is_tall ? work.rows : work.columns;
    plan->state_counts[0] = work.rows * work.columns;
    plan->scratch_bytes = sizeof(float) * (uint64_t)(padded(2 * work.rows) + 2 * padded(work.rows * work.columns) +
                                                     2 * padded(work.side * work.side));
    plan->products[GRAM] =
        (struct fuse_tensor_product){work.side, work.side, longer, (uint32_t)is_tall, (uint32_t)!is_tall};
    plan->products[SQUARE] = (struct fuse_tensor_product){work.side, work.side, work.side, 0, 0};
    plan->products[APPLY] = (struct fuse_tensor_product){work.rows, work.columns, work.side, 0, 0};
    plan->product_count = 3;
    return FUSERUN_OK;
}

FUSERUN_TENSOR_RULE(muon, (momentum_buffer), (keep, ahead, a, b, c, smallest, steps, step_size, shrink, matches_adamw),
                    plan_tensor, update_tensor)

FUSERUN_TENSOR_OPTIMIZER(muon, "1.0.0", "MIT", "orthogonalised momentum, for matrices", options, prepare, muon, NULL)
