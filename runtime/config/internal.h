/* What the files of config/ share: memory, raw layers, typed values. Nothing outside config/ includes this. */
#ifndef FUSE_CONFIG_INTERNAL_H
#define FUSE_CONFIG_INTERNAL_H

#include "config/config.h"
#include "config/options.h"

/* ---- arena.c: memory that is freed as a whole ------------------------------------------------------------------ */

struct fuse_arena {
    struct fuse_arena_block *blocks;
};
/* Zeroed; NULL when out of memory. */
void *fuse_arena_alloc(struct fuse_arena *arena, size_t bytes) __attribute__((warn_unused_result));
char *fuse_arena_strdup(struct fuse_arena *arena, const char *string) __attribute__((warn_unused_result));
char *fuse_arena_strndup(struct fuse_arena *arena, const char *string, size_t count)
    __attribute__((warn_unused_result));
void fuse_arena_free(struct fuse_arena *arena);

/* ---- diagnostics.c ---------------------------------------------------------------------------------------------- */

/* Takes ownership of text, one line without its end. rank orders layers, line the lines within one. */
void fuse_diagnostics_add(struct fuse_diagnostics *diagnostics, int rank, int line, bool is_error, char *text);

/* At most 60 characters of a text that goes into a message. */
#define FUSE_SHOWN "%.60s%s"
#define FUSE_SHOW(text) (text), (strlen(text) > 60 ? "..." : "")

/* ---- words.c: the inside of a value ----------------------------------------------------------------------------- */

/* One element of a value, unquoted. */
struct fuse_word {
    char *text;
    bool is_quoted;
};

/* The end of the quoted text that starts at `text` (just past the closing quote), or NULL if it is not closed. Inside,
 * two quotes stand for one. */
const char *fuse_quoted_end(const char *text, const char *end);
/* Where the value in [text, end) ends: before a comment and the white space around it. NULL: a quote is not closed. */
const char *fuse_value_end(const char *text, const char *end);
/* Splits a list at its commas, or takes the whole as one word. NULL and *problem set if the text is malformed, NULL
 * and *problem NULL when out of memory. */
struct fuse_word *fuse_words_split(struct fuse_arena *arena, const char *text, bool is_list, size_t *count,
                                   const char **problem);
/* Adds a text so that it reads back as one element, in quotes where it has to be. */
void fuse_words_add(struct fuse_text *text, const char *word);

/* ---- value.c: typed values --------------------------------------------------------------------------------------- */

struct fuse_value {
    struct fuse_option option; /* a copy; fields that an older plugin does not know are zero */
    bool is_set;
    size_t count;
    int64_t *integers;  /* (count) booleans, integers, sizes, spans, the index of a choice */
    double *numbers;    /* (count) all of those as double, and numbers */
    const char **texts; /* (count) texts, paths, stages, choices, the unit of a span; else NULL */
};
struct fuse_options {
    struct fuse_arena arena;
    size_t count;
    struct fuse_value *values;
};

/* A component's option, copied; false past the end and for an entry that is unusable. */
bool fuse_component_option(const struct fuse_component *component, size_t index, struct fuse_option *option);
bool fuse_component_find_option(const struct fuse_component *component, const char *key, struct fuse_option *option);
/* The value of `text` for value->option. folder: what relative paths are relative to. FUSERUN_ERROR_CONFIG: message
 * says what is wrong and what is allowed. */
int fuse_value_parse(struct fuse_arena *arena, struct fuse_value *value, const char *text, const char *folder,
                     struct fuse_text *message);
/* Whether a value lies in a range as plugins write it, "[0, 1)"; NULL: any finite one does. */
bool fuse_range_holds(const char *text, double value);
/* As a config would have it. */
void fuse_value_format(const struct fuse_value *value, struct fuse_text *text);
struct fuse_value *fuse_options_value(const struct fuse_options *options, const char *key);
/* Adds "a, b, c" of the names in "a|b|c". */
void fuse_text_add_choices(struct fuse_text *text, const char *choices);
/* The folder, a slash and the path; the path alone if it is absolute. */
char *fuse_path_join(struct fuse_arena *arena, const char *folder, const char *path);

