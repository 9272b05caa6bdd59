/* The smallest scheduler: the driven option halves every half_life updates (or epochs), smoothly
 *
 *     value(t) = base 2^(-t / half_life)
 *
 *     cc -shared -fPIC $(pkg-config --cflags fuserun) my_scheduler.c -o plugins/my_scheduler.so */
#include <fuserun/scheduler.h>

#include <math.h>
#include <stdlib.h>

struct halving {
    double half_life;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "half_life", .type = FUSERUN_OPTION_NUMBER, .default_text = "100", .range = "(0, inf)",
                   .unit = "updates or epochs", .help = "after so many the value is half of what it was"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    struct halving *self = malloc(sizeof *self);
    (void)context;
    if (self == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory");
    self->half_life = host->option_number(values, "half_life");
    *instance = self;
    return FUSERUN_OK;
}

/* A pure function of the position: nothing is counted, so a resume or a preview needs no care. */
static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct halving *self = instance;
    return query->base * exp2(-(double)query->position / self->half_life);
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn), .create = create, .destroy = free, .value = value};

FUSERUN_SCHEDULER(my_scheduler, "1.0.0", "MIT", "halves every half_life updates", options, scheduler)
