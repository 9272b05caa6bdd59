/* The device of an experiment: the backend that run.device names, opened, and the optimizer dict on it, since what an
 * optimizer needs may be what a device lacks. */
#ifndef FUSE_TRAIN_DEVICE_H
#define FUSE_TRAIN_DEVICE_H

#include "train/experiment.h"

/* Sets backend, device, dict and resident_base_bytes. What the config is to blame for is in the diagnostics, and the
 * result is FUSERUN_ERROR_CONFIG. */
int fuse_experiment_open_device(struct fuse_experiment *experiment, const struct fuse_group_spec *specs, size_t count,
                                struct fuse_error *error);
/* The dict and all memory of the device must be gone. */
void fuse_experiment_close_device(struct fuse_experiment *experiment);

#endif
