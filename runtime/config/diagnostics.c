#include "config/internal.h"

#include <stdlib.h>

struct item {
    int rank, line;
    size_t sequence;
    char *text;
};

struct fuse_diagnostics {
    struct item *items; /* not printed yet */
    size_t count, capacity;
    size_t error_count; /* ever */
    size_t sequence;
    bool has_lost; /* one that there was no memory to tell */
};

struct fuse_diagnostics *fuse_diagnostics_new(void)
{
    return calloc(1, sizeof(struct fuse_diagnostics));
}

void fuse_diagnostics_free(struct fuse_diagnostics **diagnostics)
{
    if (*diagnostics == NULL)
        return;
    for (size_t i = 0; i < (*diagnostics)->count; i++)
        free((*diagnostics)->items[i].text);
    free((*diagnostics)->items);
    free(*diagnostics);
    *diagnostics = NULL;
}

size_t fuse_diagnostics_error_count(const struct fuse_diagnostics *diagnostics)
{
    return diagnostics->error_count;
}

void fuse_diagnostics_add(struct fuse_diagnostics *diagnostics, int rank, int line, bool is_error, char *text)
{
    if (is_error)
        diagnostics->error_count++; /* counts even if there is no memory to tell it */
    if (text == NULL) {
        diagnostics->has_lost = true;
        return;
    }
    if (diagnostics->count == diagnostics->capacity) {
        const size_t capacity = diagnostics->capacity == 0 ? 16 : 2 * diagnostics->capacity;
        struct item *items = realloc(diagnostics->items, capacity * sizeof(*items));
        if (items == NULL) {
            free(text);
            diagnostics->has_lost = true;
            return;
        }
        diagnostics->items = items;
        diagnostics->capacity = capacity;
    }
    diagnostics->items[diagnostics->count++] =
        (struct item){.rank = rank, .line = line, .sequence = diagnostics->sequence++, .text = text};
}

static int compare(const void *left, const void *right)
{
    const struct item *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->line != b->line)
        return a->line < b->line ? -1 : 1;
    return a->sequence < b->sequence ? -1 : 1;
}

void fuse_diagnostics_print(struct fuse_diagnostics *diagnostics, FILE *stream)
{
    if (diagnostics->count > 0)
        qsort(diagnostics->items, diagnostics->count, sizeof(*diagnostics->items), compare);
    for (size_t i = 0; i < diagnostics->count; i++) {
        (void)fprintf(stream, "%s\n", diagnostics->items[i].text);
        free(diagnostics->items[i].text);
    }
    diagnostics->count = 0;
    if (diagnostics->has_lost)
        (void)fputs("fuserun: out of memory for further messages\n", stream);
    diagnostics->has_lost = false;
}
