/* .pth files that are wrong on purpose: every one is refused with a message that names the file and the thing. The zip
 * file around a pickle is built here, so that any byte of it can be a lie. */
#include "counted.h"
#include "files/files.h"
#include "files/pickle.h"
#include "files/pth.h"
#include "files/zip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- building a zip file --------------------------------------------------------------------------------------- */

struct part {
    const char *name;
    const void *bytes;
    size_t length;
};

/* Where the pieces of the file stand. */
enum { MOST_PARTS = 8, MOST_BYTES = 1 << 16 };
struct archive {
    unsigned char *bytes;
    size_t length;
    size_t local[MOST_PARTS];
    size_t central[MOST_PARTS];
    size_t end64; /* 0: none */
    size_t end;
};

static struct archive archive;
static int descriptor = -1;
static char path[64];

static void put(size_t at, uint64_t value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        archive.bytes[at + i] = (unsigned char)(i < 8 ? value >> (8 * i) : 0);
}

static void add(uint64_t value, size_t count)
{
    put(archive.length, value, count);
    archive.length += count;
}

static void add_bytes(const void *bytes, size_t count)
{
    if (count > 0)
        memcpy(archive.bytes + archive.length, bytes, count);
    archive.length += count;
}

static void build(const struct part *parts, size_t count, bool has_end64)
{
    size_t bytes = 4096;
    for (size_t i = 0; i < count; i++)
        bytes += parts[i].length + 3 * strlen(parts[i].name);
    free(archive.bytes);
    archive = (struct archive){.bytes = calloc(1, bytes)};
    assert_non_null(archive.bytes);
    for (size_t i = 0; i < count; i++) {
        archive.local[i] = archive.length;
        add(FUSE_ZIP_LOCAL_MAGIC, 4);
        add(0, 14);
        add(parts[i].length, 4);
        add(parts[i].length, 4);
        add(strlen(parts[i].name), 4);
        add_bytes(parts[i].name, strlen(parts[i].name));
        add_bytes(parts[i].bytes, parts[i].length);
    }
    const size_t begin = archive.length;
    for (size_t i = 0; i < count; i++) {
        archive.central[i] = archive.length;
        add(FUSE_ZIP_CENTRAL_MAGIC, 4);
        add(0, 16);
        add(parts[i].length, 4);
        add(parts[i].length, 4);
        add(strlen(parts[i].name), 2);
        add(0, 12);
        add(archive.local[i], 4);
        add_bytes(parts[i].name, strlen(parts[i].name));
    }
    const size_t length = archive.length - begin;
    if (has_end64) {
        archive.end64 = archive.length;
        add(FUSE_ZIP_END64_MAGIC, 4);
        add(FUSE_ZIP_END64_BYTES - 12, 8);
        add(0, 12);
        add(count, 8);
        add(count, 8);
        add(length, 8);
        add(begin, 8);
        add(FUSE_ZIP_LOCATOR64_MAGIC, 4);
        add(0, 4);
        add(archive.end64, 8);
        add(1, 4);
    }
    archive.end = archive.length;
    add(FUSE_ZIP_END_MAGIC, 4);
    add(0, 4);
    add(count, 2);
    add(count, 2);
    add(length, 4);
    add(begin, 4);
    add(0, 2);
}

static int open_built(struct fuse_pth **file, struct fuse_error *error)
{
    assert_int_equal(ftruncate(descriptor, 0), 0);
    assert_int_equal(pwrite(descriptor, archive.bytes, archive.length, 0), archive.length);
    counted_bytes = 0;
    return fuse_pth_open(path, FUSE_PTH_EVERYTHING, NULL, file, error);
}

static void check_refused(const char *label, const char *expected)
{
    struct fuse_pth *file = (struct fuse_pth *)(void *)path;
    struct fuse_error error = FUSE_ERROR_INIT;
    const int status = open_built(&file, &error);
    if ((status != FUSERUN_ERROR_FORMAT && status != FUSERUN_ERROR_UNSUPPORTED) || file != NULL ||
        strstr(error.text, expected) == NULL || strstr(error.text, path) == NULL)
        fail_msg("%s: status %d, '%s' instead of '%s'", label, status, error.text, expected);
    for (const char *c = error.text; *c != '\0'; c++)
        assert_true((unsigned char)*c >= 0x20);
}

static void check_opens(const char *label, size_t tensors)
{
    struct fuse_pth *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    if (open_built(&file, &error) != FUSERUN_OK)
        fail_msg("%s: %s", label, error.text);
    assert_int_equal(fuse_pth_count(file), tensors);
    fuse_pth_close(&file);
}

static int make_file(void **state)
{
    (void)state;
    descriptor = memfd_create("pth", MFD_CLOEXEC);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    return descriptor < 0 ? -1 : 0;
}

static int close_file(void **state)
{
    (void)state;
    free(archive.bytes);
    archive.bytes = NULL;
    return close(descriptor);
}

