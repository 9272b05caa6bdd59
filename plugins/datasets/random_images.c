/* random_images - the fake images of PyTorch's tutorial on the optimizer step in backward: uniform in [0, 1), new in
 * every batch, with labels uniform over the classes. All of it follows from run.seed and the batch's number in the run.
 */
#include <fuserun/dataset.h>

#include <stdlib.h>

/* Streams of the seed: what the data is for, inputs or labels, and the batch. */
#define STREAM ((uint64_t)0x3 << 60)
#define STREAM_EVALUATION ((uint64_t)1 << 59)
#define STREAM_LABELS ((uint64_t)1 << 58)
#define STREAM_BATCH (((uint64_t)1 << 58) - 1)

struct random_images {
    const struct fuse_host *host;
    uint64_t seed;
    uint64_t stream;
    int64_t image_size;
    int64_t channels;
    int64_t classes;
    int64_t length;
    uint32_t target_kind;
};

static int open_images(const struct fuse_host *host, const struct fuse_options *options,
                       const struct fuse_dataset_context *context, void **instance, struct fuse_error *error)
{
    if (context->target_wanted == FUSERUN_TARGET_VALUES)
        return host->fail(error, FUSERUN_ERROR_UNSUPPORTED, "plugin",
                          "random_images has class numbers for targets, and this loss compares with values; data with "
                          "values comes from 'tensors'");
    struct random_images *self = calloc(1, sizeof *self);
    if (self == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the dataset");
    self->host = host;
    self->seed = context->seed;
    self->stream = STREAM | (context->for_evaluation ? STREAM_EVALUATION : 0);
    self->image_size = host->option_integer(options, "image_size");
    self->channels = host->option_integer(options, "channels");
    self->classes = host->option_integer(options, "classes");
    self->length = host->option_integer(options, "length");
    self->target_kind = context->target_wanted;
    *instance = self;
    return FUSERUN_OK;
}

static void close_images(void *instance)
{
    free(instance);
}

static void describe(const void *instance, struct fuse_dataset_info *info)
{
    const struct random_images *self = instance;
    info->target_kind = self->target_kind;
    info->sample_count = self->length;
    info->class_count = self->target_kind == FUSERUN_TARGET_CLASS ? self->classes : 0;
    info->input_rank = 3;
    info->input_shape[0] = self->channels;
    info->input_shape[1] = self->image_size;
    info->input_shape[2] = self->image_size;
    info->target_rank = 0;
    info->cache_bytes = 0;
}

static int read_batch(void *instance, const struct fuse_batch *batch, struct fuse_error *error)
{
    const struct random_images *self = instance;
    const uint64_t stream = self->stream | (batch->ordinal & STREAM_BATCH);
    (void)error;
    self->host->random_uniform(self->seed, stream, 0, batch->inputs,
                               (size_t)(batch->count * self->channels * self->image_size * self->image_size));
    if (self->target_kind != FUSERUN_TARGET_CLASS)
        return FUSERUN_OK;
    /* 64 bits modulo at most 2^31: no class is likelier than another by more than 2^-33. */
    for (int64_t i = 0; i < batch->count; i++)
        batch->classes[i] = (int64_t)(self->host->random_bits(self->seed, stream | STREAM_LABELS, (uint64_t)i) %
                                      (uint64_t)self->classes);
    return FUSERUN_OK;
}

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "image_size", .type = FUSERUN_OPTION_INTEGER, .default_text = "224", .range = "[1, 16384]",
                   .unit = "pixels", .help = "height and width of an image"),
    FUSERUN_OPTION(.key = "channels", .type = FUSERUN_OPTION_INTEGER, .default_text = "3", .range = "[1, 1024]",
                   .help = "values a pixel"),
    FUSERUN_OPTION(.key = "classes", .type = FUSERUN_OPTION_INTEGER, .default_text = "1000", .range = "[1, 2147483647]",
                   .help = "labels are drawn from [0, classes)"),
    FUSERUN_OPTION(.key = "length", .type = FUSERUN_OPTION_INTEGER, .default_text = "1000",
                   .range = "[1, 1000000000000]", .unit = "samples", .help = "samples in an epoch"),
};

static const struct fuse_dataset dataset = {
    FUSERUN_STRUCT_SIZE(fuse_dataset, read), open_images, close_images, describe, NULL, read_batch,
};

static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_DATASET, .name = "random_images",
                      .summary = "fake images, uniform in [0, 1) and new in every batch", FUSERUN_OPTIONS(options),
                      .api = &dataset),
};

FUSERUN_PLUGIN("random_images", "1.0.0", "MIT", components)
