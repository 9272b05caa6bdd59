#include "files/zip.h"

#include "base/text.h"
#include "files/files.h"

#include <stdlib.h>
#include <string.h>

/* The layouts are those of PKWARE's APPNOTE 6.3.10, sections 4.3.7 (local header), 4.3.9 (descriptor), 4.3.12 (central
 * header), 4.3.14 to 4.3.16 (end records) and 4.5.3 (64-bit extra field). */

/* A member as the directory describes it. */
struct entry {
    struct fuse_zip_member member; /* first, so that one is found by the other */
    uint32_t crc;
    uint16_t flags;
};

struct fuse_zip {
    char *directory; /* the raw text, then reused for the names */
    struct entry *entries;
    const struct entry **by_name;
    size_t count;
};

struct reader {
    const struct fuse_input *input;
    struct fuse_zip *zip;
    uint64_t directory_offset;
    uint64_t directory_bytes;
    uint64_t count;
};

static uint64_t little(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;
    while (count-- > 0)
        value = value << 8 | bytes[count];
    return value;
}

static int bad_file(const struct reader *reader, struct fuse_error *error, const char *what)
{
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s' is not a valid .pth file: %s",
                     fuse_shown_path(reader->input->path), what);
}

static int bad_member(const struct reader *reader, struct fuse_error *error, const char *name, size_t length,
                      const char *what)
{
    char shown[FUSE_SHOWN_BYTES];
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s': member '%s': %s", fuse_shown_path(reader->input->path),
                     fuse_shown(name, length, shown), what);
}

/* ---- the end of the file --------------------------------------------------------------------------------------- */

static int read_end64(struct reader *reader, uint64_t locator_offset, const unsigned char *locator,
                      struct fuse_error *error)
{
    unsigned char end[FUSE_ZIP_END64_BYTES];
    const uint64_t offset = little(locator + 8, 8);
    if (little(locator + 4, 4) != 0 || little(locator + 16, 4) > 1)
        return bad_file(reader, error, "the zip file is one of several parts");
    /* Right before its locator, and without the extensible part that nobody uses. */
    if (locator_offset < FUSE_ZIP_END64_BYTES || offset != locator_offset - FUSE_ZIP_END64_BYTES)
        return bad_file(reader, error, "its 64-bit end record does not stand before its locator");
    FUSE_TRY(fuse_input_read(reader->input, offset, end, sizeof end, error));
    if (little(end, 4) != FUSE_ZIP_END64_MAGIC || little(end + 4, 8) != FUSE_ZIP_END64_BYTES - 12)
        return bad_file(reader, error, "its 64-bit end record does not stand before its locator");
    if (little(end + 16, 4) != 0 || little(end + 20, 4) != 0 || little(end + 24, 8) != little(end + 32, 8))
        return bad_file(reader, error, "the zip file is one of several parts");
    reader->count = little(end + 32, 8);
    reader->directory_bytes = little(end + 40, 8);
    reader->directory_offset = little(end + 48, 8);
    return FUSERUN_OK;
}

/* A field of the short end record says what the 64-bit one says, or that it cannot hold it. */
static bool agrees(uint64_t value, uint64_t field, uint64_t full)
{
    return field == value || field == full;
}

static int read_end(struct reader *reader, struct fuse_error *error)
{
    unsigned char end[FUSE_ZIP_END_BYTES], locator[FUSE_ZIP_LOCATOR64_BYTES];
    const uint64_t file_bytes = reader->input->byte_count;
    if (file_bytes < sizeof end)
        return bad_file(reader, error, "it is shorter than the end record of a zip file");
    uint64_t directory_end = file_bytes - sizeof end;
    FUSE_TRY(fuse_input_read(reader->input, directory_end, end, sizeof end, error));
    if (little(end, 4) != FUSE_ZIP_END_MAGIC || little(end + 20, 2) != 0)
        return bad_file(reader, error,
                        "it does not end in the end record of a zip file (it was cut off, or something stands behind)");
    const uint64_t count = little(end + 10, 2), bytes = little(end + 12, 4), offset = little(end + 16, 4);
    if (little(end + 4, 2) != 0 || little(end + 6, 2) != 0 || little(end + 8, 2) != count)
        return bad_file(reader, error, "the zip file is one of several parts");
    reader->count = count;
    reader->directory_bytes = bytes;
    reader->directory_offset = offset;
    if (directory_end >= sizeof locator) {
        FUSE_TRY(fuse_input_read(reader->input, directory_end - sizeof locator, locator, sizeof locator, error));
        if (little(locator, 4) == FUSE_ZIP_LOCATOR64_MAGIC) {
            directory_end -= sizeof locator;
            FUSE_TRY(read_end64(reader, directory_end, locator, error));
            directory_end -= FUSE_ZIP_END64_BYTES;
            if (!agrees(reader->count, count, 0xFFFF) || !agrees(reader->directory_bytes, bytes, 0xFFFFFFFF) ||
                !agrees(reader->directory_offset, offset, 0xFFFFFFFF))
                return bad_file(reader, error, "its two end records contradict each other");
        }
    }
    if (reader->directory_offset > directory_end || reader->directory_bytes != directory_end - reader->directory_offset)
        return bad_file(reader, error, "its directory does not stand right before its end record");
    if (reader->directory_bytes > FUSE_ZIP_DIRECTORY_LIMIT)
        return bad_file(reader, error, "its directory is longer than 8 MiB");
    if (reader->count == 0 || reader->count > reader->directory_bytes / FUSE_ZIP_CENTRAL_BYTES)
        return bad_file(reader, error, "its directory does not hold as many members as its end record says");
    return FUSERUN_OK;
}

