#include "config/internal.h"

#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool fuse_component_option(const struct fuse_component *component, size_t index, struct fuse_option *option)
{
    if (component == NULL || index >= component->option_count)
        return false;
    const char *bytes = (const char *)component->options + index * component->option_stride;
    uint32_t size = 0;
    memcpy(&size, bytes, sizeof(size));
    if (size > component->option_stride)
        size = component->option_stride;
    if (size > sizeof(*option))
        size = sizeof(*option);
    memset(option, 0, sizeof(*option));
    memcpy(option, bytes, size);
    return option->key != NULL;
}

bool fuse_component_find_option(const struct fuse_component *component, const char *key, struct fuse_option *option)
{
    for (size_t i = 0; component != NULL && i < component->option_count; i++)
        if (fuse_component_option(component, i, option) && strcmp(option->key, key) == 0)
            return true;
    return false;
}

char *fuse_path_join(struct fuse_arena *arena, const char *folder, const char *path)
{
    if (path[0] == '/')
        return fuse_arena_strdup(arena, path);
    while (path[0] == '.' && path[1] == '/') {
        path += 2;
        while (*path == '/')
            path++;
    }
    const size_t length = strlen(folder);
    const char *slash = length > 0 && folder[length - 1] == '/' ? "" : "/";
    char *joined = fuse_arena_alloc(arena, length + strlen(path) + 2);
    if (joined != NULL)
        (void)sprintf(joined, "%s%s%s", folder, slash, path);
    return joined;
}

void fuse_text_add_choices(struct fuse_text *text, const char *choices)
{
    for (const char *c = choices; *c != '\0'; c++) {
        if (*c == '|')
            fuse_text_add(text, ", ");
        else
            fuse_text_add_bytes(text, c, 1);
    }
}

/* ---- ranges: "[0, 1)" ------------------------------------------------------------------------------------------- */

struct range {
    double low, high;
    bool is_low_open, is_high_open;
};

/* An end of a range, blanks around it. */
static bool parse_bound(const char *text, const char *end, double *bound)
{
    char copy[FUSE_NUMBER_CHARS];
    while (text < end && *text == ' ')
        text++;
    while (end > text && end[-1] == ' ')
        end--;
    if ((size_t)(end - text) >= sizeof(copy))
        return false;
    memcpy(copy, text, (size_t)(end - text));
    copy[end - text] = '\0';
    return fuse_number_parse(copy, bound);
}

static bool parse_range(const char *text, struct range *range)
{
    const size_t length = strlen(text);
    const char *comma = strchr(text, ',');
    if (length < 5 || comma == NULL || strchr("[(", text[0]) == NULL || strchr("])", text[length - 1]) == NULL)
        return false;
    range->is_low_open = text[0] == '(';
    range->is_high_open = text[length - 1] == ')';
    return parse_bound(text + 1, comma, &range->low) && parse_bound(comma + 1, text + length - 1, &range->high);
}

static bool is_in(const struct range *range, double value)
{
    const bool is_above = range->is_low_open ? value > range->low : value >= range->low;
    const bool is_below = range->is_high_open ? value < range->high : value <= range->high;
    return is_above && is_below;
}

bool fuse_range_holds(const char *text, double value)
{
    struct range range;
    return text == NULL ? isfinite(value) : parse_range(text, &range) && is_in(&range, value);
}

/* What a number must be, for a message: "a number in [0, 1)". */
static void add_wanted(struct fuse_text *message, const char *noun, const struct fuse_option *option)
{
    fuse_text_add(message, noun);
    if (option->range != NULL)
        fuse_text_addf(message, " in %s", option->range);
    if ((option->flags & FUSERUN_OPTION_NONE_ALLOWED) != 0)
        fuse_text_add(message, " or none");
}

static bool fits_range(const struct fuse_option *option, double value, const char *text, const char *noun,
                       struct fuse_text *message)
{
    if (option->range == NULL) {
        if (isfinite(value))
            return true;
        fuse_text_addf(message, "'" FUSE_SHOWN "' is not finite; it must be ", FUSE_SHOW(text));
        fuse_text_addf(message, "%s", noun);
        return false;
    }
    struct range range;
    if (!parse_range(option->range, &range)) {
        fuse_text_addf(message, "the plugin declares the range '%s', which is none", option->range);
        return false;
    }
    if (is_in(&range, value))
        return true;
    fuse_text_addf(message, "'" FUSE_SHOWN "' is out of range; it must be ", FUSE_SHOW(text));
    add_wanted(message, noun, option);
    return false;
}

/* ---- one element ------------------------------------------------------------------------------------------------- */

struct element {
    int64_t integer;
    double number;
    const char *text;
};

