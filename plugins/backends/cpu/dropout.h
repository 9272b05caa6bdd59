/* Which elements an operation drops, for DROPOUT and for attention's probabilities. */
#ifndef FUSE_CPU_DROPOUT_H
#define FUSE_CPU_DROPOUT_H

#include "cpu.h"

struct fuse_dropout {
    double probability; /* 0: nothing is dropped */
    uint64_t stream;
};

/* From numbers[0] and integers[stream_index]. */
struct fuse_dropout fuse_dropout_read(const struct fuse_op *op, uint32_t stream_index);

/* factors (count): 0 for an element that is dropped, else 1 / (1 - p); element `first` of the whole comes first. */
void fuse_dropout_factors(const struct fuse_host *host, const struct fuse_dropout *dropout, uint64_t seed,
                          uint64_t draw, int64_t first, float *factors, int64_t count);

#endif
