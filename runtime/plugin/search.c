#include "plugin/search.h"

#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lists of texts ------------------------------------------------------------------------------------------ */

int fuse_text_list_add(struct fuse_text_list *list, char *text, struct fuse_error *error)
{
    if (text == NULL)
        return fuse_fail_memory(error, "a text", 1);
    char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (items == NULL) {
        free(text);
        return fuse_fail_memory(error, "a list of texts", (list->count + 1) * sizeof *items);
    }
    list->items = items;
    list->items[list->count++] = text;
    return FUSERUN_OK;
}

void fuse_text_list_free(struct fuse_text_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct fuse_text_list){0};
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void fuse_text_list_sort(struct fuse_text_list *list)
{
    if (list->count > 1)
        qsort(list->items, list->count, sizeof *list->items, compare_texts);
}

/* ---- the path ------------------------------------------------------------------------------------------------ */

/* Adds one existing folder unless it is there already. path is taken over. */
static int add_folder(struct fuse_search *search, char *path, struct fuse_folder like, struct fuse_error *error)
{
    if (path == NULL)
        return fuse_fail_memory(error, "a plugin folder", 1);
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        free(path);
        return FUSERUN_OK;
    }
    for (size_t i = 0; i < search->count; i++) {
        struct fuse_folder *known = &search->folders[i];
        if (known->device == info.st_dev && known->inode == info.st_ino) {
            known->is_standard |= like.is_standard;
            known->is_ours |= like.is_ours;
            free(path);
            return FUSERUN_OK;
        }
    }
    struct fuse_folder *folders = realloc(search->folders, (search->count + 1) * sizeof *folders);
    if (folders == NULL) {
        free(path);
        return fuse_fail_memory(error, "the plugin path", (search->count + 1) * sizeof *folders);
    }
    like.path = path;
    like.device = info.st_dev;
    like.inode = info.st_ino;
    search->folders = folders;
    search->folders[search->count++] = like;
    return FUSERUN_OK;
}

/* A folder of the path: itself, then its subfolder for each kind. */
static int add_place(struct fuse_search *search, const char *path, bool is_standard, bool is_ours,
                     struct fuse_error *error)
{
    static const char *const subfolders[FUSERUN_KIND_COUNT] = {"optimizers", "schedulers", "models", "datasets",
                                                               "backends"};
    struct fuse_folder like = {.is_standard = is_standard, .is_ours = is_ours};
    FUSE_TRY(add_folder(search, fuse_strdup(path), like, error));
    for (uint32_t i = 0; i < FUSERUN_KIND_COUNT; i++) {
        like.kind = i + 1;
        FUSE_TRY(add_folder(search, fuse_format("%s/%s", path, subfolders[i]), like, error));
    }
    return FUSERUN_OK;
}

/* A folder that the user named: must be absolute, and should exist. */
static int add_named_place(struct fuse_search *search, const char *path, const char *named_by,
                           struct fuse_text_list *notices, struct fuse_error *error)
{
    struct stat info;
    if (path[0] != '/')
        return fuse_text_list_add(
            notices, fuse_format("%s: '%s' is not an absolute folder and is not searched for plugins", named_by, path),
            error);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return fuse_text_list_add(
            notices, fuse_format("%s: there is no folder '%s' to search for plugins", named_by, path), error);
    return add_place(search, path, false, false, error);
}

static int add_environment(struct fuse_search *search, struct fuse_text_list *notices, struct fuse_error *error)
{
    const char *rest = getenv("FUSERUN_PLUGIN_PATH");
    if (rest == NULL || rest[0] == '\0')
        return FUSERUN_OK;
    for (;;) {
        const size_t length = strcspn(rest, ":");
        char *path = fuse_strndup(rest, length);
        if (path == NULL)
            return fuse_fail_memory(error, "FUSERUN_PLUGIN_PATH", length + 1);
        const int status = add_named_place(search, path, "FUSERUN_PLUGIN_PATH", notices, error);
        free(path);
        FUSE_TRY(status);
        if (rest[length] == '\0')
            return FUSERUN_OK;
        rest += length + 1;
    }
}

/* Removes the last part of an absolute path, in place; false if there is none. */
static bool go_up(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path)
        return false;
    *slash = '\0';
    return true;
}

/* The installation's plugin folder as seen from the running program, so that a moved or staged installation works:
 * the program's folder must end in FUSERUN_BINDIR, what stands before it is the prefix. False: not installed. */
