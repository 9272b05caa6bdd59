/* fuserun/scheduler.h - how to write a scheduler.
 *
 * A scheduler is a pure function of the clock. The clock counts completed optimizer updates of the whole run (or
 * completed epochs); there is one, whatever the number of parameters. Before the backward pass of each update fuserun
 * asks the schedule once for every group, and every parameter's optimizer reads its group's answer. A scheduler is
 * never "stepped", holds no count and changes nothing: the same query always gives the same answer, so resuming,
 * previewing (`fuserun schedule`) and nesting need no care. One that follows an evaluation (plateau) has a state, which
 * nothing but observe() and set_state() change; between them it is as pure as the others.
 *
 * The smallest one (plugins/template/my_scheduler.c):
 *
 *     struct halving { double half_life; };
 *     static int create(const struct fuse_host *host, const struct fuse_options *options,
 *                       const struct fuse_schedule_context *context, void **instance, struct fuse_error *error);
 *     static double value(const void *instance, const struct fuse_schedule_query *query)
 *     {
 *         const struct halving *self = instance;
 *         return query->base * exp2(-(double)query->position / self->half_life);
 *     }
 *     static const struct fuse_option options[] = {...};
 *     static const struct fuse_scheduler scheduler = {
 *         .struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, warn), .create = create, .destroy = free, .value = value};
 *     FUSERUN_SCHEDULER(my_scheduler, "1.0.0", "MIT", "halves every half_life updates", options, scheduler)
 */
#ifndef FUSERUN_SCHEDULER_H
#define FUSERUN_SCHEDULER_H

#include <fuserun/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is known when a schedule is made. */
struct fuse_schedule_context {
    uint32_t struct_size;
    uint32_t unit_is_epoch; /* 0: positions count updates, 1: completed epochs */
    int64_t length;         /* positions that this schedule will be asked for in the run: its whole, or its stage's */
    void *host_data;        /* for the host's own use */
    int64_t updates_per_epoch;
};

/* One question. */
struct fuse_schedule_query {
    uint32_t struct_size;
    uint32_t group_index;
    int64_t position;   /* completed updates (or epochs) since the schedule's start: 0 for the first update */
    double base;        /* the driven option's value in the config, for this group */
    const char *group;  /* "default" or the NAME of [group NAME] */
    const char *option; /* the driven option: "lr", "weight_decay", "beta1", ... */
};

/* The result of an evaluation. */
struct fuse_schedule_observation {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t position;   /* completed updates (or epochs) since the schedule's start */
    const char *metric; /* "eval_loss", "eval_accuracy" */
    double value;       /* may be infinite or no number */
};

/* Capabilities of the component, or-ed. */
enum fuse_scheduler_capability {
    FUSERUN_SCHEDULER_RISES = 1u << 0 /* means to rise again after it fell (cycles, restarts): no warning about it */
};

struct fuse_scheduler {
    uint32_t struct_size;

    /* Makes an instance from the options. `context` is valid during the call. Other stages (options of type
     * FUSERUN_OPTION_STAGE) are made with host->schedule_create(context, name, length, ...), which gives a handle that
     * the host owns and frees after destroy(); of a stage with a length of 0 or less nobody is warned. What only shows
     * when values are combined is an error here, with the option's name as key. */
    int (*create)(const struct fuse_host *host, const struct fuse_options *options,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error);
    void (*destroy)(void *instance);

    /* The value for `query`. Pure; [no-alloc]. Must be finite for every position >= 0, also past the end. */
    double (*value)(const void *instance, const struct fuse_schedule_query *query);

    /* Optional, both or neither: a schedule that also moves the momentum (sgd's momentum, Adam's beta1) returns
     * non-zero from the first, and the momentum's value from the second (query->base is then the configured momentum).
     */
    int (*cycles_momentum)(const void *instance);
    double (*momentum)(const void *instance, const struct fuse_schedule_query *query);

    /* Optional: writes one line into text (size bytes) if there is something a user should know before a run (a curve
     * that rises again, a first value of 0), else leaves it empty. */
    void (*warn)(const void *instance, char *text, size_t size);

    /* Optional: called after each evaluation, once for each metric, before the next query. A schedule made of stages
     * passes it on, with the stage's own position, through host->schedule_observe to those stages that should see it;
     * any other keeps in its state what it needs. */
    void (*observe)(void *instance, const struct fuse_schedule_observation *observation);
    /* Goes with observe: the metric that this schedule follows; one that only passes observations on leaves it NULL. */
    const char *(*metric)(const void *instance);
    /* Optional, all or none: everything that observe() has left behind, as state_count numbers, so that a checkpoint
     * can keep it. set_state() refuses, with an error, what get_state() could not have given. */
    uint32_t state_count;
    void (*get_state)(const void *instance, double *values);
    int (*set_state)(const struct fuse_host *host, void *instance, const double *values, struct fuse_error *error);
};

#ifdef __cplusplus
}
#endif

/* A plugin of one scheduler; name_ is the file's stem without quotes, options_ an array of struct fuse_option,
 * scheduler_ a static const struct fuse_scheduler. */
#define FUSERUN_SCHEDULER(name_, version_, license_, summary_, options_, scheduler_)                                   \
    FUSERUN_SCHEDULER_THAT(0, name_, version_, license_, summary_, options_, scheduler_)
/* The same with capabilities. */
#define FUSERUN_SCHEDULER_THAT(capabilities_, name_, version_, license_, summary_, options_, scheduler_)               \
    static const struct fuse_component fuse_components_[] = {                                                          \
        {FUSERUN_STRUCT_SIZE(fuse_component, api), FUSERUN_KIND_SCHEDULER, #name_, summary_, capabilities_, options_,  \
         (uint32_t)(sizeof(options_) / sizeof((options_)[0])), (uint32_t)sizeof((options_)[0]), &scheduler_}};         \
    FUSERUN_PLUGIN(#name_, version_, license_, fuse_components_)

#endif
