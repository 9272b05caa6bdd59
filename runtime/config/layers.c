/* One INI file to sections and entries, by way of inih.
 *
 * inih decides what a line is: a comment, a section, a key with a value, or the continuation of the value before. But
 * it cuts names after 49 bytes and lines after 199, tells no line numbers, takes `:` for a separator and ends a value
 * at ` ;` even within quotes. So the reader that it pulls lines from hands it stand-ins: it keeps the words of a line
 * itself and gives inih the line's shape with its number in their place: `[12]`, `13=13`, ` 14`. The handler turns the
 * numbers back into words, of any length, with their lines known. */
#include "config/internal.h"

#include "base/number.h"

#include <ini.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys are looked up along lists. A config that a person or a program wrote has some hundreds of lines. */
enum { MOST_LINES = 20000 };

/* What the line of that number holds. */
struct line_words {
    struct fuse_section *section; /* of a header */
    bool is_repeat;               /* of a header: the section stood before */
    const char *key;
    const char *text;
};

struct parser {
    struct fuse_config *config;
    const struct fuse_layer *layer;
    struct fuse_diagnostics *diagnostics;
    const char *at, *end; /* what is still to be read */
    int line;
    struct line_words *words; /* by line number */
    struct fuse_section *sections, **next_section;
    struct fuse_section *section; /* the one that lines belong to, NULL before the first and after a broken header */
    bool is_lost;                 /* after a broken header */
    bool has_key_before;          /* an indented line would continue something */
    struct fuse_entry *last;      /* what the handler made last */
    bool is_out_of_memory;
};

