#include "train/weights.h"

#include "files/checkpoint_file.h"
#include "files/files.h"
#include "train/listing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ELEMENTS 65536

/* ---- names --------------------------------------------------------------------------------------------------- */

static bool is_name_sound(const char *name)
{
    for (const unsigned char *at = (const unsigned char *)name; *at != '\0'; at++) {
        if (*at < 0x20 || *at == 0x7f)
            return false;
    }
    return fuse_is_utf8(name, strlen(name)) && !fuse_checkpoint_is_state(name) &&
           strcmp(name, FUSE_SAFETENSORS_METADATA) != 0;
}

int fuse_weights_check_names(const struct fuse_graph *graph, struct fuse_error *error)
{
    for (uint32_t p = 0; p < graph->parameter_count; p++) {
        const char *name = graph->parameters[p].name;
        char shown[FUSE_SHOWN_BYTES];
        if (!is_name_sound(name))
            return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                             "the model has a parameter '%s': names are UTF-8 without control characters, and do not "
                             "begin with " FUSE_CHECKPOINT_OPTIMIZER " or " FUSE_CHECKPOINT_SCHEDULER,
                             fuse_shown(name, strlen(name), shown));
    }
    return FUSERUN_OK;
}

/* ---- comparing ----------------------------------------------------------------------------------------------- */

static const struct fuse_parameter *find_parameter(const struct fuse_graph *graph, const char *name)
{
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        if (strcmp(graph->parameters[i].name, name) == 0)
            return &graph->parameters[i];
    }
    return NULL;
}

static bool has_same_shape(const struct fuse_weights_entry *entry, const struct fuse_parameter *parameter)
{
    if (entry->rank != parameter->rank)
        return false;
    for (uint32_t i = 0; i < entry->rank; i++) {
        if (entry->shape[i] != (uint64_t)parameter->shape[i])
            return false;
    }
    return true;
}

static bool is_loadable(const struct fuse_weights_entry *entry, const struct fuse_parameter *parameter)
{
    return has_same_shape(entry, parameter) && entry->is_float;
}

static void add_file_shape(struct fuse_text *text, const struct fuse_weights_entry *entry)
{
    fuse_text_add(text, "(");
    for (uint32_t i = 0; i < entry->rank; i++)
        fuse_text_addf(text, "%s%" PRIu64, i > 0 ? ", " : "", entry->shape[i]);
    fuse_text_add(text, ")");
}

static void add_model_shape(struct fuse_text *text, const struct fuse_parameter *parameter)
{
    fuse_text_add(text, "(");
    for (uint32_t i = 0; i < parameter->rank; i++)
        fuse_text_addf(text, "%s%" PRId64, i > 0 ? ", " : "", parameter->shape[i]);
    fuse_text_add(text, ")");
}

void fuse_weights_compare(const struct fuse_weights_file *file, const struct fuse_graph *graph, bool is_strict,
                          struct fuse_text *wrong, struct fuse_text *skipped)
{
    struct fuse_listing missing = {.title = "missing"};
    struct fuse_listing unexpected = {.title = "unexpected"};
    struct fuse_listing shapes = {.title = "of another shape"};
    struct fuse_listing types = {.title = "not of a floating-point type"};
    size_t matching = 0;
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const struct fuse_parameter *parameter = &graph->parameters[i];
        const struct fuse_weights_entry *entry = fuse_weights_file_find(file, parameter->name);
        if (entry == NULL) {
            if (fuse_listing_next(&missing))
                fuse_text_add(&missing.text, parameter->name);
        } else if (!has_same_shape(entry, parameter)) {
            if (fuse_listing_next(&shapes)) {
                fuse_text_addf(&shapes.text, "%s ", parameter->name);
                add_file_shape(&shapes.text, entry);
                fuse_text_add(&shapes.text, " where the model has ");
                add_model_shape(&shapes.text, parameter);
            }
        } else if (!entry->is_float) {
            if (fuse_listing_next(&types))
                fuse_text_addf(&types.text, "%s (%s)", parameter->name, entry->dtype);
        } else
            matching++;
    }
    for (size_t i = 0; i < fuse_weights_file_count(file); i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        const struct fuse_parameter *parameter = find_parameter(graph, entry->name);
        if (parameter == NULL && entry->new_name != NULL)
            parameter = find_parameter(graph, entry->new_name);
        if (parameter == NULL && fuse_checkpoint_is_state(entry->name))
            continue; /* a checkpoint holds weights too */
        if (parameter == NULL || fuse_weights_file_find(file, parameter->name) != entry) {
            if (fuse_listing_next(&unexpected))
                fuse_text_add(&unexpected.text, entry->name);
        }
    }
    struct fuse_text *into = is_strict ? wrong : skipped;
    fuse_listing_finish(&missing, into);
    fuse_listing_finish(&unexpected, into);
    fuse_listing_finish(&shapes, into);
    fuse_listing_finish(&types, into);
    if (!is_strict && matching == 0 && graph->parameter_count > 0)
        fuse_text_add(wrong, "not one tensor matches the model");
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

