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
#include "rule_parts.h"

#include <fuserun/tensor_rule.h>

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

/* x, product: (rows, columns); gram, polynomial: (side, side), side being the shorter of the two; norm: one number. */
#define ARRAYS                                                                                                         \
    (momentum_buffer), (x, product, gram, polynomial, norm),                                                           \
        (keep, ahead, a, b, c, smallest, steps, step_size, shrink, matches_adamw)
enum { X, PRODUCT, GRAM, POLYNOMIAL, NORM };

FUSERUN_PASS_ELEMENTS(follow, ARRAYS, momentum_buffer[i] += keep * (grad[i] - momentum_buffer[i]);
                      x[i] = ahead == 1.0f ? momentum_buffer[i] : grad[i] + ahead * (momentum_buffer[i] - grad[i]);)

FUSERUN_PASS_ALL(measure, ARRAYS, ((double)x[i] * (double)x[i]),
                 norm[0] = (float)(sqrt(sum) > (double)smallest ? sqrt(sum) : (double)smallest);)

FUSERUN_PASS_ELEMENTS(normalize, ARRAYS, x[i] = x[i] / norm[0];)

/* b gram + c gram gram, in place of the latter. */
FUSERUN_PASS_ELEMENTS(add_gram, ARRAYS, polynomial[i] = b * gram[i] + c * polynomial[i];)

FUSERUN_PASS_ELEMENTS(add_product, ARRAYS, x[i] = a * x[i] + product[i];)

/* The adjustment is the same for all elements: compilers take it out of the loop. */
FUSERUN_PASS_ELEMENTS(step, ARRAYS, const double tall = (double)rows / (double)columns;
                      const double longer = (double)(rows > columns ? rows : columns);
                      const double adjustment = matches_adamw != 0.0f ? 0.2 * sqrt(longer)
                                                                      : sqrt(tall > 1.0 ? tall : 1.0);
                      param[i] = shrink * param[i] - (float)((double)step_size * adjustment) * x[i];)

FUSERUN_PASSES(passes, &follow, &measure, &normalize, &add_gram, &add_product, &step)
enum { FOLLOW, MEASURE, NORMALIZE, ADD_GRAM, ADD_PRODUCT, STEP };       /* passes */
enum { MULTIPLY_GRAM, MULTIPLY_SQUARE, MULTIPLY_APPLY, PRODUCT_COUNT }; /* planned products */

static int64_t side_of(const int64_t *shape)
{
    return shape[0] < shape[1] ? shape[0] : shape[1];
}

static int iterate(const struct fuse_tensor_update *update, struct fuse_error *error)
{
    const int64_t rows = update->shape[0], columns = update->shape[1], side = side_of(update->shape);
    float *const *scratches = update->scratches;
    float *const x = scratches[X], *const gram = scratches[GRAM], *const polynomial = scratches[POLYNOMIAL];
    const float *const left = rows > columns ? x : polynomial, *const right = rows > columns ? polynomial : x;
    int status = update->multiply(update, MULTIPLY_GRAM, x, x, gram, error);
    if (status == FUSERUN_OK)
        status = update->multiply(update, MULTIPLY_SQUARE, gram, gram, polynomial, error);
    if (status == FUSERUN_OK)
        status = update->run_pass(update, ADD_GRAM, 1, side, side, error);
    if (status == FUSERUN_OK)
        status = update->multiply(update, MULTIPLY_APPLY, left, right, scratches[PRODUCT], error);
    if (status == FUSERUN_OK)
        status = update->run_pass(update, ADD_PRODUCT, 1, rows, columns, error);
    return status;
}

static int update_tensor(const struct fuse_tensor_update *update, struct fuse_error *error)
{
    const int64_t rows = update->shape[0], columns = update->shape[1];
    int status = FUSERUN_OK;
    for (uint32_t pass = FOLLOW; pass <= NORMALIZE && status == FUSERUN_OK; pass++)
        status = update->run_pass(update, pass, 1, rows, columns, error);
    for (int i = 0; i < (int)update->scalars[STEPS] && status == FUSERUN_OK; i++)
        status = iterate(update, error);
    return status == FUSERUN_OK ? update->run_pass(update, STEP, 1, rows, columns, error) : status;
}

static int plan_tensor(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{
    if (plan->rank != 2)
        return host->fail(error, FUSERUN_ERROR_CONFIG, NULL,
                          "muon updates matrices, this has %u dimension%s: give it a [group ...] with another plugin",
                          plan->rank, plan->rank == 1 ? "" : "s");
    const int64_t rows = plan->shape[0], columns = plan->shape[1], side = side_of(plan->shape);
    const uint32_t is_tall = rows > columns;
    plan->state_counts[0] = rows * columns;
    plan->scratch_counts[X] = plan->scratch_counts[PRODUCT] = rows * columns;
    plan->scratch_counts[GRAM] = plan->scratch_counts[POLYNOMIAL] = side * side;
    plan->scratch_counts[NORM] = 1;
    plan->sum_count = rows;
    plan->products[MULTIPLY_GRAM] =
        (struct fuse_tensor_product){side, side, is_tall ? rows : columns, is_tall, !is_tall};
    plan->products[MULTIPLY_SQUARE] = (struct fuse_tensor_product){side, side, side, 0, 0};
    plan->products[MULTIPLY_APPLY] = (struct fuse_tensor_product){rows, columns, side, 0, 0};
    plan->product_count = PRODUCT_COUNT;
    return FUSERUN_OK;
}

FUSERUN_TENSOR_RULE_OF_PASSES(muon, ARRAYS, passes, plan_tensor, update_tensor)

FUSERUN_TENSOR_OPTIMIZER(muon, "1.0.0", "MIT", "orthogonalised momentum, for matrices", options, prepare, muon, NULL)
