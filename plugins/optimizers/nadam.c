/* nadam - Adam with Nesterov momentum, as torch.optim.NAdam (nadam.py):
 *
 *     g <- g + weight_decay param, or with decoupled_weight_decay: param <- (1 - lr weight_decay) param
 *     mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)          mu_product <- mu_product mu_t, from 1
 *     exp_avg <- beta1 exp_avg + (1 - beta1) g                exp_avg_sq <- beta2 exp_avg_sq + (1 - beta2) g g
 *     param <- param - lr ((1 - mu_t) / (1 - mu_product) g + mu_{t+1} / (1 - mu_product mu_{t+1}) exp_avg)
 *                      / (sqrt(exp_avg_sq / (1 - beta2^t)) + eps)
 *
 * Dozat, "Incorporating Nesterov momentum into Adam" (ICLR 2016 workshop). The product runs over all updates of the
 * parameter, each with the beta1 of its time, so it is kept from one update to the next. */
#include "rule_parts.h"

/* clang-format off */
FUSERUN_RULE_WITH_NUMBERS(nadam, (exp_avg, exp_avg_sq), (mu_product),
                          (sign, weight_decay, shrink, beta1, one_minus_beta1, beta2, one_minus_beta2, gradient_step,
                           average_step, inverse_root_correction, eps),
    param *= shrink;
    FOLLOWED_GRADIENT
    exp_avg = beta1 * exp_avg + one_minus_beta1 * g;
    exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * g * g;
    param -= (gradient_step * g + average_step * exp_avg) / (sqrtf(exp_avg_sq) * inverse_root_correction + eps);
)
/* clang-format on */

enum { LR, BETA1, BETA2, EPS, WEIGHT_DECAY, MOMENTUM_DECAY, DECOUPLED, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("2e-3", "learning rate"),
    BETAS_OPTION("0.9, 0.999", "decay of the running means of the gradient and of its square"),
    EPS_OPTION("1e-8", "added to the denominator after the bias correction"),
    WEIGHT_DECAY_OPTION("0", L2_HELP),
    FUSERUN_OPTION(.key = "momentum_decay", .type = FUSERUN_OPTION_NUMBER, .default_text = "4e-3", .range = "[0, inf)",
                   .help = "how fast the momentum rises to beta1"),
    DECOUPLED_OPTION,
    MAXIMIZE_OPTION,
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    const double beta1 = hyper[BETA1];
    const double step = (double)update->step;
    const double mu = beta1 * (1.0 - 0.5 * pow(0.96, step * hyper[MOMENTUM_DECAY]));
    const double next_mu = beta1 * (1.0 - 0.5 * pow(0.96, (step + 1.0) * hyper[MOMENTUM_DECAY]));
    const double product = (update->step == 1 ? 1.0 : update->numbers[0]) * mu;
    const int is_decoupled = hyper[DECOUPLED] != 0.0;
    scalars[0] = followed_sign(hyper[MAXIMIZE]);
    scalars[1] = is_decoupled ? 0.0 : hyper[WEIGHT_DECAY];
    scalars[2] = is_decoupled ? 1.0 - hyper[LR] * hyper[WEIGHT_DECAY] : 1.0;
    scalars[3] = beta1;
    scalars[4] = 1.0 - beta1;
    scalars[5] = hyper[BETA2];
    scalars[6] = 1.0 - hyper[BETA2];
    scalars[7] = hyper[LR] * (1.0 - mu) / (1.0 - product);
    scalars[8] = hyper[LR] * next_mu / (1.0 - product * next_mu);
    scalars[9] = 1.0 / sqrt(1.0 - pow(hyper[BETA2], step));
    scalars[10] = hyper[EPS];
    update->numbers[0] = product;
}

FUSERUN_OPTIMIZER(nadam, "1.0.0", "MIT", "Adam with Nesterov momentum", options, prepare, nadam)
