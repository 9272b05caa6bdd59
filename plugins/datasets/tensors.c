/* tensors - samples from a .safetensors file: `x` [N, ...] float32, and `y` [N] int64 (classes) or [N, ...] float32. A
 * tensor of rank 1 counts as [N, 1].
 *
 * Small files are read once into the memory that the host provides. Of large ones each batch reads its own samples,
 * neighbours in the file with one call. */
#include <fuserun/dataset.h>
#include <fuserun/files.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is read once: both tensors together up to this; else `y` alone, whose samples are too small to fetch singly. */
#define CACHE_LIMIT ((uint64_t)64 << 20)
#define ALIGNMENT 64

struct column {
    const struct fuse_safetensors_entry *entry; /* NULL: not used */
    size_t sample_bytes;
    uint64_t cache_offset;
    int is_cached;
    const char *cache; /* the host's; NULL until load() */
};

struct tensors {
    const struct fuse_host *host;
    const struct fuse_file_services *files;
    struct fuse_safetensors *file;
    struct column x, y;
    uint32_t target_kind;
    uint64_t cache_bytes;
};

/* [N, 3, 32] for messages. */
static const char *shape_text(const struct fuse_safetensors_entry *entry, char *text, size_t size)
{
    size_t length = (size_t)snprintf(text, size, "%s [", entry->dtype);
    for (uint32_t i = 0; i < entry->rank && length < size; i++)
        length += (size_t)snprintf(text + length, size - length, "%s%llu", i > 0 ? ", " : "",
                                   (unsigned long long)entry->shape[i]);
    if (length < size)
        (void)snprintf(text + length, size - length, "]");
    return text;
}

static int wrong_tensor(const struct tensors *self, const struct fuse_safetensors_entry *entry, const char *name,
                        const char *needed, struct fuse_error *error)
{
    char shape[160];
    if (entry == NULL)
        return self->host->fail(error, FUSERUN_ERROR_FORMAT, "file", "the file has no tensor '%s'; needed is %s", name,
                                needed);
    return self->host->fail(error, FUSERUN_ERROR_FORMAT, "file", "tensor '%s' is %s; needed is %s", name,
                            shape_text(entry, shape, sizeof shape), needed);
}

static int has_samples(const struct fuse_safetensors_entry *entry, const char *dtype)
{
    return entry != NULL && strcmp(entry->dtype, dtype) == 0 && entry->rank >= 1 && entry->rank <= FUSERUN_MAX_DIMS &&
           entry->element_count > 0 && entry->element_count <= INT64_MAX;
}

static void set_column(struct column *column, const struct fuse_safetensors_entry *entry)
{
    column->entry = entry;
    column->sample_bytes = (size_t)(entry->byte_count / entry->shape[0]);
}

static int find_columns(struct tensors *self, struct fuse_error *error)
{
    const struct fuse_safetensors_entry *x = self->files->find(self->file, "x"),
                                        *y = self->files->find(self->file, "y");
    if (!has_samples(x, "F32"))
        return wrong_tensor(self, x, "x", "F32 [N, ...] with at least one sample", error);
    set_column(&self->x, x);
    if (self->target_kind == FUSERUN_TARGET_NONE)
        return FUSERUN_OK;
    if (self->target_kind == FUSERUN_TARGET_CLASS && (!has_samples(y, "I64") || y->rank != 1))
        return wrong_tensor(self, y, "y", "I64 [N], since this loss compares with class numbers", error);
    if (self->target_kind == FUSERUN_TARGET_VALUES && !has_samples(y, "F32"))
        return wrong_tensor(self, y, "y", "F32 [N, ...], since this loss compares with values", error);
    if (y->shape[0] != x->shape[0])
        return self->host->fail(error, FUSERUN_ERROR_FORMAT, "file", "'x' has %llu samples and 'y' has %llu",
                                (unsigned long long)x->shape[0], (unsigned long long)y->shape[0]);
    set_column(&self->y, y);
    return FUSERUN_OK;
}

