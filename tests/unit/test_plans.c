/* Plans of the shipped configs' networks, without running them: every buffer of a mode's program is placed, and the
 * extent is within 2 % and 64 bytes a buffer of the greatest sum of live bytes. */
#include "device.h"

#include "config/options.h"
#include "plugin/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>

struct network {
    const char *model;
    const char *pairs[2];
    uint32_t rank;
    int64_t shape[4];
    enum fuse_loss_kind loss;
};

static const struct network networks[] = {
    {"mlp", {"sizes=64, 128, 10", "activation=relu"}, 2, {32, 64}, FUSE_LOSS_CROSS_ENTROPY},
    {"mlp",
     {"sizes=784, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 10", "activation=relu"},
     2,
     {32, 784},
     FUSE_LOSS_CROSS_ENTROPY},
    {"vit", {"preset=vit_b_16", "dropout=0"}, 4, {1, 3, 224, 224}, FUSE_LOSS_SUM},
    {"vit", {"preset=vit_l_16", "dropout=0"}, 4, {1, 3, 224, 224}, FUSE_LOSS_SUM},
    {"vit", {"preset=vit_l_16", "dropout=0.1"}, 4, {3, 3, 224, 224}, FUSE_LOSS_CROSS_ENTROPY},
};

static void check(int status, const struct fuse_error *error)
{
    if (status != FUSERUN_OK)
        fail_msg("%d: %s %s", status, error->key, error->text);
}

static struct fuse_graph *graph_of(struct fuse_registry *registry, const struct network *network)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_component *model = NULL;
    const char *file = NULL;
    struct fuse_options *options = NULL;
    struct fuse_graph *graph = NULL;
    check(fuse_registry_find(registry, FUSERUN_KIND_MODEL, network->model, &model, &file, &error), &error);
    check(fuse_options_from_pairs(model, network->pairs, 2, &options, &error), &error);
    check(fuse_graph_build(fuse_host(), model, options, network->rank, network->shape, &graph, &error), &error);
    fuse_options_free(&options);
    return graph;
}

static void ignore(void *user, const struct fuse_gradient *gradient)
{
    (void)user;
    (void)gradient;
}

static void check_plan(struct fuse_registry *registry, const struct network *network,
                       const struct fuse_program_options *options)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    void *device = NULL;
    const struct fuse_backend *backend = device_open(2, &device);
    struct fuse_graph *graph = graph_of(registry, network);
    const struct fuse_gradient_callback callback = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_gradient_callback, user),
                                                    .form = FUSERUN_GRADIENT_PANELS,
                                                    .gradient = ignore};
    for (uint32_t p = 0; p < graph->parameter_count; p++)
        check(fuse_graph_attach(graph, p, &callback, &error), &error);
    struct fuse_program *program = NULL;
    check(fuse_program_compile(graph, backend, device, options, &program, &error), &error);
    const uint64_t nothing[FUSE_CATEGORY_COUNT] = {0};
    struct fuse_peak peak;
    fuse_program_peak(program, nothing, &peak);
    const double most = 1.02 * (double)peak.bytes + 64.0 * program->buffer_count;
    if (program->arena_bytes < peak.bytes || (double)program->arena_bytes > most)
        fail_msg("%s, %s, gradients %d, norm %d: %llu bytes placed in %llu", network->model, network->pairs[0],
                 (int)options->gradients, (int)options->norm, (unsigned long long)peak.bytes,
                 (unsigned long long)program->arena_bytes);
    fuse_program_free(&program);
    fuse_graph_free(&graph);
}

static void shipped_networks_are_planned_tightly(void **state)
{
    (void)state;
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_registry *registry = NULL;
    check(fuse_registry_new(NULL, 0, NULL, &registry, &error), &error);
    static const struct fuse_program_options ways[] = {
        {.gradients = FUSE_GRADIENTS_NONE},
        {.gradients = FUSE_GRADIENTS_RELEASE},
        {.gradients = FUSE_GRADIENTS_RELEASE, .recomputes_blocks = true},
        {.gradients = FUSE_GRADIENTS_KEEP_ALL},
        {.gradients = FUSE_GRADIENTS_KEEP_EACH},
        {.gradients = FUSE_GRADIENTS_RELEASE, .norm = FUSE_NORM_DEFER},
        {.gradients = FUSE_GRADIENTS_RELEASE, .norm = FUSE_NORM_TWICE},
    };
    for (size_t n = 0; n < sizeof networks / sizeof networks[0]; n++)
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            struct fuse_program_options options = ways[w];
            options.loss = networks[n].loss;
            check_plan(registry, &networks[n], &options);
        }
    fuse_registry_free(&registry);
}

static int teardown(void **state)
{
    (void)state;
    device_close_all();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_networks_are_planned_tightly),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
