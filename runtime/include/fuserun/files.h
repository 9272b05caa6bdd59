/* fuserun/files.h - reading .safetensors files, as a service of the host.
 *
 * A plugin links nothing of fuserun's, so it asks the host for this table:
 *
 *     const struct fuse_file_services *files = host->get_service(FUSERUN_FILE_SERVICES);
 *     struct fuse_safetensors *file = NULL;
 *     if (files == NULL)
 *         return host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "this fuserun cannot read .safetensors files");
 *     int status = files->open(path, &file, error);
 *     const struct fuse_safetensors_entry *x = status == FUSERUN_OK ? files->find(file, "x") : NULL;
 *
 * The file is not trusted: open() checks its whole header, and a file that passes has entries whose data lies inside it. */
#ifndef FUSERUN_FILES_H
#define FUSERUN_FILES_H

#include <fuserun/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FUSERUN_FILE_SERVICES "fuserun.safetensors/1"

struct fuse_safetensors; /* an open file */

/* One tensor of a file. Borrowed: valid until the file is closed. */
struct fuse_safetensors_entry {
    uint32_t struct_size;
    uint32_t rank; /* may be 0, and may exceed FUSERUN_MAX_DIMS */
    const char *name;
    const char *dtype; /* as in the file: "F32", "BF16", "I64", ... */
    const uint64_t *shape;
    uint64_t element_count;
    uint64_t offset; /* of the first byte, from the start of the file */
    uint64_t byte_count;
};

struct fuse_file_services {
    uint32_t struct_size;

    /* Opens a file and checks its header. The error names the file, and the tensor at fault if it is one; it has no key:
     * the caller adds that of the option which named the file. *file is set to NULL on failure. */
    int (*open)(const char *path, struct fuse_safetensors **file, struct fuse_error *error);
    void (*close)(struct fuse_safetensors **file); /* clears *file; NULL-safe */

    /* Entries in the order of their data, and by name (NULL if there is none). */
    size_t (*count)(const struct fuse_safetensors *file);
    const struct fuse_safetensors_entry *(*entry)(const struct fuse_safetensors *file, size_t index);
    const struct fuse_safetensors_entry *(*find)(const struct fuse_safetensors *file, const char *name);

    /* Reads byte_count bytes from `offset` within the entry's data, little-endian as they are in the file. Any thread;
     * allocates nothing. */
    int (*read)(const struct fuse_safetensors *file, const struct fuse_safetensors_entry *entry, uint64_t offset,
                void *bytes, uint64_t byte_count, struct fuse_error *error);
};

#ifdef __cplusplus
}
#endif
#endif
