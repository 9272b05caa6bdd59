/* Values as configs and command lines hold them, one "key=value" a line, for an option of every type; and the ranges
 * that plugins declare. What is read is written and must read back as the same. */
#include "fuzz.h"

#include "config/internal.h"

#include <stdlib.h>
#include <string.h>

#define LIST FUSERUN_OPTION_LIST
#define NONE FUSERUN_OPTION_NONE_ALLOWED
#define EMPTY FUSERUN_OPTION_EMPTY_ALLOWED

static const struct fuse_option table[] = {
    FUSERUN_OPTION(.key = "bool", .type = FUSERUN_OPTION_BOOL, .default_text = "no"),
    FUSERUN_OPTION(.key = "int", .type = FUSERUN_OPTION_INTEGER, .flags = NONE, .range = "[-5, inf)"),
    FUSERUN_OPTION(.key = "ints", .type = FUSERUN_OPTION_INTEGER, .flags = LIST | EMPTY),
    FUSERUN_OPTION(.key = "number", .type = FUSERUN_OPTION_NUMBER, .flags = NONE),
    FUSERUN_OPTION(.key = "unit", .type = FUSERUN_OPTION_NUMBER, .range = "[0, 1)", .default_text = "0.5"),
    FUSERUN_OPTION(.key = "betas", .type = FUSERUN_OPTION_NUMBER, .flags = LIST | NONE, .list_count = 2,
                   .elements = "beta1|beta2", .default_text = "0.9, 0.999"),
    FUSERUN_OPTION(.key = "size", .type = FUSERUN_OPTION_SIZE, .range = "[1, inf)"),
    FUSERUN_OPTION(.key = "sizes", .type = FUSERUN_OPTION_SIZE, .flags = LIST),
    FUSERUN_OPTION(.key = "span", .type = FUSERUN_OPTION_SPAN),
    FUSERUN_OPTION(.key = "choice", .type = FUSERUN_OPTION_CHOICE, .choices = "relu|gelu|tanh"),
    FUSERUN_OPTION(.key = "choices", .type = FUSERUN_OPTION_CHOICE, .flags = LIST, .choices = "a|b"),
    FUSERUN_OPTION(.key = "text", .type = FUSERUN_OPTION_TEXT),
    FUSERUN_OPTION(.key = "texts", .type = FUSERUN_OPTION_TEXT, .flags = LIST | EMPTY),
    FUSERUN_OPTION(.key = "path", .type = FUSERUN_OPTION_PATH),
    FUSERUN_OPTION(.key = "paths", .type = FUSERUN_OPTION_PATH, .flags = LIST),
    FUSERUN_OPTION(.key = "stages", .type = FUSERUN_OPTION_STAGE, .flags = LIST),
};
static const struct fuse_component component =
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_OPTIMIZER, .name = "all", FUSERUN_OPTIONS(table));

/* As a config's line would end up. */
static bool is_value_text(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return false;
    return true;
}

static void check_same(const struct fuse_value *a, const struct fuse_value *b)
{
    FUZZ_CHECK(a->count == b->count);
    for (size_t i = 0; i < a->count; i++) {
        const bool has_texts = a->texts[i] != NULL;
        FUZZ_CHECK(a->integers[i] == b->integers[i]);
        FUZZ_CHECK(memcmp(&a->numbers[i], &b->numbers[i], sizeof a->numbers[i]) == 0);
        FUZZ_CHECK(has_texts == (b->texts[i] != NULL) && (!has_texts || strcmp(a->texts[i], b->texts[i]) == 0));
    }
}

static void check_round_trip(const struct fuse_options *options)
{
    struct fuse_arena arena = {0};
    for (size_t i = 0; i < options->count; i++) {
        const struct fuse_value *value = &options->values[i];
        struct fuse_value again = {.option = value->option};
        struct fuse_text text = {0}, message = {0};
        if (!value->is_set)
            continue;
        fuse_value_format(value, &text);
        FUZZ_CHECK(!text.failed && text.data != NULL && is_value_text(text.data));
        /* What is written is one value of a config's line, with no comment in it. */
        FUZZ_CHECK(fuse_value_end(text.data, text.data + text.length) == text.data + text.length);
        FUZZ_CHECK(fuse_value_parse(&arena, &again, text.data, "/folder", &message) == FUSERUN_OK);
        check_same(value, &again);
        fuse_text_free(&text);
        fuse_text_free(&message);
    }
    fuse_arena_free(&arena);
}

static void read_flat(const struct fuse_options *options)
{
    double values[16];
    const size_t count = fuse_options_flatten(&component, options, values, 16);
    FUZZ_CHECK(count <= 16);
    FUZZ_CHECK(fuse_options_flat_index(&component, "beta2", NULL) >= 0);
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
    enum { MOST_PAIRS = 64 };
    const char *pairs[MOST_PAIRS];
    size_t pair_count = 0;
    struct fuse_options *options = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    char *text = fuzz_text(bytes, count), *rest = text;
    for (char *line; pair_count < MOST_PAIRS && (line = strsep(&rest, "\n")) != NULL;)
        if (is_value_text(line))
            pairs[pair_count++] = line;
    const int status = fuse_options_from_pairs(&component, pairs, pair_count, &options, &error);
    fuzz_check_error(status, &error);
    FUZZ_CHECK((status == FUSERUN_OK) == (options != NULL));
    if (options != NULL) {
        check_round_trip(options);
        read_flat(options);
    }
    fuse_options_free(&options);
    (void)fuse_range_holds(text, 0.5);
    free(text);
}
