/* The dataset plugins, loaded as a run loads them. argv: the folder of the plugins, the source tree. */
#include "config/options.h"
#include "files/output.h"
#include "files/safetensors.h"
#include "plugin/registry.h"

#include <fuserun/dataset.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TEST_ZLIB
#include <zlib.h>
#endif

static const char *plugin_folder, *source_folder;
static char folder[64];
static struct fuse_registry *registry;

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/fuserun-datasets-XXXXXX");
    return mkdtemp(folder) == NULL || fuse_registry_new(NULL, 0, NULL, &registry, NULL) != FUSERUN_OK;
}

static const char *in_folder(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"images", "labels", "x.safetensors", "other"};
    fuse_registry_free(&registry);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)remove(in_folder(names[i]));
    return rmdir(folder);
}

/* ---- an open dataset ------------------------------------------------------------------------------------------ */

struct opened {
    const struct fuse_dataset *dataset;
    void *instance;
    struct fuse_dataset_info info;
    void *cache;
    struct fuse_error error;
    int status; /* of open(), or of load() if that was reached */
    bool was_opened;
};

static struct opened open_dataset(const char *name, const struct fuse_dataset_context *context,
                                  const char *const *pairs, size_t pair_count)
{
    struct opened opened = {.error = FUSE_ERROR_INIT};
    const struct fuse_component *component = NULL;
    struct fuse_options *options = NULL;
    const char *file;
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s.so", plugin_folder, name);
    if (fuse_registry_find(registry, FUSERUN_KIND_DATASET, path, &component, &file, &opened.error) != FUSERUN_OK ||
        fuse_options_from_pairs(component, pairs, pair_count, &options, &opened.error) != FUSERUN_OK)
        fail_msg("%s", opened.error.text);
    opened.dataset = component->api;
    opened.status = opened.dataset->open(fuse_host(), options, context, &opened.instance, &opened.error);
    fuse_options_free(&options);
    if (opened.status != FUSERUN_OK)
        return opened;
    opened.was_opened = true;
    opened.info.struct_size = FUSERUN_STRUCT_SIZE(fuse_dataset_info, cache_bytes);
    opened.dataset->describe(opened.instance, &opened.info);
    /* Exactly as large as asked for, so that a sanitizer sees a byte too many. */
    if (opened.info.cache_bytes > 0)
        assert_int_equal(posix_memalign(&opened.cache, 64, (size_t)opened.info.cache_bytes), 0);
    if (opened.dataset->load != NULL)
        opened.status = opened.dataset->load(opened.instance, opened.cache, &opened.error);
    return opened;
}

static void close_dataset(struct opened *opened)
{
    if (opened->was_opened)
        opened->dataset->close(opened->instance);
    free(opened->cache);
    *opened = (struct opened){0};
}

static void check_status(const struct opened *opened, const char *label)
{
    if (opened->status != FUSERUN_OK)
        fail_msg("%s: %d %s: %s", label, opened->status, opened->error.key, opened->error.text);
}

/* Closes it too. */
static void check_failure(struct opened opened, const char *label, int code, const char *key, const char *text)
{
    const struct fuse_error error = opened.error;
    const int status = opened.status;
    close_dataset(&opened);
    if (status != code || strcmp(error.key, key) != 0 || strstr(error.text, text) == NULL)
        fail_msg("%s: %d %s: '%s' instead of %d %s: '%s'", label, status, error.key, error.text, code, key, text);
}

static void read_batch(struct opened *opened, const int64_t *indices, int64_t count, uint64_t ordinal, float *inputs,
                       int64_t *classes, float *values)
{
    const struct fuse_batch batch = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_batch, values),
        .indices = indices,
        .count = count,
        .ordinal = ordinal,
        .inputs = inputs,
        .classes = classes,
        .values = values,
    };
    if (opened->dataset->read(opened->instance, &batch, &opened->error) != FUSERUN_OK)
        fail_msg("%s", opened->error.text);
}

#define CONTEXT(target)                                                                                                \
    {                                                                                                                  \
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_dataset_context, target_wanted), .seed = 7, .target_wanted = (target)  \
    }
