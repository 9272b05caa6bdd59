/* fuserun/abi.h - the border between fuserun and its plugins.
 *
 * A plugin is one shared object. It exports one function, fuse_plugin_v1(), links against nothing of fuserun's, and
 * gets every service it needs from the table that the function is handed. What it returns, a struct fuse_plugin,
 * lists one or more components: an optimizer, a scheduler, a model, a dataset or a backend. Each kind has a header of
 * its own beside this one (optimizer.h, scheduler.h, model.h, dataset.h, backend.h); include that one, it brings this.
 *
 * Rules that keep old plugins working with new versions of fuserun:
 *   - every struct that crosses the border begins with its size, measured to the end of the last field it knows
 *     (FUSERUN_STRUCT_SIZE, never sizeof, whose tail padding could hide a new field);
 *   - fields are only ever added at the end; what an older plugin does not know reads as zero;
 *   - a plugin of another FUSERUN_ABI_MAJOR is refused; one that requires a newer minor is refused by name.
 *
 * Strings handed over by a plugin are UTF-8, end in NUL, and stay the plugin's: it must keep them unchanged for as
 * long as it is loaded, which is until the process ends. Unless a comment says otherwise, every function here is
 * called on the main thread, [main]; [worker] marks those that run on several threads at once, [no-alloc] those
 * that run in the training step and must neither allocate nor block. */
#ifndef FUSERUN_ABI_H
#define FUSERUN_ABI_H

#include <stddef.h>
#include <stdint.h>

#define FUSERUN_ABI_MAGIC 0x46555345u /* "FUSE" */
#define FUSERUN_ABI_MAJOR 1
#define FUSERUN_ABI_MINOR 0
#define FUSERUN_MAX_DIMS 8

/* Size of `struct type` up to the end of field `last`. */
#define FUSERUN_STRUCT_SIZE(type, last)                                                                               \
    ((uint32_t)(offsetof(struct type, last) + sizeof(((struct type *)0)->last)))

#if defined(__cplusplus)
#define FUSERUN_EXTERN_C extern "C"
#else
#define FUSERUN_EXTERN_C extern
#endif
#if defined(__GNUC__)
#define FUSERUN_EXPORT FUSERUN_EXTERN_C __attribute__((visibility("default")))
#define FUSERUN_PRINTF(format_at, first) __attribute__((format(printf, format_at, first)))
#else
#define FUSERUN_EXPORT FUSERUN_EXTERN_C
#define FUSERUN_PRINTF(format_at, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A piece of memory. It is written into arrays of FUSERUN_MAX_SPANS, so it has no size of its own and never grows. */
struct fuse_span {
    const void *at;
    uint64_t bytes;
};

#define FUSERUN_MAX_SPANS 9 /* a weight and FUSERUN_MAX_STATES states (optimizer.h) */

/* ---- status and errors -------------------------------------------------------------------------------------- */

/* What a function that can fail returns: FUSERUN_OK or one of the negative codes. The codes are stable. */
enum fuse_status {
    FUSERUN_OK = 0,
    FUSERUN_ERROR_CONFIG = -1,      /* a value the user wrote is wrong */
    FUSERUN_ERROR_IO = -2,          /* the operating system refused a file operation */
    FUSERUN_ERROR_FORMAT = -3,      /* a file is not what it should be */
    FUSERUN_ERROR_MEMORY = -4,      /* out of memory */
    FUSERUN_ERROR_PLUGIN = -5,      /* a plugin is broken or breaks a rule of this header */
    FUSERUN_ERROR_UNSUPPORTED = -6, /* asked for something that this build, machine or plugin cannot do */
    FUSERUN_ERROR_NUMERIC = -7,     /* a value became infinite or not a number */
    FUSERUN_ERROR_DATA = -8,        /* a sample is wrong (a label out of range, say) */
    FUSERUN_ERROR_INTERNAL = -9,    /* a bug in fuserun */
    FUSERUN_ERROR_INTERRUPTED = -10, /* stopped by a signal */
    FUSERUN_ERROR_DEVICE = -11       /* a device or its driver failed */
};

