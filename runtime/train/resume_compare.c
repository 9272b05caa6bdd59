#include "train/resume.h"

#include "config/options.h"
#include "files/files.h"
#include "train/listing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors of a checkpoint ----------------------------------------------------------------------------------- */

static bool is_shaped(const struct fuse_safetensors_entry *entry, uint32_t rank, const int64_t *shape)
{
    if (entry->rank != rank)
        return false;
    for (uint32_t d = 0; d < rank; d++)
        if (entry->shape[d] != (uint64_t)shape[d])
            return false;
    return true;
}

const struct fuse_safetensors_entry *fuse_resume_weight(const struct fuse_safetensors *file,
                                                        const struct fuse_parameter *parameter)
{
    const struct fuse_safetensors_entry *entry = fuse_safetensors_find(file, parameter->name);
    return entry != NULL && strcmp(entry->dtype, "F32") == 0 && is_shaped(entry, parameter->rank, parameter->shape)
               ? entry
               : NULL;
}

const struct fuse_safetensors_entry *fuse_resume_state(const struct fuse_safetensors *file, const char *parameter,
                                                       const char *list, uint32_t index, struct fuse_text *name)
{
    size_t length = 0;
    const char *state = fuse_rule_name(list, index, &length);
    if (state == NULL)
        return NULL;
    fuse_text_clear(name);
    fuse_text_addf(name, FUSE_CHECKPOINT_OPTIMIZER "%s/%.*s", parameter, (int)length, state);
    return name->failed ? NULL : fuse_safetensors_find(file, name->data);
}

size_t fuse_resume_optimizer(const struct fuse_resume *resume, const char *parameter, const char **plugin)
{
    const size_t length = strlen(parameter);
    for (const char *line = resume->texts.optimizers; line != NULL && *line != '\0';) {
        const size_t line_length = strcspn(line, "\n");
        if (line_length > length + 1 && line[line_length - length - 1] == ' ' &&
            memcmp(line + line_length - length, parameter, length) == 0) {
            *plugin = line;
            return line_length - length - 1;
        }
        line += line_length + (line[line_length] == '\n');
    }
    return 0;
}

static void add_stage(void *user, const char *section, const char *metric)
{
    fuse_text_addf(user, "%s %s\n", section, metric);
}

void fuse_resume_add_stages(const struct fuse_clock *clock, struct fuse_text *text)
{
    for (size_t i = 0; i < clock->schedule_count; i++)
        fuse_schedule_metrics(clock->schedules[i], add_stage, text);
}

/* ---- comparing with the model ---------------------------------------------------------------------------------- */

struct named {
    const char *name;
    uint32_t parameter;
};

struct comparison {
    const struct fuse_experiment *experiment;
    struct fuse_resume *resume;
    struct fuse_text name;  /* of the tensor looked for */
    struct named *by_name;  /* parameters, sorted */
    uint32_t *state_counts; /* by parameter: tensors of its optimizer in the file */
    size_t matching;
    struct fuse_listing missing, unexpected, shapes, optimizers, states, untrained;
};

