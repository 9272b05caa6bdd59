/* Writing whole files so that a crash never leaves half of one under its name: temporary name in the same folder,
 * write, fsync, rename, fsync the folder. Short writes and EINTR are handled. */
#ifndef FUSE_FILES_OUTPUT_H
#define FUSE_FILES_OUTPUT_H

#include "base/error.h"

#include <stdbool.h>

struct fuse_output;

int fuse_output_open(const char *path, struct fuse_output **output, struct fuse_error *error);
int fuse_output_write(struct fuse_output *output, const void *bytes, size_t count, struct fuse_error *error);
/* Writes over bytes that were written before: of what is known only when all the rest has been. */
int fuse_output_rewrite(struct fuse_output *output, uint64_t offset, const void *bytes, size_t count,
                        struct fuse_error *error);
/* Syncs, renames, closes, frees. */
int fuse_output_commit(struct fuse_output **output, struct fuse_error *error);
/* Removes the temporary file; NULL-safe. */
void fuse_output_abandon(struct fuse_output **output);

/* A whole small file in one call. */
int fuse_output_text(const char *path, const char *text, size_t length, struct fuse_error *error);

/* fsync, for files written otherwise: 0 or an errno. Not an error where there is nothing that could be synced (EINVAL).
 */
int fuse_sync_descriptor(int descriptor);

/* Points the symbolic link `path` at `target` (as it is to stand in the link) in one step: whoever looks finds the old
 * target or the new one. A file system that has no such links is left without; that is no error. */
int fuse_output_link(const char *path, const char *target, struct fuse_error *error);

/* Whether a name is one that the calls above may have left behind, of a file `name`, where the process was killed. */
bool fuse_output_is_leftover(const char *candidate, const char *name);

/* An error where `path` is a directory: what a run replaces are files, and it looks before it removes the first. */
int fuse_refuse_folder(const char *path, struct fuse_error *error);

/* That there is none is no error. */
int fuse_remove_file(const char *path, struct fuse_error *error);

/* Makes a folder and its parents. */
int fuse_make_folders(const char *path, struct fuse_error *error);

#endif