/* One error. Whoever notices it writes the message, in full, through fuse_host.fail; whoever passes it on leaves it. */
struct fuse_error {
    uint32_t struct_size;
    int32_t code;   /* enum fuse_status */
    char key[96];   /* the option at fault, so that the message can name the config's line; "" if none */
    char text[640]; /* one line, no full stop: what is wrong and what is allowed */
};

enum fuse_log_level {
    FUSERUN_LOG_DEBUG = 1, /* shown only where FUSERUN_DEBUG is set in the environment */
    FUSERUN_LOG_INFO = 2,
    FUSERUN_LOG_WARNING = 3,
    FUSERUN_LOG_ERROR = 4
};

/* Element types of tensors. */
enum fuse_dtype {
    FUSERUN_FLOAT32 = 1,
    FUSERUN_BFLOAT16 = 2,
    FUSERUN_FLOAT64 = 3,
    FUSERUN_INT64 = 4,
    FUSERUN_UINT8 = 5
};
#define FUSERUN_DTYPE_COUNT 5

/* ---- options: what a user may write in the config ------------------------------------------------------------ */

enum fuse_option_type {
    FUSERUN_OPTION_BOOL = 1,   /* yes/no, true/false, on/off, 1/0 */
    FUSERUN_OPTION_INTEGER = 2,
    FUSERUN_OPTION_NUMBER = 3, /* a double */
    FUSERUN_OPTION_TEXT = 4,
    FUSERUN_OPTION_CHOICE = 5, /* one of `choices` */
    FUSERUN_OPTION_PATH = 6,   /* an input file or folder; reaches the plugin as an absolute path */
    FUSERUN_OPTION_SIZE = 7,   /* bytes: 4096, 64KiB, 2GiB */
    FUSERUN_OPTION_SPAN = 8,   /* 100, 100 steps, 1 epoch; read with option_integer, the unit with option_text */
    FUSERUN_OPTION_STAGE = 9   /* the NAME of a [scheduler.NAME] section; only in schedulers */
};
#define FUSERUN_OPTION_TYPE_COUNT 9

enum fuse_option_flag {
    FUSERUN_OPTION_REQUIRED = 1u << 0,     /* the config must set it */
    FUSERUN_OPTION_LIST = 1u << 1,         /* comma-separated values; see list_count */
    FUSERUN_OPTION_SCHEDULABLE = 1u << 2,  /* optimizers: a scheduler may drive it */
    FUSERUN_OPTION_NONE_ALLOWED = 1u << 3, /* `none` may stand for a number, which then reads as NaN */
    FUSERUN_OPTION_EMPTY_ALLOWED = 1u << 4 /* lists: no element at all is fine */
};

/* One key that a component understands. The config reader checks what the user wrote against this table, so a plugin
 * never sees a value of the wrong type, outside the range or of the wrong length, and `fuserun plugins NAME` prints it. */
struct fuse_option {
    uint32_t struct_size;
    uint32_t type;            /* enum fuse_option_type */
    uint32_t flags;           /* enum fuse_option_flag, or-ed */
    uint32_t list_count;      /* lists: the exact number of elements, or 0 for one or more */
    const char *key;          /* lower case, as in the config */
    const char *default_text; /* as a user would write it; NULL: unset unless the config sets it */
    const char *range;        /* numbers: an interval, "[0, 1)", "(0, inf)"; NULL: any finite number */
    const char *choices;      /* FUSERUN_OPTION_CHOICE: "cos|linear" */
    const char *elements;     /* lists of fixed length: a name for each element, "beta1|beta2", for schedulers */
    const char *unit;         /* for the help text, "updates"; may be NULL */
    const char *help;         /* one line */
};
#define FUSERUN_OPTION(...)                                                                                           \
    {                                                                                                                 \
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_option, help), __VA_ARGS__                                            \
    }
/* The same by position, for C++ before C++20, which has no designated initialisers. */
#define FUSERUN_OPTION_BY_POSITION(type_, flags_, list_count_, key_, default_, range_, choices_, elements_, unit_,    \
                                   help_)                                                                             \
    {                                                                                                                 \
        FUSERUN_STRUCT_SIZE(fuse_option, help), type_, flags_, list_count_, key_, default_, range_, choices_,         \
            elements_, unit_, help_                                                                                   \
    }

