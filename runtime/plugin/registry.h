/* plugin/ - finding, loading and checking plugins; the table of services they are handed. Uses base/,
 * config/options.h, and files/ for the services it passes on.
 *
 * A loaded plugin is never unloaded. A broken one gives one clear message and is forgotten; the rest goes on. */
#ifndef FUSE_PLUGIN_REGISTRY_H
#define FUSE_PLUGIN_REGISTRY_H

#include "base/error.h"

#include <stdbool.h>

/* The table handed to every plugin. Its schedule_* entries work while a schedule is being made or read (optim/). */
const struct fuse_host *fuse_host(void);

/* Installs the schedule services (optim/schedule.c does, once). */
struct fuse_schedule_services {
    int (*create)(const struct fuse_schedule_context *context, const char *stage, int64_t length,
                  struct fuse_schedule **schedule, struct fuse_error *error);
    double (*value)(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query);
    double (*momentum)(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query);
    int (*cycles_momentum)(const struct fuse_schedule *schedule);
    void (*observe)(struct fuse_schedule *schedule, const struct fuse_schedule_observation *observation);
};
void fuse_host_set_schedule_services(const struct fuse_schedule_services *services);

struct fuse_registry;

/* The search path: `first` folders (the config's [plugins] path), $FUSERUN_PLUGIN_PATH, plugins/ in config_folder
 * (NULL: none), then the source tree's and the build's when uninstalled, then the installation's. Never the working
 * directory. */
int fuse_registry_new(const char *const *first, size_t first_count, const char *config_folder,
                      struct fuse_registry **registry, struct fuse_error *error);
void fuse_registry_free(struct fuse_registry **registry);

/* The component `name` of `kind`: the first NAME.so along the search path whose kind fits, or the file that an absolute
 * path names. Loads what it needs, nothing else. *file is borrowed. An error lists what was looked at when nothing
 * fits, with the nearest known name. A file that hides a later one is told once, as a notice. A message about a broken
 * file names it. */
int fuse_registry_find(struct fuse_registry *registry, enum fuse_kind kind, const char *name,
                       const struct fuse_component **component, const char **file, struct fuse_error *error);

/* Notices collected so far (hidden files, folders of the path that do not exist), one text each; borrowed until the
 * next call on the registry. */
size_t fuse_registry_notice_count(const struct fuse_registry *registry);
const char *fuse_registry_notice(const struct fuse_registry *registry, size_t index);

/* Loads every plugin of the search path. For each component found: visit(); for each broken file: broken(). */
struct fuse_registry_visitor {
    void (*visit)(void *user, const struct fuse_plugin *plugin, const struct fuse_component *component,
                  const char *file);
    void (*broken)(void *user, const char *file, const struct fuse_error *error);
    void *user;
};
int fuse_registry_visit_all(struct fuse_registry *registry, const struct fuse_registry_visitor *visitor,
                            struct fuse_error *error);

/* The same for those that are loaded already: after a config was resolved, what it uses. */
void fuse_registry_visit_loaded(const struct fuse_registry *registry, const struct fuse_registry_visitor *visitor);

/* True if `file` lies in a folder that comes with fuserun (source tree, build, installation): such plugins are written
 * to resolved configs by name, others by file. */
bool fuse_registry_is_standard(const struct fuse_registry *registry, const char *file);

const char *fuse_kind_name(enum fuse_kind kind); /* "optimizer", ... */

#endif