static const struct fuse_dataset_context wants_classes = CONTEXT(FUSERUN_TARGET_CLASS);
static const struct fuse_dataset_context wants_values = CONTEXT(FUSERUN_TARGET_VALUES);
static const struct fuse_dataset_context wants_nothing = CONTEXT(FUSERUN_TARGET_NONE);

static void put(const char *name, const void *bytes, size_t count)
{
    assert_int_equal(fuse_output_text(in_folder(name), bytes, count, NULL), FUSERUN_OK);
}

/* ---- idx ------------------------------------------------------------------------------------------------------ */

/* Three images of 2 x 2, their labels, and single-dimension images. */
static const char images[] =
    "\0\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x02\x00\x01\x02\x03\x80\x81\x82\x83\xFC\xFD\xFE\xFF";
static const char labels[] = "\0\0\x08\x01\0\0\0\x03\x09\x00\xFF";
enum { IMAGE_BYTES = sizeof images - 1, LABEL_BYTES = sizeof labels - 1 };

static struct opened open_idx(const struct fuse_dataset_context *context)
{
    char image_pair[160], label_pair[160];
    (void)snprintf(image_pair, sizeof image_pair, "images=%s", in_folder("images"));
    (void)snprintf(label_pair, sizeof label_pair, "labels=%s", in_folder("labels"));
    const char *const pairs[] = {image_pair, label_pair};
    return open_dataset("idx", context, pairs, 2);
}

static void check_idx_samples(void)
{
    struct opened opened = open_idx(&wants_classes);
    const int64_t indices[] = {2, 0, 2};
    float inputs[12];
    int64_t classes[3];
    check_status(&opened, "idx");
    assert_int_equal(opened.info.target_kind, FUSERUN_TARGET_CLASS);
    assert_int_equal(opened.info.sample_count, 3);
    assert_int_equal(opened.info.class_count, 0);
    assert_int_equal(opened.info.input_rank, 3);
    assert_int_equal(opened.info.input_shape[0], 1);
    assert_int_equal(opened.info.input_shape[1], 2);
    assert_int_equal(opened.info.input_shape[2], 2);
    read_batch(&opened, indices, 3, 0, inputs, classes, NULL);
    for (int i = 0; i < 3; i++)
        for (int pixel = 0; pixel < 4; pixel++) {
            const unsigned char byte = (unsigned char)images[16 + 4 * indices[i] + pixel];
            assert_true(inputs[4 * i + pixel] == (float)byte / 255.0f);
        }
    assert_true(inputs[3] == 1.0f);
    assert_true(inputs[4] == 0.0f);
    assert_int_equal(classes[0], 255);
    assert_int_equal(classes[1], 9);
    assert_int_equal(classes[2], 255);
    close_dataset(&opened);
}

static void test_idx_reads(void **state)
{
    (void)state;
    put("images", images, IMAGE_BYTES);
    put("labels", labels, LABEL_BYTES);
    check_idx_samples();

    struct opened opened = open_idx(&wants_nothing);
    const int64_t index = 1;
    float inputs[4];
    check_status(&opened, "idx without targets");
    assert_int_equal(opened.info.target_kind, FUSERUN_TARGET_NONE);
    read_batch(&opened, &index, 1, 0, inputs, NULL, NULL);
    assert_true(inputs[0] == 128.0f / 255.0f);
    close_dataset(&opened);
    check_failure(open_idx(&wants_values), "mse", FUSERUN_ERROR_UNSUPPORTED, "plugin", "class numbers");
}

static void test_idx_other_ranks(void **state)
{
    (void)state;
    struct opened opened;
    put("labels", labels, LABEL_BYTES);
    put("images", labels, LABEL_BYTES); /* one pixel an image */
    opened = open_idx(&wants_classes);
    check_status(&opened, "rank 1");
    assert_int_equal(opened.info.input_rank, 1);
    assert_int_equal(opened.info.input_shape[0], 1);
    close_dataset(&opened);
    static const char four[] = "\0\0\x08\x04\0\0\0\x03\0\0\0\x01\0\0\0\x02\0\0\0\x02"
                               "ABCDEFGHIJKL";
    const int64_t index = 2;
    float inputs[4];
    int64_t class;
    put("images", four, sizeof four - 1);
    opened = open_idx(&wants_classes);
    check_status(&opened, "rank 4");
    assert_int_equal(opened.info.input_rank, 3);
    assert_int_equal(opened.info.input_shape[0], 1);
    assert_int_equal(opened.info.input_shape[2], 2);
    read_batch(&opened, &index, 1, 0, inputs, &class, NULL);
    assert_true(inputs[0] == (float)'I' / 255.0f);
    close_dataset(&opened);
}

