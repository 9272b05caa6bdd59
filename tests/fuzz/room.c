/* What the kernel tells of memory, in a folder that stands for /: the files of `names` in that order, FUZZ_SEPARATOR
 * between them. Only the kernel writes these, but not every kernel that there is was looked at. */
#include "fuzz.h"

#include "memory/room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const folders[] = {"",     "/proc",      "/proc/self", "/proc/sys", "/proc/sys/vm",
                                      "/two", "/two/inner", "/one",       "/one/inner"};
static const char *const names[] = {"/proc/meminfo",
                                    "/proc/self/mountinfo",
                                    "/proc/self/cgroup",
                                    "/proc/sys/vm/overcommit_memory",
                                    "/proc/self/status",
                                    "/two/inner/memory.max",
                                    "/two/inner/memory.current",
                                    "/two/inner/memory.stat",
                                    "/two/inner/memory.swap.max",
                                    "/two/inner/memory.swap.current",
                                    "/two/memory.max",
                                    "/two/memory.current",
                                    "/one/inner/memory.limit_in_bytes",
                                    "/one/inner/memory.usage_in_bytes",
                                    "/one/inner/memory.stat",
                                    "/one/inner/memory.memsw.limit_in_bytes",
                                    "/one/inner/memory.memsw.usage_in_bytes",
                                    "/one/memory.use_hierarchy",
                                    "/one/memory.limit_in_bytes",
                                    "/one/memory.usage_in_bytes"};
enum { FOLDERS = sizeof folders / sizeof folders[0], NAMES = sizeof names / sizeof names[0], PATH_BYTES = 128 };

static char root[] = "/tmp/fuserun-fuzz-XXXXXX";

static const char *path_of(const char *name, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s%s", root, name);
    return path;
}

static void remove_root(void)
{
    char path[PATH_BYTES];
    for (size_t i = 0; i < NAMES; i++)
        (void)unlink(path_of(names[i], path));
    for (size_t i = FOLDERS; i-- > 0;)
        (void)rmdir(path_of(folders[i], path));
}

static void make_root(void)
{
    static bool is_made;
    char path[PATH_BYTES];
    if (is_made)
        return;
    is_made = true;
    FUZZ_CHECK(mkdtemp(root) != NULL && atexit(remove_root) == 0);
    for (size_t i = 1; i < FOLDERS; i++)
        FUZZ_CHECK(mkdir(path_of(folders[i], path), 0700) == 0);
}

/* A file that the input does not have is not there. */
static void put(const char *name, const uint8_t *bytes, size_t count)
{
    char path[PATH_BYTES];
    (void)unlink(path_of(name, path));
    if (bytes == NULL)
        return;
    FILE *file = fopen(path, "we");
    FUZZ_CHECK(file != NULL);
    FUZZ_CHECK(fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
    make_root();
    for (size_t i = 0; i < NAMES; i++) {
        const uint8_t *part = NULL;
        size_t part_count = 0;
        put(names[i], fuzz_next_part(&bytes, &count, &part, &part_count) ? part : NULL, part_count);
    }
    struct fuse_room room, again;
    fuse_room_measure(root, &room);
    fuse_room_measure(root, &again);
    FUZZ_CHECK(room.bound == again.bound && room.bytes == again.bytes && room.limit_bytes == again.limit_bytes);
    FUZZ_CHECK((room.bound == FUSE_ROOM_UNKNOWN) == (room.bytes == UINT64_MAX));
}
