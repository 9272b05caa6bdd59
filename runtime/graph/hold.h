/* What the micro-batches of an update leave for the last one of them.
 *
 * Each micro-batch is a program of its own, and between them only a block at the beginning of the arena keeps its
 * contents. Of each parameter it holds one of two things: the gradient so far, to which every micro-batch adds; or, for
 * a linear layer's weight that takes its gradient in panels, the two operands X and dY of each micro-batch, from which
 * the last one forms the whole sum panel by panel (dW = sum over micro-batches of dY^T X), so that the gradient need
 * not exist. Where each lies is settled while the program of the first micro-batch is compiled. */
#ifndef FUSE_GRAPH_HOLD_H
#define FUSE_GRAPH_HOLD_H

#include "base/error.h"

#include <stdbool.h>

/* A program's place in its update. */
enum fuse_part {
    FUSE_PART_ONLY = 0,  /* the update has one micro-batch: nothing is held */
    FUSE_PART_FIRST = 1, /* writes what is held */
    FUSE_PART_MORE = 2,  /* adds to it */
    FUSE_PART_LAST = 3   /* adds the last, and takes it all to the gradients' users */
};

/* Of one parameter. */
struct fuse_held {
    bool is_settled;
    uint64_t offset; /* in the block */
};

struct fuse_hold {
    struct fuse_held *gradients; /* one a parameter */
    uint64_t bytes;              /* of the block */
};

int fuse_hold_new(uint32_t parameter_count, struct fuse_hold **hold, struct fuse_error *error);
void fuse_hold_free(struct fuse_hold **hold);

/* Where something lies that takes so many bytes; gives it a place the first time. */
uint64_t fuse_hold_place(struct fuse_hold *hold, struct fuse_held *held, uint64_t bytes);

#endif
