/* onecycle (OneCycleLR; Smith and Topin, "Super-convergence", 2017): from max_lr / div_factor up to max_lr, then down
 * to max_lr / div_factor / final_div_factor at the last of total_steps positions; the momentum goes the other way. With
 * three_phase the way down stops at max_lr / div_factor first, and the momentum holds in the third phase.
 *
 * The phases' ends are PyTorch's: pct_start * total_steps - 1 and, with three_phase, 2 pct_start * total_steps - 2,
 * which need not be whole numbers. PyTorch raises an error behind the last position; this holds its last value there.
 */
#include "curve.h"

struct phase {
    double end; /* last position, may lie between two */
    double lr_from, lr_to;
    double momentum_from, momentum_to;
};

struct onecycle {
    struct phase phases[3];
    int phase_count;
    int64_t total_steps;
    int is_linear;
    int cycle_momentum;
    int64_t length;
    uint32_t unit_is_epoch;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "max_lr", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_REQUIRED,
                   .range = "(0, inf)", .help = "the peak, an absolute value for all groups"),
    FUSERUN_OPTION(.key = "total_steps", .type = FUSERUN_OPTION_INTEGER, .range = "[1, inf)", .unit = "positions",
                   .help = "length of the cycle, whose last value holds behind it; unset: the length of the stage"),
    FUSERUN_OPTION(.key = "pct_start", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.3", .range = "[0, 1]",
                   .help = "the part of the cycle that rises"),
    FUSERUN_OPTION(.key = "anneal_strategy", .type = FUSERUN_OPTION_CHOICE, .default_text = "cos",
                   .choices = "cos|linear", .help = "the form of each phase"),
    FUSERUN_OPTION(.key = "cycle_momentum", .type = FUSERUN_OPTION_BOOL, .default_text = "yes",
                   .help = "also move the momentum (or beta1), from max_momentum to base_momentum and back"),
    FUSERUN_OPTION(.key = "base_momentum", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.85", .range = "[0, 1)",
                   .help = "the momentum at the peak"),
    FUSERUN_OPTION(.key = "max_momentum", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.95", .range = "[0, 1)",
                   .help = "the momentum at both ends; replaces the optimizer's own"),
    FUSERUN_OPTION(.key = "div_factor", .type = FUSERUN_OPTION_NUMBER, .default_text = "25", .range = "(0, inf)",
                   .help = "the first value is max_lr / div_factor"),
    FUSERUN_OPTION(.key = "final_div_factor", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e4", .range = "(0, inf)",
                   .help = "the last value is max_lr / div_factor / final_div_factor"),
    FUSERUN_OPTION(.key = "three_phase", .type = FUSERUN_OPTION_BOOL, .default_text = "no",
                   .help = "rise, fall as long, then fall to the last value"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    const double peak = host->option_number(values, "max_lr");
    const double first = curve_finite(peak / host->option_number(values, "div_factor"));
    const double last = curve_finite(first / host->option_number(values, "final_div_factor"));
    const double low = host->option_number(values, "base_momentum");
    const double high = host->option_number(values, "max_momentum");
    if (low > high)
        return host->fail(error, FUSERUN_ERROR_CONFIG, "base_momentum",
                          "base_momentum is the lower end of the cycle and may not exceed max_momentum");
    struct onecycle *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->total_steps = curve_integer_or_length(host, values, "total_steps", context);
    self->is_linear = host->option_text(values, "anneal_strategy")[0] == 'l';
    self->cycle_momentum = host->option_bool(values, "cycle_momentum");
    self->length = context->length;
    self->unit_is_epoch = context->unit_is_epoch;

    const double rise = host->option_number(values, "pct_start") * (double)self->total_steps;
    const double end = (double)(self->total_steps - 1);
    self->phases[self->phase_count++] = (struct phase){rise - 1, first, peak, high, low};
    if (host->option_bool(values, "three_phase")) {
        self->phases[self->phase_count++] = (struct phase){2 * rise - 2, peak, first, low, high};
        self->phases[self->phase_count++] = (struct phase){end, first, last, high, high};
    } else {
        self->phases[self->phase_count++] = (struct phase){end, peak, last, low, high};
    }
    *instance = self;
    return FUSERUN_OK;
}

/* The phase that holds `position` (not behind the last one) and how much of it is done, in [0, 1]. */
static const struct phase *find_phase(const struct onecycle *self, int64_t position, double *fraction)
{
    const double at = (double)(position < self->total_steps ? position : self->total_steps - 1);
    double start = 0;
    int i = 0;
    while (i < self->phase_count - 1 && at > self->phases[i].end)
        start = self->phases[i++].end;
    /* A first phase that ends where it starts (total_steps 2, pct_start 0.5) is done at once; PyTorch divides by 0. */
    const double span = self->phases[i].end - start;
    *fraction = span > 0 ? (at - start) / span : 1;
    return &self->phases[i];
}

static double anneal(const struct onecycle *self, double from, double to, double fraction)
{
    return self->is_linear ? (to - from) * fraction + from : curve_cosine(from, to, fraction);
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct onecycle *const self = instance;
    double fraction;
    const struct phase *const phase = find_phase(self, query->position, &fraction);
    return curve_finite(anneal(self, phase->lr_from, phase->lr_to, fraction));
}

static int cycles_momentum(const void *instance)
{
    const struct onecycle *const self = instance;
    return self->cycle_momentum;
}

static double momentum(const void *instance, const struct fuse_schedule_query *query)
{
    const struct onecycle *const self = instance;
    if (!self->cycle_momentum)
        return query->base;
    double fraction;
    const struct phase *const phase = find_phase(self, query->position, &fraction);
    const double exact = anneal(self, phase->momentum_from, phase->momentum_to, fraction);
    /* Rounding must not carry it over an end. */
    return fmin(fmax(exact, fmin(phase->momentum_from, phase->momentum_to)),
                fmax(phase->momentum_from, phase->momentum_to));
}

static void warn(const void *instance, char *text, size_t size)
{
    const struct onecycle *const self = instance;
    if (self->length > self->total_steps)
        (void)snprintf(text, size,
                       "the cycle ends after total_steps = %lld, and %lld %s run here: its last value holds",
                       (long long)self->total_steps, (long long)self->length, curve_unit(self->unit_is_epoch));
    else if (self->phases[0].end > (double)(self->length - 1))
        (void)snprintf(text, size, "only %lld %s of total_steps = %lld run here, so max_lr is never reached",
                       (long long)self->length, curve_unit(self->unit_is_epoch), (long long)self->total_steps);
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn),
    .create = create,
    .destroy = free,
    .value = value,
    .cycles_momentum = cycles_momentum,
    .momentum = momentum,
    .warn = warn,
};
FUSERUN_SCHEDULER(onecycle, "1.0.0", "MIT", "one rise and one fall, the momentum the other way", options, scheduler)
