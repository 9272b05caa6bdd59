/* optim/schedule - a schedule as a tree: the component behind [scheduler], its instance, and below it the stages that
 * it made from their own sections. Owns the instances; the components and the options stay their owners'. Built once
 * from a config (or from what a test gives), then only asked: a question changes nothing, whatever the order of
 * questions.
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
                        bool unit_is_epoch, struct fuse_schedule **schedule, struct fuse_error *error);
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

/* Calls `warning` for each thing that a user should know before the run, with the section it comes from: the root, then
 * its stages in order. */
void fuse_schedule_warnings(const struct fuse_schedule *schedule,
                            void (*warning)(void *user, const char *section, const char *text), void *user);

#endif
