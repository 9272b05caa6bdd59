#include "train/source.h"

#include "config/options.h"
#include "plugin/registry.h"

#include <stdlib.h>
#include <string.h>

static int refuse(struct fuse_error *error, const struct fuse_component *component, const char *what)
{
    return fuse_fail(error, FUSERUN_ERROR_PLUGIN, "plugin", "dataset '%s' breaks the plugin contract: %s",
                     component->name, what);
}

static int check_info(const struct fuse_component *component, const struct fuse_dataset_info *info,
                      struct fuse_error *error)
{
    if (info->sample_count < 0)
        return refuse(error, component, "its sample_count is negative");
    if (info->sample_count == 0)
        return fuse_fail(error, FUSERUN_ERROR_DATA, "plugin", "the dataset '%s' holds no sample", component->name);
    if (info->target_kind < FUSERUN_TARGET_CLASS || info->target_kind > FUSERUN_TARGET_NONE)
        return refuse(error, component, "its target_kind is unknown");
    if (info->input_rank + 1 > FUSERUN_MAX_DIMS || info->target_rank + 1 > FUSERUN_MAX_DIMS)
        return refuse(error, component, "a sample has too many dimensions");
    for (uint32_t i = 0; i < info->input_rank; i++) {
        if (info->input_shape[i] <= 0)
            return refuse(error, component, "an input dimension is not positive");
    }
    for (uint32_t i = 0; i < info->target_rank; i++) {
        if (info->target_shape[i] <= 0)
            return refuse(error, component, "a target dimension is not positive");
    }
    return FUSERUN_OK;
}

int fuse_source_open(const struct fuse_host *host, const struct fuse_component *component,
                     const struct fuse_options *options, const struct fuse_dataset_context *context,
                     struct fuse_source *source, struct fuse_error *error)
{
    *source = (struct fuse_source){.dataset = component->api,
                                   .batch_size = fuse_option_integer(options, "batch_size"),
                                   .is_shuffled = fuse_option_bool(options, "shuffle") != 0,
                                   .drops_last = fuse_option_bool(options, "drop_last") != 0};
    const int status = source->dataset->open(host, options, context, &source->instance, error);
    if (status != FUSERUN_OK) {
        source->dataset = NULL;
        return fuse_fail_unsaid(error, status, "the dataset");
    }
    source->info.struct_size = FUSERUN_STRUCT_SIZE(fuse_dataset_info, cache_bytes);
    source->dataset->describe(source->instance, &source->info);
    FUSE_TRY(check_info(component, &source->info, error));
    if (fuse_source_batch_count(source) == 0)
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, "batch_size",
                         "%lld is more than the %lld samples, and drop_last = yes leaves no batch at all",
                         (long long)source->batch_size, (long long)source->info.sample_count);
    return FUSERUN_OK;
}

void fuse_source_close(struct fuse_source *source)
{
    if (source->dataset != NULL)
        source->dataset->close(source->instance);
    free(source->cache);
    *source = (struct fuse_source){0};
}

int fuse_source_load(struct fuse_source *source, struct fuse_error *error)
{
    if (source->info.cache_bytes > 0) {
        if (source->info.cache_bytes > SIZE_MAX - 63)
            return fuse_fail_memory(error, "the dataset's samples", SIZE_MAX);
        const size_t bytes = ((size_t)source->info.cache_bytes + 63) / 64 * 64;
        source->cache = aligned_alloc(64, bytes);
        if (source->cache == NULL)
            return fuse_fail_memory(error, "the dataset's samples", bytes);
    }
    const int status =
        source->dataset->load == NULL ? FUSERUN_OK : source->dataset->load(source->instance, source->cache, error);
    return status == FUSERUN_OK ? status : fuse_fail_unsaid(error, status, "the dataset");
}

int64_t fuse_source_full_batch(const struct fuse_source *source)
{
    return source->batch_size < source->info.sample_count ? source->batch_size : source->info.sample_count;
}

int64_t fuse_source_last_batch(const struct fuse_source *source)
{
    if (source->drops_last || source->info.sample_count < source->batch_size)
        return 0;
    return source->info.sample_count % source->batch_size;
}

int64_t fuse_source_batch_count(const struct fuse_source *source)
{
    const int64_t whole = source->info.sample_count / source->batch_size;
    return whole + (!source->drops_last && source->info.sample_count % source->batch_size > 0 ? 1 : 0);
}

int64_t fuse_source_target_elements(const struct fuse_source *source)
{
    if (source->info.target_kind != FUSERUN_TARGET_VALUES)
        return 0;
    int64_t count = 1;
    for (uint32_t i = 0; i < source->info.target_rank; i++)
        count *= source->info.target_shape[i];
    return count;
}
