/* What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere, nothing at all. On stdout;
 * errors are not its business. A stdout that cannot be written to never stops a run. */
#ifndef FUSE_TRAIN_PROGRESS_H
#define FUSE_TRAIN_PROGRESS_H

#include "train/experiment.h"

enum fuse_progress_kind { FUSE_PROGRESS_OFF, FUSE_PROGRESS_PLAIN, FUSE_PROGRESS_BAR };

struct fuse_progress {
    enum fuse_progress_kind kind;
    const char *name;
    int64_t total_updates;
    int64_t started_ns;
    int64_t shown_ns; /* when something was shown last */
    bool has_line;    /* a live line stands on the terminal */
    bool is_utf8;
    int64_t steps_done; /* by this process */
    int64_t samples;    /* since counted_ns */
    int64_t counted_ns;
    double samples_per_s; /* as shown last */
};

struct fuse_progress_state {
    int64_t step;
    double epoch;
    double loss;
    double lr; /* of the first group; NaN: none */
    int64_t samples;
    uint64_t peak_bytes;
};

void fuse_progress_start(struct fuse_progress *progress, const struct fuse_experiment *experiment);
/* After each update; shows something only now and then. */
void fuse_progress_update(struct fuse_progress *progress, const struct fuse_progress_state *state, int64_t now_ns);
void fuse_progress_evaluation(struct fuse_progress *progress, int64_t step, double loss, const double *accuracy);
/* One that a signal asked for. */
void fuse_progress_checkpoint(struct fuse_progress *progress, int64_t step);
/* Takes the live line away. */
void fuse_progress_clear(struct fuse_progress *progress);

/* The end of a run. accuracy, evaluation_loss: of the last evaluation, NULL where there was none. */
struct fuse_progress_summary {
    int64_t updates;
    const double *loss; /* of the last update; NULL: none was left to do */
    const double *evaluation_loss;
    const double *accuracy;
    double training_s;
    int64_t samples;
    int64_t saves;   /* checkpoints while training went on */
    double saving_s; /* in all: how long it stood still for them */
    struct fuse_peak peak;
    const char *folder;
};
void fuse_progress_finish(struct fuse_progress *progress, const struct fuse_progress_summary *summary);

/* "1.4 MiB", for people. */
#define FUSE_BYTES_CHARS 32
const char *fuse_bytes_show(uint64_t bytes, char buffer[FUSE_BYTES_CHARS]);

#endif
