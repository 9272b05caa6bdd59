#include "train/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ELEMENTS 65536
#define LISTED_NAMES 8 /* of each kind of difference; more only make the line unreadable */

/* ---- comparing ----------------------------------------------------------------------------------------------- */

static const struct fuse_parameter *find_parameter(const struct fuse_graph *graph, const char *name)
{
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        if (strcmp(graph->parameters[i].name, name) == 0)
            return &graph->parameters[i];
    }
    return NULL;
}

static bool has_same_shape(const struct fuse_safetensors_entry *entry, const struct fuse_parameter *parameter)
{
    if (entry->rank != parameter->rank)
        return false;
    for (uint32_t i = 0; i < entry->rank; i++) {
        if (entry->shape[i] != (uint64_t)parameter->shape[i])
            return false;
    }
    return true;
}

static uint32_t float_bytes(const char *dtype)
{
    if (strcmp(dtype, "F64") == 0)
        return 8;
    if (strcmp(dtype, "F32") == 0)
        return 4;
    return strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0 ? 2 : 0;
}

static bool is_loadable(const struct fuse_safetensors_entry *entry, const struct fuse_parameter *parameter)
{
    return has_same_shape(entry, parameter) && float_bytes(entry->dtype) > 0;
}

static void add_file_shape(struct fuse_text *text, const struct fuse_safetensors_entry *entry)
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

/* One kind of difference: "missing: a, b and 3 more". */
struct listing {
    struct fuse_text text;
    const char *title;
    size_t count;
};

static void list_next(struct listing *listing)
{
    if (listing->count++ == 0)
        fuse_text_addf(&listing->text, "%s: ", listing->title);
    else if (listing->count <= LISTED_NAMES)
        fuse_text_add(&listing->text, ", ");
}

static void list_finish(struct listing *listing, struct fuse_text *into)
{
    if (listing->count > LISTED_NAMES)
        fuse_text_addf(&listing->text, " and %zu more", listing->count - LISTED_NAMES);
    if (listing->count > 0) {
        fuse_text_add(into, into->length > 0 ? "; " : "");
        fuse_text_add_bytes(into, listing->text.data, listing->text.length);
    }
    into->failed = into->failed || listing->text.failed;
    fuse_text_free(&listing->text);
}

void fuse_weights_compare(const struct fuse_safetensors *file, const struct fuse_graph *graph, bool is_strict,
                          struct fuse_text *wrong, struct fuse_text *skipped)
{
    struct listing missing = {.title = "missing"};
    struct listing unexpected = {.title = "unexpected"};
    struct listing shapes = {.title = "of another shape"};
    struct listing types = {.title = "not of a floating-point type"};
    size_t matching = 0;
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const struct fuse_parameter *parameter = &graph->parameters[i];
        const struct fuse_safetensors_entry *entry = fuse_safetensors_find(file, parameter->name);
        if (entry == NULL) {
            list_next(&missing);
            if (missing.count <= LISTED_NAMES)
                fuse_text_add(&missing.text, parameter->name);
        } else if (!has_same_shape(entry, parameter)) {
            list_next(&shapes);
            if (shapes.count <= LISTED_NAMES) {
                fuse_text_addf(&shapes.text, "%s ", parameter->name);
                add_file_shape(&shapes.text, entry);
                fuse_text_add(&shapes.text, " where the model has ");
                add_model_shape(&shapes.text, parameter);
            }
        } else if (float_bytes(entry->dtype) == 0) {
            list_next(&types);
            if (types.count <= LISTED_NAMES)
                fuse_text_addf(&types.text, "%s (%s)", parameter->name, entry->dtype);
        } else
            matching++;
    }
    for (size_t i = 0; i < fuse_safetensors_count(file); i++) {
        const char *name = fuse_safetensors_entry(file, i)->name;
        if (find_parameter(graph, name) == NULL) {
            list_next(&unexpected);
            if (unexpected.count <= LISTED_NAMES)
                fuse_text_add(&unexpected.text, name);
        }
    }
    struct fuse_text *into = is_strict ? wrong : skipped;
    list_finish(&missing, into);
    list_finish(&unexpected, into);
    list_finish(&shapes, into);
    list_finish(&types, into);
    if (!is_strict && matching == 0 && graph->parameter_count > 0)
        fuse_text_add(wrong, "not one tensor matches the model");
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

/* IEEE 754 binary16: 5 exponent bits, 10 of the fraction. */
static float half_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t fraction = half & 0x3ffu;
    uint32_t bits = sign;
    if (exponent == 31)
        bits |= 0x7f800000u | fraction << 13;
    else if (exponent > 0)
        bits |= (exponent + 112) << 23 | fraction << 13;
    else if (fraction > 0) { /* subnormal: every one is a normal float */
        exponent = 113;
        while ((fraction & 0x400u) == 0) {
            fraction <<= 1;
            exponent--;
        }
        bits |= exponent << 23 | (fraction & 0x3ffu) << 13;
    }
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* In place from the far end is not possible for F64, so the source stands in a buffer of its own. */
static void convert(const char *dtype, const void *from, float *values, size_t count)
{
    if (strcmp(dtype, "F64") == 0) {
        for (size_t i = 0; i < count; i++)
            values[i] = (float)((const double *)from)[i];
    } else if (strcmp(dtype, "F16") == 0) {
        for (size_t i = 0; i < count; i++)
            values[i] = half_to_float(((const uint16_t *)from)[i]);
    } else if (strcmp(dtype, "BF16") == 0) {
        for (size_t i = 0; i < count; i++) {
            const uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
            memcpy(&values[i], &bits, sizeof bits);
        }
    } else
        memcpy(values, from, count * sizeof *values);
}

static int load_one(const struct fuse_safetensors *file, const struct fuse_safetensors_entry *entry,
                    const struct fuse_dict *dict, float *parameter, int64_t element_count, void *raw, float *values,
                    struct fuse_error *error)
{
    const size_t each = float_bytes(entry->dtype);
    for (int64_t at = 0; at < element_count; at += CHUNK_ELEMENTS) {
        const size_t count = element_count - at < CHUNK_ELEMENTS ? (size_t)(element_count - at) : CHUNK_ELEMENTS;
        FUSE_TRY(fuse_safetensors_read(file, entry, (uint64_t)at * each, raw, count * each, error));
        convert(entry->dtype, raw, values, count);
        FUSE_TRY(dict->backend->upload(dict->device, parameter + at, values, count * sizeof *values, error));
    }
    return FUSERUN_OK;
}

int fuse_weights_load(const struct fuse_safetensors *file, const struct fuse_graph *graph, const struct fuse_dict *dict,
                      struct fuse_error *error)
{
    int status = FUSERUN_OK;
    void *raw = malloc(CHUNK_ELEMENTS * sizeof(double));
    float *values = malloc(CHUNK_ELEMENTS * sizeof *values);
    if (raw == NULL || values == NULL) {
        status = fuse_fail_memory(error, "loading weights", CHUNK_ELEMENTS * sizeof(double));
        goto out;
    }
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const struct fuse_parameter *parameter = &graph->parameters[i];
        const struct fuse_safetensors_entry *entry = fuse_safetensors_find(file, parameter->name);
        if (entry != NULL && is_loadable(entry, parameter))
            FUSE_TRY_OUT(
                load_one(file, entry, dict, dict->parameters[i], parameter->element_count, raw, values, error));
    }
out:
    free(raw);
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