static void test_idx_rejects(void **state)
{
    (void)state;
#define BYTES(text) text, sizeof(text) - 1
    static const struct {
        const char *label, *name, *bytes;
        size_t count;
        const char *expected;
    } cases[] = {
        {"empty", "images", BYTES(""), "truncated"},
        {"three bytes", "images", BYTES("\0\0\x08"), "truncated"},
        {"no dimensions", "images", BYTES("\0\0\x08\x03\0\0\0\x03\0\0\0"), "truncated"},
        {"a zip", "images", BYTES("PK\3\4xxxxxxxxxxxxxxxx"), "not an IDX file: it begins with 50 4b 03 04"},
        {"floats", "images", BYTES("\0\0\x0D\x03\0\0\0\x01\0\0\0\x01\0\0\0\x01"), "element type is 0x0d"},
        {"rank 0", "images", BYTES("\0\0\x08\0"), "has 0 dimensions; images have 1 to 4"},
        {"rank 5", "images", BYTES("\0\0\x08\x05\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01x"),
         "has 5 dimensions"},
        {"zero", "images", BYTES("\0\0\x08\x03\0\0\0\x03\0\0\0\0\0\0\0\x02"), "dimension 1 is 0"},
        {"no sample", "images", BYTES("\0\0\x08\x03\0\0\0\0\0\0\0\x02\0\0\0\x02"), "dimension 0 is 0"},
        {"overflow", "images", BYTES("\0\0\x08\x04\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"),
         "overflows"},
        {"overflow to 0", "images", BYTES("\0\0\x08\x03\x80\0\0\0\x80\0\0\0\0\0\0\x04"), "overflows"},
        {"short", "images", images, IMAGE_BYTES - 1,
         "is truncated: its IDX header promises 12 bytes of data, 11 follow"},
        {"long", "images",
         BYTES("\0\0\x08\x01\0\0\0\x03"
               "1234"),
         "has trailing bytes: its IDX header promises 3 bytes of data, 4 follow"},
        {"short labels", "labels", labels, LABEL_BYTES - 1, "is truncated"},
        {"swapped", "labels", images, IMAGE_BYTES, "has 3 dimensions; labels have 1 (are images and labels swapped?)"},
        {"other count", "labels", BYTES("\0\0\x08\x01\0\0\0\x02\x01\x02"), "2 labels for 3 images"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put("images", images, IMAGE_BYTES);
        put("labels", labels, LABEL_BYTES);
        put(cases[i].name, cases[i].bytes, cases[i].count);
        struct opened opened = open_idx(&wants_classes);
        assert_false(opened.was_opened); /* `check` finds it, too */
        check_failure(opened, cases[i].label, FUSERUN_ERROR_FORMAT, cases[i].name, cases[i].expected);
    }
    put("images", images, IMAGE_BYTES);
    assert_int_equal(remove(in_folder("labels")), 0);
    check_failure(open_idx(&wants_classes), "absent", FUSERUN_ERROR_IO, "labels", "No such file or directory");
    assert_int_equal(symlink("/tmp", in_folder("labels")), 0);
    check_failure(open_idx(&wants_classes), "a folder", FUSERUN_ERROR_IO, "labels", "not a regular file");
}

#ifdef TEST_ZLIB
/* count bytes as one gzip member, behind what `at` holds; returns the end. */
static size_t pack(const char *bytes, size_t count, char *to, size_t at, size_t size)
{
    z_stream stream = {0};
    assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (unsigned char *)(uintptr_t)bytes;
    stream.avail_in = (uInt)count;
    stream.next_out = (unsigned char *)to + at;
    stream.avail_out = (uInt)(size - at);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    assert_int_equal(deflateEnd(&stream), Z_OK);
    return size - stream.avail_out;
}

static void test_idx_gzip(void **state)
{
    (void)state;
    char packed[4096], longer[IMAGE_BYTES + 1];
    size_t count = pack(images, IMAGE_BYTES, packed, 0, sizeof packed);
    put("images", packed, count);
    put("labels", labels, LABEL_BYTES);
    check_idx_samples();

    /* Several members in a row, cut inside the header and inside the data, as gzip allows. */
    count = pack(images, 6, packed, 0, sizeof packed);
    count = pack(images + 6, 15, packed, count, sizeof packed);
    count = pack(images + 21, IMAGE_BYTES - 21, packed, count, sizeof packed);
    put("images", packed, count);
    count = pack(labels, LABEL_BYTES, packed, 0, sizeof packed);
    put("labels", packed, count);
    check_idx_samples();

    put("labels", labels, LABEL_BYTES);
    count = pack(images, IMAGE_BYTES, packed, 0, sizeof packed);
    put("images", packed, count - 1);
    check_failure(open_idx(&wants_classes), "cut in the trailer", FUSERUN_ERROR_FORMAT, "images", "truncated");
    put("images", packed, 12);
    check_failure(open_idx(&wants_classes), "cut in the data", FUSERUN_ERROR_FORMAT, "images", "truncated");
    packed[count] = 'x';
    put("images", packed, count + 1);
    check_failure(open_idx(&wants_classes), "garbage behind", FUSERUN_ERROR_FORMAT, "images", "truncated");
    memcpy(packed + count, "garbage behind it", 17);
    put("images", packed, count + 17);
    check_failure(open_idx(&wants_classes), "garbage behind", FUSERUN_ERROR_FORMAT, "images", "not sound gzip");
    packed[count - 5] ^= 1; /* in the checksum */
    put("images", packed, count);
    check_failure(open_idx(&wants_classes), "checksum", FUSERUN_ERROR_FORMAT, "images", "not sound gzip");

    count = pack(images, IMAGE_BYTES - 1, packed, 0, sizeof packed);
    put("images", packed, count);
    check_failure(open_idx(&wants_classes), "short inside", FUSERUN_ERROR_FORMAT, "images",
                  "is truncated: its IDX header promises 12");
    memcpy(longer, images, IMAGE_BYTES);
    longer[IMAGE_BYTES] = 0;
    count = pack(longer, IMAGE_BYTES + 1, packed, 0, sizeof packed);
    put("images", packed, count);
    check_failure(open_idx(&wants_classes), "long inside", FUSERUN_ERROR_FORMAT, "images", "has trailing bytes");

    /* A header that promises more than the file could unpack to is refused before memory is asked for. */
    memcpy(longer, images, IMAGE_BYTES);
    memcpy(longer + 8, "\0\xFF\xFF\xFF\0\xFF\xFF\xFF", 8);
    count = pack(longer, IMAGE_BYTES, packed, 0, sizeof packed);
    put("images", packed, count);
    struct opened opened = open_idx(&wants_classes);
    assert_false(opened.was_opened);
    check_failure(opened, "promises", FUSERUN_ERROR_FORMAT, "images", "more than a .gz of");
}
#else
static void test_idx_gzip(void **state)
{
    (void)state;
    put("images", "\x1F\x8B\x08\0\0\0\0\0", 8);
    put("labels", labels, LABEL_BYTES);
    check_failure(open_idx(&wants_classes), "gzip", FUSERUN_ERROR_UNSUPPORTED, "images", "this build has no zlib");
}
#endif

/* The digits that come with fuserun: their counts, the range of their values, and the same share of each class in both.
 */
static void test_idx_digits(void **state)
{
    (void)state;
    int64_t counts[2][10] = {{0}};
    for (int part = 0; part < 2; part++) {
        static const char *const names[] = {"train", "test"};
        char image_pair[1024], label_pair[1024];
        (void)snprintf(image_pair, sizeof image_pair, "images=%s/configs/data/digits/%s-images-idx3-ubyte",
                       source_folder, names[part]);
        (void)snprintf(label_pair, sizeof label_pair, "labels=%s/configs/data/digits/%s-labels-idx1-ubyte",
                       source_folder, names[part]);
        const char *const pairs[] = {image_pair, label_pair};
        struct opened opened = open_dataset("idx", &wants_classes, pairs, 2);
        check_status(&opened, names[part]);
        assert_int_equal(opened.info.sample_count, part == 0 ? 1438 : 359);
        assert_int_equal(opened.info.input_rank, 3);
        assert_int_equal(opened.info.input_shape[0], 1);
        assert_int_equal(opened.info.input_shape[1], 8);
        assert_int_equal(opened.info.input_shape[2], 8);
        float darkest = 0;
        for (int64_t i = 0; i < opened.info.sample_count; i++) {
            float inputs[64];
            int64_t class;
            read_batch(&opened, &i, 1, 0, inputs, &class, NULL);
            assert_in_range(class, 0, 9);
            counts[part][class]++;
            for (int pixel = 0; pixel < 64; pixel++) {
                const float sixteenths = inputs[pixel] * 16; /* k/16 to within 1/255 */
                assert_true(sixteenths >= 0 && sixteenths <= 16);
                assert_true(sixteenths - (float)(int)(sixteenths + 0.5f) < 16.0f / 255);
                darkest = inputs[pixel] > darkest ? inputs[pixel] : darkest;
            }
        }
        assert_true(darkest == 1.0f);
        close_dataset(&opened);
    }
    for (int class = 0; class < 10; class ++) {
        const int64_t all = counts[0][class] + counts[1][class];
        assert_in_range(counts[1][class], (all - 2) / 5, (all + 4) / 5);
    }
}

/* ---- tensors -------------------------------------------------------------------------------------------------- */

static int produce(void *user, const struct fuse_safetensors_output *output,
                   int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                   struct fuse_error *error)
{
    return write(sink, user, (size_t)output->byte_count, error);
}

static struct fuse_safetensors_output tensor(const char *name, const char *dtype, uint32_t rank, const int64_t *shape,
                                             const void *values)
{
    uint64_t bytes = strcmp(dtype, "I64") == 0 ? 8 : 4;
    for (uint32_t i = 0; i < rank; i++)
        bytes *= (uint64_t)shape[i];
    return (struct fuse_safetensors_output){name, dtype, rank, shape, bytes, produce, (void *)(uintptr_t)values};
}

static struct opened open_tensors(const struct fuse_dataset_context *context)
{
    char pair[160];
    (void)snprintf(pair, sizeof pair, "file=%s", in_folder("x.safetensors"));
    const char *const pairs[] = {pair};
    return open_dataset("tensors", context, pairs, 1);
}

static void put_tensors(const struct fuse_safetensors_output *outputs, size_t count)
{
    assert_int_equal(fuse_safetensors_write(in_folder("x.safetensors"), outputs, count, NULL, 0, NULL), FUSERUN_OK);
}

static const float x_values[] = {0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f, 6.5f, 7.5f, 8.5f, 9.5f, 10.5f, 11.5f};
static const float y_values[] = {-1, -2, -3, -4, -5, -6};
static const int64_t y_classes[] = {4, -7, 1000000007};
static const int64_t shape_3[] = {3}, shape_3_2[] = {3, 2}, shape_3_2_2[] = {3, 2, 2}, shape_2[] = {2};

static void test_tensors_reads(void **state)
{
    (void)state;
    static const int64_t indices[] = {2, 0, 1, 1};
    float inputs[16], values[8];
    int64_t classes[4];
    const struct fuse_safetensors_output with_classes[] = {tensor("x", "F32", 3, shape_3_2_2, x_values),
                                                           tensor("y", "I64", 1, shape_3, y_classes),
                                                           tensor("z", "F32", 1, shape_3, x_values)};
    put_tensors(with_classes, 3);
    struct opened opened = open_tensors(&wants_classes);
    check_status(&opened, "classes");
    assert_int_equal(opened.info.target_kind, FUSERUN_TARGET_CLASS);
    assert_int_equal(opened.info.sample_count, 3);
    assert_int_equal(opened.info.class_count, 0);
    assert_int_equal(opened.info.input_rank, 2);
    assert_int_equal(opened.info.input_shape[0], 2);
    assert_int_equal(opened.info.input_shape[1], 2);
    read_batch(&opened, indices, 4, 0, inputs, classes, NULL);
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(inputs + 4 * i, x_values + 4 * indices[i], 16);
        assert_int_equal(classes[i], y_classes[indices[i]]);
    }
    close_dataset(&opened);

    const struct fuse_safetensors_output with_values[] = {tensor("x", "F32", 1, shape_3, x_values),
                                                          tensor("y", "F32", 2, shape_3_2, y_values)};
    put_tensors(with_values, 2);
    opened = open_tensors(&wants_values);
    check_status(&opened, "values");
    assert_int_equal(opened.info.target_kind, FUSERUN_TARGET_VALUES);
    assert_int_equal(opened.info.input_rank, 1); /* [N] counts as [N, 1] */
    assert_int_equal(opened.info.input_shape[0], 1);
    assert_int_equal(opened.info.target_rank, 1);
    assert_int_equal(opened.info.target_shape[0], 2);
    read_batch(&opened, indices, 4, 0, inputs, NULL, values);
    for (int i = 0; i < 4; i++) {
        assert_true(inputs[i] == x_values[indices[i]]);
        assert_memory_equal(values + 2 * i, y_values + 2 * indices[i], 8);
    }
    close_dataset(&opened);

    put_tensors(with_values, 1); /* no y, and none wanted */
    opened = open_tensors(&wants_nothing);
    check_status(&opened, "nothing");
    assert_int_equal(opened.info.target_kind, FUSERUN_TARGET_NONE);
    assert_int_equal(opened.info.target_rank, 0);
    read_batch(&opened, indices, 4, 0, inputs, NULL, NULL);
    assert_true(inputs[0] == 2.5f);
    close_dataset(&opened);
}