static int load_one(const struct fuse_weights_file *file, const struct fuse_weights_entry *entry,
                    const struct fuse_dict *dict, float *parameter, float *values, struct fuse_error *error)
{
    for (uint64_t at = 0; at < entry->element_count; at += CHUNK_ELEMENTS) {
        const uint64_t left = entry->element_count - at, count = left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
        FUSE_TRY(fuse_weights_file_read(file, entry, at, count, values, error));
        FUSE_TRY(dict->backend->upload(dict->device, parameter + at, values, count * sizeof *values, error));
    }
    return FUSERUN_OK;
}

int fuse_weights_load(const struct fuse_weights_file *file, const struct fuse_graph *graph,
                      const struct fuse_dict *dict, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    float *values = malloc(CHUNK_ELEMENTS * sizeof *values);
    if (values == NULL)
        return fuse_fail_memory(error, "loading weights", CHUNK_ELEMENTS * sizeof *values);
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const struct fuse_parameter *parameter = &graph->parameters[i];
        const struct fuse_weights_entry *entry = fuse_weights_file_find(file, parameter->name);
        if (entry != NULL && is_loadable(entry, parameter))
            FUSE_TRY_OUT(load_one(file, entry, dict, dict->parameters[i], values, error));
        else
            continue;
        if (dict->backend->has_nonfinite(dict->device, dict->parameters[i], parameter->element_count))
            FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_FORMAT, "weights",
                                   "'%s' in the file is not finite, or too large for float32", parameter->name));
    }
out:
    free(values);
    return status;
}

/* ---- saving -------------------------------------------------------------------------------------------------- */

struct saved {
    const struct fuse_dict *dict;
    const float *values; /* device memory */
    char *chunk;
};

static int produce(void *user, const struct fuse_safetensors_output *output,
                   int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                   struct fuse_error *error)
{
    const struct saved *saved = user;
    const uint64_t most = CHUNK_ELEMENTS * sizeof(float);
    for (uint64_t at = 0; at < output->byte_count; at += most) {
        const uint64_t count = output->byte_count - at < most ? output->byte_count - at : most;
        FUSE_TRY(saved->dict->backend->download(saved->dict->device, saved->chunk, (const char *)saved->values + at,
                                                count, error));
        FUSE_TRY(write(sink, saved->chunk, (size_t)count, error));
    }
    return FUSERUN_OK;
}

int fuse_weights_save(const char *path, const struct fuse_graph *graph, const struct fuse_dict *dict,
                      struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const size_t count = graph->parameter_count;
    struct fuse_safetensors_output *outputs = calloc(count + 1, sizeof *outputs);
    struct saved *saved = calloc(count + 1, sizeof *saved);
    char *chunk = malloc(CHUNK_ELEMENTS * sizeof(float));
    if (outputs == NULL || saved == NULL || chunk == NULL) {
        status = fuse_fail_memory(error, "writing weights", count * sizeof *outputs);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        const struct fuse_parameter *parameter = &graph->parameters[i];
        saved[i] = (struct saved){dict, dict->parameters[i], chunk};
        outputs[i] = (struct fuse_safetensors_output){
            .name = parameter->name,
            .dtype = "F32",
            .rank = parameter->rank,
            .shape = parameter->shape,
            .byte_count = (uint64_t)parameter->element_count * sizeof(float),
            .produce = produce,
            .user = &saved[i],
        };
    }
    FUSE_TRY_OUT(fuse_safetensors_write(path, outputs, count, NULL, 0, error));
out:
    free(chunk);
    free(saved);
    free(outputs);
    return status;
}
