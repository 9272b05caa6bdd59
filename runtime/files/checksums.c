#include "files/checksums.h"

#include "files/files.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CHUNK_BYTES = 1024 * 1024, PREFIX_BYTES = 8 };

void fuse_checksum_write(uint64_t hash, char digits[FUSE_CHECKSUM_DIGITS])
{
    for (int i = 0; i < FUSE_CHECKSUM_DIGITS; i++)
        digits[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
}

static int damaged(const struct fuse_safetensors *file, const char *what, struct fuse_error *error)
{
    char shown[FUSE_SHOWN_BYTES];
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s' is damaged: the checksum of %s does not agree",
                     fuse_shown_path(fuse_safetensors_path(file)), fuse_shown(what, strlen(what), shown));
}

static bool agrees(uint64_t hash, const char *digits)
{
    char wanted[FUSE_CHECKSUM_DIGITS];
    fuse_checksum_write(hash, wanted);
    return memcmp(wanted, digits, sizeof wanted) == 0;
}

static int verify_header(const struct fuse_safetensors *file, const char *digits, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const size_t at = strlen(FUSE_CHECKSUMS_START);
    unsigned char prefix[PREFIX_BYTES];
    uint64_t byte_count = 0;
    FUSE_TRY(fuse_safetensors_read_file(file, 0, prefix, sizeof prefix, error));
    for (size_t i = sizeof prefix; i-- > 0;)
        byte_count = byte_count << 8 | prefix[i];
    if (byte_count > FUSE_SAFETENSORS_HEADER_LIMIT || byte_count < at + FUSE_CHECKSUM_DIGITS)
        return damaged(file, "the header", error);
    char *header = malloc(byte_count);
    if (header == NULL)
        return fuse_fail_memory(error, "a file's header", byte_count);
    FUSE_TRY_OUT(fuse_safetensors_read_file(file, PREFIX_BYTES, header, byte_count, error));
    const bool is_in_place = memcmp(header, FUSE_CHECKSUMS_START, at) == 0;
    memset(header + at, '0', FUSE_CHECKSUM_DIGITS);
    if (!is_in_place || !agrees(XXH3_64bits(header, byte_count), digits))
        status = damaged(file, "the header", error);
out:
    free(header);
    return status;
}

static int verify_tensor(const struct fuse_safetensors *file, const struct fuse_safetensors_entry *entry,
                         const char *digits, XXH3_state_t *hash, char *chunk, struct fuse_error *error)
{
    (void)XXH3_64bits_reset(hash);
    for (uint64_t at = 0; at < entry->byte_count; at += CHUNK_BYTES) {
        const uint64_t left = entry->byte_count - at, count = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        FUSE_TRY(fuse_safetensors_read(file, entry, at, chunk, count, error));
        (void)XXH3_64bits_update(hash, chunk, count);
    }
    return agrees(XXH3_64bits_digest(hash), digits) ? FUSERUN_OK : damaged(file, entry->name, error);
}

int fuse_checksums_verify(const struct fuse_safetensors *file, bool *has_checksums, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const size_t count = fuse_safetensors_count(file);
    const char *digits = fuse_safetensors_metadata(file, FUSE_CHECKSUMS_KEY);
    *has_checksums = digits == NULL || strcmp(digits, FUSE_CHECKSUMS_NONE) != 0;
    if (!*has_checksums)
        return FUSERUN_OK;
    if (digits == NULL || strlen(digits) != FUSE_CHECKSUM_DIGITS * (count + 1))
        return damaged(file, "the header", error);
    XXH3_state_t *hash = XXH3_createState();
    char *chunk = malloc(CHUNK_BYTES);
    if (hash == NULL || chunk == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "checking a file", CHUNK_BYTES));
    FUSE_TRY_OUT(verify_header(file, digits, error));
    for (size_t i = 0; i < count; i++)
        FUSE_TRY_OUT(verify_tensor(file, fuse_safetensors_entry(file, i), digits + FUSE_CHECKSUM_DIGITS * (i + 1), hash,
                                   chunk, error));
out:
    free(chunk);
    (void)XXH3_freeState(hash);
    return status;
}
