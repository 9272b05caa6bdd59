/* The .safetensors reader against files that are wrong in every way, and reader and writer against each other. */
#include "counted.h"
#include "files/files.h"
#include "files/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64];

static int make_path(void **state)
{
    (void)state;
    strcpy(path, "/tmp/fuserun-safetensors-XXXXXX");
    const int descriptor = mkstemp(path);
    return descriptor < 0 ? -1 : close(descriptor);
}

static int remove_path(void **state)
{
    (void)state;
    return remove(path);
}

/* A file of header bytes and then data_bytes zeros; its length field says `claimed`. */
static void put_file(uint64_t claimed, const char *header, size_t header_bytes, size_t data_bytes)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    for (int i = 0; i < 8; i++)
        assert_int_not_equal(fputc((int)(claimed >> (8 * i) & 0xFF), stream), EOF);
    assert_int_equal(fwrite(header, 1, header_bytes, stream), header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        assert_int_not_equal(fputc(0, stream), EOF);
    assert_int_equal(fclose(stream), 0);
}

static void check_rejected(const char *label, const char *expected)
{
    struct fuse_safetensors *file = (struct fuse_safetensors *)(void *)path;
    struct fuse_error error = FUSE_ERROR_INIT;
    const int status = fuse_safetensors_open(path, &file, &error);
    if (status != FUSERUN_ERROR_FORMAT || strstr(error.text, expected) == NULL || strstr(error.text, path) == NULL ||
        file != NULL) {
        fuse_safetensors_close(&file);
        fail_msg("%s: status %d, '%s' instead of '%s'", label, status, error.text, expected);
    }
    for (const char *c = error.text; *c != '\0'; c++)
        assert_true((unsigned char)*c >= 0x20); /* one line, whatever the file holds */
}

static struct fuse_safetensors *open_good(const char *header, size_t data_bytes)
{
    struct fuse_safetensors *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    put_file(strlen(header), header, strlen(header), data_bytes);
    if (fuse_safetensors_open(path, &file, &error) != FUSERUN_OK)
        fail_msg("%s: '%s'", header, error.text);
    return file;
}

#define A(dtype, shape, offsets) "\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define GOOD A("I32", "[1]", "[0,4]")

struct reject {
    const char *header;
    size_t data_bytes;
    const char *expected; /* in the message */
};