static void fail_line(struct parser *parser, const char *key, const char *format, ...) FUSERUN_PRINTF(3, 4);
static void fail_line(struct parser *parser, const char *key, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char text[640];
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fuse_config_say(parser->config, parser->diagnostics, parser->layer, parser->line, true,
                    parser->section == NULL ? NULL : parser->section->name, key, "%s", text);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* Copies [text, end) without the space around it; runs of space inside become one. */
static char *copy_name(struct parser *parser, const char *text, const char *end)
{
    char *name = fuse_arena_strndup(&parser->config->arena, text, (size_t)(end - text));
    if (name == NULL) {
        parser->is_out_of_memory = true;
        return NULL;
    }
    char *to = name;
    for (const char *c = name; *c != '\0'; c++)
        if (!is_space(*c))
            *to++ = *c;
        else if (to > name && !is_space(to[-1]))
            *to++ = ' ';
    while (to > name && is_space(to[-1]))
        to--;
    *to = '\0';
    return name;
}

static struct fuse_entry *add_entry(struct parser *parser, const char *key, const char *text, int line)
{
    struct fuse_entry **tail = &parser->section->entries;
    while (*tail != NULL)
        tail = &(*tail)->next;
    struct fuse_entry *entry = fuse_arena_alloc(&parser->config->arena, sizeof(*entry));
    if (entry == NULL) {
        parser->is_out_of_memory = true;
        return NULL;
    }
    *entry = (struct fuse_entry){.layer = parser->layer, .line = line, .key = key, .text = text};
    return *tail = entry;
}

/* A key whose value could not be read still counts as written. */
static void add_broken_entry(struct parser *parser, const char *key)
{
    struct fuse_entry *entry = parser->section == NULL || key == NULL ? NULL : add_entry(parser, key, "", parser->line);
    if (entry != NULL)
        entry->is_broken = entry->has_error = true;
}

/* ---- lines: what inih's reader does --------------------------------------------------------------------------------
 */

/* `[name]` */
static bool read_header(struct parser *parser, const char *text, const char *end)
{
    parser->section = NULL;
    parser->is_lost = true;
    parser->has_key_before = false;
    const char *close = memchr(text, ']', (size_t)(end - text));
    const char *after = close == NULL ? end : fuse_value_end(close + 1, end);
    if (close == NULL)
        fail_line(parser, NULL, "a section's name ends with ']'");
    else if (after != close + 1)
        fail_line(parser, NULL, "there is text behind the section's ']' (a comment needs white space before it)");
    if (close == NULL || after != close + 1) {
        parser->config->has_lost_section = true;
        return false;
    }
    char *name = copy_name(parser, text + 1, close);
    if (name == NULL)
        return false;
    struct fuse_section *section = parser->sections;
    while (section != NULL && strcmp(section->name, name) != 0)
        section = section->next;
    if (section != NULL) {
        fuse_config_say(parser->config, parser->diagnostics, parser->layer, parser->line, true, name, NULL,
                        "the section stands twice, first on line %d", section->places->line);
        parser->words[parser->line].is_repeat = true;
    } else {
        section = fuse_arena_alloc(&parser->config->arena, sizeof(*section));
        struct fuse_place *place = fuse_arena_alloc(&parser->config->arena, sizeof(*place));
        if (section == NULL || place == NULL) {
            parser->is_out_of_memory = true;
            return false;
        }
        *place = (struct fuse_place){.layer = parser->layer, .line = parser->line};
        section->name = name;
        section->places = place;
        *parser->next_section = section;
        parser->next_section = &section->next;
    }
    parser->section = section;
    parser->is_lost = false;
    parser->words[parser->line].section = section;
    return true;
}

/* The value behind `=`, or a continuation of one; NULL if it is malformed. */
static const char *read_value(struct parser *parser, const char *key, const char *text, const char *end)
{
    while (text < end && is_space(*text))
        text++;
    const char *stop = fuse_value_end(text, end);
    if (stop == NULL) {
        fail_line(parser, key, "a quote is opened and not closed");
        return NULL;
    }
    char *copy = fuse_arena_strndup(&parser->config->arena, text, (size_t)(stop - text));
    parser->is_out_of_memory |= copy == NULL;
    return copy;
}

/* `key = value` */
static bool read_key(struct parser *parser, const char *text, const char *end)
{
    parser->has_key_before = false;
    const char *equals = memchr(text, '=', (size_t)(end - text));
    const char *stop = equals != NULL ? equals : text;
    while (stop < end && equals == NULL && !is_space(*stop) && *stop != ':')
        stop++;
    const char *key = copy_name(parser, text, stop);
    if (key == NULL || parser->is_lost)
        return false;
    if (parser->section == NULL) {
        fail_line(parser, key, "the key stands before the first [section]");
        return false;
    }
    if (equals == NULL)
        fail_line(parser, key, "the line is not 'key = value'%s",
                  stop < end && *stop == ':' ? " (':' is no separator)" : "");
    else if (*key == '\0')
        fail_line(parser, NULL, "there is no key before the '='");
    const char *value = equals == NULL || *key == '\0' ? NULL : read_value(parser, key, equals + 1, end);
    if (value == NULL) {
        add_broken_entry(parser, key);
        return false;
    }
    parser->words[parser->line].key = key;
    parser->words[parser->line].text = value;
    return parser->has_key_before = true;
}

/* An indented line: more of the list before it. */
static bool read_continuation(struct parser *parser, const char *text, const char *end)
{
    const char *stop = fuse_value_end(text, end);
    const char *equals = memchr(text, '=', (size_t)((stop == NULL ? end : stop) - text));
    if (parser->is_lost)
        return false;
    if (equals != NULL) {
        const char *key = copy_name(parser, text, equals);
        fail_line(parser, key, "the line is indented; only a list goes on over indented lines, and without '='");
        add_broken_entry(parser, key);
        return false;
    }
    if (!parser->has_key_before) {
        fail_line(parser, NULL, "the line is indented, and no list stands before it");
        return false;
    }
    const char *value = read_value(parser, parser->last == NULL ? NULL : parser->last->key, text, end);
    parser->words[parser->line].text = value;
    return value != NULL;
}

/* The next line's stand-in. */
static char *read_line(char *buffer, int size, void *user)
{
    struct parser *parser = user;
    if (parser->at == parser->end || parser->is_out_of_memory)
        return NULL;
    const char *line = parser->at;
    const char *end = memchr(line, '\n', (size_t)(parser->end - line));
    parser->at = end == NULL ? parser->end : end + 1;
    if (end == NULL)
        end = parser->end;
    if (parser->line++ == MOST_LINES) {
        fail_line(parser, NULL, "a config has at most %d lines", MOST_LINES);
        parser->config->has_lost_section = true;
        parser->at = parser->end;
        return NULL;
    }
    if (end > line && end[-1] == '\r')
        end--;
    (void)snprintf(buffer, (size_t)size, ";\n"); /* what inih is to pass over */
    for (const char *c = line; c < end; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f) {
            fail_line(parser, NULL, "the line holds a control character (0x%02x)", (unsigned char)*c);
            parser->has_key_before = false;
            return buffer;
        }
    const char *text = line;
    while (text < end && is_space(*text))
        text++;
    if (text == end || *text == ';' || *text == '#')
        return buffer;
    if (text > line) {
        if (read_continuation(parser, text, end))
            (void)snprintf(buffer, (size_t)size, " %d\n", parser->line);
    } else if (*text == '[') {
        if (read_header(parser, text, end))
            (void)snprintf(buffer, (size_t)size, "[%d]\n", parser->line);
    } else if (read_key(parser, text, end))
        (void)snprintf(buffer, (size_t)size, "%d=%d\n", parser->line, parser->line);
    return buffer;
}

/* ---- entries: what inih's handler does ------------------------------------------------------------------------------
 */

/* More of the list that `entry` began. */
static void extend_entry(struct parser *parser, struct fuse_entry *entry, const char *more, int line)
{
    const size_t length = strlen(entry->text);
    const bool needs_comma = length > 0 && entry->text[length - 1] != ',' && *more != ',';
    char *joined = fuse_arena_alloc(&parser->config->arena, length + strlen(more) + 3);
    if (joined == NULL) {
        parser->is_out_of_memory = true;
        return;
    }
    (void)sprintf(joined, "%s%s%s", entry->text, length == 0 ? "" : needs_comma ? ", " : " ", more);
    entry->text = joined;
    if (entry->continued_line == 0)
        entry->continued_line = line;
}

static int handle(void *user, const char *section_number, const char *key_number, const char *value_number
#if INI_HANDLER_LINENO
                  ,
                  int line_number
#endif
)
{
#if INI_HANDLER_LINENO
    (void)line_number;
#endif
    struct parser *parser = user;
    int64_t header = 0, line = 0, key_line = 0;
    if (key_number == NULL || value_number == NULL)
        return 1; /* some builds of inih tell the start of a section this way */
    if (!fuse_integer_parse(section_number, &header) || !fuse_integer_parse(key_number, &key_line) ||
        !fuse_integer_parse(value_number, &line))
        return 0;
    const struct line_words *words = &parser->words[line];
    struct fuse_section *section = parser->words[header].section;
    if (line != key_line) {
        if (parser->last != NULL && parser->last->line == key_line)
            extend_entry(parser, parser->last, words->text, (int)line);
        return 1;
    }
    parser->last = NULL;
    struct fuse_entry *first = section->entries;
    while (first != NULL && strcmp(first->key, words->key) != 0)
        first = first->next;
    while (first != NULL && first->is_broken) { /* told; the one that can be read counts */
        first->replaced_by = parser->layer;
        first = first->next;
        while (first != NULL && strcmp(first->key, words->key) != 0)
            first = first->next;
    }
    if (first == NULL)
        parser->last = add_entry(parser, words->key, words->text, (int)line);
    else if (!parser->words[header].is_repeat || first->line > header) /* a repeated section is told already */
        fuse_config_say(parser->config, parser->diagnostics, parser->layer, (int)line, true, section->name, words->key,
                        "the key stands twice, first on line %d", first->line);
    return 1;
}

int fuse_layer_parse(struct fuse_config *config, const struct fuse_layer *layer, const char *text, size_t length,
                     struct fuse_diagnostics *diagnostics, struct fuse_section **sections)
{
    static const char byte_order_mark[] = "\xEF\xBB\xBF";
    struct parser parser = {.config = config, .layer = layer, .diagnostics = diagnostics};
    parser.next_section = &parser.sections;
    parser.end = text + length;
    parser.at = length >= 3 && memcmp(text, byte_order_mark, 3) == 0 ? text + 3 : text;
    size_t line_count = 2; /* lines count from 1, and the last one may have no end */
    for (const char *c = text; c < parser.end; c++)
        line_count += *c == '\n';
    parser.words = calloc(line_count + 1, sizeof(*parser.words));
    if (parser.words == NULL)
        return FUSERUN_ERROR_MEMORY;
    const int rejected = ini_parse_stream(read_line, &parser, handle, &parser);
    if (rejected > 0) { /* the stand-ins are always well formed; nothing may pass unseen if an inih thinks otherwise */
        parser.line = rejected;
        fail_line(&parser, NULL, "the INI reader refuses the line");
    }
    free(parser.words);
    *sections = parser.sections;
    return parser.is_out_of_memory || rejected < 0 ? FUSERUN_ERROR_MEMORY : FUSERUN_OK;
}
