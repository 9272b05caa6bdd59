#include "train/outputs.h"

#include "config/options.h"
#include "files/files.h"
#include "files/output.h"
#include "files/safetensors.h"
#include "train/checkpoint.h"
#include "train/resume.h"
#include "train/weights.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define METRICS "metrics.jsonl"

static const char *const run_files[] = {"config.ini",  METRICS,         "model.safetensors", "memory.html",
                                        "memory.json", "memory.pickle", "profile.json"};

char *fuse_outputs_path(const struct fuse_outputs *outputs, const char *name)
{
    return fuse_format("%s/%s", outputs->folder, name);
}

void fuse_outputs_free(struct fuse_outputs *outputs)
{
    fuse_lock_release(&outputs->lock);
    free(outputs->folder);
    *outputs = (struct fuse_outputs){0};
}

/* ---- may a run start here? ------------------------------------------------------------------------------------- */

static char *find_folder(const struct fuse_experiment *experiment)
{
    const struct fuse_options *run = fuse_config_options(experiment->config, "run");
    const char *output = fuse_option_text(run, "output");
    char *relative = output != NULL ? fuse_strdup(output) : fuse_format("runs/%s", fuse_option_text(run, "name"));
    if (relative == NULL || relative[0] == '/')
        return relative;
    char *here = getcwd(NULL, 0);
    char *folder = here != NULL ? fuse_format("%s/%s", here, relative) : NULL;
    free(here);
    free(relative);
    return folder;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat first;
    struct stat second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static void say(const struct fuse_experiment *experiment, bool only_warn, const char *section, const char *key,
                const char *text)
{
    if (only_warn)
        fuse_config_warn(experiment->config, experiment->diagnostics, section, key, "%s", text);
    else
        fuse_config_report(experiment->config, experiment->diagnostics, section, key, "%s", text);
}

/* The files in the folder that stand in the way. */
static int judge(const struct fuse_experiment *experiment, const char *config_path, bool only_warn,
                 const struct fuse_outputs *outputs, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    char *text = NULL;
    char *metrics = fuse_outputs_path(outputs, METRICS);
    char *config = fuse_outputs_path(outputs, "config.ini");
    char *model = fuse_outputs_path(outputs, "model.safetensors");
    if (metrics == NULL || config == NULL || model == NULL) {
        status = fuse_fail_memory(error, "the output folder", strlen(outputs->folder));
        goto out;
    }
    const struct fuse_options *run = fuse_config_options(experiment->config, "run");
    const char *weights = fuse_option_text(fuse_config_options(experiment->config, "model"), "weights");
    struct stat found;
    const bool holds_run = lstat(metrics, &found) == 0;
    if (holds_run && experiment->resume == NULL && !fuse_option_bool(run, "overwrite")) {
        text = fuse_format("'%s' holds a run already; run.overwrite=yes replaces it", outputs->folder);
        if (text != NULL)
            say(experiment, only_warn, "run", "output", text);
    } else if (!holds_run && is_same_file(config, config_path)) {
        /* Only a config that a run wrote may be written over by the run that repeats it. */
        text =
            fuse_format("'%s' is the folder of this config, whose config.ini the run would replace", outputs->folder);
        if (text != NULL)
            say(experiment, only_warn, "run", "output", text);
    } else if (weights != NULL && is_same_file(model, weights)) {
        text =
            fuse_format("the weights lie in the output folder '%s', where the run would replace them", outputs->folder);
        if (text != NULL)
            say(experiment, only_warn, "model", "weights", text);
    } else
        goto out;
    if (text == NULL)
        status = fuse_fail_memory(error, "the output folder", strlen(outputs->folder));
    else if (!only_warn)
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the output folder is taken");
out:
    free(text);
    free(metrics);
    free(config);
    free(model);
    return status;
}

/* Two runs in one folder would remove and overwrite each other's files. */
static int take_lock(const struct fuse_experiment *experiment, struct fuse_outputs *outputs, struct fuse_error *error)
{
    FUSE_TRY(fuse_lock_folder(outputs->folder, &outputs->lock, error));
    if (outputs->lock.state == FUSE_LOCK_IMPOSSIBLE)
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "output",
                         "'%s' cannot be locked here: nothing would stop a second run in it", outputs->folder);
    if (outputs->lock.state != FUSE_LOCK_BUSY)
        return FUSERUN_OK;
    fuse_config_report(experiment->config, experiment->diagnostics, "run", "output",
                       "another run is at work in '%s'; wait for its end, or give this one a folder of its own",
                       outputs->folder);
    return fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the output folder is in use");
}

