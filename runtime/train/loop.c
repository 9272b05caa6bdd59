#include "train/loop.h"

#include "base/number.h"
#include "config/options.h"
#include "memory/resident.h"
#include "train/pictures.h"
#include "train/profile.h"
#include "train/resume.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SKIPS 100 /* in a row */

/* A weight that is not finite was left so by a rule, and its step is named: of the present update, or of an earlier
 * one, since no update is applied from the first gradient on that is not finite (optim/step.c). */
static int check_weights(const struct fuse_run_state *state, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    const int64_t completed = experiment->clock->completed_updates;
    const struct fuse_dict *dict = experiment->dict;
    for (uint32_t p = 0; p < experiment->graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &experiment->graph->parameters[p];
        if (!experiment->backend->has_nonfinite(experiment->device, dict->parameters[p], parameter->element_count))
            continue;
        const uint32_t entry = dict->entry_of_parameter[p];
        const bool is_updated = entry != UINT32_MAX && dict->entries[entry].is_updated;
        const int64_t step = is_updated || state->is_skipped ? completed : completed - 1;
        if (entry == UINT32_MAX || step == 0)
            return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL, "%s is not finite, and was not before the first step",
                             parameter->name);
        return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL, "step %" PRId64 ": %s is not finite after it", step,
                         parameter->name);
    }
    return FUSERUN_OK;
}

/* nonfinite = stop. The update's weights are not worth keeping. */
static int check_finite(const struct fuse_run_state *state, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    const int64_t step = experiment->clock->completed_updates;
    const uint32_t parameter = experiment->dict->nonfinite_parameter;
    const bool is_loss_finite = fuse_number_is_finite(state->last_loss);
    if (parameter == UINT32_MAX && is_loss_finite)
        return FUSERUN_OK;
    FUSE_TRY(check_weights(state, error));
    if (parameter != UINT32_MAX)
        return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL,
                         "step %" PRId64 ": the gradient of %s is not finite (nonfinite = stop)", step,
                         experiment->graph->parameters[parameter].name);
    return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL,
                     "step %" PRId64 ": the loss is not finite, though every gradient is (nonfinite = stop)", step);
}

/* nonfinite = skip: the attempt moved nothing, and the clock stays. */
static int count_skip(struct fuse_run_state *state, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    state->skips_in_a_row = state->is_skipped ? state->skips_in_a_row + 1 : 0;
    if (state->skips_in_a_row < MOST_SKIPS)
        return FUSERUN_OK;
    FUSE_TRY(check_weights(state, error));
    return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL,
                     "%d updates in a row were skipped after step %" PRId64
                     ": the gradient of %s is not finite (nonfinite = skip)",
                     MOST_SKIPS, experiment->clock->completed_updates,
                     experiment->graph->parameters[experiment->dict->nonfinite_parameter].name);
}

