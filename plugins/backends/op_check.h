/* What the backends that come with fuserun share: the form of every operation, checked before it is compiled. Each of
 * them builds it in. */
#ifndef FUSE_BACKENDS_OP_CHECK_H
#define FUSE_BACKENDS_OP_CHECK_H

#include <fuserun/backend.h>

#include <stdbool.h>

/* Who checks. */
struct fuse_op_checker {
    const struct fuse_host *host;
    const char *backend; /* for messages */
    bool is_bfloat16;    /* activations may be bfloat16 */
};

const char *fuse_op_name(uint32_t kind);
int64_t fuse_operand_rows(const struct fuse_operand *operand);    /* product of all dimensions but the last */
int64_t fuse_operand_columns(const struct fuse_operand *operand); /* the last dimension; 1 for a scalar */
int64_t fuse_operand_count(const struct fuse_operand *operand);
bool fuse_operand_is_bfloat16(const struct fuse_operand *operand);
bool fuse_op_same_shape(const struct fuse_operand *a, const struct fuse_operand *b);

/* Counts, dtypes (float32 but for those the op has otherwise, and for activations, which may be bfloat16 one by one),
 * dimensions of at least 1, no overflow, shapes that go together, numbers within their ranges. An input or output past
 * the smallest count may be left out by its dtype 0. */
int fuse_op_check(const struct fuse_op_checker *checker, const struct fuse_op *op, struct fuse_error *error);

/* The error that every compiler of an op may have. */
int fuse_op_fail_memory(const struct fuse_op_checker *checker, size_t bytes, struct fuse_error *error);

/* op_shapes.c: NULL if the operands' shapes go together, else what they should be. */
const char *fuse_op_shape_rule(const struct fuse_op *op);

/* LINEAR_DW_NORM from the products x x^T and dy dy^T. Terms are off by some 1e-7 of themselves (an element of either is
 * a sum of thousands in float, whose errors mostly cancel), so a sum of this share of its terms' magnitudes is off by
 * at most 1e-5, its root by half of that. A smaller sum, or magnitudes that are not finite, are not to be trusted: then
 * the elements of dw are formed after all. */
#define FUSE_NORM_LEAST_SHARE (1.0 / 64)

/* Passes a failure on. */
#define FUSE_TRY(expression)                                                                                           \
    do {                                                                                                               \
        const int fuse_status_ = (expression);                                                                         \
        if (fuse_status_ != FUSERUN_OK)                                                                                \
            return fuse_status_;                                                                                       \
    } while (0)

#endif
