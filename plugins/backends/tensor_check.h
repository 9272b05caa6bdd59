/* What the backends that come with fuserun share of rules over whole parameters: what a rule's recipe asks for, checked
 * before it is done. Each of them builds it in. */
#ifndef FUSE_BACKENDS_TENSOR_CHECK_H
#define FUSE_BACKENDS_TENSOR_CHECK_H

#include <fuserun/backend.h>

/* Who checks: for which rule, and what was planned. */
struct fuse_tensor_checker {
    const struct fuse_host *host;
    const struct fuse_rule *rule;
    uint32_t product_count;
    int64_t sum_count;
};

struct fuse_tensor_checker fuse_tensor_checker_of(const struct fuse_host *host, const struct fuse_rule *rule,
                                                  const struct fuse_tensor_plan *plan);

/* What a pass over `matrices` matrices of (rows, columns) is split into: rows of all, or columns of all. */
int64_t fuse_pass_items(const struct fuse_tensor_pass *pass, int64_t matrices, int64_t rows, int64_t columns);

/* That there is such a pass, that it goes over something, and that its sums have room. */
int fuse_tensor_check_pass(const struct fuse_tensor_checker *checker, uint32_t pass, int64_t matrices, int64_t rows,
                           int64_t columns, struct fuse_error *error);
int fuse_tensor_check_product(const struct fuse_tensor_checker *checker, uint32_t product, struct fuse_error *error);

#endif
