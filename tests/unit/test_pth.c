/* .pth files: values against those that torch wrote (tools/make_golden_pth.py), the writer against the reader, and
 * damaged files. Files that are wrong on purpose are in test_pth_hostile.c. */
#include "counted.h"
#include "files/files.h"
#include "files/weights_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const golden[] = {"plain",  "nested",  "two",       "views", "types",
                                     "shapes", "old_vit", "parameter", "mlp",   "list"};
enum { GOLDEN_COUNT = sizeof golden / sizeof golden[0] };

static char path[64];

static int make_path(void **state)
{
    (void)state;
    strcpy(path, "/tmp/fuserun-pth-XXXXXX");
    const int descriptor = mkstemp(path);
    return descriptor < 0 ? -1 : close(descriptor);
}

static int remove_path(void **state)
{
    (void)state;
    return remove(path);
}

/* ---- golden values --------------------------------------------------------------------------------------------- */

static struct fuse_weights_file *open_path(const char *file_path, enum fuse_pth_scope scope, const char *key)
{
    struct fuse_weights_file *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    if (fuse_weights_file_open(file_path, scope, key, &file, &error) != FUSERUN_OK)
        fail_msg("%s: %s", file_path, error.text);
    return file;
}

static const char *golden_path(const char *name)
{
    static char text[4096];
    (void)snprintf(text, sizeof text, "%s/%s.pth", GOLDEN_FOLDER, name);
    return text;
}

static struct fuse_weights_file *open_golden(const char *name, enum fuse_pth_scope scope, const char *key)
{
    return open_path(golden_path(name), scope, key);
}

static void check_same_float(const char *name, uint64_t index, float value, float expected)
{
    const bool is_same = isnan(expected) ? isnan(value) : memcmp(&value, &expected, sizeof value) == 0;
    if (!is_same)
        fail_msg("%s: element %llu is %g instead of %g", name, (unsigned long long)index, (double)value,
                 (double)expected);
}

/* All elements at once, and in pieces that cut rows anywhere. */
static void check_values(const struct fuse_weights_file *file, const struct fuse_weights_entry *entry,
                         const struct fuse_weights_file *expected_file, const struct fuse_weights_entry *expected)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    static const uint64_t pieces[] = {UINT64_MAX, 1, 5, 16};
    const size_t bytes = (size_t)entry->element_count * 8 + 8;
    float *values = malloc(bytes), *wanted = malloc(bytes);
    assert_non_null(values);
    assert_non_null(wanted);
    assert_int_equal(entry->element_count, expected->element_count);
    assert_int_equal(entry->rank, expected->rank);
    for (uint32_t d = 0; d < entry->rank; d++)
        assert_int_equal(entry->shape[d], expected->shape[d]);
    assert_int_equal(entry->is_float, expected->is_float);
    assert_int_equal(fuse_weights_file_read_raw(expected_file, expected, 0, expected->element_count, wanted, &error),
                     FUSERUN_OK);
    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
        memset(values, 0x55, bytes);
        for (uint64_t at = 0; at < entry->element_count && entry->is_float; at += pieces[p]) {
            const uint64_t left = entry->element_count - at, count = pieces[p] < left ? pieces[p] : left;
            assert_int_equal(fuse_weights_file_read(file, entry, at, count, values + at, &error), FUSERUN_OK);
            if (pieces[p] > left)
                break;
        }
        for (uint64_t i = 0; i < entry->element_count && entry->is_float; i++)
            check_same_float(entry->name, i, values[i], wanted[i]);
    }
    if (!entry->is_float) {
        assert_string_equal(entry->dtype, expected->dtype);
        assert_int_equal(fuse_weights_file_read_raw(file, entry, 0, entry->element_count, values, &error), FUSERUN_OK);
        assert_memory_equal(values, wanted, entry->element_count * (fuse_safetensors_dtype(entry->dtype)->bits / 8));
        assert_int_equal(fuse_weights_file_read(file, entry, 0, 1, values, &error), FUSERUN_ERROR_UNSUPPORTED);
        assert_non_null(strstr(error.text, entry->name));
    }
    assert_int_not_equal(fuse_weights_file_read_raw(file, entry, entry->element_count, 1, values, &error), FUSERUN_OK);
    assert_int_not_equal(fuse_weights_file_read_raw(file, entry, UINT64_MAX, 2, values, &error), FUSERUN_OK);
    free(values);
    free(wanted);
}

