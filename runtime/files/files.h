/* What the files of this room share. */
#ifndef FUSE_FILES_FILES_H
#define FUSE_FILES_FILES_H

#include "base/error.h"

#include <fuserun/files.h>

#include <stdbool.h>

/* "cannot DO 'PATH': REASON" with the reason of errno value `cause`; a long path is shortened at its front, so that the
 * reason always fits. */
int fuse_fail_errno(struct fuse_error *error, const char *doing, const char *path, int cause);

/* Text from a file (a name, a piece of JSON) made fit for a one-line message: each byte of a character
 * that commands a terminal as `?`, cut at a character's end with "..." behind it. Returns buffer. */
#define FUSE_SHOWN_BYTES 80
const char *fuse_shown(const char *text, size_t length, char buffer[FUSE_SHOWN_BYTES]);

/* Bytes of the character that text (length > 0) begins with if a terminal takes it for a command or for an order to
 * turn the text around it, else 0. */
size_t fuse_commanding_bytes(const char *text, size_t length);

/* The end of a path that fits into a message beside its other words. */
const char *fuse_shown_path(const char *path);

/* Whole and well-formed UTF-8 (which NUL is, too). */
bool fuse_is_utf8(const char *text, size_t length);

/* The table behind FUSERUN_FILE_SERVICES. */
const struct fuse_file_services *fuse_file_services(void);

/* ---- element types of safetensors ----------------------------------------------------------------------------- */

struct fuse_safetensors_dtype {
    const char *name;
    uint32_t bits; /* of one element */
};
const struct fuse_safetensors_dtype *fuse_safetensors_dtype(const char *name); /* NULL: unknown */

#define FUSE_SAFETENSORS_HEADER_LIMIT 100000000u
#define FUSE_SAFETENSORS_METADATA "__metadata__"

#endif
