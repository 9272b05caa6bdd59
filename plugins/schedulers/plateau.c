/* plateau (ReduceLROnPlateau, torch.optim.lr_scheduler 2.13): when `patience` evaluations have passed without the
 * metric getting better, the next one that is no better either reduces the value: value <- max(value factor, min_lr),
 * if that is smaller by more than eps Better than the best so far means, with mode = min: metric < best (1 -
 * threshold), or < best - threshold with threshold_mode = abs; with max: > best (1 + threshold), > best + threshold.
 * For `cooldown` evaluations after a reduction bad ones are not counted.
 *
 * The one schedule with a state: the best metric, the bad evaluations since, those of the cooldown left, and how often
 * the value was reduced. The value follows from the last one, for any base: each group has its own base, and so its own
 * moment where min_lr or eps ends the reductions.
 *
 * A metric that is no number is passed over, as if that evaluation had not been: it is neither good nor bad. (PyTorch
 * counts it as bad.) As a stage, it sees the evaluations of its own time only. */
#include "curve.h"

#include <string.h>

struct plateau {
    int wants_greater;
    int is_relative;
    double factor;
    double threshold;
    double min_lr;
    double eps;
    int64_t patience;
    int64_t cooldown;
    const char *metric;

    double best;
    int64_t bad;
    int64_t cooling;
    int64_t reductions;
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "metric", .type = FUSERUN_OPTION_CHOICE, .default_text = "eval_loss",
                   .choices = "eval_loss|eval_accuracy", .help = "what it follows; needs an [eval] section"),
    FUSERUN_OPTION(.key = "mode", .type = FUSERUN_OPTION_CHOICE, .default_text = "min", .choices = "min|max",
                   .help = "which way the metric gets better"),
    FUSERUN_OPTION(.key = "factor", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.1", .range = "[0, 1)",
                   .help = "what a reduction multiplies the value by"),
    FUSERUN_OPTION(.key = "patience", .type = FUSERUN_OPTION_INTEGER, .default_text = "10", .range = "[0, inf)",
                   .unit = "evaluations", .help = "how many may pass without the metric getting better"),
    FUSERUN_OPTION(.key = "threshold", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-4", .range = "[0, inf)",
                   .help = "by how much it must be better than the best so far to count"),
    FUSERUN_OPTION(.key = "threshold_mode", .type = FUSERUN_OPTION_CHOICE, .default_text = "rel", .choices = "rel|abs",
                   .help = "rel: the threshold is a part of the best so far"),
    FUSERUN_OPTION(.key = "cooldown", .type = FUSERUN_OPTION_INTEGER, .default_text = "0", .range = "[0, inf)",
                   .unit = "evaluations", .help = "how many after a reduction are not counted as bad"),
    FUSERUN_OPTION(.key = "min_lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "0", .range = "[0, inf)",
                   .help = "where reductions end, an absolute value for all groups"),
    FUSERUN_OPTION(.key = "eps", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-8", .range = "[0, inf)",
                   .help = "a reduction by no more than this does not happen"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    (void)context;
    struct plateau *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->wants_greater = strcmp(host->option_text(values, "mode"), "max") == 0;
    self->is_relative = strcmp(host->option_text(values, "threshold_mode"), "rel") == 0;
    self->factor = host->option_number(values, "factor");
    self->threshold = host->option_number(values, "threshold");
    self->min_lr = host->option_number(values, "min_lr");
    self->eps = host->option_number(values, "eps");
    self->patience = host->option_integer(values, "patience");
    self->cooldown = host->option_integer(values, "cooldown");
    self->metric = strcmp(host->option_text(values, "metric"), "eval_accuracy") == 0 ? "eval_accuracy" : "eval_loss";
    self->best = self->wants_greater ? -INFINITY : INFINITY;
    *instance = self;
    return FUSERUN_OK;
}

/* One reduction after another, as PyTorch computes them. */
static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct plateau *const self = instance;
    double value = query->base;
    for (int64_t i = 0; i < self->reductions; i++) {
        const double reduced = fmax(value * self->factor, self->min_lr);
        if (!(value - reduced > self->eps))
            break; /* and so the next one would not happen either */
        value = reduced;
    }
    return value;
}

static int is_better(const struct plateau *self, double metric)
{
    if (self->wants_greater)
        return metric > (self->is_relative ? self->best * (1 + self->threshold) : self->best + self->threshold);
    return metric < (self->is_relative ? self->best * (1 - self->threshold) : self->best - self->threshold);
}

static void observe(void *instance, const struct fuse_schedule_observation *observation)
{
    struct plateau *const self = instance;
    if (strcmp(observation->metric, self->metric) != 0 || isnan(observation->value))
        return;
    if (is_better(self, observation->value)) {
        self->best = observation->value;
        self->bad = 0;
    } else {
        self->bad++;
    }
    if (self->cooling > 0) {
        self->cooling--;
        self->bad = 0;
    }
    if (self->bad > self->patience) {
        self->reductions++;
        self->cooling = self->cooldown;
        self->bad = 0;
    }
}

static const char *metric(const void *instance)
{
    const struct plateau *const self = instance;
    return self->metric;
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

enum { STATE_BEST, STATE_BAD, STATE_COOLING, STATE_REDUCTIONS, STATE_COUNT };

static void get_state(const void *instance, double *values)
{
    const struct plateau *const self = instance;
    values[STATE_BEST] = self->best;
    values[STATE_BAD] = (double)self->bad;
    values[STATE_COOLING] = (double)self->cooling;
    values[STATE_REDUCTIONS] = (double)self->reductions;
}

static int set_state(const struct fuse_host *host, void *instance, const double *values, struct fuse_error *error)
{
    struct plateau *const self = instance;
    const double most = 9007199254740992; /* 2^53: up to there doubles count by ones */
    for (int i = STATE_BAD; i < STATE_COUNT; i++)
        if (!(values[i] >= 0 && values[i] <= most && values[i] == floor(values[i])))
            return host->fail(error, FUSERUN_ERROR_FORMAT, NULL, "the state of plateau has %g for a count", values[i]);
    if (isnan(values[STATE_BEST]))
        return host->fail(error, FUSERUN_ERROR_FORMAT, NULL, "the best metric in the state of plateau is no number");
    self->best = values[STATE_BEST];
    self->bad = (int64_t)values[STATE_BAD];
    self->cooling = (int64_t)values[STATE_COOLING];
    self->reductions = (int64_t)values[STATE_REDUCTIONS];
    return FUSERUN_OK;
}

static void warn(const void *instance, char *text, size_t size)
{
    const struct plateau *const self = instance;
    if (!self->wants_greater && strcmp(self->metric, "eval_accuracy") == 0)
        (void)snprintf(text, size,
                       "mode = min reduces the value when eval_accuracy stops falling; mode = max when it stops "
                       "rising");
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, set_state),
    .create = create,
    .destroy = free,
    .value = value,
    .warn = warn,
    .observe = observe,
    .metric = metric,
    .state_count = STATE_COUNT,
    .get_state = get_state,
    .set_state = set_state,
};
FUSERUN_SCHEDULER(plateau, "1.0.0", "MIT", "reduced when a metric of the evaluations stops getting better", options,
                  scheduler)
