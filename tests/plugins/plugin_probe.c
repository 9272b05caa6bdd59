/* plugin_probe FOLDER KIND NAME: what the registry makes of NAME with FOLDER first on the path, one line a fact. */
#include "base/text.h"
#include "plugin/registry.h"

#include <fuserun/optimizer.h>
#include <fuserun/scheduler.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Four updates of two elements with the options' defaults as numbers: lr 0.001, momentum 0.9. */
static void print_optimizer(const struct fuse_optimizer *optimizer)
{
    const struct fuse_rule *rule = optimizer->rules[0];
    const double hyper[] = {0.001, 0.9};
    const float grad[] = {1.0f, -2.0f};
    float param[] = {0.5f, 0.25f}, state[2] = {0.0f, 0.0f}, as_float[FUSERUN_MAX_SCALARS];
    double scalars[FUSERUN_MAX_SCALARS] = {0};
    float *const states[] = {state};
    printf("states %s\nscalars %s\n", rule->states, rule->scalars);
    if (rule->state_count != 1)
        return;
    for (int64_t step = 1; step <= 4; step++) {
        const struct fuse_update update = {
            .struct_size = FUSERUN_STRUCT_SIZE(fuse_update, numbers), .hyper_count = 2, .hyper = hyper, .step = step};
        optimizer->prepare(&update, scalars);
        for (size_t i = 0; i < FUSERUN_MAX_SCALARS; i++)
            as_float[i] = (float)scalars[i];
        const struct fuse_slice slice = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_slice, first),
                                         .state_count = 1,
                                         .param = param,
                                         .grad = grad,
                                         .states = states,
                                         .scalars = as_float,
                                         .count = 2};
        rule->update_slice(&slice);
    }
    printf("param %.6f %.6f\n", (double)param[0], (double)param[1]);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    struct fuse_registry *registry = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_component *component = NULL;
    const char *file;
    const char *const first[] = {argv[1]};
    const enum fuse_kind kind = strcmp(argv[2], "scheduler") == 0 ? FUSERUN_KIND_SCHEDULER : FUSERUN_KIND_OPTIMIZER;
    int status = fuse_registry_new(first, 1, NULL, &registry, &error);
    if (status == FUSERUN_OK)
        status = fuse_registry_find(registry, kind, argv[3], &component, &file, &error);
    if (status != FUSERUN_OK) {
        (void)fprintf(stderr, "%s\n", error.text);
    } else {
        printf("name %s\nfile %s\n", component->name, file);
        for (uint32_t i = 0; i < component->option_count; i++)
            printf("option %s\n", component->options[i].key);
        if (kind == FUSERUN_KIND_OPTIMIZER)
            print_optimizer(component->api);
    }
    fuse_registry_free(&registry);
    return status == FUSERUN_OK ? 0 : 1;
}
