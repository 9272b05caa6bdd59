/* optim/schedule - a schedule as a tree: the component behind [scheduler], its instance, and below it the stages that
 * it made from their own sections. Owns the instances; the components and the options stay their owners'. Built once
 * from a config (or from what a test gives), then only asked: a question changes nothing, whatever the order of
 * questions. What an evaluation found is told to it in between (plateau), and only that moves its state.
 *
 * It provides the host's schedule_* services, so that a plugin that combines schedules makes and asks its stages
 * through the same functions. Uses plugin/ (the host table) and base/, and knows no plugin by name. */
#ifndef FUSE_OPTIM_SCHEDULE_H
#define FUSE_OPTIM_SCHEDULE_H

#include "base/error.h"

#include <fuserun/scheduler.h>

#include <stdbool.h>

#define FUSE_SCHEDULE_MAX_DEPTH 32    /* a stage within a stage within ... */
#define FUSE_SCHEDULE_MAX_STAGES 1000 /* in one tree */

/* Where sections come from: fuse_config_component and fuse_config_options with the config as user, or a test's own.
 * Both return NULL for a section that does not exist. */
struct fuse_schedule_source {
    const struct fuse_component *(*component)(void *user, const char *section);
    const struct fuse_options *(*options)(void *user, const char *section);
    void *user;
};

/* Builds the schedule of `section` ("scheduler" or "scheduler weight_decay"); a stage NAME lives in "scheduler.NAME".
 * length: how many positions the run will ask for, in the unit; at least 1 is assumed. On failure *schedule is NULL and
 * error->key is "SECTION|KEY": the section whose options are wrong, perhaps a stage's, and the option (nothing behind
 * the bar if the whole section is at fault, and the root's section if the name is too long for the key). */
int fuse_schedule_build(const struct fuse_schedule_source *source, const char *section, int64_t length,
                        bool unit_is_epoch, int64_t updates_per_epoch, struct fuse_schedule **schedule,
                        struct fuse_error *error);
void fuse_schedule_free(struct fuse_schedule **schedule);

/* The driven option's value and, where a schedule cycles it, the momentum's; the latter is query->base where none does.
 * Pure, [no-alloc]. What comes from somebody's plugin may still be infinite or no number: the clock checks. */
double fuse_schedule_value(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query);
double fuse_schedule_momentum(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query);
/* Whether any stage moves the momentum. */
int fuse_schedule_cycles_momentum(const struct fuse_schedule *schedule);
/* The section of the first component that moves the momentum, borrowed: what an error about it should name. NULL: none.
 */
const char *fuse_schedule_momentum_section(const struct fuse_schedule *schedule);

/* Where a value comes from that it should not have: the deepest section whose own value is_wrong too, and the option of
 * it to name ("plugin" if none stands out). Both borrowed; for messages, so on the main thread only. */
const char *fuse_schedule_culprit(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query,
                                  bool is_momentum, bool (*is_wrong)(void *user, double value), void *user,
                                  const char **key);

/* Whether a stage means to rise again after it fell. */
bool fuse_schedule_rises(const struct fuse_schedule *schedule);

/* ---- evaluations: schedules with a state ---- */

/* Calls `each` with the section and the metric of every stage that follows one. */
void fuse_schedule_metrics(const struct fuse_schedule *schedule,
                           void (*each)(void *user, const char *section, const char *metric), void *user);
/* One result, told to the whole tree. [no-alloc] */
void fuse_schedule_observe(struct fuse_schedule *schedule, const struct fuse_schedule_observation *observation);
/* The states of the tree, root first, as one list of numbers: what a checkpoint keeps. */
size_t fuse_schedule_state_count(const struct fuse_schedule *schedule);
void fuse_schedule_get_state(const struct fuse_schedule *schedule, double *values);
int fuse_schedule_set_state(struct fuse_schedule *schedule, const double *values, struct fuse_error *error);

/* Calls `warning` for each thing that a user should know before the run, with the section it comes from: the root, then
 * its stages in order. */
void fuse_schedule_warnings(const struct fuse_schedule *schedule,
                            void (*warning)(void *user, const char *section, const char *text), void *user);

#endif
