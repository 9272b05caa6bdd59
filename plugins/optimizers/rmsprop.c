/* rmsprop - steps divided by the root of a running mean of squared gradients, as torch.optim.RMSprop (rmsprop.py):
 *
 *     g <- g + weight_decay param                       square_avg <- alpha square_avg + (1 - alpha) g g
 *     centered: grad_avg <- grad_avg + (1 - alpha) (g - grad_avg), and v = square_avg - grad_avg grad_avg, else
 * square_avg momentum: buffer <- momentum buffer + g / (sqrt(v) + eps), and param <- param - lr buffer without:  param
 * <- param - lr g / (sqrt(v) + eps)
 *
 * Hinton, "Neural networks for machine learning", lecture 6e (2012), with eps outside the root; centered: Graves,
 * "Generating sequences with recurrent neural networks" (arXiv:1308.0850, 2013). The centred v is a variance; where
 * rounding makes it negative (gradients that stay the same for thousands of updates) it counts as 0, not as NaN. */
#include "rule_parts.h"

/* Every rule takes the same scalars, since prepare() is not told which one was selected. */
#define SCALARS (sign, weight_decay, alpha, one_minus_alpha, eps, momentum, lr)

#define SQUARES square_avg = alpha * square_avg + one_minus_alpha * g * g;
#define PLAIN_ROOT const float root = sqrtf(square_avg) + eps;
#define CENTERED_ROOT                                                                                                  \
    grad_avg = grad_avg + one_minus_alpha * (g - grad_avg);                                                            \
    const float variance = square_avg - grad_avg * grad_avg;                                                           \
    const float root = sqrtf(variance < 0.0f ? 0.0f : variance) + eps;
#define STEP param -= lr * (g / root);
#define MOMENTUM_STEP                                                                                                  \
    momentum_buffer = momentum * momentum_buffer + g / root;                                                           \
    param -= lr * momentum_buffer;

FUSERUN_RULE(rmsprop, (square_avg), SCALARS, FOLLOWED_GRADIENT SQUARES PLAIN_ROOT STEP)
FUSERUN_RULE(rmsprop_momentum, (square_avg, momentum_buffer), SCALARS,
             FOLLOWED_GRADIENT SQUARES PLAIN_ROOT MOMENTUM_STEP)
FUSERUN_RULE(rmsprop_centered, (square_avg, grad_avg), SCALARS, FOLLOWED_GRADIENT SQUARES CENTERED_ROOT STEP)
FUSERUN_RULE(rmsprop_centered_momentum, (square_avg, momentum_buffer, grad_avg), SCALARS,
             FOLLOWED_GRADIENT SQUARES CENTERED_ROOT MOMENTUM_STEP)

enum { LR, ALPHA, EPS, WEIGHT_DECAY, MOMENTUM, CENTERED, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("1e-2", "learning rate"),
    FUSERUN_OPTION(.key = "alpha", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.99", .range = "[0, inf)",
                   .help = "decay of the running mean of squared gradients"),
    EPS_OPTION("1e-8", "added to the root"),
    WEIGHT_DECAY_OPTION("0", L2_HELP),
    FUSERUN_OPTION(.key = "momentum", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,
                   .default_text = "0", .range = "[0, inf)", .help = "share of the last direction that is kept"),
    FUSERUN_OPTION(.key = "centered", .type = FUSERUN_OPTION_BOOL, .default_text = "no",
                   .help = "divide by an estimate of the gradient's standard deviation"),
    MAXIMIZE_OPTION,
};
static const struct fuse_rule *const rules[] = {&rmsprop, &rmsprop_momentum, &rmsprop_centered,
                                                &rmsprop_centered_momentum};

/* The buffer exists where a momentum may come: a driven one counts as non-zero. */
static uint32_t select_rule(const double *hyper, const uint8_t *is_driven)
{
    const uint32_t has_momentum = hyper[MOMENTUM] != 0.0 || is_driven[MOMENTUM];
    return (hyper[CENTERED] != 0.0 ? 2u : 0u) + has_momentum;
}

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    scalars[0] = followed_sign(hyper[MAXIMIZE]);
    scalars[1] = hyper[WEIGHT_DECAY];
    scalars[2] = hyper[ALPHA];
    scalars[3] = 1.0 - hyper[ALPHA];
    scalars[4] = hyper[EPS];
    scalars[5] = hyper[MOMENTUM];
    scalars[6] = hyper[LR];
}

FUSERUN_OPTIMIZER_WITH(rmsprop, "1.0.0", "MIT", "steps scaled by a running mean of squared gradients", options, prepare,
                       rules, select_rule, NULL)
