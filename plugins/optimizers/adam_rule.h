/* What adam.c and adamw.c share: the moments, the step, the options and the scalars. They differ in the one line that
 * decays the weights, which each of them writes itself.
 *
 *     m <- beta1 m + (1 - beta1) g                  v <- beta2 v + (1 - beta2) g g
 *     param <- param - lr / (1 - beta1^t)  m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *
 * Kingma and Ba, "Adam: a method for stochastic optimization" (ICLR 2015), algorithm 1, with eps added after the bias
 * correction as there and in PyTorch (not scaled by it). amsgrad: v is replaced in the step by the largest v so far
 * (Reddi, Kale and Kumar, "On the convergence of Adam and beyond", ICLR 2018; the maximum is of the uncorrected v). */
#ifndef FUSE_OPTIMIZERS_ADAM_RULE_H
#define FUSE_OPTIMIZERS_ADAM_RULE_H

#include <fuserun/optimizer.h>

/* Every rule takes the same scalars, since prepare() is not told which one was selected. `decay` belongs to the line
 * that each plugin adds; a rule without decay must not read it: 0 times an infinite weight would not be 0. */
#define ADAM_SCALARS                                                                                                   \
    (sign, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_root_correction, eps, decay)

/* Texts of the rules; FUSERUN_RULE expands them before it keeps them. `g` is the gradient to follow. */
#define ADAM_MOMENTS                                                                                                   \
    exp_avg = beta1 * exp_avg + one_minus_beta1 * g;                                                                   \
    exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * g * g;
#define ADAM_MAXIMUM max_exp_avg_sq = max_exp_avg_sq > exp_avg_sq ? max_exp_avg_sq : exp_avg_sq;
#define ADAM_STEP(second_moment) param -= step_size * exp_avg / (sqrtf(second_moment) * inverse_root_correction + eps);

enum { ADAM_LR, ADAM_BETA1, ADAM_BETA2, ADAM_EPS, ADAM_WEIGHT_DECAY, ADAM_AMSGRAD, ADAM_MAXIMIZE };

/* The options in the order of the enumeration above (betas are two numbers). */
#define ADAM_OPTIONS(weight_decay_default, weight_decay_help)                                                          \
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,                    \
                   .default_text = "1e-3", .range = "[0, inf)", .help = "learning rate"),                              \
        FUSERUN_OPTION(.key = "betas", .type = FUSERUN_OPTION_NUMBER,                                                  \
                       .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_SCHEDULABLE, .list_count = 2,                     \
                       .default_text = "0.9, 0.999", .range = "[0, 1)", .elements = "beta1|beta2",                     \
                       .help = "decay of the running means of the gradient and of its square"),                        \
        FUSERUN_OPTION(.key = "eps", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-8", .range = "[0, inf)",       \
                       .help = "added to the denominator after the bias correction"),                                  \
        FUSERUN_OPTION(.key = "weight_decay", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,      \
                       .default_text = weight_decay_default, .range = "[0, inf)", .help = weight_decay_help),          \
        FUSERUN_OPTION(.key = "amsgrad", .type = FUSERUN_OPTION_BOOL, .default_text = "no",                            \
                       .help = "divide by the largest running mean of squares so far"),                                \
        FUSERUN_OPTION(.key = "maximize", .type = FUSERUN_OPTION_BOOL, .default_text = "no",                           \
                       .help = "climb: follow the gradient instead of its negative")

/* Everything but `decay`, the last scalar. */
static inline void adam_prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    const double beta1 = hyper[ADAM_BETA1];
    const double beta2 = hyper[ADAM_BETA2];
    const double step = (double)update->step;
    scalars[0] = hyper[ADAM_MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    scalars[1] = beta1;
    scalars[2] = 1.0 - beta1;
    scalars[3] = beta2;
    scalars[4] = 1.0 - beta2;
    scalars[5] = hyper[ADAM_LR] / (1.0 - pow(beta1, step));
    scalars[6] = 1.0 / sqrt(1.0 - pow(beta2, step));
    scalars[7] = hyper[ADAM_EPS];
}

/* Rules come in the order plain, decaying, plain amsgrad, decaying amsgrad. A driven decay may become anything. */
static uint32_t adam_select(const double *hyper, const uint8_t *is_driven)
{
    const uint32_t decays = hyper[ADAM_WEIGHT_DECAY] != 0.0 || is_driven[ADAM_WEIGHT_DECAY];
    return (hyper[ADAM_AMSGRAD] != 0.0 ? 2u : 0u) + decays;
}

#endif
