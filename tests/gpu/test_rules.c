/* Every shipped element-wise rule on a backend against the CPU's loops: the same bits, in one launch for many tensors,
 * tensor by tensor, and in panels (reports 30 and 34). FUSE_TEST_BACKEND names the backend. */
#include "../ops/rig.h"

#include "config/options.h"
#include "plugin/registry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 5
static const int64_t counts[COUNT] = {1, 64, 4097, 255, 9001};

static struct fuse_rig rig;
static struct fuse_registry *registry;

struct tensors {
    float *values[COUNT][2 + FUSERUN_MAX_STATES]; /* parameter, gradient, states */
};

static void make(struct tensors *tensors, uint32_t states)
{
    for (int i = 0; i < COUNT; i++)
        for (uint32_t j = 0; j < 2 + states; j++) {
            float *const values = fuse_random_floats((uint64_t)(100 * i) + j, counts[i], 1.0);
            tensors->values[i][j] = values;
            for (int64_t k = 0; k < counts[i]; k++) {
                if (j >= 2) /* second moments and steps are never negative */
                    values[k] = fabsf(values[k]);
                if (j == 1 && k % 11 == 3) /* a zero is a gradient too */
                    values[k] = 0.0f;
            }
        }
}

static void drop(struct tensors *tensors, uint32_t states)
{
    for (int i = 0; i < COUNT; i++)
        for (uint32_t j = 0; j < 2 + states; j++)
            fuse_guarded_free(tensors->values[i][j], (size_t)counts[i] * sizeof(float));
}

static struct fuse_slice slice_of(float *const *values, float **states, const struct fuse_rule *rule,
                                  const float *scalars, int64_t first, int64_t count)
{
    for (uint32_t j = 0; j < rule->state_count; j++)
        states[j] = values[2 + j] + first;
    return (struct fuse_slice){.struct_size = FUSERUN_STRUCT_SIZE(fuse_slice, first),
                               .state_count = rule->state_count,
                               .param = values[0] + first,
                               .grad = values[1] + first,
                               .states = states,
                               .scalars = scalars,
                               .count = count,
                               .first = first};
}

enum form { AT_ONCE, EACH, PANELS, FORM_COUNT };

static void update_on_device(struct tensors *tensors, const struct fuse_rule *rule, const float *scalars,
                             enum form form)
{
    struct tensors device;
    struct fuse_slice slices[COUNT];
    float *states[COUNT][FUSERUN_MAX_STATES];
    struct fuse_compiled_rule *compiled = NULL;
    if (rig.backend->compile_rule(rig.instance, rule, &compiled, &rig.error) != FUSERUN_OK)
        fail_msg("%s: %s", rule->name, rig.error.text);
    for (int i = 0; i < COUNT; i++) {
        for (uint32_t j = 0; j < 2 + rule->state_count; j++)
            device.values[i][j] = fuse_rig_to_device(&rig, tensors->values[i][j], (size_t)counts[i] * sizeof(float));
        slices[i] = slice_of(device.values[i], states[i], rule, scalars, 0, counts[i]);
    }
    for (int i = 0; i < COUNT && form != PANELS; i += form == AT_ONCE ? COUNT : 1)
        if (rig.backend->update(rig.instance, compiled, &slices[i], form == AT_ONCE ? COUNT : 1, &rig.error) !=
            FUSERUN_OK)
            fail_msg("%s: %s", rule->name, rig.error.text);
    for (int i = 0; i < COUNT && form == PANELS; i++)
        for (int64_t first = 0; first < counts[i]; first += 1000) {
            const struct fuse_slice panel = slice_of(device.values[i], states[i], rule, scalars, first,
                                                     first + 1000 < counts[i] ? 1000 : counts[i] - first);
            rig.backend->update_panel(rig.instance, compiled, &panel);
        }
    for (int i = 0; i < COUNT; i++)
        for (uint32_t j = 0; j < 2 + rule->state_count; j++)
            fuse_rig_from_device(&rig, tensors->values[i][j], device.values[i][j], (size_t)counts[i] * sizeof(float));
    rig.backend->discard_rule(rig.instance, compiled);
}

