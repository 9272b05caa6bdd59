/* The members of a zip file, all stored (never compressed), as torch.save writes them. For the .pth reader.
 *
 * Zip files are easy to make such that two readers see two contents. This reader takes only files on which all agree:
 * the end record is the last thing in the file, the central directory stands right before it, members follow one
 * another from byte 0 without gap or overlap, and local headers say what the directory says. */
#ifndef FUSE_FILES_ZIP_H
#define FUSE_FILES_ZIP_H

#include "files/input.h"

#define FUSE_ZIP_NAME_LIMIT 1024

struct fuse_zip; /* an open directory */

/* Borrowed: valid until the directory is closed. */
struct fuse_zip_member {
    const char *name;
    uint64_t header; /* where its local header stands */
    uint64_t offset; /* of its first byte, from the start of the file */
    uint64_t byte_count;
};

/* A directory above this is refused; a member takes some 60 bytes. */
#define FUSE_ZIP_DIRECTORY_LIMIT (8u << 20)

/* Reads and checks the directory and all local headers. `input` is borrowed for the call. */
int fuse_zip_open(const struct fuse_input *input, struct fuse_zip **zip, struct fuse_error *error);
void fuse_zip_close(struct fuse_zip **zip);
size_t fuse_zip_count(const struct fuse_zip *zip);
/* In the order of the file. */
const struct fuse_zip_member *fuse_zip_member(const struct fuse_zip *zip, size_t index);
const struct fuse_zip_member *fuse_zip_find(const struct fuse_zip *zip, const char *name);

/* ---- the numbers of the format, for reader and writer ---------------------------------------------------------- */

#define FUSE_ZIP_LOCAL_MAGIC 0x04034b50u
#define FUSE_ZIP_CENTRAL_MAGIC 0x02014b50u
#define FUSE_ZIP_DESCRIPTOR_MAGIC 0x08074b50u
#define FUSE_ZIP_END_MAGIC 0x06054b50u
#define FUSE_ZIP_END64_MAGIC 0x06064b50u
#define FUSE_ZIP_LOCATOR64_MAGIC 0x07064b50u
enum {
    FUSE_ZIP_LOCAL_BYTES = 30,
    FUSE_ZIP_CENTRAL_BYTES = 46,
    FUSE_ZIP_END_BYTES = 22,
    FUSE_ZIP_END64_BYTES = 56,
    FUSE_ZIP_LOCATOR64_BYTES = 20,
    FUSE_ZIP_EXTRA64 = 1, /* id of the extra field with 64-bit sizes */
    FUSE_ZIP_FLAG_ENCRYPTED = 1 << 0,
    FUSE_ZIP_FLAG_DESCRIPTOR = 1 << 3, /* CRC and sizes stand behind the data, and are 0 before it */
    FUSE_ZIP_FLAG_UTF8 = 1 << 11
};

#endif