static void test_tensors_rejects(void **state)
{
    (void)state;
    static const int64_t shape_0[] = {0, 4}, shape_9[] = {3, 1, 1, 1, 1, 1, 1, 1, 2}, shape_1_3[] = {1, 3};
    const struct fuse_safetensors_output x = tensor("x", "F32", 2, shape_3_2, x_values);
    const struct fuse_safetensors_output other = tensor("other", "F32", 1, shape_2, x_values);
    const struct {
        struct fuse_safetensors_output first, second;
        const struct fuse_dataset_context *context;
        const char *expected;
    } cases[] = {
        {other, tensor("y", "I64", 1, shape_3, y_classes), &wants_classes, "the file has no tensor 'x'"},
        {x, other, &wants_classes, "the file has no tensor 'y'; needed is I64 [N]"},
        {x, other, &wants_values, "the file has no tensor 'y'; needed is F32 [N, ...]"},
        {x, tensor("y", "F32", 2, shape_3_2, y_values), &wants_classes, "tensor 'y' is F32 [3, 2]; needed is I64 [N]"},
        {x, tensor("y", "I64", 2, shape_1_3, y_classes), &wants_classes, "tensor 'y' is I64 [1, 3]; needed is I64 [N]"},
        {x, tensor("y", "I64", 1, shape_3, y_classes), &wants_values, "tensor 'y' is I64 [3]; needed is F32 [N, ...]"},
        {x, tensor("y", "I64", 1, shape_2, y_classes), &wants_classes, "'x' has 3 samples and 'y' has 2"},
        {x, tensor("y", "F32", 1, shape_2, y_values), &wants_values, "'x' has 3 samples and 'y' has 2"},
        {x, tensor("y", "F32", 0, NULL, y_values), &wants_values, "tensor 'y' is F32 []; needed is"},
        {tensor("x", "I32", 1, shape_3, x_values), other, &wants_nothing,
         "tensor 'x' is I32 [3]; needed is F32 [N, ...]"},
        {tensor("x", "F32", 0, NULL, x_values), other, &wants_nothing, "tensor 'x' is F32 []; needed is"},
        {tensor("x", "F32", 2, shape_0, x_values), other, &wants_nothing, "tensor 'x' is F32 [0, 4]; needed is"},
        {tensor("x", "F32", 9, shape_9, x_values), other, &wants_nothing,
         "tensor 'x' is F32 [3, 1, 1, 1, 1, 1, 1, 1, 2]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct fuse_safetensors_output pair[] = {cases[i].first, cases[i].second};
        put_tensors(pair, 2);
        struct opened opened = open_tensors(cases[i].context);
        assert_false(opened.was_opened);
        check_failure(opened, cases[i].expected, FUSERUN_ERROR_FORMAT, "file", cases[i].expected);
    }
    put("x.safetensors", "not a safetensors file", 22);
    check_failure(open_tensors(&wants_classes), "bad", FUSERUN_ERROR_FORMAT, "file",
                  "is not a valid .safetensors file");
    assert_int_equal(remove(in_folder("x.safetensors")), 0);
    check_failure(open_tensors(&wants_classes), "absent", FUSERUN_ERROR_IO, "file", "No such file or directory");
}

/* x of 96 MiB (a sparse file): it is not cached, y is, and batches come from the file. */
static void test_tensors_large(void **state)
{
    (void)state;
    enum { SAMPLES = 24, ELEMENTS = 1 << 20 };
    static const int64_t indices[] = {3, 4, 5, 23, 0, 0};
    char header[400];
    float number;
    const uint64_t x_bytes = (uint64_t)SAMPLES * ELEMENTS * 4;
    const int length =
        snprintf(header, sizeof header,
                 "%c%c%c%c%c%c%c%c{\"y\":{\"dtype\":\"I64\",\"shape\":[24],\"data_offsets\":[0,192]},\"x\":{"
                 "\"dtype\":\"F32\",\"shape\":[24,1048576],\"data_offsets\":[192,%llu]}}",
                 0, 0, 0, 0, 0, 0, 0, 0, 192 + (unsigned long long)x_bytes);
    header[0] = (char)(length - 8);
    const int file = open(in_folder("x.safetensors"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, header, (size_t)length), length);
    assert_int_equal(ftruncate(file, length + 192 + (off_t)x_bytes), 0);
    for (int64_t i = 0; i < SAMPLES; i++) {
        const int64_t class = 100 + i;
        number = (float)i + 0.25f;
        assert_int_equal(pwrite(file, &class, 8, length + 8 * i), 8);
        assert_int_equal(pwrite(file, &number, 4, length + 192 + 4 * i * ELEMENTS), 4);
        assert_int_equal(pwrite(file, &number, 4, length + 192 + 4 * (i * ELEMENTS + ELEMENTS - 1)), 4);
    }
    assert_int_equal(close(file), 0);
    struct opened opened = open_tensors(&wants_classes);
    check_status(&opened, "large");
    assert_int_equal(opened.info.sample_count, SAMPLES);
    assert_int_equal(opened.info.cache_bytes, 192);
    float *inputs = malloc((size_t)6 * ELEMENTS * sizeof *inputs);
    int64_t classes[6];
    assert_non_null(inputs);
    read_batch(&opened, indices, 6, 0, inputs, classes, NULL);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(classes[i], 100 + indices[i]);
        assert_true(inputs[(size_t)i * ELEMENTS] == (float)indices[i] + 0.25f);
        assert_true(inputs[(size_t)i * ELEMENTS + 1] == 0.0f);
        assert_true(inputs[(size_t)(i + 1) * ELEMENTS - 1] == (float)indices[i] + 0.25f);
    }
    /* Cut meanwhile: an error that names the option. */
    const struct fuse_batch batch = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_batch, values),
                                     .indices = indices + 3,
                                     .count = 1,
                                     .inputs = inputs,
                                     .classes = classes};
    assert_int_equal(truncate(in_folder("x.safetensors"), 1000000), 0);
    assert_int_equal(opened.dataset->read(opened.instance, &batch, &opened.error), FUSERUN_ERROR_IO);
    assert_string_equal(opened.error.key, "file");
    assert_non_null(strstr(opened.error.text, "shorter"));
    free(inputs);
    close_dataset(&opened);
}

