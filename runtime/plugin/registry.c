#include "plugin/registry.h"

#include "base/text.h"
#include "plugin/loader.h"
#include "plugin/schema.h"
#include "plugin/search.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* A file that was tried once, and what came of it. */
struct loaded {
    char *file;
    dev_t device;
    ino_t inode;
    int status;
    struct fuse_error error; /* status != FUSERUN_OK */
    struct fuse_checked_plugin checked;
    bool is_hidden_told[FUSERUN_KIND_COUNT];
    bool is_visited; /* in the present fuse_registry_visit_all() */
};

struct fuse_registry {
    struct fuse_search search;
    struct fuse_text_list notices;
    struct loaded **files; /* pointers, so that components stay where they are */
    size_t file_count;
};

int fuse_registry_new(const char *const *first, size_t first_count, const char *config_folder,
                      struct fuse_registry **registry, struct fuse_error *error)
{
    *registry = NULL;
    struct fuse_registry *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "the plugin registry", sizeof *made);
    const int status = fuse_search_init(&made->search, first, first_count, config_folder, &made->notices, error);
    if (status != FUSERUN_OK)
        fuse_registry_free(&made);
    *registry = made;
    return status;
}

/* Frees the registry's own copies; the plugins themselves stay loaded. */
void fuse_registry_free(struct fuse_registry **registry)
{
    struct fuse_registry *self = *registry;
    *registry = NULL;
    if (self == NULL)
        return;
    for (size_t i = 0; i < self->file_count; i++) {
        fuse_plugin_release(&self->files[i]->checked);
        free(self->files[i]->file);
        free(self->files[i]);
    }
    free(self->files);
    fuse_text_list_free(&self->notices);
    fuse_search_free(&self->search);
    free(self);
}

size_t fuse_registry_notice_count(const struct fuse_registry *registry)
{
    return registry->notices.count;
}

const char *fuse_registry_notice(const struct fuse_registry *registry, size_t index)
{
    return index < registry->notices.count ? registry->notices.items[index] : NULL;
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

/* The record of a file, loading it when it is new. Fails only for lack of memory: a broken plugin is a record too. */
static int load_once(struct fuse_registry *self, const char *file, const char *stem, bool is_ours,
                     struct loaded **record, struct fuse_error *error)
{
    struct stat info = {0};
    const bool exists = stat(file, &info) == 0;
    for (size_t i = 0; exists && i < self->file_count; i++) {
        struct loaded *known = self->files[i];
        /* The name counts too: under another one the same file fails its check. */
        const char *base = strrchr(known->file, '/') + 1;
        if (known->device == info.st_dev && known->inode == info.st_ino && strlen(base) == strlen(stem) + 3 &&
            strncmp(base, stem, strlen(stem)) == 0) {
            *record = known;
            return FUSERUN_OK;
        }
    }
    struct loaded **files = realloc(self->files, (self->file_count + 1) * sizeof *files);
    if (files == NULL)
        return fuse_fail_memory(error, "the plugin registry", (self->file_count + 1) * sizeof *files);
    self->files = files;
    struct loaded *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "the plugin registry", sizeof *made);
    made->file = fuse_strdup(file);
    if (made->file == NULL) {
        free(made);
        return fuse_fail_memory(error, "a file name", strlen(file) + 1);
    }
    made->device = info.st_dev;
    made->inode = info.st_ino;
    made->error.struct_size = FUSERUN_STRUCT_SIZE(fuse_error, text);
    made->status = fuse_plugin_load(file, stem, !is_ours, &made->checked, &made->error);
    self->files[self->file_count++] = made;
    *record = made;
    return FUSERUN_OK;
}

/* The component of a kind that a file stands for: the one named like the file, else the only one. */
static const struct fuse_component *component_of(const struct loaded *record, enum fuse_kind kind)
{
    const struct fuse_plugin *plugin = &record->checked.plugin;
    const struct fuse_component *found = NULL;
    size_t count = 0;
    if (record->status != FUSERUN_OK)
        return NULL;
    for (uint32_t i = 0; i < plugin->component_count; i++) {
        const struct fuse_component *component = &plugin->components[i];
        if (component->kind != (uint32_t)kind)
            continue;
        if (strcmp(component->name, plugin->name) == 0)
            return component;
        found = component;
        count++;
    }
    return count == 1 ? found : NULL;
}

