/* memory/room: what a process may still take, from files as the kernel writes them, in a folder that stands for /. */
#include "base/text.h"
#include "files/output.h"
#include "memory/room.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)

static char root[64];

static void put(const char *path, const char *text)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    char *file = fuse_format("%s%s", root, path);
    char *folder = fuse_strdup(file);
    assert_true(file != NULL && folder != NULL);
    *strrchr(folder, '/') = '\0';
    assert_int_equal(fuse_make_folders(folder, &error), FUSERUN_OK);
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    assert_true(fputs(text, stream) >= 0 && fclose(stream) == 0);
    free(folder);
    free(file);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/fuserun-room-XXXXXX");
    if (mkdtemp(root) == NULL)
        return -1;
    put("/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          100 kB\nMemAvailable:    4194304 kB\n"
                         "SwapTotal:       1048576 kB\nSwapFree:         524288 kB\nCommitLimit:     3145728 kB\n"
                         "Committed_AS:    2097152 kB\nHugePages_Total:       0\n");
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    char *command = fuse_format("rm -rf '%s'", root);
    const int status = command != NULL ? system(command) : -1;
    free(command);
    return status;
}

static void expect(enum fuse_room_bound bound, uint64_t bytes, uint64_t limit_bytes)
{
    struct fuse_room room;
    fuse_room_measure(root, &room);
    assert_int_equal(room.bound, bound);
    assert_int_equal(room.bytes, bytes);
    assert_int_equal(room.limit_bytes, limit_bytes);
}

static void test_nothing_is_known(void **state)
{
    (void)state;
    struct fuse_room room;
    fuse_room_measure("/nowhere-at-all", &room);
    assert_int_equal(room.bound, FUSE_ROOM_UNKNOWN);
    assert_true(room.bytes == UINT64_MAX);
}

static void test_the_machine(void **state)
{
    (void)state;
    expect(FUSE_ROOM_MACHINE, 4608 * MIB, 9216 * MIB);
    put("/proc/sys/vm/overcommit_memory", "0\n");
    expect(FUSE_ROOM_MACHINE, 4608 * MIB, 9216 * MIB);
    put("/proc/sys/vm/overcommit_memory", "2\n");
    expect(FUSE_ROOM_COMMIT, 1024 * MIB, 3072 * MIB);
}

#define MOUNT_2 "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static void test_version_2_nested(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n" MOUNT_2);
    put("/proc/self/cgroup", "0::/outer/inner/leaf\n");
    put("/sys/fs/cgroup/outer/inner/leaf/memory.max", "max\n");
    put("/sys/fs/cgroup/outer/inner/leaf/memory.current", "1048576\n");
    expect(FUSE_ROOM_MACHINE, 4608 * MIB, 9216 * MIB);
    /* 256 MiB, of which 100 are taken, 60 of them page cache; no swap. */
    put("/sys/fs/cgroup/outer/inner/memory.max", "268435456\n");
    put("/sys/fs/cgroup/outer/inner/memory.current", "104857600\n");
    put("/sys/fs/cgroup/outer/inner/memory.swap.max", "0\n");
    put("/sys/fs/cgroup/outer/inner/memory.stat",
        "anon 1000\nfile 62914560\nactive_file 20971520\ninactive_file 31457280\nslab_reclaimable 10485760\n");
    expect(FUSE_ROOM_GROUP, 216 * MIB, 256 * MIB);
    /* The one above that is fuller, with some swap. */
    put("/sys/fs/cgroup/outer/memory.max", "536870912\n");
    put("/sys/fs/cgroup/outer/memory.current", "524288000\n");
    put("/sys/fs/cgroup/outer/memory.swap.max", "20971520\n");
    put("/sys/fs/cgroup/outer/memory.swap.current", "10485760\n");
    expect(FUSE_ROOM_GROUP, 22 * MIB, 512 * MIB);
    /* Full beyond its limit, which the kernel allows for a moment. */
    put("/sys/fs/cgroup/outer/memory.current", "636870912\n");
    put("/sys/fs/cgroup/outer/memory.swap.current", "20971520\n");
    expect(FUSE_ROOM_GROUP, 0, 512 * MIB);
}

