// my_optimizer.c of the template in C++17, which has no designated initialisers: tables by position. And a scheduler
// beside it in the same file.
#include <fuserun/optimizer.h>
#include <fuserun/scheduler.h>

FUSERUN_RULE(sign_rule, (momentum_buffer), (lr, momentum),
    momentum_buffer = momentum * momentum_buffer + (1.0f - momentum) * grad;
    param -= momentum_buffer > 0.0f ? lr : -lr;
)
static const struct fuse_option options[] = {
    FUSERUN_OPTION_BY_POSITION(FUSERUN_OPTION_NUMBER, FUSERUN_OPTION_SCHEDULABLE, 0, "lr", "1e-3", "[0, inf)", nullptr,
                               nullptr, nullptr, "learning rate"),
    FUSERUN_OPTION_BY_POSITION(FUSERUN_OPTION_NUMBER, FUSERUN_OPTION_SCHEDULABLE, 0, "momentum", "0.9", "[0, 1)",
                               nullptr, nullptr, nullptr, "decay of the running mean"),
};
static const struct fuse_option few_options[] = {
    FUSERUN_OPTION_BY_POSITION(FUSERUN_OPTION_INTEGER, 0, 0, "length", "3", nullptr, nullptr, nullptr, nullptr, "unused"),
};
static void prepare(const struct fuse_update *update, double *scalars)
{
    scalars[0] = update->hyper[0];
    scalars[1] = update->hyper[1];
}
static int create(const struct fuse_host *, const struct fuse_options *, const struct fuse_schedule_context *,
                  void **instance, struct fuse_error *)
{
    *instance = nullptr;
    return FUSERUN_OK;
}
static void destroy(void *) {}
static double value(const void *, const struct fuse_schedule_query *query) { return query->base; }
static const struct fuse_rule *const rules[] = {&sign_rule};
static const struct fuse_optimizer optimizer = {
    FUSERUN_STRUCT_SIZE(fuse_optimizer, prepare), 1, rules, nullptr, nullptr, prepare};
static const struct fuse_scheduler scheduler = {
    FUSERUN_STRUCT_SIZE(fuse_scheduler, set_state), create, destroy, value, nullptr, nullptr, nullptr, nullptr, nullptr, 0,
    nullptr, nullptr};
static const struct fuse_component components[] = {
    FUSERUN_COMPONENT_BY_POSITION(FUSERUN_KIND_OPTIMIZER, "in_cxx", "sign descent", FUSERUN_OPTIMIZER_ELEMENTWISE,
                                  options, &optimizer),
    FUSERUN_COMPONENT_BY_POSITION(FUSERUN_KIND_SCHEDULER, "in_cxx", "constant", 0, few_options, &scheduler),
};
FUSERUN_PLUGIN("in_cxx", "1.0.0", "MIT", components)
