#include "train/device.h"

#include "config/options.h"
#include "memory/resident.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A backend by its name, with a device of that index. */
static int find_backend(const struct fuse_experiment *experiment, const char *name, uint32_t device_index,
                        const struct fuse_backend **backend, struct fuse_error *cause)
{
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    FUSE_TRY(fuse_registry_find(experiment->registry, FUSERUN_KIND_BACKEND, name, &component, &file, cause));
    *backend = component->api;
    const int devices = (*backend)->device_count(fuse_host(), cause);
    if (devices > 0 && device_index >= (uint32_t)devices)
        return fuse_fail(cause, FUSERUN_ERROR_CONFIG, NULL, "there is no device %u of '%s' here, only %d from 0 on",
                         device_index, name, devices);
    return devices > 0 ? FUSERUN_OK : FUSERUN_ERROR_CONFIG; /* it said why */
}

static int make_dict(struct fuse_experiment *experiment, const struct fuse_group_spec *specs, size_t count,
                     struct fuse_error *cause)
{
    const char *name = fuse_option_text(fuse_config_options(experiment->config, "optimizer"), "mode");
    enum fuse_mode mode = FUSE_MODE_FUSED;
    if (name != NULL && strcmp(name, "per_param") == 0)
        mode = FUSE_MODE_PER_PARAM;
    else if (name != NULL && strcmp(name, "foreach") == 0)
        mode = FUSE_MODE_FOREACH;
    return fuse_dict_new(experiment->graph, experiment->backend, experiment->device, mode, specs, count,
                         experiment->clock->driven, experiment->clock->driven_count, &experiment->dict, cause);
}

/* The device and the optimizer dict on it. After a failure, experiment->backend tells what failed: NULL, the device. */
static int open_on(struct fuse_experiment *experiment, const struct fuse_backend *backend,
                   const struct fuse_backend_options *options, const struct fuse_group_spec *specs, size_t count,
                   struct fuse_error *cause)
{
    FUSE_TRY(backend->open(fuse_host(), options, &experiment->device, cause));
    experiment->backend = backend;
    /* Libraries are in memory now, nothing of the model is: what comes on top is the experiment's. */
    fuse_resident_reset_peak();
    experiment->resident_base_bytes = fuse_resident_now_bytes();
    return make_dict(experiment, specs, count, cause);
}

void fuse_experiment_close_device(struct fuse_experiment *experiment)
{
    if (experiment->backend != NULL)
        experiment->backend->close(experiment->device);
    experiment->backend = NULL;
    experiment->device = NULL;
}

/* A CUDA device that can be used, else the CPU: without a word where there is none, with one where it cannot do what
 * the config asks for, which is looked at first: opening a device takes time and memory. What is wrong with the config
 * would be so on the CPU, too. */
static int open_automatic(struct fuse_experiment *experiment, const struct fuse_backend_options *options,
                          const struct fuse_group_spec *specs, size_t count, struct fuse_error *cause)
{
    const struct fuse_backend *backend = NULL;
    const int found = find_backend(experiment, "cuda", options->device_index, &backend, cause);
    if (found == FUSERUN_ERROR_MEMORY)
        return found;
    if (found == FUSERUN_OK) {
        int status = fuse_dict_check_rules(backend, specs, count, experiment->clock->driven,
                                           experiment->clock->driven_count, cause);
        if (status == FUSERUN_OK)
            status = open_on(experiment, backend, options, specs, count, cause);
        if (status == FUSERUN_OK || status == FUSERUN_ERROR_MEMORY || status == FUSERUN_ERROR_CONFIG ||
            status == FUSERUN_ERROR_INTERNAL)
            return status;
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "device",
                         "auto takes the CPU instead of the CUDA device: %s", cause->text);
        fuse_experiment_close_device(experiment);
    } else if (cause->code == FUSERUN_ERROR_DEVICE) {
        fuse_config_warn(experiment->config, experiment->diagnostics, "run", "device",
                         "auto takes the CPU though there is a CUDA device: %s", cause->text);
    }
    *cause = (struct fuse_error)FUSE_ERROR_INIT;
    FUSE_TRY(find_backend(experiment, "cpu", options->device_index, &backend, cause));
    return open_on(experiment, backend, options, specs, count, cause);
}

static int open_named(struct fuse_experiment *experiment, const char *device, struct fuse_backend_options *options,
                      const struct fuse_group_spec *specs, size_t count, struct fuse_error *cause)
{
    const struct fuse_backend *backend = NULL;
    const size_t length = strcspn(device, ":");
    char name[16];
    (void)snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), device);
    if (device[length] == ':') {
        const unsigned long index = strtoul(device + length + 1, NULL, 10);
        options->device_index = index < UINT32_MAX ? (uint32_t)index : UINT32_MAX;
    }
    FUSE_TRY(find_backend(experiment, name, options->device_index, &backend, cause));
    return open_on(experiment, backend, options, specs, count, cause);
}

int fuse_experiment_open_device(struct fuse_experiment *experiment, const struct fuse_group_spec *specs, size_t count,
                                struct fuse_error *error)
{
    const struct fuse_options *run = fuse_config_options(experiment->config, "run");
    const char *device = fuse_option_text(run, "device");
    struct fuse_backend_options options = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_options, allows_tf32),
        .thread_count = (uint32_t)fuse_option_integer(run, "threads"),
        .precision = fuse_experiment_is_bfloat16(experiment) ? FUSERUN_BFLOAT16 : FUSERUN_FLOAT32,
        .allows_tf32 = fuse_option_bool(run, "tf32") != 0,
    };
    struct fuse_error cause = FUSE_ERROR_INIT;
    const int status = device == NULL || strcmp(device, "auto") == 0
                           ? open_automatic(experiment, &options, specs, count, &cause)
                           : open_named(experiment, device, &options, specs, count, &cause);
    if (status == FUSERUN_OK)
        return FUSERUN_OK;
    const bool is_dict = experiment->backend != NULL;
    char section[sizeof cause.key];
    (void)snprintf(section, sizeof section, "%s", is_dict ? "optimizer" : "run");
    const char *bar = is_dict ? strchr(cause.key, '|') : NULL; /* SECTION|KEY, where the config has a line for it */
    if (bar != NULL) {
        const size_t length = (size_t)(bar - cause.key);
        memcpy(section, cause.key, length);
        section[length] = '\0';
        memmove(cause.key, bar + 1, strlen(bar));
    } else if (is_dict || strcmp(cause.key, "precision") != 0) {
        cause.key[0] = '\0';
    }
    FUSE_TRY(fuse_experiment_blame(experiment, section, is_dict ? "plugin" : "device", &cause, error));
    return fuse_experiment_refused(error);
}