/* One update: the clock is read, then its micro-batches run; in fused mode the last one's backward pass updates. */
static int run_update(struct fuse_run_state *state, int64_t *samples, struct fuse_error *error)
{
    struct fuse_experiment *experiment = state->experiment;
    struct fuse_feed *feed = &experiment->train_feed;
    struct fuse_clock *clock = experiment->clock;
    /* Skipped updates use up batches too, so the data's epochs are counted by themselves. */
    if (state->epochs_begun == 0 || fuse_feed_next_size(feed) == 0)
        fuse_feed_begin_epoch(feed, state->epochs_begun++);
    FUSE_TRY(fuse_clock_apply(clock, experiment->dict, error));
    fuse_dict_begin(experiment->dict);
    double statistics[2] = {0, 0};
    const int64_t count = fuse_feed_update(feed, experiment->accumulate, samples);
    const double scale = fuse_experiment_scale(experiment, *samples);
    for (int64_t i = 0; i < count; i++) {
        const enum fuse_part part = count == 1      ? FUSE_PART_ONLY
                                    : i == 0        ? FUSE_PART_FIRST
                                    : i + 1 < count ? FUSE_PART_MORE
                                                    : FUSE_PART_LAST;
        FUSE_TRY(fuse_run_batch(experiment, FUSE_PURPOSE_TRAIN, part, i, feed, scale, statistics, error));
    }
    FUSE_TRY(fuse_dict_end(experiment->dict, error));
    state->last_loss = statistics[0] * scale;
    state->is_skipped = experiment->dict->clip.skips_nonfinite && experiment->dict->nonfinite_parameter != UINT32_MAX;
    if (!state->is_skipped)
        clock->completed_updates++;
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
        .grad_norm = experiment->dict->clip.norm,
        .has_grad_norm = experiment->dict->clip.max_norm > 0 || experiment->dict->clip.logs_norm,
        .is_skipped = state->is_skipped,
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

/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

static struct fuse_checkpoint_record record_of(const struct fuse_run_state *state)
{
    const struct fuse_experiment *experiment = state->experiment;
    const struct fuse_feed *feed = &experiment->train_feed;
    return (struct fuse_checkpoint_record){
        .step = experiment->clock->completed_updates,
        .epoch = state->epochs_begun,
        .batches = state->epochs_begun > 0 ? fuse_feed_batches(feed) : 0,
        .drawn = (int64_t)feed->ordinal,
        .batch_size = experiment->train.batch_size,
        .samples = experiment->train.info.sample_count,
        .seed = (int64_t)experiment->seed,
        .skips = state->skips_in_a_row,
        .is_evaluation_due = state->is_evaluation_due,
    };
}

/* The run as the checkpoint has it. What is not in the dict and the clock, fuse_experiment_allocate() could not load.
 */
static void restore(struct fuse_run_state *state)
{
    struct fuse_experiment *experiment = state->experiment;
    struct fuse_feed *feed = &experiment->train_feed;
    const struct fuse_resume *resume = experiment->resume;
    const struct fuse_checkpoint_record *record = &resume->record;
    state->epochs_begun = record->epoch;
    state->skips_in_a_row = record->skips < MOST_SKIPS ? (int)record->skips : 0;
    state->is_evaluation_due = record->is_evaluation_due && experiment->has_evaluation;
    state->is_saved = true;
    feed->ordinal = (uint64_t)record->drawn;
    if (record->epoch > 0)
        fuse_feed_seek(feed, record->epoch - 1, resume->begins_epoch ? INT64_MAX : record->batches);
}

static int save(struct fuse_run_state *state, struct fuse_metrics *metrics, struct fuse_error *error)
{
    const struct fuse_checkpoint_record record = record_of(state);
    if (state->is_saved)
        return FUSERUN_OK;
    FUSE_TRY(fuse_checkpoints_save(state->checkpoints, &record, metrics, error));
    state->is_saved = true;
    return FUSERUN_OK;
}

/* Whoever sent SIGUSR1 gets to know what came of it. */
static void answer_signal(struct fuse_run_state *state)
{
    const struct fuse_experiment *experiment = state->experiment;
    if (state->checkpoints != NULL) {
        fuse_progress_checkpoint(&state->progress, experiment->clock->completed_updates);
        return;
    }
    fuse_progress_clear(&state->progress);
    fuse_config_warn(experiment->config, experiment->diagnostics, "checkpoint", "every",
                     "SIGUSR1 asked for a checkpoint, but without this key none are made; nothing was saved");
    fuse_diagnostics_print(experiment->diagnostics, stderr);
}

static void tell_damaged_metrics(const struct fuse_run_state *state)
{
    const struct fuse_experiment *experiment = state->experiment;
    if (state->metrics.damaged_lines == 0)
        return;
    fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume",
                     "%" PRIu64 " damaged lines of metrics.jsonl were left out", state->metrics.damaged_lines);
    fuse_diagnostics_print(experiment->diagnostics, stderr);
}

/* What starting the same command again would do. */
static const char *way_on(const struct fuse_run_state *state)
{
    const char *from = fuse_option_text(fuse_config_options(state->experiment->config, "run"), "resume");
    if (state->checkpoints == NULL)
        return "";
    return from == NULL || strcmp(from, "auto") == 0 ? "; the run goes on from there when started again"
                                                     : "; with run.resume=auto it goes on from there";
}