/* ---- the directory --------------------------------------------------------------------------------------------- */

/* Replaces each of the values that is 0xFFFFFFFF by the next number of the 64-bit extra field. False if the extra
 * fields do not fit their length, or a number that is wanted is not there. */
static bool read_extra64(const unsigned char *extra, size_t length, uint64_t *const values[], size_t count)
{
    bool wants = false;
    for (size_t i = 0; i < count; i++)
        wants = wants || *values[i] == 0xFFFFFFFF;
    while (length >= 4) {
        const size_t id = (size_t)little(extra, 2), size = (size_t)little(extra + 2, 2);
        if (size > length - 4)
            return false;
        if (id == FUSE_ZIP_EXTRA64 && wants) {
            size_t at = 0;
            for (size_t i = 0; i < count; i++) {
                if (*values[i] != 0xFFFFFFFF)
                    continue;
                if (size - at < 8)
                    return false;
                *values[i] = little(extra + 4 + at, 8);
                at += 8;
            }
            wants = false;
        }
        extra += 4 + size;
        length -= 4 + size;
    }
    return length == 0 && !wants;
}

static const char *name_fault(const char *name, size_t length)
{
    if (length == 0 || length > FUSE_ZIP_NAME_LIMIT)
        return "its name is empty or longer than 1,024 bytes";
    if (memchr(name, '\0', length) != NULL || !fuse_is_utf8(name, length))
        return "its name is not text";
    if (name[0] == '/' || memchr(name, '\\', length) != NULL || (length > 1 && name[1] == ':'))
        return "its name is an absolute path or holds a '\\'";
    for (size_t begin = 0; begin <= length;) {
        const char *slash = memchr(name + begin, '/', length - begin);
        const size_t end = slash != NULL ? (size_t)(slash - name) : length;
        if (end - begin == 2 && memcmp(name + begin, "..", 2) == 0)
            return "its name holds '..'";
        begin = end + 1;
    }
    return NULL;
}

static int check_kind(const struct reader *reader, const struct fuse_zip_member *member, uint16_t flags,
                      uint64_t method, struct fuse_error *error)
{
    const size_t length = strlen(member->name);
    if ((flags & ~(FUSE_ZIP_FLAG_DESCRIPTOR | FUSE_ZIP_FLAG_UTF8)) != 0)
        return bad_member(reader, error, member->name, length,
                          flags & FUSE_ZIP_FLAG_ENCRYPTED ? "it is encrypted"
                                                          : "it has flags that torch.save never sets");
    if (method != 0)
        return bad_member(reader, error, member->name, length, "it is compressed, which torch.save never does");
    return FUSERUN_OK;
}

/* One header of the directory, at `text`; *used: its length. The name moves down to where the header stood, which
 * makes room for a NUL behind it. */
static int read_central(struct reader *reader, unsigned char *text, size_t left, struct entry *entry, size_t *used,
                        struct fuse_error *error)
{
    static const char cut[] = "its directory does not hold as many members as its end record says";
    if (left < FUSE_ZIP_CENTRAL_BYTES || little(text, 4) != FUSE_ZIP_CENTRAL_MAGIC)
        return bad_file(reader, error, cut);
    const size_t name_length = (size_t)little(text + 28, 2), extra_length = (size_t)little(text + 30, 2);
    const size_t comment_length = (size_t)little(text + 32, 2);
    *used = FUSE_ZIP_CENTRAL_BYTES + name_length + extra_length + comment_length;
    if (*used > left)
        return bad_file(reader, error, cut);
    const uint64_t method = little(text + 10, 2), disk = little(text + 34, 2);
    uint64_t packed = little(text + 20, 4), plain = little(text + 24, 4), header = little(text + 42, 4);
    const bool is_whole = read_extra64(text + FUSE_ZIP_CENTRAL_BYTES + name_length, extra_length,
                                       (uint64_t *const[]){&plain, &packed, &header}, 3);
    *entry = (struct entry){.crc = (uint32_t)little(text + 16, 4), .flags = (uint16_t)little(text + 8, 2)};
    char *name = memmove(text, text + FUSE_ZIP_CENTRAL_BYTES, name_length);
    name[name_length] = '\0';
    const char *fault = name_fault(name, name_length);
    if (fault != NULL)
        return bad_member(reader, error, name, name_length, fault);
    entry->member = (struct fuse_zip_member){.name = name, .header = header, .byte_count = plain};
    FUSE_TRY(check_kind(reader, &entry->member, entry->flags, method, error));
    if (!is_whole || disk != 0)
        return bad_member(reader, error, name, name_length, "its entry in the directory is broken");
    if (packed != plain)
        return bad_member(reader, error, name, name_length, "its two sizes differ though it is not compressed");
    return FUSERUN_OK;
}

