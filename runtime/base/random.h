/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 * Element i of (seed, stream) does not depend on what was drawn before, so results are the same on any number of
 * threads and after a resume. */
#ifndef FUSE_BASE_RANDOM_H
#define FUSE_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Streams of a run's seed, so that no two uses draw the same numbers. Parameters add their index. */
#define FUSE_STREAM_SHUFFLE 0x1000000000000000u
#define FUSE_STREAM_PARAMETER 0x2000000000000000u
#define FUSE_STREAM_DATA 0x3000000000000000u
#define FUSE_STREAM_DROPOUT 0x4000000000000000u

void fuse_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]);
uint64_t fuse_random_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in [0, 1), 24 random bits each. */
void fuse_random_uniform(uint64_t seed, uint64_t stream, uint64_t first, float *values, size_t count);
/* Standard normal (Box-Muller on two 32-bit words, in double). */
double fuse_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
