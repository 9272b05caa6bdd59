#include "train/image.h"

#include "base/text.h"
#include "files/files.h"
#include "train/resume.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BYTES = 256 * 1024, PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2 * 1024 * 1024 };

/* Where one tensor's bytes are: the one of these that is set. */
struct source {
    const char *device;                        /* weights and states, in the dict's memory */
    const struct fuse_safetensors_entry *kept; /* of a frozen parameter: in the checkpoint that the run went on from */
    const int64_t *count;                      /* live: a parameter's updates */
    const double *number;                      /* live: a number of a rule */
    union {
        int64_t count;
        double number;
    } taken; /* count and number, as of fuse_image_take() */
    const void *host;
    bool is_weight;
    int64_t shape[FUSERUN_MAX_DIMS];
    const struct fuse_image *image;
};

struct fuse_image {
    const struct fuse_experiment *experiment;
    struct fuse_safetensors_output *outputs;
    struct source *sources;
    size_t count, capacity;
    char *copy; /* NULL: none */
    uint64_t copy_bytes;
    char *chunk;
    double *scheduler; /* what schedules keep, as of fuse_image_take() */
    struct fuse_text scheduler_text, optimizers, plugins, config;
    struct fuse_checkpoint_record record;
};

/* ---- the bytes ------------------------------------------------------------------------------------------------- */

/* No checkpoint is made of weights that a later run could do nothing with. Element by element in the integers, as fast
 * as the memory. */
static int check_weights(const struct fuse_safetensors_output *output, const void *bytes, size_t count,
                         struct fuse_error *error)
{
    const uint32_t *values = bytes;
    uint32_t has_nonfinite = 0;
    for (size_t i = 0; i < count / sizeof *values; i++)
        has_nonfinite |= (values[i] & 0x7f800000u) == 0x7f800000u;
    if (!has_nonfinite)
        return FUSERUN_OK;
    return fuse_fail(error, FUSERUN_ERROR_NUMERIC, NULL, "no checkpoint is written: %s is not finite", output->name);
}

typedef int writer(void *sink, const void *bytes, size_t count, struct fuse_error *error);

static int produce(void *user, const struct fuse_safetensors_output *output, writer *write, void *sink,
                   struct fuse_error *error)
{
    const struct source *source = user;
    const struct fuse_image *image = source->image;
    const struct fuse_dict *dict = image->experiment->dict;
    if (source->host != NULL)
        return write(sink, source->host, (size_t)output->byte_count, error);
    const char *copied =
        source->device != NULL && image->copy != NULL ? image->copy + (source->device - dict->memory) : NULL;
    for (uint64_t at = 0; at < output->byte_count; at += CHUNK_BYTES) {
        const uint64_t left = output->byte_count - at, count = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        if (source->kept != NULL)
            FUSE_TRY(
                fuse_safetensors_read(image->experiment->resume->file, source->kept, at, image->chunk, count, error));
        else if (copied == NULL)
            FUSE_TRY(dict->backend->download(dict->device, image->chunk, source->device + at, count, error));
        const char *bytes = copied != NULL ? copied + at : image->chunk;
        if (source->is_weight)
            FUSE_TRY(check_weights(output, bytes, (size_t)count, error));
        FUSE_TRY(write(sink, bytes, (size_t)count, error));
    }
    return FUSERUN_OK;
}

/* ---- the list of tensors --------------------------------------------------------------------------------------- */

/* Takes over the name. */
static struct source *add(struct fuse_image *image, char *name, const char *dtype, uint32_t rank, const int64_t *shape)
{
    if (name == NULL || image->count == image->capacity) {
        free(name);
        return NULL;
    }
    struct source *source = &image->sources[image->count];
    struct fuse_safetensors_output *output = &image->outputs[image->count++];
    source->image = image;
    if (rank > 0)
        memcpy(source->shape, shape, rank * sizeof *shape);
    *output = (struct fuse_safetensors_output){.name = name,
                                               .dtype = dtype,
                                               .rank = rank,
                                               .shape = source->shape,
                                               .byte_count = fuse_safetensors_dtype(dtype)->bits / 8,
                                               .produce = produce,
                                               .user = source};
    for (uint32_t i = 0; i < rank; i++)
        output->byte_count *= (uint64_t)shape[i];
    return source;
}

