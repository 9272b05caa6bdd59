/* polynomial (PolynomialLR): base * (1 - min(position, total_iters) / total_iters)^power. */
#include "curve.h"

struct polynomial {
    int64_t total_iters;
    double power;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "total_iters", .type = FUSERUN_OPTION_INTEGER, .range = "[1, inf)", .unit = "positions",
                   .help = "where the value reaches 0, to stay there; unset: the length of the stage"),
    FUSERUN_OPTION(.key = "power", .type = FUSERUN_OPTION_NUMBER, .default_text = "1", .range = "[0, inf)",
                   .help = "the exponent"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    struct polynomial *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->total_iters = curve_integer_or_length(host, values, "total_iters", context);
    self->power = host->option_number(values, "power");
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct polynomial *const self = instance;
    const int64_t left = query->position < self->total_iters ? self->total_iters - query->position : 0;
    return query->base * pow((double)left / (double)self->total_iters, self->power);
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
};
FUSERUN_SCHEDULER(polynomial, "1.0.0", "MIT", "falls to 0 as a power of what is left", options, scheduler)