static int read_directory(struct reader *reader, struct fuse_error *error)
{
    struct fuse_zip *zip = reader->zip;
    const size_t bytes = (size_t)reader->directory_bytes, count = (size_t)reader->count;
    zip->directory = malloc(bytes);
    zip->entries = malloc(count * sizeof *zip->entries);
    zip->by_name = malloc(count * sizeof *zip->by_name);
    if (zip->directory == NULL || zip->entries == NULL || zip->by_name == NULL)
        return fuse_fail_memory(error, "a file's directory", bytes + count * sizeof *zip->entries);
    FUSE_TRY(fuse_input_read(reader->input, reader->directory_offset, zip->directory, bytes, error));
    size_t at = 0, used = 0;
    for (; zip->count < count; zip->count++, at += used)
        FUSE_TRY(read_central(reader, (unsigned char *)zip->directory + at, bytes - at, &zip->entries[zip->count],
                              &used, error));
    return at == bytes ? FUSERUN_OK : bad_file(reader, error, "bytes are left over in its directory");
}

/* ---- local headers --------------------------------------------------------------------------------------------- */

/* Whether the local header says what the directory says; with a descriptor it may say nothing (0). */
static bool says_the_same(uint64_t local, uint64_t central, bool may_be_silent)
{
    return local == central || (may_be_silent && local == 0);
}

static int read_local(struct reader *reader, struct entry *entry, struct fuse_error *error)
{
    static const char differs[] = "its local header contradicts the directory";
    struct fuse_zip_member *member = &entry->member;
    unsigned char header[FUSE_ZIP_LOCAL_BYTES + FUSE_ZIP_NAME_LIMIT];
    const size_t name_length = strlen(member->name);
    const uint64_t limit = reader->directory_offset, fixed = FUSE_ZIP_LOCAL_BYTES + name_length;
    if (member->header > limit || limit - member->header < fixed)
        return bad_member(reader, error, member->name, name_length, "it lies beyond the data of the file");
    FUSE_TRY(fuse_input_read(reader->input, member->header, header, fixed, error));
    if (little(header, 4) != FUSE_ZIP_LOCAL_MAGIC)
        return bad_member(reader, error, member->name, name_length, "it has no local header");
    const uint16_t flags = (uint16_t)little(header + 6, 2);
    const size_t extra_length = (size_t)little(header + 28, 2);
    FUSE_TRY(check_kind(reader, member, flags, little(header + 8, 2), error));
    if (flags != entry->flags || little(header + 26, 2) != name_length ||
        memcmp(header + FUSE_ZIP_LOCAL_BYTES, member->name, name_length) != 0)
        return bad_member(reader, error, member->name, name_length, differs);
    member->offset = member->header + fixed + extra_length;
    if (member->offset > limit || member->byte_count > limit - member->offset)
        return bad_member(reader, error, member->name, name_length, "it lies beyond the data of the file");

    uint64_t packed = little(header + 18, 4), plain = little(header + 22, 4);
    if (packed == 0xFFFFFFFF || plain == 0xFFFFFFFF) {
        unsigned char *extra = malloc(extra_length + 1);
        if (extra == NULL)
            return fuse_fail_memory(error, "a file's directory", extra_length);
        const int status = fuse_input_read(reader->input, member->header + fixed, extra, extra_length, error);
        const bool is_whole =
            status == FUSERUN_OK && read_extra64(extra, extra_length, (uint64_t *const[]){&plain, &packed}, 2);
        free(extra);
        FUSE_TRY(status);
        if (!is_whole)
            return bad_member(reader, error, member->name, name_length, differs);
    }
    const bool may_be_silent = (flags & FUSE_ZIP_FLAG_DESCRIPTOR) != 0;
    if (!says_the_same(little(header + 14, 4), entry->crc, may_be_silent) ||
        !says_the_same(packed, member->byte_count, may_be_silent) ||
        !says_the_same(plain, member->byte_count, may_be_silent))
        return bad_member(reader, error, member->name, name_length, differs);
    return FUSERUN_OK;
}

