#include "optim/schedule.h"

#include "base/text.h"
#include "plugin/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fuse_schedule {
    struct fuse_scheduler api;              /* a copy: what an older plugin does not have reads as NULL */
    const struct fuse_component *component; /* its owner's */
    void *instance;
    bool is_created;
    bool is_idle; /* no position of the run is its own: nobody need be warned of its curve */
    char *section;
    struct fuse_schedule *first_stage;
    struct fuse_schedule *last_stage;
    struct fuse_schedule *next; /* the parent's next stage */
};

/* One tree being built. */
struct build {
    const struct fuse_schedule_source *source;
    const char *root_section;
    uint32_t unit_is_epoch;
    int64_t updates_per_epoch;
    int stage_count;
    char fault[sizeof((struct fuse_error *)0)->key]; /* the "SECTION|KEY" of an error that is on its way up */
};

/* One component being created: context->host_data, by which schedule_create knows whose stage it makes. */
struct frame {
    struct build *build;
    struct fuse_schedule *node;
    int depth;
};

static int build_node(struct build *build, const char *section, int64_t length, int depth,
                      struct fuse_schedule **schedule, struct fuse_error *error);

/* ---- errors --------------------------------------------------------------------------------------------------- */

/* Makes error->key "SECTION|KEY", unless that was done further down. */
static int place_error(struct build *build, const char *section, int status, struct fuse_error *error)
{
    if (build->fault[0] != '\0' && strcmp(error->key, build->fault) == 0)
        return status;
    if (error->text[0] == '\0')
        (void)fuse_fail(error, status, error->key, "the plugin could not make the schedule and did not say why");
    const int chars = snprintf(build->fault, sizeof build->fault, "%s|%s", section, error->key);
    if (chars < 0 || (size_t)chars >= sizeof build->fault)
        (void)snprintf(build->fault, sizeof build->fault, "%.*s|", (int)sizeof build->fault - 2, build->root_section);
    memcpy(error->key, build->fault, sizeof error->key);
    return status;
}

/* ---- the services for plugins --------------------------------------------------------------------------------- */

static int service_create(const struct fuse_schedule_context *context, const char *stage, int64_t length,
                          struct fuse_schedule **schedule, struct fuse_error *error)
{
    *schedule = NULL;
    struct frame *const frame = context->host_data;
    if (frame == NULL || stage == NULL)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "schedule_create was called without its context or a name");
    struct fuse_error unheard = FUSE_ERROR_INIT;
    if (error == NULL)
        error = &unheard;
    char *const section = fuse_format("scheduler.%s", stage);
    if (section == NULL)
        return fuse_fail_memory(error, "a stage's name", strlen(stage));
    struct fuse_schedule *node = NULL;
    const int status = build_node(frame->build, section, length, frame->depth + 1, &node, error);
    free(section);
    if (status != FUSERUN_OK)
        return status;
    node->is_idle = length <= 0;
    struct fuse_schedule *const parent = frame->node;
    if (parent->last_stage != NULL)
        parent->last_stage->next = node;
    else
        parent->first_stage = node;
    parent->last_stage = node;
    *schedule = node;
    return FUSERUN_OK;
}

/* ---- building ------------------------------------------------------------------------------------------------- */

static int create_instance(struct build *build, struct fuse_schedule *node, int64_t length, int depth,
                           struct fuse_error *error)
{
    const struct fuse_component *const component = build->source->component(build->source->user, node->section);
    const struct fuse_options *const options = build->source->options(build->source->user, node->section);
    if (component == NULL || options == NULL)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, "plugin", "there is no section [%s] with a plugin",
                         node->section);
    if (component->kind != FUSERUN_KIND_SCHEDULER || component->api == NULL)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, "plugin", "'%s' is no scheduler", component->name);

    node->component = component;
    const struct fuse_scheduler *const api = component->api;
    memcpy(&node->api, api, api->struct_size < sizeof node->api ? api->struct_size : sizeof node->api);
    const size_t needed = FUSERUN_STRUCT_SIZE(fuse_scheduler, value);
    if (api->struct_size < needed || node->api.create == NULL || node->api.destroy == NULL || node->api.value == NULL ||
        (node->api.cycles_momentum == NULL) != (node->api.momentum == NULL))
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, "plugin",
                         "scheduler '%s' lacks create, destroy, value, or one of cycles_momentum and momentum",
                         component->name);

    struct frame frame = {build, node, depth};
    const struct fuse_schedule_context context = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_schedule_context, updates_per_epoch),
        .unit_is_epoch = build->unit_is_epoch,
        .length = length > 0 ? length : 1,
        .host_data = &frame,
        .updates_per_epoch = build->updates_per_epoch > 0 ? build->updates_per_epoch : 1,
    };
    const int status = node->api.create(fuse_host(), options, &context, &node->instance, error);
    node->is_created = status == FUSERUN_OK;
    return status > 0 ? FUSERUN_ERROR_PLUGIN : status;
}

