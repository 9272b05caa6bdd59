#include "train/checkpoint.h"

#include "base/now.h"
#include "base/text.h"
#include "config/options.h"
#include "files/files.h"
#include "files/output.h"
#include "train/image.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fuse_checkpoints {
    char *folder;
    size_t keep;
    struct fuse_image *image;
    bool writes_in_background;

    /* The file being written: by this thread, or by one of its own. */
    int64_t step;
    const struct fuse_metrics *metrics; /* NULL: closed, and on disk */
    pthread_t thread;
    bool has_thread;
    int status;
    struct fuse_error error;
};

/* ---- names ----------------------------------------------------------------------------------------------------- */

char *fuse_checkpoint_path(const char *folder, int64_t step)
{
    return fuse_format("%s/step-%08" PRId64 ".safetensors", folder, step);
}

/* "step-00000100.safetensors"; -1: no such name. */
static int64_t step_of(const char *name)
{
    enum { MOST_DIGITS = 18 }; /* fits into 63 bits */
    if (strncmp(name, "step-", 5) != 0)
        return -1;
    const size_t digits = strspn(name + 5, "0123456789");
    if (digits < 8 || digits > MOST_DIGITS || (digits > 8 && name[5] == '0') ||
        strcmp(name + 5 + digits, ".safetensors") != 0)
        return -1;
    return strtoll(name + 5, NULL, 10);
}

static bool is_leftover(const char *name)
{
    char of[64];
    if (fuse_output_is_leftover(name, FUSE_CHECKPOINT_LATEST))
        return true;
    const size_t length = strcspn(name + (name[0] == '.'), "."); /* ".step-N.safetensors.PID-N.tmp" */
    if (length + sizeof ".safetensors" > sizeof of)
        return false;
    (void)snprintf(of, sizeof of, "%.*s.safetensors", (int)length, name + 1);
    return step_of(of) >= 0 && fuse_output_is_leftover(name, of);
}

static int compare_steps(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

int fuse_checkpoint_steps(const char *folder, int64_t **steps, size_t *count, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    size_t capacity = 0;
    *steps = NULL;
    *count = 0;
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return errno == ENOENT || errno == ENOTDIR ? FUSERUN_OK : fuse_fail_errno(error, "read", folder, errno);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        const int64_t step = step_of(entry->d_name);
        if (step < 0)
            continue;
        if (*count == capacity) {
            capacity = 2 * capacity + 16;
            int64_t *grown = realloc(*steps, capacity * sizeof *grown);
            if (grown == NULL)
                FUSE_TRY_OUT(fuse_fail_memory(error, "a list of checkpoints", capacity * sizeof *grown));
            *steps = grown;
        }
        (*steps)[(*count)++] = step;
    }
    if (*count > 1)
        qsort(*steps, *count, sizeof **steps, compare_steps);
out:
    (void)closedir(entries);
    if (status != FUSERUN_OK) {
        free(*steps);
        *steps = NULL;
        *count = 0;
    }
    return status;
}

/* ---- removing -------------------------------------------------------------------------------------------------- */

static int remove_file(const char *folder, const char *name, struct fuse_error *error)
{
    char *path = fuse_format("%s/%s", folder, name);
    const int status = path == NULL ? fuse_fail_memory(error, "a path", strlen(folder)) : fuse_remove_file(path, error);
    free(path);
    return status;
}

static int refuse_folder(const char *folder, const char *name, struct fuse_error *error)
{
    char *path = fuse_format("%s/%s", folder, name);
    const int status =
        path == NULL ? fuse_fail_memory(error, "a path", strlen(folder)) : fuse_refuse_folder(path, error);
    free(path);
    return status;
}

int fuse_checkpoint_refuse_folders(const char *run_folder, int64_t last, struct fuse_error *error)
{
    char *folder = fuse_format("%s/" FUSE_CHECKPOINT_FOLDER, run_folder);
    if (folder == NULL)
        return fuse_fail_memory(error, "a path", strlen(run_folder));
    int status = refuse_folder(folder, FUSE_CHECKPOINT_LATEST, error);
    DIR *entries = opendir(folder);
    for (struct dirent *entry = entries != NULL ? readdir(entries) : NULL; entry != NULL && status == FUSERUN_OK;
         entry = readdir(entries))
        if (step_of(entry->d_name) > last)
            status = refuse_folder(folder, entry->d_name, error);
    if (entries != NULL)
        (void)closedir(entries);
    free(folder);
    return status;
}

int fuse_checkpoint_clean(const char *run_folder, int64_t last, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    DIR *entries = NULL;
    bool has_some = false;
    char *folder = fuse_format("%s/" FUSE_CHECKPOINT_FOLDER, run_folder);
    if (folder == NULL)
        return fuse_fail_memory(error, "a path", strlen(run_folder));
    entries = opendir(folder);
    if (entries == NULL) {
        status = errno == ENOENT ? FUSERUN_OK : fuse_fail_errno(error, "read", folder, errno);
        goto out;
    }
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        const int64_t step = step_of(entry->d_name);
        if (step > last || is_leftover(entry->d_name))
            FUSE_TRY_OUT(remove_file(folder, entry->d_name, error));
        else if (step >= 0)
            has_some = true;
    }
    if (has_some)
        goto out;
    FUSE_TRY_OUT(remove_file(folder, FUSE_CHECKPOINT_LATEST, error));
    (void)rmdir(folder); /* stays if it holds anything else */
