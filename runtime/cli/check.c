#include "cli/cli.h"
#include "config/options.h"
#include "train/fit.h"
#include "train/image.h"
#include "train/outputs.h"
#include "train/progress.h"
#include "train/resume.h"

#include <inttypes.h>
#include <stdlib.h>

static const struct fuse_parameter *parameter_of(const struct fuse_experiment *experiment, uint32_t entry)
{
    return &experiment->graph->parameters[experiment->dict->entries[entry].parameter];
}

/* ---- as JSON --------------------------------------------------------------------------------------------------- */

static void add_json(const struct fuse_experiment *experiment, struct fuse_text *text)
{
    const struct fuse_dict *dict = experiment->dict;
    fuse_text_addf(text, "{\"parameters\":%" PRId64 ",\"groups\":{", fuse_experiment_parameter_values(experiment));
    bool is_first_group = true;
    for (uint32_t g = 0; g < dict->group_count; g++) {
        if (g == 0 && dict->groups[g].parameter_count == 0)
            continue; /* nobody asked for a default group */
        fuse_text_add(text, is_first_group ? "" : ",");
        is_first_group = false;
        fuse_text_add_json(text, dict->groups[g].name);
        fuse_text_add(text, ":[");
        bool is_first = true;
        for (uint32_t e = 0; e < dict->entry_count; e++) {
            if (dict->entries[e].group != g)
                continue;
            fuse_text_add(text, is_first ? "" : ",");
            is_first = false;
            fuse_text_add_json(text, parameter_of(experiment, e)->name);
        }
        fuse_text_add(text, "]");
    }
    fuse_text_add(text, "},");
    fuse_peak_add_json(&experiment->predicted, text);
    fuse_text_add(text, "}\n");
}

/* ---- for people ------------------------------------------------------------------------------------------------ */

static void add_groups(const struct fuse_experiment *experiment, struct fuse_text *text)
{
    const struct fuse_dict *dict = experiment->dict;
    fuse_text_addf(text, "parameters  %" PRId64 " in %u tensors\n", fuse_experiment_parameter_values(experiment),
                   experiment->graph->parameter_count);
    for (uint32_t g = 0; g < dict->group_count; g++) {
        const struct fuse_group *group = &dict->groups[g];
        int64_t values = 0;
        for (uint32_t e = 0; e < dict->entry_count; e++)
            values += dict->entries[e].group == g ? dict->entries[e].element_count : 0;
        if (g == 0 && group->parameter_count == 0)
            continue;
        fuse_text_addf(text, "  group %s: %s, %" PRId64 " values in %u tensors\n", group->name, group->component->name,
                       values, group->parameter_count);
        for (uint32_t e = 0; e < dict->entry_count; e++) {
            if (dict->entries[e].group == g)
                fuse_text_addf(text, "    %s\n", parameter_of(experiment, e)->name);
        }
    }
    bool has_frozen = false;
    for (uint32_t p = 0; p < experiment->graph->parameter_count; p++) {
        if (!experiment->graph->parameters[p].is_frozen)
            continue;
        fuse_text_add(text, has_frozen ? "" : "  frozen\n");
        has_frozen = true;
        fuse_text_addf(text, "    %s\n", experiment->graph->parameters[p].name);
    }
}

static void add_source(struct fuse_text *text, const char *title, const struct fuse_source *source)
{
    const int64_t last = fuse_source_last_batch(source);
    fuse_text_addf(text, "%s%" PRId64 " samples, %" PRId64 " batches of %" PRId64, title, source->info.sample_count,
                   fuse_source_batch_count(source), fuse_source_full_batch(source));
    if (last > 0)
        fuse_text_addf(text, ", the last one of %" PRId64, last);
    fuse_text_add(text, source->is_shuffled ? ", shuffled" : ", in order");
    fuse_text_add(text, source->drops_last ? ", the rest dropped\n" : "\n");
}

/* What a column does over the run. */
struct preview {
    double first, greatest, least, last;
    int64_t greatest_step;
};

static void preview_next(struct preview *preview, double value, int64_t step)
{
    if (step == 1)
        *preview = (struct preview){value, value, value, value, 1};
    if (value > preview->greatest) {
        preview->greatest = value;
        preview->greatest_step = step;
    }
    preview->least = value < preview->least ? value : preview->least;
    preview->last = value;
}

