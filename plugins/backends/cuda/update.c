#include "update.h"
#include "rule_text.h"
#include "texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(FUSE_UPDATE_STATES == FUSERUN_MAX_STATES && FUSE_UPDATE_SCALARS == FUSERUN_MAX_SCALARS,
               "the kernels' argument has room for every rule");

/* Slices that one launch updates. More are taken in several. */
#define TABLE_SLICES 1024
#define TABLE_BYTES (TABLE_SLICES * sizeof(struct fuse_update_slice))

struct fuse_compiled_rule {
    const struct fuse_rule *rule;
    void *module;
    void *update_slice, *update_foreach; /* functions */
    struct fuse_update_slice *table;     /* pinned: what is copied to */
    struct fuse_update_slice *device_table;
    void *copied; /* an event: the table has been read, and may be filled again */
};

/* ---- compiling ------------------------------------------------------------------------------------------------- */

void fuse_update_discard(struct fuse_cuda *cuda, struct fuse_compiled_rule *compiled)
{
    if (compiled == NULL)
        return;
    if (compiled->device_table != NULL) {
        fuse_cuda_release(cuda, compiled->device_table);
        cuda->own_bytes -= TABLE_BYTES;
    }
    if (compiled->table != NULL)
        fuse_cuda_unpin(cuda, compiled->table);
    if (compiled->copied != NULL)
        fuse_cuda_note(cuda, cuda->driver->cuEventDestroy_v2(compiled->copied), "destroying an event");
    if (compiled->module != NULL)
        fuse_cuda_note(cuda, cuda->driver->cuModuleUnload(compiled->module), "unloading kernels");
    free(compiled);
}

static int build(struct fuse_cuda *cuda, struct fuse_compiled_rule *made, struct fuse_error *error)
{
    const struct fuse_driver *const driver = cuda->driver;
    char name[128];
    void *table = NULL, *device_table = NULL;
    char *const rule = fuse_update_text(cuda->host, made->rule, error);
    if (rule == NULL)
        return FUSERUN_ERROR_MEMORY;
    const char *const texts[] = {fuse_text_arguments, fuse_text_kernel, rule, fuse_text_update};
    snprintf(name, sizeof(name), "the optimizer's rule '%.100s'", made->rule->name);
    const int status = fuse_cuda_compile(cuda, name, texts, sizeof(texts) / sizeof(texts[0]), &made->module, error);
    free(rule);
    FUSE_TRY(status);
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuModuleGetFunction(&made->update_slice, made->module, "update_slice"),
                             "finding kernel update_slice", error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuModuleGetFunction(&made->update_foreach, made->module, "update_foreach"),
                             "finding kernel update_foreach", error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuEventCreate(&made->copied, FUSE_CU_EVENT_DISABLE_TIMING),
                             "creating an event", error));
    FUSE_TRY(fuse_cuda_pin(cuda, TABLE_BYTES, &table, error));
    made->table = table;
    FUSE_TRY(fuse_cuda_allocate(cuda, TABLE_BYTES, &device_table, error));
    made->device_table = device_table;
    cuda->own_bytes += TABLE_BYTES;
    return FUSERUN_OK;
}

int fuse_update_compile(struct fuse_cuda *cuda, const struct fuse_rule *rule, struct fuse_compiled_rule **compiled,
                        struct fuse_error *error)
{
    *compiled = NULL;
    if (rule->update_slice == NULL || rule->text == NULL || rule->text[0] == '\0' ||
        rule->state_count > FUSERUN_MAX_STATES || rule->scalar_count > FUSERUN_MAX_SCALARS)
        return cuda->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                                "the optimizer's rule '%s' has no text for one element that CUDA could compile",
                                rule->name);
    struct fuse_compiled_rule *const made = calloc(1, sizeof(*made));
    if (made == NULL)
        return cuda->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a rule (%zu bytes)",
                                sizeof(*made));
    made->rule = rule;
    const int status = build(cuda, made, error);
    if (status != FUSERUN_OK) {
        fuse_update_discard(cuda, made);
        return status;
    }
    *compiled = made;
    return FUSERUN_OK;
}

/* ---- updating -------------------------------------------------------------------------------------------------- */

static int64_t chunks_of(int64_t count)
{
    return (count + FUSE_UPDATE_CHUNK - 1) / FUSE_UPDATE_CHUNK;
}

static void fill(const struct fuse_rule *rule, const struct fuse_slice *slice, int64_t first_chunk,
                 struct fuse_update_slice *filled)
{
    *filled = (struct fuse_update_slice){
        .param = slice->param, .grad = slice->grad, .count = slice->count, .first_chunk = first_chunk};
    for (uint32_t i = 0; i < rule->state_count; i++)
        filled->states[i] = slice->states[i];
    memcpy(filled->scalars, slice->scalars, rule->scalar_count * sizeof(slice->scalars[0]));
}

static int update_one(struct fuse_cuda *cuda, const struct fuse_compiled_rule *compiled, const struct fuse_slice *slice,
                      struct fuse_error *error)
{
    struct fuse_update_arguments arguments = {.noticed = &cuda->results->noticed};
    fill(compiled->rule, slice, 0, &arguments.slice);
    return fuse_cuda_launch(cuda, compiled->update_slice, "update_slice", chunks_of(slice->count), &arguments, error);
}

static int update_table(struct fuse_cuda *cuda, const struct fuse_compiled_rule *compiled,
                        const struct fuse_slice *slices, int64_t count, struct fuse_error *error)
{
    const struct fuse_driver *const driver = cuda->driver;
    const char *const what = "copying the list of updates to the device";
    int64_t chunks = 0;
    FUSE_TRY(fuse_cuda_begin(cuda, error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuEventSynchronize(compiled->copied), what, error));
    for (int64_t i = 0; i < count; i++) {
        fill(compiled->rule, &slices[i], chunks, &compiled->table[i]);
        chunks += chunks_of(slices[i].count);
    }
    FUSE_TRY(fuse_cuda_check(cuda,
                             driver->cuMemcpyHtoDAsync_v2(fuse_address(compiled->device_table), compiled->table,
                                                          (size_t)count * sizeof(compiled->table[0]), cuda->stream),
                             what, error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuEventRecord(compiled->copied, cuda->stream), what, error));
    const struct fuse_foreach_arguments arguments = {
        .slices = compiled->device_table, .noticed = &cuda->results->noticed, .slice_count = (int)count};
    return fuse_cuda_launch(cuda, compiled->update_foreach, "update_foreach", chunks, &arguments, error);
}

int fuse_update_slices(struct fuse_cuda *cuda, struct fuse_compiled_rule *compiled, const struct fuse_slice *slices,
                       int64_t slice_count, struct fuse_error *error)
{
    if (slice_count == 1)
        return update_one(cuda, compiled, slices, error);
    for (int64_t at = 0; at < slice_count; at += TABLE_SLICES) {
        const int64_t left = slice_count - at, count = left < TABLE_SLICES ? left : TABLE_SLICES;
        FUSE_TRY(update_table(cuda, compiled, slices + at, count, error));
    }
    return FUSERUN_OK;
}
