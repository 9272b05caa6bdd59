/* Sources: Linux's Documentation/filesystems/proc.rst (meminfo, mountinfo), admin-guide/cgroup-v2.rst,
 * admin-guide/cgroup-v1/memory.rst, vm/overcommit-accounting.rst. */
#include "memory/room.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define PATH_BYTES 4608
#define UNLIMITED ((uint64_t)1 << 62) /* cgroup v1 writes no limit as the greatest multiple of a page */

static FILE *open_file(const char *root, const char *folder, const char *name)
{
    char path[PATH_BYTES];
    const int length = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
}

/* The number that a file consists of. False: none there, or "max". */
static bool read_number(const char *root, const char *folder, const char *name, uint64_t *number)
{
    FILE *file = open_file(root, folder, name);
    if (file == NULL)
        return false;
    const bool is_read = fscanf(file, "%" SCNu64, number) == 1;
    (void)fclose(file);
    return is_read && *number < UNLIMITED;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

/* The sum of the numbers behind `keys`, lines of `KEY NUMBER` or `KEY: NUMBER kB` in bytes. False: none of them there.
 */
static bool read_keys(const char *root, const char *folder, const char *name, const char *const *keys, uint64_t *sum)
{
    char key[64];
    char unit[8];
    char line[256];
    uint64_t number;
    bool is_found = false;
    FILE *file = open_file(root, folder, name);
    *sum = 0;
    if (file == NULL)
        return false;
    while (fgets(line, sizeof line, file) != NULL) {
        const int fields = sscanf(line, "%63[^: \n] %*[:] %" SCNu64 " %7s", key, &number, unit);
        if (fields < 2 && sscanf(line, "%63s %" SCNu64, key, &number) != 2)
            continue;
        for (const char *const *wanted = keys; *wanted != NULL; wanted++) {
            if (strcmp(key, *wanted) != 0)
                continue;
            *sum = add(*sum, fields == 3 && strcmp(unit, "kB") == 0 ? times(number, 1024) : number);
            is_found = true;
        }
    }
    (void)fclose(file);
    return is_found;
}

static void bound(struct fuse_room *room, enum fuse_room_bound by, uint64_t bytes, uint64_t limit_bytes)
{
    if (bytes < room->bytes)
        *room = (struct fuse_room){by, bytes, limit_bytes};
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static uint64_t free_swap(const char *root)
{
    uint64_t bytes = 0;
    (void)read_keys(root, "/proc", "meminfo", (const char *const[]){"SwapFree", NULL}, &bytes);
    return bytes;
}

static void bound_by_machine(const char *root, struct fuse_room *room)
{
    uint64_t available, total, commit_limit, committed, mode;
    if (!read_keys(root, "/proc", "meminfo", (const char *const[]){"MemAvailable", NULL}, &available) ||
        !read_keys(root, "/proc", "meminfo", (const char *const[]){"MemTotal", "SwapTotal", NULL}, &total))
        return;
    bound(room, FUSE_ROOM_MACHINE, add(available, free_swap(root)), total);
    if (read_number(root, "/proc/sys/vm", "overcommit_memory", &mode) && mode == 2 &&
        read_keys(root, "/proc", "meminfo", (const char *const[]){"CommitLimit", NULL}, &commit_limit) &&
        read_keys(root, "/proc", "meminfo", (const char *const[]){"Committed_AS", NULL}, &committed))
        bound(room, FUSE_ROOM_COMMIT, less(commit_limit, committed), commit_limit);
}

/* ---- control groups ---------------------------------------------------------------------------------------------- */

/* Where the group's files are, and how far up its ancestors' can be seen. */
struct group {
    char folder[PATH_BYTES];
    size_t mount_length; /* of folder: the mount point */
};

/* One line of /proc/self/mountinfo: `36 35 98:0 ROOT MOUNT_POINT OPTIONS [FIELDS] - TYPE SOURCE OPTIONS`. */
static bool find_mount(const char *root, bool is_version_2, char mount_root[PATH_BYTES], char mount_point[PATH_BYTES])
{
    char *line = NULL;
    char *rest = NULL;
    size_t capacity = 0;
    bool is_found = false;
    FILE *file = open_file(root, "/proc/self", "mountinfo");
    if (file == NULL)
        return false;
    while (!is_found && getline(&line, &capacity, file) >= 0) {
        char type[32];
        char options[512] = "";
        const char *end = strstr(line, " - ");
        if (end == NULL || sscanf(end, " - %31s %*s %511s", type, options) < 1 ||
            strcmp(type, is_version_2 ? "cgroup2" : "cgroup") != 0 ||
            sscanf(line, "%*s %*s %*s %4607s %4607s", mount_root, mount_point) != 2)
            continue;
        for (char *word = strtok_r(options, ",", &rest); word != NULL && !is_found; word = strtok_r(NULL, ",", &rest))
            is_found = !is_version_2 && strcmp(word, "memory") == 0;
        is_found = is_found || is_version_2;
    }
    free(line);
    (void)fclose(file);
    return is_found;
}

/* /proc/self/cgroup: `0::PATH` of version 2, `N:CONTROLLERS:PATH` of version 1. */
static bool find_path(const char *root, bool is_version_2, char path[PATH_BYTES])
{
    char *line = NULL;
    char *rest = NULL;
    size_t capacity = 0;
    bool is_found = false;
    FILE *file = open_file(root, "/proc/self", "cgroup");
    if (file == NULL)
        return false;
    while (!is_found && getline(&line, &capacity, file) >= 0) {
        char *controllers = strchr(line, ':');
        char *at = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (at == NULL)
            continue;
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        controllers++;
        is_found = is_version_2 && strncmp(line, "0::", 2) == 0 && *controllers == '\0';
        for (char *word = strtok_r(controllers, ",", &rest); word != NULL && !is_version_2 && !is_found;
             word = strtok_r(NULL, ",", &rest))
            is_found = strcmp(word, "memory") == 0;
        is_found = is_found && snprintf(path, PATH_BYTES, "%s", at) < PATH_BYTES;
    }
    free(line);
    (void)fclose(file);
    return is_found;
}

/* In a container the path may be told from outside of what is mounted: then the mount point is the group. */
static bool find_group(const char *root, bool is_version_2, struct group *group)
{
    char path[PATH_BYTES];
    char mount_root[PATH_BYTES];
    char mount_point[PATH_BYTES];
    if (!find_mount(root, is_version_2, mount_root, mount_point) || !find_path(root, is_version_2, path))
        return false;
    const size_t root_length = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    const bool is_inside = strncmp(path, mount_root, root_length) == 0 &&
                           (path[root_length] == '/' || path[root_length] == '\0') && strstr(path, "/..") == NULL;
    const char *below = is_inside && strcmp(path + root_length, "/") != 0 ? path + root_length : "";
    group->mount_length = strlen(mount_point);
    const int length = snprintf(group->folder, sizeof group->folder, "%s%s", mount_point, below);
    return length > 0 && (size_t)length < sizeof group->folder;
}

/* Page cache counts as used and is given back when memory is short. */
static void bound_by_group_2(const char *root, const char *folder, struct fuse_room *room)
{
    static const char *const reclaimable_keys[] = {"active_file", "inactive_file", "slab_reclaimable", NULL};
    uint64_t limit, used, reclaimable, swap_limit, swap_used;
    if (!read_number(root, folder, "memory.max", &limit) || !read_number(root, folder, "memory.current", &used))
        return;
    (void)read_keys(root, folder, "memory.stat", reclaimable_keys, &reclaimable);
    uint64_t swap = free_swap(root);
    if (read_number(root, folder, "memory.swap.max", &swap_limit)) {
        if (!read_number(root, folder, "memory.swap.current", &swap_used))
            swap_used = 0;
        if (less(swap_limit, swap_used) < swap)
            swap = less(swap_limit, swap_used);
    }
    bound(room, FUSE_ROOM_GROUP, add(less(limit, less(used, reclaimable)), swap), limit);
}

static void bound_by_group_1(const char *root, const char *folder, struct fuse_room *room)
{
    static const char *const reclaimable_keys[] = {"total_active_file", "total_inactive_file", NULL};
    uint64_t limit, used, reclaimable;
    (void)read_keys(root, folder, "memory.stat", reclaimable_keys, &reclaimable);
    if (read_number(root, folder, "memory.limit_in_bytes", &limit) &&
        read_number(root, folder, "memory.usage_in_bytes", &used))
        bound(room, FUSE_ROOM_GROUP, add(less(limit, less(used, reclaimable)), free_swap(root)), limit);
    if (read_number(root, folder, "memory.memsw.limit_in_bytes", &limit) &&
        read_number(root, folder, "memory.memsw.usage_in_bytes", &used))
        bound(room, FUSE_ROOM_GROUP, less(limit, less(used, reclaimable)), limit);
}

/* The group itself and all above it, as far as they are mounted. */
static void bound_by_groups(const char *root, bool is_version_2, struct fuse_room *room)
{
    struct group group;
    if (!find_group(root, is_version_2, &group))
        return;
    for (bool is_own = true;; is_own = false) {
        /* Version 1: a group above counts and limits those below it only if told so. */
        uint64_t counts_below = 1;
        if (!is_own && !is_version_2)
            (void)read_number(root, group.folder, "memory.use_hierarchy", &counts_below);
        if (is_version_2)
            bound_by_group_2(root, group.folder, room);
        else if (counts_below != 0)
            bound_by_group_1(root, group.folder, room);
        char *slash = strrchr(group.folder, '/');
        if (slash == NULL || (size_t)(slash - group.folder) < group.mount_length)
            return;
        *slash = '\0';
    }
}

/* ---- ulimit ------------------------------------------------------------------------------------------------------ */

static void bound_by_rlimit(const char *root, int resource, const char *used_key, enum fuse_room_bound by,
                            struct fuse_room *room)
{
    struct rlimit limit;
    uint64_t used;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        read_keys(root, "/proc/self", "status", (const char *const[]){used_key, NULL}, &used))
        bound(room, by, less(limit.rlim_cur, used), limit.rlim_cur);
}

void fuse_room_measure(const char *root, struct fuse_room *room)
{
    *room = (struct fuse_room){FUSE_ROOM_UNKNOWN, UINT64_MAX, UINT64_MAX};
    bound_by_machine(root, room);
    bound_by_groups(root, true, room);
    bound_by_groups(root, false, room);
    bound_by_rlimit(root, RLIMIT_AS, "VmSize", FUSE_ROOM_ADDRESSES, room);
    bound_by_rlimit(root, RLIMIT_DATA, "VmData", FUSE_ROOM_DATA, room);
}
