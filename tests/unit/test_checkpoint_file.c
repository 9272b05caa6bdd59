/* Checkpoints as files: what is written is read, every changed byte is noticed, and no metadata is believed. */
#include "files/checkpoint_file.h"

#include "files/checksums.h"
#include "files/output.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static char folder[64], path[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/fuserun-checkpoint-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof path, "%s/step-00000007.safetensors", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static int produce(void *user, const struct fuse_safetensors_output *output,
                   int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                   struct fuse_error *error)
{
    return write(sink, user, (size_t)output->byte_count, error);
}

static const float weight[] = {1, -2, 0.5f, 4, 5, 6};
static const int64_t step = 7;
static const int64_t shape[] = {2, 3}, nothing[] = {0};

static const struct fuse_safetensors_output outputs[] = {
    {"w", "F32", 2, shape, sizeof weight, produce, (void *)(uintptr_t)weight},
    {"optimizer/w/step", "I64", 0, NULL, sizeof step, produce, (void *)(uintptr_t)&step},
    {"optimizer/w/row", "F32", 1, nothing, 0, produce, NULL},
};
static const struct fuse_checkpoint_record record = {.step = 7,
                                                     .epoch = 2,
                                                     .batches = 3,
                                                     .drawn = 11,
                                                     .batch_size = 8,
                                                     .samples = 50,
                                                     .seed = INT64_MAX,
                                                     .skips = 4,
                                                     .is_evaluation_due = true};
static const struct fuse_checkpoint_texts texts = {"scheduler eval_loss\n", "adamw w\n", "optimizer adamw 1.0.0\n",
                                                   "[run]\nname = \"a\\b\"\n"};

static void put(void)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_checkpoint_file_write(path, outputs, 3, &record, &texts, &error), FUSERUN_OK);
}

static int open_it(struct fuse_checkpoint_record *read, bool *is_checked, struct fuse_error *error)
{
    struct fuse_safetensors *file = NULL;
    struct fuse_checkpoint_texts got;
    const int status = fuse_checkpoint_file_open(path, &file, read, &got, is_checked, error);
    assert_int_equal(status == FUSERUN_OK, file != NULL);
    fuse_safetensors_close(&file);
    return status;
}

static char *content(size_t *length)
{
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, 0, SEEK_END), 0);
    *length = (size_t)ftell(stream);
    rewind(stream);
    char *bytes = malloc(*length + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *length, stream), *length);
    bytes[*length] = '\0';
    assert_int_equal(fclose(stream), 0);
    return bytes;
}

/* Without what is behind the last field. */
#define RECORD_BYTES (offsetof(struct fuse_checkpoint_record, is_evaluation_due) + sizeof(bool))

static void replace(const char *bytes, size_t length)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, length, stream), length);
    assert_int_equal(fclose(stream), 0);
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct fuse_safetensors *file = NULL;
    struct fuse_checkpoint_record read;
    struct fuse_checkpoint_texts got;
    struct fuse_error error = FUSE_ERROR_INIT;
    bool is_checked = false;
    float values[6];
    put();
    assert_int_equal(fuse_checkpoint_file_open(path, &file, &read, &got, &is_checked, &error), FUSERUN_OK);
    assert_true(is_checked);
    assert_memory_equal(&read, &record, RECORD_BYTES);
    assert_string_equal(got.scheduler, texts.scheduler);
    assert_string_equal(got.optimizers, texts.optimizers);
    assert_string_equal(got.plugins, texts.plugins);
    assert_string_equal(got.config, texts.config);
    const struct fuse_safetensors_entry *entry = fuse_safetensors_find(file, "w");
    assert_non_null(entry);
    assert_int_equal(fuse_safetensors_read(file, entry, 0, values, sizeof values, &error), FUSERUN_OK);
    assert_memory_equal(values, weight, sizeof values);
    fuse_safetensors_close(&file);
}

