/* From layers to values: plugins are found, layers' rules applied, every key judged. A mistake is told once, where it
 * is: what follows from it stays silent. */
#include "config/internal.h"

#include "base/number.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- plugins
 * ---------------------------------------------------------------------------------------------------------- */

/* The name behind a `plugin =`, with a path to a file made absolute; NULL if that failed (reported). */
static const char *plugin_name(struct fuse_config *config, struct fuse_section *section, struct fuse_entry *entry,
                               struct fuse_diagnostics *diagnostics)
{
    if (entry->is_broken)
        return NULL;
    const char *text = fuse_entry_expand(config, section, entry, diagnostics);
    if (text == NULL)
        return NULL;
    size_t count = 0;
    const char *problem = NULL;
    struct fuse_word *word = fuse_words_split(&config->arena, text, false, &count, &problem);
    if (word == NULL) {
        if (problem == NULL)
            config->is_out_of_memory = true;
        else
            fuse_entry_fail(config, diagnostics, section->name, entry, "%s", problem);
        return NULL;
    }
    const size_t length = strlen(word->text);
    if (length < 3 || strcmp(word->text + length - 3, ".so") != 0)
        return word->text;
    const char *path = fuse_path_join(&config->arena, entry->layer->folder, word->text);
    config->is_out_of_memory |= path == NULL;
    return path;
}

static const char *layer_name(const struct fuse_layer *layer)
{
    return layer->is_command_line ? "the command line" : layer->file;
}

/* Keys of earlier layers that the plugin chosen by section->changed_by lacks. */
static void drop_keys(struct fuse_config *config, struct fuse_section *section, const struct fuse_component *component,
                      struct fuse_diagnostics *diagnostics)
{
    struct fuse_option option;
    for (struct fuse_entry *entry = section->entries; entry != NULL; entry = entry->next) {
        if (entry->replaced_by != NULL || entry->layer->rank >= section->changed_by->rank || entry->is_broken ||
            fuse_role_find_option(section->role, entry->key, &option) ||
            fuse_component_find_option(component, entry->key, &option))
            continue;
        entry->replaced_by = section->changed_by;
        if (*entry->text != '\0')
            fuse_config_say(config, diagnostics, entry->layer, entry->line, false, section->name, entry->key,
                            "dropped: %s changes the plugin to '%s', which has no such option",
                            layer_name(section->changed_by), component->name);
    }
}

static int find_component(struct fuse_config *config, struct fuse_section *section, const char *name,
                          struct fuse_error *error)
{
    const struct fuse_resolver *resolver = config->resolver;
    const char *file = NULL;
    section->component = NULL;
    const int found =
        resolver->find(resolver->user, fuse_role_kind(section->role), name, &section->component, &file, error);
    config->is_out_of_memory |= found == FUSERUN_ERROR_MEMORY;
    if (found != FUSERUN_OK)
        return found;
    section->file = fuse_arena_strdup(&config->arena, file == NULL ? name : file);
    config->is_out_of_memory |= section->file == NULL;
    section->is_file_written =
        resolver->is_standard != NULL && file != NULL && !resolver->is_standard(resolver->user, file);
    return FUSERUN_OK;
}

/* Follows the section's own `plugin` through the layers. */
static void find_own_plugin(struct fuse_config *config, struct fuse_section *section, struct fuse_entry *last,
                            struct fuse_diagnostics *diagnostics)
{
    const char *before = NULL;
    section->is_plugin_unknown = true;
    for (struct fuse_entry *entry = section->entries; entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, "plugin") != 0 || *entry->text == '\0')
            continue;
        const char *name = plugin_name(config, section, entry, diagnostics);
        if (name == NULL)
            return;
        const bool is_change = before != NULL && strcmp(before, name) != 0;
        if (is_change)
            section->changed_by = entry->layer;
        before = name;
        struct fuse_error error = FUSE_ERROR_INIT;
        if (entry == last && find_component(config, section, name, &error) != FUSERUN_OK) {
            fuse_entry_fail(config, diagnostics, section->name, entry, "%s", error.text);
            return;
        }
        /* A plugin between the first and the last matters only by what it made the layers before it lose. */
        if (entry != last && (!is_change || find_component(config, section, name, NULL) != FUSERUN_OK))
            continue;
        if (section->changed_by != NULL)
            drop_keys(config, section, section->component, diagnostics);
        if (entry == last)
            section->is_plugin_unknown = false;
    }
}

