#include "files/pth.h"

#include "base/text.h"
#include "files/files.h"
#include "files/output.h"
#include "files/pickle.h"
#include "files/zip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The zip file is laid out as torch.save does it: members stored, sizes and CRC behind the data (so that one pass over
 * the tensors is enough) and in the directory, data at multiples of 64 by an extra field "FB" of Zs, 64-bit end records
 * always. All members lie in a folder whose name does not depend on the path. */

enum { ALIGNMENT = 64 };
#define ROOT "archive/"

struct member {
    char name[40];
    uint64_t header;
    uint64_t byte_count;
    uint32_t crc;
};

struct writer {
    struct fuse_output *output;
    uint64_t at; /* bytes written */
    uint32_t crc;
    struct member *members;
    size_t count;
    uint32_t table[8][256]; /* of the CRC */
};

/* ---- checksum: CRC-32 (IEEE 802.3, reflected), eight bytes at a time ("slicing by 8", Kounavis and Berry, 2005) -----
 */

static void make_table(uint32_t table[8][256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][i] = crc;
    }
    for (size_t i = 0; i < 256; i++)
        for (size_t k = 1; k < 8; k++)
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xFF];
}

static uint32_t update_crc(uint32_t table[8][256], uint32_t crc, const unsigned char *bytes, size_t count)
{
    crc = ~crc;
    for (; count >= 8; count -= 8, bytes += 8) {
        const uint32_t low =
            crc ^ ((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^ table[4][low >> 24] ^
              table[3][bytes[4]] ^ table[2][bytes[5]] ^ table[1][bytes[6]] ^ table[0][bytes[7]];
    }
    for (; count > 0; count--)
        crc = crc >> 8 ^ table[0][(crc ^ *bytes++) & 0xFF];
    return ~crc;
}

/* ---- bytes ----------------------------------------------------------------------------------------------------- */

static int put_bytes(struct writer *writer, const void *bytes, size_t count, struct fuse_error *error)
{
    FUSE_TRY(fuse_output_write(writer->output, bytes, count, error));
    writer->crc = update_crc(writer->table, writer->crc, bytes, count);
    writer->at += count;
    return FUSERUN_OK;
}

/* A header in the making. */
struct header {
    unsigned char bytes[192];
    size_t length;
};

static void add(struct header *header, uint64_t value, size_t byte_count)
{
    for (; byte_count > 0; byte_count--, value >>= 8)
        header->bytes[header->length++] = (unsigned char)value;
}

static void add_name(struct header *header, const char *name)
{
    memcpy(header->bytes + header->length, name, strlen(name));
    header->length += strlen(name);
}

static bool is_large(uint64_t byte_count)
{
    return byte_count >= UINT32_MAX; /* which itself means: see the extra field */
}

static int begin_member(struct writer *writer, const char *name, uint64_t byte_count, struct fuse_error *error)
{
    struct member *member = &writer->members[writer->count];
    struct header header = {.length = 0};
    strcpy(member->name, name);
    member->header = writer->at;
    member->byte_count = byte_count;
    const size_t extra64 = is_large(byte_count) ? 20 : 0;
    const uint64_t data = writer->at + FUSE_ZIP_LOCAL_BYTES + strlen(name) + extra64 + 4;
    const size_t padding = (size_t)(ALIGNMENT - data % ALIGNMENT) % ALIGNMENT;
    add(&header, FUSE_ZIP_LOCAL_MAGIC, 4);
    add(&header, extra64 > 0 ? 45 : 0, 2); /* version of the format that is needed */
    add(&header, FUSE_ZIP_FLAG_DESCRIPTOR | FUSE_ZIP_FLAG_UTF8, 2);
    add(&header, 0, 2 + 4 + 4); /* stored; no time, so that the bytes do not depend on it; no CRC yet */
    add(&header, extra64 > 0 ? UINT64_MAX : 0, 8);
    add(&header, strlen(name), 2);
    add(&header, extra64 + 4 + padding, 2);
    add_name(&header, name);
    if (extra64 > 0) {
        add(&header, FUSE_ZIP_EXTRA64, 2);
        add(&header, 16, 2);
        add(&header, 0, 8); /* they stand behind the data */
        add(&header, 0, 8);
    }
    add_name(&header, "FB");
    add(&header, padding, 2);
    memset(header.bytes + header.length, 'Z', padding);
    header.length += padding;
    FUSE_TRY(put_bytes(writer, header.bytes, header.length, error));
    writer->crc = 0;
    return FUSERUN_OK;
}

static int end_member(struct writer *writer, struct fuse_error *error)
{
    struct member *member = &writer->members[writer->count++];
    const size_t each = is_large(member->byte_count) ? 8 : 4;
    struct header header = {.length = 0};
    member->crc = writer->crc;
    add(&header, FUSE_ZIP_DESCRIPTOR_MAGIC, 4);
    add(&header, member->crc, 4);
    add(&header, member->byte_count, each);
    add(&header, member->byte_count, each);
    return put_bytes(writer, header.bytes, header.length, error);
}

static int put_member(struct writer *writer, const char *name, const void *bytes, size_t count,
                      struct fuse_error *error)
{
    FUSE_TRY(begin_member(writer, name, count, error));
    FUSE_TRY(put_bytes(writer, bytes, count, error));
    return end_member(writer, error);
}

static int put_directory_entry(struct writer *writer, const struct member *member, struct fuse_error *error)
{
    struct header header = {.length = 0};
    const bool has_large_size = is_large(member->byte_count), has_large_offset = is_large(member->header);
    const size_t extra = has_large_size || has_large_offset ? 4 + 16 * has_large_size + 8 * has_large_offset : 0;
    add(&header, FUSE_ZIP_CENTRAL_MAGIC, 4);
    add(&header, 0, 2);
    add(&header, extra > 0 ? 45 : 0, 2);
    add(&header, FUSE_ZIP_FLAG_DESCRIPTOR | FUSE_ZIP_FLAG_UTF8, 2);
    add(&header, 0, 2 + 4);
    add(&header, member->crc, 4);
    add(&header, has_large_size ? UINT32_MAX : member->byte_count, 4);
    add(&header, has_large_size ? UINT32_MAX : member->byte_count, 4);
    add(&header, strlen(member->name), 2);
    add(&header, extra, 2);
    add(&header, 0, 2 + 2 + 2 + 4);
    add(&header, has_large_offset ? UINT32_MAX : member->header, 4);
    add_name(&header, member->name);
    if (extra > 0) {
        add(&header, FUSE_ZIP_EXTRA64, 2);
        add(&header, extra - 4, 2);
        for (int i = 0; i < 2 * has_large_size; i++)
            add(&header, member->byte_count, 8);
        if (has_large_offset)
            add(&header, member->header, 8);
    }
    return put_bytes(writer, header.bytes, header.length, error);
}

static int put_directory(struct writer *writer, struct fuse_error *error)
{
    struct header header = {.length = 0};
    const uint64_t begin = writer->at;
    for (size_t i = 0; i < writer->count; i++)
        FUSE_TRY(put_directory_entry(writer, &writer->members[i], error));
    const uint64_t end = writer->at, length = end - begin;
    add(&header, FUSE_ZIP_END64_MAGIC, 4);
    add(&header, FUSE_ZIP_END64_BYTES - 12, 8);
    add(&header, 45, 2);
    add(&header, 45, 2);
    add(&header, 0, 4 + 4);
    add(&header, writer->count, 8);
    add(&header, writer->count, 8);
    add(&header, length, 8);
    add(&header, begin, 8);
    add(&header, FUSE_ZIP_LOCATOR64_MAGIC, 4);
    add(&header, 0, 4);
    add(&header, end, 8);
    add(&header, 1, 4);
    add(&header, FUSE_ZIP_END_MAGIC, 4);
    add(&header, 0, 2 + 2);
    add(&header, writer->count < UINT16_MAX ? writer->count : UINT16_MAX, 2);
    add(&header, writer->count < UINT16_MAX ? writer->count : UINT16_MAX, 2);
    add(&header, is_large(length) ? UINT32_MAX : length, 4);
    add(&header, is_large(begin) ? UINT32_MAX : begin, 4);
    add(&header, 0, 2);
    return put_bytes(writer, header.bytes, header.length, error);
}

/* ---- the pickle ------------------------------------------------------------------------------------------------ */

/* Memo numbers of what is used again and again. The storage classes come behind, there are so many of them. */
enum { MEMO_ORDERED_DICT, MEMO_REBUILD, MEMO_STORAGE, MEMO_CPU, MEMO_CLASSES };
#define CLASS_COUNT 10

static void add_text(struct fuse_text *pickle, const char *text)
{
    const size_t length = strlen(text);
    const char prefix[] = {'X', (char)length, (char)(length >> 8), (char)(length >> 16), (char)(length >> 24)};
    fuse_text_add_bytes(pickle, prefix, sizeof prefix);
    fuse_text_add_bytes(pickle, text, length);
}

static void add_memo(struct fuse_text *pickle, char op, size_t number)
{
    const char bytes[] = {op, (char)number};
    fuse_text_add_bytes(pickle, bytes, sizeof bytes);
}

/* As short as it goes, like Python's own pickler: BININT1, BININT2, BININT, LONG1. */
static void add_integer(struct fuse_text *pickle, uint64_t value)
{
    char bytes[10] = {(char)0x8a, 0};
    size_t length = 0;
    for (uint64_t rest = value; rest > 0; rest >>= 8)
        bytes[2 + length++] = (char)rest;
    if (length <= 1)
        bytes[1] = 'K', length = 1;
    else if (length == 2)
        bytes[1] = 'M';
    else if (value <= INT32_MAX)
        bytes[1] = 'J', length = 4;
    else {
        if ((bytes[1 + length] & 0x80) != 0) /* else it would be negative; sizes are below 2^63 */
            length++;
        bytes[1] = (char)length;
        fuse_text_add_bytes(pickle, bytes, 2 + length);
        return;
    }
    fuse_text_add_bytes(pickle, bytes + 1, 1 + length);
}

static void add_numbers(struct fuse_text *pickle, const uint64_t *values, uint32_t count)
{
    static const char tuples[] = {')', (char)0x85, (char)0x86, (char)0x87};
    if (count > 3)
        fuse_text_add(pickle, "(");
    for (uint32_t i = 0; i < count; i++)
        add_integer(pickle, values[i]);
    fuse_text_add_bytes(pickle, count > 3 ? "t" : &tuples[count], 1);
}

static void add_global(struct fuse_text *pickle, const char *module, const char *name)
{
    fuse_text_addf(pickle, "c%s\n%s\n", module, name);
}

/* The storage class; written out where it is used first. */
static void add_class(struct fuse_text *pickle, const char *name, const char *used[CLASS_COUNT])
{
    size_t i = 0;
    while (used[i] != NULL && used[i] != name)
        i++;
    if (used[i] == NULL)
        add_global(pickle, "torch", name);
    add_memo(pickle, used[i] == NULL ? 'q' : 'h', MEMO_CLASSES + i);
    used[i] = name;
}

static int add_tensor(struct fuse_text *pickle, const struct fuse_safetensors_output *tensor, size_t index,
                      const char *used[CLASS_COUNT], struct fuse_error *error)
{
    uint64_t shape[FUSE_PICKLE_RANK_LIMIT], stride[FUSE_PICKLE_RANK_LIMIT], count = 1;
    char key[24];
    const char once = index == 0 ? 'q' : 'h'; /* what all share is written out once */
    const struct fuse_safetensors_dtype *dtype = fuse_safetensors_dtype(tensor->dtype);
    const char *class = dtype == NULL ? NULL : fuse_pickle_storage_class(dtype->name);
    if (class == NULL)
        return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "tensor '%s': a .pth file cannot hold its dtype %s",
                         tensor->name, tensor->dtype);
    if (tensor->rank > FUSE_PICKLE_RANK_LIMIT)
        return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "tensor '%s': more than 64 dimensions", tensor->name);
    for (uint32_t d = tensor->rank; d-- > 0;) { /* PyTorch's strides of an empty tensor count its dimensions as 1 */
        stride[d] = d + 1 == tensor->rank ? 1 : stride[d + 1] * (shape[d + 1] > 0 ? shape[d + 1] : 1);
        shape[d] = (uint64_t)tensor->shape[d];
        if (tensor->shape[d] < 0 || __builtin_mul_overflow(count, shape[d], &count))
            return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': its shape is too large", tensor->name);
    }
    if (count > INT64_MAX / 8 || count * (dtype->bits / 8) != tensor->byte_count)
        return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': byte count and shape do not agree",
                         tensor->name);
    add_text(pickle, tensor->name);
    if (index == 0)
        add_global(pickle, "torch._utils", "_rebuild_tensor_v2");
    add_memo(pickle, once, MEMO_REBUILD);
    fuse_text_add(pickle, "((");
    if (index == 0)
        add_text(pickle, "storage");
    add_memo(pickle, once, MEMO_STORAGE);
    add_class(pickle, class, used);
    (void)snprintf(key, sizeof key, "%zu", index);
    add_text(pickle, key);
    if (index == 0)
        add_text(pickle, "cpu");
    add_memo(pickle, once, MEMO_CPU);
    add_integer(pickle, count);
    fuse_text_add(pickle, "tQ");
    add_integer(pickle, 0);
    add_numbers(pickle, shape, tensor->rank);
    add_numbers(pickle, stride, tensor->rank);
    fuse_text_add(pickle, "\x89"); /* requires_grad=False */
    add_memo(pickle, 'h', MEMO_ORDERED_DICT);
    fuse_text_add(pickle, ")RtR");
    return FUSERUN_OK;
}