/* ---- the layers and what they hold --------------------------------------------------------------------------------
 */

/* One source of keys. */
struct fuse_layer {
    const char *file;   /* as shown in messages: as typed */
    const char *folder; /* absolute; what relative paths in it are relative to */
    int rank;           /* later layers have higher ranks */
    bool is_command_line;
};

enum fuse_expansion { FUSE_NOT_EXPANDED, FUSE_EXPANDING, FUSE_EXPANDED, FUSE_EXPANSION_FAILED };

/* One `key = value` of one layer. */
struct fuse_entry {
    const struct fuse_layer *layer;
    int line;
    int continued_line; /* the first indented line after it, or 0 */
    const char *key;
    const char *text; /* as written: with quotes, without comment; continued lines joined by commas */
    bool is_broken;   /* could not be read: counts as written, is not judged */
    bool has_error;   /* reported; what inherits it stays silent */
    const struct fuse_layer *replaced_by; /* a later layer that sets the key again or made it meaningless */
    enum fuse_expansion expansion;
    const char *expanded;
    struct fuse_entry *next;
};

enum fuse_role {
    FUSE_ROLE_UNKNOWN,
    FUSE_ROLE_RUN,
    FUSE_ROLE_PLUGINS,
    FUSE_ROLE_MODEL,
    FUSE_ROLE_DATA,
    FUSE_ROLE_EVAL,
    FUSE_ROLE_LOSS,
    FUSE_ROLE_OPTIMIZER,
    FUSE_ROLE_GROUP, /* [group NAME] */
    FUSE_ROLE_SCHEDULER,
    FUSE_ROLE_CURVE, /* [scheduler OPTION] */
    FUSE_ROLE_STAGE, /* [scheduler.NAME] */
    FUSE_ROLE_MEMORY,
    FUSE_ROLE_CHECKPOINT,
    FUSE_ROLE_COUNT
};

/* Where a section's header stands in a layer. */
struct fuse_place {
    const struct fuse_layer *layer;
    int line;
    struct fuse_place *next;
};

enum fuse_progress { FUSE_UNTOUCHED, FUSE_UNDER_WAY, FUSE_DONE };

/* A section, all layers together. Entries are in the order of layers, then lines. */
struct fuse_section {
    const char *name;
    const char *argument; /* NAME or OPTION of the roles that have one, else "" */
    enum fuse_role role;
    struct fuse_place *places;
    struct fuse_entry *entries;
    struct fuse_section *next;

    const struct fuse_component *component;
    const char *file;                    /* of the component */
    bool is_file_written;                /* rather than the name, in the resolved config */
    const struct fuse_layer *changed_by; /* the layer that last changed the plugin, or NULL */
    bool is_plugin_unknown;              /* its keys cannot be judged */
    bool is_misspelt;                    /* another section seems to be meant as this one, so it is not missing */
    bool has_error;                      /* something in it was reported */
    bool is_dropped;                     /* by a later layer */
    bool is_reached;                     /* stages: something refers to it */
    bool is_on_stack;                    /* while stages are followed */
    const char *suggested[8];            /* keys that unknown ones seem to stand for, so they are not missing */
    size_t suggested_count;
    enum fuse_progress plugin_progress, value_progress;
    struct fuse_options *options;
};

struct fuse_config {
    struct fuse_arena arena;
    const char *path; /* as typed */
    const char *folder;
    const char *working_folder;
    struct fuse_layer *main_layer;
    struct fuse_section *sections; /* in order of appearance, included files first */
    bool has_lost_section;         /* a header could not be read: what it held may be what seems missing */
    bool has_lost_layer;           /* the same of a whole included file */
    bool is_out_of_memory;
    int expansion_depth;
    size_t expanded_bytes; /* put in place of ${} so far */
    const char **plugin_path;
    size_t plugin_path_count;
    const struct fuse_resolver *resolver; /* during resolve */
    struct fuse_config_group *groups;
    size_t group_count;
    const char **curves;
    size_t curve_count;
};