/* The values of one section, typed, defaults filled in. Read them through the host's option_* functions. Borrowed:
 * valid during the call that hands it over. */
struct fuse_options;

/* ---- the host's services ------------------------------------------------------------------------------------- */

struct fuse_schedule;         /* scheduler.h */
struct fuse_schedule_context; /* scheduler.h */
struct fuse_schedule_query;   /* scheduler.h */
struct fuse_schedule_observation; /* scheduler.h */

/* What fuserun offers to plugins. Valid for the whole life of the process. A field past struct_size does not exist. */
struct fuse_host {
    uint32_t struct_size;
    uint16_t abi_major;
    uint16_t abi_minor;

    /* One line to the user, prefixed with the level. Any thread. */
    void (*log)(enum fuse_log_level level, const char *format, ...) FUSERUN_PRINTF(2, 3);

    /* Fills *error and returns `code`, so that a function can end with `return host->fail(error, ...)`. `key` names
     * the option at fault or is NULL. `error` may be NULL. Any thread. */
    int (*fail)(struct fuse_error *error, int code, const char *key, const char *format, ...) FUSERUN_PRINTF(4, 5);

    /* Values of options. `key` must be one that the component declared with a fitting type; any other key reads as
     * unset, 0 or NULL. Lists: the elements, with *count set; scalars of a list type read as a list of one. Texts
     * and arrays are borrowed as long as the fuse_options are. */
    int (*option_is_set)(const struct fuse_options *options, const char *key); /* by the config or by a default */
    int (*option_bool)(const struct fuse_options *options, const char *key);
    int64_t (*option_integer)(const struct fuse_options *options, const char *key);
    double (*option_number)(const struct fuse_options *options, const char *key);
    const char *(*option_text)(const struct fuse_options *options, const char *key);
    const int64_t *(*option_integers)(const struct fuse_options *options, const char *key, size_t *count);
    const double *(*option_numbers)(const struct fuse_options *options, const char *key, size_t *count);
    const char *const *(*option_texts)(const struct fuse_options *options, const char *key, size_t *count);

    /* Schedulers only; see scheduler.h. */
    int (*schedule_create)(const struct fuse_schedule_context *context, const char *stage, int64_t length,
                           struct fuse_schedule **schedule, struct fuse_error *error);
    double (*schedule_value)(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query);
    double (*schedule_momentum)(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query);
    int (*schedule_cycles_momentum)(const struct fuse_schedule *schedule);

    /* Counter-based random numbers (Philox 4x32-10): element i of (seed, stream) is always the same number, whatever
     * was drawn before and on whichever thread. uniform: [0, 1) with 24 random bits. bits: 64 random bits. Any
     * thread, [no-alloc]. */
    void (*random_uniform)(uint64_t seed, uint64_t stream, uint64_t first, float *values, size_t count);
    uint64_t (*random_bits)(uint64_t seed, uint64_t stream, uint64_t index);

    /* A further table of services by its id, or NULL if this fuserun has none of that id. Each has a header of its own:
     * FUSERUN_FILE_SERVICES is in files.h. Any thread. */
    const void *(*get_service)(const char *id);

    /* Schedulers only; see scheduler.h. */
    void (*schedule_observe)(struct fuse_schedule *schedule, const struct fuse_schedule_observation *observation);
};

/* ---- what a plugin returns ----------------------------------------------------------------------------------- */

enum fuse_kind {
    FUSERUN_KIND_OPTIMIZER = 1,
    FUSERUN_KIND_SCHEDULER = 2,
    FUSERUN_KIND_MODEL = 3,
    FUSERUN_KIND_DATASET = 4,
    FUSERUN_KIND_BACKEND = 5
};
#define FUSERUN_KIND_COUNT 5

/* The constants that would break a plugin if they differed. Written by FUSERUN_ABI at the plugin's compile time,
 * compared by the loader before anything else is read; a mismatch names the constant and both values. It lies inside
 * struct fuse_plugin, so it is the one struct that never grows. */
