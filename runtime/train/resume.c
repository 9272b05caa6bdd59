#include "train/resume.h"

#include "base/text.h"
#include "config/options.h"
#include "train/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CHUNK_BYTES = 256 * 1024 };

/* ---- finding --------------------------------------------------------------------------------------------------- */

/* Takes over the path. */
static int open_file(char *path, struct fuse_resume **resume, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    bool is_checked = false;
    *resume = NULL;
    struct fuse_resume *made = calloc(1, sizeof *made);
    if (made == NULL || path == NULL) {
        free(path);
        FUSE_TRY_OUT(fuse_fail_memory(error, "a checkpoint", sizeof *made));
    }
    made->path = path;
    FUSE_TRY_OUT(fuse_checkpoint_file_open(path, &made->file, &made->record, &made->texts, &is_checked, error));
    *resume = made;
    made = NULL;
out:
    fuse_resume_free(&made);
    return status;
}

void fuse_resume_free(struct fuse_resume **resume)
{
    struct fuse_resume *old = *resume;
    if (old == NULL)
        return;
    fuse_safetensors_close(&old->file);
    free(old->takes_state);
    free(old->path);
    free(old);
    *resume = NULL;
}

/* The newest whole checkpoint of a folder of them; each that is damaged is told. None at all: *resume stays NULL. One
 * that is only out of reach (of the permissions, the disk, this version) is no reason to go on from an older one: what
 * comes after that one would be removed. */
static int open_newest(const struct fuse_experiment *experiment, const char *folder, struct fuse_resume **resume,
                       struct fuse_error *error)
{
    int status = FUSERUN_OK;
    int64_t *steps = NULL;
    size_t count = 0;
    FUSE_TRY(fuse_checkpoint_steps(folder, &steps, &count, error));
    for (size_t i = 0; i < count && *resume == NULL; i++) {
        struct fuse_error cause = FUSE_ERROR_INIT;
        const int opened = open_file(fuse_checkpoint_path(folder, steps[i]), resume, &cause);
        if (opened == FUSERUN_OK && (*resume)->record.step != steps[i])
            fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume",
                             "'%s' is of step %" PRId64 ", which is not what its name says; the run goes on from there",
                             (*resume)->path, (*resume)->record.step);
        if (opened == FUSERUN_OK)
            break;
        if (opened != FUSERUN_ERROR_FORMAT) {
            *error = cause;
            status = opened;
            break;
        }
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume", "%s; %s", cause.text,
                         i + 1 < count ? "trying the checkpoint before it" : "there is none before it");
    }
    free(steps);
    return status;
}

/* run.resume = PATH: a checkpoint; a folder of checkpoints, or the link `latest` in one, or a run's folder, for the
 * newest whole one in it. */
static int open_path(const struct fuse_experiment *experiment, const char *path, struct fuse_resume **resume,
                     struct fuse_error *error)
{
    struct stat found;
    const char *slash = strrchr(path, '/');
    const bool is_folder = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
    const bool is_latest = slash != NULL && strcmp(slash + 1, FUSE_CHECKPOINT_LATEST) == 0;
    if (!is_folder && !is_latest)
        return open_file(fuse_strdup(path), resume, error);
    char *folder =
        is_folder ? fuse_format("%s/" FUSE_CHECKPOINT_FOLDER, path) : fuse_strndup(path, (size_t)(slash - path));
    if (folder == NULL)
        return fuse_fail_memory(error, "a path", strlen(path));
    int status = open_newest(experiment, folder, resume, error);
    if (status == FUSERUN_OK && *resume == NULL && is_folder)
        status = open_newest(experiment, path, resume, error);
    free(folder);
    if (status == FUSERUN_OK && *resume == NULL)
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "there is no whole checkpoint in '%s'", path);
    return status;
}

