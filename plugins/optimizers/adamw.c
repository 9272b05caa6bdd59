/* adamw - Adam with decoupled weight decay: param <- (1 - lr weight_decay) param before the step, past the moments.
 * Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019), with PyTorch's scaling by lr. */
#include "adam_rule.h"

#define GRADIENT const float g = sign * grad;
#define DECAY param *= decay;

FUSERUN_RULE(adamw, (exp_avg, exp_avg_sq), ADAM_SCALARS, GRADIENT ADAM_MOMENTS ADAM_STEP(exp_avg_sq))
FUSERUN_RULE(adamw_decay, (exp_avg, exp_avg_sq), ADAM_SCALARS, DECAY GRADIENT ADAM_MOMENTS ADAM_STEP(exp_avg_sq))
FUSERUN_RULE(adamw_amsgrad, (exp_avg, exp_avg_sq, max_exp_avg_sq), ADAM_SCALARS,
             GRADIENT ADAM_MOMENTS ADAM_MAXIMUM ADAM_STEP(max_exp_avg_sq))
FUSERUN_RULE(adamw_amsgrad_decay, (exp_avg, exp_avg_sq, max_exp_avg_sq), ADAM_SCALARS,
             DECAY GRADIENT ADAM_MOMENTS ADAM_MAXIMUM ADAM_STEP(max_exp_avg_sq))

static const struct fuse_option options[] = {ADAM_OPTIONS("1e-2", "decay of the weights, times lr, at each update")};
static const struct fuse_rule *const rules[] = {&adamw, &adamw_decay, &adamw_amsgrad, &adamw_amsgrad_decay};

static void prepare(const struct fuse_update *update, double *scalars)
{
    adam_prepare(update, scalars);
    scalars[8] = 1.0 - update->hyper[ADAM_LR] * update->hyper[ADAM_WEIGHT_DECAY];
}

FUSERUN_OPTIMIZER_WITH(adamw, "1.0.0", "MIT", "Adam with decoupled weight decay", options, prepare, rules, adam_select,
                       NULL)
