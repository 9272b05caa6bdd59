#include "files/weights_file.h"

#include "base/text.h"
#include "files/files.h"
#include "files/input.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 256 * 1024 };

struct fuse_weights_file {
    char *path;
    struct fuse_safetensors *safetensors; /* one of the two */
    struct fuse_pth *pth;
    struct fuse_weights_entry *entries;
    size_t count;
    const struct fuse_weights_entry **by_name;
    const struct fuse_weights_entry **by_new_name; /* those that have one */
    size_t new_name_count;
};

/* ---- names ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *old_part;
    const char *new_part;
} renamed[] = {{".mlp.linear_1.", ".mlp.0."}, {".mlp.linear_2.", ".mlp.3."}};

/* NULL with *status OK: the name is not an old one. */
static char *new_name_of(const char *name, int *status)
{
    *status = FUSERUN_OK;
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++) {
        const char *at = strstr(name, renamed[i].old_part);
        if (at == NULL)
            continue;
        char *new_name =
            fuse_format("%.*s%s%s", (int)(at - name), name, renamed[i].new_part, at + strlen(renamed[i].old_part));
        *status = new_name == NULL ? FUSERUN_ERROR_MEMORY : FUSERUN_OK;
        return new_name;
    }
    return NULL;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct fuse_weights_entry *const *)a)->name,
                  (*(const struct fuse_weights_entry *const *)b)->name);
}

static int compare_new_names(const void *a, const void *b)
{
    return strcmp((*(const struct fuse_weights_entry *const *)a)->new_name,
                  (*(const struct fuse_weights_entry *const *)b)->new_name);
}

static int sort_names(struct fuse_weights_file *file, enum fuse_pth_scope scope, struct fuse_error *error)
{
    const size_t bytes = (file->count + 1) * sizeof *file->by_name;
    file->by_name = malloc(bytes);
    file->by_new_name = malloc(bytes);
    if (file->by_name == NULL || file->by_new_name == NULL)
        return fuse_fail_memory(error, "a file's list of tensors", bytes);
    for (size_t i = 0; i < file->count; i++) {
        int status;
        struct fuse_weights_entry *entry = &file->entries[i];
        file->by_name[i] = entry;
        entry->new_name = new_name_of(entry->name, &status);
        if (status != FUSERUN_OK)
            return fuse_fail_memory(error, "a tensor's name", strlen(entry->name));
        if (entry->new_name != NULL)
            file->by_new_name[file->new_name_count++] = entry;
    }
    qsort(file->by_name, file->count, sizeof *file->by_name, compare_names);
    qsort(file->by_new_name, file->new_name_count, sizeof *file->by_new_name, compare_new_names);
    for (size_t i = 1; i < file->count && scope == FUSE_PTH_STATE_DICT; i++) {
        char shown[FUSE_SHOWN_BYTES];
        const char *name = file->by_name[i]->name;
        if (compare_names(&file->by_name[i - 1], &file->by_name[i]) == 0)
            return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s': tensor '%s': there are two of this name",
                             fuse_shown_path(file->path), fuse_shown(name, strlen(name), shown));
    }
    return FUSERUN_OK;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *end)
{
    const size_t length = strlen(path), end_length = strlen(end);
    return length >= end_length && strcmp(path + length - end_length, end) == 0;
}

/* A zip file is a .pth whatever its name; what is none can still be meant as one, and deserves that reader's error. */
static int is_pth(const char *path, bool *result, struct fuse_error *error)
{
    int status;
    struct fuse_input input;
    unsigned char start[4] = {0};
    FUSE_TRY(fuse_input_open(path, &input, error));
    if (input.byte_count >= sizeof start)
        FUSE_TRY_OUT(fuse_input_read(&input, 0, start, sizeof start, error));
    *result = memcmp(start, "PK\3\4", sizeof start) == 0 || ends_in(path, ".pth") || ends_in(path, ".pt");
    status = FUSERUN_OK;
out:
    fuse_input_close(&input);
    return status;
}

static bool is_float(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "F64") == 0 || strcmp(dtype, "F16") == 0 ||
           strcmp(dtype, "BF16") == 0;
}

static int list_entries(struct fuse_weights_file *file, struct fuse_error *error)
{
    file->count = file->pth != NULL ? fuse_pth_count(file->pth) : fuse_safetensors_count(file->safetensors);
    file->entries = calloc(file->count + 1, sizeof *file->entries);
    if (file->entries == NULL)
        return fuse_fail_memory(error, "a file's list of tensors", file->count * sizeof *file->entries);
    for (size_t i = 0; i < file->count; i++) {
        struct fuse_weights_entry *entry = &file->entries[i];
        if (file->pth != NULL) {
            const struct fuse_pth_entry *from = fuse_pth_entry(file->pth, i);
            *entry = (struct fuse_weights_entry){from->name,          NULL, from->dtype, from->rank, from->shape,
                                                 from->element_count, false};
        } else {
            const struct fuse_safetensors_entry *from = fuse_safetensors_entry(file->safetensors, i);
            *entry = (struct fuse_weights_entry){from->name,          NULL, from->dtype, from->rank, from->shape,
                                                 from->element_count, false};
        }
        entry->is_float = is_float(entry->dtype);
    }
    return FUSERUN_OK;
}

