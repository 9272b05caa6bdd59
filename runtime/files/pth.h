/* The files of torch.save (.pth, .pt): a zip file whose data.pkl describes the tensors, and whose members data/KEY are
 * their storages. zip.h and pickle.h say what is refused. Tensor data stays in the file until it is asked for. */
#ifndef FUSE_FILES_PTH_H
#define FUSE_FILES_PTH_H

#include "files/safetensors.h"

#define FUSE_PTH_NAME_LIMIT 1024 /* bytes of a tensor's name, read or written */

struct fuse_pth; /* an open file */

/* One tensor. Borrowed: valid until the file is closed. */
struct fuse_pth_entry {
    const char *name;  /* keys of nested dicts and numbers in lists are joined by dots */
    const char *dtype; /* in the words of safetensors: "F32", ... */
    uint32_t element_bytes;
    uint32_t rank; /* at most 64 */
    const uint64_t *shape;
    const uint64_t *stride; /* of elements */
    uint64_t element_count;
    uint64_t offset; /* of the first element, from the start of the file */
    bool is_contiguous;
};

/* What of a file's values is listed. */
enum fuse_pth_scope {
    FUSE_PTH_STATE_DICT = 1, /* the tensors of one state dict: the whole file, or the dict that weights_key names */
    FUSE_PTH_EVERYTHING      /* every tensor, however deep */
};

/* Opens and checks everything but the tensors' values. weights_key: NULL, or the key of a dict inside ("a.b": inside
 * that of a). An error that is the key's carries error->key "weights_key". */
int fuse_pth_open(const char *path, enum fuse_pth_scope scope, const char *weights_key, struct fuse_pth **file,
                  struct fuse_error *error);
void fuse_pth_close(struct fuse_pth **file);
size_t fuse_pth_count(const struct fuse_pth *file);
/* In the order of the file. */
const struct fuse_pth_entry *fuse_pth_entry(const struct fuse_pth *file, size_t index);

/* Elements first to first + count - 1, in row-major order whatever the strides, as the file's dtype in this machine's
 * byte order. Contiguous ones are read straight into place. */
int fuse_pth_read(const struct fuse_pth *file, const struct fuse_pth_entry *entry, uint64_t first, uint64_t count,
                  void *elements, struct fuse_error *error);

/* Writes a state dict, in the order of `outputs`, that torch.load(weights_only=True) and mmap=True take. Same rules as
 * fuse_safetensors_write(): temporary name, sync, rename; the bytes depend on the tensors alone. */
int fuse_pth_write(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                   struct fuse_error *error);

#endif
