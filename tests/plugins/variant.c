/* One plugin for many tests: what is wrong with it is the name of the file that it is loaded from. */
#include <fuserun/optimizer.h>
#include <fuserun/scheduler.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#ifdef UNRESOLVED
extern int fuse_test_nobody_defines_this(void);
#endif

static char variant[64]; /* this file's name without .so */

/* clang-format off */
FUSERUN_RULE(decay_rule, (mean, scale), (lr, momentum),
    mean = momentum * mean + grad;
    scale = scale + 1.0f;
    param -= lr * mean;
)
/* clang-format on */

static struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-3", .range = "[0, inf)",
                   .flags = FUSERUN_OPTION_SCHEDULABLE, .help = "learning rate"),
    FUSERUN_OPTION(.key = "shape", .type = FUSERUN_OPTION_CHOICE, .default_text = "round", .choices = "round|square",
                   .help = "a choice"),
};

static void prepare(const struct fuse_update *update, double *scalars)
{
    scalars[0] = update->hyper[0];
    scalars[1] = 0.5;
}

static int plan_tensor(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
{
    (void)host;
    (void)plan;
    (void)error;
    return FUSERUN_OK;
}
static int update_tensor(const struct fuse_tensor_update *update, struct fuse_error *error)
{
    (void)update;
    (void)error;
    return FUSERUN_OK;
}

static void over(const struct fuse_pass_call *call, int64_t begin, int64_t end)
{
    (void)call;
    (void)begin;
    (void)end;
}
static struct fuse_tensor_pass pass = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_tensor_pass, over_sums),
                                       .kind = FUSERUN_OVER_ELEMENTS,
                                       .name = "pass",
                                       .text = "",
                                       .result = "",
                                       .over_elements = over};
static const struct fuse_tensor_pass *const passes[] = {&pass};

static int create(const struct fuse_host *host, const struct fuse_options *values,
                  const struct fuse_schedule_context *context, void **instance, struct fuse_error *error)
{
    (void)values;
    (void)context;
    *instance = malloc(1);
    return *instance != NULL ? FUSERUN_OK : host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory");
}
static double value(const void *instance, const struct fuse_schedule_query *query)
{
    (void)instance;
    return query->base * 2.0;
}
static int cycles_momentum(const void *instance)
{
    (void)instance;
    return 1;
}
static const char *metric(const void *instance)
{
    (void)instance;
    return "eval_loss";
}

static double momentum(const void *instance, const struct fuse_schedule_query *query)
{
    (void)instance;
    return query->base;
}

/* Structs of a later fuserun: ours, and a field more. */
struct later_component {
    struct fuse_component known;
    const void *extra;
};
struct later_scheduler {
    struct fuse_scheduler known;
    const void *extra;
};

static struct fuse_rule rule, second_rule;
static const struct fuse_rule *rules[] = {&rule, &second_rule};
static struct fuse_optimizer optimizer = {FUSERUN_STRUCT_SIZE(fuse_optimizer, prepare), 1, rules, NULL, NULL, prepare};
static struct later_scheduler scheduler = {.known = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, set_state),
                                                     .create = create,
                                                     .destroy = free,
                                                     .value = value}};
static struct later_component components[] = {
    {{FUSERUN_STRUCT_SIZE(fuse_component, api), FUSERUN_KIND_OPTIMIZER, variant, "an optimizer",
      FUSERUN_OPTIMIZER_ELEMENTWISE, options, 2, sizeof options[0], &optimizer},
     NULL},
    {{FUSERUN_STRUCT_SIZE(fuse_component, api), FUSERUN_KIND_SCHEDULER, variant, NULL, 0, NULL, 0, 0, &scheduler},
     NULL},
};
static struct fuse_plugin plugin = {FUSERUN_STRUCT_SIZE(fuse_plugin, component_stride),
                                    FUSERUN_ABI,
                                    variant,
                                    "1.2.3",
                                    "MIT",
                                    &components[0].known,
                                    2,
                                    sizeof components[0]};

