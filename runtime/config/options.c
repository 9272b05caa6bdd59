#include "config/internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fuse_value *fuse_options_value(const struct fuse_options *options, const char *key)
{
    for (size_t i = 0; options != NULL && i < options->count; i++)
        if (strcmp(options->values[i].option.key, key) == 0)
            return &options->values[i];
    return NULL;
}

/* The value if it is set and has an element, else NULL. */
static const struct fuse_value *first_of(const struct fuse_options *options, const char *key)
{
    const struct fuse_value *value = fuse_options_value(options, key);
    return value != NULL && value->is_set && value->count > 0 ? value : NULL;
}

int fuse_option_is_set(const struct fuse_options *options, const char *key)
{
    const struct fuse_value *value = fuse_options_value(options, key);
    return value != NULL && value->is_set;
}

int fuse_option_bool(const struct fuse_options *options, const char *key)
{
    return fuse_option_integer(options, key) != 0;
}

int64_t fuse_option_integer(const struct fuse_options *options, const char *key)
{
    const struct fuse_value *value = first_of(options, key);
    return value == NULL ? 0 : value->integers[0];
}

double fuse_option_number(const struct fuse_options *options, const char *key)
{
    const struct fuse_value *value = first_of(options, key);
    return value == NULL ? 0 : value->numbers[0];
}

const char *fuse_option_text(const struct fuse_options *options, const char *key)
{
    const struct fuse_value *value = first_of(options, key);
    return value == NULL ? NULL : value->texts[0];
}

const int64_t *fuse_option_integers(const struct fuse_options *options, const char *key, size_t *count)
{
    const struct fuse_value *value = first_of(options, key);
    *count = value == NULL ? 0 : value->count;
    return value == NULL ? NULL : value->integers;
}

const double *fuse_option_numbers(const struct fuse_options *options, const char *key, size_t *count)
{
    const struct fuse_value *value = first_of(options, key);
    *count = value == NULL ? 0 : value->count;
    return value == NULL ? NULL : value->numbers;
}

const char *const *fuse_option_texts(const struct fuse_options *options, const char *key, size_t *count)
{
    const struct fuse_value *value = first_of(options, key);
    const bool has_texts = value != NULL && value->texts[0] != NULL;
    *count = has_texts ? value->count : 0;
    return has_texts ? value->texts : NULL;
}

/* ---- the flat list ------------------------------------------------------------------------------------------------
 */

/* How many entries the option takes. */
static size_t flat_width(const struct fuse_option *option)
{
    if (option->type == FUSERUN_OPTION_TEXT || option->type == FUSERUN_OPTION_PATH ||
        option->type == FUSERUN_OPTION_STAGE)
        return 0;
    return (option->flags & FUSERUN_OPTION_LIST) != 0 ? option->list_count : 1;
}

size_t fuse_options_flatten(const struct fuse_component *component, const struct fuse_options *options, double *values,
                            size_t capacity)
{
    size_t count = 0;
    struct fuse_option option;
    for (size_t i = 0; i < component->option_count; i++) {
        if (!fuse_component_option(component, i, &option))
            continue;
        const struct fuse_value *value = first_of(options, option.key);
        const size_t width = flat_width(&option);
        for (size_t j = 0; j < width; j++, count++)
            if (count < capacity)
                values[count] = value == NULL ? NAN : value->numbers[j];
    }
    return count;
}

/* The position of `name` in "beta1|beta2", or -1. */
static int element_index(const char *elements, const char *name)
{
    int index = 0;
    for (const char *at = elements; at != NULL; index++) {
        const char *bar = strchr(at, '|');
        const size_t length = bar == NULL ? strlen(at) : (size_t)(bar - at);
        if (strlen(name) == length && strncmp(at, name, length) == 0)
            return index;
        at = bar == NULL ? NULL : bar + 1;
    }
    return -1;
}

int fuse_options_flat_index(const struct fuse_component *component, const char *name, bool *is_schedulable)
{
    size_t count = 0;
    struct fuse_option option;
    for (size_t i = 0; i < component->option_count; i++) {
        if (!fuse_component_option(component, i, &option))
            continue;
        const size_t width = flat_width(&option);
        int within = -1;
        if ((option.flags & FUSERUN_OPTION_LIST) != 0)
            within = element_index(option.elements, name);
        else if (strcmp(option.key, name) == 0)
            within = 0;
        if (within >= 0 && (size_t)within < width) {
            if (is_schedulable != NULL)
                *is_schedulable = (option.flags & FUSERUN_OPTION_SCHEDULABLE) != 0;
            return (int)count + within;
        }
        count += width;
    }
    return -1;
}