/* ---- random_images -------------------------------------------------------------------------------------------- */

static struct opened open_images(struct fuse_dataset_context context)
{
    static const char *const pairs[] = {"image_size=4", "channels=3", "classes=5", "length=70"};
    struct opened opened = open_dataset("random_images", &context, pairs, 4);
    check_status(&opened, "random_images");
    return opened;
}

enum { IMAGES = 64, PIXELS = 48 };

static void draw(struct fuse_dataset_context context, uint64_t ordinal, float *inputs, int64_t *classes)
{
    int64_t indices[IMAGES];
    for (int64_t i = 0; i < IMAGES; i++)
        indices[i] = i;
    struct opened opened = open_images(context);
    read_batch(&opened, indices, IMAGES, ordinal, inputs, classes, NULL);
    close_dataset(&opened);
}

static void test_random_images(void **state)
{
    (void)state;
    static float first[IMAGES * PIXELS], other[IMAGES * PIXELS];
    int64_t classes[IMAGES], other_classes[IMAGES], seen[5] = {0};
    struct fuse_dataset_context context = wants_classes;
    struct opened opened = open_images(context);
    assert_int_equal(opened.info.sample_count, 70);
    assert_int_equal(opened.info.class_count, 5);
    assert_int_equal(opened.info.target_kind, FUSERUN_TARGET_CLASS);
    assert_int_equal(opened.info.input_rank, 3);
    assert_int_equal(opened.info.input_shape[0], 3);
    assert_int_equal(opened.info.input_shape[1], 4);
    assert_int_equal(opened.info.input_shape[2], 4);
    assert_int_equal(opened.info.cache_bytes, 0);
    close_dataset(&opened);

    draw(context, 9, first, classes);
    double sum = 0, squares = 0;
    for (int i = 0; i < IMAGES * PIXELS; i++) {
        assert_true(first[i] >= 0 && first[i] < 1);
        sum += first[i];
        squares += (double)first[i] * first[i];
    }
    /* Mean 1/2 and mean square 1/3, each within five standard errors: sqrt(1/12/n) and sqrt(4/45/n). */
    const double n = IMAGES * PIXELS;
    assert_true((sum / n - 0.5) * (sum / n - 0.5) < 25 / 12.0 / n);
    assert_true((squares / n - 1 / 3.0) * (squares / n - 1 / 3.0) < 25 * 4 / 45.0 / n);
    for (int i = 0; i < IMAGES; i++) {
        assert_in_range(classes[i], 0, 4);
        seen[classes[i]]++;
    }
    for (int i = 0; i < 5; i++)
        assert_in_range(seen[i], 1, 30);

    draw(context, 9, other, other_classes); /* the same again */
    assert_memory_equal(other, first, sizeof first);
    assert_memory_equal(other_classes, classes, sizeof classes);
    draw(context, 10, other, other_classes); /* another batch */
    assert_memory_not_equal(other, first, PIXELS * sizeof *first);
    assert_memory_not_equal(other_classes, classes, sizeof classes);
    context.seed = 8;
    draw(context, 9, other, other_classes);
    assert_memory_not_equal(other, first, PIXELS * sizeof *first);
    context.seed = 7;
    context.for_evaluation = 1;
    draw(context, 9, other, other_classes);
    assert_memory_not_equal(other, first, PIXELS * sizeof *first);

    opened = open_images(wants_nothing);
    assert_int_equal(opened.info.target_kind, FUSERUN_TARGET_NONE);
    const int64_t index = 3;
    read_batch(&opened, &index, 1, 9, other, NULL, NULL);
    assert_memory_equal(other, first, PIXELS * sizeof *first); /* the images do not depend on the targets */
    close_dataset(&opened);
    check_failure(open_dataset("random_images", &wants_values, NULL, 0), "mse", FUSERUN_ERROR_UNSUPPORTED, "plugin",
                  "class numbers");
}

static void test_random_images_defaults(void **state)
{
    (void)state;
    struct opened opened = open_dataset("random_images", &wants_classes, NULL, 0);
    check_status(&opened, "random_images");
    assert_int_equal(opened.info.sample_count, 1000);
    assert_int_equal(opened.info.class_count, 1000);
    assert_int_equal(opened.info.input_shape[0], 3);
    assert_int_equal(opened.info.input_shape[1], 224);
    assert_int_equal(opened.info.input_shape[2], 224);
    close_dataset(&opened);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    static const struct CMUnitTest tests[] = {
        TEST(test_idx_reads),       TEST(test_idx_other_ranks),
        TEST(test_idx_rejects),     TEST(test_idx_gzip),
        TEST(test_idx_digits),      TEST(test_tensors_reads),
        TEST(test_tensors_rejects), TEST(test_tensors_large),
        TEST(test_random_images),   TEST(test_random_images_defaults),
    };
    if (argc != 3)
        return 2;
    plugin_folder = argv[1];
    source_folder = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
