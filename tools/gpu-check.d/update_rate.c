/* How fast a device updates: Adam on one large tensor, on 200 of its size together, and on 1000
 * small ones at once and one by one. Prints one JSON
 * object.
 *
 *     update_rate ELEMENTS TIMES
 *
 * Adam reads a parameter, its gradient and two moments and writes all but the gradient: 28 bytes an element. */
#include "base/now.h"
#include "config/options.h"
#include "plugin/registry.h"

#include <fuserun/backend.h>

#include <stdio.h>
#include <stdlib.h>

#define ADAM_BYTES 28
#define PART_COUNT 200 /* as many elements as the large one has, in tensors of a network's sizes */
#define SMALL_COUNT 1000
#define SMALL_ELEMENTS 64
#define MAX_COUNT SMALL_COUNT

static struct fuse_error error = FUSE_ERROR_INIT;

static void need(int status)
{
    if (status == FUSERUN_OK)
        return;
    fprintf(stderr, "%s\n", error.text);
    exit(1);
}

/* count tensors of `each` elements with their gradients and states, all on the device. */
struct tensors {
    int64_t count, each;
    float *memory; /* (4, count, each) */
    struct fuse_slice slices[MAX_COUNT];
    float *states[MAX_COUNT][2];
};

struct bench {
    const struct fuse_backend *backend;
    void *device;
    struct fuse_compiled_rule *rule;
    float scalars[FUSERUN_MAX_SCALARS];
    int times;
};

static void make(const struct bench *bench, struct tensors *tensors, int64_t count, int64_t each)
{
    void *memory = NULL;
    const int64_t all = count * each;
    need(bench->backend->allocate(bench->device, (uint64_t)all * 4 * sizeof(float), &memory, &error));
    tensors->memory = memory;
    tensors->count = count;
    tensors->each = each;
    for (int64_t i = 0; i < count; i++) {
        tensors->states[i][0] = tensors->memory + 2 * all + i * each;
        tensors->states[i][1] = tensors->memory + 3 * all + i * each;
        tensors->slices[i] = (struct fuse_slice){.struct_size = FUSERUN_STRUCT_SIZE(fuse_slice, first),
                                                 .state_count = 2,
                                                 .param = tensors->memory + i * each,
                                                 .grad = tensors->memory + all + i * each,
                                                 .states = tensors->states[i],
                                                 .scalars = bench->scalars,
                                                 .count = each};
    }
}

static void drop(const struct bench *bench, struct tensors *tensors)
{
    bench->backend->release(bench->device, tensors->memory,
                            (uint64_t)(tensors->count * tensors->each) * 4 * sizeof(float));
}

/* Seconds of one update of all tensors, the best of three turns. */
static double seconds(const struct bench *bench, const struct tensors *tensors, int is_foreach)
{
    const int64_t at_once = is_foreach ? tensors->count : 1;
    double best = 1e30;
    for (int turn = 0; turn < 4; turn++) { /* the first one warms up */
        need(bench->backend->synchronize(bench->device, &error));
        const int64_t begin = fuse_now_ns();
        for (int i = 0; i < bench->times; i++)
            for (int64_t first = 0; first < tensors->count; first += at_once)
                need(bench->backend->update(bench->device, bench->rule, tensors->slices + first, at_once, &error));
        need(bench->backend->synchronize(bench->device, &error));
        const double taken = (double)(fuse_now_ns() - begin) * 1e-9 / bench->times;
        if (turn > 0 && taken < best)
            best = taken;
    }
    return best;
}

int main(int argument_count, char **arguments)
{
    static struct tensors tensors;
    struct fuse_registry *registry = NULL;
    const struct fuse_component *component = NULL;
    const char *file = NULL, *device_name = argument_count > 3 ? arguments[3] : "cuda";
    if (argument_count < 3) {
        fprintf(stderr, "usage: update_rate ELEMENTS TIMES [BACKEND]\n");
        return 2;
    }
    struct bench bench = {.times = atoi(arguments[2])};
    const int64_t elements = atoll(arguments[1]);
    need(fuse_registry_new(NULL, 0, NULL, &registry, &error));
    need(fuse_registry_find(registry, FUSERUN_KIND_BACKEND, device_name, &component, &file, &error));
    bench.backend = component->api;
    const struct fuse_backend_options options = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_options, allows_tf32),
                                                 .precision = FUSERUN_FLOAT32};
    need(bench.backend->open(fuse_host(), &options, &bench.device, &error));
    need(fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, "adam", &component, &file, &error));
    const struct fuse_optimizer *const adam = component->api;
    need(bench.backend->compile_rule(bench.device, adam->rules[0], &bench.rule, &error));
    for (int i = 0; i < FUSERUN_MAX_SCALARS; i++)
        bench.scalars[i] = 0.5f; /* speed does not depend on them */
    make(&bench, &tensors, 1, elements);
    const double one = seconds(&bench, &tensors, 0);
    drop(&bench, &tensors);
    const int64_t part = elements / PART_COUNT > 0 ? elements / PART_COUNT : 1;
    make(&bench, &tensors, PART_COUNT, part);
    const double foreach = seconds(&bench, &tensors, 1);
    drop(&bench, &tensors);
    make(&bench, &tensors, SMALL_COUNT, SMALL_ELEMENTS);
    const double small_foreach = seconds(&bench, &tensors, 1), small_each = seconds(&bench, &tensors, 0);
    drop(&bench, &tensors);
    printf("{\"elements\": %lld, \"one_s\": %.9g, \"one_bytes_per_s\": %.9g, \"foreach_bytes_per_s\": %.9g, "
           "\"small_foreach_s\": %.9g, \"small_each_s\": %.9g}\n",
           (long long)elements, one, ADAM_BYTES * (double)elements / one,
           ADAM_BYTES * (double)(PART_COUNT * part) / foreach, small_foreach, small_each);
    bench.backend->discard_rule(bench.device, bench.rule);
    bench.backend->close(bench.device);
    fuse_registry_free(&registry);
    return 0;
}
