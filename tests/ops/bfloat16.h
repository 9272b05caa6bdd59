/* The same tests in bfloat16, with FUSE_TEST_PRECISION=bf16: the backend is opened for it, random numbers are ones that
 * bfloat16 holds, and each op that the rig runs gets some of its activations in bfloat16 (all, or a mixture that
 * depends on its kind and shape). So the references need not change; results may be off by one more rounding. */
#ifndef FUSE_TESTS_BFLOAT16_H
#define FUSE_TESTS_BFLOAT16_H

#include "rig.h"

/* bfloat16's unit roundoff */
#define FUSE_EPS_BFLOAT16 0.00390625

bool fuse_is_bfloat16_test(void);

/* value, or in a bfloat16 test the nearest one that it holds, ties to even, bit by bit from the definition. */
float fuse_activation(float value);

/* How far `got` may be from a value that is known to be within `bound` (0: exact): a number of 8 bits in a bfloat16
 * test was rounded to them. */
double fuse_bound_of(float got, double value, double bound);

/* op, its inputs and outputs with operands in bfloat16, in new memory; finish brings the outputs back and frees it. */
struct fuse_narrowed {
    struct fuse_op op;
    const void *inputs[FUSERUN_MAX_OPERANDS];
    void *outputs[FUSERUN_MAX_OPERANDS];
    uint16_t *new_inputs[FUSERUN_MAX_OPERANDS], *new_outputs[FUSERUN_MAX_OPERANDS];
};
void fuse_narrowed_begin(struct fuse_narrowed *narrowed, const struct fuse_op *op, const void *const *inputs,
                         void *const *outputs);
void fuse_narrowed_finish(struct fuse_narrowed *narrowed, void *const *outputs);

#endif
