/* .safetensors: the header, all values, and the same through what .pth files are read with. */
#include "fuzz.h"

#include "files/safetensors.h"
#include "files/weights_file.h"

#include <stdlib.h>
#include <string.h>

static void read_entries(const struct fuse_safetensors *file, size_t count)
{
    uint64_t next = 0;
    for (size_t i = 0; i < fuse_safetensors_count(file); i++) {
        struct fuse_error error = FUSE_ERROR_INIT;
        const struct fuse_safetensors_entry *entry = fuse_safetensors_entry(file, i);
        FUZZ_CHECK(fuse_safetensors_find(file, entry->name) == entry);
        FUZZ_CHECK(entry->offset >= next && entry->offset <= count && entry->byte_count <= count - entry->offset);
        next = entry->offset + entry->byte_count;
        unsigned char *values = malloc((size_t)entry->byte_count + 1);
        FUZZ_CHECK(values != NULL);
        FUZZ_CHECK(fuse_safetensors_read(file, entry, 0, values, entry->byte_count, &error) == FUSERUN_OK);
        FUZZ_CHECK(fuse_safetensors_read(file, entry, entry->byte_count, values, 1, &error) != FUSERUN_OK);
        free(values);
    }
}

static void read_weights(const char *path)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_weights_file *file = NULL;
    const int status = fuse_weights_file_open(path, FUSE_PTH_STATE_DICT, NULL, &file, &error);
    FUZZ_CHECK(status == FUSERUN_OK);
    for (size_t i = 0; i < fuse_weights_file_count(file); i++) {
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        FUZZ_CHECK(fuse_weights_file_find(file, entry->name) == entry);
        if (!entry->is_float)
            continue;
        float *values = malloc((size_t)entry->element_count * sizeof *values + 1);
        FUZZ_CHECK(values != NULL);
        FUZZ_CHECK(fuse_weights_file_read(file, entry, 0, entry->element_count, values, &error) == FUSERUN_OK);
        free(values);
    }
    fuse_weights_file_close(&file);
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_safetensors *file = NULL;
    const char *path = fuzz_file(0, bytes, count);
    const int status = fuse_safetensors_open(path, &file, &error);
    fuzz_check_error(status, &error);
    FUZZ_CHECK((status == FUSERUN_OK) == (file != NULL));
    if (file == NULL)
        return;
    read_entries(file, count);
    (void)fuse_safetensors_metadata(file, "format");
    fuse_safetensors_close(&file);
    if (count < 4 || memcmp(bytes, "PK\3\4", 4) != 0) /* a length of 67,324,752 looks like a zip file */
        read_weights(path);
}
