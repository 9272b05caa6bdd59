/* The memory of a run as others may see it: memory.json, memory.html and memory.pickle, from what the timeline and the
 * ledger recorded. */
#ifndef FUSE_TRAIN_PICTURES_H
#define FUSE_TRAIN_PICTURES_H

#include "train/outputs.h"

/* Once the ledger knows its passes, if the config asks for any of the files: experiment->timeline. */
int fuse_pictures_prepare(struct fuse_experiment *experiment, struct fuse_error *error);

/* Those of the files that the config asks for, unless nothing ran; metrics.jsonl must be complete. rss_peak_bytes:
 * before any of this. */
int fuse_pictures_write(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs,
                        uint64_t rss_peak_bytes, struct fuse_error *error);
/* All of them, to make room: what fails is not told. */
void fuse_pictures_remove(const struct fuse_outputs *outputs);

#endif
