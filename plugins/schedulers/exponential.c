/* exponential (ExponentialLR): base * gamma^position. */
#include "curve.h"

struct exponential {
    double gamma;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "gamma", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_REQUIRED, .range = "[0, inf)",
                   .help = "factor from one position to the next"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    (void)context;
    struct exponential *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->gamma = host->option_number(values, "gamma");
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct exponential *const self = instance;
    return curve_scale(query->base, pow(self->gamma, (double)query->position));
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
};
FUSERUN_SCHEDULER(exponential, "1.0.0", "MIT", "multiplies by gamma at every position", options, scheduler)