static int is(const char *name)
{
    return strcmp(variant, name) == 0;
}

static void spoil(void)
{
    struct fuse_component *first = &components[0].known, *second = &components[1].known;
    /* Optional parts that an older scheduler's struct ends before: what lies there must not be read. */
    if (is("older")) {
        scheduler.known.struct_size = FUSERUN_STRUCT_SIZE(fuse_scheduler, value);
        scheduler.known.cycles_momentum = cycles_momentum;
        scheduler.known.momentum = momentum;
    }
    if (is("later")) {
        static const char extra[] = "of a later version";
        scheduler.known.struct_size = FUSERUN_STRUCT_SIZE(later_scheduler, extra);
        scheduler.extra = extra;
        first->struct_size = second->struct_size = FUSERUN_STRUCT_SIZE(later_component, extra);
        components[0].extra = components[1].extra = extra;
        plugin.abi.minor = FUSERUN_ABI_MINOR + 3;
    }
    if (is("other_kind"))
        plugin.components = second, plugin.component_count = 1;
    if (is("magic"))
        plugin.abi.magic = 0xdeadbeefu;
    if (is("major"))
        plugin.abi.major = 2;
    if (is("minor"))
        plugin.abi.requires_minor = 99;
    if (is("small_plugin"))
        plugin.struct_size = FUSERUN_STRUCT_SIZE(fuse_plugin, license);
    if (is("small_abi"))
        plugin.abi.struct_size = 12;
    if (is("max_dims"))
        plugin.abi.max_dims = 4;
    if (is("pointer_bytes"))
        plugin.abi.pointer_bytes = 16;
    if (is("dtype_count"))
        plugin.abi.dtype_count = 3;
    if (is("option_types"))
        plugin.abi.option_type_count = 2;
    if (is("other_name"))
        plugin.name = "someone_else";
    if (is("no_name"))
        plugin.name = NULL;
    if (is("no_component"))
        plugin.component_count = 0;
    if (is("component_kind"))
        first->kind = 77;
    if (is("component_stride"))
        plugin.component_stride = 8;
    if (is("component_size"))
        first->struct_size = 16;
    if (is("component_name"))
        first->name = "two words";
    if (is("twins"))
        *second = *first;
    if (is("no_api"))
        first->api = NULL;
    if (is("small_api"))
        optimizer.struct_size = 8;
    if (is("no_prepare"))
        optimizer.prepare = NULL;
    if (is("no_value"))
        scheduler.known.value = NULL;
    if (is("half_momentum"))
        scheduler.known.cycles_momentum = cycles_momentum;
    if (is("blind_metric"))
        scheduler.known.metric = metric;
    if (is("half_state"))
        scheduler.known.state_count = 2;
    if (is("huge_state"))
        scheduler.known.state_count = 100000;
    if (is("no_rules"))
        optimizer.rule_count = 0;
    if (is("null_rule"))
        rules[0] = NULL;
    if (is("no_select"))
        optimizer.rule_count = 2;
    if (is("no_slice"))
        rule.update_slice = NULL;
    if (is("small_rule"))
        rule.struct_size = 24;
    if (is("many_states"))
        rule.state_count = FUSERUN_MAX_STATES + 1;
    if (is("many_scalars"))
        rule.scalar_count = FUSERUN_MAX_SCALARS + 1;
    if (is("state_names"))
        rule.states = "(mean)";
    if (is("same_states"))
        rule.states = "(mean, mean)";
    if (is("many_numbers"))
        rule.number_count = FUSERUN_MAX_NUMBERS + 1, rule.numbers = "(a, b, c, d, e)";
    if (is("number_names"))
        rule.number_count = 2, rule.numbers = "(product)";
    if (is("number_null"))
        rule.number_count = 1;
    if (is("number_state"))
        rule.number_count = 1, rule.numbers = "(mean)";
    if (is("number_step"))
        rule.number_count = 1, rule.numbers = "(step)";
    if (is("no_plan"))
        rule.update_tensor = update_tensor;
    if (is("not_whole"))
        rule.update_tensor = update_tensor, rule.plan_tensor = plan_tensor;
    if (is("not_a_tensor"))
        first->capabilities = FUSERUN_OPTIMIZER_WHOLE;
    if (is("both_ways")) {
        rule.update_tensor = update_tensor, rule.plan_tensor = plan_tensor;
        first->capabilities |= FUSERUN_OPTIMIZER_WHOLE;
    }
    if (is("passes_alone"))
        rule.passes = passes, rule.pass_count = 1;
    if (is("no_passes"))
        rule.update_tensor = update_tensor, rule.plan_tensor = plan_tensor, rule.pass_count = 1;
    if (is("many_passes"))
        rule.update_tensor = update_tensor, rule.plan_tensor = plan_tensor, rule.passes = passes,
        rule.pass_count = FUSERUN_MAX_PASSES + 1;
    if (is("scratch_names"))
        rule.update_tensor = update_tensor, rule.plan_tensor = plan_tensor, rule.passes = passes,
        rule.scratch_count = 2, rule.scratches = "(x, x)";
    if (is("pass_kind"))
        rule.update_tensor = update_tensor, rule.plan_tensor = plan_tensor, rule.passes = passes, rule.pass_count = 1,
        pass.kind = FUSERUN_OVER_ALL + 1;
    if (is("pass_sums"))
        rule.update_tensor = update_tensor, rule.plan_tensor = plan_tensor, rule.passes = passes, rule.pass_count = 1,
        pass.kind = FUSERUN_OVER_ALL;
    if (is("scalar_names"))
        rule.scalars = "lr, momentum";
    if (is("state_step"))
        rule.states = "(mean, step)";
    if (is("option_default"))
        options[0].default_text = "fast";
    if (is("option_outside"))
        options[0].default_text = "-1";
    if (is("option_choice"))
        options[1].default_text = "oval";
    if (is("option_choices"))
        options[1].choices = "round||square";
    if (is("option_type"))
        options[0].type = 42;
    if (is("option_range"))
        options[0].range = "[0, 1";
    if (is("option_key"))
        options[0].key = "Learning Rate";
    if (is("option_twice"))
        options[1].key = "lr";
    if (is("option_core"))
        options[1].key = "plugin";
    if (is("option_null"))
        first->options = NULL;
    if (is("option_size"))
        options[1].struct_size = 8;
    if (is("option_stage"))
        options[1].type = FUSERUN_OPTION_STAGE;
    if (is("option_driven"))
        options[1].flags = FUSERUN_OPTION_SCHEDULABLE;
    if (is("option_elements"))
        options[0].elements = "a|b";
#ifdef UNRESOLVED
    plugin.component_count = (uint32_t)fuse_test_nobody_defines_this();
#endif
}

__attribute__((constructor)) static void start(void)
{
    Dl_info self;
    if (dladdr(variant, &self) != 0) {
        const char *base = strrchr(self.dli_fname, '/') + 1;
        memcpy(variant, base, strlen(base) - strlen(".so"));
    }
    if (is("aborts"))
        abort();
    if (is("exits"))
        exit(0);
}

#ifndef NO_ENTRY
FUSERUN_EXPORT const struct fuse_plugin *fuse_plugin_v1(const struct fuse_host *host);
#else
#define fuse_plugin_v1 fuse_plugin_v0
FUSERUN_EXPORT const struct fuse_plugin *fuse_plugin_v0(const struct fuse_host *host);
#endif
const struct fuse_plugin *fuse_plugin_v1(const struct fuse_host *host)
{
    (void)host;
    rule = second_rule = decay_rule;
    spoil();
    if (is("crashes"))
        (void)raise(SIGSEGV);
    return is("null_entry") ? NULL : &plugin;
}