out:
    if (entries != NULL)
        (void)closedir(entries);
    free(folder);
    return status;
}

/* All but the `keep` newest. */
static int remove_older(const struct fuse_checkpoints *self, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    int64_t *steps = NULL;
    size_t count = 0;
    FUSE_TRY(fuse_checkpoint_steps(self->folder, &steps, &count, error));
    for (size_t i = self->keep; i < count; i++) {
        char *path = fuse_checkpoint_path(self->folder, steps[i]);
        status = path == NULL ? fuse_fail_memory(error, "a path", strlen(self->folder)) : fuse_remove_file(path, error);
        free(path);
        if (status != FUSERUN_OK)
            goto out;
    }
out:
    free(steps);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static int write_file(const struct fuse_checkpoints *self, struct fuse_error *error)
{
    int status;
    char *path = fuse_checkpoint_path(self->folder, self->step);
    char *latest = fuse_format("%s/" FUSE_CHECKPOINT_LATEST, self->folder);
    if (path == NULL || latest == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a path", strlen(self->folder)));
    const int cause = self->metrics != NULL ? fuse_sync_descriptor(self->metrics->descriptor) : 0;
    if (cause != 0)
        FUSE_TRY_OUT(fuse_fail_errno(error, "write", self->metrics->path, cause));
    FUSE_TRY_OUT(fuse_make_folders(self->folder, error));
    FUSE_TRY_OUT(fuse_image_write(self->image, path, error));
    FUSE_TRY_OUT(fuse_output_link(latest, strrchr(path, '/') + 1, error));
    FUSE_TRY_OUT(remove_older(self, error));
out:
    free(latest);
    free(path);
    return status;
}

static void *write_in_background(void *user)
{
    struct fuse_checkpoints *self = user;
    self->status = write_file(self, &self->error);
    return NULL;
}

/* Signals are for the thread that trains. */
static bool start_thread(struct fuse_checkpoints *self)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool has_started = pthread_create(&self->thread, NULL, write_in_background, self) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return has_started;
}

int fuse_checkpoints_wait(struct fuse_checkpoints *self, struct fuse_error *error)
{
    if (self == NULL || !self->has_thread)
        return FUSERUN_OK;
    (void)pthread_join(self->thread, NULL);
    self->has_thread = false;
    if (self->status != FUSERUN_OK)
        *error = self->error;
    return self->status;
}

int fuse_checkpoints_save(struct fuse_checkpoints *self, const struct fuse_checkpoint_record *record,
                          struct fuse_metrics *metrics, struct fuse_error *error)
{
    if (self == NULL)
        return FUSERUN_OK;
    FUSE_TRY(fuse_checkpoints_wait(self, error));
    if (metrics != NULL)
        FUSE_TRY(fuse_metrics_flush(metrics, fuse_now_ns(), error));
    self->step = record->step;
    self->metrics = metrics;
    FUSE_TRY(fuse_image_take(self->image, record, error));
    self->has_thread = self->writes_in_background && start_thread(self);
    return self->has_thread ? FUSERUN_OK : write_file(self, error);
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

int fuse_checkpoints_new(const struct fuse_experiment *experiment, const char *folder,
                         struct fuse_checkpoints **checkpoints, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    *checkpoints = NULL;
    if (experiment->checkpoint_every == 0)
        return FUSERUN_OK;
    struct fuse_checkpoints *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "the checkpoints", sizeof *made);
    const struct fuse_options *options = fuse_config_options(experiment->config, "checkpoint");
    made->error = (struct fuse_error)FUSE_ERROR_INIT;
    made->keep = (size_t)fuse_option_integer(options, "keep");
    made->writes_in_background = experiment->checkpoints_in_background;
    made->folder = fuse_format("%s/" FUSE_CHECKPOINT_FOLDER, folder);
    if (made->folder == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a path", strlen(folder)));
    FUSE_TRY_OUT(fuse_image_new(experiment, made->writes_in_background, &made->image, error));
    *checkpoints = made;
    made = NULL;
out:
    fuse_checkpoints_free(&made);
    return status;
}

void fuse_checkpoints_free(struct fuse_checkpoints **checkpoints)
{
    struct fuse_checkpoints *old = *checkpoints;
    if (old == NULL)
        return;
    struct fuse_error ignored = FUSE_ERROR_INIT;
    (void)fuse_checkpoints_wait(old, &ignored);
    fuse_image_free(&old->image);
    free(old->folder);
    free(old);
    *checkpoints = NULL;
}
