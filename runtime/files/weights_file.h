/* One way to read weights, whatever file they are in: .safetensors or .pth. */
#ifndef FUSE_FILES_WEIGHTS_FILE_H
#define FUSE_FILES_WEIGHTS_FILE_H

#include "files/pth.h"

struct fuse_weights_file; /* an open file */

/* One tensor. Borrowed: valid until the file is closed. */
struct fuse_weights_entry {
    const char *name;
    /* What torchvision calls it today: its older files say mlp.linear_1 and mlp.linear_2 where the model has mlp.0 and
     * mlp.3 (VisionTransformer's state dict of version 1). NULL for all other names. */
    const char *new_name;
    const char *dtype; /* as safetensors spells it: "F32", "BF16", "I64", ... */
    uint32_t rank;     /* may exceed FUSERUN_MAX_DIMS */
    const uint64_t *shape;
    uint64_t element_count;
    bool is_float; /* F32, F64, F16, BF16: fuse_weights_file_read() takes it */
};

/* Which of the two it is, its first bytes and its name say. A file that is opened as FUSE_PTH_STATE_DICT has unique
 * names. weights_key (may be NULL): the dict inside a .pth; an error that is the key's carries error->key
 * "weights_key". */
int fuse_weights_file_open(const char *path, enum fuse_pth_scope scope, const char *weights_key,
                           struct fuse_weights_file **file, struct fuse_error *error);
void fuse_weights_file_close(struct fuse_weights_file **file);
size_t fuse_weights_file_count(const struct fuse_weights_file *file);
/* In the order of the file. */
const struct fuse_weights_entry *fuse_weights_file_entry(const struct fuse_weights_file *file, size_t index);
/* By name, else by new_name; NULL: there is none. */
const struct fuse_weights_entry *fuse_weights_file_find(const struct fuse_weights_file *file, const char *name);

/* Elements first to first + count - 1, in row-major order, as float32. F32 is read straight into place; the others take
 * a buffer of 256 KiB, and so do tensors that are not contiguous in the file. */
int fuse_weights_file_read(const struct fuse_weights_file *file, const struct fuse_weights_entry *entry, uint64_t first,
                           uint64_t count, float *values, struct fuse_error *error);
/* The same, as they are in the file (this machine's byte order). */
int fuse_weights_file_read_raw(const struct fuse_weights_file *file, const struct fuse_weights_entry *entry,
                               uint64_t first, uint64_t count, void *elements, struct fuse_error *error);

#endif