static int find(const struct fuse_experiment *experiment, const char *run_folder, struct fuse_resume **resume,
                struct fuse_error *error)
{
    const char *from = fuse_option_text(fuse_config_options(experiment->config, "run"), "resume");
    if (from == NULL || strcmp(from, "never") == 0)
        return FUSERUN_OK;
    struct fuse_error cause = FUSE_ERROR_INIT;
    int status;
    const bool is_automatic = strcmp(from, "auto") == 0;
    if (is_automatic) {
        char *folder = fuse_format("%s/" FUSE_CHECKPOINT_FOLDER, run_folder);
        status = folder == NULL ? fuse_fail_memory(&cause, "a path", strlen(run_folder))
                                : open_newest(experiment, folder, resume, &cause);
        free(folder);
    } else
        status = open_path(experiment, from, resume, &cause);
    if (status == FUSERUN_ERROR_MEMORY || status == FUSERUN_OK) {
        *error = cause;
        return status;
    }
    fuse_config_report(
        experiment->config, experiment->diagnostics, "run", "resume", "%s%s", cause.text,
        is_automatic ? "; run.resume=FILE goes on from another one, run.resume=never starts afresh without any" : "");
    return fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "there is nothing to resume from");
}

/* Whether the checkpoint lies in the folder that the run's own go into, whatever the two paths look like. */
static int find_owner(const char *run_folder, struct fuse_resume *resume, struct fuse_error *error)
{
    struct stat mine, its;
    const char *slash = strrchr(resume->path, '/');
    char *own = fuse_format("%s/" FUSE_CHECKPOINT_FOLDER, run_folder);
    char *parent = slash != NULL ? fuse_strndup(resume->path, (size_t)(slash - resume->path) + 1) : fuse_strdup(".");
    const bool has_paths = own != NULL && parent != NULL;
    resume->is_own = has_paths && stat(own, &mine) == 0 && stat(parent, &its) == 0 && mine.st_dev == its.st_dev &&
                     mine.st_ino == its.st_ino;
    free(own);
    free(parent);
    return has_paths ? FUSERUN_OK : fuse_fail_memory(error, "a path", strlen(run_folder));
}

/* What the run's folder holds beyond the checkpoint would be gone. Who names a checkpoint of that very run goes back to
 * it; with that of another run (or the one this run began from) it is more likely that nobody thought of it. */
static int tell_newer(const struct fuse_experiment *experiment, const char *run_folder,
                      const struct fuse_resume *resume, struct fuse_error *error)
{
    int64_t *steps = NULL;
    size_t count = 0;
    const struct fuse_options *run = fuse_config_options(experiment->config, "run");
    if (strcmp(fuse_option_text(run, "resume"), "auto") == 0 || (!resume->is_own && fuse_option_bool(run, "overwrite")))
        return FUSERUN_OK;
    char *folder = fuse_format("%s/" FUSE_CHECKPOINT_FOLDER, run_folder);
    if (folder == NULL)
        return fuse_fail_memory(error, "a path", strlen(run_folder));
    int status = fuse_checkpoint_steps(folder, &steps, &count, error);
    const int64_t newest = status == FUSERUN_OK && count > 0 ? steps[0] : 0;
    free(steps);
    free(folder);
    if (status != FUSERUN_OK || newest <= resume->record.step)
        return status;
    if (resume->is_own) {
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume",
                         "goes back to step %" PRId64 ": what the run made after it, up to step %" PRId64
                         ", will be replaced",
                         resume->record.step, newest);
        return FUSERUN_OK;
    }
    fuse_config_report(experiment->config, experiment->diagnostics, "run", "resume",
                       "that checkpoint is of step %" PRId64 ", but '%s' holds a run that has come to step %" PRId64
                       "; run.resume=auto goes on with that, run.overwrite=yes replaces it",
                       resume->record.step, run_folder, newest);
    return fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the output folder is taken");
}