/* First, greatest and last value of every column: the clock is asked for every update, of very long runs for some. */
static int add_schedule(struct fuse_experiment *experiment, struct fuse_text *text, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_clock *clock = experiment->clock;
    const size_t columns = fuse_clock_column_count(clock);
    struct preview *previews = calloc(columns + 1, sizeof *previews);
    if (previews == NULL)
        return fuse_fail_memory(error, "the preview", columns * sizeof *previews);
    for (int64_t step = fuse_clock_next_asked(clock, 0); step > 0; step = fuse_clock_next_asked(clock, step)) {
        clock->completed_updates = step - 1;
        FUSE_TRY_OUT(fuse_clock_apply(clock, experiment->dict, error));
        for (size_t c = 0; c < columns; c++)
            preview_next(&previews[c], fuse_clock_column_value(clock, experiment->dict, c), step);
    }
    fuse_text_add(text, "schedule\n");
    for (size_t c = 0; c < columns; c++) {
        const struct preview *preview = &previews[c];
        fuse_text_addf(text, "  %s.%s  %.6g", experiment->dict->groups[clock->columns[c].group].name,
                       clock->columns[c].option, preview->first);
        if (preview->greatest == preview->least)
            fuse_text_add(text, " throughout\n");
        else
            fuse_text_addf(text, " at step 1, greatest %.6g at step %" PRId64 ", last %.6g at step %" PRId64 "\n",
                           preview->greatest, preview->greatest_step, preview->last, clock->total_updates);
    }
    fuse_clock_add_notes(clock, "  ", text);
out:
    clock->completed_updates = 0;
    free(previews);
    return status;
}

static void add_memory(const struct fuse_experiment *experiment, struct fuse_text *text)
{
    char shown[FUSE_BYTES_CHARS];
    const struct fuse_peak *peak = &experiment->predicted;
    fuse_text_addf(text, "memory      peak %" PRIu64 " bytes (%s) in %s\n", peak->bytes,
                   fuse_bytes_show(peak->bytes, shown), fuse_phase_name(peak->phase));
    for (int i = 0; i < FUSE_CATEGORY_COUNT; i++)
        fuse_text_addf(text, "  %-16s %14" PRIu64 "  %s\n", fuse_category_name((enum fuse_category)i),
                       peak->category_bytes[i], fuse_bytes_show(peak->category_bytes[i], shown));
    fuse_text_add(text, "by program, while it runs\n");
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        const struct fuse_pass *pass = &experiment->passes[i];
        struct fuse_peak own;
        fuse_program_peak(pass->program, experiment->persistent, &own);
        fuse_text_addf(text, "  %s, batch of %" PRId64, pass->purpose == FUSE_PURPOSE_TRAIN ? "training" : "evaluation",
                       pass->batch_size);
        if (pass->part == FUSE_PART_LAST)
            fuse_text_addf(text, ", the last of %" PRId64, pass->earlier_count + 1);
        else if (pass->part != FUSE_PART_ONLY)
            fuse_text_add(text, pass->part == FUSE_PART_FIRST ? ", the first" : ", the next");
        fuse_text_addf(text, ": %s in %s\n", fuse_bytes_show(own.bytes, shown), fuse_phase_name(own.phase));
    }
}

