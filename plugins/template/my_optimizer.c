/* The smallest optimizer: sign descent with momentum (a running mean of 0 counts as negative)
 *
 *     m <- momentum m + (1 - momentum) g,    w <- w - lr sign(m)
 *
 * (J. Bernstein et al., "signSGD: compressed optimisation for non-convex problems", ICML 2018, as "Signum").
 *
 *     cc -shared -fPIC $(pkg-config --cflags fuserun) my_optimizer.c -o plugins/my_optimizer.so */
#include <fuserun/optimizer.h>

/* One element's update: param and the states are read and written, grad and the scalars only read. */
/* clang-format off */
FUSERUN_RULE(sign_rule, (momentum_buffer), (lr, momentum),
    momentum_buffer = momentum * momentum_buffer + (1.0f - momentum) * grad;
    param -= momentum_buffer > 0.0f ? lr : -lr;
)
/* clang-format on */

/* What the config may say in [optimizer] and [group NAME]; the order is that of update->hyper below. */
enum { LR, MOMENTUM };
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-3", .range = "[0, inf)",
                   .flags = FUSERUN_OPTION_SCHEDULABLE, .help = "learning rate"),
    FUSERUN_OPTION(.key = "momentum", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.9", .range = "[0, 1)",
                   .flags = FUSERUN_OPTION_SCHEDULABLE, .help = "decay of the running mean"),
};

/* Once per parameter and update, in double: the rule's scalars, in its order. */
static void prepare(const struct fuse_update *update, double *scalars)
{
    scalars[0] = update->hyper[LR];
    scalars[1] = update->hyper[MOMENTUM];
}

FUSERUN_OPTIMIZER(my_optimizer, "1.0.0", "MIT", "sign descent with momentum", options, prepare, sign_rule)
