/* chain (ChainedScheduler): all stages at once, each as a factor on the base value:
 *     base * product of (stage's value / base)
 * A chain of one is that one, exactly. PyTorch's lets each stage work on the value the one before left, which is the
 * same for those that only multiply; where a stage sets absolute values (cosine, onecycle), this product is the pure
 * reading. With a base of 0 there are no factors to speak of and the value is 0. */
#include "curve.h"

struct chain {
    const struct fuse_host *host;
    size_t count;
    struct fuse_schedule *stages[]; /* the host's */
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "stages", .type = FUSERUN_OPTION_STAGE,
                   .flags = FUSERUN_OPTION_REQUIRED | FUSERUN_OPTION_LIST,
                   .help = "NAMEs of [scheduler.NAME] sections, whose factors are multiplied"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    size_t count = 0;
    const char *const *const names = host->option_texts(values, "stages", &count);
    struct chain *const self = curve_new(host, sizeof *self + count * sizeof self->stages[0], error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->host = host;
    self->count = count;
    for (size_t i = 0; i < count; i++) {
        struct fuse_schedule *stage = NULL;
        const int status = host->schedule_create(context, names[i], context->length, &stage, error);
        if (status != FUSERUN_OK) {
            free(self);
            return status;
        }
        self->stages[i] = stage;
    }
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct chain *const self = instance;
    double product = self->host->schedule_value(self->stages[0], query);
    if (self->count > 1 && query->base == 0)
        return 0;
    for (size_t i = 1; i < self->count; i++)
        product = curve_scale(product, self->host->schedule_value(self->stages[i], query) / query->base);
    return product;
}

static int cycles_momentum(const void *instance)
{
    const struct chain *const self = instance;
    for (size_t i = 0; i < self->count; i++)
        if (self->host->schedule_cycles_momentum(self->stages[i]))
            return 1;
    return 0;
}

/* Momenta are absolute values, which do not multiply: the last stage that has one sets it, as in PyTorch. */
static double momentum(const void *instance, const struct fuse_schedule_query *query)
{
    const struct chain *const self = instance;
    for (size_t i = self->count; i > 0; i--)
        if (self->host->schedule_cycles_momentum(self->stages[i - 1]))
            return self->host->schedule_momentum(self->stages[i - 1], query);
    return query->base;
}

static void observe(void *instance, const struct fuse_schedule_observation *observation)
{
    const struct chain *const self = instance;
    for (size_t i = 0; i < self->count; i++)
        self->host->schedule_observe(self->stages[i], observation);
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, observe),
    .create = create,
    .destroy = free,
    .value = value,
    .cycles_momentum = cycles_momentum,
    .momentum = momentum,
    .observe = observe,
};
FUSERUN_SCHEDULER(chain, "1.0.0", "MIT", "the product of several schedules", options, scheduler)