/* ---- pickles --------------------------------------------------------------------------------------------------- */

#define PROTO "\x80\x02"
#define ID_OF(class, key, numel) "(X\7\0\0\0storagectorch\n" class "\n" key "X\3\0\0\0cpu" numel "t"
#define ZERO                                                                                                           \
    "X\1\0\0\0"                                                                                                        \
    "0"
#define STORAGE ID_OF("FloatStorage", ZERO, "K\x06") "Q"
#define HOOKS "ccollections\nOrderedDict\n)R"
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n"
#define TENSOR_OF(storage, offset, shape, stride) REBUILD "(" storage offset shape stride "\x89" HOOKS "tR"
#define TENSOR TENSOR_OF(STORAGE, "K\0", "K\2K\3\x86", "K\3K\1\x86")
/* {"a": value} */
#define DICT(value) PROTO "}X\1\0\0\0a" value "s."

struct pickle {
    const char *bytes;
    size_t length;
    const char *expected;
};
#define ROW(bytes, expected)                                                                                           \
    {                                                                                                                  \
        bytes, sizeof(bytes) - 1, expected                                                                             \
    }

/* clang-format off */
static const struct pickle accepted[] = {
    ROW(DICT(TENSOR), ""),
    ROW(DICT(TENSOR_OF(STORAGE, "K\5", ")", ")")), ""),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "K\2K\0\x86", "K\3K\1\x86")), ""),
    ROW(DICT(TENSOR_OF(STORAGE, "K\6", "K\0\x85", "K\1\x85")), ""),
    ROW(DICT(TENSOR_OF(STORAGE, "M\0\0", "J\2\0\0\0\x8a\1\3\x86", "\x8a\2\3\0\x8a\x1\1\x86")), ""),
    ROW(DICT(REBUILD "(" STORAGE "K\0K\2\x85K\1\x85\x88" HOOKS "NtR"), ""),
    ROW(DICT("ctorch._utils\n_rebuild_parameter\n(" TENSOR "\x88" HOOKS "tR"), ""),
    ROW(PROTO "ccollections\nOrderedDict\n)\x81X\1\0\0\0a" TENSOR "s}X\1\0\0\0m\x8fsb.", ""),
    ROW(PROTO "](NU\3abcG\0\0\0\0\0\0\0\0\x88\x89\x8a\x09\1\1\1\1\1\1\1\1\1K\1\x85" TENSOR "e" TENSOR "a.", NULL),
};

