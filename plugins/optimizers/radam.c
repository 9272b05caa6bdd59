/* radam - Adam whose step is rectified while the second moment is uncertain, as torch.optim.RAdam (radam.py):
 *
 *     g <- g + weight_decay param, or with decoupled_weight_decay: param <- (1 - lr weight_decay) param
 *     exp_avg <- beta1 exp_avg + (1 - beta1) g                exp_avg_sq <- beta2 exp_avg_sq + (1 - beta2) g g
 *     rho_inf = 2 / (1 - beta2) - 1                           rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
 *     rho_t > 5: r = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t)), and
 *                param <- param - lr r sqrt(1 - beta2^t) / (1 - beta1^t)  exp_avg / (sqrt(exp_avg_sq) + eps)
 *     else:      param <- param - lr / (1 - beta1^t)  exp_avg
 *
 * Liu, Jiang, He, Chen, Liu, Gao and Han, "On the variance of the adaptive learning rate and beyond" (ICLR 2020), with
 * eps beside the uncorrected root as in PyTorch. */
#include "rule_parts.h"

/* `is_rectified` is the same for all elements: it is a matter of the step alone. */
/* clang-format off */
FUSERUN_RULE(radam, (exp_avg, exp_avg_sq),
             (sign, weight_decay, shrink, beta1, one_minus_beta1, beta2, one_minus_beta2, is_rectified, step_size, eps),
    param *= shrink;
    FOLLOWED_GRADIENT
    exp_avg = beta1 * exp_avg + one_minus_beta1 * g;
    exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * g * g;
    const float root = sqrtf(exp_avg_sq) + eps;
    param -= step_size * (exp_avg / (is_rectified != 0.0f ? root : 1.0f));
)
/* clang-format on */

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, DECOUPLED, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("1e-3", "learning rate"),
    BETAS_OPTION("0.9, 0.999", "decay of the running means of the gradient and of its square"),
    EPS_OPTION("1e-8", "added to the root"),
    WEIGHT_DECAY_OPTION("0", L2_HELP),
    DECOUPLED_OPTION,
    MAXIMIZE_OPTION,
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    const double step = (double)update->step;
    const double power = pow(hyper[BETA2], step);
    const double longest = 2.0 / (1.0 - hyper[BETA2]) - 1.0;
    const double length = longest - 2.0 * step * power / (1.0 - power);
    const int is_rectified = length > 5.0;
    const int is_decoupled = hyper[DECOUPLED] != 0.0;
    double step_size = hyper[LR] / (1.0 - pow(hyper[BETA1], step));
    if (is_rectified)
        step_size *= sqrt(1.0 - power) *
                     sqrt((length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length));
    scalars[0] = followed_sign(hyper[MAXIMIZE]);
    scalars[1] = is_decoupled ? 0.0 : hyper[WEIGHT_DECAY];
    scalars[2] = is_decoupled ? 1.0 - hyper[LR] * hyper[WEIGHT_DECAY] : 1.0;
    scalars[3] = hyper[BETA1];
    scalars[4] = 1.0 - hyper[BETA1];
    scalars[5] = hyper[BETA2];
    scalars[6] = 1.0 - hyper[BETA2];
    scalars[7] = is_rectified;
    scalars[8] = step_size;
    scalars[9] = hyper[EPS];
}

FUSERUN_OPTIMIZER(radam, "1.0.0", "MIT", "Adam, its step rectified while the second moment is uncertain", options,
                  prepare, radam)
