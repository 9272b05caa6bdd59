/* What the tests of the transformer operations share: rigs of 1, 2 and 3 threads, and short ways to make operands. */
#ifndef FUSE_TESTS_TRANSFORMER_H
#define FUSE_TESTS_TRANSFORMER_H

#include "rig.h"

#define FUSE_THREAD_SETS 3

extern struct fuse_rig fuse_rigs[FUSE_THREAD_SETS];
int fuse_rigs_open(void **state);
int fuse_rigs_close(void **state);

/* float32 operands */
struct fuse_operand fuse_float_operand(uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d);

/* (count) doubles, all of them `value`. */
double *fuse_doubles(int64_t count, double value);
/* Each becomes its float32. */
void fuse_round_to_floats(double *values, int64_t count);
float *fuse_to_floats(const double *values, int64_t count);
/* bound[i] = factor * FUSE_EPS * magnitude[i] + a little, in place. */
void fuse_scale_bound(double *magnitude, int64_t count, double factor);

#endif
