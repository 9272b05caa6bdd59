/* What the micro-batches of an update leave for the last one of them.
 *
 * Each micro-batch is a program of its own, and between them only a block at the beginning of the arena keeps its
 * contents. Of each parameter it holds one of two things: the gradient so far, to which every micro-batch adds; or, for
 * a linear layer's weight, the operands X and dY of each micro-batch, from which the last one forms the sum a panel at
 * a time (dW = sum over micro-batches of dY^T X), so that the gradient need not exist. Which, and where it lies, is
 * settled while the program of the first micro-batch is compiled. */
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

enum fuse_held_kind { FUSE_HELD_NOTHING = 0, FUSE_HELD_GRADIENT = 1, FUSE_HELD_OPERANDS = 2 };

/* Of one parameter. */
struct fuse_held {
    enum fuse_held_kind kind; /* nothing: not settled yet, or it has no gradient */
    uint64_t offset;          /* in the block: of the gradient, or of X */
    uint64_t dy_offset;
    int64_t rows; /* of X and dY of one micro-batch */
};

struct fuse_hold {
    uint32_t parameter_count;
    int64_t earlier_count; /* at most so many micro-batches come before the last one of an update */
    int64_t operand_limit; /* operands are held where those of so many micro-batches are smaller than the gradient; 0:
                              no operands are */
    struct fuse_held *parameters;
    uint64_t bytes; /* of the block */
    /* What that is made of. */
    uint32_t gradient_count, operands_count; /* of parameters */
    uint64_t gradient_bytes, operand_bytes;
};

int fuse_hold_new(uint32_t parameter_count, int64_t earlier_count, int64_t operand_limit, struct fuse_hold **hold,
                  struct fuse_error *error);
void fuse_hold_free(struct fuse_hold **hold);

/* The first of these for a parameter settles what is held of it; later ones give the same again. */
const struct fuse_held *fuse_hold_gradient(struct fuse_hold *hold, uint32_t parameter, uint64_t bytes);
/* x_bytes, dy_bytes: of one micro-batch, (rows) each. */
const struct fuse_held *fuse_hold_operands(struct fuse_hold *hold, uint32_t parameter, int64_t rows, uint64_t x_bytes,
                                           uint64_t dy_bytes);

#endif