static const struct reject rejects[] = {
    /* not an object */
    {"", 0, "does not begin with '{'"},
    {"    ", 0, "does not begin with '{'"},
    {"[]", 0, "does not begin with '{'"},
    {"\xEF\xBB\xBF{}", 0, "does not begin with '{'"},
    {"\v{}", 0, "does not begin with '{'"},
    {"null", 0, "does not begin with '{'"},
    /* not JSON */
    {"{", 0, "do not match"},
    {"{\"a\"", 0, "do not match"},
    {"{\"a\":[}", 0, "do not match"},
    {"{\"a\":1]", 0, "do not match"},
    {"{\"a", 0, "do not match"},
    {"{\"a\\\"}", 0, "do not match"},
    {"{}x", 0, "follows"},
    {"{}{}", 0, "follows"},
    {"{" GOOD "}\x01", 4, "follows"},
    {"{,}", 0, "is missing"},
    {"{," GOOD "}", 4, "is missing"},
    {"{" GOOD ",}", 4, "is missing"},
    {"{" GOOD ",,\"b\":1}", 4, "is missing"},
    {"{" GOOD " \"b\":1}", 4, "not JSON"},
    {"{a:1}", 0, "not JSON"},
    {"{'a':1}", 0, "not JSON"},
    {"{\"a\":tru}", 0, "not JSON"},
    {"{\"a\":{]}}", 0, "not JSON"},
    {"{\"a\xFF\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "unable to decode"},
    {"{\"a\xC0\x80\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "unable to decode"},
    {"{\"\xED\xA0\x80\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "unable to decode"},
    {"{\"a\n\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "not JSON"},
    {"{\"a\\u0000b\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "\\u0000"},
    {"{\"a\\ud800\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "invalid Unicode"},
    {"{\"a\\x\":1}", 0, "not JSON"},
    /* an entry's form */
    {"{\"a\":1}", 0, "tensor 'a': its entry is not an object"},
    {"{\"a\":[]}", 0, "tensor 'a': its entry is not an object"},
    {"{\"a\":null}", 0, "tensor 'a': its entry is not an object"},
    {"{\"a\":{}}", 0, "tensor 'a': its entry must have"},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1]}}", 4, "tensor 'a': its entry must have"},
    {"{\"a\":{\"dtype\":\"I32\",\"data_offsets\":[0,4]}}", 4, "tensor 'a': its entry must have"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'a': its entry must have"},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":0}}", 4, "tensor 'a': its entry must have"},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "tensor 'a': its entry must have"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'a': its entry must have"},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4],\"dtype\":\"F32\"}}", 4, "duplicate"},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4],\"d\\u0074ype\":\"F32\"}}", 4, "duplicate"},
    {"{" GOOD "," A("I32", "[1]", "[4,8]") "}", 8, "tensor 'a': this name stands in the header twice"},
    {"{" GOOD ",\"\\u0061\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "'a': this name stands"},
    {"{\"a\":{\"b\":{\"c\":[0]}}}", 0, "tensor 'a': its entry in the header is nested too deeply"},
    {"{" A("I32", "[[1]]", "[0,4]") "}", 4, "tensor 'a': its entry in the header is nested too deeply"},
    /* numbers */
    {"{" A("I32", "[1.0]", "[0,4]") "}", 4, "tensor 'a': 'shape' must be"},
    {"{" A("I32", "[1e0]", "[0,4]") "}", 4, "tensor 'a': 'shape' must be"},
    {"{" A("I32", "[\"1\"]", "[0,4]") "}", 4, "tensor 'a': 'shape' must be"},
    {"{" A("I32", "[true]", "[0,4]") "}", 4, "tensor 'a': 'shape' must be"},
    {"{" A("I32", "[null]", "[0,4]") "}", 4, "tensor 'a': 'shape' must be"},
    {"{" A("I32", "[-1]", "[0,4]") "}", 4, "tensor 'a': its entry in the header holds a minus sign"},
    {"{" A("I32", "[-0]", "[0,0]") "}", 0, "tensor 'a': its entry in the header holds a minus sign"},
    {"{" A("I32", "[01]", "[0,4]") "}", 4, "tensor 'a': its entry in the header is not JSON"},
    {"{" A("I32", "[+1]", "[0,4]") "}", 4, "tensor 'a': its entry in the header is not JSON"},
    {"{" A("I32", "[0x1]", "[0,4]") "}", 4, "tensor 'a': its entry in the header is not JSON"},
    {"{" A("I32", "[NaN]", "[0,4]") "}", 4, "tensor 'a': its entry in the header is not JSON"},
    {"{" A("I32", "[1]", "[0,4e0]") "}", 4, "tensor 'a': 'data_offsets' must be"},
    {"{" A("I32", "[1]", "[0.0,4]") "}", 4, "tensor 'a': 'data_offsets' must be"},
    {"{" A("I32", "[1]", "[0,99999999999999999999]") "}", 4, "too big integer"},
    {"{" A("I32", "[1]", "[4]") "}", 4, "tensor 'a': 'data_offsets' must be"},
    {"{" A("I32", "[1]", "[0,4,8]") "}", 4, "tensor 'a': 'data_offsets' must be"},
    {"{" A("I32", "[1]", "[4,0]") "}", 4, "tensor 'a': 'data_offsets' must be"},
    /* dtype and shape against the bytes */
    {"{" A("i32", "[1]", "[0,4]") "}", 4, "tensor 'a': unknown dtype 'i32'"},
    {"{" A("F128", "[1]", "[0,16]") "}", 16, "tensor 'a': unknown dtype 'F128'"},
    {"{" A("", "[1]", "[0,4]") "}", 4, "tensor 'a': unknown dtype ''"},
    {"{" A("I32", "[2]", "[0,4]") "}", 4, "tensor 'a': its 'shape' of I32 takes 8 bytes, its 'data_offsets' span 4"},
    {"{" A("F16", "[1]", "[0,4]") "}", 4, "tensor 'a': its 'shape' of F16 takes 2 bytes, its 'data_offsets' span 4"},
    {"{" A("I32", "[]", "[0,0]") "}", 0, "tensor 'a': its 'shape' of I32 takes 4 bytes"},
    {"{" A("I32", "[0]", "[0,4]") "}", 4, "tensor 'a': its 'shape' of I32 takes 0 bytes"},
    {"{" A("F4", "[3]", "[0,1]") "}", 1, "tensor 'a': its 'shape' of F4 takes 1 and a fraction bytes"},
    {"{" A("F6_E2M3", "[2]", "[0,1]") "}", 1, "tensor 'a': its 'shape' of F6_E2M3 takes 1 and a fraction bytes"},
    /* 64-bit overflows: the two of the reference's own tests, and products that wrap to something harmless */
    {"{" A("I32", "[2,18446744073709551614]", "[0,16]") "}", 16, "too big integer"},
    {"{" A("I32", "[2,9223372036854775807]", "[0,16]") "}", 16, "tensor 'a': the product of its 'shape'"},
    {"{" A("I8", "[4294967296,4294967296]", "[0,0]") "}", 0, "tensor 'a': the product of its 'shape'"},
    {"{" A("I8", "[4294967296,4294967297]", "[0,4294967296]") "}", 0, "tensor 'a': the product of its 'shape'"},
    {"{" A("F64", "[2305843009213693952]", "[0,0]") "}", 0, "tensor 'a': the product of its 'shape'"},
    /* the data as a whole */
    {"{" GOOD "}", 2, "tensor 'a': its data reaches past the end of the file"},
    {"{" GOOD "}", 0, "tensor 'a': its data reaches past the end of the file"},
    {"{" GOOD "}", 5, "bytes are left over behind the last tensor"},
    {"{}", 1, "bytes are left over behind the last tensor"},
    {"{" A("I32", "[1]", "[4,8]") "}", 8, "tensor 'a': there is a hole in the data before it"},
    {"{" GOOD ",\"b\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, "tensor 'b': there is a hole"},
    {"{" GOOD ",\"b\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'b': its data overlaps"},
    {"{" GOOD ",\"b\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[2,6]}}", 6, "tensor 'b': its data overlaps"},
    {"{" A("I32", "[2]", "[0,8]") ",\"b\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[4,4]}}", 8,
     "tensor 'b': its data overlaps"},
    {"{\"e\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[9223372036854775807,9223372036854775807]}}", 0,
     "tensor 'e': there is a hole"},
    {"{\"e\":{\"dtype\":\"I8\",\"shape\":[576460752303423488],\"data_offsets\":[0,576460752303423488]}}", 0,
     "tensor 'e': its data reaches past"},
    /* metadata */
    {"{\"__metadata__\":1}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":[]}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":null}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\" {}}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":{\"k\":null}}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":{\"k\":[\"v\"]}}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":{} 1}", 0, "'__metadata__' must be an object"},
    {"{\"__metadata__\":{\"k\":\"v\",}}", 0, "is missing"},
    {"{\"__metadata__\":{\"k\":\"v\",\"k\":\"w\"}}", 0, "a key of '__metadata__' stands there twice"},
    {"{\"__metadata__\":{\"k\":\"a\\u0000b\"}}", 0, "\\u0000"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "'__metadata__' stands there twice"},
    {"{\"__metadat\\u0061__\":{}}", 0, "spelled with escapes"},
    /* what a message may show */
    {"{\"a\\n\\u001b[31m\":{}}", 0, "tensor 'a??[31m': its entry must have"},
};

static void test_rejects(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rejects / sizeof rejects[0]; i++) {
        put_file(strlen(rejects[i].header), rejects[i].header, strlen(rejects[i].header), rejects[i].data_bytes);
        check_rejected(rejects[i].header, rejects[i].expected);
    }
}

static void test_rejects_lengths(void **state)
{
    (void)state;
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite("\2\0\0\0\0\0\0", 1, 7, stream), 7);
    assert_int_equal(fclose(stream), 0);
    check_rejected("seven bytes", "shorter than the 8 bytes");
    put_file(100000001, "{}", 2, 0);
    check_rejected("header too large", "longer than 100,000,000 bytes");
    put_file(UINT64_MAX, "{}", 2, 0);
    check_rejected("header length wraps", "longer than 100,000,000 bytes");
    put_file(100000000, "{}", 2, 0);
    check_rejected("header past the end", "past the end of the file");
    put_file(3, "{}", 2, 0);
    check_rejected("header past the end by one", "past the end of the file");
    put_file(0, "{}", 2, 0);
    check_rejected("no header", "does not begin with '{'");
    put_file(1, "{}", 2, 0);
    check_rejected("header too short", "do not match");
    /* A raw NUL, in a name and behind the object. */
    static const char nul[] = "{\"a\0b\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    put_file(sizeof nul - 1, nul, sizeof nul - 1, 1);
    check_rejected("NUL in a name", "not JSON");
    put_file(3, "{}\0", 3, 0);
    check_rejected("NUL behind", "follows");
}

