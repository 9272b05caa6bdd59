/* The pickles of torch.save, read by a machine that can make values and nothing else. For the .pth reader.
 *
 * A pickle is a program for a stack machine. Python's can call any function; this one knows the opcodes that torch's
 * own weights_only unpickler takes (torch/_weights_only_unpickler.py) and the few names that state dicts need, and
 * refuses all others by name. It runs without recursion, and all its memory together is bounded: files are not trusted.
 */
#ifndef FUSE_FILES_PICKLE_H
#define FUSE_FILES_PICKLE_H

#include "base/error.h"

#include <stdbool.h>

#define FUSE_PICKLE_BYTE_LIMIT (16u << 20)   /* a longer data.pkl is refused; a tensor takes some 200 bytes */
#define FUSE_PICKLE_MEMORY_LIMIT (48u << 20) /* for all values, the stack and the memo */
#define FUSE_PICKLE_DEPTH_LIMIT 64           /* of values inside values */
#define FUSE_PICKLE_RANK_LIMIT 64

enum fuse_pickle_kind {
    FUSE_PICKLE_NONE = 1,
    FUSE_PICKLE_BOOL,
    FUSE_PICKLE_INTEGER,
    FUSE_PICKLE_BIG, /* an integer beyond 64 bits; its value is not kept */
    FUSE_PICKLE_NUMBER,
    FUSE_PICKLE_TEXT,
    FUSE_PICKLE_TUPLE,
    FUSE_PICKLE_LIST,
    FUSE_PICKLE_DICT,
    FUSE_PICKLE_SET, /* always empty: no opcode fills one */
    FUSE_PICKLE_TENSOR,
    FUSE_PICKLE_STORAGE, /* these two only on the way to tensors */
    FUSE_PICKLE_GLOBAL
};

/* A strided view of a storage; offset and strides count elements. Checked: every element lies inside the storage. */
struct fuse_pickle_tensor {
    const char *dtype;      /* as in safetensors: "F32", ... */
    const char *storage;    /* its key: the member data/KEY holds the bytes; not NUL-terminated */
    size_t storage_length;  /* of the key */
    uint64_t storage_count; /* elements of the whole storage */
    uint64_t offset;
    uint64_t element_count;
    uint32_t rank;
    const uint64_t *shape;  /* (rank) */
    const uint64_t *stride; /* (rank) */
};

struct fuse_pickle_value {
    uint8_t kind;    /* enum fuse_pickle_kind */
    uint8_t mark;    /* while it is searched for cycles */
    uint8_t height;  /* levels of values inside it */
    bool is_ordered; /* a dict made by OrderedDict */
    uint32_t count;  /* bytes of a text; items of a tuple or list; keys and values of a dict, in turn */
    uint32_t capacity;
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char *text; /* not NUL-terminated, not checked to be UTF-8 */
        struct fuse_pickle_value **items;
        const struct fuse_pickle_tensor *tensor; /* of a storage: without a shape */
        uint32_t global;
    } as;
};

struct fuse_pickle; /* the values of one pickle */

/* Runs the pickle in bytes, which must stay as they are until it is freed. `path` is for messages. A tree without
 * cycles comes out, of bounded depth, in which values may be shared. */
int fuse_pickle_read(const char *path, const unsigned char *bytes, size_t byte_count, struct fuse_pickle **pickle,
                     struct fuse_error *error);
void fuse_pickle_free(struct fuse_pickle **pickle);
const struct fuse_pickle_value *fuse_pickle_root(const struct fuse_pickle *pickle);
size_t fuse_pickle_memory(const struct fuse_pickle *pickle); /* bytes that the values take */

/* The storage class behind "torch." for a dtype ("FloatStorage" for "F32"), or NULL. For the writer. */
const char *fuse_pickle_storage_class(const char *dtype);

#endif