static const struct pickle refused[] = {
    /* names */
    ROW(PROTO "cposix\nsystem\nX\4\0\0\0true\x85R.", ": refuses 'posix.system' (data.pkl, byte 2)"),
    ROW(PROTO "cos\nsystem\n.", ": refuses 'os.system'"),
    ROW(PROTO "cbuiltins\neval\n.", ": refuses 'builtins.eval'"),
    ROW(PROTO "c__builtin__\ngetattr\n.", ": refuses '__builtin__.getattr'"),
    ROW(PROTO "ctorch\nload\n.", ": refuses 'torch.load'"),
    ROW(PROTO "ctorch\nFloatStorage.x\n.", ": refuses 'torch.FloatStorage.x'"),
    ROW(PROTO "ctorch.Float\nStorage\n.", ": refuses 'torch.Float.Storage'"),
    ROW(PROTO "ctorch._utils\n_rebuild_tensor\n.", ": refuses 'torch._utils._rebuild_tensor'"),
    ROW(PROTO "ccollections\nOrderedDict \n.", ": refuses 'collections.OrderedDict '"),
    ROW(PROTO "ccollections\0\nOrderedDict\n.", ": refuses 'collections?.OrderedDict'"),
    ROW(PROTO "c\n\n.", ": refuses '.'"),
    ROW(PROTO "ca\x1b[31m\nb\r\n.", ": refuses 'a?[31m.b?'"),
    ROW(PROTO "(X\4\0\0\0trueios\nsystem\n.", ": refuses 'os.system'"),
    ROW(PROTO "X\2\0\0\0osX\6\0\0\0system\x93.", ": refuses 'os.system'"),
    ROW(PROTO "cposix\nsystem", "ends in the middle"),
    /* calls */
    ROW(PROTO "K\1)R.", "calls something that is not a function"),
    ROW(PROTO "})R.", "calls something that is not a function"),
    ROW(PROTO TENSOR ")R.", "calls something that is not a function"),
    ROW(PROTO "ccollections\nOrderedDict\nK\1R.", "arguments of a call are not a tuple"),
    ROW(PROTO "ccollections\nOrderedDict\n]R.", "arguments of a call are not a tuple"),
    ROW(PROTO "ccollections\nOrderedDict\nK\1\x85R.", "calls 'collections.OrderedDict' in a way"),
    ROW(PROTO "ctorch\nFloatStorage\n)R.", "calls 'torch.FloatStorage' in a way"),
    ROW(PROTO "ctorch\nFloatStorage\n)\x81.", "calls 'torch.FloatStorage' in a way"),
    ROW(PROTO REBUILD ")R.", "not made from a storage"),
    ROW(PROTO "ctorch._utils\n_rebuild_parameter\nK\1K\1K\1\x87R.", "not made from a tensor"),
    ROW(PROTO "}}b.", "sets the state of something that is not an OrderedDict"),
    ROW(PROTO HOOKS "]b.", "sets the state of something that is not an OrderedDict"),
    ROW(PROTO TENSOR "}b.", "sets the state of something that is not an OrderedDict"),
    /* opcodes: protocol 0, 1, 3, 4, 5, and none */
    ROW(PROTO "I1\n.", "opcode 0x49"),
    ROW(PROTO "P0\n.", "opcode 0x50"),
    ROW(PROTO "(o.", "opcode 0x6f"),
    ROW(PROTO "K\1" "0.", "opcode 0x30"),
    ROW(PROTO "K\1" "2.", "opcode 0x32"),
    ROW(PROTO "B\1\0\0\0x.", "opcode 0x42"),
    ROW(PROTO "\x82\1.", "opcode 0x82"),
    ROW(PROTO "\x8b\1\0\0\0\1.", "opcode 0x8b"),
    ROW(PROTO "\x8d\1\0\0\0\0\0\0\0x.", "opcode 0x8d"),
    ROW(PROTO "\x95\0\0\0\0\0\0\0\0.", "opcode 0x95"),
    ROW(PROTO "\xff.", "opcode 0xff"),
    ROW("\x80\x04N.", "pickle protocol 4, where torch.save writes 2"),
    ROW("}.", "does not begin as a pickle"),
    ROW("\x80", "ends in the middle"),
    ROW(PROTO PROTO "}.", "opcode 0x80"),
    /* stack, marks, stop */
    ROW(PROTO, "ends without STOP"),
    ROW(PROTO "}", "ends without STOP"),
    ROW(PROTO "}.}", "bytes follow behind its STOP"),
    ROW(PROTO "}..", "bytes follow behind its STOP"),
    ROW(PROTO ".", "stops with anything but one value"),
    ROW(PROTO "}}.", "stops with anything but one value"),
    ROW(PROTO "}(.", "stops with anything but one value"),
    ROW(PROTO "(}.", "stops with anything but one value"),
    ROW(PROTO "t.", "there is no mark"),
    ROW(PROTO "}u.", "there is no mark"),
    ROW(PROTO "]e.", "there is no mark"),
    ROW(PROTO "(K\1tt.", "there is no mark"),
    ROW(PROTO "(t(e.", "appends to something that is not a list"),
    ROW(PROTO "\x85.", "more from its stack than is there"),
    ROW(PROTO "K\1\x86.", "more from its stack than is there"),
    ROW(PROTO "K\1K\2\x87.", "more from its stack than is there"),
    ROW(PROTO "K\1(\x85.", "more from its stack than is there"),
    ROW(PROTO "](K\1a.", "more from its stack than is there"),
    ROW(PROTO "(K\1e.", "more from its stack than is there"),
    ROW(PROTO "R.", "more from its stack than is there"),
    ROW(PROTO "b.", "more from its stack than is there"),
    ROW(PROTO "Q.", "more from its stack than is there"),
    ROW(PROTO "s.", "more from its stack than is there"),
    ROW(PROTO "q\0.", "more from its stack than is there"),
    /* containers */
    ROW(PROTO "}K\1a.", "appends to something that is not a list"),
    ROW(PROTO "]K\1K\2s.", "sets items of something that is not a dict"),
    ROW(PROTO "](K\1K\2u.", "sets items of something that is not a dict"),
    ROW(PROTO "}(K\1u.", "a key of a dict has no value"),
    ROW(PROTO "}]K\1s.", "a key of a dict is neither"),
    ROW(PROTO "}" TENSOR "K\1s.", "a key of a dict is neither"),
    ROW(PROTO "]q\0h\0a.", "a value holds itself"),
    ROW(PROTO "}q\0K\1h\0s.", "a value holds itself"),
    ROW(PROTO "]q\0h\0\x85\x85\x85" "a.", "a value holds itself"),
    ROW(PROTO "]q\0]h\0aa.", "a value holds itself"),
    ROW(PROTO "]q\0h\0\x85" "a.", "a value holds itself"),
    /* the memo */
    ROW(PROTO "}r\xff\xff\xff\xff.", "under a number that is larger"),
    ROW(PROTO "}r\xff\xff\xff\x7f.", "under a number that is larger"),
    ROW(PROTO "}q\x20.", "under a number that is larger"),
    ROW(PROTO "h\0.", "a stored value that was never stored"),
    ROW(PROTO "}q\1h\0.", "a stored value that was never stored"),
    ROW(PROTO "}q\0j\xff\xff\xff\xff.", "a stored value that was never stored"),
    /* lengths */
    ROW(PROTO "X\xff\xff\xff\xff" "abc.", "ends in the middle"),
    ROW(PROTO "X\4\0\0\0abc", "ends in the middle"),
    ROW(PROTO "X\4\0\0", "ends in the middle"),
    ROW(PROTO "U\5abc.", "ends in the middle"),
    ROW(PROTO "\x8a\xff\1.", "ends in the middle"),
    ROW(PROTO "G\0\0\0.", "ends in the middle"),
    ROW(PROTO "J\0\0.", "ends in the middle"),
    ROW(PROTO "K", "ends in the middle"),
    ROW(PROTO "M\0", "ends in the middle"),
    ROW(PROTO "q", "ends in the middle"),
    /* storages */
    ROW(DICT("X\7\0\0\0storageQ"), "not that of a storage"),
    ROW(DICT("K\1Q"), "not that of a storage"),
    ROW(DICT(")Q"), "not that of a storage"),
    ROW(DICT("(X\7\0\0\0storegectorch\nFloatStorage\n" ZERO ZERO "K\6tQ"), "not that of a storage"),
    ROW(DICT("(X\7\0\0\0storageccollections\nOrderedDict\n" ZERO ZERO "K\6tQ"), "not that of a storage"),
    ROW(DICT(ID_OF("FloatStorage", "K\0", "K\6") "Q"), "not that of a storage"),
    ROW(DICT(ID_OF("FloatStorage", ZERO, "J\xff\xff\xff\xff") "Q"), "not that of a storage"),
    ROW(DICT(ID_OF("FloatStorage", ZERO, "\x88") "Q"), "not that of a storage"),
    ROW(DICT(ID_OF("FloatStorage", ZERO, "G\0\0\0\0\0\0\0\0") "Q"), "not that of a storage"),
    ROW(DICT(ID_OF("FloatStorage", ZERO, "\x8a\x09\0\0\0\0\0\0\0\0\1") "Q"), "not that of a storage"),
    /* tensors */
    ROW(DICT(TENSOR_OF("K\0", "K\0", "K\2\x85", "K\1\x85")), "not made from a storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "\x89", "K\2\x85", "K\1\x85")), "not made from a storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "J\xff\xff\xff\xff", "K\2\x85", "K\1\x85")), "not made from a storage"),
    ROW(DICT(REBUILD "(" STORAGE "K\0K\2\x85K\1\x85K\1" HOOKS "tR"), "not made from a storage"),
    ROW(DICT(REBUILD "(" STORAGE "K\0K\2\x85K\1\x85\x89NtR"), "not made from a storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "K\2", "K\1")), "are not tuples of integers >= 0"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "](K\2e", "](K\1e")), "are not tuples of integers >= 0"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "K\2\x85", "K\3K\1\x86")), "are not tuples of integers >= 0"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "\x88\x85", "K\1\x85")), "are not tuples of integers >= 0"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "K\1\x85", "\x88\x85")), "are not tuples of integers >= 0"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "J\xfe\xff\xff\xff\x85", "K\1\x85")), "are not tuples of integers >= 0"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\5", "K\2\x85", "J\xff\xff\xff\xff\x85")), "are not tuples of integers >= 0"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "\x8a\x08\0\0\0\0\0\0\0\x80\x85", "K\1\x85")), "are not tuples of integers"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "\x8a\x09\0\0\0\0\0\0\0\x80\0\x85", "K\1\x85")), "are not tuples of integers"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\1", "K\2K\3\x86", "K\3K\1\x86")), "past the end of its storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "K\7\x85", "K\1\x85")), "past the end of its storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "K\2\x85", "K\6\x85")), "past the end of its storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\6", ")", ")")), "past the end of its storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\7", "K\0\x85", "K\1\x85")), "past the end of its storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "K\3\x85", "\x8a\x08\0\0\0\0\0\0\0\x40\x85")), "past the end of its storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "K\5\x85", "\x8a\x08\0\0\0\0\0\0\0\x40\x85")), "past the end of its storage"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "J\0\0\0\x40J\0\0\0\x40J\0\0\0\x40\x87", "K\0K\0K\0\x87")), "does not fit into 64 bits"),
    ROW(DICT(TENSOR_OF(STORAGE, "K\0", "J\0\0\0\x40J\0\0\0\x40K\x10\x87", "K\0K\0K\0\x87")), "does not fit into 64 bits"),
    /* names of tensors, and their members */
    ROW(PROTO "}X\3\0\0\0a\0b" TENSOR "s.", "tensor 'a': its name is longer than 1,024 bytes, or no text"),
    ROW(PROTO "}X\2\0\0\0a\xff" TENSOR "s.", "its name is longer than 1,024 bytes, or no text"),
    ROW(PROTO "}X\3\0\0\0\xed\xa0\x80" TENSOR "s.", "its name is longer than 1,024 bytes, or no text"),
    ROW(DICT(TENSOR_OF(ID_OF("FloatStorage",
                             "X\1\0\0\0" "1",
                             "K\6") "Q", "K\0", ")", ")")), "tensor 'a': the member with its data is not in the file"),
    ROW(DICT(TENSOR_OF(ID_OF("FloatStorage",
                             "X\2\0\0\0" "0\0",
                             "K\6") "Q", "K\0", ")", ")")), "tensor 'a': the member with its data is not in the file"),
    ROW(DICT(TENSOR_OF(ID_OF("FloatStorage", "X\xb\0\0\0../data.pkl", "K\6") "Q", "K\0", ")", ")")), "tensor 'a': the member with its data is not in the file"),
    ROW(DICT(TENSOR_OF(ID_OF("FloatStorage", ZERO, "K\7") "Q", "K\0", ")", ")")), "tensor 'a': the member with its data is shorter"),
    ROW(DICT(TENSOR_OF(ID_OF("DoubleStorage", ZERO, "K\6") "Q", "K\0", ")", ")")), "tensor 'a': the member with its data is shorter"),
    ROW(DICT(TENSOR_OF(ID_OF("FloatStorage", ZERO, "\x8a\x08\1\0\0\0\0\0\0\x40") "Q", "K\0", ")", ")")), "tensor 'a': the member with its data is shorter"),
};
/* clang-format on */

