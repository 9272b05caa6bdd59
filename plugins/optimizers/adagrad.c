/* adagrad - steps shrink by the root of all squared gradients so far, as torch.optim.Adagrad (adagrad.py):
 *
 *     g <- g + weight_decay param                       sum <- sum + g g, from initial_accumulator_value
 *     param <- param - lr / (1 + (t - 1) lr_decay)  g / (sqrt(sum) + eps)
 *
 * Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization" (JMLR 2011).
 */
#include "rule_parts.h"

/* `start` is what the sum begins with at a parameter's first update, and 0 afterwards. */
/* clang-format off */
FUSERUN_RULE(adagrad, (sum), (sign, weight_decay, start, step_size, eps),
    FOLLOWED_GRADIENT
    sum = sum + start + g * g;
    param -= step_size * (g / (sqrtf(sum) + eps));
)
/* clang-format on */

enum { LR, LR_DECAY, WEIGHT_DECAY, INITIAL_ACCUMULATOR_VALUE, EPS, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("1e-2", "learning rate"),
    FUSERUN_OPTION(.key = "lr_decay", .type = FUSERUN_OPTION_NUMBER, .default_text = "0", .range = "[0, inf)",
                   .help = "lr is divided by 1 + lr_decay times the updates already done"),
    WEIGHT_DECAY_OPTION("0", L2_HELP),
    FUSERUN_OPTION(.key = "initial_accumulator_value", .type = FUSERUN_OPTION_NUMBER, .default_text = "0",
                   .range = "[0, inf)", .help = "what the sum of squared gradients starts from"),
    EPS_OPTION("1e-10", "added to the root of the sum"),
    MAXIMIZE_OPTION,
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    scalars[0] = followed_sign(hyper[MAXIMIZE]);
    scalars[1] = hyper[WEIGHT_DECAY];
    scalars[2] = update->step == 1 ? hyper[INITIAL_ACCUMULATOR_VALUE] : 0.0;
    scalars[3] = hyper[LR] / (1.0 + (double)(update->step - 1) * hyper[LR_DECAY]);
    scalars[4] = hyper[EPS];
}

FUSERUN_OPTIMIZER(adagrad, "1.0.0", "MIT", "steps scaled by all squared gradients so far", options, prepare, adagrad)