void fuse_section_find_plugin(struct fuse_config *config, struct fuse_section *section,
                              struct fuse_diagnostics *diagnostics)
{
    if (fuse_role_kind(section->role) == 0 || section->plugin_progress != FUSE_UNTOUCHED)
        return;
    section->plugin_progress = FUSE_UNDER_WAY;
    struct fuse_entry *own = fuse_section_entry(section, "plugin");
    const char *parent_name = fuse_role_parent(section->role);
    if (own != NULL)
        find_own_plugin(config, section, own, diagnostics);
    else if (parent_name != NULL) {
        struct fuse_section *parent = fuse_config_section(config, parent_name);
        if (parent != NULL)
            fuse_section_find_plugin(config, parent, diagnostics);
        section->is_plugin_unknown = parent == NULL || parent->is_plugin_unknown || parent->component == NULL;
        if (!section->is_plugin_unknown) {
            section->component = parent->component;
            section->file = parent->file;
            section->is_file_written = parent->is_file_written;
            section->changed_by = parent->changed_by;
            if (section->changed_by != NULL)
                drop_keys(config, section, section->component, diagnostics);
        }
    } else
        section->is_plugin_unknown = true;
    section->plugin_progress = FUSE_DONE;
}

/* ---- keys
 * --------------------------------------------------------------------------------------------------------------- */

bool fuse_section_option(const struct fuse_section *section, const char *key, struct fuse_option *option)
{
    return fuse_role_find_option(section->role, key, option) ||
           fuse_component_find_option(section->component, key, option);
}

struct fuse_entry *fuse_section_source(const struct fuse_config *config, struct fuse_section *section, const char *key,
                                       struct fuse_section **holder)
{
    *holder = section;
    struct fuse_entry *entry = fuse_section_entry(section, key);
    const char *parent_name = fuse_role_parent(section->role);
    if (entry != NULL || parent_name == NULL)
        return entry;
    struct fuse_section *parent = fuse_config_section(config, parent_name);
    struct fuse_option option;
    const bool is_own = fuse_role_find_option(section->role, key, &option);
    bool is_inherited = parent != NULL && !is_own && fuse_component_find_option(section->component, key, &option);
    if (section->role == FUSE_ROLE_EVAL)
        is_inherited = is_inherited || strcmp(key, "batch_size") == 0;
    else if (is_inherited && parent->component != section->component)
        is_inherited = strcmp(key, "lr") == 0; /* another optimizer's options mean other things */
    if (!is_inherited)
        return NULL;
    *holder = parent;
    return fuse_section_entry(parent, key);
}

/* The text of a key as one unquoted word; NULL if that failed. */
static const char *run_name(struct fuse_config *config, struct fuse_diagnostics *diagnostics)
{
    struct fuse_section *run = fuse_config_section(config, "run");
    struct fuse_entry *entry = fuse_section_entry(run, "name");
    size_t count = 0;
    const char *problem = NULL;
    const char *text = entry == NULL || entry->is_broken ? NULL : fuse_entry_expand(config, run, entry, diagnostics);
    struct fuse_word *word = text == NULL ? NULL : fuse_words_split(&config->arena, text, false, &count, &problem);
    if (entry != NULL)
        return word == NULL ? NULL : word->text;
    const char *slash = strrchr(config->path, '/');
    const char *base = slash == NULL ? config->path : slash + 1;
    const char *dot = strrchr(base, '.');
    const size_t length = dot == NULL || dot == base ? strlen(base) : (size_t)(dot - base);
    return fuse_arena_strndup(&config->arena, base, length);
}

/* The text in the form that a config would have. */
static const char *as_word(struct fuse_config *config, const char *text)
{
    struct fuse_text word = {0};
    fuse_words_add(&word, text);
    const char *copy = word.failed ? NULL : fuse_arena_strdup(&config->arena, word.data);
    config->is_out_of_memory |= copy == NULL;
    fuse_text_free(&word);
    return copy;
}

