#include "config/internal.h"

#include <string.h>

#define TEXT(key_, default_, help_)                                                                                    \
    FUSERUN_OPTION(.key = (key_), .type = FUSERUN_OPTION_TEXT, .default_text = (default_), .help = (help_))
#define PATH(key_, default_, help_)                                                                                    \
    FUSERUN_OPTION(.key = (key_), .type = FUSERUN_OPTION_PATH, .default_text = (default_), .help = (help_))
#define BOOL(key_, default_, help_)                                                                                    \
    FUSERUN_OPTION(.key = (key_), .type = FUSERUN_OPTION_BOOL, .default_text = (default_), .help = (help_))
#define CHOICE(key_, choices_, default_, help_)                                                                        \
    FUSERUN_OPTION(.key = (key_), .type = FUSERUN_OPTION_CHOICE, .choices = (choices_), .default_text = (default_),    \
                   .help = (help_))
#define INTEGER(key_, range_, default_, help_)                                                                         \
    FUSERUN_OPTION(.key = (key_), .type = FUSERUN_OPTION_INTEGER, .range = (range_), .default_text = (default_),       \
                   .help = (help_))
#define NUMBER(key_, range_, default_, help_)                                                                          \
    FUSERUN_OPTION(.key = (key_), .type = FUSERUN_OPTION_NUMBER, .range = (range_), .default_text = (default_),        \
                   .help = (help_))
#define SPAN(key_, default_, help_)                                                                                    \
    FUSERUN_OPTION(.key = (key_), .type = FUSERUN_OPTION_SPAN, .default_text = (default_), .help = (help_))
#define PLUGIN                                                                                                         \
    FUSERUN_OPTION(.key = "plugin", .type = FUSERUN_OPTION_TEXT, .flags = FUSERUN_OPTION_REQUIRED,                     \
                   .help = "a name on the search path, or a path that ends in .so")
/* In sections that take the plugin of another one unless they name their own. */
#define PLUGIN_OPTIONAL TEXT("plugin", NULL, "a plugin of its own")

/* Defaults that depend on the file are made in fuse_section_default(): run.name, run.output. */
static const struct fuse_option run_options[] = {
    TEXT("name", NULL, "the run's name; the config's file stem"),
    PATH("output", NULL, "the run's folder; runs/<name> under the working directory"),
    BOOL("overwrite", "no", "replace an earlier run in the folder"),
    INTEGER("steps", "[1, inf)", NULL, "optimizer updates; or epochs"),
    INTEGER("epochs", "[1, inf)", NULL, "passes over the data; or steps"),
    INTEGER("seed", "[0, inf)", "0", "of all random numbers"),
    TEXT("device", "auto", "auto, cpu, cuda or cuda:N"),
    CHOICE("precision", "fp32|bf16", "fp32", "of activations and matrix products"),
    INTEGER("threads", "[0, 4096]", "0", "0: OMP_NUM_THREADS, else the cores this process may use"),
    TEXT("resume", "auto", "auto, never or a checkpoint's path"),
    BOOL("resume_strict", "yes", "a checkpoint must fit the config"),
    CHOICE("nonfinite", "stop|skip", "stop", "what a NaN or infinite gradient does"),
    BOOL("tf32", "no", "float32 products may be rounded to TF32 where the device can"),
    CHOICE("progress", "auto|bar|plain|off", "auto", "how progress is shown"),
    BOOL("profile", "no", "tell where the time goes: a table and profile.json"),
    PATH("include", NULL, "a config to read first"),
};
static const struct fuse_option plugins_options[] = {
    FUSERUN_OPTION(.key = "path", .type = FUSERUN_OPTION_PATH,
                   .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_EMPTY_ALLOWED, .help = "folders searched first"),
};
static const struct fuse_option model_options[] = {
    PLUGIN,
    PATH("weights", NULL, "weights to start from, .safetensors or .pth"),
    TEXT("weights_key", NULL, "the dict inside a .pth that holds more than a state dict"),
    BOOL("strict", "yes", "all names and shapes must match"),
    FUSERUN_OPTION(.key = "freeze", .type = FUSERUN_OPTION_TEXT,
                   .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_EMPTY_ALLOWED,
                   .help = "globs of parameters that are not trained"),
};
static const struct fuse_option data_options[] = {
    PLUGIN,
    INTEGER("batch_size", "[1, inf)", "1", "samples in a micro-batch"),
    BOOL("shuffle", "yes", "a new order every epoch"),
    BOOL("drop_last", "no", "leave a shorter last batch out"),
};
static const struct fuse_option eval_options[] = {
    PLUGIN_OPTIONAL,
    SPAN("every", "1 epoch", "how often to evaluate"),
    INTEGER("batch_size", "[1, inf)", "1", "samples in a batch"),
    BOOL("shuffle", "no", "a new order every time"),
    BOOL("drop_last", "no", "leave a shorter last batch out"),
};
static const struct fuse_option loss_options[] = {
    CHOICE("kind", "cross_entropy|mse|sum", "cross_entropy", "what is minimised"),
    NUMBER("label_smoothing", "[0, 1]", "0", "cross_entropy: weight of the uniform distribution"),
};
static const struct fuse_option optimizer_options[] = {
    PLUGIN,
    CHOICE("mode", "fused|per_param|foreach", "fused", "when updates are applied"),
    INTEGER("accumulate", "[1, inf)", "1", "micro-batches in an update"),
    NUMBER("clip_grad_norm", "(0, inf)", NULL, "the greatest global norm of the gradient"),
    NUMBER("clip_grad_value", "(0, inf)", NULL, "the greatest size of an element of the gradient"),
    NUMBER("clip_grad_norm_per_parameter", "(0, inf)", NULL,
           "the greatest norm of each parameter's gradient by itself"),
    CHOICE("clip_algorithm", "auto|deferred|two_pass|keep", "auto", "how the norm is found in fused mode"),
    BOOL("log_grad_norm", "no", "write the norm to metrics.jsonl"),
};
static const struct fuse_option group_options[] = {
    FUSERUN_OPTION(.key = "match", .type = FUSERUN_OPTION_TEXT, .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_REQUIRED,
                   .help = "globs of the group's parameters"),
    PLUGIN_OPTIONAL,
};
#define DRIVES(default_)                                                                                               \
    FUSERUN_OPTION(.key = "drives", .type = FUSERUN_OPTION_TEXT, .flags = FUSERUN_OPTION_LIST,                         \
                   .default_text = (default_), .help = "the optimizer options that the curve is applied to")
