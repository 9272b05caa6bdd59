/* inverse_sqrt (Vaswani et al., "Attention is all you need", 2017, scaled so that its peak is the base value, as
 * fairseq's inverse_square_root_schedule and transformers' get_inverse_sqrt_schedule do): with n = max(warmup, 1)
 *     position < warmup     base (position + 1) / warmup
 *     else                  base sqrt(n / (position + 1))
 * Both count the update that is about to run as 1, so that the first value is base / warmup and not the 0 of those two,
 * and the curve falls as theirs from the peak on. Without a warm-up it falls from the base value at once; fairseq
 * divides by 0 there. */
#include "curve.h"

struct inverse_sqrt {
    int64_t warmup;
    int64_t length;
    uint32_t unit_is_epoch;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "warmup", .type = FUSERUN_OPTION_INTEGER, .flags = FUSERUN_OPTION_REQUIRED,
                   .range = "[0, inf)", .unit = "positions",
                   .help = "length of the rise, which begins at base / warmup; the fall takes its scale from it"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    struct inverse_sqrt *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->warmup = host->option_integer(values, "warmup");
    self->length = context->length;
    self->unit_is_epoch = context->unit_is_epoch;
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct inverse_sqrt *const self = instance;
    const double count = (double)query->position + 1;
    if (query->position < self->warmup)
        return query->base * (count / (double)self->warmup);
    return query->base * sqrt((self->warmup > 0 ? (double)self->warmup : 1) / count);
}

static void warn(const void *instance, char *text, size_t size)
{
    const struct inverse_sqrt *const self = instance;
    if (self->warmup > self->length)
        (void)snprintf(text, size,
                       "warmup = %lld is longer than the %lld %s that run here: the base value is never reached",
                       (long long)self->warmup, (long long)self->length, curve_unit(self->unit_is_epoch));
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
    .warn = warn,
};
FUSERUN_SCHEDULER(inverse_sqrt, "1.0.0", "MIT", "a rise, then a fall with the root of the update count", options,
                  scheduler)