/* "a scheduler" or "a model and a dataset": what a sound file holds. */
static void add_contents(struct fuse_text *text, const struct loaded *record)
{
    const struct fuse_plugin *plugin = &record->checked.plugin;
    for (uint32_t i = 0; i < plugin->component_count; i++) {
        const char *kind = fuse_kind_name((enum fuse_kind)plugin->components[i].kind);
        fuse_text_addf(text, "%s%s %s '%s'", i == 0 ? "" : ", ", kind[0] == 'o' ? "an" : "a", kind,
                       plugin->components[i].name);
    }
}

/* ---- finding --------------------------------------------------------------------------------------------------- */

static int find_file(struct fuse_registry *self, enum fuse_kind kind, const char *path, struct loaded **record,
                     struct fuse_error *error)
{
    const char *base = strrchr(path, '/');
    const size_t length = strlen(path);
    if (path[0] != '/')
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, "plugin",
                         "'%s': a plugin file must be named by its absolute path", path);
    char *stem = fuse_strndup(base + 1, length - (size_t)(base + 1 - path) - strlen(".so"));
    if (stem == NULL)
        return fuse_fail_memory(error, "a plugin's name", length);
    const struct fuse_folder *folder = fuse_search_folder_of(&self->search, path);
    const int status = load_once(self, path, stem, folder != NULL && folder->is_ours, record, error);
    free(stem);
    FUSE_TRY(status);
    if ((*record)->status != FUSERUN_OK) {
        *error = (*record)->error;
        return (*record)->status;
    }
    if (component_of(*record, kind) != NULL)
        return FUSERUN_OK;
    struct fuse_text contents = {0};
    add_contents(&contents, *record);
    const int failed = fuse_fail(error, FUSERUN_ERROR_CONFIG, "plugin", "plugin %s%s offers %s, not %s %s",
                                 FUSE_SHOWN_PATH(path), contents.data != NULL ? contents.data : "something else",
                                 kind == FUSERUN_KIND_OPTIMIZER ? "an" : "a", fuse_kind_name(kind));
    fuse_text_free(&contents);
    return failed;
}

/* What people know from PyTorch and cannot have here, unless a plugin of their own bears the name; in upper case and
 * without the `_`, as PyTorch writes it, too. */
#define SPARSE_ADAM "SparseAdam is for sparse gradients, and here all gradients are dense: adam is the same for those"
static const struct {
    enum fuse_kind kind;
    const char *name;
    const char *reason;
} impossible[] = {
    {FUSERUN_KIND_OPTIMIZER, "lbfgs",
     "L-BFGS evaluates the loss several times in one update and takes all parameters as one vector, while here a "
     "gradient is applied as soon as the one backward pass has made it"},
    {FUSERUN_KIND_OPTIMIZER, "sparse_adam", SPARSE_ADAM},
    {FUSERUN_KIND_OPTIMIZER, "sparseadam", SPARSE_ADAM},
};

static const char *reason_against(enum fuse_kind kind, const char *name)
{
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++)
        if (impossible[i].kind == kind && strcasecmp(impossible[i].name, name) == 0)
            return impossible[i].reason;
    return NULL;
}

/* `no optimizer 'adamm' (did you mean 'adam'?); known: adam, adamw, sgd`: the names are those of files in the folders
 * for any kind and for this one, since telling kinds apart would mean loading plugins that nobody asked for. */