static const float data[6] = {1, 2, 3, 4, 5, 6};

static void build_around(const void *pickle, size_t length)
{
    const struct part parts[] = {{"x/data.pkl", pickle, length}, {"x/data/0", data, sizeof data}};
    build(parts, 2, false);
}

static void test_pickles(void **state)
{
    (void)state;
    char label[32];
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        (void)snprintf(label, sizeof label, "accepted pickle %zu", i);
        build_around(accepted[i].bytes, accepted[i].length);
        check_opens(label, accepted[i].expected == NULL ? 2 : 1);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        (void)snprintf(label, sizeof label, "refused pickle %zu", i);
        build_around(refused[i].bytes, refused[i].length);
        check_refused(label, refused[i].expected);
        assert_in_range(counted_bytes, 0, 300000);
    }
}

#define TEN "\x85\x85\x85\x85\x85\x85\x85\x85\x85\x85"

/* What is small in the file and huge in memory. */
static void test_bombs(void **state)
{
    (void)state;
    static const struct {
        const char *start, *repeat, *end, *expected;
        size_t count;
    } bombs[] = {
        {"", "(", ".", "take more than 48 MiB", 16000000},
        {"", "(", "t.", "stops with anything but one value", 100000},
        {"", "]", ".", "take more than 48 MiB", 16000000},
        {"N", "\x85", ".", "nested more than 64 deep", 1000000},
        {"N", "\x85", ".", "nested more than 64 deep", 64},
        /* deep only where a value that was looked at before is used again */
        {"N" TEN TEN TEN TEN "q\1h\1", "\x85", "\x86.", "nested more than 64 deep", 40},
        {"N", "]q\x01", ".", "stops with anything but one value", 1000},
        {"]q\1(", "h\1", "e.", "a value holds itself", 1000000},
        {"](", "h\1", "e.", "never stored", 1000},
        /* each level holds the one below it twice */
        {"]q\1", "h\1\x86q\1", ".", "are too many", 60},
        {"](", "K\1", "e.", "take more than 48 MiB", 4000000},
    };
    for (size_t i = 0; i < sizeof bombs / sizeof bombs[0]; i++) {
        const size_t start = strlen(bombs[i].start), each = strlen(bombs[i].repeat), end = strlen(bombs[i].end);
        char *pickle = malloc(2 + start + each * bombs[i].count + end);
        assert_non_null(pickle);
        size_t length = 2;
        memcpy(pickle, PROTO, 2);
        memcpy(pickle + length, bombs[i].start, start);
        length += start;
        for (size_t k = 0; k < bombs[i].count; k++, length += each)
            memcpy(pickle + length, bombs[i].repeat, each);
        memcpy(pickle + length, bombs[i].end, end);
        build_around(pickle, length + end);
        free(pickle);
        check_refused(bombs[i].start, bombs[i].expected);
        /* the pickle itself, the values, and stacks that were moved as they grew */
        assert_in_range(counted_bytes, 0, FUSE_PICKLE_BYTE_LIMIT + 2 * FUSE_PICKLE_MEMORY_LIMIT);
    }
    char *large = calloc(1, FUSE_PICKLE_BYTE_LIMIT + 1);
    assert_non_null(large);
    build_around(large, FUSE_PICKLE_BYTE_LIMIT + 1);
    free(large);
    check_refused("large", "data.pkl is longer than 16 MiB");
    assert_in_range(counted_bytes, 0, 300000);
}

