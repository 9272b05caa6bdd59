/* optim/ - the optimizer dict (one optimizer per parameter), groups, the clock and its schedules, and the step in its
 * three modes. Uses graph/, config/, plugin/, memory/, base/.
 *
 * The dict holds one entry per trainable parameter: its rule, its state, its own step count, its group. In `fused` mode
 * an entry is a post-accumulate callback of its parameter and runs inside backward; in `per_param` and `foreach` all
 * entries run after it. Nobody steps a scheduler: before each update the clock is read once, every group's options are
 * set from it, and every entry's scalars are computed from its group's options. */
#ifndef FUSE_OPTIM_DICT_H
#define FUSE_OPTIM_DICT_H

#include "graph/graph.h"
#include "graph/program.h"
#include "memory/ledger.h"
#include "optim/clip.h"

enum fuse_mode { FUSE_MODE_FUSED = 1, FUSE_MODE_PER_PARAM = 2, FUSE_MODE_FOREACH = 3 };

/* A group as the dict is told of it. */
struct fuse_group_spec {
    const char *name; /* "default" or NAME */
    const char *const *match;
    size_t match_count; /* default: 0 */
    const struct fuse_component *component;
    const struct fuse_options *options;
};

/* A number of a group's options that schedules drive: filled by whoever owns the schedules before each update. */
struct fuse_group {
    char *name;
    const struct fuse_component *component;
    const struct fuse_optimizer *optimizer; /* component->api */
    const struct fuse_rule *rule;
    struct fuse_compiled_rule *compiled; /* NULL for rules with update_tensor, which each entry has of its own */
    double base[FUSERUN_MAX_HYPER];      /* from the config */
    double hyper[FUSERUN_MAX_HYPER];     /* at the present update */
    uint8_t is_driven[FUSERUN_MAX_HYPER];
    uint32_t hyper_count;
    uint32_t parameter_count; /* trainable ones */
};

struct fuse_entry {
    uint32_t parameter; /* index in the graph */
    uint32_t group;
    int64_t step; /* completed updates of this parameter */
    int64_t element_count;
    int64_t row_count;                 /* of its first dimension: panels are whole rows */
    float *values;                     /* the parameter */
    float *states[FUSERUN_MAX_STATES]; /* each (its count below) */
    int64_t state_counts[FUSERUN_MAX_STATES];
    struct fuse_compiled_tensor *tensor;             /* of a rule with update_tensor; NULL: element-wise */
    uint64_t scratch_offsets[FUSERUN_MAX_SCRATCHES]; /* of its rule's, in the dict's scratch; bytes */
    uint32_t rank;
    int64_t shape[FUSERUN_MAX_DIMS];
    float scalars[FUSERUN_MAX_SCALARS];
    double numbers[FUSERUN_MAX_NUMBERS];      /* the rule's own, as of the last update done */
    double next_numbers[FUSERUN_MAX_NUMBERS]; /* and as of the present one, should it be done */
    bool is_updated;                          /* in the present update */
    uint64_t watch_order; /* of its gradient's first look by the device in this update; 0: none (see step.c) */
};

/* What a gradient callback of the dict knows. */
struct fuse_dict_user {
    struct fuse_dict *dict;
    uint32_t entry;
};

struct fuse_dict {
    const struct fuse_backend *backend;
    void *device;
    enum fuse_mode mode;
    struct fuse_group *groups; /* [0] is `default`, then as in the config */
    uint32_t group_count;
    struct fuse_entry *entries; /* trainable parameters, in the graph's order */
    uint32_t entry_count;
    uint32_t *entry_of_parameter; /* UINT32_MAX: frozen */
    uint32_t parameter_count;
    float **parameters; /* one a parameter, in the persistent block */
    char *memory;       /* one allocation: parameters, then state, then scratch */
    uint64_t parameter_bytes, state_bytes, memory_bytes;
    /* For rules with update_tensor, one after another: their scratch, and the backend's workspace behind it. */
    uint64_t rule_scratch_bytes, scratch_bytes;
    char *scratch;
    struct fuse_slice *slices;    /* foreach: room for one list */
    struct fuse_dict_user *users; /* one an entry */
    struct fuse_error step_error;
    struct fuse_clip clip; /* set by whoever makes the dict, before it is attached */
    /* The first parameter whose gradient was not finite in this update, in the order of the backward pass. */
    uint32_t nonfinite_parameter; /* UINT32_MAX: none */
    uint64_t watch_count;         /* looks that the device was asked for in this update */
};

/* Whether a device of that backend can do a rule's updates. Memory of the device's own is out of reach of a rule's
 * functions: such a backend compiles the rule's texts. */
bool fuse_rule_runs_on(const struct fuse_rule *rule, const struct fuse_backend *backend);

/* The same for each group's rule, before a device is opened: FUSERUN_ERROR_UNSUPPORTED names the first that cannot. */
int fuse_dict_check_rules(const struct fuse_backend *backend, const struct fuse_group_spec *groups, size_t group_count,
                          const char *const *driven, size_t driven_count, struct fuse_error *error);

/* The group that takes a parameter of this name: the first whose globs match it, 0 (`default`) if none does. */
uint32_t fuse_group_of(const char *parameter, const struct fuse_group_spec *groups, size_t group_count);

/* Assigns parameters to groups and rules to groups; allocates nothing on the device yet. driven: names of the options
 * that schedules drive ("lr", "beta1"). An error's key is SECTION|KEY ("group NAME|match") where the config has a line
 * for it. */
int fuse_dict_new(const struct fuse_graph *graph, const struct fuse_backend *backend, void *device, enum fuse_mode mode,
                  const struct fuse_group_spec *groups, size_t group_count, const char *const *driven,
                  size_t driven_count, struct fuse_dict **dict, struct fuse_error *error);
void fuse_dict_free(struct fuse_dict **dict);

/* What it will hold is known then, for `check`: dict->parameter_bytes, state_bytes and scratch_bytes. */

/* Allocates the persistent block, initialises the parameters (seed), zeroes the state. */
int fuse_dict_allocate(struct fuse_dict *dict, const struct fuse_graph *graph, uint64_t seed, struct fuse_error *error);

/* Attaches the dict to a graph of the same parameters before its program is compiled: in fused mode one callback a
 * parameter that updates; in the others one that watches for non-finite gradients. */
int fuse_dict_attach(struct fuse_dict *dict, struct fuse_graph *graph, struct fuse_error *error);
/* For fuse_program_options: how gradients are used in this mode. */
enum fuse_gradient_use fuse_dict_gradient_use(const struct fuse_dict *dict);
fuse_after_backward fuse_dict_after_backward; /* user = the dict */

/* The name at `index` of a rule's list, "(exp_avg, exp_avg_sq)"; borrowed, *length bytes of it. NULL: there is none. */
const char *fuse_rule_name(const char *list, uint32_t index, size_t *length);

/* Before the backward pass of an update, with groups' hyper set; and after it: step counts move. */
void fuse_dict_begin(struct fuse_dict *dict);
int fuse_dict_end(struct fuse_dict *dict, struct fuse_error *error);

#endif
