/* An optimizer's rule as the loops that FUSERUN_RULE, or the passes of FUSERUN_TENSOR_RULE_OF_PASSES, make of its
 * texts, in CUDA C++. */
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

static char *finish(const struct fuse_host *host, const struct fuse_rule *rule, struct text *text,
                    struct fuse_error *error)
{
    if (!text->has_failed)
        return text->bytes;
    free(text->bytes);
    (void)host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for rule %s", rule->name);
    return NULL;
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
    return finish(host, rule, &text, error);
}

/* ---- passes ---------------------------------------------------------------------------------------------------- */

static void add_arrays(struct text *text, const char *names, uint32_t count, const char *from)
{
    int length;
    for (uint32_t i = 0; i < count; i++) {
        const char *const name = name_of(names, i, &length);
        add(text, "    float *__restrict__ const %.*s = fuse_call->%s[%u];\n    (void)%.*s;\n", length, name, from, i,
            length, name);
    }
}

/* A function of a pass, up to its text. indexes: of what it is called for. */
static void begin_function(struct text *text, const struct fuse_rule *rule, const char *head, uint32_t pass,
                           const char *indexes)
{
    int length;
    add(text,
        "FUSE_DEVICE %s_%u(const struct fuse_pass_arguments *fuse_call, %s)\n{\n"
        "    const int64_t matrices = fuse_call->matrices, rows = fuse_call->rows, columns = fuse_call->columns;\n"
        "    float *__restrict__ const param = fuse_call->param;\n"
        "    const float *__restrict__ const grad = fuse_call->grad;\n"
        "    (void)matrices, (void)rows, (void)columns, (void)param, (void)grad;\n",
        head, pass, indexes);
    add_arrays(text, rule->states, rule->state_count, "states");
    add_arrays(text, rule->scratches, rule->scratch_count, "scratches");
    for (uint32_t i = 0; i < rule->scalar_count; i++) {
        const char *const name = name_of(rule->scalars, i, &length);
        add(text, "    const float %.*s = fuse_call->scalars[%u];\n    (void)%.*s;\n", length, name, i, length, name);
    }
}

static void add_pass(struct text *text, const struct fuse_rule *rule, uint32_t index)
{
    static const char *const kernels[] = {[FUSERUN_OVER_ELEMENTS] = "ELEMENTS",
                                          [FUSERUN_OVER_ROWS] = "ROWS",
                                          [FUSERUN_OVER_COLUMNS] = "COLUMNS",
                                          [FUSERUN_OVER_ALL] = "ALL"};
    const struct fuse_tensor_pass *const pass = rule->passes[index];
    const bool is_sum = pass->kind != FUSERUN_OVER_ELEMENTS;
    begin_function(text, rule, is_sum ? "double fuse_pass_value" : "void fuse_pass_element", index,
                   "int64_t row, int64_t column");
    add(text,
        "    const int64_t matrix = row / rows, i = row * columns + column;\n    (void)matrix, (void)i;\n"
        "    {\n        %s%s%s\n    }\n}\n",
        is_sum ? "return (double)" : "", pass->text, is_sum ? ";" : "");
    if (is_sum) {
        begin_function(text, rule, "void fuse_pass_result", index, "int64_t at, double sum");
        add(text, "    (void)at, (void)sum;\n    {\n        %s\n    }\n}\n", pass->result);
    }
    add(text, "FUSE_PASS_%s(%u)\n", kernels[pass->kind], index);
}

char *fuse_passes_text(const struct fuse_host *host, const struct fuse_rule *rule, struct fuse_error *error)
{
    struct text text = {0};
    for (uint32_t i = 0; i < rule->pass_count; i++)
        add_pass(&text, rule, i);
    return finish(host, rule, &text, error);
}