bool fuse_options_flat_fits(const struct fuse_component *component, int index, double value, const char **range)
{
    struct fuse_option option;
    int count = 0;
    const char *unheard;
    range = range != NULL ? range : &unheard;
    *range = NULL;
    for (size_t i = 0; i < component->option_count; i++) {
        if (!fuse_component_option(component, i, &option))
            continue;
        count += (int)flat_width(&option);
        if (index >= count)
            continue;
        *range = option.range;
        return fuse_range_holds(option.range, value);
    }
    return false;
}

/* ---- from pairs ----------------------------------------------------------------------------------------------------
 */

void fuse_options_free(struct fuse_options **options)
{
    if (*options == NULL)
        return;
    fuse_arena_free(&(*options)->arena);
    free(*options);
    *options = NULL;
}

static int set_pair(struct fuse_options *options, const char *pair, const char *folder, struct fuse_text *message,
                    struct fuse_error *error)
{
    const char *equals = strchr(pair, '=');
    if (equals == NULL)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "'%s' is not key=value", pair);
    const char *end = equals;
    while (end > pair && end[-1] == ' ')
        end--;
    const char *key = fuse_arena_strndup(&options->arena, pair, (size_t)(end - pair));
    if (key == NULL)
        return fuse_fail_memory(error, "options", strlen(pair));
    struct fuse_value *value = fuse_options_value(options, key);
    if (value == NULL)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, key, "unknown key '%s'", key);
    if (value->is_set)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, key, "the key stands twice");
    const char *text = equals + 1 + strspn(equals + 1, " \t");
    if (*text == '\0')
        return FUSERUN_OK; /* back to the default */
    const int status = fuse_value_parse(&options->arena, value, text, folder, message);
    if (status == FUSERUN_ERROR_CONFIG)
        return fuse_fail(error, status, key, "%s", message->failed ? "wrong value" : message->data);
    return status == FUSERUN_OK ? status : fuse_fail_memory(error, "options", strlen(pair));
}

static int set_default(struct fuse_options *options, struct fuse_value *value, const char *folder,
                       struct fuse_text *message, struct fuse_error *error)
{
    const struct fuse_option *option = &value->option;
    if ((option->flags & FUSERUN_OPTION_REQUIRED) != 0)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, option->key, "missing");
    if (option->default_text == NULL)
        return FUSERUN_OK;
    const int status = fuse_value_parse(&options->arena, value, option->default_text, folder, message);
    if (status == FUSERUN_ERROR_CONFIG)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, option->key, "the plugin's default is wrong: %s",
                         message->failed ? option->default_text : message->data);
    return status == FUSERUN_OK ? status : fuse_fail_memory(error, "options", sizeof(*value));
}

int fuse_options_from_pairs(const struct fuse_component *component, const char *const *pairs, size_t pair_count,
                            struct fuse_options **options, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_text message = {0};
    char *folder = getcwd(NULL, 0);
    if (folder == NULL && errno != ENOMEM) /* gone, or not to be seen */
        folder = fuse_strdup(".");
    struct fuse_options *made = calloc(1, sizeof(*made));
    if (made == NULL || folder == NULL) {
        status = fuse_fail_memory(error, "options", sizeof(*made));
        goto out;
    }
    made->values = fuse_arena_alloc(&made->arena, (component->option_count + 1) * sizeof(*made->values));
    if (made->values == NULL) {
        status = fuse_fail_memory(error, "options", component->option_count * sizeof(*made->values));
        goto out;
    }
    for (size_t i = 0; i < component->option_count; i++)
        made->count += fuse_component_option(component, i, &made->values[made->count].option);
    for (size_t i = 0; i < pair_count; i++)
        FUSE_TRY_OUT(set_pair(made, pairs[i], folder, &message, error));
    for (size_t i = 0; i < made->count; i++)
        if (!made->values[i].is_set)
            FUSE_TRY_OUT(set_default(made, &made->values[i], folder, &message, error));
    *options = made;
    made = NULL;
out:
    fuse_options_free(&made);
    fuse_text_free(&message);
    free(folder);
    return status;
}
