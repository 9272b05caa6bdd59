/* What is packed and fetched beside multiplying; part of product_tiles.c. */
#ifndef FUSE_CPU_PRODUCT_TILES_AHEAD_H
#define FUSE_CPU_PRODUCT_TILES_AHEAD_H

#include "product_tiles.h"

#define LINE_BYTES 64
#define ROWS_AHEAD 8      /* of a column-major a or a row-major b, fetched while it is packed */
#define MOST_AFTERWARDS 8 /* lines of what follows the product, for FETCH_STEPS steps: it multiplies, too */
#define FETCH_STEPS 16    /* of a tile, between which lines are fetched */

/* ---- b's strips, in the order in which they are multiplied --------------------------------------------------- */

enum { STRIP_FREE, STRIP_TAKEN, STRIP_PACKED };

/* One b's strips, which several threads pack and multiply: each begins with others, so that packing is shared too, and
 * none waits for another. */
struct shared {
    float *packed;                       /* block of depth after block, strip after strip */
    unsigned char *states;               /* one of STRIP_... each, in the same order */
    int64_t worker;                      /* whose view this is */
    const struct fuse_spans *afterwards; /* that worker's */
};

/* Columns [begin, end) of b, `group` of them at a time, for each block of a's rows, for each block of depth. */
struct order {
    const struct fuse_product_shape *shape;
    const void *b;
    const struct shared *shared; /* NULL: not shared; else columns are all there are, and a group is one strip */
    int64_t width;               /* of a strip */
    int64_t begin, end, group, groups;
    int64_t turn; /* the group that comes first */
    int64_t row_blocks, block_depth;
};

/* Strips side by side over some of b's rows, packed: (columns / width, depth, width). */
struct strips {
    int64_t k, depth, first, columns; /* depth 0: none */
    float *packed;                    /* NULL: nowhere yet */
    bool is_packed;
    unsigned char *state; /* to be set once these shared ones are packed; else NULL */
};

static inline struct strips strips_at(const struct order *order, int64_t number)
{
    const int64_t k = number / (order->groups * order->row_blocks) * order->block_depth;
    const int64_t first = order->begin + (number + order->turn) % order->groups * order->group;
    const int64_t left = order->shape->k - k, columns = order->end - first;
    if (left <= 0)
        return (struct strips){0};
    return (struct strips){.k = k,
                           .depth = left < order->block_depth ? left : order->block_depth,
                           .first = first,
                           .columns = columns < order->group ? columns : order->group};
}

/* Says where strips are packed, or are to be. Who finds shared ones in nobody's hands takes it on to pack them; who
 * finds them in another's does not wait but packs them into `room`. */
