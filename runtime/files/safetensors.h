/* files/ - formats on disk: safetensors (this file), checkpoints, and writing whole files safely. Uses base/.
 *
 * safetensors: u64 little-endian header length, that many bytes of JSON, then the data. The reader trusts nothing:
 * every length and offset is checked before it is used, and nothing is allocated on the word of a file alone. */
#ifndef FUSE_FILES_SAFETENSORS_H
#define FUSE_FILES_SAFETENSORS_H

#include "base/error.h"

#include <fuserun/files.h>

#include <stdbool.h>

/* Opens and checks the whole header. Entries are in the order of their data. */
int fuse_safetensors_open(const char *path, struct fuse_safetensors **file, struct fuse_error *error);
void fuse_safetensors_close(struct fuse_safetensors **file);
size_t fuse_safetensors_count(const struct fuse_safetensors *file);
const struct fuse_safetensors_entry *fuse_safetensors_entry(const struct fuse_safetensors *file, size_t index);
const struct fuse_safetensors_entry *fuse_safetensors_find(const struct fuse_safetensors *file, const char *name);
/* The value of a __metadata__ key, or NULL. */
const char *fuse_safetensors_metadata(const struct fuse_safetensors *file, const char *key);

/* Reads `byte_count` bytes from `offset` within the entry's data (pread; short files are errors, never a signal). */
int fuse_safetensors_read(const struct fuse_safetensors *file, const struct fuse_safetensors_entry *entry,
                          uint64_t offset, void *bytes, uint64_t byte_count, struct fuse_error *error);

/* The same of the file itself: its header and all. */
int fuse_safetensors_read_file(const struct fuse_safetensors *file, uint64_t offset, void *bytes, uint64_t byte_count,
                               struct fuse_error *error);
const char *fuse_safetensors_path(const struct fuse_safetensors *file);

/* ---- writing -------------------------------------------------------------------------------------------------- */

struct fuse_safetensors_output {
    const char *name;
    const char *dtype;
    uint32_t rank;
    const int64_t *shape;
    uint64_t byte_count;
    /* Called once in turn, to hand over the bytes: write(sink, ...) any number of times, byte_count in all. */
    int (*produce)(void *user, const struct fuse_safetensors_output *output,
                   int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                   struct fuse_error *error);
    void *user;
};

/* Has a tensor hand over its bytes to write(sink, ...), and counts them: a wrong count never makes a file. */
int fuse_safetensors_produce(const struct fuse_safetensors_output *output,
                             int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error),
                             void *sink, struct fuse_error *error);

/* Writes to a temporary name in the same folder, syncs, renames, syncs the folder. metadata: pairs key, value, ...;
 * metadata_count counts the pairs. The order of the data is by dtype size, largest first, then name. */
int fuse_safetensors_write(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                           const char *const *metadata, size_t metadata_count, struct fuse_error *error);

/* The same with checksums (files/checksums.h) in the metadata: they are made while the data is written, and put into
 * the header at the end. */
int fuse_safetensors_write_checked(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                                   const char *const *metadata, size_t metadata_count, struct fuse_error *error);

#endif
