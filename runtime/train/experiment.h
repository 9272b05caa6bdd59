/* An experiment: everything between a config file and the first update. Opening one does all that `check` does: it
 * reads and validates the config, opens the data and the weights' header, builds the graphs, opens the backend, makes
 * the optimizer dict, the clock and every program that the run will execute, and predicts the peak; no memory for
 * weights, state or activations is taken. Allocating it makes it ready to train. */
#ifndef FUSE_TRAIN_EXPERIMENT_H
#define FUSE_TRAIN_EXPERIMENT_H

#include "config/config.h"
#include "files/weights_file.h"
#include "memory/ledger.h"
#include "memory/timeline.h"
#include "optim/clock.h"
#include "optim/dict.h"
#include "plugin/registry.h"
#include "train/source.h"

enum fuse_purpose { FUSE_PURPOSE_TRAIN = 1, FUSE_PURPOSE_EVALUATE = 2 };

/* What an update's programs have in common. */
struct fuse_way {
    enum fuse_norm_use norm;
    bool holds_operands; /* of earlier micro-batches, where they are smaller than the gradient */
};

/* One program of the run. */
struct fuse_pass {
    enum fuse_purpose purpose;
    enum fuse_part part;   /* of an update */
    int64_t earlier_count; /* micro-batches of the update before this one, where it is the last of several */
    int64_t batch_size;
    struct fuse_graph *graph;
    bool owns_graph; /* else it is one of the experiment's */
    struct fuse_program *program;
};
/* Training: an update's first micro-batch, the next ones, the last one, and that of an epoch's last update; evaluation:
 * a full batch and the last one. */
#define FUSE_MAX_PASSES 6

struct fuse_experiment {
    struct fuse_diagnostics *diagnostics;
    struct fuse_config *config;
    struct fuse_registry *registry;

    enum fuse_loss_kind loss;
    double label_smoothing;
    uint64_t seed;
    struct fuse_source train;
    struct fuse_source evaluation;
    bool has_evaluation;
    int64_t accumulate; /* micro-batches in an update */
    int64_t updates_per_epoch;
    int64_t total_updates;
    int64_t evaluate_every;   /* in updates; 0: never but at the end */
    int64_t checkpoint_every; /* in updates; 0: no checkpoints */
    bool checkpoints_in_background;

    struct fuse_graph *graph;          /* of a full training batch: what names the parameters */
    struct fuse_graph *short_graph;    /* of an epoch's last batch, where that is shorter and trained on */
    int64_t output_elements;           /* of one sample */
    struct fuse_weights_file *weights; /* model.weights; NULL: none */
    struct fuse_clock *clock;
    const struct fuse_backend *backend;
    void *device;
    struct fuse_dict *dict;
    struct fuse_pass passes[FUSE_MAX_PASSES];
    uint32_t pass_count;
    struct fuse_way way;    /* of the training passes */
    struct fuse_hold *hold; /* what their micro-batches leave for each other; NULL: nothing */
    uint64_t persistent[FUSE_CATEGORY_COUNT];
    struct fuse_peak predicted;
    uint64_t resident_base_bytes; /* of the process, before the model */

    struct fuse_resume *resume; /* from fuse_resume_find(); NULL: the run starts afresh */

    /* From fuse_experiment_allocate. */
    struct fuse_ledger *ledger;
    struct fuse_timeline *timeline; /* NULL: nobody asks for memory's pictures */
    struct fuse_profile *profile;   /* NULL: nobody asks where the time goes */
    void *arena;
    uint64_t arena_bytes;
    char *staging; /* where batches are read to (staging.h); NULL: on this device straight into the arena */
    uint64_t staging_bytes;
    struct fuse_feed train_feed;
    struct fuse_feed evaluation_feed;
};

/* Opens CONFIG with its overrides. Whatever the user has to mend is in (*experiment)->diagnostics, also where the
 * result is FUSERUN_OK (notices); *error is for the rest. *experiment is set, and must be freed, unless memory ran out
 * at once. */
int fuse_experiment_open(const char *path, const char *const *overrides, size_t override_count,
                         struct fuse_experiment **experiment, struct fuse_error *error);
void fuse_experiment_free(struct fuse_experiment **experiment);

/* Takes all memory, initialises or loads the weights, loads the data. */
int fuse_experiment_allocate(struct fuse_experiment *experiment, struct fuse_error *error);
extern const struct fuse_place fuse_experiment_allocate_place;

/* The program for a batch of that size, at that place in an update (evaluation: FUSE_PART_ONLY, 0); NULL if the run has
 * none. */
struct fuse_program *fuse_experiment_program(const struct fuse_experiment *experiment, enum fuse_purpose purpose,
                                             enum fuse_part part, int64_t earlier_count, int64_t batch_size);

/* By which a loss's sum becomes what is optimised and logged: 1 / samples, 1 / elements, or 1. */
double fuse_experiment_scale(const struct fuse_experiment *experiment, int64_t samples);

bool fuse_experiment_is_bfloat16(const struct fuse_experiment *experiment); /* run.precision */
int64_t fuse_experiment_parameter_values(const struct fuse_experiment *experiment);

/* A cause that the user can mend goes to its line of the config and reads as FUSERUN_OK here, so that further mistakes
 * are found; what nobody's config is to blame for is passed on. */
int fuse_experiment_blame(struct fuse_experiment *experiment, const char *section, const char *key,
                          const struct fuse_error *cause, struct fuse_error *error);
/* FUSERUN_ERROR_CONFIG: the diagnostics say what is wrong. */
int fuse_experiment_refused(struct fuse_error *error);

/* passes.c: graphs and programs for every batch size that the run will execute, and the peak they will have. */
int fuse_passes_build(struct fuse_experiment *experiment, struct fuse_error *error);
/* The peak that training would have in that way. */
int fuse_passes_weigh(struct fuse_experiment *experiment, struct fuse_way way, uint64_t *peak_bytes,
                      struct fuse_error *error);
/* The same parameters for a graph of another batch size, with freeze marks. */
int fuse_experiment_build_graph(struct fuse_experiment *experiment, int64_t batch_size, struct fuse_graph **graph,
                                struct fuse_error *error);

#endif