static int fail_unknown(const struct fuse_registry *self, enum fuse_kind kind, const char *name,
                        const struct loaded *other, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_text_list stems = {0};
    struct fuse_text text = {0};
    const char *reason = reason_against(kind, name);
    if (reason != NULL)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, "plugin", "no %s '%s': %s", fuse_kind_name(kind), name, reason);
    for (size_t i = 0; i < self->search.count; i++) {
        const struct fuse_folder *folder = &self->search.folders[i];
        if (folder->kind == 0 || folder->kind == (uint32_t)kind)
            FUSE_TRY_OUT(fuse_folder_stems(folder, &stems, error));
    }
    fuse_text_list_sort(&stems);
    fuse_text_addf(&text, "no %s '%s'", fuse_kind_name(kind), name);
    const char *nearest = fuse_nearest(name, (const char *const *)stems.items, stems.count);
    if (other != NULL) {
        fuse_text_addf(&text, ", %s%s offers ", FUSE_SHOWN_PATH(other->file));
        add_contents(&text, other);
    } else if (nearest != NULL) {
        fuse_text_addf(&text, " (did you mean '%s'?)", nearest);
    }
    fuse_text_add(&text, stems.count > 0 ? "; known: " : "; the plugin path holds none");
    for (size_t i = 0, shown = 0; i < stems.count; i++) {
        if ((i > 0 && strcmp(stems.items[i], stems.items[i - 1]) == 0) ||
            (other != NULL && strcmp(stems.items[i], name) == 0))
            continue;
        if (text.length + strlen(stems.items[i]) + 8 > sizeof error->text) {
            fuse_text_add(&text, ", ...");
            break;
        }
        fuse_text_addf(&text, "%s%s", shown++ > 0 ? ", " : "", stems.items[i]);
    }
    status = text.failed ? fuse_fail_memory(error, "a message", sizeof error->text)
                         : fuse_fail(error, FUSERUN_ERROR_CONFIG, "plugin", "%s", text.data);
out:
    fuse_text_list_free(&stems);
    fuse_text_free(&text);
    return status;
}

static int check_name(enum fuse_kind kind, const char *name, struct fuse_error *error)
{
    const size_t length = strlen(name);
    if (length == 0)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, "plugin", "the name of %s %s is empty",
                         kind == FUSERUN_KIND_OPTIMIZER ? "an" : "a", fuse_kind_name(kind));
    if (length > FUSE_PLUGIN_NAME_MAX)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, "plugin",
                         "'%.40s...' has %zu characters, a plugin's name has at most %d", name, length,
                         FUSE_PLUGIN_NAME_MAX);
    if (strchr(name, '/') != NULL)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, "plugin",
                         "'%s': a plugin is given by its name, or by the path of a file that ends in .so", name);
    return FUSERUN_OK;
}

/* Tells once for each file and kind that it will not be used. */
static int tell_hidden(struct fuse_registry *self, enum fuse_kind kind, const char *name, const struct loaded *used,
                       struct loaded *hidden, struct fuse_error *error)
{
    if (hidden->is_hidden_told[kind - 1])
        return FUSERUN_OK;
    hidden->is_hidden_told[kind - 1] = true;
    return fuse_text_list_add(
        &self->notices,
        fuse_format("%s '%s' is taken from %s, which hides %s", fuse_kind_name(kind), name, used->file, hidden->file),
        error);
}

static int find_name(struct fuse_registry *self, enum fuse_kind kind, const char *name, struct loaded **found,
                     struct fuse_error *error)
{
    struct loaded *other = NULL, *broken = NULL;
    *found = NULL;
    FUSE_TRY(check_name(kind, name, error));
    for (size_t i = 0; i < self->search.count; i++) {
        const struct fuse_folder *folder = &self->search.folders[i];
        struct stat info;
        char *file = fuse_format("%s/%s.so", folder->path, name);
        if (file == NULL)
            return fuse_fail_memory(error, "a file name", strlen(folder->path) + strlen(name));
        struct loaded *record = NULL;
        /* lstat: a link into nowhere is a broken plugin, not an absent one. */
        const bool exists = lstat(file, &info) == 0;
        const int status = exists ? load_once(self, file, name, folder->is_ours, &record, error) : FUSERUN_OK;
        free(file);
        FUSE_TRY(status);
        if (!exists || record == *found)
            continue;
        if (record->status != FUSERUN_OK) {
            if (*found != NULL)
                continue;
            /* What it would have been is unknown, unless it lies in the folder of another kind: then it matters only
             * if nothing else answers to the name. */
            if (folder->kind == 0 || folder->kind == (uint32_t)kind) {
                *error = record->error;
                return record->status;
            }
            broken = broken == NULL ? record : broken;
        } else if (component_of(record, kind) == NULL) {
            other = other == NULL ? record : other;
        } else if (*found == NULL) {
            *found = record;
        } else {
            FUSE_TRY(tell_hidden(self, kind, name, *found, record, error));
        }
    }
    if (*found != NULL)
        return FUSERUN_OK;
    if (other == NULL && broken != NULL) {
        *error = broken->error;
        return broken->status;
    }
    return fail_unknown(self, kind, name, other, error);
}

