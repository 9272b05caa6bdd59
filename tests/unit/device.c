#include "device.h"

#include "config/options.h"
#include "plugin/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 8 };

static struct fuse_registry *registry;
static struct {
    const struct fuse_backend *backend;
    void *device;
    uint32_t threads;
} devices[MAX_DEVICES];
static size_t device_count;

static const struct fuse_component *find(enum fuse_kind kind, const char *name)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    if (registry == NULL)
        assert_int_equal(fuse_registry_new(NULL, 0, NULL, &registry, &error), FUSERUN_OK);
    if (fuse_registry_find(registry, kind, name, &component, &file, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    return component;
}

const struct fuse_backend *device_open(uint32_t threads, void **device)
{
    for (size_t i = 0; i < device_count; i++)
        if (devices[i].threads == threads) {
            *device = devices[i].device;
            return devices[i].backend;
        }
    assert_true(device_count < MAX_DEVICES);
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_backend *backend = find(FUSERUN_KIND_BACKEND, "cpu")->api;
    const struct fuse_backend_options options = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_options, precision),
                                                 .thread_count = threads,
                                                 .precision = FUSERUN_FLOAT32};
    if (backend->open(fuse_host(), &options, device, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    devices[device_count].backend = backend;
    devices[device_count].device = *device;
    devices[device_count++].threads = threads;
    return backend;
}

void device_close_all(void)
{
    while (device_count > 0) {
        device_count--;
        devices[device_count].backend->close(devices[device_count].device);
    }
    fuse_registry_free(&registry);
}

static void check(int status, const struct fuse_error *error)
{
    if (status != FUSERUN_OK)
        fail_msg("%d: %s %s", status, error->key, error->text);
}

/* The dict holds the parameters in any case. */
static void make_dict(struct rig *rig, struct fuse_graph *graph, uint32_t threads, enum fuse_mode mode,
                      const char *optimizer, const char *const *pairs, size_t pair_count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    *rig = (struct rig){.graph = graph};
    rig->backend = device_open(threads, &rig->device);
    const struct fuse_component *component = find(FUSERUN_KIND_OPTIMIZER, optimizer);
    check(fuse_options_from_pairs(component, pairs, pair_count, &rig->options, &error), &error);
    const struct fuse_group_spec group = {.name = "default", .component = component, .options = rig->options};
    check(fuse_dict_new(graph, rig->backend, rig->device, mode, &group, 1, NULL, 0, &rig->dict, &error), &error);
    check(fuse_dict_allocate(rig->dict, graph, 1, &error), &error);
}

static void make_program(struct rig *rig, const struct fuse_program_options *options)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    check(fuse_program_compile(rig->graph, rig->backend, rig->device, options, &rig->program, &error), &error);
    check(fuse_ledger_new(&rig->ledger, &error), &error);
    fuse_ledger_add_persistent(rig->ledger, FUSE_CATEGORY_PARAMETER, rig->dict->parameter_bytes);
    fuse_ledger_add_persistent(rig->ledger, FUSE_CATEGORY_OPTIMIZER_STATE, rig->dict->state_bytes);
    check(fuse_ledger_add_pass(rig->ledger, rig->program->ledger_buffers, rig->program->buffer_count,
                               rig->program->phases, rig->program->instruction_count, &rig->program->ledger_pass,
                               &error),
          &error);
    void *arena = NULL;
    check(rig->backend->allocate(rig->device, rig->program->arena_bytes, &arena, &error), &error);
    /* Whatever is read before it was written shows. */
    memset(arena, 0xff, rig->program->arena_bytes);
    rig->arena = arena;
    fuse_program_bind(rig->program, rig->arena, rig->dict->parameters);
}

void rig_up(struct rig *rig, struct fuse_graph *graph, uint32_t threads, enum fuse_loss_kind loss, enum fuse_mode mode,
            const char *optimizer, const char *const *pairs, size_t pair_count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    make_dict(rig, graph, threads, mode, optimizer != NULL ? optimizer : "sgd", pairs, pair_count);
    struct fuse_program_options options = {.loss = loss, .gradients = FUSE_GRADIENTS_RELEASE};
    if (optimizer != NULL) {
        check(fuse_dict_attach(rig->dict, graph, &error), &error);
        options.gradients = fuse_dict_gradient_use(rig->dict);
        options.after_backward = fuse_dict_after_backward;
        options.user = rig->dict;
    }
    make_program(rig, &options);
}

void rig_up_with(struct rig *rig, struct fuse_graph *graph, uint32_t threads,
                 const struct fuse_program_options *options)
{
    make_dict(rig, graph, threads, FUSE_MODE_FUSED, "sgd", NULL, 0);
    make_program(rig, options);
}

void rig_down(struct rig *rig)
{
    if (rig->arena != NULL)
        rig->backend->release(rig->device, rig->arena, rig->program->arena_bytes);
    fuse_program_free(&rig->program);
    fuse_ledger_free(&rig->ledger);
    fuse_dict_free(&rig->dict);
    fuse_graph_free(&rig->graph);
    fuse_options_free(&rig->options);
}

void rig_update(struct rig *rig, const float *inputs, const void *targets, double scale)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_program *program = rig->program;
    memcpy(fuse_program_inputs(program), inputs, program->buffers[program->input_buffer].bytes);
    if (program->target_buffer != FUSE_NO_BUFFER)
        memcpy(fuse_program_targets(program), targets, program->buffers[program->target_buffer].bytes);
    fuse_dict_begin(rig->dict);
    check(fuse_program_run(rig->program, scale, rig->draw++, 0, rig->ledger, rig->statistics, &error), &error);
    check(fuse_dict_end(rig->dict, &error), &error);
}

float *rig_parameter(struct rig *rig, const char *name)
{
    for (uint32_t p = 0; p < rig->graph->parameter_count; p++)
        if (strcmp(rig->graph->parameters[p].name, name) == 0)
            return rig->dict->parameters[p];
    fail_msg("no parameter '%s'", name);
    return NULL;
}
