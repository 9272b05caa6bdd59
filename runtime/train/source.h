/* train/ - from a checked config to a trained model: opening what the config names (experiment), feeding batches
 * (source, feed), the loop, evaluation, what a run leaves behind (metrics, outputs, weights) or shows (progress), and
 * how one goes on that was stopped (checkpoint, image, resume). Uses every room but cli/.
 *
 * This file: an open dataset and the rules by which its samples become batches. */
#ifndef FUSE_TRAIN_SOURCE_H
#define FUSE_TRAIN_SOURCE_H

#include "base/error.h"

#include <fuserun/dataset.h>

#include <stdbool.h>

struct fuse_options;

struct fuse_source {
    const struct fuse_dataset *dataset; /* NULL: not open */
    void *instance;
    struct fuse_dataset_info info;
    int64_t batch_size; /* as configured */
    bool is_shuffled;
    bool drops_last;
    void *cache; /* info.cache_bytes, ours */
};

/* Opens the dataset behind a [data] or [eval] section: headers and sizes are checked, no sample is read. An error's key
 * is an option of the section. */
int fuse_source_open(const struct fuse_host *host, const struct fuse_component *component,
                     const struct fuse_options *options, const struct fuse_dataset_context *context,
                     struct fuse_source *source, struct fuse_error *error);
void fuse_source_close(struct fuse_source *source);

/* Provides the memory that the dataset asks for, and lets it read its samples. */
int fuse_source_load(struct fuse_source *source, struct fuse_error *error);

/* Batches of an epoch; the size of its full ones; the size of a shorter last one, 0 if there is none. */
int64_t fuse_source_batch_count(const struct fuse_source *source);
int64_t fuse_source_full_batch(const struct fuse_source *source);
int64_t fuse_source_last_batch(const struct fuse_source *source);

/* float32 values of one target; 0 where the targets are classes or absent. */
int64_t fuse_source_target_elements(const struct fuse_source *source);

/* ---- an epoch's order and its batches ------------------------------------------------------------------------- */

struct fuse_feed {
    struct fuse_source *source; /* borrowed */
    uint64_t seed;
    int64_t *order; /* shuffled: (sample_count), the epoch's permutation; else (full batch), the batch's samples */
    void *unused_targets; /* where targets go that the loss does not read */
    int64_t next;         /* position in the epoch */
    uint64_t ordinal;     /* of the next batch */
};

/* Host memory that a feed of this source holds, for the plan. */
uint64_t fuse_feed_bytes(const struct fuse_source *source, bool loss_reads_targets);

int fuse_feed_new(struct fuse_source *source, uint64_t seed, bool loss_reads_targets, struct fuse_feed *feed,
                  struct fuse_error *error);
void fuse_feed_free(struct fuse_feed *feed);

/* Starts epoch number `epoch` (from 0): its order depends on (seed, epoch) alone. [no-alloc] */
void fuse_feed_begin_epoch(struct fuse_feed *feed, int64_t epoch);

/* The same, with so many batches of it taken already. [no-alloc] */
void fuse_feed_seek(struct fuse_feed *feed, int64_t epoch, int64_t batches);
/* Batches taken of this epoch. */
int64_t fuse_feed_batches(const struct fuse_feed *feed);

/* The next update's micro-batches, `most` or what the epoch has left, and their samples. */
int64_t fuse_feed_update(const struct fuse_feed *feed, int64_t most, int64_t *samples);

/* Samples of the next batch of this epoch; 0 at its end. */
int64_t fuse_feed_next_size(const struct fuse_feed *feed);

/* Fills the next batch and steps over it. targets: int64 classes or float32 values, as the source has them; NULL if the
 * loss reads none. *indices, borrowed until the next call: which samples these are. [no-alloc] */
int fuse_feed_read(struct fuse_feed *feed, float *inputs, void *targets, const int64_t **indices,
                   struct fuse_error *error);

#endif
