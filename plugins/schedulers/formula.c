/* formula: the value is what an expression gives (expression.h says what it may hold) in
 *     step    completed updates since the schedule's (its stage's) start: 0 for the first
 *     epoch   step / updates an epoch, with its fraction; floor(epoch) counts completed epochs
 *     base    the driven option's value in the config, for the group
 *     total   updates that the schedule (its stage) will be asked for
 * It gives the value, not a factor: `0.5 ^ epoch` alone sets the same value in all groups, `base * 0.5 ^ epoch` follows
 * each. With unit = epoch, step and epoch move once an epoch. What is not finite, or not allowed for the option, at
 * some update of the run is found before it starts, by whoever asks. */
#include "curve.h"
#include "expression.h"

struct formula {
    struct expression expression;
    double updates_a_position;
    double updates_per_epoch;
    double total;
};

enum { STEP, EPOCH, BASE, TOTAL, VARIABLE_COUNT };
static const char *const variables[VARIABLE_COUNT] = {"step", "epoch", "base", "total"};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "expr", .type = FUSERUN_OPTION_TEXT, .flags = FUSERUN_OPTION_REQUIRED,
                   .help = "gives the value, in step, epoch, base, total: base * 0.5 ^ floor(epoch / 30); + - * / % ^, "
                           "comparisons, if(c, x, y), min, max, abs, sqrt, exp, log, pow, cos, sin, tan, tanh, floor, "
                           "ceil, round, pi"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    char message[512];
    struct formula *const self = curve_new(host, sizeof *self, error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    if (expression_parse(host->option_text(values, "expr"), variables, VARIABLE_COUNT, &self->expression, message,
                         sizeof message) != 0) {
        free(self);
        return host->fail(error, FUSERUN_ERROR_CONFIG, "expr", "%s", message);
    }
    self->updates_per_epoch = (double)context->updates_per_epoch;
    self->updates_a_position = context->unit_is_epoch ? self->updates_per_epoch : 1;
    self->total = (double)context->length * self->updates_a_position;
    *instance = self;
    return FUSERUN_OK;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct formula *const self = instance;
    const double step = (double)query->position * self->updates_a_position;
    const double known[VARIABLE_COUNT] = {
        [STEP] = step, [EPOCH] = step / self->updates_per_epoch, [BASE] = query->base, [TOTAL] = self->total};
    return expression_value(&self->expression, known);
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, value),
    .create = create,
    .destroy = free,
    .value = value,
};
FUSERUN_SCHEDULER(formula, "1.0.0", "MIT", "an expression in step, epoch, base and total", options, scheduler)
