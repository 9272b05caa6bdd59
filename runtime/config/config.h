/* config/ - the experiment file: reading INI layers, merging, expansion, checking against option tables, typed values,
 * and every message about them. Uses base/ and the public headers. Knows no plugin by name: components come from a
 * resolver that the caller provides. */
#ifndef FUSE_CONFIG_CONFIG_H
#define FUSE_CONFIG_CONFIG_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdio.h>

/* Where config/ fills gaps of the contract:
 *   - inside double quotes everything stands as it is, `${` too; two double quotes stand for one; each element of a
 * list may be quoted on its own, and `""` alone is an empty list where one is allowed;
 *   - ${section.key} of a path is the absolute path; as the whole value it brings its quotes and commas along;
 *   - run.include takes ${env:NAME} only, and an override of it replaces the file's;
 *   - a section that lost what referred to it by a later layer's other `stages` is dropped, as by another plugin.
 * Spans read as an integer and the text "step" or "epoch". */
struct fuse_config;

/* ---- diagnostics: all mistakes of a config in one go, in file order ------------------------------------------- */

struct fuse_diagnostics;
struct fuse_diagnostics *fuse_diagnostics_new(void);
void fuse_diagnostics_free(struct fuse_diagnostics **diagnostics);
size_t fuse_diagnostics_error_count(const struct fuse_diagnostics *diagnostics);
/* Prints what was collected since the last print, sorted by layer (included files, file, command line) and line:
 * `FILE:LINE: section.key: message`, notices as `FILE:LINE: warning: ...`. */
void fuse_diagnostics_print(struct fuse_diagnostics *diagnostics, FILE *stream);

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* Reads the file, its includes and the command-line overrides ("section.key=value"): grammar only. Mistakes go to
 * diagnostics, and the status is FUSERUN_OK all the same, so that resolving can tell the rest. Unless memory ran out
 * (FUSERUN_ERROR_MEMORY, which is no diagnostic), the file cannot be opened or there is no working directory, *config
 * is set and must be freed. */
int fuse_config_read(const char *path, const char *const *overrides, size_t override_count,
                     struct fuse_diagnostics *diagnostics, struct fuse_config **config);
void fuse_config_free(struct fuse_config **config);

/* Folders of [plugins] path, absolute; known after fuse_config_read. */
const char *const *fuse_config_plugin_path(const struct fuse_config *config, size_t *count);
/* The folder that holds the config file, absolute. */
const char *fuse_config_folder(const struct fuse_config *config);

/* ---- resolving ------------------------------------------------------------------------------------------------ */

/* Finds components. `name` is what the config says behind `plugin =`; a path that ends in .so arrives absolute. */
struct fuse_resolver {
    /* FUSERUN_OK with *component and *file (absolute, borrowed) set; otherwise *error says why. */
    int (*find)(void *user, enum fuse_kind kind, const char *name, const struct fuse_component **component,
                const char **file, struct fuse_error *error);
    void *user;
    /* Optional: true for a plugin file that comes with fuserun, which resolved configs name without its folder. */
    bool (*is_standard)(void *user, const char *file);
    /* Files that datasets are to read must be there: each that is not is told at its own line, whatever else is wrong.
     */
    bool checks_data_files;
};

/* Merges the layers, expands ${}, checks every section and key against the core tables and the plugins' options, and
 * makes the typed values. Mistakes go to diagnostics. FUSERUN_OK if there were none at all so far;
 * FUSERUN_ERROR_MEMORY, which is no diagnostic, before all else. */
int fuse_config_resolve(struct fuse_config *config, const struct fuse_resolver *resolver,
                        struct fuse_diagnostics *diagnostics);

/* ---- after resolving: values ---------------------------------------------------------------------------------- */

/* The values of a section ("run", "model", "data", "eval", "loss", "optimizer", "scheduler", "scheduler.warmup",
 * "scheduler weight_decay", "memory", "checkpoint"): core keys and plugin options together. The optional sections
 * (eval, scheduler...) are NULL when absent; the others read as their defaults. */
const struct fuse_options *fuse_config_options(const struct fuse_config *config, const char *section);
/* The component behind a section's `plugin`; NULL if it has none. */
const struct fuse_component *fuse_config_component(const struct fuse_config *config, const char *section);

/* True if the section is there and nothing was wrong in it, nor in the one it inherits from: what its values say can be
 * relied on even when other sections have mistakes. */
bool fuse_config_is_clean(const struct fuse_config *config, const char *section);

/* Parameter groups in file order, without `default`. options: everything, inherited values filled in. */
struct fuse_config_group {
    const char *name;
    const char *section; /* "group NAME" */
    const char *const *match;
    size_t match_count;
    const struct fuse_component *component;
    const struct fuse_options *options;
};
size_t fuse_config_group_count(const struct fuse_config *config);
const struct fuse_config_group *fuse_config_group(const struct fuse_config *config, size_t index);

/* Sections of the form [scheduler OPTION] (not [scheduler] itself), in file order: the OPTION names. */
size_t fuse_config_scheduler_count(const struct fuse_config *config);
const char *fuse_config_scheduler_option(const struct fuse_config *config, size_t index);

/* Adds an error at the line of section.key (at the section's line if the key is not in the config, at line 1 if the
 * section is not either). Used for what only shows later: absent weights, wrong shapes, a group without parameters. */
void fuse_config_report(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, const char *section,
                        const char *key, const char *format, ...) FUSERUN_PRINTF(5, 6);
void fuse_config_warn(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, const char *section,
                      const char *key, const char *format, ...) FUSERUN_PRINTF(5, 6);

/* The resolved config as INI: every default written out, paths absolute, plugins outside the standard folders as their
 * absolute file, resume = never, overwrite = yes. */
void fuse_config_write(const struct fuse_config *config, struct fuse_text *text);

#endif
