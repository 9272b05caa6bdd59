/* The timeline: which passes ran, when each of their operations ended, and, from the ledger's lives, how much was alive
 * then. Whole updates are recorded from the first on, as long as there is room, and every other pass once, so that the
 * run's peak is always on it. Recording takes no memory; everything else is computed when a run is over. */
#ifndef FUSE_MEMORY_TIMELINE_H
#define FUSE_MEMORY_TIMELINE_H

#include "base/text.h"
#include "memory/ledger.h"

#define FUSE_TIMELINE_UPDATES 3
#define FUSE_TIMELINE_OPERATIONS 16384 /* at most, over those updates */
#define FUSE_TIMELINE_RUNS 256

/* A recorded run of a pass. */
struct fuse_timeline_run {
    uint32_t pass;
    int64_t update; /* the one that it is part of, or that was done before an evaluation */
    int64_t begin_ns;
    const int64_t *end_ns; /* of each operation */
};

struct fuse_timeline;

/* operation_counts, is_training: one a pass, pass_count of them, which are numbered as in the ledger. */
int fuse_timeline_new(const size_t *operation_counts, const bool *is_training, size_t pass_count,
                      struct fuse_timeline **timeline, struct fuse_error *error);
void fuse_timeline_free(struct fuse_timeline **timeline);

/* Before a pass runs. update: from 1, counted by this process. [no-alloc] */
void fuse_timeline_begin(struct fuse_timeline *timeline, struct fuse_ledger *ledger, uint32_t pass, int64_t update);

size_t fuse_timeline_run_count(const struct fuse_timeline *timeline);
const struct fuse_timeline_run *fuse_timeline_run(const struct fuse_timeline *timeline, size_t index);
/* Runs of a pass that are not on the timeline. */
uint64_t fuse_timeline_left_out(const struct fuse_timeline *timeline, uint32_t pass);
/* The time of day, in nanoseconds of 1970: when the timeline was made, and at a moment of the monotonic clock. */
int64_t fuse_timeline_start_real_ns(const struct fuse_timeline *timeline);
int64_t fuse_timeline_to_real_ns(const struct fuse_timeline *timeline, int64_t monotonic_ns);

/* ---- what reports need to know besides ------------------------------------------------------------------------- */

/* A line of our source, for the viewer's stack traces. */
struct fuse_place {
    const char *file;
    int line;
    const char *function;
};

struct fuse_described_operation {
    const char *operation, *layer; /* borrowed */
    enum fuse_phase phase;
};
/* A buffer of a pass, or (offset in the persistent block then) one that lives through the whole run. */
struct fuse_described_buffer {
    const char *name; /* borrowed */
    enum fuse_category category;
    uint64_t bytes, offset;
};
struct fuse_described_pass {
    bool is_training;
    int64_t batch_size;
    const struct fuse_described_operation *operations;
    size_t operation_count;
    const struct fuse_described_buffer *buffers; /* numbered as in the ledger; bytes 0: not its own */
    size_t buffer_count;
};
struct fuse_description {
    const struct fuse_timeline *timeline;
    const struct fuse_ledger *ledger;
    const struct fuse_described_pass *passes;
    size_t pass_count;
    const struct fuse_described_buffer *persistent;
    size_t persistent_count;
    uint64_t persistent_bytes, arena_bytes; /* extents of the two blocks */
    struct fuse_place allocate_place, run_place;
};

/* live[operation][category] of a pass without what is persistent; (operation_count). */
void fuse_timeline_live(const struct fuse_description *description, uint32_t pass,
                        uint64_t (*live)[FUSE_CATEGORY_COUNT]);

/* `"timeline":{...},"buffers":[...]`, without braces around it. */
int fuse_timeline_add_json(const struct fuse_description *description, struct fuse_text *text,
                           struct fuse_error *error);

#endif