static void check_rule(const struct fuse_rule *rule, const float *scalars)
{
    struct tensors expected, got;
    make(&expected, rule->state_count);
    for (int i = 0; i < COUNT; i++) {
        float *states[FUSERUN_MAX_STATES];
        const struct fuse_slice slice = slice_of(expected.values[i], states, rule, scalars, 0, counts[i]);
        rule->update_slice(&slice);
    }
    for (int form = 0; form < FORM_COUNT; form++) {
        make(&got, rule->state_count);
        update_on_device(&got, rule, scalars, (enum form)form);
        for (int i = 0; i < COUNT; i++)
            for (uint32_t j = 0; j < 2 + rule->state_count; j++)
                for (int64_t k = 0; k < counts[i]; k++) {
                    const float a = expected.values[i][j][k], b = got.values[i][j][k];
                    if (memcmp(&a, &b, sizeof a) != 0 && !(isnan(a) && isnan(b)))
                        fail_msg("%s, form %d, tensor %d, value %u, element %lld: %.9g, the CPU has %.9g", rule->name,
                                 form, i, j, (long long)k, (double)b, (double)a);
                }
        drop(&got, rule->state_count);
    }
    drop(&expected, rule->state_count);
}

/* The scalars of some update as the plugin makes them, from its defaults. */
static void scalars_of(const struct fuse_component *component, const struct fuse_rule *rule, int64_t step,
                       float *scalars)
{
    const struct fuse_optimizer *const optimizer = component->api;
    struct fuse_options *options = NULL;
    double hyper[FUSERUN_MAX_HYPER] = {0}, numbers[FUSERUN_MAX_NUMBERS] = {0}, exact[FUSERUN_MAX_SCALARS] = {0};
    struct fuse_error error = FUSE_ERROR_INIT;
    if (fuse_options_from_pairs(component, NULL, 0, &options, &error) != FUSERUN_OK)
        fail_msg("%s: %s", component->name, error.text);
    const struct fuse_update update = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_update, numbers),
                                       .hyper_count =
                                           (uint32_t)fuse_options_flatten(component, options, hyper, FUSERUN_MAX_HYPER),
                                       .hyper = hyper,
                                       .step = step,
                                       .numbers = numbers};
    optimizer->prepare(&update, exact);
    fuse_options_free(&options);
    for (uint32_t i = 0; i < rule->scalar_count; i++)
        scalars[i] = (float)exact[i];
}

static void every_rule_gives_the_cpus_bits(void **state)
{
    (void)state;
    static const char *const names[] = {"adadelta", "adagrad", "adam",  "adamax",  "adamw", "asgd",
                                        "lion",     "nadam",   "radam", "rmsprop", "rprop", "sgd"};
    int rules = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct fuse_component *component = NULL;
        const char *file = NULL;
        if (fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, names[i], &component, &file, &rig.error) != FUSERUN_OK)
            fail_msg("%s", rig.error.text);
        const struct fuse_optimizer *const optimizer = component->api;
        for (uint32_t r = 0; r < optimizer->rule_count; r++)
            for (int64_t step = 1; step <= 7; step += 6) {
                const struct fuse_rule *const rule = optimizer->rules[r];
                float scalars[FUSERUN_MAX_SCALARS] = {0};
                if (rule->update_slice == NULL)
                    continue;
                scalars_of(component, rule, step, scalars);
                check_rule(rule, scalars);
                rules++;
            }
    }
    assert_true(rules >= 24);
}

/* A rule that divides by zero where it should, and meets what is not finite, does what the CPU does. */
FUSERUN_RULE(edges, (state), (lr), state = state / grad; param = sqrtf(param) - lr * fabsf(state);)

static void special_values_too(void **state)
{
    (void)state;
    const float scalars[] = {0.1f};
    check_rule(&edges, scalars);
}

static int set_up(void **state)
{
    (void)state;
    struct fuse_error error = FUSE_ERROR_INIT;
    fuse_rig_open(&rig, 1);
    return fuse_registry_new(NULL, 0, NULL, &registry, &error);
}

static int tear_down(void **state)
{
    (void)state;
    fuse_rig_close(&rig);
    fuse_registry_free(&registry);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_gives_the_cpus_bits),
        cmocka_unit_test(special_values_too),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
