#include "tensor_check.h"

struct fuse_tensor_checker fuse_tensor_checker_of(const struct fuse_host *host, const struct fuse_rule *rule,
                                                  const struct fuse_tensor_plan *plan)
{
    return (struct fuse_tensor_checker){host, rule, plan->product_count, plan->sum_count};
}

int64_t fuse_pass_items(const struct fuse_tensor_pass *pass, int64_t matrices, int64_t rows, int64_t columns)
{
    return matrices * (pass->kind == FUSERUN_OVER_COLUMNS ? columns : rows);
}

int fuse_tensor_check_pass(const struct fuse_tensor_checker *checker, uint32_t pass, int64_t matrices, int64_t rows,
                           int64_t columns, struct fuse_error *error)
{
    const struct fuse_rule *const rule = checker->rule;
    if (pass >= rule->pass_count)
        return checker->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL, "rule %s asks for pass %u of %u", rule->name,
                                   pass, rule->pass_count);
    const struct fuse_tensor_pass *const found = rule->passes[pass];
    if (matrices < 1 || rows < 1 || columns < 1)
        return checker->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                                   "rule %s asks for pass %s over %lld matrices of (%lld, %lld)", rule->name,
                                   found->name, (long long)matrices, (long long)rows, (long long)columns);
    const int64_t items = fuse_pass_items(found, matrices, rows, columns);
    if (found->kind != FUSERUN_OVER_ELEMENTS && items > checker->sum_count)
        return checker->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                                   "rule %s: pass %s makes %lld sums, %lld are planned (sum_count)", rule->name,
                                   found->name, (long long)items, (long long)checker->sum_count);
    return FUSERUN_OK;
}

int fuse_tensor_check_product(const struct fuse_tensor_checker *checker, uint32_t product, struct fuse_error *error)
{
    if (product < checker->product_count)
        return FUSERUN_OK;
    return checker->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL, "rule %s multiplies by product %u of %u",
                               checker->rule->name, product, checker->product_count);
}
