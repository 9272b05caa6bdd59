/* The smallest dataset: points of the square [-1, 1)^2, told whether they lie inside a circle around its middle
 *
 *     x uniform in [-1, 1)^2,    y = 1 if x1^2 + x2^2 < radius^2, else 0
 *
 *     cc -shared -fPIC $(pkg-config --cflags fuserun) my_dataset.c -o plugins/my_dataset.so */
#include <fuserun/dataset.h>

#include <stdlib.h>

struct circle {
    const struct fuse_host *host;
    uint64_t seed, stream;
    int64_t samples;
    double radius;
};

/* What the config may say in [data] and [eval], beside fuserun's own keys. */
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "samples", .type = FUSERUN_OPTION_INTEGER, .default_text = "1000", .range = "[1, 1000000000]",
                   .help = "points in an epoch"),
    FUSERUN_OPTION(.key = "radius", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.8", .range = "(0, 1]",
                   .help = "of the circle; at 0.8 it holds half of the square"),
};

/* Everything that can be found wrong without reading a sample is found here: `fuserun check` opens datasets too. */
static int open_circle(const struct fuse_host *host, const struct fuse_options *values,
                       const struct fuse_dataset_context *context, void **instance, struct fuse_error *error)
{
    if (context->target_wanted == FUSERUN_TARGET_VALUES)
        return host->fail(error, FUSERUN_ERROR_UNSUPPORTED, "plugin",
                          "its targets are class numbers, and this loss compares with values");
    struct circle *self = malloc(sizeof *self);
    if (self == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory");
    self->host = host;
    self->seed = context->seed;
    self->stream = context->for_evaluation; /* other points than those of the training */
    self->samples = host->option_integer(values, "samples");
    self->radius = host->option_number(values, "radius");
    *instance = self;
    return FUSERUN_OK;
}

static void describe(const void *instance, struct fuse_dataset_info *info)
{
    const struct circle *self = instance;
    info->sample_count = self->samples;
    info->target_kind = FUSERUN_TARGET_CLASS;
    info->class_count = 2;
    info->input_rank = 1;
    info->input_shape[0] = 2;
}

/* fuserun says which samples a batch has and where they go; a sample is the same whenever it is asked for. */
static int read_batch(void *instance, const struct fuse_batch *batch, struct fuse_error *error)
{
    const struct circle *self = instance;
    (void)error;
    for (int64_t i = 0; i < batch->count; i++) {
        float *point = batch->inputs + 2 * i; /* (2) of (count, 2) */
        self->host->random_uniform(self->seed, self->stream, 2 * (uint64_t)batch->indices[i], point, 2);
        point[0] = 2.0f * point[0] - 1.0f;
        point[1] = 2.0f * point[1] - 1.0f;
        const double square = (double)point[0] * point[0] + (double)point[1] * point[1];
        if (batch->classes != NULL)
            batch->classes[i] = square < self->radius * self->radius;
    }
    return FUSERUN_OK;
}

static const struct fuse_dataset dataset = {
    FUSERUN_STRUCT_SIZE(fuse_dataset, read), open_circle, free, describe, NULL, read_batch};
static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_DATASET, .name = "my_dataset",
                      .summary = "points of a square, inside or outside a circle", FUSERUN_OPTIONS(options),
                      .api = &dataset)};
FUSERUN_PLUGIN("my_dataset", "1.0.0", "MIT", components)