static void test_rejects_ten_tensors_on_one_range(void **state)
{
    (void)state;
    char header[2000] = "{";
    for (int i = 0; i < 10; i++)
        (void)snprintf(header + strlen(header), sizeof header - strlen(header),
                       "%s\"tensor_%d\":{\"dtype\":\"F32\",\"shape\":[25],\"data_offsets\":[0,100]}", i > 0 ? "," : "",
                       i);
    strcat(header, "}");
    put_file(strlen(header), header, strlen(header), 100);
    check_rejected("ten on one range", "tensor 'tensor_1': its data overlaps another tensor's");
}

/* Memory counted: trees die with their member, and bombs are refused before jansson sees them. */
static void test_bombs_cost_nothing(void **state)
{
    (void)state;
    enum { BYTES = 4000000 };
    static const struct {
        const char *start, *repeat, *end, *expected;
    } bombs[] = {
        {"{\"a\":", "[", "", "do not match"},
        {"{\"a\":", "{\"a\":", "", "do not match"},
        {"{\"a\":[", "[],", "0]}", "longer than 64 KiB"},
        {"{\"a\":{\"shape\":[", "1,", "1]}}", "longer than 64 KiB"},
        {"{\"a\":{\"shape\":\"", "xx", "\"}}", "longer than 64 KiB"},
        {"{\"__metadata__\":{\"k\":[", "[],", "0]}}", "'__metadata__' must be"},
        {"{\"__metadata__\":{", "\"\":\"\",", "\"\":\"\"}}", "stands there twice"},
        {"{", "\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},", "\"b\":0}",
         "'b': its entry is not an object"},
    };
    char *header = malloc(BYTES + 100);
    assert_non_null(header);
    for (size_t i = 0; i < sizeof bombs / sizeof bombs[0]; i++) {
        size_t length = strlen(bombs[i].start);
        strcpy(header, bombs[i].start);
        for (const size_t step = strlen(bombs[i].repeat); length + step < BYTES; length += step)
            memcpy(header + length, bombs[i].repeat, step);
        strcpy(header + length, bombs[i].end);
        length += strlen(bombs[i].end);
        put_file(length, header, length, 0);
        const size_t before_bytes = counted_peak_bytes = counted_live_bytes;
        check_rejected(bombs[i].start, bombs[i].expected);
        assert_in_range(counted_peak_bytes - before_bytes, length,
                        16 * length); /* jansson's tree takes 45 times as much */
        assert_int_equal(counted_live_bytes, before_bytes);
    }
    /* The greatest tree that gets through: a shape of 64 KiB. */
    strcpy(header, "{\"a\":{\"shape\":[");
    for (int i = 0; i < 32000; i++)
        strcat(header + 15 + 2 * i, "1,");
    strcat(header + 64000, "1],\"dtype\":\"U8\",\"data_offsets\":[0,1]}}");
    const size_t before_bytes = counted_peak_bytes = counted_live_bytes;
    struct fuse_safetensors *file = open_good(header, 1);
    assert_int_equal(fuse_safetensors_find(file, "a")->rank, 32001);
    assert_in_range(counted_peak_bytes - before_bytes, 1, 4000000);
    fuse_safetensors_close(&file);
    assert_int_equal(counted_live_bytes, before_bytes);
    free(header);
}

