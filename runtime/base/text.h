/* Growing text, and small helpers on names. */
#ifndef FUSE_BASE_TEXT_H
#define FUSE_BASE_TEXT_H

#include "base/error.h"

#include <stdbool.h>

/* A growing string. Zero-initialise; `data` is NULL or ends in NUL. Append functions after a failed one do nothing, so
 * callers may append freely and test `failed` once. */
struct fuse_text {
    char *data;
    size_t length;
    size_t capacity;
    bool failed;
};

void fuse_text_free(struct fuse_text *text);
void fuse_text_clear(struct fuse_text *text); /* keeps the memory */
void fuse_text_add(struct fuse_text *text, const char *string);
void fuse_text_add_bytes(struct fuse_text *text, const char *bytes, size_t count);
void fuse_text_addf(struct fuse_text *text, const char *format, ...) FUSERUN_PRINTF(2, 3);
/* A JSON string, quotes and escapes included. */
void fuse_text_add_json(struct fuse_text *text, const char *string);
/* A double as the shortest decimal that reads back as the same value; non-finite ones as `null`. */
void fuse_text_add_json_number(struct fuse_text *text, double value);

/* What `part` holds ("" for nothing), to be put into `text`, which fails if making the part did. */
const char *fuse_text_part(struct fuse_text *text, const struct fuse_text *part);

/* Copies; NULL when out of memory. The caller frees. */
char *fuse_strdup(const char *string) __attribute__((warn_unused_result));
char *fuse_strndup(const char *string, size_t count) __attribute__((warn_unused_result));
char *fuse_format(const char *format, ...) FUSERUN_PRINTF(1, 2) __attribute__((warn_unused_result));

/* Edit distance (insert, delete, replace, swap of neighbours), and the nearest of count names when it is near enough to
 * suggest (at most a third of the name, at least 1); NULL otherwise. */
size_t fuse_edit_distance(const char *a, const char *b);
const char *fuse_nearest(const char *name, const char *const *names, size_t count);

/* Glob match: `*` any run of characters (dots too), `?` one, everything else itself. */
bool fuse_glob_match(const char *pattern, const char *name);

#endif