static void add_clipping(struct fuse_experiment *experiment, struct fuse_text *text)
{
    static const struct {
        enum fuse_norm_use use;
        const char *name, *cost;
    } ways[] = {
        {FUSE_NORM_NONE, "off", "nothing"},
        {FUSE_NORM_DEFER, "deferred",
         "weights' gradients are measured without being formed (but for kept ones), then formed in panels"},
        {FUSE_NORM_TWICE, "two_pass", "a second backward pass"},
        {FUSE_NORM_KEEP, "keep", "all gradients are alive at the end of backward"},
    };
    const struct fuse_clip *clip = &experiment->dict->clip;
    const enum fuse_norm_use used = experiment->way.norm;
    char shown[FUSE_BYTES_CHARS];
    if (clip->max_value > 0)
        fuse_text_add(text, "  clipping       by value: one pass over each gradient while it is in cache\n");
    else if (clip->max_parameter_norm > 0)
        fuse_text_add(text, "  clipping       by each parameter's norm: its gradient is formed whole\n");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const bool is_used = ways[i].use == used;
        const bool is_possible = experiment->dict->mode == FUSE_MODE_FUSED || is_used;
        if ((used == FUSE_NORM_NONE && !is_used) || !is_possible ||
            (is_used && used == FUSE_NORM_NONE && clip->max_value + clip->max_parameter_norm > 0))
            continue;
        uint64_t peak_bytes = 0;
        struct fuse_error error = FUSE_ERROR_INIT;
        const struct fuse_way way = {ways[i].use, experiment->way.holds_operands && ways[i].use != FUSE_NORM_KEEP};
        const int status = fuse_passes_weigh(experiment, way, &peak_bytes, &error);
        text->failed |= status == FUSERUN_ERROR_MEMORY;
        if (status != FUSERUN_OK)
            continue; /* this device cannot */
        fuse_text_addf(text, "  %s %s: peak %s, %s\n", is_used ? "clipping      " : "               instead",
                       ways[i].name, fuse_bytes_show(peak_bytes, shown), ways[i].cost);
    }
}

/* "a peak of 3.1 MiB" of training in that way. */
static void add_way_peak(struct fuse_experiment *experiment, struct fuse_way way, struct fuse_text *text)
{
    char shown[FUSE_BYTES_CHARS];
    uint64_t peak_bytes = 0;
    struct fuse_error error = FUSE_ERROR_INIT;
    const int status = fuse_passes_weigh(experiment, way, &peak_bytes, &error);
    text->failed |= status == FUSERUN_ERROR_MEMORY;
    if (status == FUSERUN_OK)
        fuse_text_addf(text, "peak %s", fuse_bytes_show(peak_bytes, shown));
    else
        fuse_text_addf(text, "not on this device: %s", error.text);
}

static void add_accumulation(struct fuse_experiment *experiment, struct fuse_text *text)
{
    char gradients[FUSE_BYTES_CHARS], operands[FUSE_BYTES_CHARS];
    const struct fuse_hold *hold = experiment->hold;
    if (hold == NULL) {
        fuse_text_add(text, "  accumulation   one micro-batch an update: nothing\n");
        return;
    }
    (void)fuse_bytes_show(hold->gradient_bytes, gradients);
    (void)fuse_bytes_show(hold->operand_bytes, operands);
    fuse_text_add(text, "  accumulation   kept between micro-batches: ");
    if (hold->operands_count == 0)
        fuse_text_addf(text, "all gradients (%s)", gradients);
    else
        fuse_text_addf(
            text,
            "X and dY of %u weight%s (%s, smaller than the gradients would be) and the gradients of %u other "
            "tensors (%s)",
            hold->operands_count, hold->operands_count == 1 ? "" : "s", operands, hold->gradient_count, gradients);
    fuse_text_add(text, ": ");
    add_way_peak(experiment, experiment->way, text);
    const bool has_choice = experiment->dict->mode == FUSE_MODE_FUSED && experiment->way.norm != FUSE_NORM_KEEP;
    const bool is_none_smaller = has_choice && experiment->way.holds_operands && hold->operands_count == 0;
    fuse_text_add(text, is_none_smaller ? "; of no weight are X and dY smaller\n" : "\n");
    if (!has_choice || is_none_smaller)
        return; /* where there is none, all gradients must be there at the end in any case */
    struct fuse_way other = experiment->way;
    other.holds_operands = !other.holds_operands;
    fuse_text_addf(text, "                 instead %s: ",
                   other.holds_operands ? "X and dY, where they are smaller than the gradient" : "all gradients");
    add_way_peak(experiment, other, text);
    fuse_text_add(text, "\n");
}

static void add_costs(struct fuse_experiment *experiment, struct fuse_text *text)
{
    const char *mode = fuse_option_text(fuse_config_options(experiment->config, "optimizer"), "mode");
    const struct fuse_dict *dict = experiment->dict;
    fuse_text_addf(text, "costs in mode %s\n", mode);
    if (experiment->pass_count > 0 && experiment->passes[0].purpose == FUSE_PURPOSE_TRAIN)
        add_clipping(experiment, text);
    add_accumulation(experiment, text);
    if (dict->clip.skips_nonfinite)
        fuse_text_addf(text, "  nonfinite      skip: %s\n",
                       dict->mode == FUSE_MODE_FUSED
                           ? "every gradient is measured before any is applied, in the way that clipping names"
                           : "each gradient is looked at once, where it is formed; no memory");
    else
        fuse_text_addf(text,
                       "  nonfinite      stop: each gradient is looked at once, where it is formed; no memory%s\n",
                       dict->mode == FUSE_MODE_FUSED && dict->clip.max_norm == 0
                           ? "; weights updated before the first bad gradient have moved"
                           : "; no weight moves in an update with a bad gradient");
}