static char *state_name(const char *parameter, const char *state, size_t length)
{
    return fuse_format(FUSE_CHECKPOINT_OPTIMIZER "%s/%.*s", parameter, (int)length, state);
}

static int add_entry(struct fuse_image *image, const struct fuse_entry *entry, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = image->experiment;
    const struct fuse_parameter *parameter = &experiment->graph->parameters[entry->parameter];
    const struct fuse_group *group = &experiment->dict->groups[entry->group];
    const struct fuse_rule *rule = group->rule;
    size_t length = 0;
    for (uint32_t s = 0; s < rule->state_count; s++) {
        const char *state = fuse_rule_name(rule->states, s, &length);
        const bool is_whole = entry->state_counts[s] == entry->element_count;
        struct source *source =
            add(image, state_name(parameter->name, state, length), "F32", is_whole ? parameter->rank : 1,
                is_whole ? parameter->shape : &entry->state_counts[s]);
        if (source == NULL)
            return fuse_fail_memory(error, "the list of a checkpoint's tensors", length);
        source->device = (const char *)entry->states[s];
    }
    for (uint32_t n = 0; n < rule->number_count; n++) {
        const char *number = fuse_rule_name(rule->numbers, n, &length);
        struct source *source = add(image, state_name(parameter->name, number, length), "F64", 0, NULL);
        if (source == NULL)
            return fuse_fail_memory(error, "the list of a checkpoint's tensors", length);
        source->number = &entry->numbers[n];
        source->host = &source->taken;
    }
    struct source *step = add(image, state_name(parameter->name, "step", 4), "I64", 0, NULL);
    if (step == NULL)
        return fuse_fail_memory(error, "the list of a checkpoint's tensors", 4);
    step->count = &entry->step;
    step->host = &step->taken;
    fuse_text_addf(&image->optimizers, "%s %s\n", group->component->name, parameter->name);
    return FUSERUN_OK;
}

/* What the checkpoint that the run went on from holds of a parameter that is frozen now. */
static int add_kept(struct fuse_image *image, const struct fuse_parameter *parameter, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const struct fuse_resume *resume = image->experiment->resume;
    char *prefix = fuse_format(FUSE_CHECKPOINT_OPTIMIZER "%s/", parameter->name);
    if (prefix == NULL)
        return fuse_fail_memory(error, "the list of a checkpoint's tensors", strlen(parameter->name));
    for (size_t i = 0; i < fuse_safetensors_count(resume->file); i++) {
        const struct fuse_safetensors_entry *entry = fuse_safetensors_entry(resume->file, i);
        int64_t shape[FUSERUN_MAX_DIMS];
        if (strncmp(entry->name, prefix, strlen(prefix)) != 0 || strchr(entry->name + strlen(prefix), '/') != NULL ||
            entry->rank > FUSERUN_MAX_DIMS)
            continue;
        for (uint32_t d = 0; d < entry->rank; d++)
            shape[d] = (int64_t)entry->shape[d];
        struct source *source = add(image, fuse_strdup(entry->name), entry->dtype, entry->rank, shape);
        if (source == NULL)
            FUSE_TRY_OUT(fuse_fail_memory(error, "the list of a checkpoint's tensors", strlen(entry->name)));
        source->kept = entry;
    }
    const char *plugin = NULL;
    const size_t length = fuse_resume_optimizer(resume, parameter->name, &plugin);
    if (length > 0)
        fuse_text_addf(&image->optimizers, "%.*s %s\n", (int)length, plugin, parameter->name);
out:
    free(prefix);
    return status;
}