int fuse_weights_file_open(const char *path, enum fuse_pth_scope scope, const char *weights_key,
                           struct fuse_weights_file **file, struct fuse_error *error)
{
    int status;
    bool reads_pth = false;
    *file = NULL;
    struct fuse_weights_file *self = calloc(1, sizeof *self);
    if (self == NULL)
        return fuse_fail_memory(error, "an open file", sizeof *self);
    self->path = fuse_strdup(path);
    if (self->path == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a file's name", strlen(path)));
    FUSE_TRY_OUT(is_pth(path, &reads_pth, error));
    if (reads_pth)
        FUSE_TRY_OUT(fuse_pth_open(path, scope, weights_key, &self->pth, error));
    else if (weights_key != NULL)
        FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_CONFIG, "weights_key",
                               "'%s' is a .safetensors file, which holds no dicts to choose from",
                               fuse_shown_path(path)));
    else
        FUSE_TRY_OUT(fuse_safetensors_open(path, &self->safetensors, error));
    FUSE_TRY_OUT(list_entries(self, error));
    FUSE_TRY_OUT(sort_names(self, scope, error));
    *file = self;
    self = NULL;
out:
    fuse_weights_file_close(&self);
    return status;
}

void fuse_weights_file_close(struct fuse_weights_file **file)
{
    struct fuse_weights_file *self = *file;
    if (self == NULL)
        return;
    for (size_t i = 0; self->entries != NULL && i < self->count; i++)
        free((void *)(uintptr_t)self->entries[i].new_name);
    free(self->entries);
    free(self->by_name);
    free(self->by_new_name);
    fuse_safetensors_close(&self->safetensors);
    fuse_pth_close(&self->pth);
    free(self->path);
    free(self);
    *file = NULL;
}

size_t fuse_weights_file_count(const struct fuse_weights_file *file)
{
    return file->count;
}

const struct fuse_weights_entry *fuse_weights_file_entry(const struct fuse_weights_file *file, size_t index)
{
    return index < file->count ? &file->entries[index] : NULL;
}

const struct fuse_weights_entry *fuse_weights_file_find(const struct fuse_weights_file *file, const char *name)
{
    const struct fuse_weights_entry key = {.name = name, .new_name = name}, *const key_pointer = &key;
    const struct fuse_weights_entry *const *found =
        bsearch(&key_pointer, file->by_name, file->count, sizeof *file->by_name, compare_names);
    if (found == NULL)
        found = bsearch(&key_pointer, file->by_new_name, file->new_name_count, sizeof *file->by_new_name,
                        compare_new_names);
    return found == NULL ? NULL : *found;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

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

/* bfloat16 is the upper half of a float. */
static void convert(const char *dtype, const void *from, float *values, size_t count)
{
    if (strcmp(dtype, "F64") == 0) {
        for (size_t i = 0; i < count; i++)
            values[i] = (float)((const double *)from)[i];
    } else if (strcmp(dtype, "F16") == 0) {
        for (size_t i = 0; i < count; i++)
            values[i] = half_to_float(((const uint16_t *)from)[i]);
    } else {
        for (size_t i = 0; i < count; i++) {
            const uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
            memcpy(&values[i], &bits, sizeof bits);
        }
    }
}

int fuse_weights_file_read_raw(const struct fuse_weights_file *file, const struct fuse_weights_entry *entry,
                               uint64_t first, uint64_t count, void *elements, struct fuse_error *error)
{
    const size_t index = (size_t)(entry - file->entries);
    if (file->pth != NULL)
        return fuse_pth_read(file->pth, fuse_pth_entry(file->pth, index), first, count, elements, error);
    const uint32_t each = fuse_safetensors_dtype(entry->dtype)->bits / 8;
    if (first > entry->element_count || count > entry->element_count - first || each == 0)
        return fuse_fail(error, FUSERUN_ERROR_INTERNAL, NULL, "tensor '%s': no such elements to read", entry->name);
    return fuse_safetensors_read(file->safetensors, fuse_safetensors_entry(file->safetensors, index), first * each,
                                 elements, count * each, error);
}

int fuse_weights_file_read(const struct fuse_weights_file *file, const struct fuse_weights_entry *entry, uint64_t first,
                           uint64_t count, float *values, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    if (!entry->is_float)
        return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "'%s': tensor '%s' is %s, no floating-point type",
                         fuse_shown_path(file->path), entry->name, entry->dtype);
    if (strcmp(entry->dtype, "F32") == 0)
        return fuse_weights_file_read_raw(file, entry, first, count, values, error);
    void *buffer = malloc(BUFFER_BYTES);
    if (buffer == NULL)
        return fuse_fail_memory(error, "reading a tensor", BUFFER_BYTES);
    for (uint64_t at = 0; at < count;) {
        const uint64_t most = BUFFER_BYTES / sizeof(double), part = count - at < most ? count - at : most;
        FUSE_TRY_OUT(fuse_weights_file_read_raw(file, entry, first + at, part, buffer, error));
        convert(entry->dtype, buffer, values + at, (size_t)part);
        at += part;
    }
out:
    free(buffer);
    return status;
}
