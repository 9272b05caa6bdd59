/* A checkpoint on disk: this comment is the format's manual.
 *
 * A checkpoint is a .safetensors file, so any reader of those reads it. Its tensors:
 *
 *     PARAMETER                      F32, the parameter's shape
 *     optimizer/PARAMETER/STATE      F32, one a state of the rule ("exp_avg"), of the parameter's shape
 *                                    or [N] (a row's, a column's)
 *     optimizer/PARAMETER/NUMBER     F64, no dimensions: a number that the rule keeps ("mu_product")
 *     optimizer/PARAMETER/step       I64, no dimensions: updates of this parameter
 *     scheduler/state                F64, [N]: what schedules keep of evaluations (plateau); absent without such
 *
 * A frozen parameter has a weight; it has the rest if it was trained before, and keeps that as it was.
 * Metadata, all of it text:
 *
 *     checksums          files/checksums.h
 *     format             "fuserun checkpoint 1"
 *     fuserun            the version that wrote it
 *     clock.step         completed updates; every schedule follows from it, the config, and scheduler/state
 *     data.epoch         epochs begun, the present one included
 *     data.batches       batches taken in it
 *     data.drawn         batches taken in all: with the seed it is the whole state of the random numbers, which are
 *                        functions of (seed, use, count)
 *     data.batch_size, data.samples    what the position was counted in: samples in a batch and in the dataset
 *     random.seed
 *     run.skips          updates skipped in a row (nonfinite = skip) since the last one done
 *     run.evaluation     "due" if the evaluation after this update has not been done yet, else "done"
 *     scheduler          one line for each stage that scheduler/state belongs to: SECTION METRIC
 *     optimizers         one line a parameter with a state: PLUGIN PARAMETER
 *     plugins            one line a plugin in use: KIND NAME VERSION
 *     config             the resolved config.ini
 *
 * Readers ignore keys that they do not know. checksums, format and clock.step must be there; all else has a meaning (0,
 * "done", nothing) when it is absent.
 *
 * Files are written to a temporary name, synced, renamed: a file called step-NNNNNNNN.safetensors was whole once. */
#ifndef FUSE_FILES_CHECKPOINT_FILE_H
#define FUSE_FILES_CHECKPOINT_FILE_H

#include "files/safetensors.h"

#define FUSE_CHECKPOINT_FORMAT "fuserun checkpoint 1"
#define FUSE_CHECKPOINT_OPTIMIZER "optimizer/"
#define FUSE_CHECKPOINT_SCHEDULER "scheduler/"
#define FUSE_CHECKPOINT_SCHEDULER_STATE "scheduler/state"

/* The numbers beside the tensors. */
struct fuse_checkpoint_record {
    int64_t step;
    int64_t epoch;
    int64_t batches;
    int64_t drawn;
    int64_t batch_size; /* 0: not said */
    int64_t samples;    /* 0: not said */
    int64_t seed;
    int64_t skips;
    bool is_evaluation_due;
};

/* The texts; none NULL where a file is written, any where one is read. Borrowed. */
struct fuse_checkpoint_texts {
    const char *scheduler;
    const char *optimizers;
    const char *plugins;
    const char *config;
};

/* Whether the name is one that only checkpoints have: no weight. */
bool fuse_checkpoint_is_state(const char *tensor_name);

int fuse_checkpoint_file_write(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                               const struct fuse_checkpoint_record *record, const struct fuse_checkpoint_texts *texts,
                               struct fuse_error *error);

/* Opens a checkpoint and reads all of it once to see that it is whole. *is_checked: false where its checksums are
 * "none". FUSERUN_ERROR_FORMAT: it is none, or damaged. texts live as long as the file. On failure *file is NULL. */
int fuse_checkpoint_file_open(const char *path, struct fuse_safetensors **file, struct fuse_checkpoint_record *record,
                              struct fuse_checkpoint_texts *texts, bool *is_checked, struct fuse_error *error);

#endif
