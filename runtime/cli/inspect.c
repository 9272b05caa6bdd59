#include "cli/cli.h"
#include "files/safetensors.h"

#include <inttypes.h>
#include <string.h>

static bool is_pth(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL && (strcmp(dot, ".pth") == 0 || strcmp(dot, ".pt") == 0);
}

static void add_json(const struct fuse_safetensors *file, struct fuse_text *text)
{
    fuse_text_add(text, "[");
    for (size_t i = 0; i < fuse_safetensors_count(file); i++) {
        const struct fuse_safetensors_entry *entry = fuse_safetensors_entry(file, i);
        fuse_text_add(text, i > 0 ? ",\n {\"name\":" : "{\"name\":");
        fuse_text_add_json(text, entry->name);
        fuse_text_addf(text, ",\"dtype\":\"%s\",\"shape\":[", entry->dtype);
        for (uint32_t d = 0; d < entry->rank; d++)
            fuse_text_addf(text, "%s%" PRIu64, d > 0 ? "," : "", entry->shape[d]);
        fuse_text_add(text, "]}");
    }
    fuse_text_add(text, "]\n");
}

static void add_table(const struct fuse_safetensors *file, struct fuse_text *text)
{
    int width = 4;
    uint64_t elements = 0;
    for (size_t i = 0; i < fuse_safetensors_count(file); i++) {
        const struct fuse_safetensors_entry *entry = fuse_safetensors_entry(file, i);
        width = (int)strlen(entry->name) > width ? (int)strlen(entry->name) : width;
        elements += entry->element_count;
    }
    for (size_t i = 0; i < fuse_safetensors_count(file); i++) {
        const struct fuse_safetensors_entry *entry = fuse_safetensors_entry(file, i);
        fuse_text_addf(text, "%-*s  %-4s  (", width, entry->name, entry->dtype);
        for (uint32_t d = 0; d < entry->rank; d++)
            fuse_text_addf(text, "%s%" PRIu64, d > 0 ? ", " : "", entry->shape[d]);
        fuse_text_add(text, ")\n");
    }
    fuse_text_addf(text, "%zu tensors, %" PRIu64 " values\n", fuse_safetensors_count(file), elements);
}

int fuse_command_inspect(const struct fuse_arguments *arguments)
{
    if (arguments->count != 1)
        return fuse_usage_error("inspect needs one FILE");
    const char *path = arguments->words[0];
    if (is_pth(path))
        return fuse_usage_error("%s: reading .pth files is not in this version", path);
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_safetensors *file = NULL;
    if (fuse_safetensors_open(path, &file, &error) != FUSERUN_OK)
        return fuse_usage_error("%s", error.text);
    struct fuse_text text = {0};
    if (arguments->wants_json)
        add_json(file, &text);
    else
        add_table(file, &text);
    const int status = fuse_print_text(&text);
    fuse_text_free(&text);
    fuse_safetensors_close(&file);
    return status;
}