static void test_accepts(void **state)
{
    (void)state;
    struct fuse_safetensors *file = open_good("{}", 0);
    assert_int_equal(fuse_safetensors_count(file), 0);
    assert_null(fuse_safetensors_find(file, "a"));
    assert_null(fuse_safetensors_entry(file, 0));
    assert_null(fuse_safetensors_metadata(file, "k"));
    fuse_safetensors_close(&file);
    assert_null(file);
    fuse_safetensors_close(&file);

    /* Space around, any order of keys and tensors, brackets and quotes in names and values. */
    static const char mixed[] =
        " \t\r\n{ \"b}]\\\"\" : {\"data_offsets\":[ 4 , 12 ],\"shape\":[2 , 1],\"dtype\":\"F32\"} ,\n"
        " \"__metadata__\" : { \"z{[\" : \"-1,}\\\"\" , \"format\":\"pt\" } , " GOOD " }   ";
    file = open_good(mixed, 12);
    assert_int_equal(fuse_safetensors_count(file), 2);
    assert_string_equal(fuse_safetensors_entry(file, 0)->name, "a");
    assert_string_equal(fuse_safetensors_entry(file, 1)->name, "b}]\"");
    assert_int_equal(fuse_safetensors_entry(file, 1)->offset, 8 + strlen(mixed) + 4);
    assert_string_equal(fuse_safetensors_metadata(file, "z{["), "-1,}\"");
    assert_string_equal(fuse_safetensors_metadata(file, "format"), "pt");
    assert_null(fuse_safetensors_metadata(file, "other"));
    fuse_safetensors_close(&file);

    file = open_good("{\"__metadata__\":{ }}", 0);
    assert_int_equal(fuse_safetensors_count(file), 0);
    fuse_safetensors_close(&file);

    /* Rank 0, no elements, more dimensions than we compute with, sub-byte elements that fill whole bytes. */
    file =
        open_good("{" A("F64", "[]",
                        "[0,8]") ",\"z\":{\"dtype\":\"I8\",\"shape\":[3,0],\"data_offsets\":[8,8]},"
                                 "\"y\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[8,11]},"
                                 "\"x\":{\"dtype\":\"F6_E3M2\",\"shape\":[4],\"data_offsets\":[11,14]},"
                                 "\"w\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,2],\"data_offsets\":[14,16]}}",
                  16);
    assert_int_equal(fuse_safetensors_find(file, "a")->rank, 0);
    assert_int_equal(fuse_safetensors_find(file, "a")->element_count, 1);
    assert_int_equal(fuse_safetensors_find(file, "z")->element_count, 0);
    assert_int_equal(fuse_safetensors_find(file, "y")->byte_count, 3);
    assert_int_equal(fuse_safetensors_find(file, "x")->element_count, 4);
    assert_int_equal(fuse_safetensors_find(file, "w")->rank, 10);
    assert_int_equal(fuse_safetensors_find(file, "w")->shape[9], 2);
    fuse_safetensors_close(&file);

    static const struct {
        const char *dtype;
        int bytes_of_8;
    } dtypes[] = {{"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E4M3", 8}, {"F8_E5M2", 8},
                  {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
                  {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
                  {"C64", 64},    {"F64", 64},        {"I64", 64},        {"U64", 64},    {"F4", 4},
                  {"F6_E2M3", 6}, {"F6_E3M2", 6}};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        char header[200];
        (void)snprintf(header, sizeof header, "{" A("%s", "[8]", "[0,%d]") "}", dtypes[i].dtype, dtypes[i].bytes_of_8);
        file = open_good(header, (size_t)dtypes[i].bytes_of_8);
        assert_string_equal(fuse_safetensors_entry(file, 0)->dtype, dtypes[i].dtype);
        fuse_safetensors_close(&file);
    }
}

static void test_not_a_file(void **state)
{
    (void)state;
    struct fuse_safetensors *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_safetensors_open("/tmp/fuserun-absent.safetensors", &file, &error), FUSERUN_ERROR_IO);
    assert_string_equal(error.text, "cannot open '/tmp/fuserun-absent.safetensors': No such file or directory");
    assert_int_equal(fuse_safetensors_open("/tmp", &file, &error), FUSERUN_ERROR_IO);
    assert_string_equal(error.text, "cannot read '/tmp': not a regular file");
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    assert_int_equal(fuse_safetensors_open(path, &file, &error), FUSERUN_ERROR_IO);
    assert_non_null(strstr(error.text, "not a regular file"));
}