static void add_checkpoints(const struct fuse_experiment *experiment, struct fuse_text *text)
{
    char shown[FUSE_BYTES_CHARS];
    const char *bytes = fuse_bytes_show(fuse_image_copy_bytes(experiment), shown);
    if (experiment->resume != NULL)
        fuse_text_addf(text, "resume      from step %" PRId64 ", %s\n", experiment->resume->record.step,
                       experiment->resume->path);
    if (experiment->checkpoint_every == 0)
        return;
    fuse_text_addf(text, "checkpoints every %" PRId64 " updates, %" PRId64 " kept, %s each",
                   experiment->checkpoint_every,
                   fuse_option_integer(fuse_config_options(experiment->config, "checkpoint"), "keep"), bytes);
    if (experiment->checkpoints_in_background)
        fuse_text_addf(text, "; background: the copy they are written from takes %s of workspace", bytes);
    fuse_text_add(text, "\n");
}

static int add_plan(struct fuse_experiment *experiment, struct fuse_text *text, struct fuse_error *error)
{
    fuse_config_write(experiment->config, text);
    fuse_text_add(text, "\n");
    add_groups(experiment, text);
    if (fuse_experiment_is_bfloat16(experiment))
        fuse_text_add(text, "precision   bf16: matrix products, activations and their gradients; fp32: weights, their "
                            "gradients, optimizer state, statistics, the model's output\n");
    add_source(text, "data        ", &experiment->train);
    if (experiment->has_evaluation)
        add_source(text, "eval        ", &experiment->evaluation);
    fuse_text_addf(text, "updates     %" PRId64 ", %" PRId64 " an epoch", experiment->total_updates,
                   experiment->updates_per_epoch);
    if (experiment->accumulate > 1)
        fuse_text_addf(text, ", of %" PRId64 " micro-batches", experiment->accumulate);
    const int64_t batches = fuse_source_batch_count(&experiment->train);
    if (batches % experiment->accumulate != 0)
        fuse_text_addf(text, ", an epoch's last of %" PRId64, batches % experiment->accumulate);
    fuse_text_add(text, "\n");
    add_checkpoints(experiment, text);
    FUSE_TRY(add_schedule(experiment, text, error));
    add_memory(experiment, text);
    add_costs(experiment, text);
    return FUSERUN_OK;
}

int fuse_command_check(const struct fuse_arguments *arguments)
{
    struct fuse_experiment *experiment = NULL;
    struct fuse_outputs outputs = {0};
    struct fuse_text text = {0};
    struct fuse_error error = FUSE_ERROR_INIT;
    int exit_status = fuse_open_experiment(arguments, &experiment);
    if (exit_status != FUSE_EXIT_DONE)
        goto out;
    int status = fuse_outputs_check(experiment, arguments->words[0], true, &outputs, &error);
    if (status == FUSERUN_OK)
        status = fuse_fit_check(experiment, true, &error);
    if (status == FUSERUN_OK || status == FUSERUN_ERROR_CONFIG)
        fuse_diagnostics_print(experiment->diagnostics, stderr);
    if (status == FUSERUN_ERROR_CONFIG) {
        exit_status = FUSE_EXIT_USAGE;
        goto out;
    }
    if (status == FUSERUN_OK && arguments->wants_json)
        add_json(experiment, &text);
    else if (status == FUSERUN_OK)
        status = add_plan(experiment, &text, &error);
    exit_status = status == FUSERUN_OK ? fuse_print_text(&text) : fuse_report_failure(&error);
    if (status == FUSERUN_ERROR_NUMERIC)
        exit_status = FUSE_EXIT_USAGE; /* a schedule that would stop the run */
out:
    fuse_text_free(&text);
    fuse_outputs_free(&outputs);
    fuse_experiment_free(&experiment);
    return exit_status;
}
