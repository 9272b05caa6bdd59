/* multistep (MultiStepLR): base * gamma^(number of milestones <= position). Milestones may come in any order and more
 * than once, as in PyTorch, which counts them. */
#include "curve.h"

#include <string.h>

struct multistep {
    double gamma;
    size_t count;
    int64_t milestones[];
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "milestones", .type = FUSERUN_OPTION_INTEGER,
                   .flags = FUSERUN_OPTION_REQUIRED | FUSERUN_OPTION_LIST, .range = "[0, inf)", .unit = "positions",
                   .help = "where to multiply by gamma; one that stands here twice counts twice"),
    FUSERUN_OPTION(.key = "gamma", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.1", .range = "[0, inf)",
                   .help = "the factor"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    (void)context;
    size_t count = 0;
    const int64_t *const milestones = host->option_integers(values, "milestones", &count);
    struct multistep *const self = curve_new(host, sizeof *self + count * sizeof self->milestones[0], error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->gamma = host->option_number(values, "gamma");
    self->count = count;
    if (count > 0)
        memcpy(self->milestones, milestones, count * sizeof self->milestones[0]);
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct multistep *const self = instance;
    size_t passed = 0;
    for (size_t i = 0; i < self->count; i++)
        passed += self->milestones[i] <= query->position;
    return curve_scale(query->base, pow(self->gamma, (double)passed));
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
};
FUSERUN_SCHEDULER(multistep, "1.0.0", "MIT", "multiplies by gamma at each milestone", options, scheduler)
