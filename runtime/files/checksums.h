/* Checksums in a .safetensors file, for files that must be known to be whole.
 *
 * They are the value of the first metadata key, so that they stand at a fixed place of the file:
 *
 *     {"__metadata__":{"checksums":"HHHHHHHHHHHHHHHHAAAAAAAAAAAAAAAA...",...
 *
 * each 16 hexadecimal digits of an XXH3 64-bit hash (xxHash 0.8, seed 0): the first of the header's text in which these
 * first 16 digits are zeros, then one for each tensor's bytes, in the order of the data. A tool that rewrites the file
 * writes "none" instead, wherever it puts the key. Without the key, or with anything else, a file counts as damaged: no
 * change of a byte may pass. */
#ifndef FUSE_FILES_CHECKSUMS_H
#define FUSE_FILES_CHECKSUMS_H

#include "files/files.h"
#include "files/safetensors.h"

#define FUSE_CHECKSUMS_KEY "checksums"
#define FUSE_CHECKSUMS_NONE "none"
#define FUSE_CHECKSUMS_START "{\"" FUSE_SAFETENSORS_METADATA "\":{\"" FUSE_CHECKSUMS_KEY "\":\""
enum { FUSE_CHECKSUM_DIGITS = 16 };

/* Reads the whole file once. FUSERUN_ERROR_FORMAT where something does not agree. *has_checksums: false for a file
 * that says "none", of which nothing was read then. */
int fuse_checksums_verify(const struct fuse_safetensors *file, bool *has_checksums, struct fuse_error *error);

/* A hash as its digits, without a NUL. */
void fuse_checksum_write(uint64_t hash, char digits[FUSE_CHECKSUM_DIGITS]);

#endif