static bool parse_bool(const char *text, struct element *element, struct fuse_text *message)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(text, words[i]) == 0) {
            element->integer = (int64_t)(i % 2);
            element->number = (double)element->integer;
            return true;
        }
    fuse_text_addf(message, "'" FUSE_SHOWN "' is not yes or no (true/false, on/off, 1/0)", FUSE_SHOW(text));
    return false;
}

/* Why a text that should be a number is none: the traps that people fall into. */
static void add_number_hint(struct fuse_text *message, const char *text)
{
    const char *comma = strchr(text, ',');
    if (strpbrk(text, ";#") != NULL)
        fuse_text_add(message, " (a comment needs white space before its ';' or '#')");
    else if (comma != NULL && strchr(comma + 1, ',') == NULL && strchr(text, '.') == NULL &&
             strspn(text, "0123456789,+-eE") == strlen(text))
        fuse_text_add(message, " (the decimal point is '.')");
}

static bool parse_number(const struct fuse_option *option, const char *text, struct element *element,
                         struct fuse_text *message)
{
    const bool is_integer = option->type == FUSERUN_OPTION_INTEGER;
    const char *noun = is_integer ? "an integer" : "a number";
    if ((option->flags & FUSERUN_OPTION_NONE_ALLOWED) != 0 && strcmp(text, "none") == 0) {
        element->number = NAN;
        return true;
    }
    const bool is_parsed =
        is_integer ? fuse_integer_parse(text, &element->integer) : fuse_number_parse(text, &element->number);
    if (!is_parsed) {
        fuse_text_addf(message, "'" FUSE_SHOWN "' is not ", FUSE_SHOW(text));
        add_wanted(message, noun, option);
        add_number_hint(message, text);
        return false;
    }
    if (is_integer)
        element->number = (double)element->integer;
    return fits_range(option, element->number, text, noun, message);
}

static bool parse_size(const struct fuse_option *option, const char *text, struct element *element,
                       struct fuse_text *message)
{
    if (!fuse_size_parse(text, &element->integer)) {
        fuse_text_addf(message, "'" FUSE_SHOWN "' is not a size (4096, 64KiB, 512MiB, 2GiB)", FUSE_SHOW(text));
        return false;
    }
    element->number = (double)element->integer;
    return fits_range(option, element->number, text, "a size", message);
}

static bool parse_span(const struct fuse_option *option, const char *text, struct element *element,
                       struct fuse_text *message)
{
    const char *unit = NULL;
    const bool has_count = fuse_count_parse(text, &element->integer, &unit) && element->integer > 0;
    element->number = (double)element->integer;
    if (has_count && (*unit == '\0' || strcmp(unit, "step") == 0 || strcmp(unit, "steps") == 0))
        element->text = "step";
    else if (has_count && (strcmp(unit, "epoch") == 0 || strcmp(unit, "epochs") == 0))
        element->text = "epoch";
    else {
        fuse_text_addf(message, "'" FUSE_SHOWN "' is not a span of at least 1 (100, 100 steps, 1 epoch)",
                       FUSE_SHOW(text));
        return false;
    }
    return fits_range(option, element->number, text, "a span", message);
}

enum { MAX_CHOICES = 64 };

/* Cuts "a|b|c" into names that point into `copy`. */
static size_t split_choices(char *copy, const char *names[MAX_CHOICES])
{
    size_t count = 0;
    for (char *at = copy; at != NULL && count < MAX_CHOICES;) {
        char *bar = strchr(at, '|');
        if (bar != NULL)
            *bar++ = '\0';
        names[count++] = at;
        at = bar;
    }
    return count;
}

static int parse_choice(struct fuse_arena *arena, const struct fuse_option *option, const char *text,
                        struct element *element, struct fuse_text *message)
{
    const char *names[MAX_CHOICES];
    char *copy = fuse_arena_strdup(arena, option->choices == NULL ? "" : option->choices);
    if (copy == NULL)
        return FUSERUN_ERROR_MEMORY;
    const size_t count = split_choices(copy, names);
    for (size_t i = 0; i < count; i++)
        if (strcmp(text, names[i]) == 0) {
            element->integer = (int64_t)i;
            element->number = (double)i;
            element->text = names[i];
            return FUSERUN_OK;
        }
    fuse_text_addf(message, "'" FUSE_SHOWN "' is not one of ", FUSE_SHOW(text));
    fuse_text_add_choices(message, option->choices == NULL ? "" : option->choices);
    const char *nearest = fuse_nearest(text, names, count);
    if (nearest != NULL)
        fuse_text_addf(message, " (did you mean '%s'?)", nearest);
    return FUSERUN_ERROR_CONFIG;
}