struct fuse_section *fuse_config_section(const struct fuse_config *config, const char *name);
/* The section, made if need be; NULL when out of memory. */
struct fuse_section *fuse_config_add_section(struct fuse_config *config, const char *name);
/* The entry that holds: the last layer's, NULL if there is none or it is empty. */
struct fuse_entry *fuse_section_entry(const struct fuse_section *section, const char *key);
/* The entry whatever it holds: for the line of a message. */
struct fuse_entry *fuse_section_last_entry(const struct fuse_section *section, const char *key);

/* A message at a place; key may be NULL. */
void fuse_config_say(const struct fuse_config *config, struct fuse_diagnostics *diagnostics,
                     const struct fuse_layer *layer, int line, bool is_error, const char *section, const char *key,
                     const char *format, ...) FUSERUN_PRINTF(8, 9);
/* An error at an entry, once. */
void fuse_entry_fail(const struct fuse_config *config, struct fuse_diagnostics *diagnostics, const char *section,
                     struct fuse_entry *entry, const char *format, ...) FUSERUN_PRINTF(5, 6);
/* An error at a section's header, or at line 1. */
void fuse_section_fail(const struct fuse_config *config, struct fuse_diagnostics *diagnostics,
                       const struct fuse_section *section, const char *key, const char *format, ...)
    FUSERUN_PRINTF(5, 6);

/* ---- layers.c -----------------------------------------------------------------------------------------------------
 */

/* `text` (length bytes) as one layer of the config. */
int fuse_layer_parse(struct fuse_config *config, const struct fuse_layer *layer, const char *text, size_t length,
                     struct fuse_diagnostics *diagnostics, struct fuse_section **sections);

/* ---- expand.c ------------------------------------------------------------------------------------------------------
 */

/* The entry's text with ${} replaced; NULL if that failed (reported). */
const char *fuse_entry_expand(struct fuse_config *config, struct fuse_section *section, struct fuse_entry *entry,
                              struct fuse_diagnostics *diagnostics);
/* Replaces ${env:NAME} only: for what is needed before the layers are merged. */
const char *fuse_expand_early(struct fuse_config *config, const char *section, struct fuse_entry *entry,
                              struct fuse_diagnostics *diagnostics);

/* ---- schema.c -------------------------------------------------------------------------------------------------------
 */

/* The role of a section's name; *argument points into it. */
enum fuse_role fuse_role_of(const char *name, const char **argument);
/* The keys of fuserun's own in a section of that role. */
const struct fuse_option *fuse_role_options(enum fuse_role role, size_t *count);
/* What kind of plugin the section names; 0: none. */
enum fuse_kind fuse_role_kind(enum fuse_role role);
/* Where keys come from that the section lacks, or NULL. */
const char *fuse_role_parent(enum fuse_role role);
bool fuse_role_find_option(enum fuse_role role, const char *key, struct fuse_option *option);
/* The fixed section names, and how many. */
const char *const *fuse_section_names(size_t *count);
/* The nearest of the names for a message, also by words that people use for the same thing; NULL if none is near. */
const char *fuse_nearest_key(const char *key, const char *const *names, size_t count);

/* ---- resolve.c, schedule.c
 * ------------------------------------------------------------------------------------------- */

/* Finds the section's component, once, and drops keys that a later layer's change of plugin made meaningless. */
void fuse_section_find_plugin(struct fuse_config *config, struct fuse_section *section,
                              struct fuse_diagnostics *diagnostics);
/* The option behind a key of the section, its own or its plugin's. */
bool fuse_section_option(const struct fuse_section *section, const char *key, struct fuse_option *option);
/* The text of a key that is not written; NULL if it then has no value. */
const char *fuse_section_default(struct fuse_config *config, const struct fuse_section *section,
                                 const struct fuse_option *option, struct fuse_diagnostics *diagnostics);
/* The entry that gives the key its value here, inherited ones too, and the section that holds it. */
struct fuse_entry *fuse_section_source(const struct fuse_config *config, struct fuse_section *section, const char *key,
                                       struct fuse_section **holder);
/* Judges every key of the section and makes its values, once. */
void fuse_section_make_values(struct fuse_config *config, struct fuse_section *section,
                              struct fuse_diagnostics *diagnostics);
/* Stages, what they nest, and what the schedules drive. */
void fuse_schedules_resolve(struct fuse_config *config, struct fuse_diagnostics *diagnostics);

#endif
