#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (64u << 20)

/* A file: this, the key, the image. Of the machine's own byte order: nobody else reads it. */
struct header {
    char magic[8]; /* the form's version is in it */
    uint64_t key_bytes, image_bytes;
    uint64_t hash; /* of key and image */
};
static const char magic[8] = "fuserun1";

/* FNV-1a, 64 bit. */
static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return hash;
}
#define HASH_START 0xcbf29ce484222325u

/* The folder, made if it is not there. A relative XDG_CACHE_HOME counts as unset, as its specification says. */
static bool find_folder(char *path, size_t size)
{
    const char *const cache = getenv("XDG_CACHE_HOME"), *const home = getenv("HOME");
    int length;
    if (cache != NULL && cache[0] == '/')
        length = snprintf(path, size, "%s", cache);
    else if (home != NULL && home[0] == '/')
        length = snprintf(path, size, "%s/.cache", home);
    else
        return false;
    if (length < 0 || (size_t)length + sizeof("/fuserun") > size)
        return false;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return false;
    memcpy(path + length, "/fuserun", sizeof("/fuserun"));
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static bool find_file(const char *key, size_t key_bytes, char *path, size_t size)
{
    char folder[3072];
    if (!find_folder(folder, sizeof(folder)))
        return false;
    const int length =
        snprintf(path, size, "%s/%016llx.cubin", folder, (unsigned long long)hash_bytes(HASH_START, key, key_bytes));
    return length > 0 && (size_t)length < size;
}

static bool read_all(int file, char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t got = read(file, bytes, count);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return false;
        bytes += got > 0 ? got : 0;
        count -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

static bool write_all(int file, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t put = write(file, bytes, count);
        if (put < 0 && errno != EINTR)
            return false;
        bytes += put > 0 ? put : 0;
        count -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

/* Only a file of the user's own that holds exactly what its header says. */
static char *read_entry(int file, const char *key, size_t key_bytes, size_t *image_bytes)
{
    struct header header;
    struct stat found;
    if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != geteuid() ||
        found.st_size < (off_t)sizeof(header) || found.st_size > (off_t)MOST_BYTES)
        return NULL;
    const size_t rest = (size_t)found.st_size - sizeof(header);
    if (!read_all(file, (char *)&header, sizeof(header)) || memcmp(header.magic, magic, sizeof(magic)) != 0 ||
        header.key_bytes != key_bytes || header.image_bytes == 0 || header.image_bytes > rest ||
        rest - header.image_bytes != key_bytes)
        return NULL;
    char *const content = malloc(rest);
    if (content == NULL)
        return NULL;
    if (!read_all(file, content, rest) || hash_bytes(HASH_START, content, rest) != header.hash ||
        memcmp(content, key, key_bytes) != 0) {
        free(content);
        return NULL;
    }
    *image_bytes = (size_t)header.image_bytes;
    memmove(content, content + key_bytes, *image_bytes);
    return content;
}

char *fuse_cache_read(const char *key, size_t key_bytes, size_t *image_bytes)
{
    char path[4096];
    *image_bytes = 0;
    if (!find_file(key, key_bytes, path, sizeof(path)))
        return NULL;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return NULL;
    char *const image = read_entry(file, key, key_bytes, image_bytes);
    (void)close(file);
    return image;
}

/* Beside its place under a name of its own, then renamed: readers see a whole entry or none. */
void fuse_cache_write(const char *key, size_t key_bytes, const char *image, size_t image_bytes)
{
    char path[4096], fresh[4096 + 16];
    if (image_bytes > MOST_BYTES / 2 || !find_file(key, key_bytes, path, sizeof(path)))
        return;
    snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path);
    const int file = mkstemp(fresh); /* mode 0600 */
    if (file < 0)
        return;
    struct header header = {.key_bytes = key_bytes, .image_bytes = image_bytes};
    memcpy(header.magic, magic, sizeof(magic));
    header.hash = hash_bytes(hash_bytes(HASH_START, key, key_bytes), image, image_bytes);
    bool is_whole = write_all(file, (const char *)&header, sizeof(header)) && write_all(file, key, key_bytes) &&
                    write_all(file, image, image_bytes);
    is_whole = close(file) == 0 && is_whole;
    if (!is_whole || rename(fresh, path) != 0)
        (void)unlink(fresh);
}
