/* Update rules: foreach, one slice and panels give the same bits, on any number of threads. */
#include "rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <fuserun/optimizer.h>

#define THREAD_SETS 3

FUSERUN_RULE(probe, (first, second), (lr, decay), first = decay * first + (1.0f - decay) * grad;
             second = decay * second + (1.0f - decay) * grad * grad; param -= lr * first / (sqrtf(second) + 1e-8f);)
FUSERUN_RULE_STATELESS(plain, (lr), param -= lr * grad;)

static struct fuse_rig rigs[THREAD_SETS]; /* 1, 2 and 3 threads */

static int open_rigs(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < THREAD_SETS; i++)
        fuse_rig_open(&rigs[i], i + 1);
    return 0;
}

static int close_rigs(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < THREAD_SETS; i++)
        fuse_rig_close(&rigs[i]);
    return 0;
}

#define MAX_SLICES 64

/* Parameters of the given counts, each with memory of its own. */
struct parameters {
    int64_t slice_count;
    int64_t counts[MAX_SLICES];
    float *param[MAX_SLICES], *grad[MAX_SLICES], *states[MAX_SLICES][2];
    struct fuse_slice slices[MAX_SLICES];
};

static const float scalars[] = {0.01f, 0.9f};

static void make(struct parameters *p, int64_t slice_count, const int64_t *counts, uint32_t state_count)
{
    *p = (struct parameters){.slice_count = slice_count};
    for (int64_t i = 0; i < slice_count; i++) {
        const size_t bytes = (size_t)counts[i] * sizeof(float);
        p->counts[i] = counts[i];
        p->param[i] = fuse_random_floats(100 + (uint64_t)i, counts[i], 1.0);
        p->grad[i] = fuse_random_floats(200 + (uint64_t)i, counts[i], 1.0);
        for (int j = 0; j < 2; j++) {
            p->states[i][j] = fuse_guarded_new(bytes);
            memset(p->states[i][j], 0, bytes);
        }
        p->slices[i] = (struct fuse_slice){.struct_size = FUSERUN_STRUCT_SIZE(fuse_slice, first),
                                           .state_count = state_count,
                                           .param = p->param[i],
                                           .grad = p->grad[i],
                                           .states = p->states[i],
                                           .scalars = scalars,
                                           .count = counts[i]};
    }
}

static void drop(struct parameters *p)
{
    for (int64_t i = 0; i < p->slice_count; i++) {
        const size_t bytes = (size_t)p->counts[i] * sizeof(float);
        fuse_guarded_free(p->param[i], bytes);
        fuse_guarded_free(p->grad[i], bytes);
        fuse_guarded_free(p->states[i][0], bytes);
        fuse_guarded_free(p->states[i][1], bytes);
    }
}

static void assert_same(const struct parameters *a, const struct parameters *b, const char *what)
{
    for (int64_t i = 0; i < a->slice_count; i++) {
        const size_t bytes = (size_t)a->counts[i] * sizeof(float);
        if (memcmp(a->param[i], b->param[i], bytes) != 0 || memcmp(a->states[i][0], b->states[i][0], bytes) != 0 ||
            memcmp(a->states[i][1], b->states[i][1], bytes) != 0)
            fail_msg("%s: parameter %lld (%lld elements) has other bits", what, (long long)i, (long long)a->counts[i]);
    }
}

/* One element after another, in plain C. */
static void update_by_hand(struct parameters *p)
{
    for (int64_t i = 0; i < p->slice_count; i++)
        for (int64_t j = 0; j < p->counts[i]; j++) {
            const float grad = p->grad[i][j], lr = scalars[0], decay = scalars[1];
            float *const first = &p->states[i][0][j], *const second = &p->states[i][1][j];
            *first = decay * *first + (1.0f - decay) * grad;
            *second = decay * *second + (1.0f - decay) * grad * grad;
            p->param[i][j] -= lr * *first / (sqrtf(*second) + 1e-8f);
        }
}

enum form { FORM_FOREACH, FORM_EACH, FORM_PANELS, FORM_COUNT };

/* The parameters of `p` on the device, or back from there. */
static void take(struct fuse_rig *rig, const struct parameters *p, struct parameters *on_device, bool is_back)
{
    if (!is_back)
        *on_device = *p;
    for (int64_t i = 0; i < p->slice_count; i++) {
        const size_t bytes = (size_t)p->counts[i] * sizeof(float);
        float *const host[] = {p->param[i], p->grad[i], p->states[i][0], p->states[i][1]};
        float **const device[] = {&on_device->param[i], &on_device->grad[i], &on_device->states[i][0],
                                  &on_device->states[i][1]};
        for (int j = 0; j < 4; j++) {
            if (is_back)
                fuse_rig_from_device(rig, host[j], *device[j], bytes);
            else
                *device[j] = fuse_rig_to_device(rig, host[j], bytes);
        }
        on_device->slices[i].param = on_device->param[i];
        on_device->slices[i].grad = on_device->grad[i];
        on_device->slices[i].states = on_device->states[i];
    }
}

