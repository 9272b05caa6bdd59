/* asgd - stochastic gradient descent with a falling step and an average of the weights, as torch.optim.ASGD (asgd.py):
 *
 *     g <- g + weight_decay param                 param <- (1 - lambd eta) param - eta g
 *     ax <- ax + mu (param - ax)                  mu = 1 / max(1, t - 1 - t0)
 *     eta <- lr / (1 + lambd lr t)^alpha, for the next update; lr at the first
 *
 * Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (SIAM J. Control 1992), in the form of
 * Bottou's averaged SGD. eta belongs to the lr of the update before, as in PyTorch, which keeps it from one update to
 * the next; so does this. The average, ax, is a state: training does not read it. */
#include "rule_parts.h"

/* While mu is 1 the average is the weight itself, to the bit. */
/* clang-format off */
FUSERUN_RULE_WITH_NUMBERS(asgd, (ax), (eta), (sign, weight_decay, shrink, step_size, mu),
    FOLLOWED_GRADIENT
    param = shrink * param - step_size * g;
    ax = mu == 1.0f ? param : ax + mu * (param - ax);
)
/* clang-format on */

enum { LR, LAMBD, ALPHA, T0, WEIGHT_DECAY, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("1e-2", "learning rate"),
    FUSERUN_OPTION(.key = "lambd", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-4", .help = "decay term"),
    FUSERUN_OPTION(.key = "alpha", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.75",
                   .help = "power by which the step falls"),
    FUSERUN_OPTION(.key = "t0", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e6", .unit = "updates",
                   .help = "when averaging begins"),
    WEIGHT_DECAY_OPTION("0", L2_HELP),
    MAXIMIZE_OPTION,
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    const double step = (double)update->step;
    const double eta = update->step == 1 ? hyper[LR] : update->numbers[0];
    const double averaged = step - 1.0 - hyper[T0];
    scalars[0] = followed_sign(hyper[MAXIMIZE]);
    scalars[1] = hyper[WEIGHT_DECAY];
    scalars[2] = 1.0 - hyper[LAMBD] * eta;
    scalars[3] = eta;
    scalars[4] = update->step == 1 || averaged < 1.0 ? 1.0 : 1.0 / averaged;
    update->numbers[0] = hyper[LR] / pow(1.0 + hyper[LAMBD] * hyper[LR] * step, hyper[ALPHA]);
}

FUSERUN_OPTIMIZER(asgd, "1.0.0", "MIT", "averaged stochastic gradient descent", options, prepare, asgd)