static void test_values(void **state)
{
    (void)state;
    char name[2048];
    struct fuse_weights_file *expected = open_path(GOLDEN_FOLDER "/expected.safetensors", FUSE_PTH_EVERYTHING, NULL);
    size_t count = 0;
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        struct fuse_weights_file *file = open_golden(golden[i], FUSE_PTH_EVERYTHING, NULL);
        for (size_t k = 0; k < fuse_weights_file_count(file); k++) {
            const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, k);
            (void)snprintf(name, sizeof name, "%s/%s", golden[i], entry->name);
            const struct fuse_weights_entry *wanted = fuse_weights_file_find(expected, name);
            if (wanted == NULL)
                fail_msg("%s: unexpected", name);
            else
                check_values(file, entry, expected, wanted);
            count++;
        }
        assert_null(fuse_weights_file_entry(file, fuse_weights_file_count(file)));
        assert_null(fuse_weights_file_find(file, "absent"));
        fuse_weights_file_close(&file);
        assert_null(file);
        fuse_weights_file_close(&file);
    }
    assert_int_equal(count, fuse_weights_file_count(expected));
    fuse_weights_file_close(&expected);
}

static void test_order_and_dtypes(void **state)
{
    (void)state;
    static const char *const names[] = {"f32", "f16", "bf16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"};
    static const char *const dtypes[] = {"F32", "F16", "BF16", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL"};
    struct fuse_weights_file *file = open_golden("types", FUSE_PTH_STATE_DICT, NULL);
    assert_int_equal(fuse_weights_file_count(file), 10);
    for (size_t i = 0; i < 10; i++) {
        assert_string_equal(fuse_weights_file_entry(file, i)->name, names[i]);
        assert_string_equal(fuse_weights_file_entry(file, i)->dtype, dtypes[i]);
        assert_int_equal(fuse_weights_file_entry(file, i)->is_float, i < 4);
    }
    fuse_weights_file_close(&file);
}

/* ---- which dict ------------------------------------------------------------------------------------------------ */

static void check_key(const char *name, const char *key, size_t count, const char *expected)
{
    struct fuse_weights_file *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    const int status = fuse_weights_file_open(golden_path(name), FUSE_PTH_STATE_DICT, key, &file, &error);
    if (expected == NULL) {
        if (status != FUSERUN_OK)
            fail_msg("%s, %s: %s", name, key, error.text);
        assert_int_equal(fuse_weights_file_count(file), count);
        assert_non_null(fuse_weights_file_find(file, "0.weight"));
        fuse_weights_file_close(&file);
    } else {
        assert_int_not_equal(status, FUSERUN_OK);
        assert_null(file);
        if (strstr(error.text, expected) == NULL || strstr(error.text, name) == NULL)
            fail_msg("%s, %s: '%s' instead of '%s'", name, key, error.text, expected);
        assert_string_equal(error.key, strstr(expected, "holds no state dict (") == NULL ? "weights_key" : "");
    }
}

static void test_weights_key(void **state)
{
    (void)state;
    check_key("plain", NULL, 9, NULL);
    check_key("nested", NULL, 0, "holds more than a state dict; to take the one inside set weights_key = model");
    check_key("nested", "model", 9, NULL);
    check_key("nested", "modle", 0, "holds no dict 'modle'; of weights it holds: model");
    check_key("nested", "optimizer", 0, "holds no state dict under this key");
    check_key("nested", "epoch", 0, "holds no dict 'epoch'");
    check_key("nested", "model.0.weight", 0, "holds no dict 'model.0.weight'");
    check_key("nested", "", 0, "holds no dict ''");
    check_key("two", NULL, 0, "holds no state dict (");
    check_key("two", "weights", 0, "behind what it says already, must be one of: model, ema.net");
    check_key("two", "weights.model", 9, NULL);
    check_key("two", "weights.ema.net", 9, NULL); /* a key with a dot */
    check_key("two", "weights.ema", 0, "holds no dict 'weights.ema'");
    check_key("two", "weights.model.", 0, "holds no dict 'weights.model.'");
    check_key("parameter", NULL, 0, "holds no state dict (");
    check_key("list", NULL, 0, "holds no state dict (");
    check_key("list", "0", 0, "holds no dict '0'");

    struct fuse_weights_file *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(
        fuse_weights_file_open(GOLDEN_FOLDER "/expected.safetensors", FUSE_PTH_STATE_DICT, "model", &file, &error),
        FUSERUN_ERROR_CONFIG);
    assert_string_equal(error.key, "weights_key");
}

static void test_old_names(void **state)
{
    (void)state;
#define LAYER "encoder.layers.encoder_layer_0."
    struct fuse_weights_file *file = open_golden("old_vit", FUSE_PTH_STATE_DICT, NULL);
    const struct fuse_weights_entry *entry = fuse_weights_file_find(file, LAYER "mlp.0.weight");
    assert_non_null(entry);
    assert_string_equal(entry->name, LAYER "mlp.linear_1.weight");
    assert_string_equal(entry->new_name, LAYER "mlp.0.weight");
    assert_ptr_equal(fuse_weights_file_find(file, LAYER "mlp.linear_1.weight"), entry);
    assert_string_equal(fuse_weights_file_find(file, LAYER "mlp.3.bias")->name, LAYER "mlp.linear_2.bias");
    assert_null(fuse_weights_file_find(file, LAYER "ln_2.weight")->new_name);
    assert_null(fuse_weights_file_find(file, LAYER "mlp.1.weight"));
    fuse_weights_file_close(&file);
#undef LAYER
}

static void test_not_read(void **state)
{
    (void)state;
    struct fuse_weights_file *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_weights_file_open(golden_path("legacy"), FUSE_PTH_STATE_DICT, NULL, &file, &error),
                     FUSERUN_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "legacy.pth' is in the format that torch.save wrote before PyTorch 1.6"));
    assert_non_null(strstr(error.text, "torch.save(torch.load(sys.argv[1], weights_only=True), sys.argv[2])"));
    assert_int_equal(fuse_weights_file_open(golden_path("absent"), FUSE_PTH_STATE_DICT, NULL, &file, &error),
                     FUSERUN_ERROR_IO);
    assert_non_null(strstr(error.text, "absent.pth': No such file or directory"));
    assert_null(file);
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static int produce(void *user, const struct fuse_safetensors_output *output,
                   int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                   struct fuse_error *error)
{
    const char *bytes = user;
    const size_t half = (size_t)output->byte_count / 2; /* in two pieces */
    const int status = write(sink, bytes, half, error);
    return status != FUSERUN_OK ? status : write(sink, bytes + half, (size_t)output->byte_count - half, error);
}

