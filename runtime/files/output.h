/* Writing whole files so that a crash never leaves half of one under its name: temporary name in the same folder,
 * write, fsync, rename, fsync the folder. Short writes and EINTR are handled. */
#ifndef FUSE_FILES_OUTPUT_H
#define FUSE_FILES_OUTPUT_H

#include "base/error.h"

struct fuse_output;

int fuse_output_open(const char *path, struct fuse_output **output, struct fuse_error *error);
int fuse_output_write(struct fuse_output *output, const void *bytes, size_t count, struct fuse_error *error);
/* Syncs, renames, closes, frees. */
int fuse_output_commit(struct fuse_output **output, struct fuse_error *error);
/* Removes the temporary file; NULL-safe. */
void fuse_output_abandon(struct fuse_output **output);

/* A whole small file in one call. */
int fuse_output_text(const char *path, const char *text, size_t length, struct fuse_error *error);

/* fsync, for files written otherwise: 0 or an errno. Not an error where there is nothing that could be synced (EINVAL).
 */
int fuse_sync_descriptor(int descriptor);

/* Makes a folder and its parents. */
int fuse_make_folders(const char *path, struct fuse_error *error);

#endif
