/* Where a run's time goes (run.profile = yes): a table for each kind of operation and each layer, and profile.json, a
 * trace for chrome://tracing or ui.perfetto.dev. Training only. */
#ifndef FUSE_TRAIN_PROFILE_H
#define FUSE_TRAIN_PROFILE_H

#include "train/outputs.h"

struct fuse_profile;

/* If the config asks for it: experiment->profile. */
int fuse_profile_prepare(struct fuse_experiment *experiment, struct fuse_error *error);
void fuse_profile_free(struct fuse_profile **profile);

/* After a training program ran. [no-alloc] */
void fuse_profile_note(struct fuse_profile *profile, const struct fuse_program *program);

/* profile.json, and the table on stdout. */
int fuse_profile_write(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs,
                       struct fuse_error *error);

#endif
