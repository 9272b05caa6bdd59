#include "train/resume.h"

#include "base/text.h"
#include "files/files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A resolved config is one `key = value` a line under `[section]` lines (fuse_config_write). The one in a checkpoint
 * comes from a file that may hold anything: what does not look like that is passed over, and of more lines than any
 * config has only the first are read. */
enum { MOST_LINES = 20000, MOST_TOLD = 40 };

struct line {
    const char *section, *key, *value; /* not terminated */
    size_t section_length, key_length, value_length;
};

struct lines {
    struct line *items;
    size_t count;
};

/* What training does not depend on. A key NULL: the whole section. */
static const struct {
    const char *section, *key;
} untold[] = {
    {"run", "name"},          {"run", "output"},      {"run", "overwrite"}, {"run", "resume"},
    {"run", "resume_strict"}, {"run", "progress"},    {"plugins", NULL},    {"checkpoint", NULL},
    {"memory", "timeline"},   {"memory", "snapshot"}, {"run", "profile"},
};

static bool is_text(const char *bytes, size_t length, const char *text)
{
    return strlen(text) == length && memcmp(bytes, text, length) == 0;
}

static bool is_told(const struct line *line)
{
    for (size_t i = 0; i < sizeof untold / sizeof untold[0]; i++)
        if (is_text(line->section, line->section_length, untold[i].section) &&
            (untold[i].key == NULL || is_text(line->key, line->key_length, untold[i].key)))
            return false;
    return true;
}

static int compare_bytes(const char *a, size_t a_length, const char *b, size_t b_length)
{
    const int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order != 0 ? order : a_length < b_length ? -1 : a_length > b_length ? 1 : 0;
}

static int compare_keys(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    const int order = compare_bytes(x->section, x->section_length, y->section, y->section_length);
    return order != 0 ? order : compare_bytes(x->key, x->key_length, y->key, y->key_length);
}

/* The lines to be told of, sorted by section and key. */
static int read_lines(const char *text, struct lines *list, struct fuse_error *error)
{
    const char *section = "";
    size_t section_length = 0, count = 1;
    for (const char *at = text; *at != '\0' && count < MOST_LINES; at++)
        count += *at == '\n';
    list->items = calloc(count, sizeof *list->items);
    if (list->items == NULL)
        return fuse_fail_memory(error, "comparing configs", count * sizeof *list->items);
    for (size_t number = 0; *text != '\0' && number < count; number++) {
        const size_t length = strcspn(text, "\n");
        const char *equals = memmem(text, length, " = ", 3);
        if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
            section = text + 1;
            section_length = length - 2;
        } else if (equals != NULL) {
            struct line *line = &list->items[list->count];
            *line = (struct line){.section = section,
                                  .section_length = section_length,
                                  .key = text,
                                  .key_length = (size_t)(equals - text),
                                  .value = equals + 3,
                                  .value_length = length - (size_t)(equals - text) - 3};
            list->count += is_told(line);
        }
        text += length + (text[length] == '\n');
    }
    qsort(list->items, list->count, sizeof *list->items, compare_keys);
    return FUSERUN_OK;
}

static const struct line *find_line(const struct lines *list, const struct line *line)
{
    return list->count == 0 ? NULL : bsearch(line, list->items, list->count, sizeof *list->items, compare_keys);
}

static bool has_section(const struct lines *list, const struct line *line)
{
    for (size_t i = 0; i < list->count; i++)
        if (compare_bytes(list->items[i].section, list->items[i].section_length, line->section, line->section_length) ==
            0)
            return true;
    return false;
}

/* ---- telling --------------------------------------------------------------------------------------------------- */

struct teller {
    const struct fuse_experiment *experiment;
    size_t count;
};

struct telling_versions {
    const struct fuse_experiment *experiment;
    const char *plugins; /* the checkpoint's list of those it was made with */
};

/* The names, too, come from a file that may hold anything. */
static void tell(struct teller *teller, const struct line *line, const char *key, const char *what)
{
    char section[FUSE_SHOWN_BYTES], own_key[FUSE_SHOWN_BYTES];
    if (++teller->count > MOST_TOLD)
        return;
    fuse_config_warn(teller->experiment->config, teller->experiment->diagnostics,
                     fuse_shown(line->section, line->section_length, section),
                     key != NULL ? key : fuse_shown(line->key, line->key_length, own_key), "%s", what);
}

/* A section that one side lacks altogether is one difference, told with its first key. */
static bool is_new_section(const struct lines *mine, const struct lines *theirs, const struct line *line,
                           bool *is_first)
{
    *is_first = line == mine->items ||
                compare_bytes(line[-1].section, line[-1].section_length, line->section, line->section_length) != 0;
    return !has_section(theirs, line);
}

/* By which a whole section is told: its plugin, if it has one; NULL: the line's own key. */
static const char *key_of_section(const struct lines *list, const struct line *line)
{
    struct line wanted = *line;
    wanted.key = "plugin";
    wanted.key_length = strlen(wanted.key);
    return find_line(list, &wanted) != NULL ? "plugin" : NULL;
}

