/* cosine_restarts (CosineAnnealingWarmRestarts; Loshchilov and Hutter, "SGDR", ICLR 2017): cosines from base to eta_min
 * one behind the other, the first t_0 long, each t_mult times as long as the one before. */
#include "curve.h"

struct restarts {
    int64_t t_0;
    int64_t t_mult;
    double eta_min;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "t_0", .type = FUSERUN_OPTION_INTEGER, .flags = FUSERUN_OPTION_REQUIRED, .range = "[1, inf)",
                   .unit = "positions", .help = "length of the first cosine"),
    FUSERUN_OPTION(.key = "t_mult", .type = FUSERUN_OPTION_INTEGER, .default_text = "1", .range = "[1, inf)",
                   .help = "each cosine is this many times as long as the one before"),
    FUSERUN_OPTION(.key = "eta_min", .type = FUSERUN_OPTION_NUMBER, .default_text = "0", .range = "[0, inf)",
                   .help = "the minimum, an absolute value for all groups"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    (void)context;
    struct restarts *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->t_0 = host->option_integer(values, "t_0");
    self->t_mult = host->option_integer(values, "t_mult");
    self->eta_min = host->option_number(values, "eta_min");
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct restarts *const self = instance;
    if (self->t_mult == 1)
        return curve_cosine(query->base, self->eta_min, (double)(query->position % self->t_0) / (double)self->t_0);
    double since = (double)query->position;
    double length = (double)self->t_0; /* doubles: the lengths grow geometrically, past any integer */
    while (since >= length) {
        since -= length;
        length *= (double)self->t_mult;
    }
    return curve_cosine(query->base, self->eta_min, since / length);
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
};
FUSERUN_SCHEDULER_THAT(FUSERUN_SCHEDULER_RISES, cosine_restarts, "1.0.0", "MIT", "cosines with warm restarts", options,
                       scheduler)
