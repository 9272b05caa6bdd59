/* Every buffer begins at a multiple of 64 bytes: a cache line, and the widest vector registers there are. */
#ifndef FUSE_BASE_ALIGN_H
#define FUSE_BASE_ALIGN_H

#include <stdint.h>

enum { FUSE_ALIGNMENT_BYTES = 64 };

static inline uint64_t fuse_aligned(uint64_t bytes)
{
    return (bytes + FUSE_ALIGNMENT_BYTES - 1) / FUSE_ALIGNMENT_BYTES * FUSE_ALIGNMENT_BYTES;
}

#endif
