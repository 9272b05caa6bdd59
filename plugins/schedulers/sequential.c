/* sequential (SequentialLR): one stage after another. Stage i runs on position - milestones[i - 1], so each starts at
 * its own position 0, however deep it stands. A stage is told the positions up to its milestone as its length, the last
 * one the rest of the schedule. An evaluation is told to the stage of the coming update, and to no other. */
#include "curve.h"

struct stage {
    struct fuse_schedule *schedule; /* the host's */
    int64_t begin;
};

struct sequential {
    const struct fuse_host *host;
    int64_t length;
    uint32_t unit_is_epoch;
    size_t count;
    struct stage stages[];
};

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "stages", .type = FUSERUN_OPTION_STAGE,
                   .flags = FUSERUN_OPTION_REQUIRED | FUSERUN_OPTION_LIST,
                   .help = "NAMEs of [scheduler.NAME] sections, in the order they run"),
    FUSERUN_OPTION(.key = "milestones", .type = FUSERUN_OPTION_INTEGER,
                   .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_EMPTY_ALLOWED, .range = "[0, inf)",
                   .unit = "positions", .help = "where the second stage starts, the third, ...; one fewer than stages"),
};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    size_t count = 0;
    size_t milestone_count = 0;
    const char *const *const names = host->option_texts(values, "stages", &count);
    const int64_t *const milestones = host->option_integers(values, "milestones", &milestone_count);
    if (milestone_count + 1 != count)
        return host->fail(error, FUSERUN_ERROR_CONFIG, "milestones",
                          "%zu stages need %zu milestones, one fewer, but there are %zu", count, count - 1,
                          milestone_count);
    for (size_t i = 1; i < milestone_count; i++)
        if (milestones[i] < milestones[i - 1])
            return host->fail(error, FUSERUN_ERROR_CONFIG, "milestones",
                              "milestones must not fall, but %lld stands behind %lld", (long long)milestones[i],
                              (long long)milestones[i - 1]);

    struct sequential *const self = curve_new(host, sizeof *self + count * sizeof self->stages[0], error);
    if (self == NULL)
        return FUSERUN_ERROR_MEMORY;
    self->host = host;
    self->length = context->length;
    self->unit_is_epoch = context->unit_is_epoch;
    self->count = count;
    for (size_t i = 0; i < count; i++) {
        struct stage *const stage = &self->stages[i];
        stage->begin = i > 0 ? milestones[i - 1] : 0;
        const int64_t end = i + 1 < count ? milestones[i] : context->length;
        struct fuse_schedule *schedule = NULL;
        const int status = host->schedule_create(context, names[i], end - stage->begin, &schedule, error);
        if (status != FUSERUN_OK) {
            free(self);
            return status;
        }
        stage->schedule = schedule;
    }
    *instance = self;
    return FUSERUN_OK;
}

static const struct stage *stage_at(const struct sequential *self, int64_t position)
{
    size_t i = self->count - 1;
    while (i > 0 && position < self->stages[i].begin)
        i--;
    return &self->stages[i];
}

/* The stage that runs at query->position, and the query as that stage sees it. */
static const struct fuse_schedule *active(const struct sequential *self, const struct fuse_schedule_query *query,
                                          struct fuse_schedule_query *local)
{
    const struct stage *const stage = stage_at(self, query->position);
    *local = *query;
    local->struct_size = FUSERUN_STRUCT_SIZE(fuse_schedule_query, option);
    local->position -= stage->begin;
    return stage->schedule;
}

static double value(const void *instance, const struct fuse_schedule_query *query)
{
    const struct sequential *const self = instance;
    struct fuse_schedule_query local;
    const struct fuse_schedule *const schedule = active(self, query, &local);
    return self->host->schedule_value(schedule, &local);
}

static int cycles_momentum(const void *instance)
{
    const struct sequential *const self = instance;
    for (size_t i = 0; i < self->count; i++)
        if (self->host->schedule_cycles_momentum(self->stages[i].schedule))
            return 1;
    return 0;
}

static double momentum(const void *instance, const struct fuse_schedule_query *query)
{
    const struct sequential *const self = instance;
    struct fuse_schedule_query local;
    const struct fuse_schedule *const schedule = active(self, query, &local);
    return self->host->schedule_momentum(schedule, &local);
}

static void observe(void *instance, const struct fuse_schedule_observation *observation)
{
    const struct sequential *const self = instance;
    const struct stage *const stage = stage_at(self, observation->position);
    struct fuse_schedule_observation local = *observation;
    local.struct_size = FUSERUN_STRUCT_SIZE(fuse_schedule_observation, value);
    local.position -= stage->begin;
    self->host->schedule_observe(stage->schedule, &local);
}

static void warn(const void *instance, char *text, size_t size)
{
    const struct sequential *const self = instance;
    for (size_t i = 1; i < self->count; i++)
        if (self->stages[i].begin >= self->length) {
            (void)snprintf(text, size, "stage %zu of %zu would start at milestone %lld, but only %lld %s run here",
                           i + 1, self->count, (long long)self->stages[i].begin, (long long)self->length,
                           curve_unit(self->unit_is_epoch));
            return;
        }
}

static const struct fuse_scheduler scheduler = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, observe),
    .create = create,
    .destroy = free,
    .value = value,
    .cycles_momentum = cycles_momentum,
    .momentum = momentum,
    .warn = warn,
    .observe = observe,
};
FUSERUN_SCHEDULER(sequential, "1.0.0", "MIT", "one schedule after another", options, scheduler)
