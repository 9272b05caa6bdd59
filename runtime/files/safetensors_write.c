#include "files/safetensors.h"

#include "base/text.h"
#include "files/files.h"
#include "files/output.h"

#include <stdlib.h>
#include <string.h>

/* Counts what a produce() hands over, so that a wrong count never makes a file. */
struct sink {
    struct fuse_output *output;
    const struct fuse_safetensors_output *tensor;
    uint64_t left;
};

static int sink_write(void *user, const void *bytes, size_t count, struct fuse_error *error)
{
    struct sink *sink = user;
    if (count > sink->left)
        return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': more bytes to write than its shape takes",
                         sink->tensor->name);
    sink->left -= count;
    return fuse_output_write(sink->output, bytes, count, error);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct fuse_safetensors_output *const *)a)->name,
                  (*(const struct fuse_safetensors_output *const *)b)->name);
}

/* The format's own order: element size, largest first, so that all data is aligned to its element; then names by byte.
 */
static int compare_outputs(const void *a, const void *b)
{
    const struct fuse_safetensors_output *x = *(const struct fuse_safetensors_output *const *)a;
    const struct fuse_safetensors_output *y = *(const struct fuse_safetensors_output *const *)b;
    const uint32_t x_bits = fuse_safetensors_dtype(x->dtype)->bits, y_bits = fuse_safetensors_dtype(y->dtype)->bits;
    if (x_bits != y_bits)
        return x_bits > y_bits ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int check_output(const struct fuse_safetensors_output *output, struct fuse_error *error)
{
    const struct fuse_safetensors_dtype *dtype = fuse_safetensors_dtype(output->dtype);
    if (dtype == NULL)
        return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': unknown dtype '%s'", output->name,
                         output->dtype);
    if (!fuse_is_utf8(output->name, strlen(output->name)) || strcmp(output->name, FUSE_SAFETENSORS_METADATA) == 0)
        return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL,
                         "tensor '%s': not a name that a .safetensors file can hold", output->name);
    uint64_t bits = dtype->bits;
    for (uint32_t i = 0; i < output->rank; i++)
        if (output->shape[i] < 0 || __builtin_mul_overflow(bits, (uint64_t)output->shape[i], &bits))
            return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': its shape is too large", output->name);
    if (bits % 8 != 0 || bits / 8 != output->byte_count)
        return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': byte count and shape do not agree",
                         output->name);
    return FUSERUN_OK;
}

struct pair {
    const char *key;
    const char *value;
};

static int compare_pairs(const void *a, const void *b)
{
    return strcmp(((const struct pair *)a)->key, ((const struct pair *)b)->key);
}

/* Sorted by key: the same metadata gives the same bytes, in whatever order it comes. */
static int add_metadata(struct fuse_text *header, const char *const *metadata, size_t count, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct pair *pairs = malloc(count * sizeof *pairs);
    if (pairs == NULL)
        return fuse_fail_memory(error, "a file's metadata", count * sizeof *pairs);
    for (size_t i = 0; i < count; i++)
        pairs[i] = (struct pair){metadata[2 * i], metadata[2 * i + 1]};
    qsort(pairs, count, sizeof *pairs, compare_pairs);
    fuse_text_add(header, "\"" FUSE_SAFETENSORS_METADATA "\":{");
    for (size_t i = 0; i < count; i++) {
        if (!fuse_is_utf8(pairs[i].key, strlen(pairs[i].key)) ||
            !fuse_is_utf8(pairs[i].value, strlen(pairs[i].value)) ||
            (i > 0 && strcmp(pairs[i - 1].key, pairs[i].key) == 0))
            FUSE_TRY_OUT(
                fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "metadata '%s': twice, or not UTF-8", pairs[i].key));
        fuse_text_add(header, i > 0 ? "," : "");
        fuse_text_add_json(header, pairs[i].key);
        fuse_text_add(header, ":");
        fuse_text_add_json(header, pairs[i].value);
    }
    fuse_text_add(header, "}");
out:
    free(pairs);
    return status;
}

static int make_header(const struct fuse_safetensors_output *const *sorted, size_t count, const char *const *metadata,
                       size_t metadata_count, struct fuse_text *header, struct fuse_error *error)
{
    uint64_t offset = 0;
    fuse_text_add(header, "{");
    if (metadata_count > 0)
        FUSE_TRY(add_metadata(header, metadata, metadata_count, error));
    for (size_t i = 0; i < count; i++) {
        const struct fuse_safetensors_output *tensor = sorted[i];
        const uint64_t begin = offset;
        if (__builtin_add_overflow(offset, tensor->byte_count, &offset) || offset > INT64_MAX)
            return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': the file becomes too large",
                             tensor->name);
        fuse_text_add(header, header->length > 1 ? "," : "");
        fuse_text_add_json(header, tensor->name);
        fuse_text_addf(header, ":{\"dtype\":\"%s\",\"shape\":[", tensor->dtype);
        for (uint32_t d = 0; d < tensor->rank; d++)
            fuse_text_addf(header, "%s%lld", d > 0 ? "," : "", (long long)tensor->shape[d]);
        fuse_text_addf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                       (unsigned long long)offset);
    }
    fuse_text_add(header, "}");
    while (!header->failed && header->length % 8 != 0)
        fuse_text_add(header, " ");
    if (header->failed)
        return fuse_fail_memory(error, "a file's header", header->length);
    if (header->length > FUSE_SAFETENSORS_HEADER_LIMIT)
        return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                         "the header of a .safetensors file may have 100,000,000 bytes, these tensors need %zu",
                         header->length);
    return FUSERUN_OK;
}

int fuse_safetensors_write(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                           const char *const *metadata, size_t metadata_count, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_text header = {0};
    struct fuse_output *output = NULL;
    unsigned char prefix[8];
    const struct fuse_safetensors_output **sorted = malloc((output_count + 1) * sizeof *sorted);
    if (sorted == NULL)
        return fuse_fail_memory(error, "a file's list of tensors", output_count * sizeof *sorted);
    for (size_t i = 0; i < output_count; i++) {
        FUSE_TRY_OUT(check_output(&outputs[i], error));
        sorted[i] = &outputs[i];
    }
    qsort(sorted, output_count, sizeof *sorted, compare_names);
    for (size_t i = 1; i < output_count; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': two of this name to write",
                                   sorted[i]->name));
    qsort(sorted, output_count, sizeof *sorted, compare_outputs);
    FUSE_TRY_OUT(make_header(sorted, output_count, metadata, metadata_count, &header, error));
    for (size_t i = 0; i < sizeof prefix; i++)
        prefix[i] = (unsigned char)(header.length >> (8 * i));
    FUSE_TRY_OUT(fuse_output_open(path, &output, error));
    FUSE_TRY_OUT(fuse_output_write(output, prefix, sizeof prefix, error));
    FUSE_TRY_OUT(fuse_output_write(output, header.data, header.length, error));
    for (size_t i = 0; i < output_count; i++) {
        struct sink sink = {output, sorted[i], sorted[i]->byte_count};
        FUSE_TRY_OUT(sorted[i]->produce(sorted[i]->user, sorted[i], sink_write, &sink, error));
        if (sink.left != 0)
            FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL,
                                   "tensor '%s': fewer bytes to write than its shape takes", sorted[i]->name));
    }
    FUSE_TRY_OUT(fuse_output_commit(&output, error));
out:
    fuse_output_abandon(&output);
    fuse_text_free(&header);
    free(sorted);
    return status;
}
