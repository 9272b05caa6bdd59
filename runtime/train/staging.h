/* Where a batch is read to. On a device with memory of its own it is host memory that the device copies from by itself;
 * else it is the program's memory at once. */
#ifndef FUSE_TRAIN_STAGING_H
#define FUSE_TRAIN_STAGING_H

#include "train/experiment.h"

/* Host memory for the largest batch; 0 on devices that need none. */
uint64_t fuse_staging_bytes(const struct fuse_experiment *experiment);
int fuse_staging_allocate(struct fuse_experiment *experiment, struct fuse_error *error);
void fuse_staging_free(struct fuse_experiment *experiment);

/* Of the next batch; *targets is NULL where the program has none. */
void fuse_staging_find(const struct fuse_experiment *experiment, const struct fuse_program *program, float **inputs,
                       void **targets);
/* Gives the device what was read. [no-alloc] */
int fuse_staging_upload(const struct fuse_experiment *experiment, const struct fuse_program *program,
                        struct fuse_error *error);

#endif
