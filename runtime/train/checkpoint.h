/* Saving checkpoints while a run goes on: when, under which names, how many stay. What a checkpoint holds is the
 * image's business (train/image.h), how it lies on disk that of files/checkpoint_file.h.
 *
 * A new file is whole under its name before `latest` points at it, and `latest` points at it before an older one goes;
 * so a run killed at any moment leaves at least one checkpoint, if it has made one. What a kill leaves of an unfinished
 * file has a temporary name, which the next run in the folder removes. */
#ifndef FUSE_TRAIN_CHECKPOINT_H
#define FUSE_TRAIN_CHECKPOINT_H

#include "files/checkpoint_file.h"
#include "train/experiment.h"
#include "train/metrics.h"

#define FUSE_CHECKPOINT_FOLDER "checkpoints"
#define FUSE_CHECKPOINT_LATEST "latest"

struct fuse_checkpoints; /* of a run that writes some */

/* folder: the run's. *checkpoints stays NULL where the config asks for none; the other calls take that. */
int fuse_checkpoints_new(const struct fuse_experiment *experiment, const char *folder,
                         struct fuse_checkpoints **checkpoints, struct fuse_error *error);
/* Waits for a file that is being written, whatever becomes of it. */
void fuse_checkpoints_free(struct fuse_checkpoints **checkpoints);

/* Saves the run as it is; metrics (NULL: the file is closed) are on disk before. In the background only the copy is
 * made now, after the file before has been finished. */
int fuse_checkpoints_save(struct fuse_checkpoints *checkpoints, const struct fuse_checkpoint_record *record,
                          struct fuse_metrics *metrics, struct fuse_error *error);
/* Waits until everything saved so far is on disk. */
int fuse_checkpoints_wait(struct fuse_checkpoints *checkpoints, struct fuse_error *error);

/* ---- the folder ----------------------------------------------------------------------------------------------- */

/* The path of the checkpoint of a step in a folder of checkpoints; the caller frees. NULL when out of memory. */
char *fuse_checkpoint_path(const char *folder, int64_t step) __attribute__((warn_unused_result));

/* The steps of the checkpoints in such a folder, the greatest first; the caller frees. Nothing there, or no folder:
 * *count is 0. */
int fuse_checkpoint_steps(const char *folder, int64_t **steps, size_t *count, struct fuse_error *error);

/* An error where a directory has the name of what fuse_checkpoint_clean() would remove, or of `latest`. */
int fuse_checkpoint_refuse_folders(const char *run_folder, int64_t last, struct fuse_error *error);

/* Removes the checkpoints of steps above `last` (-1: all), then `latest` if none is left, what killed runs left of
 * unfinished files, and the folder if it is empty. */
int fuse_checkpoint_clean(const char *run_folder, int64_t last, struct fuse_error *error);

#endif