static int add_tensors(struct fuse_image *image, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = image->experiment;
    const struct fuse_graph *graph = experiment->graph;
    const struct fuse_dict *dict = experiment->dict;
    for (uint32_t p = 0; p < graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &graph->parameters[p];
        struct source *weight = add(image, fuse_strdup(parameter->name), "F32", parameter->rank, parameter->shape);
        if (weight == NULL)
            return fuse_fail_memory(error, "the list of a checkpoint's tensors", strlen(parameter->name));
        weight->device = (const char *)dict->parameters[p];
        weight->is_weight = true;
        const uint32_t entry = dict->entry_of_parameter[p];
        if (entry != UINT32_MAX)
            FUSE_TRY(add_entry(image, &dict->entries[entry], error));
        else if (experiment->resume != NULL)
            FUSE_TRY(add_kept(image, parameter, error));
    }
    const int64_t count = (int64_t)fuse_clock_state_count(experiment->clock);
    if (count == 0)
        return FUSERUN_OK;
    image->scheduler = calloc((size_t)count, sizeof *image->scheduler);
    struct source *scheduler =
        image->scheduler == NULL ? NULL : add(image, fuse_strdup(FUSE_CHECKPOINT_SCHEDULER_STATE), "F64", 1, &count);
    if (scheduler == NULL)
        return fuse_fail_memory(error, "what schedules keep", (size_t)count * sizeof *image->scheduler);
    scheduler->host = image->scheduler;
    return FUSERUN_OK;
}

/* An upper bound. */
static size_t count_tensors(const struct fuse_experiment *experiment)
{
    const struct fuse_dict *dict = experiment->dict;
    size_t count = dict->parameter_count + 1;
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        const struct fuse_rule *rule = dict->groups[dict->entries[e].group].rule;
        count += rule->state_count + rule->number_count + 1;
    }
    return count + (experiment->resume != NULL ? fuse_safetensors_count(experiment->resume->file) : 0);
}

/* ---- the texts ------------------------------------------------------------------------------------------------- */

static void add_plugin(void *user, const struct fuse_plugin *plugin, const struct fuse_component *component,
                       const char *file)
{
    (void)file;
    fuse_text_addf(user, "%s %s %s\n", fuse_kind_name(component->kind), component->name, plugin->version);
}

/* The format's texts are UTF-8, but a path in a config may be anything. */
static int make_utf8(struct fuse_text *text, struct fuse_error *error)
{
    fuse_text_add(text, "");
    if (text->failed)
        return fuse_fail_memory(error, "a checkpoint's metadata", text->length);
    if (fuse_is_utf8(text->data, text->length))
        return FUSERUN_OK;
    for (size_t i = 0; i < text->length; i++)
        text->data[i] = (unsigned char)text->data[i] < 0x80 ? text->data[i] : '?';
    return FUSERUN_OK;
}

static int add_texts(struct fuse_image *image, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = image->experiment;
    const struct fuse_registry_visitor visitor = {.visit = add_plugin, .user = &image->plugins};
    fuse_registry_visit_loaded(experiment->registry, &visitor);
    fuse_config_write(experiment->config, &image->config);
    fuse_resume_add_stages(experiment->clock, &image->scheduler_text);
    FUSE_TRY(make_utf8(&image->scheduler_text, error));
    FUSE_TRY(make_utf8(&image->optimizers, error));
    FUSE_TRY(make_utf8(&image->plugins, error));
    return make_utf8(&image->config, error);
}

/* ---- the calls ------------------------------------------------------------------------------------------------- */

uint64_t fuse_image_copy_bytes(const struct fuse_experiment *experiment)
{
    return experiment->dict->parameter_bytes + experiment->dict->state_bytes;
}

/* Training stands still while it is filled, so its pages are there before: huge ones where the system has them, which
 * halves what the copying takes. */
