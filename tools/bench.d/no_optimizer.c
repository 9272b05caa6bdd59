/* An optimizer that does nothing: with it a step is what forward and backward cost alone. The gradients are formed, a
 * panel at a time where others would be updated, and dropped. */
#include <fuserun/optimizer.h>

FUSERUN_RULE_STATELESS(no_rule, (lr), (void)lr;)

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "0", .range = "[0, inf)",
                   .flags = FUSERUN_OPTION_SCHEDULABLE, .help = "not used"),
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    scalars[0] = update->hyper[0];
}

FUSERUN_OPTIMIZER(no_optimizer, "1.0.0", "MIT", "changes nothing: for measuring the rest of a step", options, prepare,
                  no_rule)