static int compare_named(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* The parameter whose name is these bytes; UINT32_MAX: none. */
static uint32_t find_parameter(const struct comparison *self, const char *name, size_t length)
{
    uint32_t low = 0, high = self->experiment->graph->parameter_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const char *other = self->by_name[middle].name;
        int order = strncmp(name, other, length);
        if (order == 0 && other[length] != '\0')
            order = -1;
        if (order == 0)
            return self->by_name[middle].parameter;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return UINT32_MAX;
}

/* Every tensor of the file: a weight, or a part of a parameter's optimizer. */
static void compare_file(struct comparison *self)
{
    for (size_t i = 0; i < fuse_safetensors_count(self->resume->file); i++) {
        const char *name = fuse_safetensors_entry(self->resume->file, i)->name;
        const size_t prefix = strlen(FUSE_CHECKPOINT_OPTIMIZER);
        const char *slash = strrchr(name, '/');
        const uint32_t weight = find_parameter(self, name, strlen(name));
        if (weight != UINT32_MAX || strcmp(name, FUSE_CHECKPOINT_SCHEDULER_STATE) == 0)
            continue;
        char shown[FUSE_SHOWN_BYTES];
        if (!fuse_checkpoint_is_state(name)) {
            if (fuse_listing_next(&self->unexpected))
                fuse_text_add(&self->unexpected.text, fuse_shown(name, strlen(name), shown));
            continue;
        }
        if (strncmp(name, FUSE_CHECKPOINT_OPTIMIZER, prefix) != 0 || slash < name + prefix)
            continue;
        const uint32_t owner = find_parameter(self, name + prefix, (size_t)(slash - name) - prefix);
        if (owner != UINT32_MAX)
            self->state_counts[owner]++; /* of one that the model lacks the weight is unexpected, too */
    }
}

static void compare_weight(struct comparison *self, const struct fuse_parameter *parameter)
{
    const struct fuse_safetensors_entry *entry = fuse_safetensors_find(self->resume->file, parameter->name);
    if (entry == NULL) {
        if (fuse_listing_next(&self->missing))
            fuse_text_add(&self->missing.text, parameter->name);
    } else if (fuse_resume_weight(self->resume->file, parameter) == NULL) {
        if (!fuse_listing_next(&self->shapes))
            return;
        fuse_text_addf(&self->shapes.text, "%s %s (", parameter->name, entry->dtype);
        for (uint32_t d = 0; d < entry->rank; d++)
            fuse_text_addf(&self->shapes.text, "%s%" PRIu64, d > 0 ? ", " : "", entry->shape[d]);
        fuse_text_add(&self->shapes.text, ") where the model has (");
        for (uint32_t d = 0; d < parameter->rank; d++)
            fuse_text_addf(&self->shapes.text, "%s%" PRId64, d > 0 ? ", " : "", parameter->shape[d]);
        fuse_text_add(&self->shapes.text, ")");
    } else
        self->matching++;
}

static bool has_states(struct comparison *self, const struct fuse_parameter *parameter, const struct fuse_entry *entry)
{
    const struct fuse_safetensors *file = self->resume->file;
    const struct fuse_rule *rule = self->experiment->dict->groups[entry->group].rule;
    for (uint32_t s = 0; s < rule->state_count; s++) {
        const struct fuse_safetensors_entry *state =
            fuse_resume_state(file, parameter->name, rule->states, s, &self->name);
        const bool is_whole = entry->state_counts[s] == entry->element_count;
        if (state == NULL || strcmp(state->dtype, "F32") != 0 ||
            !is_shaped(state, is_whole ? parameter->rank : 1, is_whole ? parameter->shape : &entry->state_counts[s]))
            return false;
    }
    for (uint32_t n = 0; n < rule->number_count; n++) {
        const struct fuse_safetensors_entry *number =
            fuse_resume_state(file, parameter->name, rule->numbers, n, &self->name);
        if (number == NULL || strcmp(number->dtype, "F64") != 0 || number->rank != 0)
            return false;
    }
    const struct fuse_safetensors_entry *step =
        fuse_resume_state(file, parameter->name, FUSE_CHECKPOINT_STEP, 0, &self->name);
    int64_t count = -1;
    if (step == NULL || strcmp(step->dtype, "I64") != 0 || step->rank != 0 ||
        fuse_safetensors_read(file, step, 0, &count, sizeof count, NULL) != FUSERUN_OK)
        return false;
    return count >= 0 && count <= self->resume->record.step;
}

/* A parameter's optimizer is taken whole or not at all: moments of one rule beside another's count would be wrong
 * together. */
static void compare_entry(struct comparison *self, uint32_t index)
{
    const struct fuse_experiment *experiment = self->experiment;
    const struct fuse_entry *entry = &experiment->dict->entries[index];
    const struct fuse_group *group = &experiment->dict->groups[entry->group];
    const struct fuse_parameter *parameter = &experiment->graph->parameters[entry->parameter];
    const uint32_t wanted = group->rule->state_count + group->rule->number_count + 1;
    if (fuse_resume_weight(self->resume->file, parameter) == NULL)
        return; /* told already */
    if (self->state_counts[entry->parameter] == 0) {
        if (fuse_listing_next(&self->untrained))
            fuse_text_add(&self->untrained.text, parameter->name);
        return;
    }
    const char *plugin = NULL;
    const size_t length = fuse_resume_optimizer(self->resume, parameter->name, &plugin);
    const bool is_other =
        length > 0 && (strlen(group->component->name) != length || memcmp(group->component->name, plugin, length) != 0);
    const bool is_taken = self->state_counts[entry->parameter] == wanted && has_states(self, parameter, entry);
    self->resume->takes_state[index] = is_taken;
    char shown[FUSE_SHOWN_BYTES];
    if (is_other) {
        if (fuse_listing_next(&self->optimizers))
            fuse_text_addf(&self->optimizers.text, "%s (%s, not %s)", parameter->name,
                           fuse_shown(plugin, length, shown), group->component->name);
    } else if (!is_taken) {
        if (fuse_listing_next(&self->states))
            fuse_text_add(&self->states.text, parameter->name);
    }
}

static void report(struct comparison *self, bool is_strict)
{
    const struct fuse_experiment *experiment = self->experiment;
    const size_t kept = self->matching;
    struct fuse_text text = {0}, untrained = {0};
    fuse_listing_finish(&self->missing, &text);
    fuse_listing_finish(&self->unexpected, &text);
    fuse_listing_finish(&self->shapes, &text);
    fuse_listing_finish(&self->optimizers, &text);
    fuse_listing_finish(&self->states, &text);
    fuse_listing_finish(&self->untrained, &untrained);
    self->name.failed = self->name.failed || text.failed || untrained.failed;
    if (self->name.failed)
        goto out;
    if (text.length > 0 && (is_strict || kept == 0))
        fuse_config_report(experiment->config, experiment->diagnostics, "run", "resume",
                           "the checkpoint '%s' does not fit: %s; %s, resume = never starts afresh",
                           fuse_shown_path(self->resume->path), text.data,
                           kept == 0 ? "nothing of it matches" : "run.resume_strict = no takes what matches");
    else if (text.length > 0)
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume",
                         "resume_strict = no: taken is what matches of '%s'; %s", fuse_shown_path(self->resume->path),
                         text.data);
    if (untrained.length > 0)
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume",
                         "the checkpoint holds no optimizer state of what was not trained before; at zero begin %s",
                         untrained.data);
