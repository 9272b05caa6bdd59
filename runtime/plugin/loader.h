/* One plugin file: opened, checked, and copied into structs of the host's (internal to plugin/). */
#ifndef FUSE_PLUGIN_LOADER_H
#define FUSE_PLUGIN_LOADER_H

#include "base/error.h"

#include <stdbool.h>

/* For "%s%s" in a message: the end of a path that is too long to leave room for what is wrong with it. */
#define FUSE_PATH_SHOWN 200
#define FUSE_SHOWN_PATH(file)                                                                                          \
    strlen(file) > FUSE_PATH_SHOWN ? "..." : "",                                                                       \
        strlen(file) > FUSE_PATH_SHOWN ? (file) + strlen(file) - FUSE_PATH_SHOWN : (file)

/* A block of memory in a chain, so that a plugin's copies are freed as one. */
struct fuse_block {
    struct fuse_block *next;
};

/* What a plugin offers, as this fuserun's headers define it: structs of full size, zero where the plugin's were
 * shorter, so that the rest of the program may read every field it knows. Texts stay the plugin's own. */
struct fuse_checked_plugin {
    struct fuse_plugin plugin; /* its components too are of the host's size */
    struct fuse_block *blocks;
};

/* Checks what an entry function returned, in order: size, ABI block, name, components; see plugins/template/README.md.
 * stem: the file's name without .so. The message does not name the file. */
int fuse_plugin_check(const struct fuse_plugin *given, const char *stem, struct fuse_checked_plugin *checked,
                      struct fuse_error *error);
void fuse_plugin_release(struct fuse_checked_plugin *checked);

/* Opens `file` (absolute), which then stays open to the end of the process; on failure it is closed again. try_first:
 * a child process opens it before we do, so that a crash in the plugin's initialisers costs one message and no run.
 * The message names the file. */
int fuse_plugin_load(const char *file, const char *stem, bool try_first, struct fuse_checked_plugin *checked,
                     struct fuse_error *error);

#endif
