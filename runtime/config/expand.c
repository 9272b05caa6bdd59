/* ${section.key} and ${env:NAME}. What is referred to is expanded first; a loop is an error at the entry where it
 * closes. Text in double quotes stands as it is written. */
#include "config/internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_EXPANDED_BYTES = 1 << 20 };

struct expander {
    struct fuse_config *config;
    const char *section_name;
    struct fuse_entry *entry;
    struct fuse_diagnostics *diagnostics;
    bool is_early; /* layers are not merged yet: only ${env:NAME} */
};

static bool has_control(const char *text)
{
    for (; *text != '\0'; text++)
        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7f)
            return true;
    return false;
}

/* The value of an environment variable; NULL if that failed (reported). */
static const char *from_environment(const struct expander *self, const char *name)
{
    const char *text = getenv(name);
    if (text == NULL)
        fuse_entry_fail(self->config, self->diagnostics, self->section_name, self->entry,
                        "${env:%s}: the environment variable is not set", name);
    return text;
}

/* An error about ${reference}, with the nearest key of the section. */
static void fail_unknown(const struct expander *self, const char *reference, const struct fuse_section *section,
                         const char *key)
{
    const char *names[64];
    size_t count = 0, own_count = 0;
    const struct fuse_option *own = fuse_role_options(section->role, &own_count);
    for (size_t i = 0; i < own_count && count < 64; i++)
        names[count++] = own[i].key;
    struct fuse_option option;
    for (size_t i = 0; count < 64 && section->component != NULL && i < section->component->option_count; i++)
        if (fuse_component_option(section->component, i, &option))
            names[count++] = option.key;
    const char *nearest = fuse_nearest_key(key, names, count);
    if (nearest != NULL)
        fuse_entry_fail(self->config, self->diagnostics, self->section_name, self->entry,
                        "${%s}: no such key (did you mean '%s'?)", reference, nearest);
    else
        fuse_entry_fail(self->config, self->diagnostics, self->section_name, self->entry, "${%s}: no such key",
                        reference);
}

/* The raw text of section.key, as it would stand in a config; NULL if that failed (reported, here or where it stands).
 */
static const char *from_config(const struct expander *self, const char *reference)
{
    struct fuse_config *config = self->config;
    const char *dot = strrchr(reference, '.');
    if (dot == NULL || dot == reference) {
        fuse_entry_fail(config, self->diagnostics, self->section_name, self->entry,
                        "${%s}: a reference reads ${section.key} or ${env:NAME}", reference);
        return NULL;
    }
    char *name = fuse_arena_strndup(&config->arena, reference, (size_t)(dot - reference));
    if (name == NULL) {
        config->is_out_of_memory = true;
        return NULL;
    }
    struct fuse_section *section = fuse_config_section(config, name);
    const char *argument = "";
    if (section == NULL && fuse_role_of(name, &argument) != FUSE_ROLE_UNKNOWN && *argument == '\0')
        section = fuse_config_add_section(config, name); /* of defaults alone */
    if (section == NULL && (config->has_lost_section || config->has_lost_layer)) {
        self->entry->has_error = true; /* it may have been in what could not be read */
        return NULL;
    }
    if (section == NULL || section->role == FUSE_ROLE_UNKNOWN) {
        fuse_entry_fail(config, self->diagnostics, self->section_name, self->entry, "${%s}: there is no section [%s]",
                        reference, name);
        return NULL;
    }
    if (config->resolver != NULL)
        fuse_section_find_plugin(config, section, self->diagnostics);
    struct fuse_section *holder = section;
    struct fuse_entry *source = fuse_section_source(config, section, dot + 1, &holder);
    struct fuse_option option;
    const bool is_known = fuse_section_option(section, dot + 1, &option);
    if (source != NULL && source->is_broken)
        source->has_error = true;
    const char *text = NULL;
    if (source != NULL)
        text = source->is_broken ? NULL : fuse_entry_expand(config, holder, source, self->diagnostics);
    else if (!is_known && !section->is_plugin_unknown)
        fail_unknown(self, reference, section, dot + 1);
    else if (is_known && (text = fuse_section_default(config, section, &option, self->diagnostics)) == NULL)
        fuse_entry_fail(config, self->diagnostics, self->section_name, self->entry, "${%s}: the key has no value",
                        reference);
    if (text == NULL)
        self->entry->has_error = true; /* told where the fault is */
    const bool is_path = is_known && option.type == FUSERUN_OPTION_PATH && (option.flags & FUSERUN_OPTION_LIST) == 0;
    if (text == NULL || source == NULL || !is_path || *text == '/' || *text == '"')
        return text;
    /* A relative path means the same file wherever it is referred to. */
    const bool is_output = section->role == FUSE_ROLE_RUN && strcmp(option.key, "output") == 0;
    text = fuse_path_join(&config->arena, is_output ? config->working_folder : source->layer->folder, text);
    config->is_out_of_memory |= text == NULL;
    return text;
}