static int stop(struct fuse_run_state *state, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    fuse_progress_clear(&state->progress);
    FUSE_TRY(save(state, &state->metrics, error));
    FUSE_TRY(fuse_checkpoints_wait(state->checkpoints, error));
    return fuse_fail(error, FUSERUN_ERROR_INTERRUPTED, NULL, "stopped after step %" PRId64 " of %" PRId64 "%s",
                     experiment->clock->completed_updates, experiment->total_updates, way_on(state));
}

/* ---- the run ---------------------------------------------------------------------------------------------------- */

static int run_one(struct fuse_run_state *state, int64_t *before_ns, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    int64_t samples = 0;
    state->is_saved = false;
    FUSE_TRY(run_update(state, &samples, error));
    const int64_t now_ns = fuse_now_ns();
    const int64_t step_ns = now_ns - *before_ns;
    *before_ns = now_ns;
    state->samples += samples;
    state->training_ns += step_ns;
    FUSE_TRY(log_update(state, samples, step_ns, now_ns, error));
    FUSE_TRY(count_skip(state, error));
    if (!experiment->dict->clip.skips_nonfinite)
        FUSE_TRY(check_finite(state, error));
    state->is_evaluation_due = !state->is_skipped && is_evaluation_due(experiment);
    return FUSERUN_OK;
}

/* What stands between two updates: an evaluation, a checkpoint. A checkpoint holds what an evaluation told the
 * schedules; one that was broken off is due again. */
static int between_updates(struct fuse_run_state *state, int64_t *before_ns, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    const int64_t completed = experiment->clock->completed_updates;
    const bool is_asked = fuse_signals_save_asked();
    if (state->is_evaluation_due) {
        FUSE_TRY(fuse_metrics_flush(&state->metrics, fuse_now_ns(), error));
        const int status = fuse_evaluate(state, error);
        if (status == FUSERUN_ERROR_INTERRUPTED)
            return stop(state, error);
        FUSE_TRY(status);
        state->is_evaluation_due = false;
        state->is_saved = false;
        *before_ns = fuse_now_ns();
    }
    /* The last update's is saved when all is done. */
    const bool is_due = experiment->checkpoint_every > 0 && completed % experiment->checkpoint_every == 0 &&
                        completed > state->saved_updates && completed < experiment->total_updates;
    if (is_due || is_asked) {
        const int64_t start_ns = fuse_now_ns();
        state->saved_updates = completed;
        FUSE_TRY(save(state, &state->metrics, error));
        *before_ns = fuse_now_ns();
        state->saves += state->checkpoints != NULL;
        state->saving_ns += *before_ns - start_ns;
    }
    if (is_asked)
        answer_signal(state);
    return FUSERUN_OK;
}

static int run_updates(struct fuse_run_state *state, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = state->experiment;
    int64_t before_ns = fuse_now_ns();
    FUSE_TRY(between_updates(state, &before_ns, error));
    while (experiment->clock->completed_updates < experiment->total_updates) {
        if (fuse_signals_asked())
            return stop(state, error);
        FUSE_TRY(run_one(state, &before_ns, error));
        FUSE_TRY(between_updates(state, &before_ns, error));
    }
    FUSE_TRY(fuse_checkpoints_wait(state->checkpoints, error));
    /* The last update has no loss behind it that would show what it did to the weights. */
    return check_weights(state, error);
}

static void summarise(struct fuse_run_state *state, const struct fuse_outputs *outputs)
{
    const struct fuse_experiment *experiment = state->experiment;
    const bool has_accuracy = state->has_evaluated && experiment->loss == FUSE_LOSS_CROSS_ENTROPY;
    const struct fuse_progress_summary summary = {
        .updates = experiment->clock->completed_updates,
        .loss = state->samples > 0 ? &state->last_loss : NULL,
        .evaluation_loss = state->has_evaluated ? &state->evaluation_loss : NULL,
        .accuracy = has_accuracy ? &state->evaluation_accuracy : NULL,
        .training_s = (double)state->training_ns / 1e9,
        .samples = state->samples,
        .saves = state->saves,
        .saving_s = (double)state->saving_ns / 1e9,
        .peak = *fuse_ledger_peak(experiment->ledger),
        .folder = outputs->folder,
    };
    fuse_progress_finish(&state->progress, &summary);
}