/* ---- writing and reading back --------------------------------------------------------------------------------- */

/* Hands over user's bytes in pieces of 1, 2, 3, ... */
static int produce(void *user, const struct fuse_safetensors_output *output,
                   int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                   struct fuse_error *error)
{
    uint64_t at = 0;
    for (uint64_t piece = 1; at < output->byte_count; piece++) {
        const uint64_t count = piece < output->byte_count - at ? piece : output->byte_count - at;
        FUSE_TRY(write(sink, (const char *)user + at, (size_t)count, error));
        at += count;
    }
    return FUSERUN_OK;
}

static int produce_less(void *user, const struct fuse_safetensors_output *output,
                        int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                        struct fuse_error *error)
{
    return write(sink, user, (size_t)output->byte_count - 1, error);
}

static int produce_more(void *user, const struct fuse_safetensors_output *output,
                        int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                        struct fuse_error *error)
{
    return write(sink, user, (size_t)output->byte_count + 1, error);
}

static int produce_error(void *user, const struct fuse_safetensors_output *output,
                         int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error),
                         void *sink, struct fuse_error *error)
{
    (void)user, (void)output, (void)write, (void)sink;
    return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL, "no bytes today");
}

static char bytes[64];

static const struct fuse_safetensors_output outputs[] = {
    {"b", "F32", 2, (const int64_t[]){2, 3}, 24, produce, bytes},
    {"flag", "U8", 1, (const int64_t[]){3}, 3, produce, bytes + 1},
    {"caf\xC3\xA9 \"\\\n", "BF16", 1, (const int64_t[]){5}, 10, produce, bytes + 2},
    {"empty", "F32", 2, (const int64_t[]){0, 7}, 0, produce, bytes},
    {"step", "I64", 0, NULL, 8, produce, bytes + 3},
    {"a", "F32", 1, (const int64_t[]){1}, 4, produce, bytes + 4},
};
enum { OUTPUTS = sizeof outputs / sizeof outputs[0] };

