/* The resolved config. Reading it again gives the same values, wherever it then stands: paths are absolute, every
 * default is written, nothing is included. */
#include "config/internal.h"

#include <string.h>

/* What is not written as it was resolved. */
static const char *fixed_text(enum fuse_role role, const char *key)
{
    if (role == FUSE_ROLE_RUN && strcmp(key, "resume") == 0)
        return "never"; /* the file is for repeating the run, not for going on with it */
    if (role == FUSE_ROLE_RUN && strcmp(key, "overwrite") == 0)
        return "yes";
    return NULL;
}

static void write_plugin(const struct fuse_config *config, const struct fuse_section *section, struct fuse_text *text)
{
    (void)config;
    if (section->component == NULL)
        return;
    fuse_text_add(text, "plugin = ");
    fuse_words_add(text, section->is_file_written ? section->file : section->component->name);
    fuse_text_add(text, "\n");
}

static void write_section(const struct fuse_config *config, const struct fuse_section *section, struct fuse_text *text)
{
    const size_t start = text->length;
    fuse_text_addf(text, "%s[%s]\n", start == 0 ? "" : "\n", section->name);
    const size_t head = text->length;
    for (size_t i = 0; i < section->options->count; i++) {
        const struct fuse_value *value = &section->options->values[i];
        const char *key = value->option.key;
        if (section->role == FUSE_ROLE_RUN && strcmp(key, "include") == 0)
            continue;
        if (fuse_role_kind(section->role) != 0 && strcmp(key, "plugin") == 0) {
            write_plugin(config, section, text);
            continue;
        }
        const char *fixed = fixed_text(section->role, key);
        if (!value->is_set && fixed == NULL)
            continue;
        if (value->is_set && value->count == 0 && value->option.default_text == NULL)
            continue; /* an empty list is what it is anyway */
        fuse_text_addf(text, "%s = ", key);
        if (fixed != NULL)
            fuse_text_add(text, fixed);
        else
            fuse_value_format(value, text);
        fuse_text_add(text, "\n");
    }
    const bool is_optional = section->role == FUSE_ROLE_PLUGINS;
    if (is_optional && text->length == head && !text->failed) {
        text->length = start;
        text->data[start] = '\0';
    }
}

void fuse_config_write(const struct fuse_config *config, struct fuse_text *text)
{
    for (int role = FUSE_ROLE_UNKNOWN + 1; role < FUSE_ROLE_COUNT; role++)
        for (const struct fuse_section *section = config->sections; section != NULL; section = section->next)
            if ((int)section->role == role && !section->is_dropped && section->options != NULL)
                write_section(config, section, text);
}