int fuse_outputs_check(struct fuse_experiment *experiment, const char *config_path, bool only_warn,
                       struct fuse_outputs *outputs, struct fuse_error *error)
{
    outputs->folder = find_folder(experiment);
    if (outputs->folder == NULL)
        return fuse_fail_memory(error, "the output folder", 0);
    if (!only_warn)
        FUSE_TRY(take_lock(experiment, outputs, error));
    FUSE_TRY(fuse_resume_find(experiment, outputs->folder, error));
    return judge(experiment, config_path, only_warn, outputs, error);
}

/* ---- starting -------------------------------------------------------------------------------------------------- */

/* What a killed run left of files that it had not finished. */
static int remove_leftovers(const struct fuse_outputs *outputs, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    DIR *entries = opendir(outputs->folder);
    if (entries == NULL)
        return fuse_fail_errno(error, "read", outputs->folder, errno);
    for (struct dirent *entry = readdir(entries); entry != NULL && status == FUSERUN_OK; entry = readdir(entries)) {
        bool is_leftover = false;
        for (size_t i = 0; i < sizeof run_files / sizeof run_files[0]; i++)
            is_leftover = is_leftover || fuse_output_is_leftover(entry->d_name, run_files[i]);
        if (!is_leftover)
            continue;
        char *path = fuse_outputs_path(outputs, entry->d_name);
        status =
            path == NULL ? fuse_fail_memory(error, "a path", strlen(outputs->folder)) : fuse_remove_file(path, error);
        free(path);
    }
    (void)closedir(entries);
    return status;
}

/* All updates were done when the checkpoint was made. */
static bool has_nothing_left(const struct fuse_experiment *experiment)
{
    const struct fuse_resume *resume = experiment->resume;
    return resume != NULL && resume->record.step >= experiment->total_updates && !resume->record.is_evaluation_due;
}

/* Looks before the first file is removed. */
static int refuse_what_is_in_the_way(const struct fuse_outputs *outputs, bool goes_on_here, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    for (size_t i = 0; i < sizeof run_files / sizeof run_files[0] && status == FUSERUN_OK; i++) {
        char *path = fuse_outputs_path(outputs, run_files[i]);
        status =
            path == NULL ? fuse_fail_memory(error, "a path", strlen(outputs->folder)) : fuse_refuse_folder(path, error);
        const bool is_written_on = goes_on_here && strcmp(run_files[i], METRICS) == 0;
        if (status == FUSERUN_OK && is_written_on && access(path, W_OK) != 0 && errno != ENOENT)
            status = fuse_fail_errno(error, "go on in", path, errno);
        free(path);
    }
    return status;
}