static bool find_installed_folder(const char *program, char folder[PATH_MAX])
{
    char prefix[PATH_MAX];
    if (FUSERUN_PLUGIN_SUBDIR[0] == '/')
        return snprintf(folder, PATH_MAX, "%s", FUSERUN_PLUGIN_SUBDIR) < PATH_MAX;
    if (snprintf(prefix, sizeof prefix, "%s", program) >= PATH_MAX || !go_up(prefix))
        return false;
    /* An absolute bindir tells nothing about the prefix; the usual layout does. */
    const char *bindir = FUSERUN_BINDIR[0] == '/' ? strrchr(FUSERUN_BINDIR, '/') + 1 : FUSERUN_BINDIR;
    const size_t length = strlen(prefix), tail = strlen(bindir);
    if (length <= tail || prefix[length - tail - 1] != '/' || strcmp(prefix + length - tail, bindir) != 0)
        return false;
    return snprintf(folder, PATH_MAX, "%.*s/%s", (int)(length - tail - 1), prefix, FUSERUN_PLUGIN_SUBDIR) < PATH_MAX;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool lies_under(const char *path, const char *folder)
{
    char real[PATH_MAX];
    if (realpath(folder, real) == NULL)
        return false;
    const size_t length = strlen(real);
    return strncmp(path, real, length) == 0 && path[length] == '/';
}

/* What comes with fuserun. An installation staged inside the build folder counts as installed. */
static int add_standard(struct fuse_search *search, struct fuse_error *error)
{
    char program[PATH_MAX];
    char installed[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0)
        return FUSERUN_OK;
    program[length] = '\0';
    const bool is_installed = find_installed_folder(program, installed) && is_folder(installed);
    if (lies_under(program, FUSERUN_BUILD_ROOT) && !(is_installed && FUSERUN_PLUGIN_SUBDIR[0] != '/')) {
        FUSE_TRY(add_place(search, FUSERUN_SOURCE_ROOT "/plugins", true, false, error));
        FUSE_TRY(add_place(search, FUSERUN_BUILD_ROOT "/plugins", true, true, error));
        const struct fuse_folder models = {.kind = FUSERUN_KIND_MODEL, .is_standard = true, .is_ours = true};
        FUSE_TRY(add_folder(search, fuse_strdup(FUSERUN_BUILD_ROOT "/models"), models, error));
    }
    return is_installed ? add_place(search, installed, true, true, error) : FUSERUN_OK;
}

int fuse_search_init(struct fuse_search *search, const char *const *first, size_t first_count,
                     const char *config_folder, struct fuse_text_list *notices, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    char *beside = NULL;
    *search = (struct fuse_search){0};
    for (size_t i = 0; i < first_count; i++)
        FUSE_TRY_OUT(add_named_place(search, first[i], "plugins.path", notices, error));
    FUSE_TRY_OUT(add_environment(search, notices, error));
    if (config_folder != NULL && config_folder[0] == '/') {
        beside = fuse_format("%s/plugins", strcmp(config_folder, "/") == 0 ? "" : config_folder);
        FUSE_TRY_OUT(beside == NULL ? fuse_fail_memory(error, "a plugin folder", 1)
                                    : add_place(search, beside, false, false, error));
    }
    FUSE_TRY_OUT(add_standard(search, error));
out:
    free(beside);
    if (status != FUSERUN_OK)
        fuse_search_free(search);
    return status;
}

void fuse_search_free(struct fuse_search *search)
{
    for (size_t i = 0; i < search->count; i++)
        free(search->folders[i].path);
    free(search->folders);
    *search = (struct fuse_search){0};
}

const struct fuse_folder *fuse_search_folder_of(const struct fuse_search *search, const char *file)
{
    const struct fuse_folder *found = NULL;
    struct stat info;
    char folder[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s", file) < PATH_MAX && go_up(folder) && stat(folder, &info) == 0) {
        for (size_t i = 0; found == NULL && i < search->count; i++) {
            if (search->folders[i].device == info.st_dev && search->folders[i].inode == info.st_ino)
                found = &search->folders[i];
        }
    }
    return found;
}

int fuse_folder_stems(const struct fuse_folder *folder, struct fuse_text_list *stems, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    DIR *stream = opendir(folder->path);
    if (stream == NULL && errno == ENOMEM)
        return fuse_fail_memory(error, "a plugin folder", 0);
    if (stream == NULL)
        return FUSERUN_OK; /* gone or unreadable: as good as empty */
    const struct dirent *entry;
    while ((entry = readdir(stream)) != NULL) {
        const size_t length = strlen(entry->d_name);
        if (length > 3 && entry->d_name[0] != '.' && strcmp(entry->d_name + length - 3, ".so") == 0)
            FUSE_TRY_OUT(fuse_text_list_add(stems, fuse_strndup(entry->d_name, length - 3), error));
    }
    fuse_text_list_sort(stems);
out:
    (void)closedir(stream);
    return status;
}
