#include "config/internal.h"

#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

static const char *skip_space(const char *text, const char *end)
{
    while (text < end && is_space(*text))
        text++;
    return text;
}

static const char *skip_space_back(const char *text, const char *end)
{
    while (end > text && is_space(end[-1]))
        end--;
    return end;
}

const char *fuse_quoted_end(const char *text, const char *end)
{
    for (const char *c = text + 1; c < end; c++) {
        if (*c != '"')
            continue;
        if (c + 1 == end || c[1] != '"')
            return c + 1;
        c++; /* two of them stand for one */
    }
    return NULL;
}

const char *fuse_value_end(const char *text, const char *end)
{
    /* White space before the value counts as white space before a comment: `key = ; nothing` is an empty value. */
    bool is_after_space = true, starts_element = true;
    for (const char *c = text; c < end; c++) {
        if (*c == '"' && starts_element) {
            const char *after = fuse_quoted_end(c, end);
            if (after == NULL)
                return NULL;
            c = after - 1;
            is_after_space = starts_element = false;
            continue;
        }
        if ((*c == ';' || *c == '#') && is_after_space)
            return skip_space_back(text, c);
        is_after_space = is_space(*c);
        starts_element = *c == ',' || (starts_element && is_after_space);
    }
    return skip_space_back(text, end);
}

/* One element in [text, end), which has no white space around it. */
static bool add_word(struct fuse_arena *arena, const char *text, const char *end, struct fuse_word *word,
                     const char **problem)
{
    word->text = fuse_arena_strndup(arena, text, (size_t)(end - text));
    if (word->text == NULL)
        return false;
    if (text == end || *text != '"')
        return true;
    const char *after = fuse_quoted_end(text, end);
    if (after != end) {
        *problem = after == NULL ? "a quote is opened and not closed" : "there is text after the closing quote";
        return false;
    }
    word->is_quoted = true;
    char *to = word->text;
    for (const char *c = text + 1; c < end - 1; c++) {
        *to++ = *c;
        c += *c == '"';
    }
    *to = '\0';
    return true;
}

struct fuse_word *fuse_words_split(struct fuse_arena *arena, const char *text, bool is_list, size_t *count,
                                   const char **problem)
{
    const char *end = text + strlen(text);
    *problem = NULL;
    *count = 0;
    size_t capacity = 1;
    for (const char *c = text; is_list && c < end; c++)
        capacity += *c == ',';
    struct fuse_word *words = fuse_arena_alloc(arena, capacity * sizeof(*words));
    const char *at = text;
    while (words != NULL) {
        at = skip_space(at, end);
        const char *stop = end;
        if (is_list) {
            stop = at;
            if (stop < end && *stop == '"') {
                const char *after = fuse_quoted_end(stop, end);
                stop = after == NULL ? end : after;
            }
            while (stop < end && *stop != ',')
                stop++;
        }
        const char *last = skip_space_back(at, stop);
        if (!add_word(arena, at, last, &words[*count], problem))
            return NULL;
        if (is_list && at == last && (stop < end || *count > 0)) {
            *problem = "an element of the list is empty";
            return NULL;
        }
        ++*count;
        if (stop == end)
            break;
        at = stop + 1;
    }
    return words;
}

void fuse_words_add(struct fuse_text *text, const char *word)
{
    const size_t length = strlen(word);
    const bool is_plain =
        length > 0 && strpbrk(word, ";#,\"$") == NULL && !is_space(word[0]) && !is_space(word[length - 1]);
    if (is_plain) {
        fuse_text_add(text, word);
        return;
    }
    fuse_text_add(text, "\"");
    for (const char *c = word; *c != '\0'; c++) {
        fuse_text_add_bytes(text, c, 1);
        if (*c == '"')
            fuse_text_add_bytes(text, c, 1);
    }
    fuse_text_add(text, "\"");
}
