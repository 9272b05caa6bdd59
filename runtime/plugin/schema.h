/* Checks of what a plugin declares as text: its options, and the names in its update rules (internal to plugin/). */
#ifndef FUSE_PLUGIN_SCHEMA_H
#define FUSE_PLUGIN_SCHEMA_H

#include <fuserun/optimizer.h>

#include <stddef.h>

#define FUSE_PLUGIN_NAME_MAX 100
#define FUSE_OPTIONS_MAX 256

/* The words that start a message about a component: "optimizer 'adam'". Returns buffer. */
const char *fuse_schema_what(char *buffer, size_t size, const char *kind, const char *name);

/* component->options: an array of this fuserun's struct fuse_option. */
int fuse_schema_check_options(const struct fuse_component *component, const char *what, struct fuse_error *error);

int fuse_schema_check_rule(const struct fuse_rule *rule, const char *what, struct fuse_error *error);

#endif