const char *fuse_section_default(struct fuse_config *config, const struct fuse_section *section,
                                 const struct fuse_option *option, struct fuse_diagnostics *diagnostics)
{
    if (section->role == FUSE_ROLE_CURVE && strcmp(option->key, "drives") == 0)
        return as_word(config, section->argument);
    if (section->role != FUSE_ROLE_RUN)
        return option->default_text;
    const bool is_output = strcmp(option->key, "output") == 0;
    if (!is_output && strcmp(option->key, "name") != 0)
        return option->default_text;
    const char *name = run_name(config, diagnostics);
    if (name == NULL || !is_output)
        return name == NULL ? NULL : as_word(config, name);
    char *path = fuse_format("%s/runs/%s", config->working_folder, name);
    const char *word = path == NULL ? NULL : as_word(config, path);
    config->is_out_of_memory |= path == NULL;
    free(path);
    return word;
}

enum { MAX_NAMES = 128 };

/* All keys that the section takes. */
static size_t known_keys(const struct fuse_section *section, const char *names[MAX_NAMES])
{
    size_t count = 0, own_count = 0;
    const struct fuse_option *own = fuse_role_options(section->role, &own_count);
    for (size_t i = 0; i < own_count && count < MAX_NAMES; i++)
        names[count++] = own[i].key;
    struct fuse_option option;
    for (size_t i = 0; section->component != NULL && i < section->component->option_count && count < MAX_NAMES; i++)
        if (fuse_component_option(section->component, i, &option))
            names[count++] = option.key;
    return count;
}

static void fail_unknown_key(struct fuse_config *config, struct fuse_section *section, struct fuse_entry *entry,
                             struct fuse_diagnostics *diagnostics)
{
    const char *names[MAX_NAMES];
    struct fuse_option option;
    const size_t count = known_keys(section, names);
    const char *nearest = fuse_nearest_key(entry->key, names, count);
    struct fuse_text text = {0};
    if (section->role == FUSE_ROLE_STAGE && fuse_role_find_option(FUSE_ROLE_SCHEDULER, entry->key, &option))
        fuse_text_add(&text, "the key stands in [scheduler] and holds for all its stages");
    else if (section->role == FUSE_ROLE_GROUP && fuse_role_find_option(FUSE_ROLE_OPTIMIZER, entry->key, &option))
        fuse_text_add(&text, "the key stands in [optimizer] and holds for all groups");
    else {
        fuse_text_addf(&text, "unknown key; [%s] takes ", section->name);
        for (size_t i = 0; i < count; i++)
            fuse_text_addf(&text, "%s%s", i == 0 ? "" : ", ", names[i]);
        if (nearest != NULL) {
            fuse_text_addf(&text, " (did you mean '%s'?)", nearest);
            if (section->suggested_count < sizeof(section->suggested) / sizeof(section->suggested[0]))
                section->suggested[section->suggested_count++] = nearest;
        }
    }
    config->is_out_of_memory |= text.failed;
    fuse_entry_fail(config, diagnostics, section->name, entry, "%s", text.failed ? "unknown key" : text.data);
    fuse_text_free(&text);
}

static bool is_suggested(const struct fuse_section *section, const char *key)
{
    for (size_t i = 0; i < section->suggested_count; i++)
        if (strcmp(section->suggested[i], key) == 0)
            return true;
    return false;
}

/* ---- values
 * ------------------------------------------------------------------------------------------------------------- */

static bool is_device(const char *text)
{
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0)
        return true;
    return strncmp(text, "cuda:", 5) == 0 && text[5] != '\0' && strspn(text + 5, "0123456789") == strlen(text + 5);
}

static bool is_memory_limit(const char *text)
{
    int64_t bytes;
    return strcmp(text, "auto") == 0 || strcmp(text, "none") == 0 || (fuse_size_parse(text, &bytes) && bytes > 0);
}

