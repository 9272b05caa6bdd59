#include "files/files.h"

#include "files/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int fuse_fail_errno(struct fuse_error *error, const char *doing, const char *path, int cause)
{
    return fuse_fail(error, cause == ENOMEM ? FUSERUN_ERROR_MEMORY : FUSERUN_ERROR_IO, NULL, "cannot %s '%s': %s",
                     doing, fuse_shown_path(path), strerror(cause));
}

size_t fuse_commanding_bytes(const char *text, size_t length)
{
    const unsigned char *const at = (const unsigned char *)text;
    static const struct {
        unsigned char first, second, least, greatest; /* least: of the last byte */
        uint8_t count;
    } ranges[] = {{0xC2, 0, 0x80, 0x9F, 2},     /* U+0080 to U+009F */
                  {0xD8, 0, 0x9C, 0x9C, 2},     /* U+061C */
                  {0xE2, 0x80, 0x8E, 0x8F, 3},  /* U+200E, U+200F */
                  {0xE2, 0x80, 0xA8, 0xAE, 3},  /* U+2028 to U+202E: ends of lines, too */
                  {0xE2, 0x81, 0xA6, 0xA9, 3}}; /* U+2066 to U+2069 */
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        const size_t count = ranges[i].count;
        if (length >= count && at[0] == ranges[i].first && (count == 2 || at[1] == ranges[i].second) &&
            at[count - 1] >= ranges[i].least && at[count - 1] <= ranges[i].greatest)
            return count;
    }
    return at[0] < 0x20 || at[0] == 0x7F;
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
    size_t hidden = 0; /* bytes of a character that is not shown */
    for (size_t i = 0; i < count; i++) {
        if (hidden == 0)
            hidden = fuse_commanding_bytes(text + i, count - i);
        buffer[i] = hidden > 0 ? '?' : text[i];
        hidden -= hidden > 0;
    }
    (void)snprintf(buffer + count, FUSE_SHOWN_BYTES - count, "%s", count < length ? more : "");
    return buffer;
}

bool fuse_is_utf8(const char *text, size_t length)
{
    /* RFC 3629: how many bytes follow a first one, and the range of the next. */
    static const struct {
        unsigned char first, last, following, least, greatest;
    } forms[] = {{0x00, 0x7F, 0, 0, 0},       {0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF},
                 {0xE1, 0xEC, 2, 0x80, 0xBF}, {0xED, 0xED, 2, 0x80, 0x9F}, {0xEE, 0xEF, 2, 0x80, 0xBF},
                 {0xF0, 0xF0, 3, 0x90, 0xBF}, {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F}};
    const unsigned char *bytes = (const unsigned char *)text;
    for (size_t i = 0; i < length;) {
        size_t form = 0;
        while (form < sizeof forms / sizeof forms[0] && (bytes[i] < forms[form].first || bytes[i] > forms[form].last))
            form++;
        if (form == sizeof forms / sizeof forms[0] || length - i <= forms[form].following)
            return false;
        for (size_t next = 1; next <= forms[form].following; next++) {
            const unsigned char least = next == 1 ? forms[form].least : 0x80;
            const unsigned char greatest = next == 1 ? forms[form].greatest : 0xBF;
            if (bytes[i + next] < least || bytes[i + next] > greatest)
                return false;
        }
        i += 1u + forms[form].following;
    }
    return true;
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
