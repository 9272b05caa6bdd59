/* constant (ConstantLR): base * factor for total_iters positions, then base. */
#include "curve.h"

struct constant {
    double factor;
    int64_t total_iters;
    int64_t length;
    uint32_t unit_is_epoch;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "factor", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.3333333333333333",
                   .range = "[0, 1]", .help = "what the base value is multiplied by at first"),
    FUSERUN_OPTION(.key = "total_iters", .type = FUSERUN_OPTION_INTEGER, .default_text = "5", .range = "[1, inf)",
                   .unit = "positions", .help = "how long, before the base value itself holds"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    struct constant *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->factor = host->option_number(values, "factor");
    self->total_iters = host->option_integer(values, "total_iters");
    self->length = context->length;
    self->unit_is_epoch = context->unit_is_epoch;
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct constant *const self = instance;
    return query->position < self->total_iters ? query->base * self->factor : query->base;
}

static void warn(const void *instance, char *text, size_t size)
{
    const struct constant *const self = instance;
    if (self->factor == 0)
        (void)snprintf(text, size, "factor = 0: the first %lld values are 0", (long long)self->total_iters);
    else if (self->total_iters > self->length && self->factor != 1)
        (void)snprintf(text, size, "total_iters = %lld: only %lld %s run here, so the base value is never reached",
                       (long long)self->total_iters, (long long)self->length, curve_unit(self->unit_is_epoch));
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
    .warn = warn,
};
FUSERUN_SCHEDULER(constant, "1.0.0", "MIT", "a fraction of the base value for a while, then the base value", options,
                  scheduler)