/* run.resume is one of two words, or the path of a checkpoint. */
static bool is_resume(const struct fuse_section *section, const struct fuse_option *option)
{
    return section->role == FUSE_ROLE_RUN && strcmp(option->key, "resume") == 0;
}

/* What a table cannot say. */
static void check_value(struct fuse_config *config, const struct fuse_section *section, struct fuse_entry *entry,
                        const struct fuse_value *value, struct fuse_diagnostics *diagnostics)
{
    const char *key = value->option.key;
    if (section->role == FUSE_ROLE_RUN && strcmp(key, "device") == 0 && !is_device(value->texts[0])) {
        fuse_entry_fail(config, diagnostics, section->name, entry,
                        "'" FUSE_SHOWN "' is not one of auto, cpu, cuda, cuda:N", FUSE_SHOW(value->texts[0]));
        return;
    }
    if (section->role == FUSE_ROLE_MEMORY && strcmp(key, "limit") == 0 && !is_memory_limit(value->texts[0])) {
        fuse_entry_fail(config, diagnostics, section->name, entry,
                        "'" FUSE_SHOWN "' is not one of auto, none, a size (512MiB, 2GiB)", FUSE_SHOW(value->texts[0]));
        return;
    }
    struct stat found;
    const bool is_path = config->resolver->checks_data_files && value->option.type == FUSERUN_OPTION_PATH;
    const bool is_data = is_path && value->count == 1 && fuse_role_kind(section->role) == FUSERUN_KIND_DATASET;
    /* `latest` may have lost what it pointed at: then the one before counts. */
    const bool is_checkpoint = is_path && is_resume(section, &value->option);
    if ((is_data && access(value->texts[0], R_OK) != 0) || (is_checkpoint && lstat(value->texts[0], &found) != 0)) {
        fuse_entry_fail(config, diagnostics, section->name, entry, "cannot open '%s': %s", value->texts[0],
                        strerror(errno));
    }
}

/* The value that an entry gives. */
static void value_from_entry(struct fuse_config *config, struct fuse_section *section, struct fuse_section *holder,
                             struct fuse_entry *entry, struct fuse_value *value, struct fuse_diagnostics *diagnostics)
{
    const struct fuse_option *option = &value->option;
    if (entry->is_broken || entry->has_error)
        return;
    if (entry->continued_line != 0 && (option->flags & FUSERUN_OPTION_LIST) == 0) {
        entry->has_error = true;
        fuse_config_say(config, diagnostics, entry->layer, entry->continued_line, true, holder->name, entry->key,
                        "the line is indented, and '%s' is not a list that could go on", entry->key);
        return;
    }
    const char *text = fuse_entry_expand(config, holder, entry, diagnostics);
    if (text == NULL)
        return;
    const bool is_output = section->role == FUSE_ROLE_RUN && strcmp(option->key, "output") == 0;
    if (is_resume(section, option) && strcmp(text, "auto") != 0 && strcmp(text, "never") != 0)
        value->option.type = FUSERUN_OPTION_PATH;
    const char *folder = is_output ? config->working_folder : entry->layer->folder;
    struct fuse_text message = {0};
    const int status = fuse_value_parse(&section->options->arena, value, text, folder, &message);
    config->is_out_of_memory |= status == FUSERUN_ERROR_MEMORY || message.failed;
    if (status == FUSERUN_OK)
        check_value(config, section, entry, value, diagnostics);
    else if (status == FUSERUN_ERROR_CONFIG)
        fuse_entry_fail(config, diagnostics, holder->name, entry, "%s", message.failed ? "wrong value" : message.data);
    fuse_text_free(&message);
}

/* The value that a key has when nobody writes it. */
static void value_from_default(struct fuse_config *config, struct fuse_section *section, struct fuse_value *value,
                               struct fuse_diagnostics *diagnostics)
{
    const struct fuse_option *option = &value->option;
    if ((option->flags & FUSERUN_OPTION_REQUIRED) != 0) {
        if (section->places != NULL && !config->has_lost_layer && !is_suggested(section, option->key))
            fuse_section_fail(config, diagnostics, section, option->key, "the key is missing (%s)",
                              option->help == NULL ? "required" : option->help);
        return;
    }
    const char *text = fuse_section_default(config, section, option, diagnostics);
    if (text == NULL)
        return;
    struct fuse_text message = {0};
    const int status = fuse_value_parse(&section->options->arena, value, text, config->folder, &message);
    config->is_out_of_memory |= status == FUSERUN_ERROR_MEMORY || message.failed;
    if (status == FUSERUN_ERROR_CONFIG)
        fuse_section_fail(config, diagnostics, section, option->key, "the plugin declares a wrong default: %s",
                          message.failed ? text : message.data);
    fuse_text_free(&message);
}

