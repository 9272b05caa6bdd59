/* optim/clock - the one clock of a run, and what it drives.
 *
 * The clock counts completed updates. Before each update's backward pass fuse_clock_apply() sets every group's options:
 * the base values from the config, and over them what the schedules say for this moment. Nothing else moves an option,
 * and nothing is stepped: the same count, and the same evaluations so far, always give the same values. */
#ifndef FUSE_OPTIM_CLOCK_H
#define FUSE_OPTIM_CLOCK_H

#include "base/text.h"
#include "config/config.h"
#include "optim/dict.h"
#include "optim/schedule.h"

/* A schedule and one option that it drives. */
struct fuse_clock_curve {
    char *section;                  /* "scheduler", "scheduler weight_decay" */
    const char *option;             /* borrowed from the config; NULL: the momentum that the schedule cycles */
    struct fuse_schedule *schedule; /* the clock's; curves of one section share it */
    bool unit_is_epoch;
    int32_t *hyper; /* one a group: the driven number in it, -1: not driven there; set by bind */
};

/* A number that logs and previews show. */
struct fuse_clock_column {
    const char *option; /* "lr", then the other driven ones */
    uint32_t group;
    uint32_t hyper;
};

struct fuse_clock {
    int64_t completed_updates;
    int64_t updates_per_epoch;
    int64_t total_updates;
    struct fuse_schedule **schedules;
    size_t schedule_count;
    struct fuse_clock_curve *curves;
    size_t curve_count;
    const char **driven; /* names of the options that are, or may be, driven: for fuse_dict_new */
    size_t driven_count;
    struct fuse_clock_column *columns;
    size_t column_count;
};

/* Builds the schedules of [scheduler] and the [scheduler OPTION] sections. Mistakes in them go to diagnostics, and
 * then, or when memory runs out, the result is not FUSERUN_OK. */
int fuse_clock_new(const struct fuse_config *config, int64_t updates_per_epoch, int64_t total_updates,
                   struct fuse_diagnostics *diagnostics, struct fuse_clock **clock, struct fuse_error *error);
void fuse_clock_free(struct fuse_clock **clock);

/* Finds the driven options in the groups of the dict, and the columns to show: `lr` of every group with a trainable
 * parameter, then every other driven option of those that have it. */
int fuse_clock_bind(struct fuse_clock *clock, const struct fuse_dict *dict, const struct fuse_config *config,
                    struct fuse_diagnostics *diagnostics, struct fuse_error *error);

/* The updates whose values are asked for ahead of a run: all, or of a very long run some, the first and the last among
 * them. The one after `update` (0: the first), or 0 if there is none. */
int64_t fuse_clock_next_asked(const struct fuse_clock *clock, int64_t update);

/* clock_check.c: asks for these updates' values. A value that is not finite, or outside
 * what the optimizer's option allows, goes to diagnostics as an error, and then the result is FUSERUN_ERROR_CONFIG;
 * what a user should know of the curves (they rise again, the first lr is 0, ...) as a warning. */
int fuse_clock_check(const struct fuse_clock *clock, const struct fuse_dict *dict, const struct fuse_config *config,
                     struct fuse_diagnostics *diagnostics, struct fuse_error *error);

/* Sets all groups' options for the update that follows completed_updates. Fails only where a schedule's value is not
 * finite. [no-alloc] */
int fuse_clock_apply(const struct fuse_clock *clock, struct fuse_dict *dict, struct fuse_error *error);

/* What an evaluation after completed_updates gave, to the schedules that follow it. metric: "eval_loss",
 * "eval_accuracy". [no-alloc] */
void fuse_clock_observe(struct fuse_clock *clock, const char *metric, double value);

/* What those schedules keep of it: the only part of the clock, besides completed_updates, that a checkpoint has to
 * hold. set_state refuses values that get_state cannot have given. */
size_t fuse_clock_state_count(const struct fuse_clock *clock);
void fuse_clock_get_state(const struct fuse_clock *clock, double *values);
int fuse_clock_set_state(struct fuse_clock *clock, const double *values, struct fuse_error *error);

/* Adds a line for each stage whose values depend on evaluations, so that whoever shows values ahead of a run can say
 * so. */
void fuse_clock_add_notes(const struct fuse_clock *clock, const char *prefix, struct fuse_text *text);

/* Of one curve for one group that it drives: the question as the schedule gets it, and the answer. */
struct fuse_schedule_query fuse_clock_query(const struct fuse_clock *clock, const struct fuse_clock_curve *curve,
                                            const struct fuse_dict *dict, uint32_t group);
double fuse_clock_curve_value(const struct fuse_clock_curve *curve, const struct fuse_schedule_query *query);

/* The columns' present values. */
size_t fuse_clock_column_count(const struct fuse_clock *clock);
double fuse_clock_column_value(const struct fuse_clock *clock, const struct fuse_dict *dict, size_t column);
/* `"lr":{"default":0.001,...},"weight_decay":{...}`, without braces around it. */
void fuse_clock_add_json(const struct fuse_clock *clock, const struct fuse_dict *dict, struct fuse_text *text);

#endif