static const struct fuse_option scheduler_options[] = {
    PLUGIN,
    CHOICE("unit", "step|epoch", "step", "what the schedule counts"),
    DRIVES("lr"),
};
/* drives: the option that the section's name says, see fuse_section_default(). */
static const struct fuse_option curve_options[] = {
    PLUGIN,
    CHOICE("unit", "step|epoch", "step", "what the schedule counts"),
    DRIVES(NULL),
};
static const struct fuse_option stage_options[] = {PLUGIN};
static const struct fuse_option memory_options[] = {
    CHOICE("recompute", "none|blocks", "none", "activations to compute again in backward"),
    TEXT("limit", "auto", "auto: what the machine has left, none, or a size: a plan that needs more is refused"),
    BOOL("timeline", "yes", "write memory.html and memory.json"),
    BOOL("snapshot", "no", "write memory.pickle for the PyTorch memory viewer"),
};
static const struct fuse_option checkpoint_options[] = {
    SPAN("every", NULL, "how often to write a checkpoint"),
    INTEGER("keep", "[1, inf)", "3", "checkpoints that stay"),
    BOOL("background", "no", "write while training goes on"),
};

#define TABLE(array) (array), sizeof(array) / sizeof((array)[0])
static const struct {
    const char *name; /* of the section; what stands before NAME, for those that have one */
    bool has_argument;
    enum fuse_kind kind; /* 0: none */
    const char *parent;  /* keys that the section lacks come from there */
    const struct fuse_option *options;
    size_t option_count;
} roles[FUSE_ROLE_COUNT] = {
    [FUSE_ROLE_UNKNOWN] = {NULL, false, 0, NULL, NULL, 0},
    [FUSE_ROLE_RUN] = {"run", false, 0, NULL, TABLE(run_options)},
    [FUSE_ROLE_PLUGINS] = {"plugins", false, 0, NULL, TABLE(plugins_options)},
    [FUSE_ROLE_MODEL] = {"model", false, FUSERUN_KIND_MODEL, NULL, TABLE(model_options)},
    [FUSE_ROLE_DATA] = {"data", false, FUSERUN_KIND_DATASET, NULL, TABLE(data_options)},
    [FUSE_ROLE_EVAL] = {"eval", false, FUSERUN_KIND_DATASET, "data", TABLE(eval_options)},
    [FUSE_ROLE_LOSS] = {"loss", false, 0, NULL, TABLE(loss_options)},
    [FUSE_ROLE_OPTIMIZER] = {"optimizer", false, FUSERUN_KIND_OPTIMIZER, NULL, TABLE(optimizer_options)},
    [FUSE_ROLE_GROUP] = {"group ", true, FUSERUN_KIND_OPTIMIZER, "optimizer", TABLE(group_options)},
    [FUSE_ROLE_SCHEDULER] = {"scheduler", false, FUSERUN_KIND_SCHEDULER, NULL, TABLE(scheduler_options)},
    [FUSE_ROLE_CURVE] = {"scheduler ", true, FUSERUN_KIND_SCHEDULER, NULL, TABLE(curve_options)},
    [FUSE_ROLE_STAGE] = {"scheduler.", true, FUSERUN_KIND_SCHEDULER, NULL, TABLE(stage_options)},
    [FUSE_ROLE_MEMORY] = {"memory", false, 0, NULL, TABLE(memory_options)},
    [FUSE_ROLE_CHECKPOINT] = {"checkpoint", false, 0, NULL, TABLE(checkpoint_options)},
};

