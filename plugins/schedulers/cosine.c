/* cosine (CosineAnnealingLR; Loshchilov and Hutter, "SGDR", ICLR 2017, without the restarts):
 *     eta_min + (base - eta_min) (1 + cos(pi position / t_max)) / 2
 * Past t_max it rises again, as PyTorch's does. */
#include "curve.h"

struct cosine {
    int64_t t_max;
    double eta_min;
    int64_t length;
    uint32_t unit_is_epoch;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "t_max", .type = FUSERUN_OPTION_INTEGER, .range = "[1, inf)", .unit = "positions",
                   .help = "where the minimum lies; the value rises again behind it; unset: the length of the stage"),
    FUSERUN_OPTION(.key = "eta_min", .type = FUSERUN_OPTION_NUMBER, .default_text = "0", .range = "[0, inf)",
                   .help = "the minimum, an absolute value for all groups"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    struct cosine *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->t_max = curve_integer_or_length(host, values, "t_max", context);
    self->eta_min = host->option_number(values, "eta_min");
    self->length = context->length;
    self->unit_is_epoch = context->unit_is_epoch;
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct cosine *const self = instance;
    /* The remainder of a whole period (2 t_max, or all positions where that is too long) keeps the angle exact. */
    const int64_t period = self->t_max <= INT64_MAX / 2 ? 2 * self->t_max : INT64_MAX;
    return curve_cosine(query->base, self->eta_min, (double)(query->position % period) / (double)self->t_max);
}

static void warn(const void *instance, char *text, size_t size)
{
    const struct cosine *const self = instance;
    if (self->length - 1 > self->t_max)
        (void)snprintf(text, size, "the value rises again after t_max = %lld, and %lld %s run here",
                       (long long)self->t_max, (long long)self->length, curve_unit(self->unit_is_epoch));
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
    .warn = warn,
};
FUSERUN_SCHEDULER(cosine, "1.0.0", "MIT", "half a cosine from the base value to eta_min", options, scheduler)