/* The place and the hash, as the format says. */
static void checksums_stand_where_they_should(void **state)
{
    (void)state;
    size_t length;
    char digits[FUSE_CHECKSUM_DIGITS];
    put();
    char *bytes = content(&length);
    const char *at = bytes + 8 + strlen(FUSE_CHECKSUMS_START);
    assert_memory_equal(bytes + 8, FUSE_CHECKSUMS_START, strlen(FUSE_CHECKSUMS_START));
    fuse_checksum_write(XXH3_64bits(&step, sizeof step), digits);
    assert_memory_equal(at + 16, digits, 16); /* 8 bytes an element come first */
    fuse_checksum_write(XXH3_64bits(NULL, 0), digits);
    assert_memory_equal(at + 32, digits, 16);
    fuse_checksum_write(XXH3_64bits(weight, sizeof weight), digits);
    assert_memory_equal(at + 48, digits, 16);
    assert_int_equal(at[64], '"');
    fuse_checksum_write(0x0123456789abcdefu, digits);
    assert_memory_equal(digits, "0123456789abcdef", 16);
    free(bytes);
}

static void every_changed_byte_is_noticed(void **state)
{
    (void)state;
    size_t length;
    bool is_checked;
    struct fuse_checkpoint_record read;
    put();
    char *bytes = content(&length);
    for (size_t i = 0; i < length; i++) {
        struct fuse_error error = FUSE_ERROR_INIT;
        bytes[i] ^= 0x01;
        replace(bytes, length);
        if (open_it(&read, &is_checked, &error) == FUSERUN_OK)
            fail_msg("byte %zu of %zu", i, length);
        bytes[i] ^= 0x01;
        if (i % 7 != 0)
            continue;
        replace(bytes, i);
        assert_int_equal(open_it(&read, &is_checked, &error), FUSERUN_ERROR_FORMAT);
    }
    replace(bytes, length);
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(open_it(&read, &is_checked, &error), FUSERUN_OK);
    free(bytes);
}

/* Metadata as another tool might write it: no tensor, no checksum. */
static int open_metadata(const char *metadata, struct fuse_checkpoint_record *read, bool *is_checked,
                         struct fuse_error *error)
{
    char bytes[1024];
    const int length = snprintf(bytes + 8, sizeof bytes - 8, "{\"__metadata__\":{%s}}", metadata);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)((uint64_t)length >> (8 * i) & 0xff);
    replace(bytes, 8 + (size_t)length);
    return open_it(read, is_checked, error);
}

#define FORMAT "\"checksums\":\"none\",\"format\":\"fuserun checkpoint 1\","

static void what_is_absent_has_a_meaning(void **state)
{
    (void)state;
    bool is_checked = true;
    struct fuse_checkpoint_record read;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(open_metadata(FORMAT "\"clock.step\":\"12\",\"of.another\":\"tool\"", &read, &is_checked, &error),
                     FUSERUN_OK);
    const struct fuse_checkpoint_record wanted = {.step = 12};
    assert_memory_equal(&read, &wanted, RECORD_BYTES);
    assert_false(is_checked);
}