static inline void take_strips(const struct order *order, struct strips *strips, float *room)
{
    strips->packed = room;
    if (order->shared == NULL)
        return;
    const int64_t all = (order->shape->n + order->width - 1) / order->width;
    unsigned char *const state =
        order->shared->states + strips->k / order->block_depth * all + strips->first / order->width;
    float *const packed = order->shared->packed + strips->k * all * order->width + strips->first * strips->depth;
    unsigned char found = __atomic_load_n(state, __ATOMIC_ACQUIRE);
    if (found == STRIP_FREE &&
        __atomic_compare_exchange_n(state, &found, STRIP_TAKEN, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        strips->packed = packed;
        strips->state = state;
    } else if (found == STRIP_PACKED) {
        strips->packed = packed;
        strips->is_packed = true;
    }
}

/* They are packed now. */
static inline void put_strips(const struct strips *strips)
{
    if (strips->state != NULL)
        __atomic_store_n(strips->state, (unsigned char)STRIP_PACKED, __ATOMIC_RELEASE);
}

/* ---- packing beside multiplying ------------------------------------------------------------------------------ */

/* Strips of a row-major b that are packed while the ones before them are multiplied: `each` rows for FETCH_STEPS steps.
 * Rows lie too far apart for the processor to foresee, and may crowd a few sets of its caches: so they are fetched a
 * few rows ahead and no more, `ahead` floats from the one that is copied; behind the last come the first ones beside
 * them. */
struct copy {
    const float *from;
    int64_t row; /* floats from one to the next */
    float *to;
    int64_t strips, strip; /* floats of to from one to the next */
    int64_t rows, each;    /* that are left, and that are copied at a time */
    int64_t ahead, ahead_at_end;
};

/* A column-major b is packed by itself: transposing it in pieces between steps made forward products 1 % slower. */
static inline bool can_copy(const struct order *order, const struct strips *strips)
{
    return strips->depth > 0 && strips->columns % order->width == 0 && !order->shape->is_bfloat16 &&
           order->shape->b_column == 1;
}

/* During so many runs of FETCH_STEPS steps. */
static inline struct copy plan_copy(const struct order *order, const struct strips *strips, int64_t runs)
{
    const struct fuse_product_shape *const shape = order->shape;
    return (struct copy){.from = fuse_product_b(shape, order->b, strips->k, strips->first),
                         .row = shape->b_row,
                         .to = strips->packed,
                         .strips = strips->columns / order->width,
                         .strip = strips->depth * order->width,
                         .rows = strips->depth,
                         .each = (strips->depth + runs - 1) / runs,
                         .ahead = ROWS_AHEAD * shape->b_row,
                         .ahead_at_end = (ROWS_AHEAD - strips->depth) * shape->b_row + strips->columns};
}

/* ---- fetching beside multiplying ----------------------------------------------------------------------------- */

/* Lines that a tile fetches: so many for FETCH_STEPS steps. */
struct fetch {
    const char *at;
    int64_t count, stride_bytes;
    int64_t run_bytes; /* from the first line of such a run to the next one's: tile.beside alone */
};

/* Lines of the b that is multiplied next, fetched while this strip is computed: b is a weight, which comes
 * from memory, and its rows lie too far apart for the processor to foresee. All rows' first lines, then all rows'
 * second ones. */
struct ahead {
    const char *at;
    int64_t stride_bytes, rows, lines;
    int64_t row, line;
    int64_t lines_at_once; /* before a tile, where there are more lines than tiles */
    int64_t fetches, runs; /* of a tile: so many runs of so many rows */
};

static inline struct ahead plan_ahead(const void *at, int64_t stride_bytes, int64_t rows, int64_t lines, int64_t depth,
                                      int64_t tiles)
{
    const int64_t runs = depth / FETCH_STEPS > 0 ? depth / FETCH_STEPS : 1;
    const int64_t line_runs = tiles > lines ? tiles / lines * runs : runs;
    return (struct ahead){
        .at = at,
        .stride_bytes = stride_bytes,
        .rows = rows,
        .lines = lines,
        .lines_at_once = (lines - 1) / tiles,
        .fetches = (rows + line_runs - 1) / line_runs,
        .runs = runs,
    };
}

/* What fetches strips of b, while `tiles` tiles of as many steps are made. */
static inline struct ahead look_ahead(const struct order *order, const struct strips *strips, int64_t tiles)
{
    if (strips->depth == 0)
        return (struct ahead){0};
    const struct fuse_product_shape *const shape = order->shape;
    const bool is_row_major = shape->b_column == 1;
    const int64_t size = (int64_t)(shape->b_is_bfloat16 ? sizeof(uint16_t) : sizeof(float));
    return plan_ahead(fuse_product_b(shape, order->b, strips->k, strips->first),
                      (is_row_major ? shape->b_row : shape->b_column) * size,
                      is_row_major ? strips->depth : strips->columns,
                      ((is_row_major ? strips->columns : strips->depth) * size + LINE_BYTES - 1) / LINE_BYTES,
                      order->block_depth, tiles);
}

/* The same for shared strips that are packed already: like as not by another core, in whose caches they lie. */
static inline struct ahead look_ahead_packed(const struct strips *strips, int64_t tiles)
{
    const int64_t bytes = strips->depth * strips->columns * (int64_t)sizeof(float);
    return plan_ahead(strips->packed, LINE_BYTES, bytes / LINE_BYTES, 1, strips->depth, tiles);
}

/* What the tile that comes next fetches of it. */
static inline struct fetch fetch_ahead(struct ahead *ahead)
{
    if (ahead->line >= ahead->lines)
        return (struct fetch){0};
    for (int64_t more = ahead->lines_at_once; more > 0 && ahead->line + 1 < ahead->lines; more--) {
        for (int64_t row = 0; row < ahead->rows; row++)
            __builtin_prefetch(ahead->at + ahead->line * LINE_BYTES + row * ahead->stride_bytes, 0, 2);
        ahead->line++;
    }
    const struct fetch fetch = {.at = ahead->at + ahead->line * LINE_BYTES + ahead->row * ahead->stride_bytes,
                                .count = ahead->fetches,
                                .stride_bytes = ahead->stride_bytes};
    ahead->row += ahead->fetches * ahead->runs;
    if (ahead->row >= ahead->rows) {
        ahead->row = 0;
        ahead->line++;
    }
    return fetch;
}

/* ---- fetching what follows the product ------------------------------------------------------------------------ */

/* What the thread goes through afterwards, from its beginning on: as much of each span as there is time for. An update
 * is bound by memory, which a product leaves alone: Adam of a layer 256 wide took 3.7 ms of a step without, 2.4 with,
 * and the product 0.6 more (two cores of a Xeon with 2 MiB of cache each). */
struct afterwards {
    const struct fuse_spans *spans;
    uint32_t span;      /* that is fetched */
    uint64_t at;        /* bytes of it that were */
    int64_t each, runs; /* lines for FETCH_STEPS steps, of which there are so many in all */
    uint64_t lines;     /* of all spans */
};

static inline struct afterwards plan_afterwards(const struct shared *shared, int64_t runs)
{
    struct afterwards afterwards = {.runs = runs};
    if (shared == NULL || shared->afterwards == NULL || runs == 0)
        return afterwards;
    afterwards.spans = shared->afterwards;
    for (uint32_t i = 0; i < afterwards.spans->count; i++)
        afterwards.lines += afterwards.spans->spans[i].bytes / LINE_BYTES;
    afterwards.each = ((int64_t)afterwards.lines + runs - 1) / runs;
    afterwards.each = afterwards.each < MOST_AFTERWARDS ? afterwards.each : MOST_AFTERWARDS;
    return afterwards;
}

/* What the tile that comes next, of so many runs of FETCH_STEPS steps, fetches of it. */
static inline struct fetch fetch_afterwards(struct afterwards *self, int64_t runs)
{
    while (self->spans != NULL && self->span < self->spans->count) {
        const struct fuse_span *const span = &self->spans->spans[self->span];
        const uint64_t lines = span->bytes / LINE_BYTES, all = (uint64_t)(self->each * self->runs);
        const uint64_t wanted = all < self->lines ? lines * all / self->lines : lines;
        if (self->at < wanted * LINE_BYTES) {
            const struct fetch fetch = {(const char *)span->at + self->at, self->each, LINE_BYTES,
                                        self->each * LINE_BYTES};
            self->at += (uint64_t)(self->each * runs) * LINE_BYTES;
            return fetch;
        }
        self->span++;
        self->at = 0;
    }
    return (struct fetch){0};
}

#endif