/* ---- zip files ------------------------------------------------------------------------------------------------- */

static const struct part good[] = {{"x/data.pkl", DICT(TENSOR), sizeof(DICT(TENSOR)) - 1},
                                   {"x/byteorder", "little", 6},
                                   {"x/data/0", data, sizeof data}};

static void check_parts(const struct part *parts, size_t count, const char *expected)
{
    build(parts, count, false);
    check_refused(parts[0].name, expected);
}

/* The good file with a lie of `count` bytes. */
enum place { LOCAL, CENTRAL, END64, LOCATOR, END };
struct lie {
    enum place place;
    size_t offset;
    uint64_t value;
    size_t count;
    const char *expected;
};

/* Lies about member 2, x/data/0. */
static const struct lie lies[] = {
    {LOCAL, 0, 0, 4, "member 'x/data/0': it has no local header"},
    {LOCAL, 6, 1, 2, "member 'x/data/0': it is encrypted"},
    {LOCAL, 6, 8, 2, "member 'x/data/0': its local header contradicts"},
    {LOCAL, 8, 8, 2, "member 'x/data/0': it is compressed"},
    {LOCAL, 14, 1, 4, "member 'x/data/0': its local header contradicts"},
    {LOCAL, 18, 23, 4, "member 'x/data/0': its local header contradicts"},
    {LOCAL, 22, 0, 4, "member 'x/data/0': its local header contradicts"},
    {LOCAL, 22, 0xFFFFFFFF, 4, "member 'x/data/0': its local header contradicts"},
    {LOCAL, 26, 7, 2, "member 'x/data/0': its local header contradicts"},
    {LOCAL, 28, 1, 2, "member 'x/data/0': it lies beyond"},
    {LOCAL, 28, 0xFFFF, 2, "member 'x/data/0': it lies beyond"},
    {LOCAL, 30, 'y', 1, "member 'x/data/0': its local header contradicts"},
    {CENTRAL, 0, 0, 4, "its directory does not hold as many members"},
    {CENTRAL, 8, 1, 2, "member 'x/data/0': it is encrypted"},
    {CENTRAL, 8, 0x40, 2, "member 'x/data/0': it has flags"},
    {CENTRAL, 8, 8, 2, "member 'x/data/0': its local header contradicts"},
    {CENTRAL, 10, 8, 2, "member 'x/data/0': it is compressed"},
    {CENTRAL, 10, 99, 2, "member 'x/data/0': it is compressed"},
    {CENTRAL, 16, 1, 4, "member 'x/data/0': its local header contradicts"},
    {CENTRAL, 20, 23, 4, "member 'x/data/0': its two sizes differ"},
    {CENTRAL, 24, 25, 4, "member 'x/data/0': its two sizes differ"},
    {CENTRAL, 20, 0x1700000017, 8, "member 'x/data/0': its local header contradicts"},
    {CENTRAL, 20, 0x1900000019, 8, "member 'x/data/0': it lies beyond"},
    {CENTRAL, 20, 0xFFFFFFF0FFFFFFF0, 8, "member 'x/data/0': it lies beyond"},
    {CENTRAL, 20, 0xFFFFFFFFFFFFFFFF, 8, "member 'x/data/0': its entry in the directory is broken"},
    {CENTRAL, 28, 7, 2, "bytes are left over in its directory"},
    {CENTRAL, 28, 0, 2, "its name is empty"},
    {CENTRAL, 28, 0xFFFF, 2, "its directory does not hold as many members"},
    {CENTRAL, 30, 1, 2, "its directory does not hold as many members"},
    {CENTRAL, 32, 1, 2, "its directory does not hold as many members"},
    {CENTRAL, 34, 1, 2, "member 'x/data/0': its entry in the directory is broken"},
    {CENTRAL, 42, 0, 4, "its local header contradicts"},
    {CENTRAL, 42, 1, 4, "it has no local header"},
    {CENTRAL, 42, 0xFFFFFFF0, 4, "member 'x/data/0': it lies beyond"},
    {CENTRAL, 42, 0xFFFFFFFF, 4, "member 'x/data/0': its entry in the directory is broken"},
    {CENTRAL, 46, '/', 1, "member '//data/0': its name is an absolute path"},
    {CENTRAL, 47, ':', 1, "member 'x:data/0': its name is an absolute path"},
    {CENTRAL, 47, '\\', 1, "its name is an absolute path or holds a '\\'"},
    {CENTRAL, 46, 0x2f2e2e, 3, "member '../ata/0': its name holds '..'"},
    {CENTRAL, 51, 0x2e2e2f, 3, "member 'x/dat/..': its name holds '..'"},
    {CENTRAL, 47, 0, 1, "its name is not text"},
    {CENTRAL, 47, 0xff, 1, "its name is not text"},
    {CENTRAL, 46, 'y', 1, "member 'y/data/0': its local header contradicts"},
    {END64, 0, 0, 4, "64-bit end record does not stand before"},
    {END64, 4, 45, 8, "64-bit end record does not stand before"},
    {END64, 4, UINT64_MAX, 8, "64-bit end record does not stand before"},
    {END64, 16, 1, 4, "one of several parts"},
    {END64, 20, 1, 4, "one of several parts"},
    {END64, 24, 2, 8, "one of several parts"},
    {END64, 32, 2, 8, "one of several parts"},
    {END64, 40, 1, 8, "two end records contradict"},
    {END64, 40, UINT64_MAX, 8, "two end records contradict"},
    {END64, 48, 1, 8, "two end records contradict"},
    {END64, 48, UINT64_MAX, 8, "two end records contradict"},
    {LOCATOR, 4, 1, 4, "one of several parts"},
    {LOCATOR, 8, 0, 8, "64-bit end record does not stand before"},
    {LOCATOR, 8, UINT64_MAX, 8, "64-bit end record does not stand before"},
    {LOCATOR, 16, 2, 4, "one of several parts"},
    {LOCATOR, 0, 0, 4, "directory does not stand right before"},
    {END, 0, 0, 4, "does not end in the end record"},
    {END, 4, 1, 2, "one of several parts"},
    {END, 6, 1, 2, "one of several parts"},
    {END, 8, 2, 2, "one of several parts"},
    {END, 8, 0x00020002, 4, "two end records contradict"},
    {END, 12, 1, 4, "two end records contradict"},
    {END, 16, 1, 4, "two end records contradict"},
    {END, 20, 1, 2, "does not end in the end record"},
};