/* Appends what ${reference} stands for. is_whole: it is the whole value, so that quotes and lists come along. */
static bool append_reference(const struct expander *self, const char *reference, bool is_whole, struct fuse_text *text)
{
    const bool is_env = strncmp(reference, "env:", 4) == 0;
    if (!is_env && self->is_early) {
        fuse_entry_fail(self->config, self->diagnostics, self->section_name, self->entry,
                        "${%s}: only ${env:NAME} works here, since other keys are not known yet", reference);
        return false;
    }
    const char *value = is_env ? from_environment(self, reference + 4) : from_config(self, reference);
    if (value == NULL)
        return false;
    if (has_control(value)) {
        fuse_entry_fail(self->config, self->diagnostics, self->section_name, self->entry,
                        "${%s}: the value holds a line break or another control character", reference);
        return false;
    }
    /* References to references double at each step: what all of them make together is bounded. */
    self->config->expanded_bytes += strlen(value);
    if (self->config->expanded_bytes > MAX_EXPANDED_BYTES) {
        fuse_entry_fail(self->config, self->diagnostics, self->section_name, self->entry,
                        "${%s}: the config's references together make more than 1 MiB of text", reference);
        return false;
    }
    size_t count = 0;
    const char *problem = NULL;
    if (!is_env && !is_whole && *value == '"') {
        struct fuse_word *word = fuse_words_split(&self->config->arena, value, false, &count, &problem);
        value = word == NULL ? value : word->text;
    }
    fuse_text_add(text, value);
    return true;
}

static bool expand(const struct expander *self, struct fuse_text *text)
{
    const char *at = self->entry->text, *end = at + strlen(at);
    bool starts_element = true;
    while (at < end) {
        if (*at == '"' && starts_element) {
            const char *after = fuse_quoted_end(at, end);
            after = after == NULL ? end : after; /* told when the value is judged */
            fuse_text_add_bytes(text, at, (size_t)(after - at));
            at = after;
            starts_element = false;
            continue;
        }
        if (at[0] != '$' || at[1] != '{') {
            starts_element = *at == ',' || (starts_element && (*at == ' ' || *at == '\t'));
            fuse_text_add_bytes(text, at++, 1);
            continue;
        }
        const char *close = strchr(at, '}');
        if (close == NULL) {
            fuse_entry_fail(self->config, self->diagnostics, self->section_name, self->entry,
                            "'${' has no closing '}' (in double quotes it stands for itself)");
            return false;
        }
        char *reference = fuse_arena_strndup(&self->config->arena, at + 2, (size_t)(close - at - 2));
        if (reference == NULL) {
            self->config->is_out_of_memory = true;
            return false;
        }
        const bool is_whole = at == self->entry->text && close + 1 == end;
        if (!append_reference(self, reference, is_whole, text))
            return false;
        starts_element = false;
        at = close + 1;
    }
    return true;
}

static const char *run_expander(const struct expander *self)
{
    struct fuse_entry *entry = self->entry;
    struct fuse_config *config = self->config;
    if (entry->expansion == FUSE_EXPANDED)
        return entry->expanded;
    if (entry->expansion == FUSE_EXPANSION_FAILED)
        return NULL;
    if (entry->expansion == FUSE_EXPANDING) {
        fuse_entry_fail(config, self->diagnostics, self->section_name, entry, "the value refers to itself: %s",
                        entry->text);
        return NULL;
    }
    if (config->expansion_depth == MAX_DEPTH) {
        fuse_entry_fail(config, self->diagnostics, self->section_name, entry, "references go more than %d deep",
                        MAX_DEPTH);
        return NULL;
    }
    entry->expansion = FUSE_EXPANDING;
    config->expansion_depth++;
    struct fuse_text text = {0};
    bool is_good = true;
    if (has_control(entry->text)) {
        fuse_entry_fail(config, self->diagnostics, self->section_name, entry,
                        "the value holds a line break or another control character");
        is_good = false;
    }
    is_good = is_good && expand(self, &text);
    if (is_good) {
        entry->expanded = fuse_arena_strdup(&config->arena, text.data == NULL ? "" : text.data);
        config->is_out_of_memory |= entry->expanded == NULL || text.failed;
        is_good = entry->expanded != NULL && !text.failed;
    }
    fuse_text_free(&text);
    config->expansion_depth--;
    entry->expansion = is_good ? FUSE_EXPANDED : FUSE_EXPANSION_FAILED;
    return is_good ? entry->expanded : NULL;
}

const char *fuse_entry_expand(struct fuse_config *config, struct fuse_section *section, struct fuse_entry *entry,
                              struct fuse_diagnostics *diagnostics)
{
    const struct expander self = {config, section->name, entry, diagnostics, false};
    return run_expander(&self);
}

const char *fuse_expand_early(struct fuse_config *config, const char *section, struct fuse_entry *entry,
                              struct fuse_diagnostics *diagnostics)
{
    const struct expander self = {config, section, entry, diagnostics, true};
    return run_expander(&self);
}
