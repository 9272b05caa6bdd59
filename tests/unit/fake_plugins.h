/* Made-up components behind a resolver, so that the config can be tested without any plugin. */
#ifndef FUSE_TESTS_FAKE_PLUGINS_H
#define FUSE_TESTS_FAKE_PLUGINS_H

#include "config/config.h"
#include "config/options.h"

#include <string.h>

#define NUMBER(...) FUSERUN_OPTION(.type = FUSERUN_OPTION_NUMBER, __VA_ARGS__)
#define INTEGER(...) FUSERUN_OPTION(.type = FUSERUN_OPTION_INTEGER, __VA_ARGS__)
#define BOOL(...) FUSERUN_OPTION(.type = FUSERUN_OPTION_BOOL, __VA_ARGS__)

static const struct fuse_option fake_adam_options[] = {
    NUMBER(.key = "lr", .default_text = "1e-3", .range = "[0, inf)", .flags = FUSERUN_OPTION_SCHEDULABLE),
    NUMBER(.key = "betas", .default_text = "0.9, 0.999", .range = "[0, 1)", .list_count = 2,
           .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_SCHEDULABLE, .elements = "beta1|beta2"),
    NUMBER(.key = "eps", .default_text = "1e-8", .range = "[0, inf)"),
    NUMBER(.key = "weight_decay", .default_text = "0", .range = "[0, inf)", .flags = FUSERUN_OPTION_SCHEDULABLE),
    BOOL(.key = "amsgrad", .default_text = "no"),
};
static const struct fuse_option fake_sgd_options[] = {
    NUMBER(.key = "lr", .default_text = "1e-2", .range = "[0, inf)", .flags = FUSERUN_OPTION_SCHEDULABLE),
    NUMBER(.key = "momentum", .default_text = "0", .range = "[0, inf)", .flags = FUSERUN_OPTION_SCHEDULABLE),
    NUMBER(.key = "weight_decay", .default_text = "0", .range = "[0, inf)", .flags = FUSERUN_OPTION_SCHEDULABLE),
    BOOL(.key = "nesterov", .default_text = "no"),
};
static const struct fuse_option fake_constant_options[] = {
    NUMBER(.key = "factor", .default_text = "1"),
};
static const struct fuse_option fake_linear_options[] = {
    NUMBER(.key = "start_factor", .default_text = "0.3333333333333333", .range = "[0, 1]"),
    INTEGER(.key = "total_iters", .default_text = "5", .range = "[1, inf)"),
};
static const struct fuse_option fake_cosine_options[] = {
    INTEGER(.key = "t_max", .range = "[1, inf)"),
    NUMBER(.key = "eta_min", .default_text = "0"),
    NUMBER(.key = "limits", .default_text = "none, 1e-3", .list_count = 2,
           .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_NONE_ALLOWED),
};
static const struct fuse_option fake_sequential_options[] = {
    FUSERUN_OPTION(.key = "stages", .type = FUSERUN_OPTION_STAGE,
                   .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_REQUIRED,
                   .help = "names of [scheduler.NAME] sections"),
    INTEGER(.key = "milestones", .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_EMPTY_ALLOWED, .range = "[1, inf)"),
};
static const struct fuse_option fake_chain_options[] = {
    FUSERUN_OPTION(.key = "stages", .type = FUSERUN_OPTION_STAGE,
                   .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_REQUIRED),
};
static const struct fuse_option fake_mlp_options[] = {
    INTEGER(.key = "sizes", .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_REQUIRED, .range = "[1, inf)",
            .help = "widths of all layers"),
    FUSERUN_OPTION(.key = "activation", .type = FUSERUN_OPTION_CHOICE, .choices = "relu|gelu|tanh",
                   .default_text = "relu"),
};
static const struct fuse_option fake_tensors_options[] = {
    FUSERUN_OPTION(.key = "file", .type = FUSERUN_OPTION_PATH, .flags = FUSERUN_OPTION_REQUIRED, .help = "the samples"),
    FUSERUN_OPTION(.key = "cache", .type = FUSERUN_OPTION_SIZE, .default_text = "64KiB"),
};
static const struct fuse_option fake_noise_options[] = {
    INTEGER(.key = "length", .default_text = "100", .range = "[1, inf)"),
};
/* Declares a key that is fuserun's own. */
static const struct fuse_option fake_clash_options[] = {
    NUMBER(.key = "mode", .default_text = "1"),
};

static const struct fuse_component fake_components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_OPTIMIZER, .name = "adam", FUSERUN_OPTIONS(fake_adam_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_OPTIMIZER, .name = "sgd", FUSERUN_OPTIONS(fake_sgd_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_OPTIMIZER, .name = "clash", FUSERUN_OPTIONS(fake_clash_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_SCHEDULER, .name = "constant", FUSERUN_OPTIONS(fake_constant_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_SCHEDULER, .name = "linear", FUSERUN_OPTIONS(fake_linear_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_SCHEDULER, .name = "cosine", FUSERUN_OPTIONS(fake_cosine_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_SCHEDULER, .name = "sequential", FUSERUN_OPTIONS(fake_sequential_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_SCHEDULER, .name = "chain", FUSERUN_OPTIONS(fake_chain_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_MODEL, .name = "mlp", FUSERUN_OPTIONS(fake_mlp_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_DATASET, .name = "tensors", FUSERUN_OPTIONS(fake_tensors_options)),
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_DATASET, .name = "noise", FUSERUN_OPTIONS(fake_noise_options)),
};
enum { FAKE_COMPONENT_COUNT = sizeof(fake_components) / sizeof(fake_components[0]) };

/* Components by name; "/abs/NAME.so" is a dropped-in file with the component NAME. */
static inline int fake_find(void *user, enum fuse_kind kind, const char *name, const struct fuse_component **component,
                            const char **file, struct fuse_error *error)
{
    (void)user;
    char stem[64] = "";
    const char *slash = strrchr(name, '/');
    const char *base = slash == NULL ? name : slash + 1;
    const size_t length = strlen(base), end = length > 3 && strcmp(base + length - 3, ".so") == 0 ? 3 : 0;
    if (length - end < sizeof(stem))
        memcpy(stem, base, length - end);
    for (int i = 0; i < FAKE_COMPONENT_COUNT; i++)
        if (fake_components[i].kind == (uint32_t)kind && strcmp(fake_components[i].name, stem) == 0) {
            *component = &fake_components[i];
            *file = slash == NULL ? "/standard/plugin.so" : name;
            return FUSERUN_OK;
        }
    return fuse_fail(error, FUSERUN_ERROR_PLUGIN, "plugin", "no plugin '%s'", name);
}

static inline bool fake_is_standard(void *user, const char *file)
{
    (void)user;
    return strncmp(file, "/standard/", 10) == 0;
}

static const struct fuse_resolver fake_resolver = {.find = fake_find, .user = NULL, .is_standard = fake_is_standard};

#endif
