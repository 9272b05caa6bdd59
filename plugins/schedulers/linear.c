/* linear (LinearLR): from base * start_factor to base * end_factor in total_iters positions, then constant.
 *     base (start_factor + (end_factor - start_factor) min(position, total_iters) / total_iters)
 * PyTorch refuses start_factor = 0, only because its recursive form divides by it; here it is a warning. */
#include "curve.h"

struct linear {
    double start_factor;
    double end_factor;
    int64_t total_iters;
    int64_t length;
    uint32_t unit_is_epoch;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "start_factor", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.3333333333333333",
                   .range = "[0, 1]", .help = "factor at position 0; 0 makes the first value 0 (with a warning)"),
    FUSERUN_OPTION(.key = "end_factor", .type = FUSERUN_OPTION_NUMBER, .default_text = "1", .range = "[0, 1]",
                   .help = "factor from position total_iters on"),
    FUSERUN_OPTION(.key = "total_iters", .type = FUSERUN_OPTION_INTEGER, .default_text = "5", .range = "[1, inf)",
                   .unit = "positions",
                   .help = "how long the way takes; 0, with which PyTorch never leaves "
                           "start_factor, is refused"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    struct linear *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->start_factor = host->option_number(values, "start_factor");
    self->end_factor = host->option_number(values, "end_factor");
    self->total_iters = host->option_integer(values, "total_iters");
    self->length = context->length;
    self->unit_is_epoch = context->unit_is_epoch;
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct linear *const self = instance;
    if (query->position >= self->total_iters)
        return query->base * self->end_factor;
    const double fraction = (double)query->position / (double)self->total_iters;
    return query->base * (self->start_factor + (self->end_factor - self->start_factor) * fraction);
}

static void warn(const void *instance, char *text, size_t size)
{
    const struct linear *const self = instance;
    if (self->start_factor == 0)
        (void)snprintf(text, size, "start_factor = 0: the first value is 0");
    else if (self->total_iters > self->length)
        (void)snprintf(text, size, "total_iters = %lld: only %lld %s run here, so end_factor is never reached",
                       (long long)self->total_iters, (long long)self->length, curve_unit(self->unit_is_epoch));
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
    .warn = warn,
};
FUSERUN_SCHEDULER(linear, "1.0.0", "MIT", "a straight line between two fractions of the base value", options, scheduler)
