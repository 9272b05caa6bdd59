/* memory/ - the ledger: who owns which byte, and when. Uses base/.
 *
 * The ledger knows nothing of the plan. Whoever runs an operation tells it which buffers the operation really reads and
 * writes; from that it derives each buffer's life (first write to last use), the greatest sum of live bytes, and what
 * was alive then. Buffers that live through the whole run (parameters, optimizer state, cached data) are added once.
 *
 * Times are positions in the list of operations of one pass (a training step or an evaluation batch). */
#ifndef FUSE_MEMORY_LEDGER_H
#define FUSE_MEMORY_LEDGER_H

#include "base/error.h"

#include <stdbool.h>

enum fuse_category {
    FUSE_CATEGORY_PARAMETER,
    FUSE_CATEGORY_GRADIENT,
    FUSE_CATEGORY_OPTIMIZER_STATE,
    FUSE_CATEGORY_ACTIVATION,
    FUSE_CATEGORY_WORKSPACE,
    FUSE_CATEGORY_DATA,
    FUSE_CATEGORY_COUNT
};
const char *fuse_category_name(enum fuse_category category); /* "parameter", ... as in memory.json */

enum fuse_phase { FUSE_PHASE_FORWARD, FUSE_PHASE_BACKWARD, FUSE_PHASE_OPTIMIZER, FUSE_PHASE_COUNT };
const char *fuse_phase_name(enum fuse_phase phase); /* "forward", ... */

/* A peak: what was alive, by category, and in which phase. bytes is the sum over categories. */
struct fuse_peak {
    uint64_t bytes;
    uint64_t category_bytes[FUSE_CATEGORY_COUNT];
    enum fuse_phase phase;
    uint32_t time; /* of the operation in its pass */
};

/* One buffer of a pass, as the ledger needs to know it. */
struct fuse_ledger_buffer {
    const char *name; /* borrowed for the ledger's life */
    enum fuse_category category;
    uint64_t bytes;
};

/* The greatest sum of live bytes given lives [first, last] of buffers (first > last: never alive), on top of
 * `persistent`. The earliest such moment wins. Used by the ledger on what it saw and by the planner on what it planned.
 */
void fuse_peak_of(const struct fuse_ledger_buffer *buffers, const uint32_t *first, const uint32_t *last,
                  size_t buffer_count, const enum fuse_phase *phases, size_t time_count,
                  const uint64_t persistent[FUSE_CATEGORY_COUNT], struct fuse_peak *peak);

struct fuse_ledger;
int fuse_ledger_new(struct fuse_ledger **ledger, struct fuse_error *error);
void fuse_ledger_free(struct fuse_ledger **ledger);

/* A buffer that lives from now to the end of the run. */
void fuse_ledger_add_persistent(struct fuse_ledger *ledger, enum fuse_category category, uint64_t bytes);
const uint64_t *fuse_ledger_persistent(const struct fuse_ledger *ledger); /* FUSE_CATEGORY_COUNT sums */

/* Registers a list of operations, once; returns its number through *pass. The arrays are borrowed. */
int fuse_ledger_add_pass(struct fuse_ledger *ledger, const struct fuse_ledger_buffer *buffers, size_t buffer_count,
                         const enum fuse_phase *phases, size_t time_count, uint32_t *pass, struct fuse_error *error);

/* While a pass runs. [no-alloc] */
void fuse_ledger_begin(struct fuse_ledger *ledger, uint32_t pass);
void fuse_ledger_touch(struct fuse_ledger *ledger, uint32_t buffer, uint32_t time);
void fuse_ledger_end(struct fuse_ledger *ledger);
/* Where the next run of a pass writes when each of its operations ended (time_count values); NULL: nowhere. */
void fuse_ledger_time(struct fuse_ledger *ledger, int64_t *end_ns);
/* Tells that the operation at `time` has ended. */
void fuse_ledger_done(struct fuse_ledger *ledger, uint32_t time);

/* The peak so far over all passes. */
const struct fuse_peak *fuse_ledger_peak(const struct fuse_ledger *ledger);
/* The life of a buffer in the last complete run of a pass; false if it was not touched. */
bool fuse_ledger_life(const struct fuse_ledger *ledger, uint32_t pass, uint32_t buffer, uint32_t *first,
                      uint32_t *last);
/* The greatest sum of live bytes of one category in a pass, as seen. */
uint64_t fuse_ledger_category_peak(const struct fuse_ledger *ledger, uint32_t pass, enum fuse_category category);

#endif
