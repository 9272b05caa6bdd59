/* warmup_stable_decay (Hu et al., "MiniCPM", 2024; Haegele et al., "Scaling laws and compute-optimal training beyond
 * fixed training durations", 2024): a straight rise over `warmup` positions, the base value, and over the last `decay`
 * positions of the stage a fall to min_factor. With s = length - decay and p = (position - s) / decay:
 *     position < warmup     base (position + 1) / warmup
 *     position < s          base
 *     else                  base (min_factor + (1 - min_factor) shape(p)),  and base min_factor past the end
 *     shape                 linear: 1 - p;  sqrt: 1 - sqrt(p);  cosine: (1 + cos(pi p)) / 2
 * The first value is base / warmup, not 0. The end of the fall lies one position behind the last, as the minimum of a
 * cosine does, so that the last update does something even where min_factor is 0. Both are as in torchtitan
 * (lr_scheduler.py, linear_warmup_stable_decay); the fall is also that of transformers (get_wsd_schedule).
 * A fall that does not fit behind the warm-up is cut to what does, with a warning. */
#include "curve.h"

enum shape { LINEAR, SQRT, COSINE };

struct trapezoid {
    int64_t warmup;
    int64_t decay;       /* what is left of it behind the warm-up */
    int64_t asked_decay; /* what the config says */
    int64_t length;
    enum shape shape;
    double min_factor;
    uint32_t unit_is_epoch;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "warmup", .type = FUSERUN_OPTION_INTEGER, .default_text = "0", .range = "[0, inf)",
                   .unit = "positions", .help = "length of the rise, which begins at base / warmup"),
    FUSERUN_OPTION(.key = "decay", .type = FUSERUN_OPTION_INTEGER, .range = "[0, inf)", .unit = "positions",
                   .help = "length of the fall, at the end of the stage; unset: all behind the warm-up"),
    FUSERUN_OPTION(.key = "shape", .type = FUSERUN_OPTION_CHOICE, .default_text = "linear",
                   .choices = "linear|sqrt|cosine", .help = "the form of the fall; sqrt is 1 - sqrt(progress)"),
    FUSERUN_OPTION(.key = "min_factor", .type = FUSERUN_OPTION_NUMBER, .default_text = "0", .range = "[0, 1]",
                   .help = "the part of the base value that the fall ends at"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    struct trapezoid *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    const char *const shape = host->option_text(values, "shape");
    self->length = context->length;
    self->unit_is_epoch = context->unit_is_epoch;
    self->warmup = host->option_integer(values, "warmup");
    self->shape = shape[0] == 's' ? SQRT : shape[0] == 'c' ? COSINE : LINEAR;
    self->min_factor = host->option_number(values, "min_factor");
    const int64_t room = self->warmup < self->length ? self->length - self->warmup : 0;
    self->asked_decay = host->option_is_set(values, "decay") ? host->option_integer(values, "decay") : room;
    self->decay = self->asked_decay < room ? self->asked_decay : room;
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct trapezoid *const self = instance;
    if (query->position < self->warmup)
        return query->base * (((double)query->position + 1) / (double)self->warmup);
    const int64_t start = self->length - self->decay;
    if (self->decay == 0 || query->position < start)
        return query->base;
    const double progress =
        query->position < self->length ? (double)(query->position - start) / (double)self->decay : 1;
    double height = 1 - progress;
    if (self->shape == SQRT)
        height = 1 - sqrt(progress);
    else if (self->shape == COSINE)
        height = curve_cosine(1, 0, progress);
    return query->base * (self->min_factor + (1 - self->min_factor) * height);
}

static void warn(const void *instance, char *text, size_t size)
{
    const struct trapezoid *const self = instance;
    const char *const unit = curve_unit(self->unit_is_epoch);
    if (self->warmup > self->length)
        (void)snprintf(text, size,
                       "warmup = %lld is longer than the %lld %s that run here: the base value is never reached",
                       (long long)self->warmup, (long long)self->length, unit);
    else if (self->decay < self->asked_decay)
        (void)snprintf(text, size,
                       "decay = %lld does not fit behind warmup = %lld in the %lld %s that run here: cut to %lld",
                       (long long)self->asked_decay, (long long)self->warmup, (long long)self->length, unit,
                       (long long)self->decay);
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
    .warn = warn,
};
FUSERUN_SCHEDULER(warmup_stable_decay, "1.0.0", "MIT", "a rise, the base value, and a fall at the end", options,
                  scheduler)