static void update(struct fuse_rig *rig, struct parameters *host, const struct fuse_rule *rule, enum form form)
{
    const struct fuse_backend *const backend = rig->backend;
    struct fuse_compiled_rule *compiled = NULL;
    static struct parameters on_device;
    struct parameters *const p = &on_device;
    take(rig, host, p, false);
    assert_int_equal(backend->compile_rule(rig->instance, rule, &compiled, &rig->error), FUSERUN_OK);
    if (form == FORM_FOREACH)
        assert_int_equal(backend->update(rig->instance, compiled, p->slices, p->slice_count, &rig->error), FUSERUN_OK);
    for (int64_t i = 0; i < p->slice_count && form == FORM_EACH; i++)
        assert_int_equal(backend->update(rig->instance, compiled, &p->slices[i], 1, &rig->error), FUSERUN_OK);
    for (int64_t i = 0; i < p->slice_count && form == FORM_PANELS; i++)
        for (int64_t begin = 0; begin < p->counts[i]; begin += 1000) {
            struct fuse_slice slice = p->slices[i];
            float *states[] = {p->states[i][0] + begin, p->states[i][1] + begin};
            slice.param += begin;
            slice.grad += begin;
            slice.states = states;
            slice.first = begin;
            slice.count = begin + 1000 < p->counts[i] ? 1000 : p->counts[i] - begin;
            backend->update_panel(rig->instance, compiled, &slice);
        }
    take(rig, host, p, true);
    backend->discard_rule(rig->instance, compiled);
}

static void check(int64_t slice_count, const int64_t *counts)
{
    static struct parameters expected, got;
    make(&expected, slice_count, counts, 2);
    update_by_hand(&expected);
    update_by_hand(&expected);
    for (int t = 0; t < fuse_rig_sets(); t++)
        for (int form = 0; form < FORM_COUNT; form++) {
            make(&got, slice_count, counts, 2);
            update(&rigs[t], &got, &probe, (enum form)form);
            update(&rigs[t], &got, &probe, (enum form)form);
            assert_same(&expected, &got,
                        form == FORM_FOREACH ? "foreach"
                        : form == FORM_EACH  ? "one by one"
                                             : "panels");
            drop(&got);
        }
    drop(&expected);
}

static void test_one_slice(void **state)
{
    (void)state;
    static const int64_t counts[] = {1,  2,  3,  4,   7,    15,    16,    17,     31,
                                     33, 63, 65, 100, 4097, 32768, 32769, 100003, 262144};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        check(1, &counts[i]);
}

static void test_many_slices(void **state)
{
    (void)state;
    int64_t counts[MAX_SLICES];
    for (int64_t i = 0; i < MAX_SLICES; i++) /* small ones: under the threads' threshold in all */
        counts[i] = 1 + i * 13 % 97;
    check(MAX_SLICES, counts);
    for (int64_t i = 0; i < MAX_SLICES; i++) /* cut inside some, bundles of others */
        counts[i] = i % 5 == 0 ? 20001 : 64;
    check(MAX_SLICES, counts);
    counts[0] = 300001;
    counts[1] = 1;
    counts[2] = 7;
    check(3, counts);
    counts[0] = 40000; /* cuts exactly between slices */
    counts[1] = 40000;
    check(2, counts);
}

static void test_stateless(void **state)
{
    (void)state;
    static struct parameters got;
    const int64_t counts[] = {50001, 3};
    for (int t = 0; t < fuse_rig_sets(); t++) {
        make(&got, 2, counts, 0);
        float *const before = fuse_random_floats(100, counts[0], 1.0);
        update(&rigs[t], &got, &plain, FORM_FOREACH);
        for (int64_t i = 0; i < counts[0]; i++)
            assert_true(got.param[0][i] == before[i] - scalars[0] * got.grad[0][i]);
        fuse_guarded_free(before, (size_t)counts[0] * sizeof(float));
        drop(&got);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct fuse_compiled_rule *compiled = NULL;
    struct fuse_rule broken = probe;
    broken.update_slice = NULL;
    if (!fuse_rig_is_device(&rigs[0])) { /* which goes by the text */
        assert_int_equal(rigs[0].backend->compile_rule(rigs[0].instance, &broken, &compiled, &rigs[0].error),
                         FUSERUN_ERROR_PLUGIN);
        assert_null(compiled);
        assert_non_null(strstr(rigs[0].error.text, "probe"));
    }
    broken = probe;
    broken.state_count = FUSERUN_MAX_STATES + 1;
    assert_int_equal(rigs[0].backend->compile_rule(rigs[0].instance, &broken, &compiled, &rigs[0].error),
                     FUSERUN_ERROR_PLUGIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_slice),
        cmocka_unit_test(test_many_slices),
        cmocka_unit_test(test_stateless),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_rigs, close_rigs);
}
