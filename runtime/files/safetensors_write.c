#include "files/safetensors.h"

#include "base/text.h"
#include "files/checksums.h"
#include "files/files.h"
#include "files/output.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- a tensor's bytes ------------------------------------------------------------------------------------------ */

struct counter {
    const struct fuse_safetensors_output *tensor;
    uint64_t left;
    int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error);
    void *sink;
};

static int count_bytes(void *user, const void *bytes, size_t count, struct fuse_error *error)
{
    struct counter *counter = user;
    if (count > counter->left)
        return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': more bytes to write than its shape takes",
                         counter->tensor->name);
    counter->left -= count;
    return counter->write(counter->sink, bytes, count, error);
}

int fuse_safetensors_produce(const struct fuse_safetensors_output *output,
                             int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error),
                             void *sink, struct fuse_error *error)
{
    struct counter counter = {output, output->byte_count, write, sink};
    FUSE_TRY(output->produce(output->user, output, count_bytes, &counter, error));
    if (counter.left != 0)
        return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': fewer bytes to write than its shape takes",
                         output->name);
    return FUSERUN_OK;
}

struct sink {
    struct fuse_output *output;
    XXH3_state_t *hash; /* NULL: nobody asks */
};

static int write_bytes(void *user, const void *bytes, size_t count, struct fuse_error *error)
{
    const struct sink *sink = user;
    if (sink->hash != NULL)
        (void)XXH3_64bits_update(sink->hash, bytes, count);
    return fuse_output_write(sink->output, bytes, count, error);
}

/* ---- the header ------------------------------------------------------------------------------------------------ */

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

/* Sorted by key: the same metadata gives the same bytes, in whatever order it comes. Checksums stand before all. */
static int add_metadata(struct fuse_text *header, const char *const *metadata, size_t count, size_t checksum_count,
                        struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct pair *pairs = malloc((count + 1) * sizeof *pairs);
    if (pairs == NULL)
        return fuse_fail_memory(error, "a file's metadata", count * sizeof *pairs);
    for (size_t i = 0; i < count; i++)
        pairs[i] = (struct pair){metadata[2 * i], metadata[2 * i + 1]};
    qsort(pairs, count, sizeof *pairs, compare_pairs);
    fuse_text_add(header, "\"" FUSE_SAFETENSORS_METADATA "\":{");
    if (checksum_count > 0)
        fuse_text_add(header, "\"" FUSE_CHECKSUMS_KEY "\":\"");
    for (size_t i = 0; i < checksum_count; i++)
        fuse_text_add(header, "0000000000000000");
    if (checksum_count > 0)
        fuse_text_add(header, count > 0 ? "\"," : "\"");
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
                       size_t metadata_count, bool has_checksums, struct fuse_text *header, struct fuse_error *error)
{
    uint64_t offset = 0;
    fuse_text_add(header, "{");
    if (metadata_count > 0 || has_checksums)
        FUSE_TRY(add_metadata(header, metadata, metadata_count, has_checksums ? count + 1 : 0, error));
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

/* ---- the file -------------------------------------------------------------------------------------------------- */

/* All of it that is known before: the data's checksums are filled in already, the header's own comes last. */
static int finish_header(struct fuse_output *output, struct fuse_text *header, struct fuse_error *error)
{
    fuse_checksum_write(XXH3_64bits(header->data, header->length), header->data + strlen(FUSE_CHECKSUMS_START));
    return fuse_output_rewrite(output, 8, header->data, header->length, error);
}

static int write_data(struct fuse_output *output, const struct fuse_safetensors_output *const *sorted, size_t count,
                      XXH3_state_t *hash, char *digits, struct fuse_error *error)
{
    struct sink sink = {output, hash};
    for (size_t i = 0; i < count; i++) {
        if (hash != NULL)
            (void)XXH3_64bits_reset(hash);
        FUSE_TRY(fuse_safetensors_produce(sorted[i], write_bytes, &sink, error));
        if (hash != NULL)
            fuse_checksum_write(XXH3_64bits_digest(hash), digits + FUSE_CHECKSUM_DIGITS * (i + 1));
    }
    return FUSERUN_OK;
}

static int write_file(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                      const char *const *metadata, size_t metadata_count, bool has_checksums, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_text header = {0};
    struct fuse_output *output = NULL;
    XXH3_state_t *hash = NULL;
    unsigned char prefix[8];
    const struct fuse_safetensors_output **sorted = malloc((output_count + 1) * sizeof *sorted);
    if (sorted == NULL)
        return fuse_fail_memory(error, "a file's list of tensors", output_count * sizeof *sorted);
    if (has_checksums && (hash = XXH3_createState()) == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "checksums", sizeof *sorted));
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
    FUSE_TRY_OUT(make_header(sorted, output_count, metadata, metadata_count, has_checksums, &header, error));
    for (size_t i = 0; i < sizeof prefix; i++)
        prefix[i] = (unsigned char)(header.length >> (8 * i));
    FUSE_TRY_OUT(fuse_output_open(path, &output, error));
    FUSE_TRY_OUT(fuse_output_write(output, prefix, sizeof prefix, error));
    FUSE_TRY_OUT(fuse_output_write(output, header.data, header.length, error));
    FUSE_TRY_OUT(write_data(output, sorted, output_count, hash,
                            has_checksums ? header.data + strlen(FUSE_CHECKSUMS_START) : NULL, error));
    if (has_checksums)
        FUSE_TRY_OUT(finish_header(output, &header, error));
    FUSE_TRY_OUT(fuse_output_commit(&output, error));
out:
    fuse_output_abandon(&output);
    fuse_text_free(&header);
    (void)XXH3_freeState(hash);
    free(sorted);
    return status;
}

int fuse_safetensors_write(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                           const char *const *metadata, size_t metadata_count, struct fuse_error *error)
{
    return write_file(path, outputs, output_count, metadata, metadata_count, false, error);
}

int fuse_safetensors_write_checked(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                                   const char *const *metadata, size_t metadata_count, struct fuse_error *error)
{
    return write_file(path, outputs, output_count, metadata, metadata_count, true, error);
}