static int take_copy(struct fuse_image *image, struct fuse_error *error)
{
    const struct fuse_dict *dict = image->experiment->dict;
    image->copy_bytes = dict->memory_bytes - dict->scratch_bytes; /* parameters, then states */
    const uint64_t huge_bytes = image->copy_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    const size_t page_bytes = huge_bytes > 0 ? HUGE_PAGE_BYTES : PAGE_BYTES;
    const uint64_t pages = image->copy_bytes / page_bytes + 1;
    image->copy = pages > SIZE_MAX / page_bytes ? NULL : aligned_alloc(page_bytes, pages * page_bytes);
    if (image->copy == NULL)
        return fuse_fail_memory(error, "the copy that checkpoint.background = yes writes from", image->copy_bytes);
    if (huge_bytes > 0)
        (void)madvise(image->copy, huge_bytes, MADV_HUGEPAGE);
    memset(image->copy, 0, image->copy_bytes);
    return FUSERUN_OK;
}

int fuse_image_new(const struct fuse_experiment *experiment, bool keeps_copy, struct fuse_image **image,
                   struct fuse_error *error)
{
    int status;
    const size_t capacity = count_tensors(experiment);
    *image = NULL;
    struct fuse_image *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "a checkpoint", sizeof *made);
    made->experiment = experiment;
    made->capacity = capacity;
    made->outputs = calloc(capacity, sizeof *made->outputs);
    made->sources = calloc(capacity, sizeof *made->sources);
    made->chunk = malloc(CHUNK_BYTES);
    if (made->outputs == NULL || made->sources == NULL || made->chunk == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a checkpoint", capacity * sizeof *made->sources));
    FUSE_TRY_OUT(add_tensors(made, error));
    FUSE_TRY_OUT(add_texts(made, error));
    if (keeps_copy)
        FUSE_TRY_OUT(take_copy(made, error));
    *image = made;
    made = NULL;
out:
    fuse_image_free(&made);
    return status;
}

void fuse_image_free(struct fuse_image **image)
{
    struct fuse_image *old = *image;
    if (old == NULL)
        return;
    for (size_t i = 0; i < old->count; i++)
        free((void *)(uintptr_t)old->outputs[i].name);
    free(old->outputs);
    free(old->sources);
    free(old->copy);
    free(old->chunk);
    free(old->scheduler);
    fuse_text_free(&old->scheduler_text);
    fuse_text_free(&old->optimizers);
    fuse_text_free(&old->plugins);
    fuse_text_free(&old->config);
    free(old);
    *image = NULL;
}

int fuse_image_take(struct fuse_image *image, const struct fuse_checkpoint_record *record, struct fuse_error *error)
{
    const struct fuse_dict *dict = image->experiment->dict;
    image->record = *record;
    for (size_t i = 0; i < image->count; i++) {
        struct source *source = &image->sources[i];
        if (source->count != NULL)
            source->taken.count = *source->count;
        else if (source->number != NULL)
            source->taken.number = *source->number;
    }
    if (image->scheduler != NULL)
        fuse_clock_get_state(image->experiment->clock, image->scheduler);
    if (image->copy == NULL)
        return FUSERUN_OK;
    return dict->backend->download(dict->device, image->copy, dict->memory, image->copy_bytes, error);
}

uint64_t fuse_image_bytes(const struct fuse_image *image)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < image->count; i++)
        bytes += image->outputs[i].byte_count;
    return bytes;
}

int fuse_image_write(const struct fuse_image *image, const char *path, struct fuse_error *error)
{
    const struct fuse_checkpoint_texts texts = {.scheduler = image->scheduler_text.data,
                                                .optimizers = image->optimizers.data,
                                                .plugins = image->plugins.data,
                                                .config = image->config.data};
    return fuse_checkpoint_file_write(path, image->outputs, image->count, &image->record, &texts, error);
}
