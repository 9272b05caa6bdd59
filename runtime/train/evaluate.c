#include "train/loop.h"
#include "train/staging.h"

#include "train/profile.h"

#include <inttypes.h>

/* Labels index into the loss's rows: one out of range would read foreign memory. */
static int check_labels(const struct fuse_experiment *experiment, enum fuse_purpose purpose, const int64_t *classes,
                        const int64_t *indices, int64_t count, struct fuse_error *error)
{
    for (int64_t i = 0; i < count; i++) {
        if (classes[i] < 0 || classes[i] >= experiment->output_elements)
            return fuse_fail(error, FUSERUN_ERROR_DATA, NULL,
                             "[%s]: sample %" PRId64 " has the label %" PRId64 ", allowed is 0 to %" PRId64
                             " (the model has %" PRId64 " outputs)",
                             purpose == FUSE_PURPOSE_TRAIN ? "data" : "eval", indices[i], classes[i],
                             experiment->output_elements - 1, experiment->output_elements);
    }
    return FUSERUN_OK;
}

int fuse_run_batch(struct fuse_experiment *experiment, enum fuse_purpose purpose, enum fuse_part part,
                   int64_t earlier_count, struct fuse_feed *feed, double scale, double statistics[2],
                   struct fuse_error *error)
{
    const int64_t count = fuse_feed_next_size(feed);
    struct fuse_program *program = fuse_experiment_program(experiment, purpose, part, earlier_count, count);
    float *inputs;
    void *targets;
    fuse_staging_find(experiment, program, &inputs, &targets);
    const int64_t *indices = NULL;
    const uint64_t draw = feed->ordinal; /* before the read moves it on */
    FUSE_TRY(fuse_feed_read(feed, inputs, targets, &indices, error));
    if (experiment->loss == FUSE_LOSS_CROSS_ENTROPY)
        FUSE_TRY(check_labels(experiment, purpose, targets, indices, count, error));
    FUSE_TRY(fuse_staging_upload(experiment, program, error));
    double batch[2] = {0, 0};
    if (experiment->timeline != NULL)
        fuse_timeline_begin(experiment->timeline, experiment->ledger, program->ledger_pass,
                            experiment->clock->completed_updates + (purpose == FUSE_PURPOSE_TRAIN ? 1 : 0));
    FUSE_TRY(fuse_program_run(program, scale, draw, earlier_count, experiment->ledger, batch, error));
    if (program->marks_ns != NULL)
        fuse_profile_note(experiment->profile, program);
    statistics[0] += batch[0];
    statistics[1] += batch[1];
    return FUSERUN_OK;
}

int fuse_evaluate(struct fuse_run_state *state, struct fuse_error *error)
{
    struct fuse_experiment *experiment = state->experiment;
    struct fuse_feed *feed = &experiment->evaluation_feed;
    double statistics[2] = {0, 0};
    int64_t samples = 0;
    /* Generated data is the same at every evaluation, and a shuffled order too. */
    feed->ordinal = 0;
    fuse_feed_begin_epoch(feed, 0);
    for (int64_t count = fuse_feed_next_size(feed); count > 0; count = fuse_feed_next_size(feed)) {
        if (fuse_signals_asked())
            return fuse_fail(error, FUSERUN_ERROR_INTERRUPTED, NULL, "stopped during an evaluation");
        FUSE_TRY(fuse_run_batch(experiment, FUSE_PURPOSE_EVALUATE, FUSE_PART_ONLY, 0, feed, 1.0, statistics, error));
        samples += count;
    }
    const bool has_accuracy = experiment->loss == FUSE_LOSS_CROSS_ENTROPY;
    state->evaluation_loss = statistics[0] * fuse_experiment_scale(experiment, samples);
    state->evaluation_accuracy = statistics[1] / (double)samples;
    state->has_evaluated = true;
    const double *accuracy = has_accuracy ? &state->evaluation_accuracy : NULL;
    const int64_t step = experiment->clock->completed_updates;
    fuse_clock_observe(experiment->clock, "eval_loss", state->evaluation_loss);
    if (has_accuracy)
        fuse_clock_observe(experiment->clock, "eval_accuracy", state->evaluation_accuracy);
    FUSE_TRY(fuse_metrics_evaluation(&state->metrics, step, state->evaluation_loss, accuracy, error));
    fuse_progress_evaluation(&state->progress, step, state->evaluation_loss, accuracy);
    return FUSERUN_OK;
}