int fuse_registry_find(struct fuse_registry *registry, enum fuse_kind kind, const char *name,
                       const struct fuse_component **component, const char **file, struct fuse_error *error)
{
    struct fuse_error unwanted = FUSE_ERROR_INIT;
    struct loaded *record = NULL;
    const size_t length = strlen(name);
    error = error != NULL ? error : &unwanted;
    *component = NULL;
    *file = NULL;
    if (length > 3 && strcmp(name + length - 3, ".so") == 0)
        FUSE_TRY(find_file(registry, kind, name, &record, error));
    else
        FUSE_TRY(find_name(registry, kind, name, &record, error));
    *component = component_of(record, kind);
    *file = record->file;
    return FUSERUN_OK;
}

/* ---- all of them ----------------------------------------------------------------------------------------------- */

static void visit_record(const struct loaded *record, const struct fuse_registry_visitor *visitor)
{
    if (record->status != FUSERUN_OK) {
        if (visitor->broken != NULL)
            visitor->broken(visitor->user, record->file, &record->error);
        return;
    }
    const struct fuse_plugin *plugin = &record->checked.plugin;
    for (uint32_t i = 0; visitor->visit != NULL && i < plugin->component_count; i++)
        visitor->visit(visitor->user, plugin, &plugin->components[i], record->file);
}

static int visit_folder(struct fuse_registry *self, const struct fuse_folder *folder,
                        const struct fuse_registry_visitor *visitor, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    char *file = NULL;
    struct fuse_text_list stems = {0};
    FUSE_TRY_OUT(fuse_folder_stems(folder, &stems, error));
    for (size_t i = 0; i < stems.count; i++) {
        struct loaded *record;
        free(file);
        file = fuse_format("%s/%s.so", folder->path, stems.items[i]);
        if (file == NULL)
            FUSE_TRY_OUT(fuse_fail_memory(error, "a file name", strlen(folder->path)));
        FUSE_TRY_OUT(load_once(self, file, stems.items[i], folder->is_ours, &record, error));
        if (record->status == FUSERUN_ERROR_MEMORY) {
            status = fuse_fail(error, record->status, NULL, "%s", record->error.text);
            goto out;
        }
        if (!record->is_visited)
            visit_record(record, visitor);
        record->is_visited = true;
    }
out:
    free(file);
    fuse_text_list_free(&stems);
    return status;
}

void fuse_registry_visit_loaded(const struct fuse_registry *registry, const struct fuse_registry_visitor *visitor)
{
    for (size_t i = 0; i < registry->file_count; i++)
        visit_record(registry->files[i], visitor);
}

int fuse_registry_visit_all(struct fuse_registry *registry, const struct fuse_registry_visitor *visitor,
                            struct fuse_error *error)
{
    for (size_t i = 0; i < registry->file_count; i++)
        registry->files[i]->is_visited = false;
    for (size_t i = 0; i < registry->search.count; i++)
        FUSE_TRY(visit_folder(registry, &registry->search.folders[i], visitor, error));
    return FUSERUN_OK;
}

bool fuse_registry_is_standard(const struct fuse_registry *registry, const char *file)
{
    const struct fuse_folder *folder = fuse_search_folder_of(&registry->search, file);
    return folder != NULL && folder->is_standard;
}