static int build_node(struct build *build, const char *section, int64_t length, int depth,
                      struct fuse_schedule **schedule, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_schedule *node = NULL;
    *schedule = NULL;
    if (depth > FUSE_SCHEDULE_MAX_DEPTH) {
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL,
                           "stages stand more than %d deep in each other (does one contain itself?)",
                           FUSE_SCHEDULE_MAX_DEPTH);
        goto out;
    }
    if (build->stage_count++ > FUSE_SCHEDULE_MAX_STAGES) {
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the schedule has more than %d stages",
                           FUSE_SCHEDULE_MAX_STAGES);
        goto out;
    }
    node = calloc(1, sizeof *node);
    if (node == NULL || (node->section = fuse_strdup(section)) == NULL) {
        status = fuse_fail_memory(error, "a schedule", sizeof *node);
        goto out;
    }
    FUSE_TRY_OUT(create_instance(build, node, length, depth, error));
    *schedule = node;
    return FUSERUN_OK;
out:
    fuse_schedule_free(&node);
    return place_error(build, section, status, error);
}

int fuse_schedule_build(const struct fuse_schedule_source *source, const char *section, int64_t length,
                        bool unit_is_epoch, int64_t updates_per_epoch, struct fuse_schedule **schedule,
                        struct fuse_error *error)
{
    static const struct fuse_schedule_services services = {
        .create = service_create,
        .value = fuse_schedule_value,
        .momentum = fuse_schedule_momentum,
        .cycles_momentum = fuse_schedule_cycles_momentum,
        .observe = fuse_schedule_observe,
    };
    fuse_host_set_schedule_services(&services);
    struct fuse_error unheard = FUSE_ERROR_INIT;
    struct build build = {.source = source,
                          .root_section = section,
                          .unit_is_epoch = unit_is_epoch,
                          .updates_per_epoch = updates_per_epoch};
    if (error == NULL)
        error = &unheard;
    error->key[0] = error->text[0] = '\0'; /* so that a plugin that fails without a word is noticed */
    return build_node(&build, section, length, 0, schedule, error);
}

void fuse_schedule_free(struct fuse_schedule **schedule)
{
    struct fuse_schedule *const node = *schedule;
    *schedule = NULL;
    if (node == NULL)
        return;
    if (node->is_created)
        node->api.destroy(node->instance);
    while (node->first_stage != NULL) {
        struct fuse_schedule *stage = node->first_stage;
        node->first_stage = stage->next;
        fuse_schedule_free(&stage);
    }
    free(node->section);
    free(node);
}

/* ---- asking --------------------------------------------------------------------------------------------------- */

/* Set while fuse_schedule_culprit() asks: the first schedule that answers with a wrong value, which is the deepest,
 * since a stage answers before what is made of it. */
struct watch {
    bool (*is_wrong)(void *user, double value);
    void *user;
    const struct fuse_schedule *culprit;
};
static struct watch *watch;

static double watched(const struct fuse_schedule *schedule, double value)
{
    if (watch != NULL && watch->culprit == NULL && watch->is_wrong(watch->user, value))
        watch->culprit = schedule;
    return value;
}

double fuse_schedule_value(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query)
{
    return watched(schedule, schedule->api.value(schedule->instance, query));
}

int fuse_schedule_cycles_momentum(const struct fuse_schedule *schedule)
{
    return schedule->api.cycles_momentum != NULL && schedule->api.cycles_momentum(schedule->instance) != 0;
}

double fuse_schedule_momentum(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query)
{
    if (!fuse_schedule_cycles_momentum(schedule))
        return query->base;
    return watched(schedule, schedule->api.momentum(schedule->instance, query));
}

/* The option that the schedule cannot be without is the one that makes its curve; where there are several, or none, no
 * single one can be blamed. */