enum fuse_role fuse_role_of(const char *name, const char **argument)
{
    for (int role = FUSE_ROLE_UNKNOWN + 1; role < FUSE_ROLE_COUNT; role++) {
        const size_t length = strlen(roles[role].name);
        *argument = name + length;
        if (!roles[role].has_argument ? strcmp(name, roles[role].name) == 0
                                      : strncmp(name, roles[role].name, length) == 0 && name[length] != '\0')
            return role;
    }
    *argument = name + strlen(name);
    return FUSE_ROLE_UNKNOWN;
}

const struct fuse_option *fuse_role_options(enum fuse_role role, size_t *count)
{
    *count = roles[role].option_count;
    return roles[role].options;
}

enum fuse_kind fuse_role_kind(enum fuse_role role)
{
    return roles[role].kind;
}

const char *fuse_role_parent(enum fuse_role role)
{
    return roles[role].parent;
}

bool fuse_role_find_option(enum fuse_role role, const char *key, struct fuse_option *option)
{
    for (size_t i = 0; i < roles[role].option_count; i++)
        if (strcmp(roles[role].options[i].key, key) == 0) {
            *option = roles[role].options[i];
            return true;
        }
    return false;
}

const char *const *fuse_section_names(size_t *count)
{
    static const char *const names[] = {"run",       "plugins", "model",     "data",       "eval",      "loss",
                                        "optimizer", "memory",  "scheduler", "checkpoint", "group NAME"};
    *count = sizeof(names) / sizeof(names[0]);
    return names;
}

const char *fuse_nearest_key(const char *key, const char *const *names, size_t count)
{
    /* Words that people know from elsewhere, too far from ours for an edit distance. */
    static const char *const synonyms[][2] = {
        {"learning_rate", "lr"},
        {"wd", "weight_decay"},
        {"decay", "weight_decay"},
        {"epsilon", "eps"},
        {"beta", "betas"},
        {"batch", "batch_size"},
        {"optimizer", "plugin"},
        {"type", "plugin"},
        {"name", "plugin"},
        {"max_steps", "steps"},
        {"iterations", "steps"},
        {"num_epochs", "epochs"},
        {"dtype", "precision"},
        {"num_threads", "threads"},
        {"patterns", "match"},
        {"max_grad_norm", "clip_grad_norm"},
        {"params", "match"},
        {"scheduler", "plugin"},
        {"smoothing", "label_smoothing"},
    };
    const char *nearest = fuse_nearest(key, names, count);
    for (size_t i = 0; nearest == NULL && i < sizeof(synonyms) / sizeof(synonyms[0]); i++) {
        const char *const known = synonyms[i][0];
        if (fuse_nearest(key, &known, 1) == NULL)
            continue;
        for (size_t j = 0; j < count; j++)
            if (strcmp(names[j], synonyms[i][1]) == 0)
                nearest = names[j];
    }
    return nearest;
}