static size_t read_file(const char *from, char *buffer, size_t size)
{
    FILE *stream = fopen(from, "rb");
    assert_non_null(stream);
    const size_t length = fread(buffer, 1, size, stream);
    assert_int_equal(fclose(stream), 0);
    return length;
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char *const metadata[] = {"z", "1", "format", "pt \"x\"\n"};
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_safetensors *file = NULL;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 37 + 11);
    assert_int_equal(fuse_safetensors_write(path, outputs, OUTPUTS, metadata, 2, &error), FUSERUN_OK);

    /* The bytes themselves: sizes 8, 4, 2, 1, then names; padded to 8. */
    static const char expected[] =
        "{\"__metadata__\":{\"format\":\"pt \\\"x\\\"\\u000a\",\"z\":\"1\"},"
        "\"step\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[12,36]},"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[36,36]},"
        "\"caf\xC3\xA9 \\\"\\\\\\u000a\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[36,46]},"
        "\"flag\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[46,49]}}";
    char content[2000], again[2000];
    const size_t length = read_file(path, content, sizeof content);
    const size_t header = (sizeof expected - 1 + 7) / 8 * 8;
    assert_int_equal(length, 8 + header + 49);
    assert_int_equal((unsigned char)content[0] + 256 * (unsigned char)content[1], header);
    assert_memory_equal(content + 2, "\0\0\0\0\0\0", 6);
    assert_memory_equal(content + 8, expected, sizeof expected - 1);
    for (size_t i = sizeof expected - 1; i < header; i++)
        assert_int_equal(content[8 + i], ' ');

    assert_int_equal(fuse_safetensors_open(path, &file, &error), FUSERUN_OK);
    assert_int_equal(fuse_safetensors_count(file), OUTPUTS);
    assert_string_equal(fuse_safetensors_metadata(file, "format"), metadata[3]);
    for (size_t i = 0; i < OUTPUTS; i++) {
        char read_back[64];
        const struct fuse_safetensors_entry *entry = fuse_safetensors_find(file, outputs[i].name);
        assert_non_null(entry);
        assert_string_equal(entry->dtype, outputs[i].dtype);
        assert_int_equal(entry->rank, outputs[i].rank);
        for (uint32_t d = 0; d < entry->rank; d++)
            assert_int_equal(entry->shape[d], outputs[i].shape[d]);
        assert_int_equal(entry->byte_count, outputs[i].byte_count);
        assert_int_equal(fuse_safetensors_read(file, entry, 0, read_back, entry->byte_count, &error), FUSERUN_OK);
        assert_memory_equal(read_back, outputs[i].user, entry->byte_count);
    }
    /* A part, and reads past the end. */
    const struct fuse_safetensors_entry *b = fuse_safetensors_find(file, "b");
    char part[8];
    assert_int_equal(fuse_safetensors_read(file, b, 16, part, 8, &error), FUSERUN_OK);
    assert_memory_equal(part, bytes + 16, 8);
    assert_int_equal(fuse_safetensors_read(file, b, 24, part, 0, &error), FUSERUN_OK);
    assert_int_equal(fuse_safetensors_read(file, b, 17, part, 8, &error), FUSERUN_ERROR_FORMAT);
    assert_int_equal(fuse_safetensors_read(file, b, UINT64_MAX, part, 2, &error), FUSERUN_ERROR_FORMAT);
    /* A file cut while open is an error, not a signal. */
    assert_int_equal(truncate(path, (off_t)length - 30), 0);
    assert_int_equal(fuse_safetensors_read(file, b, 16, part, 8, &error), FUSERUN_ERROR_IO);
    assert_non_null(strstr(error.text, "shorter"));
    fuse_safetensors_close(&file);

    /* The same tensors in another order give the same file. */
    struct fuse_safetensors_output reversed[OUTPUTS];
    static const char *const turned[] = {"format", "pt \"x\"\n", "z", "1"};
    for (size_t i = 0; i < OUTPUTS; i++)
        reversed[i] = outputs[OUTPUTS - 1 - i];
    assert_int_equal(fuse_safetensors_write(path, reversed, OUTPUTS, turned, 2, &error), FUSERUN_OK);
    assert_int_equal(read_file(path, again, sizeof again), length);
    assert_memory_equal(again, content, length);
}