out:
    fuse_text_free(&text);
    fuse_text_free(&untrained);
}

/* ---- schedules and data ---------------------------------------------------------------------------------------- */

static int compare_schedules(const struct fuse_experiment *experiment, struct fuse_resume *resume,
                             struct fuse_error *error)
{
    const size_t count = fuse_clock_state_count(experiment->clock);
    struct fuse_text stages = {0};
    if (count == 0)
        return FUSERUN_OK;
    const struct fuse_safetensors_entry *state = fuse_safetensors_find(resume->file, FUSE_CHECKPOINT_SCHEDULER_STATE);
    fuse_resume_add_stages(experiment->clock, &stages);
    fuse_text_add(&stages, "");
    const bool has_failed = stages.failed;
    resume->takes_schedules = !has_failed && state != NULL && strcmp(state->dtype, "F64") == 0 &&
                              state->element_count == count && resume->texts.scheduler != NULL &&
                              strcmp(resume->texts.scheduler, stages.data) == 0;
    fuse_text_free(&stages);
    if (has_failed)
        return fuse_fail_memory(error, "comparing schedules", 0);
    if (!resume->takes_schedules)
        fuse_config_warn(experiment->config, experiment->diagnostics, "scheduler", "plugin",
                         "the checkpoint knows nothing of these schedules: from step %" PRId64
                         " on they hold as if no evaluation had been",
                         resume->record.step);
    return FUSERUN_OK;
}

