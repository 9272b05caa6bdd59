/* adadelta - steps in the units of the weights, from running means of squared gradients and of squared steps, as
 * torch.optim.Adadelta (adadelta.py):
 *
 *     g <- g + weight_decay param                       square_avg <- rho square_avg + (1 - rho) g g
 *     delta = sqrt(acc_delta + eps) / sqrt(square_avg + eps)  g
 *     acc_delta <- rho acc_delta + (1 - rho) delta delta             param <- param - lr delta
 *
 * Zeiler, "ADADELTA: an adaptive learning rate method" (arXiv:1212.5701, 2012), algorithm 1. */
#include "rule_parts.h"

/* clang-format off */
FUSERUN_RULE(adadelta, (square_avg, acc_delta), (sign, weight_decay, rho, one_minus_rho, eps, lr),
    FOLLOWED_GRADIENT
    square_avg = rho * square_avg + one_minus_rho * g * g;
    const float delta = sqrtf(acc_delta + eps) / sqrtf(square_avg + eps) * g;
    acc_delta = rho * acc_delta + one_minus_rho * delta * delta;
    param -= lr * delta;
)
/* clang-format on */

enum { LR, RHO, EPS, WEIGHT_DECAY, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("1", "factor of the steps"),
    FUSERUN_OPTION(.key = "rho", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.9", .range = "[0, 1]",
                   .help = "decay of the running means of squares"),
    EPS_OPTION("1e-6", "added to both running means before their roots"),
    WEIGHT_DECAY_OPTION("0", L2_HELP),
    MAXIMIZE_OPTION,
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    scalars[0] = followed_sign(hyper[MAXIMIZE]);
    scalars[1] = hyper[WEIGHT_DECAY];
    scalars[2] = hyper[RHO];
    scalars[3] = 1.0 - hyper[RHO];
    scalars[4] = hyper[EPS];
    scalars[5] = hyper[LR];
}

FUSERUN_OPTIMIZER(adadelta, "1.0.0", "MIT", "steps scaled by running means of squared gradients and steps", options,
                  prepare, adadelta)
