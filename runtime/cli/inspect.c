#include "cli/cli.h"
#include "files/files.h"
#include "files/weights_file.h"

#include <inttypes.h>
#include <string.h>

static void add_json(const struct fuse_weights_file *file, struct fuse_text *text)
{
    fuse_text_add(text, "[");
    for (size_t i = 0; i < fuse_weights_file_count(file); i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        fuse_text_add(text, i > 0 ? ",\n {\"name\":" : "{\"name\":");
        fuse_text_add_json(text, entry->name);
        fuse_text_addf(text, ",\"dtype\":\"%s\",\"shape\":[", entry->dtype);
        for (uint32_t d = 0; d < entry->rank; d++)
            fuse_text_addf(text, "%s%" PRIu64, d > 0 ? "," : "", entry->shape[d]);
        fuse_text_add(text, "]}");
    }
    fuse_text_add(text, "]\n");
}

/* A file's names may hold anything, and a terminal obeys control bytes. */
static void add_name(const char *name, int width, struct fuse_text *text)
{
    const size_t begin = text->length;
    fuse_text_addf(text, "%-*s", width, name);
    for (size_t i = begin; i < text->length; i++) {
        const size_t hidden = fuse_commanding_bytes(text->data + i, text->length - i);
        memset(text->data + i, '?', hidden);
        i += hidden > 0 ? hidden - 1 : 0;
    }
}

static void add_table(const struct fuse_weights_file *file, struct fuse_text *text)
{
    int width = 4;
    uint64_t elements = 0;
    for (size_t i = 0; i < fuse_weights_file_count(file); i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        width = (int)strlen(entry->name) > width ? (int)strlen(entry->name) : width;
        elements += entry->element_count;
    }
    for (size_t i = 0; i < fuse_weights_file_count(file); i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        add_name(entry->name, width, text);
        fuse_text_addf(text, "  %-4s  (", entry->dtype);
        for (uint32_t d = 0; d < entry->rank; d++)
            fuse_text_addf(text, "%s%" PRIu64, d > 0 ? ", " : "", entry->shape[d]);
        fuse_text_add(text, ")\n");
    }
    fuse_text_addf(text, "%zu tensors, %" PRIu64 " values\n", fuse_weights_file_count(file), elements);
}

int fuse_command_inspect(const struct fuse_arguments *arguments)
{
    if (arguments->count != 1)
        return fuse_usage_error("inspect needs one FILE");
    const char *path = arguments->words[0];
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_weights_file *file = NULL;
    if (fuse_weights_file_open(path, FUSE_PTH_EVERYTHING, NULL, &file, &error) != FUSERUN_OK)
        return fuse_report_refusal(&error);
    struct fuse_text text = {0};
    if (arguments->wants_json)
        add_json(file, &text);
    else
        add_table(file, &text);
    const int status = fuse_print_text(&text);
    fuse_text_free(&text);
    fuse_weights_file_close(&file);
    return status;
}