static void metadata_is_not_believed(void **state)
{
    (void)state;
    static const struct {
        const char *metadata, *said;
    } cases[] = {
        {"\"clock.step\":\"1\"", "is not a checkpoint"},
        {"\"format\":\"pt\",\"clock.step\":\"1\"", "is not a checkpoint"},
        {FORMAT "\"a\":\"b\"", "is not a checkpoint"},
        {"\"format\":\"fuserun checkpoint 1x\",\"clock.step\":\"1\"", "its format is 'fuserun checkpoint 1x'"},
        {FORMAT "\"clock.step\":\"-1\"", "its clock.step is '-1'"},
        {FORMAT "\"clock.step\":\"1e3\"", "its clock.step is '1e3'"},
        {FORMAT "\"clock.step\":\"\"", "its clock.step is ''"},
        {FORMAT "\"clock.step\":\"9223372036854775807\"", "its clock.step is '9223372036854775807'"},
        {FORMAT "\"clock.step\":\"1\",\"data.epoch\":\"9007199254740993\"", "its data.epoch is '9007199254740993'"},
        {FORMAT "\"clock.step\":\"1\",\"random.seed\":\"9223372036854775808\"", "its random.seed is"},
        {FORMAT "\"clock.step\":\"1\",\"data.batches\":\"a\\nb\"", "its data.batches is 'a?b'"},
        {"\"format\":\"fuserun checkpoint 1\",\"clock.step\":\"1\"", "the checksum of the header does not agree"},
        {"\"checksums\":\"\",\"format\":\"fuserun checkpoint 1\",\"clock.step\":\"1\"", "the checksum of the header"},
        {"\"checksums\":\"0000000000000000\",\"format\":\"fuserun checkpoint 1\",\"clock.step\":\"1\"",
         "the checksum of the header"},
        {"\"format\":\"fuserun checkpoint 1\",\"clock.step\":\"1\",\"checksums\":\"0000000000000000\"",
         "the checksum of the header"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool is_checked;
        struct fuse_checkpoint_record read;
        struct fuse_error error = FUSE_ERROR_INIT;
        const int status = open_metadata(cases[i].metadata, &read, &is_checked, &error);
        if (status != FUSERUN_ERROR_FORMAT || strstr(error.text, cases[i].said) == NULL)
            fail_msg("%s: status %d, '%s'", cases[i].metadata, status, error.text);
    }
}

/* Not damaged: whoever can read it shall still find it. */
static void another_version_is_told_apart(void **state)
{
    (void)state;
    bool is_checked;
    struct fuse_checkpoint_record read;
    struct fuse_error error = FUSE_ERROR_INIT;
    const char *metadata = "\"format\":\"fuserun checkpoint 2\",\"clock.step\":\"1\"";
    assert_int_equal(open_metadata(metadata, &read, &is_checked, &error), FUSERUN_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "its format is 'fuserun checkpoint 2', this one reads 'fuserun checkpoint 1'"));
}

static void names_of_states(void **state)
{
    (void)state;
    assert_true(fuse_checkpoint_is_state("optimizer/w/step"));
    assert_true(fuse_checkpoint_is_state("scheduler/state"));
    assert_false(fuse_checkpoint_is_state("optimizer"));
    assert_false(fuse_checkpoint_is_state("layers.0.optimizer/w"));
}

/* A link moves in one step; what is left of a killed run is told by its name. */
static void links_and_leftovers(void **state)
{
    (void)state;
    char target[64] = "";
    struct fuse_error error = FUSE_ERROR_INIT;
    for (int i = 1; i <= 2; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "to-%d", i);
        assert_int_equal(fuse_output_link(path, name, &error), FUSERUN_OK);
        const ssize_t length = readlink(path, target, sizeof target - 1);
        assert_int_equal(length, 4);
        assert_memory_equal(target, name, 4);
    }
    assert_int_equal(fuse_output_link("/nowhere/at/all", "x", &error), FUSERUN_ERROR_IO);
    assert_true(fuse_output_is_leftover(".latest.12-0.tmp", "latest"));
    assert_true(fuse_output_is_leftover(".model.safetensors.1-23.tmp", "model.safetensors"));
    static const char *const others[] = {"latest",           ".latest",          ".latest.tmp",      ".latest.12.tmp",
                                         ".latest.-1.tmp",   ".latest.12-.tmp",  ".latest.1-2.tmp2", "latest.12-0.tmp",
                                         ".latest.1-2x.tmp", ".latests.1-2.tmp", ".la.1-2.tmp",      ""};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(fuse_output_is_leftover(others[i], "latest"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_is_read),
        TEST(checksums_stand_where_they_should),
        TEST(every_changed_byte_is_noticed),
        TEST(what_is_absent_has_a_meaning),
        TEST(metadata_is_not_believed),
        TEST(another_version_is_told_apart),
        TEST(names_of_states),
        TEST(links_and_leftovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