static void tell_present(struct teller *teller, const struct lines *mine, const struct lines *theirs)
{
    char here[FUSE_SHOWN_BYTES], there[FUSE_SHOWN_BYTES], what[3 * FUSE_SHOWN_BYTES];
    for (size_t i = 0; i < mine->count; i++) {
        const struct line *line = &mine->items[i];
        const struct line *other = find_line(theirs, line);
        bool is_first = false;
        if (is_new_section(mine, theirs, line, &is_first)) {
            if (is_first)
                tell(teller, line, key_of_section(mine, line),
                     "the section is not in the checkpoint's config; it holds from here on");
            continue;
        }
        if (other != NULL && compare_bytes(line->value, line->value_length, other->value, other->value_length) == 0)
            continue;
        (void)snprintf(what, sizeof what, "%s here, %s in the checkpoint's config; the one here holds",
                       fuse_shown(line->value, line->value_length, here),
                       other == NULL ? "not set" : fuse_shown(other->value, other->value_length, there));
        tell(teller, line, NULL, what);
    }
}

static void tell_gone(struct teller *teller, const struct lines *mine, const struct lines *theirs)
{
    char there[FUSE_SHOWN_BYTES], what[3 * FUSE_SHOWN_BYTES];
    for (size_t i = 0; i < theirs->count; i++) {
        const struct line *line = &theirs->items[i];
        bool is_first = false;
        if (is_new_section(theirs, mine, line, &is_first)) {
            if (is_first)
                tell(teller, line, key_of_section(theirs, line),
                     "the checkpoint's config has this section; it holds no more");
            continue;
        }
        if (find_line(mine, line) != NULL)
            continue;
        (void)snprintf(what, sizeof what, "not set here, %s in the checkpoint's config; it holds no more",
                       fuse_shown(line->value, line->value_length, there));
        tell(teller, line, NULL, what);
    }
}

/* The version of a plugin in a checkpoint's `plugins`, up to the line's end; NULL: it was not in use. */
static const char *find_version(const char *plugins, const char *kind, const char *name)
{
    const size_t kind_length = strlen(kind), name_length = strlen(name);
    for (const char *line = plugins; line != NULL && *line != '\0';) {
        if (strncmp(line, kind, kind_length) == 0 && line[kind_length] == ' ' &&
            strncmp(line + kind_length + 1, name, name_length) == 0 && line[kind_length + 1 + name_length] == ' ')
            return line + kind_length + 1 + name_length + 1;
        const char *end = strchr(line, '\n');
        line = end != NULL ? end + 1 : NULL;
    }
    return NULL;
}

/* A plugin of another version may compute something else; whether it does is for the user to know. */
static void tell_version(void *user, const struct fuse_plugin *plugin, const struct fuse_component *component,
                         const char *file)
{
    (void)file;
    char there[FUSE_SHOWN_BYTES];
    const struct telling_versions *telling = user;
    const struct fuse_experiment *experiment = telling->experiment;
    const char *kind = fuse_kind_name(component->kind);
    const char *version = find_version(telling->plugins, kind, component->name);
    const size_t length = version != NULL ? strcspn(version, "\n") : 0;
    if (version == NULL || is_text(version, length, plugin->version))
        return;
    fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume",
                     "the %s '%s' is of version %s here, the checkpoint was made with %s", kind, component->name,
                     plugin->version, fuse_shown(version, length, there));
}

int fuse_resume_tell_differences(const struct fuse_experiment *experiment, const struct fuse_resume *resume,
                                 struct fuse_error *error)
{
    int status;
    struct fuse_text text = {0};
    struct lines mine = {0}, theirs = {0};
    struct teller teller = {.experiment = experiment};
    struct telling_versions telling = {experiment, resume->texts.plugins};
    const struct fuse_registry_visitor visitor = {.visit = tell_version, .user = &telling};
    fuse_registry_visit_loaded(experiment->registry, &visitor);
    if (resume->texts.config == NULL) {
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume",
                         "the checkpoint holds no config to compare with; the one here holds");
        return FUSERUN_OK;
    }
    fuse_config_write(experiment->config, &text);
    fuse_text_add(&text, "");
    if (text.failed)
        FUSE_TRY_OUT(fuse_fail_memory(error, "comparing configs", text.length));
    FUSE_TRY_OUT(read_lines(text.data, &mine, error));
    FUSE_TRY_OUT(read_lines(resume->texts.config, &theirs, error));
    tell_present(&teller, &mine, &theirs);
    tell_gone(&teller, &mine, &theirs);
    if (teller.count > MOST_TOLD)
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "resume",
                         "%zu more keys differ from the checkpoint's config", teller.count - MOST_TOLD);
out:
    fuse_text_free(&text);
    free(mine.items);
    free(theirs.items);
    return status;
}
