#include "base/text.h"

#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void fuse_text_free(struct fuse_text *text)
{
    free(text->data);
    *text = (struct fuse_text){0};
}

void fuse_text_clear(struct fuse_text *text)
{
    text->length = 0;
    if (text->data != NULL)
        text->data[0] = '\0';
}

static bool reserve(struct fuse_text *text, size_t more)
{
    if (text->failed)
        return false;
    if (more >= text->capacity - text->length) {
        size_t capacity = text->capacity < 64 ? 64 : text->capacity;
        while (capacity - text->length <= more && capacity <= SIZE_MAX / 2)
            capacity *= 2;
        char *data = capacity - text->length > more ? realloc(text->data, capacity) : NULL;
        if (data == NULL) {
            text->failed = true;
            return false;
        }
        text->data = data;
        text->capacity = capacity;
    }
    return true;
}

void fuse_text_add_bytes(struct fuse_text *text, const char *bytes, size_t count)
{
    if (!reserve(text, count))
        return;
    memcpy(text->data + text->length, bytes, count);
    text->length += count;
    text->data[text->length] = '\0';
}

void fuse_text_add(struct fuse_text *text, const char *string)
{
    fuse_text_add_bytes(text, string, strlen(string));
}

void fuse_text_addf(struct fuse_text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    if (length < 0)
        text->failed = true;
    else if (reserve(text, (size_t)length)) {
        (void)vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
    va_end(arguments);
}

/* The bytes of the UTF-8 character at c, 1 to 4; 0 if it is none (overlong forms, surrogates, cut ones). */
static size_t utf8_length(const unsigned char *c)
{
    if (c[0] < 0x80)
        return 1;
    const size_t length = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
    if (c[0] < 0xc2 || c[0] > 0xf4 || (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) ||
        (c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f))
        return 0;
    for (size_t i = 1; i < length; i++)
        if (c[i] < 0x80 || c[i] > 0xbf)
            return 0;
    return length;
}

void fuse_text_add_json(struct fuse_text *text, const char *string)
{
    fuse_text_add(text, "\"");
    size_t length = 0;
    for (const unsigned char *c = (const unsigned char *)string; *c != '\0'; c += length) {
        length = utf8_length(c);
        if (length != 1) { /* JSON is UTF-8: what is not shows as the replacement character */
            fuse_text_add_bytes(text, length == 0 ? "\xef\xbf\xbd" : (const char *)c, length == 0 ? 3 : length);
            length = length == 0 ? 1 : length;
            continue;
        }
        if (*c == '"' || *c == '\\')
            fuse_text_addf(text, "\\%c", *c);
        else if (*c < 0x20)
            fuse_text_addf(text, "\\u%04x", *c);
        else
            fuse_text_add_bytes(text, (const char *)c, 1);
    }
    fuse_text_add(text, "\"");
}

void fuse_text_add_json_number(struct fuse_text *text, double value)
{
    char number[FUSE_NUMBER_CHARS];
    fuse_text_add(text, fuse_number_is_finite(value) ? fuse_number_format(value, number) : "null");
}

char *fuse_strndup(const char *string, size_t count)
{
    char *copy = malloc(count + 1);
    if (copy != NULL) {
        memcpy(copy, string, count);
        copy[count] = '\0';
    }
    return copy;
}

const char *fuse_text_part(struct fuse_text *text, const struct fuse_text *part)
{
    text->failed |= part->failed;
    return part->data != NULL ? part->data : "";
}

char *fuse_strdup(const char *string)
{
    return fuse_strndup(string, strlen(string));
}

char *fuse_format(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length < 0 ? NULL : malloc((size_t)length + 1);
    if (text != NULL)
        (void)vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

/* Names longer than this are never suggestions; it bounds the table below. */
enum { LONGEST_SUGGESTION = 64 };

size_t fuse_edit_distance(const char *a, const char *b)
{
    const size_t rows = strlen(a), columns = strlen(b);
    if (rows > LONGEST_SUGGESTION || columns > LONGEST_SUGGESTION)
        return rows > columns ? rows : columns;
    size_t table[3][LONGEST_SUGGESTION + 1]; /* the last two rows and the present one */
    for (size_t j = 0; j <= columns; j++)
        table[0][j] = j;
    for (size_t i = 1; i <= rows; i++) {
        size_t *now = table[i % 3], *last = table[(i + 2) % 3], *before = table[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return table[rows % 3][columns];
}

const char *fuse_nearest(const char *name, const char *const *names, size_t count)
{
    const size_t third = strlen(name) / 3;
    size_t best = third < 1 ? 2 : third + 1;
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        const size_t distance = strcasecmp(name, names[i]) == 0 ? 0 : fuse_edit_distance(name, names[i]);
        if (distance < best) {
            best = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

bool fuse_glob_match(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL; /* the last `*`, and where its run ends at present */
    while (*name != '\0') {
        if (*pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star != NULL) {
            pattern = star + 1;
            name = ++resume;
        } else
            return false;
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}