static void plan_cache(struct tensors *self)
{
    const uint64_t x = self->x.entry->byte_count, y = self->y.entry == NULL ? 0 : self->y.entry->byte_count;
    self->x.is_cached = x <= CACHE_LIMIT && x + y <= CACHE_LIMIT;
    self->y.is_cached = self->y.entry != NULL && y <= CACHE_LIMIT;
    if (self->x.is_cached)
        self->cache_bytes = (x + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    self->y.cache_offset = self->cache_bytes;
    if (self->y.is_cached)
        self->cache_bytes += y;
}

static void close_tensors(void *instance)
{
    struct tensors *self = instance;
    if (self->file != NULL)
        self->files->close(&self->file);
    free(self);
}

/* The reader knows no options: an error of its own gets the key that named the file. */
static int with_key(int status, struct fuse_error *error)
{
    if (status != FUSERUN_OK && error != NULL)
        (void)snprintf(error->key, sizeof error->key, "file");
    return status;
}

static int open_tensors(const struct fuse_host *host, const struct fuse_options *options,
                        const struct fuse_dataset_context *context, void **instance, struct fuse_error *error)
{
    const struct fuse_file_services *files = NULL;
    if (host->struct_size >= FUSERUN_STRUCT_SIZE(fuse_host, get_service))
        files = host->get_service(FUSERUN_FILE_SERVICES);
    if (files == NULL)
        return host->fail(error, FUSERUN_ERROR_UNSUPPORTED, "plugin",
                          "this fuserun does not read .safetensors for plugins");
    struct tensors *self = calloc(1, sizeof *self);
    if (self == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the dataset");
    self->host = host;
    self->files = files;
    self->target_kind = context->target_wanted;
    int status = with_key(files->open(host->option_text(options, "file"), &self->file, error), error);
    if (status == FUSERUN_OK)
        status = find_columns(self, error);
    if (status != FUSERUN_OK) {
        close_tensors(self);
        return status;
    }
    plan_cache(self);
    *instance = self;
    return FUSERUN_OK;
}

/* The shape of one sample. */
static uint32_t sample_shape(const struct fuse_safetensors_entry *entry, int64_t shape[FUSERUN_MAX_DIMS])
{
    shape[0] = 1;
    for (uint32_t i = 1; i < entry->rank; i++)
        shape[i - 1] = (int64_t)entry->shape[i];
    return entry->rank > 1 ? entry->rank - 1 : 1;
}

static void describe(const void *instance, struct fuse_dataset_info *info)
{
    const struct tensors *self = instance;
    info->target_kind = self->target_kind;
    info->sample_count = (int64_t)self->x.entry->shape[0];
    info->class_count = 0; /* the file does not say */
    info->input_rank = sample_shape(self->x.entry, info->input_shape);
    info->target_rank = 0;
    if (self->target_kind == FUSERUN_TARGET_VALUES)
        info->target_rank = sample_shape(self->y.entry, info->target_shape);
    info->cache_bytes = self->cache_bytes;
}

static int load_column(const struct tensors *self, struct column *column, char *cache, struct fuse_error *error)
{
    if (!column->is_cached)
        return FUSERUN_OK;
    column->cache = cache + column->cache_offset;
    return with_key(
        self->files->read(self->file, column->entry, 0, cache + column->cache_offset, column->entry->byte_count, error),
        error);
}

static int load(void *instance, void *cache, struct fuse_error *error)
{
    struct tensors *self = instance;
    const int status = load_column(self, &self->x, cache, error);
    return status != FUSERUN_OK ? status : load_column(self, &self->y, cache, error);
}

static int read_column(const struct tensors *self, const struct column *column, const struct fuse_batch *batch,
                       void *to, struct fuse_error *error)
{
    char *at = to;
    for (int64_t i = 0, next; i < batch->count; i = next) {
        next = i + 1;
        while (next < batch->count && batch->indices[next] == batch->indices[next - 1] + 1)
            next++;
        const uint64_t from = (uint64_t)batch->indices[i] * column->sample_bytes;
        const size_t bytes = (size_t)(next - i) * column->sample_bytes;
        if (column->is_cached)
            memcpy(at, column->cache + from, bytes);
        else {
            const int status = with_key(self->files->read(self->file, column->entry, from, at, bytes, error), error);
            if (status != FUSERUN_OK)
                return status;
        }
        at += bytes;
    }
    return FUSERUN_OK;
}

static int read_batch(void *instance, const struct fuse_batch *batch, struct fuse_error *error)
{
    const struct tensors *self = instance;
    const int status = read_column(self, &self->x, batch, batch->inputs, error);
    if (status != FUSERUN_OK || self->target_kind == FUSERUN_TARGET_NONE)
        return status;
    void *targets = self->target_kind == FUSERUN_TARGET_CLASS ? (void *)batch->classes : (void *)batch->values;
    return read_column(self, &self->y, batch, targets, error);
}

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "file", .type = FUSERUN_OPTION_PATH, .flags = FUSERUN_OPTION_REQUIRED,
                   .help = "a .safetensors file with x [N, ...] F32 and y [N] I64 (classes) or [N, ...] F32 (mse)"),
};

static const struct fuse_dataset dataset = {
    FUSERUN_STRUCT_SIZE(fuse_dataset, read), open_tensors, close_tensors, describe, load, read_batch,
};

static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_DATASET, .name = "tensors", .summary = "samples from a .safetensors file",
                      FUSERUN_OPTIONS(options), .api = &dataset),
};

FUSERUN_PLUGIN("tensors", "1.0.0", "MIT", components)