/* A plugin's options must not hide keys of fuserun's own. */
static void check_clash(struct fuse_config *config, struct fuse_section *section, const char *key,
                        struct fuse_diagnostics *diagnostics)
{
    struct fuse_entry *plugin = fuse_section_entry(section, "plugin");
    if (plugin != NULL)
        fuse_entry_fail(config, diagnostics, section->name, plugin,
                        "the plugin declares the option '%s', which is a key of fuserun's own", key);
}

static bool list_options(struct fuse_config *config, struct fuse_section *section, struct fuse_diagnostics *diagnostics)
{
    size_t own_count = 0;
    const struct fuse_option *own = fuse_role_options(section->role, &own_count);
    const size_t plugin_count = section->component == NULL ? 0 : section->component->option_count;
    struct fuse_options *options = calloc(1, sizeof(*options));
    section->options = options;
    if (options != NULL)
        options->values = fuse_arena_alloc(&options->arena, (own_count + plugin_count + 1) * sizeof(*options->values));
    if (options == NULL || options->values == NULL)
        return false;
    for (size_t i = 0; i < own_count; i++)
        options->values[options->count++].option = own[i];
    for (size_t i = 0; i < plugin_count; i++) {
        struct fuse_option option;
        if (!fuse_component_option(section->component, i, &option))
            continue;
        if (fuse_options_value(options, option.key) != NULL)
            check_clash(config, section, option.key, diagnostics);
        else
            options->values[options->count++].option = option;
    }
    return true;
}

void fuse_section_make_values(struct fuse_config *config, struct fuse_section *section,
                              struct fuse_diagnostics *diagnostics)
{
    if (section->value_progress != FUSE_UNTOUCHED)
        return;
    section->value_progress = FUSE_UNDER_WAY;
    fuse_section_find_plugin(config, section, diagnostics);
    if (!list_options(config, section, diagnostics)) {
        config->is_out_of_memory = true;
        return;
    }
    for (struct fuse_entry *entry = section->entries; entry != NULL; entry = entry->next)
        if (entry->replaced_by == NULL && !entry->is_broken && !section->is_plugin_unknown &&
            fuse_options_value(section->options, entry->key) == NULL)
            fail_unknown_key(config, section, entry, diagnostics);
    for (size_t i = 0; i < section->options->count; i++) {
        struct fuse_value *value = &section->options->values[i];
        struct fuse_section *holder = section;
        struct fuse_entry *entry = fuse_section_source(config, section, value->option.key, &holder);
        if (entry != NULL)
            value_from_entry(config, section, holder, entry, value, diagnostics);
        else
            value_from_default(config, section, value, diagnostics);
    }
    section->value_progress = FUSE_DONE;
}

/* ---- the whole
 * ------------------------------------------------------------------------------------------------------------ */

/* A section that no role knows. */
static void fail_unknown_section(struct fuse_config *config, struct fuse_section *section,
                                 struct fuse_diagnostics *diagnostics)
{
    static const char *const with_names[] = {"group", "scheduler"};
    size_t count = 0;
    const char *const *names = fuse_section_names(&count);
    const char *nearest = fuse_nearest(section->name, names, count);
    const char *rest = section->name + strcspn(section->name, " .");
    if (nearest == NULL && *rest != '\0') { /* [grup no_decay] */
        char *word = fuse_strndup(section->name, (size_t)(rest - section->name));
        const char *first = word == NULL ? NULL : fuse_nearest(word, with_names, 2);
        char *guess = first == NULL ? NULL : fuse_format("%s%s", first, rest);
        nearest = guess == NULL ? NULL : fuse_arena_strdup(&config->arena, guess);
        free(guess);
        free(word);
    }
    for (const struct fuse_place *place = section->places; place != NULL; place = place->next) {
        if (nearest != NULL)
            fuse_config_say(config, diagnostics, place->layer, place->line, true, section->name, NULL,
                            "unknown section (did you mean '%s'?)", nearest);
        else
            fuse_config_say(config, diagnostics, place->layer, place->line, true, section->name, NULL,
                            "unknown section; there are run, plugins, model, data, eval, loss, optimizer, group NAME, "
                            "scheduler, scheduler.NAME, memory, checkpoint");
    }
    struct fuse_section *meant = nearest == NULL ? NULL : fuse_config_section(config, nearest);
    if (meant != NULL)
        meant->is_misspelt = true;
}

