/* Reading all layers into one list of sections, and what is asked of a config afterwards. */
#include "config/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAIN_RANK = 1 << 20, LONGEST_FILE_BYTES = 1 << 20, MOST_INCLUDES = 64 };

/* ---- sections and entries -------------------------------------------------------------------------------------------
 */

struct fuse_section *fuse_config_section(const struct fuse_config *config, const char *name)
{
    struct fuse_section *section = config->sections;
    while (section != NULL && strcmp(section->name, name) != 0)
        section = section->next;
    return section;
}

struct fuse_section *fuse_config_add_section(struct fuse_config *config, const char *name)
{
    struct fuse_section **tail = &config->sections;
    for (; *tail != NULL; tail = &(*tail)->next)
        if (strcmp((*tail)->name, name) == 0)
            return *tail;
    struct fuse_section *section = fuse_arena_alloc(&config->arena, sizeof(*section));
    if (section == NULL)
        return NULL;
    section->name = fuse_arena_strdup(&config->arena, name);
    if (section->name == NULL)
        return NULL;
    section->role = fuse_role_of(section->name, &section->argument);
    return *tail = section;
}

struct fuse_entry *fuse_section_last_entry(const struct fuse_section *section, const char *key)
{
    struct fuse_entry *last = NULL;
    for (struct fuse_entry *entry = section == NULL ? NULL : section->entries; entry != NULL; entry = entry->next)
        if (entry->replaced_by == NULL && strcmp(entry->key, key) == 0)
            last = entry;
    return last;
}

struct fuse_entry *fuse_section_entry(const struct fuse_section *section, const char *key)
{
    struct fuse_entry *last = fuse_section_last_entry(section, key);
    return last == NULL || (*last->text == '\0' && !last->is_broken) ? NULL : last;
}

/* ---- messages
 * --------------------------------------------------------------------------------------------------------- */

/* A message is one line, and does nothing to a terminal, whatever it quotes: the command line may hold any byte. */
static void make_one_line(char *text)
{
    for (; *text != '\0'; text++)
        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7f)
            *text = '?';
}

static void say_va(const struct fuse_config *config, struct fuse_diagnostics *diagnostics,
                   const struct fuse_layer *layer, int line, bool is_error, const char *section, const char *key,
                   const char *format, va_list arguments) FUSERUN_PRINTF(8, 0);
static void say_va(const struct fuse_config *config, struct fuse_diagnostics *diagnostics,
                   const struct fuse_layer *layer, int line, bool is_error, const char *section, const char *key,
                   const char *format, va_list arguments)
{
    struct fuse_section *told = is_error && section != NULL ? fuse_config_section(config, section) : NULL;
    if (told != NULL)
        told->has_error = true;
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *message = length < 0 ? NULL : malloc((size_t)length + 1);
    struct fuse_text text = {0};
    if (message != NULL) {
        (void)vsnprintf(message, (size_t)length + 1, format, arguments);
        if (layer->is_command_line)
            fuse_text_add(&text, "command line: ");
        else
            fuse_text_addf(&text, "%s:%d: ", layer->file, line);
        if (!is_error)
            fuse_text_add(&text, "warning: ");
        if (section != NULL && *section != '\0')
            fuse_text_add(&text, section);
        if (section != NULL && key != NULL && *section != '\0' && *key != '\0')
            fuse_text_add(&text, ".");
        if (key != NULL)
            fuse_text_add(&text, key);
        if ((section != NULL && *section != '\0') || (key != NULL && *key != '\0'))
            fuse_text_add(&text, ": ");
        fuse_text_add(&text, message);
    }
    if (message == NULL || text.failed) {
        fuse_text_free(&text);
        text.data = NULL;
    }
    free(message);
    if (text.data != NULL)
        make_one_line(text.data);
    fuse_diagnostics_add(diagnostics, layer->rank, line, is_error, text.data);
}

void fuse_config_say(const struct fuse_config *config, struct fuse_diagnostics *diagnostics,
                     const struct fuse_layer *layer, int line, bool is_error, const char *section, const char *key,
                     const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_va(config, diagnostics, layer, line, is_error, section, key, format, arguments);
    va_end(arguments);
}

void fuse_entry_fail(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, const char *section,
                     struct fuse_entry *entry, const char *format, ...)
{
    if (entry->has_error)
        return;
    entry->has_error = true;
    va_list arguments;
    va_start(arguments, format);
    say_va(config, diagnostics, entry->layer, entry->line, true, section, entry->key, format, arguments);
    va_end(arguments);
}

