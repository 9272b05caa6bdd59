/* adamax - Adam with the infinity norm in place of the root of squares, as torch.optim.Adamax (adamax.py):
 *
 *     g <- g + weight_decay param                 exp_avg <- exp_avg + (1 - beta1) (g - exp_avg)
 *     exp_inf <- max(beta2 exp_inf, |g| + eps)    param <- param - lr / (1 - beta1^t)  exp_avg / exp_inf
 *
 * Kingma and Ba, "Adam: a method for stochastic optimization" (ICLR 2015), algorithm 2. */
#include "rule_parts.h"

/* clang-format off */
FUSERUN_RULE(adamax, (exp_avg, exp_inf), (sign, weight_decay, one_minus_beta1, beta2, eps, step_size),
    FOLLOWED_GRADIENT
    const float size = fabsf(g) + eps;
    exp_avg = exp_avg + one_minus_beta1 * (g - exp_avg);
    exp_inf = beta2 * exp_inf > size ? beta2 * exp_inf : size;
    param -= step_size * (exp_avg / exp_inf);
)
/* clang-format on */

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("2e-3", "learning rate"),
    BETAS_OPTION("0.9, 0.999", "decay of the running mean of the gradient and of its largest size"),
    EPS_OPTION("1e-8", "added to the gradient's size"),
    WEIGHT_DECAY_OPTION("0", L2_HELP),
    MAXIMIZE_OPTION,
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    scalars[0] = followed_sign(hyper[MAXIMIZE]);
    scalars[1] = hyper[WEIGHT_DECAY];
    scalars[2] = 1.0 - hyper[BETA1];
    scalars[3] = hyper[BETA2];
    scalars[4] = hyper[EPS];
    scalars[5] = hyper[LR] / (1.0 - pow(hyper[BETA1], (double)update->step));
}

FUSERUN_OPTIMIZER(adamax, "1.0.0", "MIT", "Adam with the infinity norm", options, prepare, adamax)