int fuse_resume_find(struct fuse_experiment *experiment, const char *folder, struct fuse_error *error)
{
    struct fuse_resume *resume = NULL;
    FUSE_TRY(find(experiment, folder, &resume, error));
    if (resume == NULL)
        return FUSERUN_OK;
    experiment->resume = resume;
    FUSE_TRY(find_owner(folder, resume, error));
    FUSE_TRY(tell_newer(experiment, folder, resume, error));
    return fuse_resume_compare(experiment, resume, error);
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

struct loader {
    const struct fuse_dict *dict;
    const struct fuse_safetensors *file;
    char *chunk;
    struct fuse_text name;
};

static int load_one(const struct loader *loader, const struct fuse_safetensors_entry *entry, float *device,
                    struct fuse_error *error)
{
    for (uint64_t at = 0; at < entry->byte_count; at += CHUNK_BYTES) {
        const uint64_t left = entry->byte_count - at, count = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        FUSE_TRY(fuse_safetensors_read(loader->file, entry, at, loader->chunk, count, error));
        FUSE_TRY(loader->dict->backend->upload(loader->dict->device, (char *)device + at, loader->chunk, count, error));
    }
    return FUSERUN_OK;
}

/* One of the rule's names, which the comparison found there. */
static int find_state(struct loader *loader, const char *parameter, const char *list, uint32_t index,
                      const struct fuse_safetensors_entry **state, struct fuse_error *error)
{
    *state = fuse_resume_state(loader->file, parameter, list, index, &loader->name);
    return *state == NULL ? fuse_fail_memory(error, "a tensor's name", strlen(parameter)) : FUSERUN_OK;
}

static int load_entry(struct loader *loader, const char *parameter, struct fuse_entry *entry, struct fuse_error *error)
{
    const struct fuse_rule *rule = loader->dict->groups[entry->group].rule;
    const struct fuse_safetensors_entry *state = NULL;
    for (uint32_t s = 0; s < rule->state_count; s++) {
        FUSE_TRY(find_state(loader, parameter, rule->states, s, &state, error));
        FUSE_TRY(load_one(loader, state, entry->states[s], error));
    }
    for (uint32_t n = 0; n < rule->number_count; n++) {
        FUSE_TRY(find_state(loader, parameter, rule->numbers, n, &state, error));
        FUSE_TRY(fuse_safetensors_read(loader->file, state, 0, &entry->numbers[n], sizeof(double), error));
    }
    FUSE_TRY(find_state(loader, parameter, FUSE_CHECKPOINT_STEP, 0, &state, error));
    return fuse_safetensors_read(loader->file, state, 0, &entry->step, sizeof entry->step, error);
}

static int load_schedules(const struct fuse_experiment *experiment, struct fuse_error *error)
{
    const struct fuse_resume *resume = experiment->resume;
    const size_t count = fuse_clock_state_count(experiment->clock);
    if (!resume->takes_schedules || count == 0)
        return FUSERUN_OK;
    double *values = calloc(count, sizeof *values);
    if (values == NULL)
        return fuse_fail_memory(error, "what schedules keep", count * sizeof *values);
    const struct fuse_safetensors_entry *state = fuse_safetensors_find(resume->file, FUSE_CHECKPOINT_SCHEDULER_STATE);
    int status = fuse_safetensors_read(resume->file, state, 0, values, count * sizeof *values, error);
    if (status == FUSERUN_OK)
        status = fuse_clock_set_state(experiment->clock, values, error);
    free(values);
    return status;
}

int fuse_resume_load(struct fuse_experiment *experiment, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const struct fuse_resume *resume = experiment->resume;
    struct fuse_dict *dict = experiment->dict;
    struct loader loader = {dict, resume->file, malloc(CHUNK_BYTES), {0}};
    if (loader.chunk == NULL)
        return fuse_fail_memory(error, "loading a checkpoint", CHUNK_BYTES);
    for (uint32_t p = 0; p < experiment->graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &experiment->graph->parameters[p];
        const struct fuse_safetensors_entry *weight = fuse_resume_weight(resume->file, parameter);
        if (weight != NULL)
            FUSE_TRY_OUT(load_one(&loader, weight, dict->parameters[p], error));
        const uint32_t entry = dict->entry_of_parameter[p];
        if (entry != UINT32_MAX && resume->takes_state[entry])
            FUSE_TRY_OUT(load_entry(&loader, parameter->name, &dict->entries[entry], error));
    }
    FUSE_TRY_OUT(load_schedules(experiment, error));
    experiment->clock->completed_updates = resume->record.step;
out:
    fuse_text_free(&loader.name);
    free(loader.chunk);
    return status;
}
