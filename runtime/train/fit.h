/* Whether the plan fits into the memory there is. */
#ifndef FUSE_TRAIN_FIT_H
#define FUSE_TRAIN_FIT_H

#include "train/experiment.h"

/* Compares the predicted peak with memory.limit, `auto` being what this process may still take. A plan that needs more
 * is reported at that key, with what would make it smaller: FUSERUN_ERROR_CONFIG, or with only_warn a notice (for
 * `check`, whose plan may be for another machine). Devices with memory of their own refuse it themselves. */
int fuse_fit_check(const struct fuse_experiment *experiment, bool only_warn, struct fuse_error *error);

#endif
