/* A dataset plugin on hostile files, by the way that the host goes: open, describe, load, read. Built once with each
 * plugin; FUZZ_IDX tells that it is idx, else it is tensors. */
#include "fuzz.h"

#include "config/options.h"
#include "plugin/registry.h"

#include <fuserun/dataset.h>

#include <stdlib.h>
#include <string.h>

#ifdef FUZZ_IDX
#include <zlib.h>
#endif

/* The plugin is linked in. */
const struct fuse_plugin *fuse_plugin_v1(const struct fuse_host *host);

enum { MOST_SAMPLES = 16, MOST_VALUES = 1 << 16 };

static void read_samples(const struct fuse_dataset *dataset, void *instance, const struct fuse_dataset_info *info)
{
    int64_t inputs = 1, targets = 1, indices[MOST_SAMPLES];
    const int64_t count = info->sample_count < MOST_SAMPLES ? info->sample_count : MOST_SAMPLES;
    struct fuse_error error = FUSE_ERROR_INIT;
    for (uint32_t i = 0; i < info->input_rank; i++)
        FUZZ_CHECK(!__builtin_mul_overflow(inputs, info->input_shape[i], &inputs) && inputs > 0);
    for (uint32_t i = 0; i < info->target_rank; i++)
        FUZZ_CHECK(!__builtin_mul_overflow(targets, info->target_shape[i], &targets) && targets > 0);
    if (inputs > MOST_VALUES || targets > MOST_VALUES)
        return;
    for (int64_t i = 0; i < count; i++) /* the first ones, and last the last */
        indices[i] = i + 1 < count ? i : info->sample_count - 1;
    float *values = malloc((size_t)(count * (inputs + targets)) * sizeof *values);
    FUZZ_CHECK(values != NULL);
    int64_t classes[MOST_SAMPLES];
    const struct fuse_batch batch = {
        .struct_size = sizeof batch,
        .indices = indices,
        .count = count,
        .inputs = values,
        .classes = info->target_kind == FUSERUN_TARGET_CLASS ? classes : NULL,
        .values = info->target_kind == FUSERUN_TARGET_VALUES ? values + count * inputs : NULL,
    };
    fuzz_check_error(dataset->read(instance, &batch, &error), &error);
    free(values);
}

static void use(const struct fuse_dataset *dataset, void *instance)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_dataset_info info = {.struct_size = sizeof info};
    dataset->describe(instance, &info);
    FUZZ_CHECK(info.sample_count > 0 && info.input_rank >= 1 && info.input_rank <= FUSERUN_MAX_DIMS &&
               info.target_rank <= FUSERUN_MAX_DIMS);
    unsigned char *cache = info.cache_bytes == 0 ? NULL : malloc((size_t)info.cache_bytes);
    FUZZ_CHECK(cache != NULL || info.cache_bytes == 0);
    const int status = dataset->load == NULL ? FUSERUN_OK : dataset->load(instance, cache, &error);
    fuzz_check_error(status, &error);
    if (status == FUSERUN_OK)
        read_samples(dataset, instance, &info);
    dataset->close(instance);
    free(cache);
}

/* The file as it is, or packed: a mutation of packed bytes hardly gets past the unpacker. */
static void put_file(int slot, bool is_packed, const uint8_t *bytes, size_t count)
{
#ifdef FUZZ_IDX
    if (is_packed) {
        z_stream stream = {0};
        const size_t room = count + 1024;
        uint8_t *packed = malloc(room);
        FUZZ_CHECK(packed != NULL && deflateInit2(&stream, 1, Z_DEFLATED, 16 + 9, 1, Z_DEFAULT_STRATEGY) == Z_OK);
        stream.next_in = (Bytef *)(uintptr_t)bytes;
        stream.avail_in = (uInt)count;
        stream.next_out = packed;
        stream.avail_out = (uInt)room;
        FUZZ_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
        (void)deflateEnd(&stream);
        (void)fuzz_file(slot, packed, stream.total_out);
        free(packed);
        return;
    }
#endif
    (void)is_packed;
    (void)fuzz_file(slot, bytes, count);
}

/* flags, and for idx the length of the first file in two bytes; then the files. */
static bool put_files(const uint8_t *bytes, size_t count)
{
#ifdef FUZZ_IDX
    if (count < 3)
        return false;
    const size_t length = (size_t)bytes[1] | (size_t)bytes[2] << 8, images = length < count - 3 ? length : count - 3;
    put_file(0, (bytes[0] & 4) != 0, bytes + 3, images);
    put_file(1, (bytes[0] & 8) != 0, bytes + 3 + images, count - 3 - images);
#else
    if (count < 1)
        return false;
    put_file(0, false, bytes + 1, count - 1);
#endif
    return true;
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
#ifdef FUZZ_IDX
    static const char *const pairs[] = {"images=" FUZZ_FILE_PATH "0", "labels=" FUZZ_FILE_PATH "1"};
#else
    static const char *const pairs[] = {"file=" FUZZ_FILE_PATH "0"};
#endif
    static struct fuse_options *options;
    const struct fuse_component *component = fuse_plugin_v1(fuse_host())->components;
    const struct fuse_dataset *dataset = component->api;
    struct fuse_error error = FUSE_ERROR_INIT;
    if (options == NULL)
        FUZZ_CHECK(fuse_options_from_pairs(component, pairs, sizeof pairs / sizeof pairs[0], &options, &error) ==
                   FUSERUN_OK);
    if (!put_files(bytes, count))
        return;
    const struct fuse_dataset_context context = {.struct_size = sizeof context,
                                                 .target_wanted = FUSERUN_TARGET_CLASS + bytes[0] % 3u};
    void *instance = NULL;
    const int status = dataset->open(fuse_host(), options, &context, &instance, &error);
    fuzz_check_error(status, &error);
    if (status == FUSERUN_OK)
        use(dataset, instance);
}