static void check_not_written(struct fuse_safetensors_output one, size_t count, int expected, const char *text)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_safetensors_output list[] = {outputs[0], one};
    char content[8];
    assert_int_equal(fuse_safetensors_write(path, list, count, NULL, 0, &error), expected);
    assert_non_null(strstr(error.text, text));
    assert_int_equal(read_file(path, content, sizeof content), 0); /* the old, empty file */
}

static void test_write_refuses(void **state)
{
    (void)state;
    struct fuse_safetensors_output one = outputs[1];
    one.produce = produce_less;
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "tensor 'flag': fewer bytes");
    one.produce = produce_more;
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "tensor 'flag': more bytes");
    one.produce = produce_error;
    check_not_written(one, 2, FUSERUN_ERROR_NUMERIC, "no bytes today");
    one = outputs[1];
    one.name = "b"; /* of another dtype than the other "b" */
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "tensor 'b': two of this name");
    one.name = "__metadata__";
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "not a name");
    one.name = "\xFF";
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "not a name");
    one = outputs[1];
    one.dtype = "F31";
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "unknown dtype 'F31'");
    one.dtype = "I16";
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "do not agree");
    one.dtype = "F4";
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "do not agree");
    one.shape = (const int64_t[]){-3};
    check_not_written(one, 2, FUSERUN_ERROR_INTERNAL, "too large");
}

