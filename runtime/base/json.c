#include "base/json.h"

#include <jansson.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Stands before each of jansson's allocations: a ring of those that the present work has made. */
struct block {
    _Alignas(max_align_t) struct block *before; /* NULL: of work that is done */
    struct block *behind;
};

struct attempt {
    jmp_buf leave;
    struct block ring;
};

static _Thread_local struct attempt *present; /* NULL outside of fuse_json_try() */

static void *allocate(size_t bytes)
{
    struct block *block = bytes > SIZE_MAX - sizeof *block ? NULL : malloc(sizeof *block + bytes);
    if (block == NULL && present != NULL)
        longjmp(present->leave, 1);
    if (block == NULL)
        return NULL;
    block->before = block->behind = NULL;
    if (present != NULL) {
        block->before = &present->ring;
        block->behind = present->ring.behind;
        block->behind->before = block;
        present->ring.behind = block;
    }
    return block + 1;
}

static void release(void *bytes)
{
    if (bytes == NULL)
        return;
    struct block *block = (struct block *)bytes - 1;
    if (block->before != NULL) {
        block->before->behind = block->behind;
        block->behind->before = block->before;
    }
    free(block);
}

bool fuse_json_try(void (*work)(void *user), void *user)
{
    struct attempt attempt;
    struct block *const ring = &attempt.ring;
    ring->before = ring->behind = ring;
    json_set_alloc_funcs(allocate, release); /* the same every time; jansson keeps them for all threads */
    present = &attempt;
    const bool has_left = setjmp(attempt.leave) != 0;
    if (!has_left)
        work(user);
    present = NULL;
    for (struct block *block = ring->behind, *next; block != ring; block = next) {
        next = block->behind;
        block->before = block->behind = NULL;
        if (has_left)
            free(block);
    }
    return !has_left;
}
