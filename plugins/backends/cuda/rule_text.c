/* An optimizer's rule as the loop that FUSERUN_RULE makes of its text, in CUDA C++. */
#include "rule_text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
    char *bytes;
    size_t length, capacity;
    bool has_failed;
};

static void add(struct text *text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int wanted = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (wanted < 0)
        text->has_failed = true;
    while (!text->has_failed && text->length + (size_t)wanted + 1 > text->capacity) {
        const size_t capacity = text->capacity == 0 ? 4096 : 2 * text->capacity;
        char *const grown = realloc(text->bytes, capacity);
        text->has_failed = grown == NULL;
        text->bytes = grown != NULL ? grown : text->bytes;
        text->capacity = grown != NULL ? capacity : text->capacity;
    }
    if (!text->has_failed) {
        (void)vsnprintf(text->bytes + text->length, text->capacity - text->length, format, again);
        text->length += (size_t)wanted;
    }
    va_end(again);
}

/* Name number `index` of a list "(a, b)"; its length in *length, 0 if there is none. */
static const char *name_of(const char *list, uint32_t index, int *length)
{
    const char *const separators = "(), \t\n";
    const char *at = list;
    for (uint32_t i = 0;; i++) {
        at += strspn(at, separators);
        const size_t count = strcspn(at, separators);
        if (i == index || count == 0) {
            *length = i == index ? (int)count : 0;
            return at;
        }
        at += count;
    }
}

/* As the loop that FUSERUN_RULE makes of the text, over a chunk of a slice. */
char *fuse_update_text(const struct fuse_host *host, const struct fuse_rule *rule, struct fuse_error *error)
{
    struct text text = {0};
    int length;
    add(&text,
        "FUSE_DEVICE void fuse_update_chunk(const struct fuse_update_slice *fuse_slice, long long fuse_chunk)\n{\n"
        "    float *__restrict__ const fuse_param = fuse_slice->param;\n"
        "    const float *__restrict__ const fuse_grad = fuse_slice->grad;\n");
    for (uint32_t i = 0; i < rule->state_count; i++)
        add(&text, "    float *__restrict__ const fuse_state_%u = fuse_slice->states[%u];\n", i, i);
    for (uint32_t i = 0; i < rule->scalar_count; i++) {
        const char *const name = name_of(rule->scalars, i, &length);
        add(&text, "    const float %.*s = fuse_slice->scalars[%u];\n    (void)%.*s;\n", length, name, i, length, name);
    }
    add(&text,
        "    const long long fuse_begin = fuse_chunk * FUSE_UPDATE_CHUNK, fuse_rest = fuse_slice->count - fuse_begin;\n"
        "    const int fuse_count = fuse_rest < FUSE_UPDATE_CHUNK ? (int)fuse_rest : FUSE_UPDATE_CHUNK;\n"
        "    for (int fuse_at = FUSE_THREAD; fuse_at < fuse_count; fuse_at += FUSE_BLOCK) {\n"
        "        const long long fuse_i = fuse_begin + fuse_at;\n"
        "        float param = fuse_param[fuse_i];\n"
        "        const float grad = fuse_grad[fuse_i];\n"
        "        (void)grad;\n");
    for (uint32_t i = 0; i < rule->state_count; i++) {
        const char *const name = name_of(rule->states, i, &length);
        add(&text, "        float %.*s = fuse_state_%u[fuse_i];\n", length, name, i);
    }
    add(&text, "        {\n            %s\n        }\n        fuse_param[fuse_i] = param;\n", rule->text);
    for (uint32_t i = 0; i < rule->state_count; i++) {
        const char *const name = name_of(rule->states, i, &length);
        add(&text, "        fuse_state_%u[fuse_i] = %.*s;\n", i, length, name);
    }
    add(&text, "    }\n}\n");
    if (!text.has_failed)
        return text.bytes;
    free(text.bytes);
    (void)host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for rule %s", rule->name);
    return NULL;
}
