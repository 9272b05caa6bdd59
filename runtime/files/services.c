#include "files/files.h"

#include "files/safetensors.h"

#include <jansson.h>

#include <stdio.h>
#include <string.h>

int fuse_fail_errno(struct fuse_error *error, const char *doing, const char *path, int cause)
{
    return fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot %s '%s': %s", doing, fuse_shown_path(path),
                     strerror(cause));
}

const char *fuse_shown(const char *text, size_t length, char buffer[FUSE_SHOWN_BYTES])
{
    static const char more[] = "...";
    size_t count = length;
    if (count > FUSE_SHOWN_BYTES - 1) {
        count = FUSE_SHOWN_BYTES - sizeof more;
        while (count > 0 && ((unsigned char)text[count] & 0xC0) == 0x80)
            count--;
    }
    for (size_t i = 0; i < count; i++) {
        const unsigned char byte = (unsigned char)text[i];
        buffer[i] = byte < 0x20 || byte == 0x7F ? '?' : text[i];
    }
    (void)snprintf(buffer + count, FUSE_SHOWN_BYTES - count, "%s", count < length ? more : "");
    return buffer;
}

bool fuse_is_utf8(const char *text, size_t length)
{
    json_t *string = json_stringn(text, length);
    json_decref(string);
    return string != NULL;
}

const char *fuse_shown_path(const char *path)
{
    enum { LONGEST = 320 };
    const size_t length = strlen(path);
    const char *shown = length <= LONGEST ? path : path + length - LONGEST;
    while (((unsigned char)*shown & 0xC0) == 0x80)
        shown++;
    return shown;
}

const struct fuse_file_services *fuse_file_services(void)
{
    static const struct fuse_file_services services = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_file_services, read),
        .open = fuse_safetensors_open,
        .close = fuse_safetensors_close,
        .count = fuse_safetensors_count,
        .entry = fuse_safetensors_entry,
        .find = fuse_safetensors_find,
        .read = fuse_safetensors_read,
    };
    return &services;
}