static void test_lies(void **state)
{
    (void)state;
    char label[64];
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        const struct lie *lie = &lies[i];
        build(good, 3, lie->place != LOCAL && lie->place != CENTRAL);
        const size_t places[] = {archive.local[2], archive.central[2], archive.end64,
                                 archive.end64 + FUSE_ZIP_END64_BYTES, archive.end};
        put(places[lie->place] + lie->offset, lie->value, lie->count);
        (void)snprintf(label, sizeof label, "place %d, byte %zu, lie %zu", (int)lie->place, lie->offset, i);
        check_refused(label, lie->expected);
        assert_in_range(counted_bytes, 0, 300000);
    }
    build(good, 3, false);
    check_opens("good", 1);
    build(good, 3, true);
    check_opens("good, with 64-bit end", 1);
    /* The same lie in both places is still one, if the numbers cannot be true. */
    build(good, 3, false);
    put(archive.end + 8, 0x00040004, 4);
    check_refused("too many", "its directory does not hold as many members");
    build(good, 3, false);
    put(archive.end + 8, 0xFFFFFFFF, 4);
    check_refused("far too many", "its directory does not hold as many members");
    build(good, 3, false);
    put(archive.end + 8, 0x00020002, 4);
    check_refused("too few", "bytes are left over in its directory");
    build(good, 3, false);
    put(archive.end + 8, 0, 4);
    check_refused("none", "its directory does not hold as many members");
}