/* Of the run before: everything, or, where this one goes on from a checkpoint, what that run made after it. */
static int remove_earlier_run(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs,
                              struct fuse_error *error)
{
    const struct fuse_resume *resume = experiment->resume;
    const struct fuse_options *run = fuse_config_options(experiment->config, "run");
    const bool goes_on_here = resume != NULL && (resume->is_own || !fuse_option_bool(run, "overwrite"));
    const int64_t last_step = goes_on_here ? resume->record.step : -1;
    FUSE_TRY(fuse_checkpoint_refuse_folders(outputs->folder, last_step, error));
    FUSE_TRY(refuse_what_is_in_the_way(outputs, goes_on_here, error));
    FUSE_TRY(fuse_checkpoint_clean(outputs->folder, last_step, error));
    for (size_t i = 0; i < sizeof run_files / sizeof run_files[0]; i++) {
        if (goes_on_here && (strcmp(run_files[i], METRICS) == 0 || strcmp(run_files[i], "config.ini") == 0))
            continue; /* cut back later, written anew in one step */
        if (goes_on_here && has_nothing_left(experiment) && strncmp(run_files[i], "memory.", strlen("memory.")) == 0)
            continue; /* nothing will run that could be drawn */
        char *path = fuse_outputs_path(outputs, run_files[i]);
        const int status =
            path == NULL ? fuse_fail_memory(error, "a path", strlen(outputs->folder)) : fuse_remove_file(path, error);
        free(path);
        FUSE_TRY(status);
    }
    return remove_leftovers(outputs, error);
}

bool fuse_outputs_are_done(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs)
{
    if (!has_nothing_left(experiment))
        return false;
    /* A run may have been killed just before, and a file may have come to harm since: then it is written again. So is
     * the last checkpoint where `latest` leads to another. */
    char *model = fuse_outputs_path(outputs, "model.safetensors");
    char *latest = fuse_outputs_path(outputs, FUSE_CHECKPOINT_FOLDER "/" FUSE_CHECKPOINT_LATEST);
    struct fuse_safetensors *file = NULL;
    struct fuse_error ignored = FUSE_ERROR_INIT;
    const bool is_whole =
        model != NULL && latest != NULL && fuse_safetensors_open(model, &file, &ignored) == FUSERUN_OK &&
        (!experiment->resume->is_own || access(latest, F_OK) != 0 || is_same_file(latest, experiment->resume->path));
    fuse_safetensors_close(&file);
    free(latest);
    free(model);
    return is_whole;
}

static int write_text(const struct fuse_outputs *outputs, const char *name, struct fuse_text *text,
                      struct fuse_error *error)
{
    char *path = fuse_outputs_path(outputs, name);
    const int status = path == NULL || text->failed ? fuse_fail_memory(error, name, text->length)
                                                    : fuse_output_text(path, text->data, text->length, error);
    free(path);
    return status;
}

int fuse_outputs_start(const struct fuse_experiment *experiment, const char *config_path, struct fuse_outputs *outputs,
                       struct fuse_error *error)
{
    FUSE_TRY(fuse_make_folders(outputs->folder, error));
    if (outputs->lock.state == FUSE_LOCK_NO_FOLDER) {
        FUSE_TRY(take_lock(experiment, outputs, error));
        FUSE_TRY(judge(experiment, config_path, false, outputs, error)); /* another run may have come and gone */
    }
    FUSE_TRY(remove_earlier_run(experiment, outputs, error));
    struct fuse_text text = {0};
    fuse_config_write(experiment->config, &text);
    const int status = write_text(outputs, "config.ini", &text, error);
    fuse_text_free(&text);
    return status;
}

/* ---- finishing ------------------------------------------------------------------------------------------------- */

void fuse_peak_add_json(const struct fuse_peak *peak, struct fuse_text *text)
{
    fuse_text_addf(text, "\"peak_bytes\":%" PRIu64 ",\"peak_phase\":\"%s\",\"memory\":{", peak->bytes,
                   fuse_phase_name(peak->phase));
    for (int i = 0; i < FUSE_CATEGORY_COUNT; i++)
        fuse_text_addf(text, "%s\"%s\":%" PRIu64, i > 0 ? "," : "", fuse_category_name((enum fuse_category)i),
                       peak->category_bytes[i]);
    fuse_text_add(text, "}");
}

int fuse_outputs_finish(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs,
                        struct fuse_error *error)
{
    char *path = fuse_outputs_path(outputs, "model.safetensors");
    if (path == NULL)
        return fuse_fail_memory(error, "a path", strlen(outputs->folder));
    const int status = fuse_weights_save(path, experiment->graph, experiment->dict, error);
    free(path);
    return status;
}
