/* The run: updates, evaluations, what they log and show. */
#ifndef FUSE_TRAIN_LOOP_H
#define FUSE_TRAIN_LOOP_H

#include "train/checkpoint.h"
#include "train/experiment.h"
#include "train/metrics.h"
#include "train/outputs.h"
#include "train/progress.h"

/* Trains an allocated experiment whose output folder is ready, and writes its results. FUSERUN_ERROR_INTERRUPTED: a
 * signal asked for an end; the update under way was finished and everything logged is on disk. */
int fuse_run(struct fuse_experiment *experiment, const struct fuse_outputs *outputs, struct fuse_error *error);

/* What the parts of a run share. */
struct fuse_run_state {
    struct fuse_experiment *experiment;
    struct fuse_metrics metrics;
    struct fuse_progress progress;
    double last_loss;
    int64_t epochs_begun;                 /* of the training data */
    struct fuse_checkpoints *checkpoints; /* NULL: none are written */
    int64_t saves, saving_ns;             /* while training went on: how often, and how long it stood still */
    int64_t saved_updates;                /* the last step for which one was due */
    bool is_saved;                        /* nothing has happened since the last checkpoint */
    bool is_evaluation_due;               /* for the present step */
    bool is_skipped;                      /* the present update was, for a gradient that is not finite */
    int skips_in_a_row;
    double evaluation_loss;
    double evaluation_accuracy;
    bool has_evaluated;
    int64_t samples;
    int64_t training_ns; /* in updates, without evaluations */
};

/* One batch from a feed into its program's memory, its labels checked, and run. earlier_count: the update's
 * micro-batches before it. Adds to statistics. [no-alloc] */
int fuse_run_batch(struct fuse_experiment *experiment, enum fuse_purpose purpose, enum fuse_part part,
                   int64_t earlier_count, struct fuse_feed *feed, double scale, double statistics[2],
                   struct fuse_error *error);

/* evaluate.c: once over the evaluation data, in its order; logs and shows the result. */
int fuse_evaluate(struct fuse_run_state *state, struct fuse_error *error);

/* signals.c. From the process's start: SIGUSR1 asks for a checkpoint; what a pipe or a limit does is told by write().
 */
void fuse_signals_prepare(void);
/* From here on SIGINT, SIGTERM and SIGHUP (unless it is ignored) ask for an end; a second one ends the process at once.
 */
void fuse_signals_catch(void);
bool fuse_signals_asked(void);
/* Whether SIGUSR1 has come since the last call. */
bool fuse_signals_save_asked(void);

#endif
