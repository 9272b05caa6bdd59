/* The image of a run: everything that a checkpoint holds (files/checkpoint_file.h), as tensors and where their values
 * are. Made once; names and shapes do not change while the run goes on. */
#ifndef FUSE_TRAIN_IMAGE_H
#define FUSE_TRAIN_IMAGE_H

#include "files/checkpoint_file.h"
#include "train/experiment.h"

struct fuse_image;

/* keeps_copy: takes memory for a copy of all weights and states (fuse_image_copy_bytes), and touches it, so that taking
 * the image later is nothing but the copy. */
int fuse_image_new(const struct fuse_experiment *experiment, bool keeps_copy, struct fuse_image **image,
                   struct fuse_error *error);
void fuse_image_free(struct fuse_image **image);

/* The bytes of weights and states that a copy would hold, for the plan. */
uint64_t fuse_image_copy_bytes(const struct fuse_experiment *experiment);

/* Fixes what the run holds at this moment: counts and numbers, and with a copy all the rest. Without one weights and
 * states are read when the image is written, so nothing may train in between. */
int fuse_image_take(struct fuse_image *image, const struct fuse_checkpoint_record *record, struct fuse_error *error);

/* The bytes of all tensors. */
uint64_t fuse_image_bytes(const struct fuse_image *image);

/* Writes a checkpoint; with a copy on any thread. */
int fuse_image_write(const struct fuse_image *image, const char *path, struct fuse_error *error);

#endif
