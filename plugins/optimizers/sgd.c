/* sgd - stochastic gradient descent with momentum, as torch.optim.SGD:
 *
 *     g <- g + weight_decay param
 *     buffer <- momentum buffer + (1 - dampening) g, but g itself at a parameter's first update
 *     param <- param - lr (nesterov ? g + momentum buffer : buffer)
 *
 * Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep learning" (ICML 2013),
 * with the learning rate outside the buffer, so that a schedule acts at once. */
#include <fuserun/optimizer.h>

/* Every rule takes the same scalars, since prepare() is not told which one was selected. A rule without decay must not
 * read weight_decay: 0 times an infinite weight would not be 0. */
#define SCALARS (sign, weight_decay, momentum, take, lr)

#define PLAIN const float g = sign * grad;
#define REGULARISED const float g = sign * grad + weight_decay * param;
#define ACCUMULATE momentum_buffer = momentum * momentum_buffer + take * g;
#define STEP param -= lr * g;
#define MOMENTUM_STEP param -= lr * momentum_buffer;
#define NESTEROV_STEP param -= lr * (g + momentum * momentum_buffer);

FUSERUN_RULE_STATELESS(sgd, SCALARS, PLAIN STEP)
FUSERUN_RULE_STATELESS(sgd_l2, SCALARS, REGULARISED STEP)
FUSERUN_RULE(sgd_momentum, (momentum_buffer), SCALARS, PLAIN ACCUMULATE MOMENTUM_STEP)
FUSERUN_RULE(sgd_momentum_l2, (momentum_buffer), SCALARS, REGULARISED ACCUMULATE MOMENTUM_STEP)
FUSERUN_RULE(sgd_nesterov, (momentum_buffer), SCALARS, PLAIN ACCUMULATE NESTEROV_STEP)
FUSERUN_RULE(sgd_nesterov_l2, (momentum_buffer), SCALARS, REGULARISED ACCUMULATE NESTEROV_STEP)

enum { LR, MOMENTUM, DAMPENING, WEIGHT_DECAY, NESTEROV, MAXIMIZE };
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,
                   .default_text = "1e-3", .range = "[0, inf)", .help = "learning rate"),
    FUSERUN_OPTION(.key = "momentum", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,
                   .default_text = "0", .range = "[0, inf)", .help = "share of the last direction that is kept"),
    FUSERUN_OPTION(.key = "dampening", .type = FUSERUN_OPTION_NUMBER, .default_text = "0",
                   .help = "share of the gradient that momentum leaves out, from the second update on"),
    FUSERUN_OPTION(.key = "weight_decay", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,
                   .default_text = "0", .range = "[0, inf)", .help = "L2 regularisation, added to the gradient"),
    FUSERUN_OPTION(.key = "nesterov", .type = FUSERUN_OPTION_BOOL, .default_text = "no",
                   .help = "look ahead along the momentum; needs momentum and no dampening"),
    FUSERUN_OPTION(.key = "maximize", .type = FUSERUN_OPTION_BOOL, .default_text = "no",
                   .help = "climb: follow the gradient instead of its negative"),
};
static const struct fuse_rule *const rules[] = {&sgd,          &sgd_l2,         &sgd_momentum, &sgd_momentum_l2,
                                                &sgd_nesterov, &sgd_nesterov_l2};

static int check(const struct fuse_host *host, const struct fuse_options *values, struct fuse_error *error)
{
    const double momentum = host->option_number(values, "momentum");
    const double dampening = host->option_number(values, "dampening");
    if (host->option_bool(values, "nesterov") && (momentum <= 0.0 || dampening != 0.0))
        return host->fail(error, FUSERUN_ERROR_CONFIG, "nesterov",
                          "Nesterov momentum requires a momentum and zero dampening (here momentum = %g, "
                          "dampening = %g)",
                          momentum, dampening);
    return FUSERUN_OK;
}

/* The buffer exists where a momentum may come: a driven one counts as non-zero. */
static uint32_t select_rule(const double *hyper, const uint8_t *is_driven)
{
    const uint32_t decays = hyper[WEIGHT_DECAY] != 0.0 || is_driven[WEIGHT_DECAY];
    if (hyper[NESTEROV] != 0.0)
        return 4 + decays;
    if (hyper[MOMENTUM] != 0.0 || is_driven[MOMENTUM])
        return 2 + decays;
    return decays;
}

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    scalars[0] = hyper[MAXIMIZE] != 0.0 ? -1.0 : 1.0;
    scalars[1] = hyper[WEIGHT_DECAY];
    scalars[2] = hyper[MOMENTUM];
    scalars[3] = update->step == 1 ? 1.0 : 1.0 - hyper[DAMPENING]; /* the buffer is 0 before the first update */
    scalars[4] = hyper[LR];
}

FUSERUN_OPTIMIZER_WITH(sgd, "1.0.0", "MIT", "stochastic gradient descent with momentum", options, prepare, rules,
                       select_rule, check)