/* OrderedDict of name -> _rebuild_tensor_v2(("storage", torch.FloatStorage, "0", "cpu", count), 0, shape, stride,
 * False, OrderedDict()). */
static int make_pickle(const struct fuse_safetensors_output *outputs, size_t count, struct fuse_text *pickle,
                       struct fuse_error *error)
{
    const char *used[CLASS_COUNT + 1] = {0};
    fuse_text_add(pickle, "\x80\x02");
    add_global(pickle, "collections", "OrderedDict");
    add_memo(pickle, 'q', MEMO_ORDERED_DICT);
    fuse_text_add(pickle, ")R(");
    for (size_t i = 0; i < count; i++)
        FUSE_TRY(add_tensor(pickle, &outputs[i], i, used, error));
    fuse_text_add(pickle, "u.");
    return pickle->failed ? fuse_fail_memory(error, "a file's header", pickle->length) : FUSERUN_OK;
}

/* ---- the call -------------------------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct fuse_safetensors_output *outputs, size_t count, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const char **names = malloc((count + 1) * sizeof *names);
    if (names == NULL)
        return fuse_fail_memory(error, "a file's list of tensors", count * sizeof *names);
    for (size_t i = 0; i < count; i++) {
        names[i] = outputs[i].name;
        if (!fuse_is_utf8(names[i], strlen(names[i])))
            FUSE_TRY_OUT(
                fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': its name is not UTF-8", names[i]));
        if (strlen(names[i]) > FUSE_PTH_NAME_LIMIT)
            FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                                   "tensor '%.40s...': its name is longer than the 1,024 bytes that are read again",
                                   names[i]));
    }
    qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            FUSE_TRY_OUT(
                fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': two of this name to write", names[i]));
out:
    free(names);
    return status;
}

static int put_produced(void *user, const void *bytes, size_t count, struct fuse_error *error)
{
    return put_bytes(user, bytes, count, error);
}

static int put_tensor(struct writer *writer, const struct fuse_safetensors_output *tensor, size_t index,
                      struct fuse_error *error)
{
    char name[sizeof writer->members->name];
    (void)snprintf(name, sizeof name, ROOT "data/%zu", index);
    FUSE_TRY(begin_member(writer, name, tensor->byte_count, error));
    FUSE_TRY(fuse_safetensors_produce(tensor, put_produced, writer, error));
    return end_member(writer, error);
}

int fuse_pth_write(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                   struct fuse_error *error)
{
    enum { OTHER_MEMBERS = 3 };
    static const char order[] = "little", version[] = "3\n";
    int status;
    struct fuse_text pickle = {0};
    struct writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL)
        return fuse_fail_memory(error, "an output file", sizeof *writer);
    writer->members = calloc(output_count + OTHER_MEMBERS, sizeof *writer->members);
    if (writer->members == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a file's directory", output_count * sizeof *writer->members));
    make_table(writer->table);
    FUSE_TRY_OUT(check_names(outputs, output_count, error));
    FUSE_TRY_OUT(make_pickle(outputs, output_count, &pickle, error));
    FUSE_TRY_OUT(fuse_output_open(path, &writer->output, error));
    FUSE_TRY_OUT(put_member(writer, ROOT "data.pkl", pickle.data, pickle.length, error));
    FUSE_TRY_OUT(put_member(writer, ROOT "byteorder", order, sizeof order - 1, error));
    for (size_t i = 0; i < output_count; i++)
        FUSE_TRY_OUT(put_tensor(writer, &outputs[i], i, error));
    FUSE_TRY_OUT(put_member(writer, ROOT "version", version, sizeof version - 1, error));
    FUSE_TRY_OUT(put_directory(writer, error));
    FUSE_TRY_OUT(fuse_output_commit(&writer->output, error));
out:
    fuse_output_abandon(&writer->output);
    fuse_text_free(&pickle);
    free(writer->members);
    free(writer);
    return status;
}