/* Where a message about a whole section points: at its header in the last file that has it, else at the command line
 * that made it; NULL: nowhere. */
static const struct fuse_place *section_place(const struct fuse_section *section)
{
    const struct fuse_place *last = NULL;
    for (const struct fuse_place *place = section == NULL ? NULL : section->places; place != NULL; place = place->next)
        if (!place->layer->is_command_line || last == NULL || last->layer->is_command_line)
            last = place;
    return last;
}

static void say_at_section(const struct fuse_config *config, struct fuse_diagnostics *diagnostics,
                           const struct fuse_section *section, bool is_error, const char *name, const char *key,
                           const char *format, va_list arguments) FUSERUN_PRINTF(7, 0);
static void say_at_section(const struct fuse_config *config, struct fuse_diagnostics *diagnostics,
                           const struct fuse_section *section, bool is_error, const char *name, const char *key,
                           const char *format, va_list arguments)
{
    const struct fuse_place *place = section_place(section);
    say_va(config, diagnostics, place == NULL ? config->main_layer : place->layer, place == NULL ? 1 : place->line,
           is_error, name, key, format, arguments);
}

void fuse_section_fail(const struct fuse_config *config, struct fuse_diagnostics *diagnostics,
                       const struct fuse_section *section, const char *key, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_at_section(config, diagnostics, section, true, section->name, key, format, arguments);
    va_end(arguments);
}

static void say_at_key(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, bool is_error,
                       const char *section_name, const char *key, const char *format, va_list arguments)
    FUSERUN_PRINTF(6, 0);
static void say_at_key(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, bool is_error,
                       const char *section_name, const char *key, const char *format, va_list arguments)
{
    const struct fuse_section *section = fuse_config_section(config, section_name);
    const struct fuse_entry *entry = key == NULL ? NULL : fuse_section_last_entry(section, key);
    if (entry != NULL)
        say_va(config, diagnostics, entry->layer, entry->line, is_error, section_name, key, format, arguments);
    else
        say_at_section(config, diagnostics, section, is_error, section_name, key, format, arguments);
}

void fuse_config_report(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, const char *section,
                        const char *key, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_at_key(config, diagnostics, true, section, key, format, arguments);
    va_end(arguments);
}

void fuse_config_warn(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, const char *section,
                      const char *key, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_at_key(config, diagnostics, false, section, key, format, arguments);
    va_end(arguments);
}

/* ---- reading
 * ------------------------------------------------------------------------------------------------------------ */

/* The whole file; NULL with errno set. */
static char *read_file(const char *path, size_t *length)
{
    *length = 0;
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return NULL;
    size_t capacity = 8192;
    char *text = malloc(capacity);
    while (text != NULL) {
        *length += fread(text + *length, 1, capacity - *length, file);
        if (*length < capacity)
            break;
        char *more = capacity < LONGEST_FILE_BYTES ? realloc(text, 2 * capacity) : NULL;
        if (more == NULL) {
            free(text);
            errno = capacity < LONGEST_FILE_BYTES ? ENOMEM : EFBIG;
        }
        text = more;
        capacity *= 2;
    }
    if (text != NULL && ferror(file)) {
        free(text);
        text = NULL;
    }
    const int code = errno;
    (void)fclose(file);
    errno = code;
    return text;
}

/* The folder of a file as typed: "configs" of "configs/a.ini", "" of "a.ini". */
static char *folder_of(struct fuse_config *config, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == path)
        return fuse_arena_strdup(&config->arena, "/");
    return fuse_arena_strndup(&config->arena, path, slash == NULL ? 0 : (size_t)(slash - path));
}

/* Puts a layer's sections behind those of earlier layers. */
static int merge(struct fuse_config *config, struct fuse_section *sections)
{
    for (struct fuse_section *from = sections; from != NULL; from = from->next) {
        struct fuse_section *section = fuse_config_add_section(config, from->name);
        if (section == NULL)
            return FUSERUN_ERROR_MEMORY;
        struct fuse_place **places = &section->places;
        while (*places != NULL)
            places = &(*places)->next;
        *places = from->places;
        struct fuse_entry **entries = &section->entries;
        for (; *entries != NULL; entries = &(*entries)->next)
            for (struct fuse_entry *later = from->entries; later != NULL; later = later->next)
                if ((*entries)->replaced_by == NULL && strcmp((*entries)->key, later->key) == 0)
                    (*entries)->replaced_by = later->layer;
        *entries = from->entries;
    }
    return FUSERUN_OK;
}