static void test_places(void **state)
{
    (void)state;
    /* two members on one place; one inside another */
    build(good, 3, false);
    memcpy(archive.bytes + archive.central[1], archive.bytes + archive.central[0], FUSE_ZIP_CENTRAL_BYTES + 10);
    put(archive.end, 0, 0);
    check_refused("overlay", "its directory does not hold as many members"); /* names of another length */
    static const struct part twins[] = {{"x/data.pkl", DICT(TENSOR), sizeof(DICT(TENSOR)) - 1},
                                        {"x/data/1", data, sizeof data},
                                        {"x/data/0", data, sizeof data}};
    build(twins, 3, false);
    memcpy(archive.bytes + archive.central[1], archive.bytes + archive.central[2], FUSE_ZIP_CENTRAL_BYTES + 8);
    check_refused("the same twice", "member 'x/data/0': there are two of this name");
    build(twins, 3, false);
    put(archive.local[1] + 18, 24 + 38 + 24, 4);
    put(archive.local[1] + 22, 24 + 38 + 24, 4);
    put(archive.central[1] + 20, 24 + 38 + 24, 4);
    put(archive.central[1] + 24, 24 + 38 + 24, 4);
    check_refused("one inside another", "member 'x/data/1': it overlaps the member behind it");
    build(twins, 3, false);
    put(archive.local[1] + 18, 20, 4);
    put(archive.local[1] + 22, 20, 4);
    put(archive.central[1] + 20, 20, 4);
    put(archive.central[1] + 24, 20, 4);
    check_refused("a gap", "member 'x/data/1': what stands behind its data is neither");

    /* something in front, between and behind: another zip file can hide there */
    build(good, 3, false);
    archive.bytes[archive.length++] = 0;
    check_refused("behind", "does not end in the end record");
    build(good, 3, false);
    put(archive.end + 20, 1, 2);
    archive.bytes[archive.length++] = 0;
    check_refused("a comment", "does not end in the end record");
    build(good, 3, false);
    const size_t first_end = archive.end;
    put(first_end + 20, FUSE_ZIP_END_BYTES, 2); /* a comment that is an end record */
    add_bytes(archive.bytes + first_end, FUSE_ZIP_END_BYTES);
    put(archive.length - 2, 0, 2);
    check_refused("an end record in a comment", "its directory does not stand right before its end record");
    build(good, 3, false);
    memmove(archive.bytes + 4, archive.bytes, archive.length);
    archive.length += 4;
    check_refused("in front", "its directory does not stand right before its end record");
}

