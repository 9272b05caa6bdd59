/* cyclic (CyclicLR; Smith, "Cyclical learning rates", WACV 2017): a triangle between base_lr and max_lr, over and over:
 *     base_lr + (max_lr - base_lr) height(position) scale
 * with height rising from 0 to 1 in step_size_up positions and falling back in step_size_down, and scale 1
 * (triangular), 2^-(completed cycles) (triangular2) or gamma^position (exp_range). The momentum mirrors it from
 * max_momentum down. */
#include "curve.h"

#include <string.h>

enum mode { TRIANGULAR, TRIANGULAR2, EXP_RANGE };

struct cyclic {
    double base_lr, max_lr;
    double base_momentum, max_momentum;
    int64_t up, down;
    enum mode mode;
    double gamma;
    int cycle_momentum;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "base_lr", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_REQUIRED,
                   .range = "[0, inf)", .help = "the lower end, an absolute value for all groups"),
    FUSERUN_OPTION(.key = "max_lr", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_REQUIRED,
                   .range = "(0, inf)", .help = "the upper end, an absolute value for all groups"),
    FUSERUN_OPTION(.key = "step_size_up", .type = FUSERUN_OPTION_INTEGER, .default_text = "2000", .range = "[1, inf)",
                   .unit = "positions", .help = "length of the rise"),
    FUSERUN_OPTION(.key = "step_size_down", .type = FUSERUN_OPTION_INTEGER, .range = "[1, inf)", .unit = "positions",
                   .help = "length of the fall; unset: that of the rise"),
    FUSERUN_OPTION(.key = "mode", .type = FUSERUN_OPTION_CHOICE, .default_text = "triangular",
                   .choices = "triangular|triangular2|exp_range", .help = "how the height changes with time"),
    FUSERUN_OPTION(.key = "gamma", .type = FUSERUN_OPTION_NUMBER, .default_text = "1", .range = "[0, inf)",
                   .help = "exp_range: the height at position k is multiplied by gamma^k"),
    FUSERUN_OPTION(.key = "cycle_momentum", .type = FUSERUN_OPTION_BOOL, .default_text = "yes",
                   .help = "also move the momentum (or beta1), from max_momentum to base_momentum and back"),
    FUSERUN_OPTION(.key = "base_momentum", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.8", .range = "[0, 1)",
                   .help = "the momentum where the value is max_lr"),
    FUSERUN_OPTION(.key = "max_momentum", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.9", .range = "[0, 1)",
                   .help = "the momentum where the value is base_lr; replaces the optimizer's own"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    (void)context;
    const double base_lr = host->option_number(values, "base_lr");
    const double max_lr = host->option_number(values, "max_lr");
    if (base_lr > max_lr)
        return host->fail(error, FUSERUN_ERROR_CONFIG, "base_lr",
                          "base_lr is the lower end of the cycle and may not exceed max_lr");
    const double base_momentum = host->option_number(values, "base_momentum");
    const double max_momentum = host->option_number(values, "max_momentum");
    if (base_momentum > max_momentum)
        return host->fail(error, FUSERUN_ERROR_CONFIG, "base_momentum",
                          "base_momentum is the lower end of the cycle and may not exceed max_momentum");
    struct cyclic *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->base_lr = base_lr;
    self->max_lr = max_lr;
    self->base_momentum = base_momentum;
    self->max_momentum = max_momentum;
    self->up = host->option_integer(values, "step_size_up");
    self->down =
        host->option_is_set(values, "step_size_down") ? host->option_integer(values, "step_size_down") : self->up;
    const char *const mode = host->option_text(values, "mode");
    self->mode = mode[0] == 'e' ? EXP_RANGE : strcmp(mode, "triangular2") == 0 ? TRIANGULAR2 : TRIANGULAR;
    self->gamma = host->option_number(values, "gamma");
    self->cycle_momentum = host->option_bool(values, "cycle_momentum");
    *instance = self;
    return FUSERUN_OK;
}

/* height * scale, 0 at base_lr and 1 at max_lr. */
static double level(const struct cyclic *self, int64_t position)
{
    const int64_t total = self->up <= INT64_MAX - self->down ? self->up + self->down : INT64_MAX;
    const int64_t within = position % total;
    const double height =
        within <= self->up ? (double)within / (double)self->up : (double)(total - within) / (double)self->down;
    switch (self->mode) {
    case TRIANGULAR2:
        return height * exp2(-(double)(position / total));
    case EXP_RANGE:
        return curve_scale(height, pow(self->gamma, (double)position));
    case TRIANGULAR:
        break;
    }
    return height;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct cyclic *const self = instance;
    return curve_finite(self->base_lr + curve_scale(self->max_lr - self->base_lr, level(self, query->position)));
}

static int cycles_momentum(const void *instance)
{
    const struct cyclic *const self = instance;
    return self->cycle_momentum;
}

static double momentum(const void *instance, const struct fuse_schedule_query *query)
{
    const struct cyclic *const self = instance;
    if (!self->cycle_momentum)
        return query->base;
    /* A gamma above 1 would carry it below base_momentum and on below 0; it stays in its bounds. */
    return self->max_momentum - (self->max_momentum - self->base_momentum) * fmin(1, level(self, query->position));
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
    .cycles_momentum = cycles_momentum,
    .momentum = momentum,
};
FUSERUN_SCHEDULER_THAT(FUSERUN_SCHEDULER_RISES, cyclic, "1.0.0", "MIT", "a triangle between two values, over and over",
                       options, scheduler)