static const char *option_to_name(const struct fuse_component *component)
{
    const char *key = NULL;
    for (uint32_t i = 0; i < component->option_count; i++) {
        const struct fuse_option *const option =
            (const void *)((const char *)component->options + (size_t)i * component->option_stride);
        if ((option->flags & FUSERUN_OPTION_REQUIRED) == 0)
            continue;
        if (key != NULL)
            return "plugin";
        key = option->key;
    }
    return key != NULL ? key : "plugin";
}

const char *fuse_schedule_culprit(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query,
                                  bool is_momentum, bool (*is_wrong)(void *user, double value), void *user,
                                  const char **key)
{
    struct watch watching = {.is_wrong = is_wrong, .user = user};
    watch = &watching;
    (void)(is_momentum ? fuse_schedule_momentum(schedule, query) : fuse_schedule_value(schedule, query));
    watch = NULL;
    const struct fuse_schedule *const culprit = watching.culprit != NULL ? watching.culprit : schedule;
    *key = option_to_name(culprit->component);
    return culprit->section;
}

bool fuse_schedule_rises(const struct fuse_schedule *schedule)
{
    bool rises = (schedule->component->capabilities & FUSERUN_SCHEDULER_RISES) != 0;
    for (const struct fuse_schedule *stage = schedule->first_stage; stage != NULL && !rises; stage = stage->next)
        rises = fuse_schedule_rises(stage);
    return rises;
}

/* ---- evaluations ---------------------------------------------------------------------------------------------- */

void fuse_schedule_metrics(const struct fuse_schedule *schedule,
                           void (*each)(void *user, const char *section, const char *metric), void *user)
{
    const char *const metric = schedule->api.metric != NULL ? schedule->api.metric(schedule->instance) : NULL;
    if (metric != NULL)
        each(user, schedule->section, metric);
    for (const struct fuse_schedule *stage = schedule->first_stage; stage != NULL; stage = stage->next)
        fuse_schedule_metrics(stage, each, user);
}

void fuse_schedule_observe(struct fuse_schedule *schedule, const struct fuse_schedule_observation *observation)
{
    if (schedule->api.observe != NULL)
        schedule->api.observe(schedule->instance, observation);
}

static size_t own_state_count(const struct fuse_schedule *schedule)
{
    return schedule->api.get_state != NULL && schedule->api.set_state != NULL ? schedule->api.state_count : 0;
}

size_t fuse_schedule_state_count(const struct fuse_schedule *schedule)
{
    size_t count = own_state_count(schedule);
    for (const struct fuse_schedule *stage = schedule->first_stage; stage != NULL; stage = stage->next)
        count += fuse_schedule_state_count(stage);
    return count;
}

void fuse_schedule_get_state(const struct fuse_schedule *schedule, double *values)
{
    if (own_state_count(schedule) > 0)
        schedule->api.get_state(schedule->instance, values);
    values += own_state_count(schedule);
    for (const struct fuse_schedule *stage = schedule->first_stage; stage != NULL; stage = stage->next) {
        fuse_schedule_get_state(stage, values);
        values += fuse_schedule_state_count(stage);
    }
}

int fuse_schedule_set_state(struct fuse_schedule *schedule, const double *values, struct fuse_error *error)
{
    if (own_state_count(schedule) > 0)
        FUSE_TRY(schedule->api.set_state(fuse_host(), schedule->instance, values, error));
    values += own_state_count(schedule);
    for (struct fuse_schedule *stage = schedule->first_stage; stage != NULL; stage = stage->next) {
        FUSE_TRY(fuse_schedule_set_state(stage, values, error));
        values += fuse_schedule_state_count(stage);
    }
    return FUSERUN_OK;
}

const char *fuse_schedule_momentum_section(const struct fuse_schedule *schedule)
{
    if (!fuse_schedule_cycles_momentum(schedule))
        return NULL;
    for (const struct fuse_schedule *stage = schedule->first_stage; stage != NULL; stage = stage->next) {
        const char *const section = fuse_schedule_momentum_section(stage);
        if (section != NULL)
            return section;
    }
    return schedule->section;
}

void fuse_schedule_warnings(const struct fuse_schedule *schedule,
                            void (*warning)(void *user, const char *section, const char *text), void *user)
{
    char text[512] = "";
    if (schedule->is_idle)
        return;
    if (schedule->api.warn != NULL)
        schedule->api.warn(schedule->instance, text, sizeof text);
    text[sizeof text - 1] = '\0';
    if (text[0] != '\0')
        warning(user, schedule->section, text);
    for (const struct fuse_schedule *stage = schedule->first_stage; stage != NULL; stage = stage->next)
        fuse_schedule_warnings(stage, warning, user);
}