/* Exactly one of run.steps and run.epochs; a later layer's drops the other one of an earlier layer. */
static void choose_length(struct fuse_config *config, struct fuse_section *run, struct fuse_diagnostics *diagnostics)
{
    struct fuse_entry *steps = fuse_section_entry(run, "steps"), *epochs = fuse_section_entry(run, "epochs");
    if (steps == NULL || epochs == NULL)
        return;
    struct fuse_entry *later = steps->layer->rank > epochs->layer->rank ? steps : epochs;
    struct fuse_entry *earlier = later == steps ? epochs : steps;
    if (later->layer != earlier->layer) {
        earlier->replaced_by = later->layer;
        return;
    }
    if (earlier->line > later->line) {
        later = earlier;
        earlier = later == steps ? epochs : steps;
    }
    fuse_entry_fail(config, diagnostics, run->name, later, "'%s' is set too; exactly one of the two", earlier->key);
}

/* Three ways to clip, one at a time: what they would mean together nobody has said. */
static void check_clipping(struct fuse_config *config, struct fuse_section *optimizer,
                           struct fuse_diagnostics *diagnostics)
{
    static const char *const keys[] = {"clip_grad_norm", "clip_grad_value", "clip_grad_norm_per_parameter"};
    const struct fuse_entry *first = NULL;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct fuse_entry *entry = fuse_section_entry(optimizer, keys[i]);
        if (entry == NULL || entry->text[0] == '\0')
            continue;
        if (first != NULL)
            fuse_entry_fail(config, diagnostics, optimizer->name, entry, "'%s' is set too; one of them at the most",
                            first->key);
        else
            first = entry;
    }
}

static void check_length(struct fuse_config *config, struct fuse_section *run, struct fuse_diagnostics *diagnostics)
{
    if (run->places != NULL && !config->has_lost_layer && fuse_section_entry(run, "steps") == NULL &&
        fuse_section_entry(run, "epochs") == NULL && !is_suggested(run, "steps") && !is_suggested(run, "epochs"))
        fuse_section_fail(config, diagnostics, run, "steps", "the key is missing; set steps or epochs");
}

/* The default of run.output is runs/NAME, and a name leads nowhere else. */
static void check_name(const struct fuse_config *config, const struct fuse_section *run,
                       struct fuse_diagnostics *diagnostics)
{
    const struct fuse_entry *output = fuse_section_entry(run, "output");
    const bool has_output = output != NULL && output->text[0] != '\0';
    const char *name = has_output ? NULL : fuse_option_text(run->options, "name");
    for (const char *part = name; part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) != 0 || (part[2] != '/' && part[2] != '\0'))
            continue;
        fuse_config_report(config, diagnostics, run->name, "name",
                           "'%s' would lead out of runs/; without '..', or with a run.output of its own", name);
        return;
    }
}

/* Sections that every experiment has. */
static void check_missing(struct fuse_config *config, struct fuse_diagnostics *diagnostics)
{
    static const char *const needed[][2] = {
        {"run", "steps or epochs"}, {"model", "a plugin"}, {"data", "a plugin"}, {"optimizer", "a plugin"}};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]) && !config->has_lost_section && !config->has_lost_layer;
         i++) {
        const struct fuse_section *section = fuse_config_section(config, needed[i][0]);
        if (section->places == NULL && !section->is_misspelt)
            fuse_section_fail(config, diagnostics, section, NULL, "the section is missing; it names %s", needed[i][1]);
    }
}

