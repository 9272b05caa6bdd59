/* step (StepLR): base * gamma^floor(position / step_size). */
#include "curve.h"

struct step {
    int64_t step_size;
    double gamma;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "step_size", .type = FUSERUN_OPTION_INTEGER, .flags = FUSERUN_OPTION_REQUIRED,
                   .range = "[1, inf)", .unit = "positions", .help = "length of one step of the stair"),
    FUSERUN_OPTION(.key = "gamma", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.1", .range = "[0, inf)",
                   .help = "factor from one step to the next"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    (void)context;
    struct step *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->step_size = host->option_integer(values, "step_size");
    self->gamma = host->option_number(values, "gamma");
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct step *const self = instance;
    return curve_scale(query->base, pow(self->gamma, (double)(query->position / self->step_size)));
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
};
FUSERUN_SCHEDULER(step, "1.0.0", "MIT", "multiplies by gamma every step_size positions", options, scheduler)