static int save_last(struct fuse_run_state *state, struct fuse_error *error)
{
    state->is_saved = false; /* one that the run went on from may lie elsewhere */
    *error = (struct fuse_error)FUSE_ERROR_INIT;
    FUSE_TRY(save(state, NULL, error));
    return fuse_checkpoints_wait(state->checkpoints, error);
}

/* Everything is trained: the last checkpoint, with the metrics closed and on disk, then what a run leaves. */
static int finish(struct fuse_run_state *state, const struct fuse_outputs *outputs, struct fuse_error *error)
{
    struct fuse_error untold = FUSE_ERROR_INIT;
    /* First: a run that is killed behind its last checkpoint has nothing left to draw when it goes on. That the
     * pictures fail is told when the weights are safe. */
    const uint64_t resident_bytes = fuse_resident_peak_bytes();
    int drawn = fuse_pictures_write(state->experiment, outputs, resident_bytes, &untold);
    bool is_removed = false;
    int saved = save_last(state, error);
    if (saved == FUSERUN_ERROR_IO) {
        /* Pages can be made another time, what was trained cannot. */
        fuse_pictures_remove(outputs);
        is_removed = true;
        saved = save_last(state, error);
    }
    /* Where there is no room for a checkpoint, there may be for the weights; that is no reason to call it well. */
    struct fuse_error second = FUSE_ERROR_INIT;
    const int finished = fuse_outputs_finish(state->experiment, outputs, saved == FUSERUN_OK ? error : &second);
    FUSE_TRY(saved);
    FUSE_TRY(finished);
    if (is_removed)
        drawn = fuse_pictures_write(state->experiment, outputs, resident_bytes, &untold);
    if (drawn != FUSERUN_OK) {
        /* What failed once may not again, and a run that is done has nothing left to draw. Told it is in any case. */
        (void)fuse_pictures_write(state->experiment, outputs, resident_bytes, &second);
        *error = untold;
        return drawn;
    }
    summarise(state, outputs);
    return fuse_profile_write(state->experiment, outputs, error);
}

int fuse_run(struct fuse_experiment *experiment, const struct fuse_outputs *outputs, struct fuse_error *error)
{
    const struct fuse_resume *resume = experiment->resume;
    struct fuse_run_state state = {.experiment = experiment, .metrics.descriptor = -1};
    char *path = fuse_outputs_path(outputs, "metrics.jsonl");
    if (path == NULL)
        return fuse_fail_memory(error, "a path", strlen(outputs->folder));
    int status =
        fuse_metrics_open(path, experiment->clock, resume != NULL ? &resume->record : NULL, &state.metrics, error);
    free(path);
    if (status == FUSERUN_OK)
        status = fuse_checkpoints_new(experiment, outputs->folder, &state.checkpoints, error);
    if (status == FUSERUN_OK) {
        tell_damaged_metrics(&state);
        if (resume != NULL)
            restore(&state);
        fuse_progress_start(&state.progress, experiment);
        status = run_updates(&state, error);
        fuse_progress_clear(&state.progress);
    }
    if (status != FUSERUN_OK)
        fuse_checkpoints_free(&state.checkpoints); /* the log stays open for a file that is being written */
    /* The first error is the one to tell; the log is closed in any case. */
    struct fuse_error *const told = status == FUSERUN_OK ? error : NULL;
    const int closed = fuse_metrics_close(&state.metrics, told);
    if (status == FUSERUN_OK)
        status = closed;
    if (status == FUSERUN_OK)
        status = finish(&state, outputs, error);
    fuse_checkpoints_free(&state.checkpoints);
    return status;
}