static void check_loss(struct fuse_config *config, struct fuse_section *loss, struct fuse_diagnostics *diagnostics)
{
    const char *kind = fuse_option_text(loss->options, "kind");
    if (kind == NULL || strcmp(kind, "cross_entropy") == 0 || fuse_option_number(loss->options, "label_smoothing") == 0)
        return;
    struct fuse_entry *entry = fuse_section_entry(loss, "label_smoothing");
    if (entry != NULL)
        fuse_entry_fail(config, diagnostics, loss->name, entry, "only cross_entropy has it, and kind is %s", kind);
}

/* config->groups and config->curves, in file order. */
static bool list_sections(struct fuse_config *config, struct fuse_diagnostics *diagnostics)
{
    size_t count = 1;
    for (const struct fuse_section *section = config->sections; section != NULL; section = section->next)
        count++;
    config->groups = fuse_arena_alloc(&config->arena, count * sizeof(*config->groups));
    config->curves = fuse_arena_alloc(&config->arena, count * sizeof(*config->curves));
    if (config->groups == NULL || config->curves == NULL)
        return false;
    for (struct fuse_section *section = config->sections; section != NULL; section = section->next) {
        if (section->role == FUSE_ROLE_CURVE && !section->is_dropped)
            config->curves[config->curve_count++] = section->argument;
        if (section->role != FUSE_ROLE_GROUP)
            continue;
        if (strcmp(section->argument, "default") == 0)
            fuse_section_fail(config, diagnostics, section, NULL,
                              "'default' is the group of the parameters that no [group NAME] takes");
        struct fuse_config_group *group = &config->groups[config->group_count++];
        group->name = section->argument;
        group->section = section->name;
        group->match = fuse_option_texts(section->options, "match", &group->match_count);
        group->component = section->component;
        group->options = section->options;
    }
    return true;
}

static bool is_scheduling(enum fuse_role role)
{
    return role == FUSE_ROLE_SCHEDULER || role == FUSE_ROLE_CURVE || role == FUSE_ROLE_STAGE;
}

int fuse_config_resolve(struct fuse_config *config, const struct fuse_resolver *resolver,
                        struct fuse_diagnostics *diagnostics)
{
    static const char *const always[] = {"run",  "plugins",   "model",  "data",
                                         "loss", "optimizer", "memory", "checkpoint"};
    config->resolver = resolver;
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        config->is_out_of_memory |= fuse_config_add_section(config, always[i]) == NULL;
    if (config->is_out_of_memory)
        goto out;
    for (struct fuse_section *section = config->sections; section != NULL; section = section->next)
        if (section->role == FUSE_ROLE_UNKNOWN)
            fail_unknown_section(config, section, diagnostics);
    check_missing(config, diagnostics);
    struct fuse_section *run = fuse_config_section(config, "run");
    choose_length(config, run, diagnostics);
    check_clipping(config, fuse_config_section(config, "optimizer"), diagnostics);
    /* [data] and [optimizer] before what inherits from them, so that a mistake is told under its own section. */
    fuse_section_make_values(config, fuse_config_section(config, "data"), diagnostics);
    fuse_section_make_values(config, fuse_config_section(config, "optimizer"), diagnostics);
    for (struct fuse_section *section = config->sections; section != NULL; section = section->next)
        if (section->role != FUSE_ROLE_UNKNOWN && !is_scheduling(section->role))
            fuse_section_make_values(config, section, diagnostics);
    fuse_schedules_resolve(config, diagnostics);
    check_length(config, run, diagnostics);
    check_name(config, run, diagnostics);
    check_loss(config, fuse_config_section(config, "loss"), diagnostics);
    config->is_out_of_memory |= !list_sections(config, diagnostics);
out:
    config->resolver = NULL;
    if (config->is_out_of_memory)
        return FUSERUN_ERROR_MEMORY;
    return fuse_diagnostics_error_count(diagnostics) == 0 ? FUSERUN_OK : FUSERUN_ERROR_CONFIG;
}