static int parse_element(struct fuse_arena *arena, const struct fuse_option *option, const char *text,
                         const char *folder, struct element *element, struct fuse_text *message)
{
    bool is_good = true;
    switch (option->type) {
    case FUSERUN_OPTION_BOOL:
        is_good = parse_bool(text, element, message);
        break;
    case FUSERUN_OPTION_INTEGER:
    case FUSERUN_OPTION_NUMBER:
        is_good = parse_number(option, text, element, message);
        break;
    case FUSERUN_OPTION_SIZE:
        is_good = parse_size(option, text, element, message);
        break;
    case FUSERUN_OPTION_SPAN:
        is_good = parse_span(option, text, element, message);
        break;
    case FUSERUN_OPTION_CHOICE:
        return parse_choice(arena, option, text, element, message);
    case FUSERUN_OPTION_TEXT:
    case FUSERUN_OPTION_STAGE:
        element->text = text;
        break;
    case FUSERUN_OPTION_PATH:
        if (*text == '\0') {
            fuse_text_add(message, "a path is empty");
            return FUSERUN_ERROR_CONFIG;
        }
        element->text = fuse_path_join(arena, folder, text);
        if (element->text == NULL)
            return FUSERUN_ERROR_MEMORY;
        break;
    default:
        fuse_text_addf(message, "the plugin declares the option with an unknown type, %u", (unsigned)option->type);
        return FUSERUN_ERROR_CONFIG;
    }
    return is_good ? FUSERUN_OK : FUSERUN_ERROR_CONFIG;
}

/* ---- whole values ------------------------------------------------------------------------------------------------ */

static bool check_count(const struct fuse_option *option, size_t count, struct fuse_text *message)
{
    if (option->list_count == 0 || count == option->list_count)
        return true;
    fuse_text_addf(message, "%u values are needed", (unsigned)option->list_count);
    if (option->elements != NULL) {
        fuse_text_add(message, " (");
        fuse_text_add_choices(message, option->elements);
        fuse_text_add(message, ")");
    }
    fuse_text_addf(message, ", %zu given", count);
    return false;
}

int fuse_value_parse(struct fuse_arena *arena, struct fuse_value *value, const char *text, const char *folder,
                     struct fuse_text *message)
{
    const struct fuse_option *option = &value->option;
    const bool is_list = (option->flags & FUSERUN_OPTION_LIST) != 0;
    size_t count = 0;
    const char *problem = NULL;
    struct fuse_word *words = fuse_words_split(arena, text, is_list, &count, &problem);
    if (words == NULL) {
        if (problem == NULL)
            return FUSERUN_ERROR_MEMORY;
        fuse_text_add(message, problem);
        return FUSERUN_ERROR_CONFIG;
    }
    if (is_list && count == 1 && words[0].text[0] == '\0' && (option->flags & FUSERUN_OPTION_EMPTY_ALLOWED) != 0)
        count = 0;
    if (is_list && !check_count(option, count, message))
        return FUSERUN_ERROR_CONFIG;
    value->integers = fuse_arena_alloc(arena, (count + 1) * sizeof(*value->integers));
    value->numbers = fuse_arena_alloc(arena, (count + 1) * sizeof(*value->numbers));
    value->texts = fuse_arena_alloc(arena, (count + 1) * sizeof(*value->texts));
    if (value->integers == NULL || value->numbers == NULL || value->texts == NULL)
        return FUSERUN_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++) {
        struct element element = {0};
        FUSE_TRY(parse_element(arena, option, words[i].text, folder, &element, message));
        value->integers[i] = element.integer;
        value->numbers[i] = element.number;
        value->texts[i] = element.text;
    }
    value->count = count;
    value->is_set = true;
    return FUSERUN_OK;
}

void fuse_value_format(const struct fuse_value *value, struct fuse_text *text)
{
    char number[FUSE_NUMBER_CHARS];
    if (value->count == 0)
        fuse_text_add(text, "\"\"");
    for (size_t i = 0; i < value->count; i++) {
        if (i > 0)
            fuse_text_add(text, ", ");
        switch (value->option.type) {
        case FUSERUN_OPTION_BOOL:
            fuse_text_add(text, value->integers[i] ? "yes" : "no");
            break;
        case FUSERUN_OPTION_INTEGER:
        case FUSERUN_OPTION_SIZE:
            if (isnan(value->numbers[i]))
                fuse_text_add(text, "none");
            else
                fuse_text_addf(text, "%lld", (long long)value->integers[i]);
            break;
        case FUSERUN_OPTION_NUMBER:
            fuse_text_add(text, isnan(value->numbers[i]) ? "none" : fuse_number_format(value->numbers[i], number));
            break;
        case FUSERUN_OPTION_SPAN:
            fuse_text_addf(text, "%lld %s%s", (long long)value->integers[i], value->texts[i],
                           value->integers[i] == 1 ? "" : "s");
            break;
        default:
            fuse_words_add(text, value->texts[i]);
        }
    }
}
