/* The output folder: what may be overwritten, and the files of a run that are written whole. */
#ifndef FUSE_TRAIN_OUTPUTS_H
#define FUSE_TRAIN_OUTPUTS_H

#include "files/lock.h"
#include "train/experiment.h"

struct fuse_outputs {
    char *folder;          /* absolute */
    struct fuse_lock lock; /* of the folder, as long as the run works in it */
};

/* Finds the folder, the checkpoint to go on from (experiment->resume), and judges whether a run may start there: what
 * stands in the way is reported at its config line, and then the result is FUSERUN_ERROR_CONFIG.
 * Writes nothing; a folder that is there is locked. config_path: as typed. only_warn: tell it as a notice and leave the
 * lock alone (for `check`, which nobody else should have to wait for). */
int fuse_outputs_check(struct fuse_experiment *experiment, const char *config_path, bool only_warn,
                       struct fuse_outputs *outputs, struct fuse_error *error);
/* Makes the folder and locks it, unless that was done, removes an earlier run's files (of a run that goes on, what it
 * made after the checkpoint), writes config.ini. config_path as above. FUSERUN_ERROR_CONFIG: what stands in the way by
 * now is reported as above. */
int fuse_outputs_start(const struct fuse_experiment *experiment, const char *config_path, struct fuse_outputs *outputs,
                       struct fuse_error *error);
/* The run goes on from a checkpoint that nothing is left to do for, and what it left at its end is there. */
bool fuse_outputs_are_done(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs);
/* The path of a file in the folder; the caller frees. NULL when out of memory. */
char *fuse_outputs_path(const struct fuse_outputs *outputs, const char *name) __attribute__((warn_unused_result));
/* model.safetensors. */
int fuse_outputs_finish(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs,
                        struct fuse_error *error);
void fuse_outputs_free(struct fuse_outputs *outputs);

/* `"peak_bytes":N,"peak_phase":"backward","memory":{...}`, without braces around it. */
void fuse_peak_add_json(const struct fuse_peak *peak, struct fuse_text *text);

#endif