struct fuse_abi {
    uint32_t struct_size;
    uint32_t magic;
    uint16_t major;
    uint16_t minor;          /* of the headers that the plugin was compiled with */
    uint16_t requires_minor; /* the oldest host minor that will do */
    uint16_t max_dims;
    uint32_t pointer_bytes;
    uint32_t dtype_count;
    uint32_t option_type_count;
};
#define FUSERUN_ABI_REQUIRING(minor_)                                                                                 \
    {                                                                                                                 \
        FUSERUN_STRUCT_SIZE(fuse_abi, option_type_count), FUSERUN_ABI_MAGIC, FUSERUN_ABI_MAJOR, FUSERUN_ABI_MINOR,    \
            (minor_), FUSERUN_MAX_DIMS, (uint32_t)sizeof(void *), FUSERUN_DTYPE_COUNT, FUSERUN_OPTION_TYPE_COUNT      \
    }
#define FUSERUN_ABI FUSERUN_ABI_REQUIRING(0)

/* One thing that a plugin offers. */
struct fuse_component {
    uint32_t struct_size;
    uint32_t kind;         /* enum fuse_kind */
    const char *name;      /* what the config says behind `plugin =` */
    const char *summary;   /* one line */
    uint64_t capabilities; /* flags of the kind's header */
    const struct fuse_option *options;
    uint32_t option_count;
    uint32_t option_stride; /* sizeof(struct fuse_option) as the plugin knows it */
    const void *api;        /* struct fuse_optimizer, fuse_scheduler, fuse_model, fuse_dataset or fuse_backend */
};
#define FUSERUN_OPTIONS(array)                                                                                        \
    .options = (array), .option_count = (uint32_t)(sizeof(array) / sizeof((array)[0])),                               \
    .option_stride = (uint32_t)sizeof((array)[0])
#define FUSERUN_COMPONENT(...)                                                                                        \
    {                                                                                                                 \
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_component, api), __VA_ARGS__                                          \
    }
/* The same by position, options and api included; options_ is an array. */
#define FUSERUN_COMPONENT_BY_POSITION(kind_, name_, summary_, capabilities_, options_, api_)                          \
    {                                                                                                                 \
        FUSERUN_STRUCT_SIZE(fuse_component, api), kind_, name_, summary_, capabilities_, options_,                    \
            (uint32_t)(sizeof(options_) / sizeof((options_)[0])), (uint32_t)sizeof((options_)[0]), api_               \
    }

struct fuse_plugin {
    uint32_t struct_size;
    struct fuse_abi abi;
    const char *name;    /* must equal the file's name without .so */
    const char *version; /* "1.0.0" */
    const char *license; /* an SPDX name, "MIT" */
    const struct fuse_component *components;
    uint32_t component_count;
    uint32_t component_stride;
};

/* The one function that a plugin exports. `host` may be kept. Returns NULL if the plugin cannot work here; it should
 * have said why through host->log. */
typedef const struct fuse_plugin *fuse_plugin_entry(const struct fuse_host *host);
#define FUSERUN_ENTRY_NAME "fuse_plugin_v1"

/* Defines the entry function for the components in `array`, a static const array of struct fuse_component. */
#define FUSERUN_PLUGIN(name_, version_, license_, array)                                                              \
    static const struct fuse_plugin fuse_this_plugin = {FUSERUN_STRUCT_SIZE(fuse_plugin, component_stride),           \
                                                        FUSERUN_ABI,                                                  \
                                                        name_,                                                        \
                                                        version_,                                                     \
                                                        license_,                                                     \
                                                        array,                                                        \
                                                        (uint32_t)(sizeof(array) / sizeof((array)[0])),               \
                                                        (uint32_t)sizeof((array)[0])};                                \
    FUSERUN_EXPORT const struct fuse_plugin *fuse_plugin_v1(const struct fuse_host *host);                            \
    const struct fuse_plugin *fuse_plugin_v1(const struct fuse_host *host)                                            \
    {                                                                                                                 \
        (void)host;                                                                                                   \
        return &fuse_this_plugin;                                                                                     \
    }

#ifdef __cplusplus
}
#endif
#endif
