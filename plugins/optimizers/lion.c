/* lion - the sign of an interpolated momentum, as its authors' lion_pytorch.py (github.com/google/automl, lion/):
 *
 *     param <- (1 - lr weight_decay) param
 *     param <- param - lr sign(beta1 exp_avg + (1 - beta1) g)
 *     exp_avg <- beta2 exp_avg + (1 - beta2) g
 *
 * Chen et al., "Symbolic discovery of optimization algorithms" (NeurIPS 2023), algorithm 2. */
#include "rule_parts.h"

/* clang-format off */
FUSERUN_RULE(lion, (exp_avg), (shrink, lr, beta1, one_minus_beta1, beta2, one_minus_beta2),
    const float direction = beta1 * exp_avg + one_minus_beta1 * grad;
    param = shrink * param - lr * (float)((direction > 0.0f) - (direction < 0.0f));
    exp_avg = beta2 * exp_avg + one_minus_beta2 * grad;
)
/* clang-format on */

enum { LR, BETA1, BETA2, WEIGHT_DECAY };
static const struct fuse_option options[] = {
    LR_OPTION("1e-4", "learning rate: the size of every step"),
    BETAS_OPTION("0.9, 0.99", "share of the running mean in the step's sign, and its decay"),
    WEIGHT_DECAY_OPTION("0", DECOUPLED_HELP),
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    scalars[0] = 1.0 - hyper[LR] * hyper[WEIGHT_DECAY];
    scalars[1] = hyper[LR];
    scalars[2] = hyper[BETA1];
    scalars[3] = 1.0 - hyper[BETA1];
    scalars[4] = hyper[BETA2];
    scalars[5] = 1.0 - hyper[BETA2];
}

FUSERUN_OPTIMIZER(lion, "1.0.0", "MIT", "the sign of an interpolated momentum", options, prepare, lion)
