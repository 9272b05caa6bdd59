#include "cli/cli.h"
#include "files/checkpoint_file.h"
#include "files/files.h"
#include "files/weights_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK_BYTES (1u << 20)

/* One tensor on its way from file to file. */
struct source {
    const struct fuse_weights_file *file;
    const struct fuse_weights_entry *entry;
    int64_t *shape; /* (rank) */
    char *chunk;
};

static int produce(void *user, const struct fuse_safetensors_output *output,
                   int (*write)(void *sink, const void *bytes, size_t count, struct fuse_error *error), void *sink,
                   struct fuse_error *error)
{
    const struct source *source = user;
    const uint64_t elements = source->entry->element_count;
    const uint64_t each = elements > 0 ? output->byte_count / elements : 1, most = CHUNK_BYTES / each;
    for (uint64_t at = 0; at < elements; at += most) {
        const uint64_t count = elements - at < most ? elements - at : most;
        FUSE_TRY(fuse_weights_file_read_raw(source->file, source->entry, at, count, source->chunk, error));
        FUSE_TRY(write(sink, source->chunk, (size_t)(count * each), error));
    }
    return FUSERUN_OK;
}

static int describe(const struct fuse_weights_file *file, const struct fuse_weights_entry *entry, char *chunk,
                    struct source *source, struct fuse_safetensors_output *output, struct fuse_error *error)
{
    *source = (struct source){file, entry, malloc((entry->rank + 1) * sizeof *source->shape), chunk};
    if (source->shape == NULL)
        return fuse_fail_memory(error, "a tensor's shape", entry->rank * sizeof *source->shape);
    for (uint32_t d = 0; d < entry->rank; d++)
        source->shape[d] = (int64_t)entry->shape[d];
    *output = (struct fuse_safetensors_output){
        .name = entry->name,
        .dtype = entry->dtype,
        .rank = entry->rank,
        .shape = source->shape,
        .byte_count = entry->element_count * fuse_safetensors_dtype(entry->dtype)->bits / 8,
        .produce = produce,
        .user = source,
    };
    return FUSERUN_OK;
}

/* Of a checkpoint, PyTorch gets the weights. */
static bool is_weight(const struct fuse_weights_entry *entry)
{
    return !fuse_checkpoint_is_state(entry->name);
}

static int write_pth(const struct fuse_weights_file *file, const char *to, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    size_t weights = 0;
    const size_t count = fuse_weights_file_count(file);
    struct fuse_safetensors_output *outputs = calloc(count + 1, sizeof *outputs);
    struct source *sources = calloc(count + 1, sizeof *sources);
    char *chunk = malloc(CHUNK_BYTES);
    if (outputs == NULL || sources == NULL || chunk == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "writing weights", count * sizeof *outputs + CHUNK_BYTES));
    for (size_t i = 0; i < count; i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        if (!is_weight(entry))
            continue;
        FUSE_TRY_OUT(describe(file, entry, chunk, &sources[weights], &outputs[weights], error));
        weights++;
    }
    FUSE_TRY_OUT(fuse_pth_write(to, outputs, weights, error));
out:
    for (size_t i = 0; sources != NULL && i < count; i++)
        free(sources[i].shape);
    free(sources);
    free(outputs);
    free(chunk);
    return status;
}

static int print_done(const struct fuse_weights_file *file, const char *to, bool wants_json)
{
    struct fuse_text text = {0};
    uint64_t elements = 0;
    size_t count = 0;
    for (size_t i = 0; i < fuse_weights_file_count(file); i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        elements += is_weight(entry) ? entry->element_count : 0;
        count += is_weight(entry);
    }
    if (wants_json) {
        fuse_text_add(&text, "{\"file\":");
        fuse_text_add_json(&text, to);
        fuse_text_addf(&text, ",\"tensors\":%zu,\"values\":%" PRIu64 "}\n", count, elements);
    } else
        fuse_text_addf(&text, "%s: %zu tensors, %" PRIu64 " values\n", to, count, elements);
    const int exit_status = fuse_print_text(&text);
    fuse_text_free(&text);
    return exit_status;
}

int fuse_command_export(const struct fuse_arguments *arguments)
{
    struct stat found;
    struct fuse_weights_file *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    const char *to = arguments->to;
    if (arguments->count != 1 || to == NULL)
        return fuse_usage_error("export needs a run's folder or a file of weights, and --to X.pth");
    const char *dot = strrchr(to, '.');
    if (dot == NULL || (strcmp(dot, ".pth") != 0 && strcmp(dot, ".pt") != 0))
        return fuse_usage_error("--to %s: the name must end in .pth or .pt", to);
    const bool is_folder = stat(arguments->words[0], &found) == 0 && S_ISDIR(found.st_mode);
    char *from = fuse_format("%s%s", arguments->words[0], is_folder ? "/model.safetensors" : "");
    if (from == NULL)
        return fuse_report_no_memory();
    int exit_status = FUSE_EXIT_DONE;
    if (fuse_weights_file_open(from, FUSE_PTH_STATE_DICT, arguments->weights_key, &file, &error) != FUSERUN_OK)
        exit_status = fuse_report_refusal(&error);
    else if (write_pth(file, to, &error) != FUSERUN_OK)
        exit_status = fuse_report_failure(&error);
    else
        exit_status = print_done(file, to, arguments->wants_json);
    fuse_weights_file_close(&file);
    free(from);
    return exit_status;
}
