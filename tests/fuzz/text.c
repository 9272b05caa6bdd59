/* The small readers: numbers, globs, quoted words, nearest names, and the writers that must be able to carry any text.
 * The first byte picks one. */
#include "fuzz.h"

#include "base/number.h"
#include "config/internal.h"
#include "files/files.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_number(const char *text)
{
    double value = 0, again = 0;
    int64_t integer = 0;
    char buffer[FUSE_NUMBER_CHARS];
    if (fuse_number_parse(text, &value)) {
        FUZZ_CHECK(!isnan(value));
        FUZZ_CHECK(fuse_number_parse(fuse_number_format(value, buffer), &again));
        FUZZ_CHECK(memcmp(&value, &again, sizeof value) == 0 || (value == 0 && again == 0));
    }
    if (fuse_integer_parse(text, &integer)) {
        FUZZ_CHECK(fuse_number_parse(text, &value) && value == (double)integer);
    }
}

/* Any double, by its bits. */
static void check_format(const uint8_t *bytes, size_t count)
{
    double value, again = 0;
    char buffer[FUSE_NUMBER_CHARS];
    if (count < sizeof value)
        return;
    memcpy(&value, bytes, sizeof value);
    const char *text = fuse_number_format(value, buffer);
    FUZZ_CHECK(strlen(text) < FUSE_NUMBER_CHARS);
    FUZZ_CHECK(fuse_number_parse(text, &again) == !isnan(value));
    FUZZ_CHECK(isnan(value) || again == value);
}

/* What `*` and `?` mean, by the book. */
static bool matches(const char *pattern, const char *name)
{
    if (*pattern == '\0')
        return *name == '\0';
    if (*pattern == '*')
        return matches(pattern + 1, name) || (*name != '\0' && matches(pattern, name + 1));
    return *name != '\0' && (*pattern == '?' || *pattern == *name) && matches(pattern + 1, name + 1);
}

static void check_glob(const char *pattern, const char *name)
{
    const bool does_match = fuse_glob_match(pattern, name);
    if (strlen(pattern) <= 8 && strlen(name) <= 12)
        FUZZ_CHECK(does_match == matches(pattern, name));
}

static void check_nearest(const char *a, const char *b)
{
    const char *const names[] = {b, "learning_rate", ""};
    FUZZ_CHECK(fuse_edit_distance(a, b) == fuse_edit_distance(b, a));
    FUZZ_CHECK(fuse_edit_distance(a, a) == 0 || strlen(a) > 64);
    const char *nearest = fuse_nearest(a, names, 3);
    FUZZ_CHECK(nearest == NULL || nearest == names[0] || nearest == names[1] || nearest == names[2]);
    (void)fuse_nearest_key(a, names, 3);
}

static void check_words(const char *text)
{
    struct fuse_arena arena = {0};
    struct fuse_text written = {0};
    size_t count = 0, again = 0;
    const char *problem = NULL;
    const struct fuse_word *words = fuse_words_split(&arena, text, true, &count, &problem);
    FUZZ_CHECK((words == NULL) == (problem != NULL));
    for (size_t i = 0; words != NULL && i < count; i++) {
        fuse_text_add(&written, i > 0 ? ", " : "");
        fuse_words_add(&written, words[i].text);
    }
    if (words != NULL) {
        const struct fuse_word *back = fuse_words_split(&arena, written.data, true, &again, &problem);
        FUZZ_CHECK(back != NULL && again == count);
        for (size_t i = 0; i < count; i++)
            FUZZ_CHECK(strcmp(back[i].text, words[i].text) == 0);
    }
    fuse_text_free(&written);
    fuse_arena_free(&arena);
}

/* A JSON reader gets back what was written, when it was text. */
static void check_json(const char *text)
{
    struct fuse_text written = {0};
    fuse_text_add_json(&written, text);
    json_t *value = json_loadb(written.data, written.length, JSON_DECODE_ANY, NULL);
    FUZZ_CHECK(json_is_string(value));
    if (fuse_is_utf8(text, strlen(text)))
        FUZZ_CHECK(strcmp(json_string_value(value), text) == 0);
    json_decref(value);
    fuse_text_free(&written);
}

static void check_shown(const char *text, size_t count)
{
    char shown[FUSE_SHOWN_BYTES];
    (void)fuse_shown(text, count, shown);
    FUZZ_CHECK(strlen(shown) < sizeof shown);
    if (count > 0)
        fuzz_check_line(shown);
    if (fuse_is_utf8(text, count))
        FUZZ_CHECK(fuse_is_utf8(shown, strlen(shown)));
    (void)fuse_shown_path(text);
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return;
    char *text = fuzz_text(bytes + 1, count - 1), *second = strchr(text, '\n');
    if (second != NULL)
        *second = '\0';
    second = second != NULL ? second + 1 : text + strlen(text);
    switch (bytes[0] % 7) {
    case 0:
        check_number(text);
        break;
    case 1:
        check_format(bytes + 1, count - 1);
        break;
    case 2:
        check_glob(text, second);
        break;
    case 3:
        check_nearest(text, second);
        break;
    case 4:
        check_words(text);
        break;
    case 5:
        check_json(text);
        break;
    default:
        check_shown(text, strlen(text));
        break;
    }
    free(text);
}