static void test_contents(void **state)
{
    (void)state;
    const struct part no_pickle[] = {{"x/data/0", data, sizeof data}};
    check_parts(no_pickle, 1, "holds no data.pkl");
    const struct part deep[] = {{"x/y/data.pkl", PROTO "}.", 4}};
    check_parts(deep, 1, "holds no data.pkl");
    const struct part two[] = {{"x/data.pkl", PROTO "}.", 4}, {"y/data.pkl", PROTO "}.", 4}};
    check_parts(two, 2, "more than one data.pkl");
    const struct part script[] = {{"x/data.pkl", PROTO "}.", 4}, {"x/constants.pkl", PROTO ").", 4}};
    check_parts(script, 2, "is a program (torch.jit.save)");
    const struct part empty[] = {{"x/data.pkl", "", 0}};
    check_parts(empty, 1, "data.pkl is empty");
    const struct part order[] = {{"x/data.pkl", PROTO "}.", 4}, {"x/byteorder", "middle", 6}};
    check_parts(order, 2, "'byteorder' is neither");
    const struct part long_order[] = {{"x/data.pkl", PROTO "}.", 4}, {"x/byteorder", "little little", 13}};
    check_parts(long_order, 2, "'byteorder' is neither");
    const struct part other_root[] = {{"x/data.pkl", DICT(TENSOR), sizeof(DICT(TENSOR)) - 1},
                                      {"y/data/0", data, sizeof data}};
    check_parts(other_root, 2, "tensor 'a': the member with its data is not in the file");

    static const struct {
        const char *bytes;
        size_t length;
        const char *expected;
    } others[] = {
        {"", 0, "is empty"},
        {"PK", 2, "is no zip file"},
        {"PK\3\4", 4, "shorter than the end record"},
        {"hello, world, this is text", 26, "is no zip file"},
        {PROTO "\x8a\nl\xfc\x9c"
               "F\xf9 j\xa8P\x19.",
         14, "wrote before PyTorch 1.6"},
        {"PK\5\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 22, "is no zip file"},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        memcpy(archive.bytes, others[i].bytes, others[i].length);
        archive.length = others[i].length;
        check_refused(others[i].expected, others[i].expected);
    }
    memset(archive.bytes, 0, 512);
    memcpy(archive.bytes + 257, "ustar", 5);
    archive.length = 512;
    check_refused("tar", "wrote before PyTorch 0.1.10");
}

/* Files of big-endian machines are read. */
static void test_big_endian(void **state)
{
    (void)state;
    static const unsigned char big[] = {0x3f, 0x80, 0, 0, 0x40, 0,    0, 0, 0x40, 0x40, 0, 0,
                                        0x40, 0x80, 0, 0, 0x40, 0xa0, 0, 0, 0x40, 0xc0, 0, 0};
    const struct part parts[] = {{"x/data.pkl", DICT(TENSOR_OF(STORAGE, "K\0", "K\3K\2\x86", "K\1K\3\x86")),
                                  sizeof(DICT(TENSOR_OF(STORAGE, "K\0", "K\3K\2\x86", "K\1K\3\x86"))) - 1},
                                 {"x/byteorder", "big", 3},
                                 {"x/data/0", big, sizeof big}};
    struct fuse_pth *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    build(parts, 3, false);
    assert_int_equal(open_built(&file, &error), FUSERUN_OK);
    float values[6];
    assert_int_equal(fuse_pth_read(file, fuse_pth_entry(file, 0), 0, 6, values, &error), FUSERUN_OK);
    static const float expected[] = {1, 4, 2, 5, 3, 6};
    assert_memory_equal(values, expected, sizeof expected);
    /* cut off while it is open */
    assert_int_equal(ftruncate(descriptor, 100), 0);
    assert_int_equal(fuse_pth_read(file, fuse_pth_entry(file, 0), 0, 6, values, &error), FUSERUN_ERROR_IO);
    assert_non_null(strstr(error.text, "it has become shorter since it was opened"));
    fuse_pth_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pickles), cmocka_unit_test(test_bombs),    cmocka_unit_test(test_lies),
        cmocka_unit_test(test_places),  cmocka_unit_test(test_contents), cmocka_unit_test(test_big_endian),
    };
    return cmocka_run_group_tests(tests, make_file, close_file);
}
