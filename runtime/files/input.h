/* A regular file, open to be read at any place. */
#ifndef FUSE_FILES_INPUT_H
#define FUSE_FILES_INPUT_H

#include "base/error.h"

struct fuse_input {
    char *path;
    int descriptor;
    uint64_t byte_count; /* when it was opened */
};

/* Refuses what is not a regular file. On failure nothing is left to close. */
int fuse_input_open(const char *path, struct fuse_input *input, struct fuse_error *error);
/* A file that has become shorter is an error, never a signal. Any thread; allocates nothing. */
int fuse_input_read(const struct fuse_input *input, uint64_t offset, void *bytes, uint64_t byte_count,
                    struct fuse_error *error);
/* Also fine for one that is zero-filled or closed already. */
void fuse_input_close(struct fuse_input *input);

#endif
