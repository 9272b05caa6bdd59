#include "config/internal.h"

#include <stdlib.h>
#include <string.h>

struct fuse_arena_block {
    struct fuse_arena_block *next;
    size_t used, capacity;
    _Alignas(max_align_t) char bytes[];
};

enum { BLOCK_BYTES = 8192 - 64 };

void *fuse_arena_alloc(struct fuse_arena *arena, size_t bytes)
{
    const size_t alignment = _Alignof(max_align_t);
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + alignment - 1) / alignment * alignment;
    struct fuse_arena_block *block = arena->blocks;
    if (block == NULL || block->capacity - block->used < bytes) {
        const size_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block = malloc(sizeof(*block) + capacity);
        if (block == NULL)
            return NULL;
        block->next = arena->blocks;
        block->used = 0;
        block->capacity = capacity;
        arena->blocks = block;
    }
    void *memory = block->bytes + block->used;
    block->used += bytes;
    return memset(memory, 0, bytes);
}

char *fuse_arena_strndup(struct fuse_arena *arena, const char *string, size_t count)
{
    char *copy = fuse_arena_alloc(arena, count + 1);
    if (copy != NULL)
        memcpy(copy, string, count); /* the end is zero already */
    return copy;
}

char *fuse_arena_strdup(struct fuse_arena *arena, const char *string)
{
    return fuse_arena_strndup(arena, string, strlen(string));
}

void fuse_arena_free(struct fuse_arena *arena)
{
    while (arena->blocks != NULL) {
        struct fuse_arena_block *block = arena->blocks;
        arena->blocks = block->next;
        free(block);
    }
}
