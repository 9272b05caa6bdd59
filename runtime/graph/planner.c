/* Where buffers lie. Each has a life [first, last] in the list of instructions and a size; two whose lives meet must
 * not overlap in memory. Finding the smallest extent is NP-hard (dynamic storage allocation); placing the largest
 * first, each at the lowest address that is free during its life, comes within a few per cent, and the lower bound (the
 * greatest sum of live bytes) tells how near. Several orders are tried, and the best kept. */
#include "base/align.h"
#include "graph/program.h"

#include <stdlib.h>
#include <string.h>

struct piece {
    uint32_t buffer;
    uint32_t first, last;
    uint64_t bytes; /* aligned */
    uint64_t offset;
    bool is_fixed; /* at its offset, whatever the others do; such pieces stand first */
};

static int by_size(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

static int by_area(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    const double area_a = (double)a->bytes * (a->last - a->first + 1.0);
    const double area_b = (double)b->bytes * (b->last - b->first + 1.0);
    if (area_a != area_b)
        return area_a < area_b ? 1 : -1;
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

static int by_length(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    const uint32_t length_a = a->last - a->first, length_b = b->last - b->first;
    if (length_a != length_b)
        return length_a < length_b ? 1 : -1;
    return by_size(left, right);
}

static int by_start(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return by_size(left, right);
}

static bool live_together(const struct piece *a, const struct piece *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Places the pieces in their order; `placed` is room for as many, kept sorted by offset. Returns the extent. */
static uint64_t place(struct piece *pieces, size_t count, struct piece **placed)
{
    uint64_t extent = 0;
    for (size_t i = 0; i < count; i++) {
        struct piece *piece = &pieces[i];
        uint64_t offset = piece->is_fixed ? piece->offset : 0;
        for (size_t j = 0; j < i && !piece->is_fixed; j++) {
            const struct piece *other = placed[j];
            if (!live_together(piece, other) || other->offset + other->bytes <= offset)
                continue;
            if (offset + piece->bytes <= other->offset)
                break;
            offset = other->offset + other->bytes;
        }
        piece->offset = offset;
        size_t at = i;
        while (at > 0 && placed[at - 1]->offset > offset) {
            placed[at] = placed[at - 1];
            at--;
        }
        placed[at] = piece;
        if (offset + piece->bytes > extent)
            extent = offset + piece->bytes;
    }
    return extent;
}

/* The greatest sum of live bytes: no plan can be smaller. It changes only where some life begins. */
static uint64_t lower_bound(const struct piece *pieces, size_t count)
{
    uint64_t bound = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (size_t j = 0; j < count; j++)
            if (pieces[j].first <= pieces[i].first && pieces[i].first <= pieces[j].last)
                sum += pieces[j].bytes;
        bound = sum > bound ? sum : bound;
    }
    return bound;
}

static void keep(struct fuse_buffer *buffers, const struct piece *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++)
        buffers[pieces[i].buffer].offset = pieces[i].offset;
}

/* When no simple order reaches the bound: moves a piece that reaches the top to the front of the order, where it finds
 * a lower place, as long as that helps. */
static uint64_t improve(struct piece *pieces, size_t count, size_t fixed_count, struct piece **placed,
                        struct fuse_buffer *buffers, uint64_t best, uint64_t bound)
{
    /* Each round costs up to count^2 steps: for very many buffers it is not worth minutes. */
    enum { ROUNDS = 64 };
    const double most_steps = 1e8;
    const double affordable = most_steps / ((double)count * (double)count);
    for (int round = 0; round < ROUNDS && round < affordable && best > bound; round++) {
        size_t top = 0;
        for (size_t i = 1; i < count; i++)
            if (pieces[i].offset + pieces[i].bytes > pieces[top].offset + pieces[top].bytes)
                top = i;
        if (top <= fixed_count)
            break;
        const struct piece moved = pieces[top];
        memmove(&pieces[fixed_count + 1], &pieces[fixed_count], (top - fixed_count) * sizeof *pieces);
        pieces[fixed_count] = moved;
        const uint64_t extent = place(pieces, count, placed);
        if (extent < best) {
            best = extent;
            keep(buffers, pieces, count);
        }
    }
    return best;
}

static size_t add_pieces(const struct fuse_buffer *buffers, size_t count, bool is_fixed, struct piece *pieces)
{
    size_t added = 0;
    for (size_t i = 0; i < count; i++) {
        const struct fuse_buffer *buffer = &buffers[i];
        if (buffer->is_fixed == is_fixed && !buffer->is_parameter && buffer->bytes > 0 && buffer->first <= buffer->last)
            pieces[added++] = (struct piece){(uint32_t)i,    buffer->first, buffer->last, fuse_aligned(buffer->bytes),
                                             buffer->offset, is_fixed};
    }
    return added;
}

int fuse_plan_offsets(struct fuse_buffer *buffers, size_t count, uint64_t *extent_bytes, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    *extent_bytes = 0;
    struct piece *pieces = malloc((count + 1) * sizeof *pieces);
    struct piece **placed = malloc((count + 1) * sizeof *placed);
    if (pieces == NULL || placed == NULL) {
        status = fuse_fail_memory(error, "the memory plan", (count + 1) * sizeof *pieces);
        goto out;
    }
    const size_t fixed_count = add_pieces(buffers, count, true, pieces);
    const size_t piece_count = fixed_count + add_pieces(buffers, count, false, pieces + fixed_count);
    const uint64_t bound = lower_bound(pieces, piece_count);
    static int (*const orders[])(const void *, const void *) = {by_size, by_area, by_length, by_start};
    uint64_t best = UINT64_MAX;
    for (size_t i = 0; i < sizeof orders / sizeof orders[0] && best > bound; i++) {
        qsort(pieces + fixed_count, piece_count - fixed_count, sizeof *pieces, orders[i]);
        const uint64_t extent = place(pieces, piece_count, placed);
        if (extent < best) {
            best = extent;
            keep(buffers, pieces, piece_count);
        }
        if (best > bound)
            best = improve(pieces, piece_count, fixed_count, placed, buffers, best, bound);
    }
    *extent_bytes = piece_count == 0 ? 0 : best;
out:
    free(pieces);
    free(placed);
    return status;
}
