#include "train/loop.h"

#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* nonfinite = stop. The update's weights are not worth keeping. */
static int check_finite(const struct fuse_run_state *state, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    const int64_t step = experiment->clock->completed_updates;
    const uint32_t parameter = experiment->dict->nonfinite_parameter;
    if (parameter != UINT32_MAX)
        return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL,
                         "step %" PRId64 ": the gradient of %s is not finite (nonfinite = stop)", step,
                         experiment->graph->parameters[parameter].name);
    if (!fuse_number_is_finite(state->last_loss))
        return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL,
                         "step %" PRId64 ": the loss is not finite, though every gradient is (nonfinite = stop)", step);
    return FUSERUN_OK;
}

/* The last update has no loss behind it that would show what it did to the weights. */
static int check_weights(const struct fuse_experiment *experiment, struct fuse_error *error)
{
    for (uint32_t p = 0; p < experiment->graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &experiment->graph->parameters[p];
        if (experiment->backend->has_nonfinite(experiment->device, experiment->dict->parameters[p],
                                               parameter->element_count))
            return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL,
                             "step %" PRId64 ": %s is not finite after it (nonfinite = stop)",
                             experiment->clock->completed_updates, parameter->name);
    }
    return FUSERUN_OK;
}

/* One update: the clock is read, then its micro-batches run; in fused mode the last one's backward pass updates. */
static int run_update(struct fuse_run_state *state, int64_t *samples, struct fuse_error *error)
{
    struct fuse_experiment *experiment = state->experiment;
    struct fuse_feed *feed = &experiment->train_feed;
    struct fuse_clock *clock = experiment->clock;
    const int64_t epoch = clock->completed_updates / clock->updates_per_epoch;
    if (clock->completed_updates % clock->updates_per_epoch == 0)
        fuse_feed_begin_epoch(feed, epoch);
    FUSE_TRY(fuse_clock_apply(clock, experiment->dict, error));
    fuse_dict_begin(experiment->dict);
    double statistics[2] = {0, 0};
    *samples = fuse_feed_next_size(feed);
    const double scale = fuse_experiment_scale(experiment, *samples);
    FUSE_TRY(fuse_run_batch(experiment, FUSE_PURPOSE_TRAIN, feed, scale, statistics, error));
    FUSE_TRY(fuse_dict_end(experiment->dict, error));
    clock->completed_updates++;
    state->last_loss = statistics[0] * scale;
    return FUSERUN_OK;
}

static int log_update(struct fuse_run_state *state, int64_t samples, int64_t step_ns, int64_t now_ns,
                      struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    const struct fuse_clock *clock = experiment->clock;
    const struct fuse_update_record record = {
        .step = clock->completed_updates,
        .epoch = (double)clock->completed_updates / (double)clock->updates_per_epoch,
        .loss = state->last_loss,
        .step_ns = step_ns,
        .samples = samples,
        .peak_bytes = fuse_ledger_peak(experiment->ledger)->bytes,
    };
    FUSE_TRY(fuse_metrics_update(&state->metrics, clock, experiment->dict, &record, now_ns, error));
    const struct fuse_progress_state shown = {
        .step = record.step,
        .epoch = record.epoch,
        .loss = record.loss,
        .lr = fuse_clock_column_count(clock) > 0 ? fuse_clock_column_value(clock, experiment->dict, 0) : NAN,
        .samples = samples,
        .peak_bytes = record.peak_bytes,
    };
    fuse_progress_update(&state->progress, &shown, now_ns);
    return FUSERUN_OK;
}

static bool is_evaluation_due(const struct fuse_experiment *experiment)
{
    const int64_t completed = experiment->clock->completed_updates;
    return experiment->has_evaluation &&
           (completed == experiment->total_updates ||
            (experiment->evaluate_every > 0 && completed % experiment->evaluate_every == 0));
}

static int run_updates(struct fuse_run_state *state, struct fuse_error *error)
{
    struct fuse_experiment *experiment = state->experiment;
    int64_t before_ns = fuse_now_ns();
    while (experiment->clock->completed_updates < experiment->total_updates) {
        if (fuse_signals_asked())
            return fuse_fail(error, FUSERUN_ERROR_INTERRUPTED, NULL, "stopped after step %" PRId64 " of %" PRId64,
                             experiment->clock->completed_updates, experiment->total_updates);
        int64_t samples = 0;
        FUSE_TRY(run_update(state, &samples, error));
        const int64_t now_ns = fuse_now_ns();
        const int64_t step_ns = now_ns - before_ns;
        before_ns = now_ns;
        state->samples += samples;
        state->training_ns += step_ns;
        FUSE_TRY(log_update(state, samples, step_ns, now_ns, error));
        FUSE_TRY(check_finite(state, error));
        if (is_evaluation_due(experiment)) {
            FUSE_TRY(fuse_metrics_flush(&state->metrics, now_ns, error));
            FUSE_TRY(fuse_evaluate(state, error));
            before_ns = fuse_now_ns();
        }
    }
    return check_weights(experiment, error);
}

static void summarise(struct fuse_run_state *state, const struct fuse_outputs *outputs)
{
    const struct fuse_experiment *experiment = state->experiment;
    const bool has_accuracy = state->has_evaluated && experiment->loss == FUSE_LOSS_CROSS_ENTROPY;
    const struct fuse_progress_summary summary = {
        .updates = experiment->clock->completed_updates,
        .loss = state->last_loss,
        .evaluation_loss = state->has_evaluated ? &state->evaluation_loss : NULL,
        .accuracy = has_accuracy ? &state->evaluation_accuracy : NULL,
        .training_s = (double)state->training_ns / 1e9,
        .samples = state->samples,
        .peak = *fuse_ledger_peak(experiment->ledger),
        .folder = outputs->folder,
    };
    fuse_progress_finish(&state->progress, &summary);
}

int fuse_run(struct fuse_experiment *experiment, const struct fuse_outputs *outputs, struct fuse_error *error)
{
    struct fuse_run_state state = {.experiment = experiment, .metrics.descriptor = -1};
    char *path = fuse_outputs_path(outputs, "metrics.jsonl");
    if (path == NULL)
        return fuse_fail_memory(error, "a path", strlen(outputs->folder));
    int status = fuse_metrics_open(path, experiment->clock, &state.metrics, error);
    free(path);
    if (status == FUSERUN_OK) {
        fuse_progress_start(&state.progress, experiment);
        status = run_updates(&state, error);
        fuse_progress_clear(&state.progress);
    }
    /* The first error is the one to tell; the log is closed in any case. */
    const int closed = fuse_metrics_close(&state.metrics, status == FUSERUN_OK ? error : NULL);
    if (status == FUSERUN_OK)
        status = closed;
    if (status == FUSERUN_OK)
        status = fuse_outputs_finish(experiment, outputs, error);
    if (status == FUSERUN_OK)
        summarise(&state, outputs);
    return status;
}