/* The run ended later than this config would have it end. */
static void tell_past_end(const struct fuse_experiment *experiment, const struct fuse_resume *resume)
{
    if (resume->record.step > experiment->total_updates)
        fuse_config_warn(experiment->config, experiment->diagnostics, "run",
                         fuse_option_is_set(fuse_config_options(experiment->config, "run"), "steps") ? "steps"
                                                                                                     : "epochs",
                         "the checkpoint is of step %" PRId64 ", past the last one here, %" PRId64
                         ": nothing is left to do, and its weights are the result",
                         resume->record.step, experiment->total_updates);
}

/* A place in the data is counted in batches of one size over one number of samples, and an update begins at every
 * `accumulate`th; where the config says otherwise by now, it means nothing. Nor can a run go there that was planned to
 * come to no epoch's end, and would. */
static void compare_data(const struct fuse_experiment *experiment, struct fuse_resume *resume)
{
    const struct fuse_checkpoint_record *record = &resume->record;
    const struct fuse_source *train = &experiment->train;
    const int64_t batches = fuse_source_batch_count(train), updates = experiment->updates_per_epoch;
    const int64_t updates_left = experiment->total_updates - record->step;
    const bool is_counted_otherwise = (record->batch_size != 0 && record->batch_size != train->batch_size) ||
                                      (record->samples != 0 && record->samples != train->info.sample_count);
    const bool is_inside_update = record->batches != batches && record->batches % experiment->accumulate != 0;
    const bool lacks_end = experiment->total_updates < updates && !experiment->dict->clip.skips_nonfinite;
    resume->begins_epoch = is_counted_otherwise || record->batches > batches || is_inside_update ||
                           (lacks_end && updates_left >= updates - record->batches / experiment->accumulate);
    if (resume->begins_epoch && record->batches > 0)
        fuse_config_warn(experiment->config, experiment->diagnostics, "data", "plugin",
                         "the checkpoint's place, %" PRId64 " batches of %" PRId64 " into an epoch of %" PRId64
                         " samples, is none here: a new epoch begins",
                         record->batches, record->batch_size, record->samples);
}

int fuse_resume_compare(const struct fuse_experiment *experiment, struct fuse_resume *resume, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const struct fuse_graph *graph = experiment->graph;
    const size_t errors = fuse_diagnostics_error_count(experiment->diagnostics);
    struct comparison self = {
        .experiment = experiment,
        .resume = resume,
        .missing.title = "missing",
        .unexpected.title = "unexpected",
        .shapes.title = "of another shape",
        .optimizers.title = "trained by another optimizer",
        .states.title = "with other optimizer states",
        .untrained.title = "states of",
    };
    self.by_name = calloc(graph->parameter_count + 1, sizeof *self.by_name);
    self.state_counts = calloc(graph->parameter_count + 1, sizeof *self.state_counts);
    resume->takes_state = calloc(experiment->dict->entry_count + 1, sizeof *resume->takes_state);
    if (self.by_name == NULL || self.state_counts == NULL || resume->takes_state == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "comparing a checkpoint", graph->parameter_count * sizeof *self.by_name));
    for (uint32_t p = 0; p < graph->parameter_count; p++)
        self.by_name[p] = (struct named){graph->parameters[p].name, p};
    qsort(self.by_name, graph->parameter_count, sizeof *self.by_name, compare_named);
    compare_file(&self);
    for (uint32_t p = 0; p < graph->parameter_count; p++)
        compare_weight(&self, &graph->parameters[p]);
    for (uint32_t e = 0; e < experiment->dict->entry_count; e++)
        compare_entry(&self, e);
    resume->is_whole = self.matching == graph->parameter_count;
    report(&self, fuse_option_bool(fuse_config_options(experiment->config, "run"), "resume_strict") != 0);
    if (self.name.failed)
        FUSE_TRY_OUT(fuse_fail_memory(error, "comparing a checkpoint", 0));
    FUSE_TRY_OUT(compare_schedules(experiment, resume, error));
    tell_past_end(experiment, resume);
    compare_data(experiment, resume);
    FUSE_TRY_OUT(fuse_resume_tell_differences(experiment, resume, error));
    if (fuse_diagnostics_error_count(experiment->diagnostics) > errors)
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the checkpoint does not fit the config");
out:
    fuse_text_free(&self.name);
    free(self.by_name);
    free(self.state_counts);
    return status;
}