/* A file being read, and the one that includes it. */
struct chain {
    const char *path;
    int depth; /* files that include each other down to here */
    const struct chain *includer;
};

/* By any name: another spelling of the path, a link, a descriptor under /proc. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat found_a, found_b;
    return stat(a, &found_a) == 0 && stat(b, &found_b) == 0 && found_a.st_dev == found_b.st_dev &&
           found_a.st_ino == found_b.st_ino;
}

static int read_layers(struct fuse_config *config, const struct chain *chain, int rank, struct fuse_entry *override,
                       struct fuse_diagnostics *diagnostics);

/* The file that run.include names, before the one that says so. */
static int read_include(struct fuse_config *config, const struct chain *chain, int rank, struct fuse_entry *entry,
                        struct fuse_diagnostics *diagnostics)
{
    const char *text = fuse_expand_early(config, "run", entry, diagnostics);
    config->has_lost_layer |= text == NULL;
    if (text == NULL)
        return config->is_out_of_memory ? FUSERUN_ERROR_MEMORY : FUSERUN_OK;
    size_t count = 0;
    const char *problem = NULL;
    struct fuse_word *words = fuse_words_split(&config->arena, text, false, &count, &problem);
    if (words == NULL && problem == NULL)
        return FUSERUN_ERROR_MEMORY;
    if (words == NULL) {
        fuse_entry_fail(config, diagnostics, "run", entry, "%s", problem);
        return FUSERUN_OK;
    }
    if (entry->continued_line != 0)
        return FUSERUN_OK; /* told when values are judged */
    /* As typed, so that a message names a file that can be opened from here. */
    const char *folder = entry->layer->is_command_line ? "" : folder_of(config, entry->layer->file);
    const char *path = folder == NULL    ? NULL
                       : *folder == '\0' ? words[0].text
                                         : fuse_path_join(&config->arena, folder, words[0].text);
    if (path == NULL)
        return FUSERUN_ERROR_MEMORY;
    for (const struct chain *link = chain; link != NULL; link = link->includer)
        if (is_same_file(link->path, path)) {
            fuse_entry_fail(config, diagnostics, "run", entry, "'%s' includes itself", path);
            config->has_lost_layer = true;
            return FUSERUN_OK;
        }
    struct stat found;
    if (chain->depth == MOST_INCLUDES) {
        fuse_entry_fail(config, diagnostics, "run", entry, "files include each other more than %d deep", MOST_INCLUDES);
        config->has_lost_layer = true;
        return FUSERUN_OK;
    }
    /* A pipe that a config names would hang us. (The config itself may come out of one, as the shell's <() gives.) */
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) {
        fuse_entry_fail(config, diagnostics, "run", entry, "cannot read '%s': not a regular file", path);
        config->has_lost_layer = true;
        return FUSERUN_OK;
    }
    const struct chain next = {.path = path, .depth = chain->depth + 1, .includer = chain};
    const int status = read_layers(config, &next, rank - 1, NULL, diagnostics);
    if (status != FUSERUN_ERROR_IO)
        return status;
    fuse_entry_fail(config, diagnostics, "run", entry, "cannot read '%s': %s", path, strerror(errno));
    config->has_lost_layer = true;
    return FUSERUN_OK;
}

/* One file, what it includes first. override: an include from the command line that stands for the file's own. */
static int read_layers(struct fuse_config *config, const struct chain *chain, int rank, struct fuse_entry *override,
                       struct fuse_diagnostics *diagnostics)
{
    size_t length = 0;
    char *text = read_file(chain->path, &length);
    if (text == NULL)
        return errno == ENOMEM ? FUSERUN_ERROR_MEMORY : FUSERUN_ERROR_IO;
    int status = FUSERUN_OK;
    struct fuse_section *sections = NULL;
    struct fuse_layer *layer = fuse_arena_alloc(&config->arena, sizeof(*layer));
    const char *folder = folder_of(config, chain->path);
    char *full = realpath(folder == NULL || *folder == '\0' ? "." : folder, NULL);
    if (layer == NULL || folder == NULL || full == NULL) {
        status = FUSERUN_ERROR_MEMORY;
        goto out;
    }
    layer->file = chain->path;
    layer->folder = fuse_arena_strdup(&config->arena, full);
    layer->rank = rank;
    if (layer->folder == NULL) {
        status = FUSERUN_ERROR_MEMORY;
        goto out;
    }
    if (chain->includer == NULL) {
        config->main_layer = layer;
        config->folder = layer->folder;
    }
    FUSE_TRY_OUT(fuse_layer_parse(config, layer, text, length, diagnostics, &sections));
    struct fuse_section *run = sections;
    while (run != NULL && strcmp(run->name, "run") != 0)
        run = run->next;
    struct fuse_entry *include = override != NULL ? override : fuse_section_last_entry(run, "include");
    if (include != NULL && !include->is_broken && *include->text != '\0')
        FUSE_TRY_OUT(read_include(config, chain, rank, include, diagnostics));
    FUSE_TRY_OUT(merge(config, sections));
out:
    free(full);
    free(text);
    return status;
}

