/* Makes large tensors that need not be kept: .safetensors files from a few lines of text, the same on every machine.
 *
 *   seeded_weights SPECIFICATION FOLDER
 *
 *   seed N                              of all that follows
 *   file NAME                           in FOLDER; the tensors below go into it
 *   f32 NAME MIDDLE HALF DIMENSION...   uniform in [MIDDLE - HALF, MIDDLE + HALF)
 *   i64 NAME LIMIT DIMENSION...         in [0, LIMIT)
 *
 * Tensor k of the specification draws from stream k. */
#include "base/random.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TENSORS 1024
#define MAX_RANK 8
#define CHUNK_ELEMENTS 65536

struct tensor {
    char name[128];
    bool is_integer;
    double middle, half;
    uint64_t limit;
    int rank;
    uint64_t shape[MAX_RANK];
    uint64_t count;
    uint64_t stream;
};

struct specification {
    uint64_t seed;
    char path[4096]; /* empty: no file is open yet */
    struct tensor *tensors;
    size_t tensor_count;
    uint64_t next_stream;
};

static uint64_t bytes_of(const struct tensor *tensor)
{
    return tensor->count * (tensor->is_integer ? sizeof(int64_t) : sizeof(float));
}

static bool write_header(FILE *file, const struct specification *all)
{
    char *text = NULL;
    size_t size = 0;
    FILE *const memory = open_memstream(&text, &size);
    if (memory == NULL)
        return false;
    uint64_t offset = 0;
    for (size_t i = 0; i < all->tensor_count; i++) {
        const struct tensor *const tensor = &all->tensors[i];
        fprintf(memory, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i == 0 ? "{" : ",", tensor->name,
                tensor->is_integer ? "I64" : "F32");
        for (int d = 0; d < tensor->rank; d++)
            fprintf(memory, "%s%llu", d == 0 ? "" : ",", (unsigned long long)tensor->shape[d]);
        fprintf(memory, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)offset,
                (unsigned long long)(offset + bytes_of(tensor)));
        offset += bytes_of(tensor);
    }
    fputc('}', memory);
    while (ftell(memory) % 8 != 0)
        fputc(' ', memory);
    fclose(memory);
    const uint64_t length = size;
    const bool done = fwrite(&length, sizeof(length), 1, file) == 1 && fwrite(text, 1, size, file) == size;
    free(text);
    return done;
}

static bool write_tensor(FILE *file, const struct tensor *tensor, uint64_t seed)
{
    static float values[CHUNK_ELEMENTS];
    const float middle = (float)tensor->middle, half = (float)tensor->half;
    for (uint64_t at = 0; at < tensor->count; at += CHUNK_ELEMENTS) {
        const size_t count = (size_t)(at + CHUNK_ELEMENTS < tensor->count ? CHUNK_ELEMENTS : tensor->count - at);
        if (tensor->is_integer) {
            for (size_t i = 0; i < count; i++) {
                const int64_t value = (int64_t)(fuse_random_bits(seed, tensor->stream, at + i) % tensor->limit);
                if (fwrite(&value, sizeof(value), 1, file) != 1)
                    return false;
            }
            continue;
        }
        fuse_random_uniform(seed, tensor->stream, at, values, count);
        for (size_t i = 0; i < count; i++)
            values[i] = middle + (2.0f * values[i] - 1.0f) * half;
        if (fwrite(values, sizeof(values[0]), count, file) != count)
            return false;
    }
    return true;
}

/* Writes the file whose tensors are complete. */
static bool finish_file(struct specification *all)
{
    if (all->path[0] == '\0')
        return true;
    FILE *const file = fopen(all->path, "wbe");
    bool done = file != NULL && write_header(file, all);
    for (size_t i = 0; i < all->tensor_count && done; i++)
        done = write_tensor(file, &all->tensors[i], all->seed);
    if (file != NULL && fclose(file) != 0)
        done = false;
    if (!done)
        perror(all->path);
    all->tensor_count = 0;
    return done;
}

static bool read_tensor(struct specification *all, const char *line)
{
    struct tensor *const tensor = &all->tensors[all->tensor_count];
    char kind[8];
    int used = 0, at = 0;
    *tensor = (struct tensor){.count = 1, .stream = all->next_stream++};
    if (all->tensor_count == MAX_TENSORS || all->path[0] == '\0' ||
        sscanf(line, "%7s %127s%n", kind, tensor->name, &at) != 2)
        return false;
    tensor->is_integer = strcmp(kind, "i64") == 0;
    if (tensor->is_integer) {
        unsigned long long limit = 0;
        if (sscanf(line + at, "%llu%n", &limit, &used) != 1 || limit == 0)
            return false;
        tensor->limit = limit;
    } else if (strcmp(kind, "f32") != 0 || sscanf(line + at, "%lf %lf%n", &tensor->middle, &tensor->half, &used) != 2) {
        return false;
    }
    unsigned long long dimension;
    for (at += used; sscanf(line + at, "%llu%n", &dimension, &used) == 1; at += used) {
        if (tensor->rank == MAX_RANK)
            return false;
        tensor->shape[tensor->rank++] = dimension;
        tensor->count *= dimension;
    }
    all->tensor_count++;
    return true;
}

static bool read_line(struct specification *all, const char *line, const char *folder)
{
    unsigned long long seed;
    char name[256];
    if (sscanf(line, "seed %llu", &seed) == 1) {
        all->seed = seed;
        return true;
    }
    if (sscanf(line, "file %255s", name) != 1)
        return read_tensor(all, line);
    if (!finish_file(all))
        return false;
    const int length = snprintf(all->path, sizeof(all->path), "%s/%s", folder, name);
    return length > 0 && (size_t)length < sizeof(all->path);
}

int main(int argc, char **argv)
{
    struct specification all = {0};
    char line[1024];
    FILE *const file = argc == 3 ? fopen(argv[1], "re") : NULL;
    if (file == NULL) {
        fprintf(stderr, "usage: seeded_weights SPECIFICATION FOLDER\n");
        return 2;
    }
    all.tensors = calloc(MAX_TENSORS + 1, sizeof(all.tensors[0]));
    bool done = all.tensors != NULL;
    while (done && fgets(line, sizeof(line), file) != NULL) {
        done = read_line(&all, line, argv[2]);
        if (!done)
            fprintf(stderr, "%s: cannot do: %s", argv[1], line);
    }
    done = done && finish_file(&all);
    free(all.tensors);
    fclose(file);
    return done ? 0 : 1;
}