static void test_write_nothing(void **state)
{
    (void)state;
    struct fuse_safetensors *file = NULL;
    assert_int_equal(fuse_safetensors_write(path, NULL, 0, NULL, 0, NULL), FUSERUN_OK);
    assert_int_equal(fuse_safetensors_open(path, &file, NULL), FUSERUN_OK);
    assert_int_equal(fuse_safetensors_count(file), 0);
    fuse_safetensors_close(&file);
}

static void test_many_tensors(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    static const int64_t one[] = {1};
    struct fuse_safetensors_output *list = calloc(COUNT, sizeof *list);
    char(*names)[64] = calloc(COUNT, sizeof *names);
    struct fuse_safetensors *file = NULL;
    assert_non_null(list);
    assert_non_null(names);
    for (int i = 0; i < COUNT; i++) {
        (void)snprintf(names[i], sizeof names[i], "encoder.layers.encoder_layer_%d.self_attention.weight", i);
        list[i] = (struct fuse_safetensors_output){names[i], "F32", 1, one, 4, produce, bytes + i % 60};
    }
    assert_int_equal(fuse_safetensors_write(path, list, COUNT, NULL, 0, NULL), FUSERUN_OK);
    assert_int_equal(fuse_safetensors_open(path, &file, NULL), FUSERUN_OK);
    assert_int_equal(fuse_safetensors_count(file), COUNT);
    for (int i = 0; i < COUNT; i++) {
        char value[4];
        const struct fuse_safetensors_entry *entry = fuse_safetensors_find(file, names[i]);
        assert_non_null(entry);
        assert_int_equal(fuse_safetensors_read(file, entry, 0, value, 4, NULL), FUSERUN_OK);
        assert_memory_equal(value, bytes + i % 60, 4);
    }
    fuse_safetensors_close(&file);
    free(list);
    free(names);
}

static void test_services_are_the_same_calls(void **state)
{
    (void)state;
    const struct fuse_file_services *services = fuse_file_services();
    struct fuse_safetensors *file = NULL;
    char four[4] = "xxxx";
    assert_int_equal(services->struct_size, FUSERUN_STRUCT_SIZE(fuse_file_services, read));
    put_file(strlen("{" GOOD "}"), "{" GOOD "}", strlen("{" GOOD "}"), 4);
    assert_int_equal(services->open(path, &file, NULL), FUSERUN_OK);
    assert_int_equal(services->count(file), 1);
    assert_ptr_equal(services->entry(file, 0), services->find(file, "a"));
    assert_int_equal(services->read(file, services->find(file, "a"), 0, four, 4, NULL), FUSERUN_OK);
    assert_memory_equal(four, "\0\0\0\0", 4);
    services->close(&file);
    assert_null(file);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_path, remove_path)
    static const struct CMUnitTest tests[] = {
        TEST(test_rejects),
        TEST(test_rejects_lengths),
        TEST(test_rejects_ten_tensors_on_one_range),
        TEST(test_bombs_cost_nothing),
        TEST(test_accepts),
        TEST(test_not_a_file),
        TEST(test_round_trip),
        TEST(test_write_refuses),
        TEST(test_write_nothing),
        TEST(test_many_tensors),
        TEST(test_services_are_the_same_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
