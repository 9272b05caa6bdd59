/* metrics.jsonl: one line an update, one an evaluation. Lines are collected in memory and written at least once a
 * second, before anything long, and at the end. */
#ifndef FUSE_TRAIN_METRICS_H
#define FUSE_TRAIN_METRICS_H

#include "base/now.h"
#include "base/text.h"
#include "files/checkpoint_file.h"
#include "optim/clock.h"
#include "optim/dict.h"

struct fuse_metrics {
    int descriptor;
    char *path;
    struct fuse_text lines;  /* not yet written */
    struct fuse_text driven; /* the "lr":{...} part; kept as long as no value changes */
    double *logged;          /* the values that `driven` shows */
    bool has_logged;
    int64_t flushed_ns;
    uint64_t damaged_lines; /* of an earlier run, left out when this one went on */
};

/* What a finished update has to say. */
struct fuse_update_record {
    int64_t step; /* from 1 */
    double epoch;
    double loss;
    int64_t step_ns;
    int64_t samples;
    uint64_t peak_bytes;
    double grad_norm; /* of all gradients, before clipping */
    bool has_grad_norm;
    bool is_skipped; /* nothing moved; step is that of the last update done */
};

/* Creates the file, which must not exist. resumed (NULL: a fresh start): a file that is there is cut back to what had
 * been written when that checkpoint was made, and goes on from there. */
int fuse_metrics_open(const char *path, const struct fuse_clock *clock, const struct fuse_checkpoint_record *resumed,
                      struct fuse_metrics *metrics, struct fuse_error *error);
/* metrics_resume.c: what had been written when the checkpoint was made stays, save lines that no program could read
 * (*damaged: how many). No file: nothing to do. */
int fuse_metrics_cut_back(const char *path, const struct fuse_checkpoint_record *resumed, uint64_t *damaged,
                          struct fuse_error *error);
/* [no-alloc] once the buffers have grown. now_ns: the monotonic clock. */
int fuse_metrics_update(struct fuse_metrics *metrics, const struct fuse_clock *clock, const struct fuse_dict *dict,
                        const struct fuse_update_record *record, int64_t now_ns, struct fuse_error *error);
/* accuracy: NULL where the loss knows none. */
int fuse_metrics_evaluation(struct fuse_metrics *metrics, int64_t step, double loss, const double *accuracy,
                            struct fuse_error *error);
int fuse_metrics_flush(struct fuse_metrics *metrics, int64_t now_ns, struct fuse_error *error);
/* Writes what is left, syncs and closes; frees in any case. */
int fuse_metrics_close(struct fuse_metrics *metrics, struct fuse_error *error);

#endif