static const int64_t shapes[][5] = {{2, 3}, {0}, {1, 2, 1, 3, 1}, {70000}, {2, 0, 3}};
static float values[70000];
static int64_t integers[2] = {-1, INT64_MAX};
static const struct fuse_safetensors_output outputs[] = {
    {"b.weight", "F32", 2, shapes[0], 24, produce, values},  {"a \"é\n", "F32", 5, shapes[2], 24, produce, values + 1},
    {"scalar", "F32", 0, NULL, 4, produce, values + 7},      {"empty", "F32", 1, shapes[1], 0, produce, values},
    {"large", "F32", 1, shapes[3], 280000, produce, values}, {"counts", "I64", 1, shapes[0], 16, produce, integers},
    {"empty_3d", "F32", 3, shapes[4], 0, produce, values},
};
enum { OUTPUT_COUNT = sizeof outputs / sizeof outputs[0] };

static void test_write(void **state)
{
    (void)state;
    struct fuse_error error = FUSE_ERROR_INIT;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        values[i] = (float)i / 4 - 100;
    if (fuse_pth_write(path, outputs, OUTPUT_COUNT, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    struct fuse_weights_file *file = open_path(path, FUSE_PTH_STATE_DICT, NULL);
    struct fuse_pth *pth = NULL;
    assert_int_equal(fuse_pth_open(path, FUSE_PTH_STATE_DICT, NULL, &pth, &error), FUSERUN_OK);
    assert_int_equal(fuse_weights_file_count(file), OUTPUT_COUNT);
    void *read = malloc(280000);
    assert_non_null(read);
    for (size_t i = 0; i < OUTPUT_COUNT; i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        assert_string_equal(entry->name, outputs[i].name);
        assert_string_equal(entry->dtype, outputs[i].dtype);
        assert_int_equal(entry->rank, outputs[i].rank);
        for (uint32_t d = 0; d < entry->rank; d++)
            assert_int_equal(entry->shape[d], outputs[i].shape[d]);
        assert_int_equal(fuse_weights_file_read_raw(file, entry, 0, entry->element_count, read, &error), FUSERUN_OK);
        assert_memory_equal(read, outputs[i].user, outputs[i].byte_count);
        assert_int_equal(fuse_pth_entry(pth, i)->offset % 64, 0);
    }
    free(read);
    fuse_pth_close(&pth);
    fuse_weights_file_close(&file);

    assert_int_equal(fuse_pth_write(path, NULL, 0, &error), FUSERUN_OK);
    assert_int_equal(fuse_pth_open(path, FUSE_PTH_EVERYTHING, NULL, &pth, &error), FUSERUN_OK);
    assert_int_equal(fuse_pth_count(pth), 0);
    fuse_pth_close(&pth);
}

static void test_write_refuses(void **state)
{
    (void)state;
    static char long_name[FUSE_PTH_NAME_LIMIT + 2];
    static const struct {
        struct fuse_safetensors_output output;
        const char *expected;
    } wrong[] = {
        {{"b.weight", "F32", 2, shapes[0], 24, produce, values}, "two of this name"},
        {{"x", "F32", 2, shapes[0], 20, produce, values}, "byte count and shape do not agree"},
        {{"x", "C64", 2, shapes[0], 48, produce, values}, "cannot hold its dtype C64"},
        {{"\xff", "F32", 2, shapes[0], 24, produce, values}, "is not UTF-8"},
        {{long_name, "F32", 2, shapes[0], 24, produce, values}, "longer than the 1,024 bytes"},
    };
    memset(long_name, 'n', sizeof long_name - 1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct fuse_error error = FUSE_ERROR_INIT;
        const struct fuse_safetensors_output both[] = {outputs[0], wrong[i].output};
        assert_int_not_equal(fuse_pth_write(path, both, 2, &error), FUSERUN_OK);
        if (strstr(error.text, wrong[i].expected) == NULL)
            fail_msg("'%s' instead of '%s'", error.text, wrong[i].expected);
    }
    /* The longest that is written is read. */
    long_name[FUSE_PTH_NAME_LIMIT] = '\0';
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_pth *file = NULL;
    const struct fuse_safetensors_output longest = {long_name, "F32", 2, shapes[0], 24, produce, values};
    assert_int_equal(fuse_pth_write(path, &longest, 1, &error), FUSERUN_OK);
    assert_int_equal(fuse_pth_open(path, FUSE_PTH_STATE_DICT, NULL, &file, &error), FUSERUN_OK);
    assert_string_equal(fuse_pth_entry(file, 0)->name, long_name);
    fuse_pth_close(&file);
}

/* ---- damaged files --------------------------------------------------------------------------------------------- */

static unsigned char *load(const char *from, size_t *length)
{
    FILE *stream = fopen(from, "rb");
    assert_non_null(stream);
    unsigned char *bytes = malloc(1 << 17);
    assert_non_null(bytes);
    *length = fread(bytes, 1, 1 << 17, stream);
    assert_int_equal(fclose(stream), 0);
    assert_in_range(*length, 1, (1 << 17) - 1);
    return bytes;
}

static int memory_file; /* behind `path`: quicker than a disk */

static int make_memory_file(void **state)
{
    (void)state;
    memory_file = memfd_create("pth", MFD_CLOEXEC);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", memory_file);
    return memory_file < 0 ? -1 : 0;
}

static int close_memory_file(void **state)
{
    (void)state;
    return close(memory_file);
}

static void store(const unsigned char *bytes, size_t length)
{
    assert_int_equal(ftruncate(memory_file, 0), 0);
    assert_int_equal(pwrite(memory_file, bytes, length, 0), length);
}

/* Opens whatever is there and reads all that it offers. Returns whether it opened. */
static bool try_file(const char *label)
{
    struct fuse_weights_file *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    counted_bytes = 0;
    const int status = fuse_weights_file_open(path, FUSE_PTH_EVERYTHING, NULL, &file, &error);
    if (counted_bytes > 2 << 20)
        fail_msg("%s: %zu bytes of memory", label, counted_bytes);
    if (status != FUSERUN_OK) {
        assert_null(file);
        assert_string_not_equal(error.text, "");
        for (const char *c = error.text; *c != '\0'; c++)
            assert_true((unsigned char)*c >= 0x20);
        return false;
    }
    for (size_t i = 0; i < fuse_weights_file_count(file); i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        const uint64_t count = entry->element_count < 3000 ? entry->element_count : 3000;
        double elements[3000];
        (void)fuse_weights_file_read_raw(file, entry, entry->element_count - count, count, elements, &error);
    }
    fuse_weights_file_close(&file);
    return true;
}

static void test_damaged(void **state)
{
    (void)state;
    enum { ROUNDS = 400 };
    uint64_t random = 1;
    size_t opened = 0;
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        size_t length;
        unsigned char *bytes = load(golden_path(golden[i]), &length), *copy = malloc(length);
        assert_non_null(copy);
        store(bytes, length);
        assert_true(try_file(golden[i]));
        for (int round = 0; round < ROUNDS; round++) {
            size_t left = length;
            memcpy(copy, bytes, length);
            for (int change = 0; change <= round % 3; change++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                copy[(random >> 33) % length] ^= (unsigned char)(1u << (random >> 20 & 7));
            }
            if (round % 8 == 0)
                left = (random >> 33) % length;
            store(copy, left);
            opened += try_file(golden[i]);
        }
        free(copy);
        free(bytes);
    }
    assert_in_range(opened, 1, GOLDEN_COUNT * ROUNDS - 1); /* a change of data alone goes through */
}

/* Every pickle byte of a small file, each to several values: no opcode, length or number does harm. */
static void test_damaged_pickle(void **state)
{
    (void)state;
    static const unsigned char places[] = {0x00, 0x01, 0x28, 0x2e, 0x58, 0x71, 0x72, 0x74, 0x75, 0x80, 0x8a, 0xff};
    size_t length;
    unsigned char *bytes = load(golden_path("parameter"), &length);
    for (size_t at = 0; at < length && at < 400; at++) {
        const unsigned char kept = bytes[at];
        for (size_t k = 0; k < sizeof places; k++) {
            bytes[at] = places[k];
            store(bytes, length);
            (void)try_file("a byte of the pickle");
        }
        bytes[at] = kept;
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_order_and_dtypes),
        cmocka_unit_test(test_weights_key),
        cmocka_unit_test(test_old_names),
        cmocka_unit_test(test_not_read),
        cmocka_unit_test_setup_teardown(test_write, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_write_refuses, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_damaged, make_memory_file, close_memory_file),
        cmocka_unit_test_setup_teardown(test_damaged_pickle, make_memory_file, close_memory_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
