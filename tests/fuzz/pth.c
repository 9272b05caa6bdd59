/* .pth files: zip, pickle, and the values of every tensor. The first byte says what is asked of the file. */
#include "fuzz.h"

#include "files/weights_file.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ELEMENTS = 4096 }; /* a view may repeat one element without end */

static void read_entry(const struct fuse_pth *file, const struct fuse_pth_entry *entry)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const uint64_t count = entry->element_count < MOST_ELEMENTS ? entry->element_count : MOST_ELEMENTS;
    unsigned char *values = malloc((size_t)count * entry->element_bytes + 1);
    FUZZ_CHECK(values != NULL);
    FUZZ_CHECK(fuse_pth_read(file, entry, 0, count, values, &error) == FUSERUN_OK);
    FUZZ_CHECK(fuse_pth_read(file, entry, entry->element_count - count, count, values, &error) == FUSERUN_OK);
    FUZZ_CHECK(fuse_pth_read(file, entry, entry->element_count, 1, values, &error) != FUSERUN_OK);
    free(values);
}

static void read_weights(const char *path, const char *key)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_weights_file *file = NULL;
    fuzz_check_error(fuse_weights_file_open(path, FUSE_PTH_STATE_DICT, key, &file, &error), &error);
    for (size_t i = 0; file != NULL && i < fuse_weights_file_count(file); i++) {
        float values[64];
        const struct fuse_weights_entry *entry = fuse_weights_file_entry(file, i);
        FUZZ_CHECK(fuse_weights_file_find(file, entry->name) != NULL);
        if (entry->is_float)
            FUZZ_CHECK(fuse_weights_file_read(file, entry, 0, entry->element_count < 64 ? entry->element_count : 64,
                                              values, &error) == FUSERUN_OK);
    }
    fuse_weights_file_close(&file);
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_pth *file = NULL;
    if (count == 0)
        return;
    const bool has_key = (bytes[0] & 1) != 0;
    const char *key = has_key ? (bytes[0] & 2) != 0 ? "model.a" : "model" : NULL;
    const char *path = fuzz_file(0, bytes + 1, count - 1);
    const int status =
        fuse_pth_open(path, (bytes[0] & 4) != 0 ? FUSE_PTH_STATE_DICT : FUSE_PTH_EVERYTHING, key, &file, &error);
    fuzz_check_error(status, &error);
    FUZZ_CHECK((status == FUSERUN_OK) == (file != NULL));
    for (size_t i = 0; file != NULL && i < fuse_pth_count(file); i++)
        read_entry(file, fuse_pth_entry(file, i));
    fuse_pth_close(&file);
    if (status == FUSERUN_OK)
        read_weights(path, key);
}
