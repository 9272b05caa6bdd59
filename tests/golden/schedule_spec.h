/* For tests of schedules: sections written as texts, built from the plugins of this build through the schedule tree, as
 * a config would be. */
#ifndef FUSE_TESTS_SCHEDULE_SPEC_H
#define FUSE_TESTS_SCHEDULE_SPEC_H

#include "config/options.h"
#include "optim/schedule.h"

#define MAX_SECTIONS 8
#define MAX_PAIRS 16

struct section {
    const char *name;
    const struct fuse_component *component;
    struct fuse_options *options;
};

/* What a config would hold; zero-initialise. */
struct spec {
    struct section sections[MAX_SECTIONS];
    size_t count;
};

/* Group set-up and tear-down: the plugins. */
int open_registry(void **state);
int close_registry(void **state);
const struct fuse_component *load(const char *plugin);

/* add(&spec, "scheduler", "cosine", "t_max=3", ..., NULL). A mistake in what a test writes fails the test. */
void add(struct spec *spec, const char *name, const char *plugin, ...);
void add_component(struct spec *spec, const char *name, const struct fuse_component *component,
                   const char *const *pairs, size_t pair_count);
void clear(struct spec *spec);

/* The schedule of [scheduler]; free it. take() also clears the spec. single(): one plugin with one option. */
int try_build(struct spec *spec, int64_t length, bool unit_is_epoch, struct fuse_schedule **schedule,
              struct fuse_error *error);
struct fuse_schedule *take(struct spec *spec, int64_t length);
struct fuse_schedule *single(const char *plugin, int64_t length, const char *pair);

double value_at(const struct fuse_schedule *schedule, int64_t position, double base);
double momentum_at(const struct fuse_schedule *schedule, int64_t position, double base);
/* Tells an evaluation's result. */
void observe(struct fuse_schedule *schedule, int64_t position, const char *metric, double value);
void assert_near(double ours, double expected, double tolerance, const char *what, int64_t position);

/* What fuse_schedule_warnings gave: how many, and the last as "SECTION: TEXT". */
struct warnings {
    int count;
    char last[600];
};
struct warnings warnings_of(const struct fuse_schedule *schedule);

/* Settings at the edge of what the options allow, one plugin each. */
#define UPDATES_PER_EPOCH 7
#define ODD_COUNT 42
struct fuse_schedule *build_odd(size_t index, int64_t length);
void add_odd(struct spec *spec, const char *name, size_t index);
const char *odd_name(size_t index);

#endif
