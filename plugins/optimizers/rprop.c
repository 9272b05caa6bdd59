/* rprop - a step size for each weight, which only the gradient's sign moves, as torch.optim.Rprop (rprop.py):
 *
 *     step_size <- step_size times etaplus where g prev > 0, etaminus where g prev < 0, within step_sizes; lr at first
 *     g <- 0 where g prev < 0                 param <- param - sign(g) step_size                 prev <- g
 *
 * Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm" (ICNN
 * 1993), in the form without weight backtracking (iRprop-, Igel and Huesken 2000). It is meant for whole batches. */
#include "rule_parts.h"

/* `start` is lr at a parameter's first update, and 0 afterwards. */
/* clang-format off */
FUSERUN_RULE(rprop, (prev, step_size), (sign, start, etaminus, etaplus, smallest, largest),
    const float g = sign * grad;
    const float agreement = g * prev;
    const float eta = agreement > 0.0f ? etaplus : agreement < 0.0f ? etaminus : 1.0f;
    const float scaled = (step_size + start) * eta;
    const float raised = scaled < smallest ? smallest : scaled;
    step_size = raised > largest ? largest : raised;
    prev = agreement < 0.0f ? 0.0f : g;
    param -= step_size * (float)((prev > 0.0f) - (prev < 0.0f));
)
/* clang-format on */

enum { LR, ETAMINUS, ETAPLUS, SMALLEST, LARGEST, MAXIMIZE };
static const struct fuse_option options[] = {
    LR_OPTION("1e-2", "size of the first steps; later ones follow from the gradients' signs"),
    FUSERUN_OPTION(.key = "etas", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_LIST, .list_count = 2,
                   .default_text = "0.5, 1.2", .range = "(0, inf)", .elements = "etaminus|etaplus",
                   .help = "factors of a step size when the gradient's sign turns and when it stays"),
    FUSERUN_OPTION(.key = "step_sizes", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_LIST, .list_count = 2,
                   .default_text = "1e-6, 50", .range = "[0, inf)", .elements = "smallest|largest",
                   .help = "bounds of the step sizes"),
    MAXIMIZE_OPTION,
};
static const struct fuse_rule *const rules[] = {&rprop};

static int check(const struct fuse_host *host, const struct fuse_options *values, struct fuse_error *error)
{
    size_t count;
    const double *etas = host->option_numbers(values, "etas", &count);
    const double *sizes = host->option_numbers(values, "step_sizes", &count);
    if (etas[0] >= 1.0 || etas[1] <= 1.0)
        return host->fail(error, FUSERUN_ERROR_CONFIG, "etas",
                          "etas must lie around 1: the first below, the second above "
                          "(here %g, %g)",
                          etas[0], etas[1]);
    if (sizes[0] > sizes[1])
        return host->fail(error, FUSERUN_ERROR_CONFIG, "step_sizes",
                          "the smallest step size, %g, is above the largest, %g", sizes[0], sizes[1]);
    return FUSERUN_OK;
}

static void prepare(const struct fuse_update *update, double *scalars)
{
    const double *hyper = update->hyper;
    scalars[0] = followed_sign(hyper[MAXIMIZE]);
    scalars[1] = update->step == 1 ? hyper[LR] : 0.0;
    scalars[2] = hyper[ETAMINUS];
    scalars[3] = hyper[ETAPLUS];
    scalars[4] = hyper[SMALLEST];
    scalars[5] = hyper[LARGEST];
}

FUSERUN_OPTIMIZER_WITH(rprop, "1.0.0", "MIT", "resilient backpropagation: a step size for each weight", options,
                       prepare, rules, NULL, check)