/* [text, end) without the white space around it. */
static char *copy_trimmed(struct fuse_arena *arena, const char *text, const char *end)
{
    while (text < end && (*text == ' ' || *text == '\t'))
        text++;
    while (end > text && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return fuse_arena_strndup(arena, text, (size_t)(end - text));
}

/* One "section.key=value" of the command line. */
static int add_override(struct fuse_config *config, const struct fuse_layer *layer, int number, const char *text,
                        struct fuse_section **sections, struct fuse_diagnostics *diagnostics)
{
    struct fuse_arena *arena = &config->arena;
    const char *equals = strchr(text, '=');
    const char *dot = equals;
    while (dot != NULL && dot > text && *dot != '.')
        dot--;
    if (equals == NULL || dot <= text || dot + 1 == equals) {
        char *name = fuse_arena_strndup(arena, text, equals == NULL ? strlen(text) : (size_t)(equals - text));
        if (name == NULL)
            return FUSERUN_ERROR_MEMORY;
        fuse_config_say(config, diagnostics, layer, number, true, NULL, name,
                        "an override reads section.key=value (optimizer.lr=1e-4)");
        return FUSERUN_OK;
    }
    struct fuse_text line = {0};
    int status = FUSERUN_ERROR_MEMORY;
    struct fuse_section *parsed = NULL;
    fuse_text_addf(&line, "[%.*s]\n", (int)(dot - text), text);
    if (line.failed)
        goto out;
    /* The file's own rules for names; the value is the rest of the argument, whatever it holds. */
    FUSE_TRY_OUT(fuse_layer_parse(config, layer, line.data, line.length, diagnostics, &parsed));
    char *key = copy_trimmed(arena, dot + 1, equals);
    struct fuse_entry *entry = fuse_arena_alloc(arena, sizeof(*entry));
    char *copy = copy_trimmed(arena, equals + 1, equals + strlen(equals));
    if (key == NULL || entry == NULL || copy == NULL) {
        status = FUSERUN_ERROR_MEMORY;
        goto out;
    }
    if (parsed == NULL)
        goto out; /* reported */
    *entry = (struct fuse_entry){.layer = layer, .line = number, .key = key, .text = copy};
    parsed->places->line = number;
    while (*sections != NULL && strcmp((*sections)->name, parsed->name) != 0)
        sections = &(*sections)->next;
    if (*sections == NULL)
        *sections = parsed;
    struct fuse_entry **tail = &(*sections)->entries;
    for (; *tail != NULL; tail = &(*tail)->next)
        if (strcmp((*tail)->key, key) == 0) {
            fuse_config_say(config, diagnostics, layer, number, true, parsed->name, key, "the key stands twice");
            goto out;
        }
    *tail = entry;
out:
    fuse_text_free(&line);
    return status;
}

/* Makes config->plugin_path, which has to be known before plugins can be found. */
static int read_plugin_path(struct fuse_config *config, struct fuse_diagnostics *diagnostics)
{
    struct fuse_section *section = fuse_config_section(config, "plugins");
    struct fuse_entry *entry = fuse_section_entry(section, "path");
    const char *text =
        entry == NULL || entry->has_error ? NULL : fuse_entry_expand(config, section, entry, diagnostics);
    if (text == NULL)
        return config->is_out_of_memory ? FUSERUN_ERROR_MEMORY : FUSERUN_OK;
    struct fuse_value value = {0};
    struct fuse_text message = {0};
    (void)fuse_role_find_option(FUSE_ROLE_PLUGINS, "path", &value.option);
    const int status = fuse_value_parse(&config->arena, &value, text, entry->layer->folder, &message);
    if (status == FUSERUN_OK) {
        config->plugin_path = value.texts;
        config->plugin_path_count = value.count;
    }
    fuse_text_free(&message); /* a wrong value is told when all values are judged */
    return status == FUSERUN_ERROR_CONFIG ? FUSERUN_OK : status;
}

int fuse_config_read(const char *path, const char *const *overrides, size_t override_count,
                     struct fuse_diagnostics *diagnostics, struct fuse_config **result)
{
    *result = NULL;
    struct fuse_section *given = NULL;
    struct fuse_config *config = calloc(1, sizeof(*config));
    char *working_folder = getcwd(NULL, 0);
    int status = FUSERUN_ERROR_MEMORY;
    if (working_folder == NULL && errno != ENOMEM) {
        fuse_diagnostics_add(diagnostics, MAIN_RANK, 0, true,
                             fuse_format("%s: the working directory cannot be told: %s", path, strerror(errno)));
        status = FUSERUN_ERROR_CONFIG;
    }
    if (config == NULL || working_folder == NULL)
        goto out;
    struct fuse_layer *layer = fuse_arena_alloc(&config->arena, sizeof(*layer));
    config->path = fuse_arena_strdup(&config->arena, path);
    config->working_folder = fuse_arena_strdup(&config->arena, working_folder);
    if (layer == NULL || config->path == NULL || config->working_folder == NULL)
        goto out;
    *layer = (struct fuse_layer){
        .file = "command line", .folder = config->working_folder, .rank = MAIN_RANK + 1, .is_command_line = true};
    for (size_t i = 0; i < override_count; i++)
        FUSE_TRY_OUT(add_override(config, layer, (int)i + 1, overrides[i], &given, diagnostics));
    struct fuse_section *run = given;
    while (run != NULL && strcmp(run->name, "run") != 0)
        run = run->next;
    const struct chain chain = {.path = config->path};
    FUSE_TRY_OUT(read_layers(config, &chain, MAIN_RANK, fuse_section_last_entry(run, "include"), diagnostics));
    FUSE_TRY_OUT(merge(config, given));
    FUSE_TRY_OUT(read_plugin_path(config, diagnostics));
    *result = config;
    config = NULL;
out:
    if (status == FUSERUN_ERROR_IO)
        fuse_diagnostics_add(diagnostics, MAIN_RANK, 0, true,
                             fuse_format("%s: cannot be read: %s", path, strerror(errno)));
    free(working_folder);
    fuse_config_free(&config);
    return status;
}

void fuse_config_free(struct fuse_config **config)
{
    if (*config == NULL)
        return;
    for (struct fuse_section *section = (*config)->sections; section != NULL; section = section->next)
        fuse_options_free(&section->options);
    fuse_arena_free(&(*config)->arena);
    free(*config);
    *config = NULL;
}

/* ---- afterwards
 * ---------------------------------------------------------------------------------------------------------- */

const char *const *fuse_config_plugin_path(const struct fuse_config *config, size_t *count)
{
    *count = config->plugin_path_count;
    return config->plugin_path;
}

const char *fuse_config_folder(const struct fuse_config *config)
{
    return config->folder;
}

const struct fuse_options *fuse_config_options(const struct fuse_config *config, const char *name)
{
    const struct fuse_section *section = fuse_config_section(config, name);
    return section == NULL || section->is_dropped ? NULL : section->options;
}

const struct fuse_component *fuse_config_component(const struct fuse_config *config, const char *name)
{
    const struct fuse_section *section = fuse_config_section(config, name);
    return section == NULL || section->is_dropped ? NULL : section->component;
}

bool fuse_config_is_clean(const struct fuse_config *config, const char *name)
{
    const struct fuse_section *section = fuse_config_section(config, name);
    if (section == NULL || section->has_error || section->is_misspelt || section->value_progress != FUSE_DONE)
        return false;
    for (const struct fuse_entry *entry = section->entries; entry != NULL; entry = entry->next)
        if (entry->is_broken)
            return false;
    if (fuse_role_kind(section->role) != 0 && section->component == NULL)
        return false;
    const char *parent = fuse_role_parent(section->role);
    return !config->has_lost_section && !config->has_lost_layer &&
           (parent == NULL || fuse_config_is_clean(config, parent));
}

size_t fuse_config_group_count(const struct fuse_config *config)
{
    return config->group_count;
}

const struct fuse_config_group *fuse_config_group(const struct fuse_config *config, size_t index)
{
    return index < config->group_count ? &config->groups[index] : NULL;
}

size_t fuse_config_scheduler_count(const struct fuse_config *config)
{
    return config->curve_count;
}

const char *fuse_config_scheduler_option(const struct fuse_config *config, size_t index)
{
    return index < config->curve_count ? config->curves[index] : NULL;
}