/* Behind the data: a descriptor that agrees with the directory (with or without magic, sizes of 4 or 8 bytes), or
 * nothing. `gap`: the bytes up to what follows. */
static int check_gap(struct reader *reader, const struct entry *entry, uint64_t gap, struct fuse_error *error)
{
    const struct fuse_zip_member *member = &entry->member;
    unsigned char text[24];
    bool is_good = gap == 0 && (entry->flags & FUSE_ZIP_FLAG_DESCRIPTOR) == 0;
    if ((entry->flags & FUSE_ZIP_FLAG_DESCRIPTOR) != 0 && (gap == 12 || gap == 16 || gap == 20 || gap == 24)) {
        FUSE_TRY(fuse_input_read(reader->input, member->offset + member->byte_count, text, gap, error));
        const size_t magic = gap == 16 || gap == 24 ? 4 : 0, each = gap < 20 ? 4 : 8;
        is_good = (magic == 0 || little(text, 4) == FUSE_ZIP_DESCRIPTOR_MAGIC) &&
                  little(text + magic, 4) == entry->crc && little(text + magic + 4, each) == member->byte_count &&
                  little(text + magic + 4 + each, each) == member->byte_count;
    }
    return is_good ? FUSERUN_OK
                   : bad_member(reader, error, member->name, strlen(member->name),
                                "what stands behind its data is neither its descriptor nor the next member");
}

static int compare_places(const void *a, const void *b)
{
    const struct fuse_zip_member *x = a, *y = b; /* a member is the first field of an entry */
    return x->header != y->header ? (x->header < y->header ? -1 : 1) : strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct entry *const *)a)->member.name, (*(const struct entry *const *)b)->member.name);
}

static int check_places(struct reader *reader, struct fuse_error *error)
{
    struct fuse_zip *zip = reader->zip;
    qsort(zip->entries, zip->count, sizeof *zip->entries, compare_places);
    for (size_t i = 0; i < zip->count; i++)
        zip->by_name[i] = &zip->entries[i];
    qsort(zip->by_name, zip->count, sizeof *zip->by_name, compare_names);
    for (size_t i = 1; i < zip->count; i++)
        if (compare_names(&zip->by_name[i - 1], &zip->by_name[i]) == 0)
            return bad_member(reader, error, zip->by_name[i]->member.name, strlen(zip->by_name[i]->member.name),
                              "there are two of this name");
    if (zip->entries[0].member.header != 0)
        return bad_file(reader, error, "something stands before its first member");
    for (size_t i = 0; i < zip->count; i++) {
        const struct fuse_zip_member *member = &zip->entries[i].member;
        const uint64_t end = member->offset + member->byte_count;
        const uint64_t next = i + 1 < zip->count ? zip->entries[i + 1].member.header : reader->directory_offset;
        if (next < end)
            return bad_member(reader, error, member->name, strlen(member->name), "it overlaps the member behind it");
        FUSE_TRY(check_gap(reader, &zip->entries[i], next - end, error));
    }
    return FUSERUN_OK;
}

/* ---- the calls ------------------------------------------------------------------------------------------------- */

int fuse_zip_open(const struct fuse_input *input, struct fuse_zip **zip, struct fuse_error *error)
{
    int status;
    *zip = NULL;
    struct fuse_zip *self = calloc(1, sizeof *self);
    struct reader reader = {.input = input, .zip = self};
    if (self == NULL)
        return fuse_fail_memory(error, "a file's directory", sizeof *self);
    FUSE_TRY_OUT(read_end(&reader, error));
    FUSE_TRY_OUT(read_directory(&reader, error));
    for (size_t i = 0; i < self->count; i++)
        FUSE_TRY_OUT(read_local(&reader, &self->entries[i], error));
    FUSE_TRY_OUT(check_places(&reader, error));
    *zip = self;
    self = NULL;
out:
    fuse_zip_close(&self);
    return status;
}

void fuse_zip_close(struct fuse_zip **zip)
{
    struct fuse_zip *self = *zip;
    if (self == NULL)
        return;
    free(self->directory);
    free(self->entries);
    free(self->by_name);
    free(self);
    *zip = NULL;
}

size_t fuse_zip_count(const struct fuse_zip *zip)
{
    return zip->count;
}

const struct fuse_zip_member *fuse_zip_member(const struct fuse_zip *zip, size_t index)
{
    return index < zip->count ? &zip->entries[index].member : NULL;
}

const struct fuse_zip_member *fuse_zip_find(const struct fuse_zip *zip, const char *name)
{
    const struct entry key = {.member = {.name = name}}, *const key_pointer = &key;
    const struct entry *const *found =
        bsearch(&key_pointer, zip->by_name, zip->count, sizeof *zip->by_name, compare_names);
    return found == NULL ? NULL : &(*found)->member;
}
