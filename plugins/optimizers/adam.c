/* adam - Adam with L2 regularisation: the decay is part of the gradient, g <- g + weight_decay param, and so passes
 * through the moments (torch.optim.Adam). */
#include "adam_rule.h"

#define PLAIN const float g = sign * grad;
#define REGULARISED const float g = sign * grad + decay * param;

FUSERUN_RULE(adam, (exp_avg, exp_avg_sq), ADAM_SCALARS, PLAIN ADAM_MOMENTS ADAM_STEP(exp_avg_sq))
FUSERUN_RULE(adam_l2, (exp_avg, exp_avg_sq), ADAM_SCALARS, REGULARISED ADAM_MOMENTS ADAM_STEP(exp_avg_sq))
FUSERUN_RULE(adam_amsgrad, (exp_avg, exp_avg_sq, max_exp_avg_sq), ADAM_SCALARS,
             PLAIN ADAM_MOMENTS ADAM_MAXIMUM ADAM_STEP(max_exp_avg_sq))
FUSERUN_RULE(adam_amsgrad_l2, (exp_avg, exp_avg_sq, max_exp_avg_sq), ADAM_SCALARS,
             REGULARISED ADAM_MOMENTS ADAM_MAXIMUM ADAM_STEP(max_exp_avg_sq))

static const struct fuse_option options[] = {ADAM_OPTIONS("0", "L2 regularisation, added to the gradient")};
static const struct fuse_rule *const rules[] = {&adam, &adam_l2, &adam_amsgrad, &adam_amsgrad_l2};

static void prepare(const struct fuse_update *update, double *scalars)
{
    adam_prepare(update, scalars);
    scalars[8] = update->hyper[ADAM_WEIGHT_DECAY];
}

FUSERUN_OPTIMIZER_WITH(adam, "1.0.0", "MIT", "Adam, weight decay as L2 regularisation", options, prepare, rules,
                       adam_select, NULL)