static void test_version_2_in_a_container(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", MOUNT_2);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/memory.current", "73741824\n");
    put("/sys/fs/cgroup/memory.swap.max", "0\n");
    expect(FUSE_ROOM_GROUP, 1000000000, 1024 * MIB);
    /* A path as seen from outside of the mount. */
    put("/proc/self/cgroup", "0::/../../docker/0123\n");
    expect(FUSE_ROOM_GROUP, 1000000000, 1024 * MIB);
    put("/proc/self/cgroup", "0::/docker/0123\n");
    put("/proc/self/mountinfo",
        "30 24 0:26 /docker/0123 /sys/fs/cgroup ro,nosuid master:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    expect(FUSE_ROOM_GROUP, 1000000000, 1024 * MIB);
    put("/proc/self/mountinfo",
        "30 24 0:26 /docker/01 /sys/fs/cgroup ro,nosuid master:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    expect(FUSE_ROOM_GROUP, 1000000000, 1024 * MIB);
}

static void test_version_1_nested(void **state)
{
    (void)state;
    put("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                                "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("/proc/self/cgroup", "5:cpu,cpuacct:/elsewhere\n4:memory:/outer/leaf\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
    put("/sys/fs/cgroup/memory/outer/leaf/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/outer/leaf/memory.usage_in_bytes", "1048576\n");
    expect(FUSE_ROOM_MACHINE, 4608 * MIB, 9216 * MIB);
    put("/sys/fs/cgroup/memory/outer/leaf/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/outer/leaf/memory.usage_in_bytes", "52428800\n");
    put("/sys/fs/cgroup/memory/outer/leaf/memory.stat",
        "cache 5\ninactive_file 1\ntotal_inactive_file 10485760\ntotal_active_file 10485760\n");
    expect(FUSE_ROOM_GROUP, 70 * MIB + 512 * MIB, 100 * MIB); /* and all of the free swap */
    put("/sys/fs/cgroup/memory/outer/leaf/memory.memsw.limit_in_bytes", "115343360\n");
    put("/sys/fs/cgroup/memory/outer/leaf/memory.memsw.usage_in_bytes", "52428800\n");
    expect(FUSE_ROOM_GROUP, 80 * MIB, 110 * MIB);
    put("/sys/fs/cgroup/memory/outer/memory.memsw.limit_in_bytes", "83886080\n");
    put("/sys/fs/cgroup/memory/outer/memory.memsw.usage_in_bytes", "73400320\n");
    expect(FUSE_ROOM_GROUP, 10 * MIB, 80 * MIB);
    put("/sys/fs/cgroup/memory/outer/memory.use_hierarchy", "0\n");
    expect(FUSE_ROOM_GROUP, 80 * MIB, 110 * MIB);
    put("/sys/fs/cgroup/memory/outer/memory.use_hierarchy", "1\n");
    expect(FUSE_ROOM_GROUP, 10 * MIB, 80 * MIB);
}

static void test_broken_files_are_no_bound(void **state)
{
    (void)state;
    static const char *const broken[] = {"",
                                         "\n",
                                         "0::",
                                         "0::/a\n",
                                         "::::::\n",
                                         "30 24 0:26 / - cgroup2\n",
                                         "\x01\xff",
                                         "30 24 0:26 / /x rw - cgroup2 c \n",
                                         " - cgroup2 c c\n"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        for (size_t j = 0; j < sizeof broken / sizeof broken[0]; j++) {
            put("/proc/self/mountinfo", broken[i]);
            put("/proc/self/cgroup", broken[j]);
            expect(FUSE_ROOM_MACHINE, 4608 * MIB, 9216 * MIB);
        }
    }
    put("/proc/meminfo", "MemTotal: kB\nMemAvailable\n");
    expect(FUSE_ROOM_UNKNOWN, UINT64_MAX, UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_known),
        cmocka_unit_test_setup_teardown(test_the_machine, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_version_2_nested, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_version_2_in_a_container, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_version_1_nested, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_broken_files_are_no_bound, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
