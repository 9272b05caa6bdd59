/* plugins/schedulers/ - the schedules that come with fuserun, one shared object each. They own the curves and the
 * checks of their options; they see the public headers only and keep nothing but their options. Values are PyTorch's
 * (torch.optim.lr_scheduler 2.13), from its closed forms: PyTorch multiplies the current value step by step, which a
 * pure function of the position cannot do and need not.
 *
 * This header holds what several of them share. */
#ifndef FUSE_SCHEDULERS_CURVE_H
#define FUSE_SCHEDULERS_CURVE_H

#include <fuserun/scheduler.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CURVE_PI 3.14159265358979323846

/* A growing factor (gamma > 1) overflows at some position; the value then stays at the largest double, because a
 * schedule must be finite everywhere and a run that long has long since been stopped by its own loss. */
static inline double curve_finite(double value)
{
    return fmax(-DBL_MAX, fmin(DBL_MAX, value));
}

/* base * factor, finite also where factor is infinite. */
static inline double curve_scale(double base, double factor)
{
    return base == 0 ? 0 : curve_finite(base * factor);
}

/* From `from` to `to` along half a cosine: to + (from - to) (1 + cos(pi fraction)) / 2. */
static inline double curve_cosine(double from, double to, double fraction)
{
    return to + (from - to) * (1 + cos(CURVE_PI * fraction)) / 2;
}

/* Memory for an instance, zeroed; NULL with *error filled. */
static inline void *curve_new(const struct fuse_host *host, size_t bytes, struct fuse_error *error)
{
    void *const instance = calloc(1, bytes);
    if (instance == NULL)
        (void)host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a schedule (%zu bytes)", bytes);
    return instance;
}

/* The value of an integer option, or the length of the stage where the config leaves it open. */
static inline int64_t curve_integer_or_length(const struct fuse_host *host, const struct fuse_options *options,
                                              const char *key, const struct fuse_schedule_context *context)
{
    return host->option_is_set(options, key) ? host->option_integer(options, key) : context->length;
}

static inline const char *curve_unit(uint32_t unit_is_epoch)
{
    return unit_is_epoch ? "epochs" : "updates";
}

#endif
