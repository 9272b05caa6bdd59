/* Batches that follow each other without the host ever waiting: each is uploaded from staging, and copied on the device
 * to where it can be looked at. Prints how many arrived as they were sent. For test_device_order.py. */
#include "plugin/registry.h"

#include <fuserun/backend.h>

#include <stdio.h>
#include <stdlib.h>

enum { BATCHES = 12, COUNT = 300 };

static struct fuse_error error = FUSE_ERROR_INIT;

static void need(int status)
{
    if (status == FUSERUN_OK)
        return;
    fprintf(stderr, "%s\n", error.text);
    exit(1);
}

int main(void)
{
    struct fuse_registry *registry = NULL;
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    void *device = NULL, *staging[BATCHES], *batch = NULL, *seen[BATCHES];
    const size_t bytes = COUNT * sizeof(float);
    need(fuse_registry_new(NULL, 0, NULL, &registry, &error));
    need(fuse_registry_find(registry, FUSERUN_KIND_BACKEND, "cuda", &component, &file, &error));
    const struct fuse_backend *const backend = component->api;
    const struct fuse_backend_options options = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_options, allows_tf32),
                                                 .precision = FUSERUN_FLOAT32};
    need(backend->open(fuse_host(), &options, &device, &error));

    const struct fuse_operand operand = {.dtype = FUSERUN_FLOAT32, .rank = 1, .shape = {COUNT}};
    struct fuse_op op = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_op, numbers),
                         .kind = FUSERUN_OP_COPY,
                         .input_count = 1,
                         .output_count = 1,
                         .inputs = {operand},
                         .outputs = {operand}};
    struct fuse_kernel *kernel = NULL;
    struct fuse_kernel_info info = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_info, workspace_bytes)};
    need(backend->compile(device, &op, &kernel, &info, &error));
    need(backend->allocate(device, bytes, &batch, &error));
    for (int i = 0; i < BATCHES; i++) {
        need(backend->allocate_staging(device, bytes, &staging[i], &error));
        need(backend->allocate(device, bytes, &seen[i], &error));
        for (int j = 0; j < COUNT; j++)
            ((float *)staging[i])[j] = (float)(1000 * i + j);
    }
    need(backend->synchronize(device, &error));

    for (int i = 0; i < BATCHES; i++) {
        const struct fuse_kernel_call call = {
            .struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_call, draw), .inputs = &batch, .outputs = &seen[i]};
        need(backend->upload_staged(device, batch, staging[i], bytes, &error));
        need(backend->run(device, kernel, &call, &error));
    }

    int right = 0;
    float got[COUNT];
    for (int i = 0; i < BATCHES; i++) {
        int same = 1;
        need(backend->download(device, got, seen[i], bytes, &error));
        for (int j = 0; j < COUNT; j++)
            same = same && got[j] == (float)(1000 * i + j);
        right += same;
        backend->release(device, seen[i], bytes);
        backend->release_staging(device, staging[i], bytes);
    }
    backend->release(device, batch, bytes);
    backend->discard(device, kernel);
    backend->close(device);
    fuse_registry_free(&registry);
    printf("%d of %d\n", right, BATCHES);
    return 0;
}
