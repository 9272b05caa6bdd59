/* The backward pass against finite differences of a reference in double, on a graph that has everything that goes wrong
 * elsewhere: a layer applied twice, a residual, a frozen and an unused parameter; and post-accumulate callbacks. */
#include "device.h"

#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, WIDTH = 5, CLASSES = 4, WEIGHTS = WIDTH * WIDTH, HEAD = CLASSES * WIDTH };

/* h1 = tanh(W x + b); h2 = gelu(W h1 + b) + h1; y = V relu(h2) + c. W and b are used twice. */
static struct fuse_graph *tied_graph(bool freezes_head)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_graph_api *api = fuse_graph_services();
    const int64_t input[] = {BATCH, WIDTH}, square[] = {WIDTH, WIDTH}, width[] = {WIDTH};
    const int64_t head[] = {CLASSES, WIDTH}, classes[] = {CLASSES}, unused[] = {7};
    const struct fuse_init init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, -0.6, 0.6);
    struct fuse_graph *graph = NULL;
    assert_int_equal(fuse_graph_new(2, input, &graph, &error), FUSERUN_OK);
    struct fuse_tensor *w = api->parameter(graph, "w", 2, square, &init);
    struct fuse_tensor *b = api->parameter(graph, "b", 1, width, &init);
    (void)api->parameter(graph, "unused", 1, unused, &init);
    struct fuse_tensor *v = api->parameter(graph, "v", 2, head, &init);
    struct fuse_tensor *c = api->parameter(graph, "c", 1, classes, &init);
    struct fuse_tensor *h1 = api->tanh(graph, api->linear(graph, fuse_graph_input(graph), w, b));
    struct fuse_tensor *h2 = api->add(graph, api->gelu(graph, api->linear(graph, h1, w, b)), h1);
    struct fuse_tensor *y = api->linear(graph, api->relu(graph, h2), v, c);
    assert_int_equal(api->status(graph), FUSERUN_OK);
    graph->output = y->index;
    graph->parameters[v->parameter].is_frozen = freezes_head;
    return graph;
}

struct reference {
    double w[WEIGHTS], b[WIDTH], v[HEAD], c[CLASSES];
    double x[BATCH * WIDTH];
    int64_t classes[BATCH];
};

static void reference_linear(const double *w, const double *b, const double *x, int in, int out, double *y)
{
    for (int i = 0; i < out; i++) {
        y[i] = b[i];
        for (int j = 0; j < in; j++)
            y[i] += w[i * in + j] * x[j];
    }
}

/* Mean cross-entropy over the batch. */
static double reference_loss(const struct reference *r)
{
    double loss = 0;
    for (int n = 0; n < BATCH; n++) {
        double h1[WIDTH], h2[WIDTH], y[CLASSES], sum = 0;
        reference_linear(r->w, r->b, r->x + (ptrdiff_t)n * WIDTH, WIDTH, WIDTH, h1);
        for (int i = 0; i < WIDTH; i++)
            h1[i] = tanh(h1[i]);
        reference_linear(r->w, r->b, h1, WIDTH, WIDTH, h2);
        for (int i = 0; i < WIDTH; i++) {
            h2[i] = 0.5 * h2[i] * (1 + erf(h2[i] / sqrt(2.0))) + h1[i];
            h2[i] = h2[i] > 0 ? h2[i] : 0;
        }
        reference_linear(r->v, r->c, h2, WIDTH, CLASSES, y);
        for (int i = 0; i < CLASSES; i++)
            sum += exp(y[i]);
        loss += log(sum) - y[r->classes[n]];
    }
    return loss / BATCH;
}

static void copy_in(double *to, const float *from, int count)
{
    for (int i = 0; i < count; i++)
        to[i] = (double)from[i];
}

static void fill_batch(float *x, int64_t *classes)
{
    fuse_random_uniform(5, 1, 0, x, (size_t)BATCH * WIDTH);
    for (int i = 0; i < BATCH * WIDTH; i++)
        x[i] = 4 * x[i] - 2;
    for (int n = 0; n < BATCH; n++)
        classes[n] = (n * 3 + 1) % CLASSES;
}

/* Keeps what it is given; counts its calls. */
struct taken {
    float values[64];
    int calls;
    int64_t covered;
    int order; /* of its last call among all */
};
static int call_order;

static void take(void *user, const struct fuse_gradient *gradient)
{
    struct taken *taken = user;
    memcpy(taken->values + gradient->first, gradient->values, (size_t)gradient->count * sizeof(float));
    taken->calls++;
    taken->covered += gradient->count;
    taken->order = ++call_order;
}

/* Lies past the end of the callbacks that attach() attaches. */
static uint32_t never_told(void *user, int64_t first, int64_t count, struct fuse_span *spans)
{
    (void)user, (void)first, (void)count, (void)spans;
    fail_msg("a callback's spans were asked past its struct_size");
    return 0;
}

static void attach(struct fuse_graph *graph, uint32_t parameter, enum fuse_gradient_form form,
                   void (*callback)(void *, const struct fuse_gradient *), void *user)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_gradient_callback attached = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_gradient_callback, user), /* of a plugin made when there was no more */
        .form = form,
        .gradient = callback,
        .user = user,
        .spans = never_told};
    assert_int_equal(fuse_graph_attach(graph, parameter, &attached, &error), FUSERUN_OK);
}

static void check_gradient(struct reference *reference, double *values, const float *gradient, int count)
{
    for (int i = 0; i < count; i++) {
        const double kept = values[i], step = 1e-5;
        values[i] = kept + step;
        const double above = reference_loss(reference);
        values[i] = kept - step;
        const double below = reference_loss(reference);
        values[i] = kept;
        const double expected = (above - below) / (2 * step);
        /* float32 through about 30 operations of size 1; the central difference itself is good to 1e-9 */
        assert_true(fabs((double)gradient[i] - expected) < 64 * 1.2e-7);
    }
}

static void gradients_equal_finite_differences(void **state)
{
    (void)state;
    struct taken taken[5];
    memset(taken, 0, sizeof taken);
    struct fuse_graph *graph = tied_graph(false);
    for (uint32_t p = 0; p < graph->parameter_count; p++)
        attach(graph, p, p % 2 == 0 ? FUSERUN_GRADIENT_WHOLE : FUSERUN_GRADIENT_PANELS, take, &taken[p]);
    struct rig rig;
    rig_up(&rig, graph, 1, FUSE_LOSS_CROSS_ENTROPY, FUSE_MODE_FUSED, NULL, NULL, 0);
    float x[BATCH * WIDTH];
    struct reference reference;
    fill_batch(x, reference.classes);
    copy_in(reference.x, x, BATCH * WIDTH);
    copy_in(reference.w, rig_parameter(&rig, "w"), WEIGHTS);
    copy_in(reference.b, rig_parameter(&rig, "b"), WIDTH);
    copy_in(reference.v, rig_parameter(&rig, "v"), HEAD);
    copy_in(reference.c, rig_parameter(&rig, "c"), CLASSES);
    rig_update(&rig, x, reference.classes, 1.0 / BATCH);
    assert_true(fabs(rig.statistics[0] / BATCH - reference_loss(&reference)) < 1e-6);
    check_gradient(&reference, reference.w, taken[0].values, WEIGHTS);
    check_gradient(&reference, reference.b, taken[1].values, WIDTH);
    check_gradient(&reference, reference.v, taken[3].values, HEAD);
    check_gradient(&reference, reference.c, taken[4].values, CLASSES);
    assert_int_equal(taken[0].calls, 1); /* tied: once, after both contributions */
    assert_int_equal(taken[1].calls, 1);
    assert_int_equal(taken[2].calls, 0); /* unused */
    assert_int_equal(taken[3].covered, HEAD);
    rig_down(&rig);
}

static void a_frozen_weight_gets_no_gradient_but_passes_it_on(void **state)
{
    (void)state;
    struct taken head, first;
    memset(&head, 0, sizeof head);
    memset(&first, 0, sizeof first);
    struct fuse_graph *graph = tied_graph(true);
    attach(graph, 0, FUSERUN_GRADIENT_WHOLE, take, &first);
    attach(graph, 3, FUSERUN_GRADIENT_WHOLE, take, &head);
    struct rig rig;
    rig_up(&rig, graph, 1, FUSE_LOSS_CROSS_ENTROPY, FUSE_MODE_FUSED, NULL, NULL, 0);
    float x[BATCH * WIDTH];
    struct reference reference;
    fill_batch(x, reference.classes);
    copy_in(reference.x, x, BATCH * WIDTH);
    copy_in(reference.w, rig_parameter(&rig, "w"), WEIGHTS);
    copy_in(reference.b, rig_parameter(&rig, "b"), WIDTH);
    copy_in(reference.v, rig_parameter(&rig, "v"), HEAD);
    copy_in(reference.c, rig_parameter(&rig, "c"), CLASSES);
    rig_update(&rig, x, reference.classes, 1.0 / BATCH);
    check_gradient(&reference, reference.w, first.values, WEIGHTS);
    assert_int_equal(head.calls, 0);
    assert_false(fuse_program_reaches(rig.program, 3));
    rig_down(&rig);
}

/* Callbacks see the old weight, run in the order they were attached, and the optimizer, attached last, sees what they
 * made of the gradient. */
static void halve(void *user, const struct fuse_gradient *gradient)
{
    (void)user;
    for (int64_t i = 0; i < gradient->count; i++)
        gradient->values[i] *= 0.5f;
}

static void callbacks_run_in_order_before_the_optimizer(void **state)
{
    (void)state;
    const enum fuse_mode modes[] = {FUSE_MODE_FUSED, FUSE_MODE_PER_PARAM, FUSE_MODE_FOREACH};
    const enum fuse_gradient_form forms[] = {FUSERUN_GRADIENT_PANELS, FUSERUN_GRADIENT_WHOLE};
    for (size_t m = 0; m < 3; m++)
        for (size_t f = 0; f < 2; f++) {
            struct taken before, after;
            memset(&before, 0, sizeof before);
            memset(&after, 0, sizeof after);
            struct fuse_graph *graph = tied_graph(false);
            attach(graph, 3, forms[f], take, &before);
            attach(graph, 3, forms[f], halve, NULL);
            attach(graph, 3, forms[f], take, &after);
            struct rig rig;
            const char *const pairs[] = {"lr=1"};
            rig_up(&rig, graph, 1, FUSE_LOSS_CROSS_ENTROPY, modes[m], "sgd", pairs, 1);
            float x[BATCH * WIDTH], old[HEAD];
            int64_t classes[BATCH];
            fill_batch(x, classes);
            memcpy(old, rig_parameter(&rig, "v"), sizeof old);
            rig_update(&rig, x, classes, 1.0 / BATCH);
            assert_true(before.order < after.order);
            for (int i = 0; i < HEAD; i++) {
                assert_float_equal(after.values[i], before.values[i] * 0.5f, 0);
                assert_float_equal(rig_parameter(&rig, "v")[i], old[i] - after.values[i], 1e-7);
            }
            rig_down(&rig);
        }
}

/* A weight of several panels. */
enum { MANY = 16384, MANY_BATCH = 32 };

static struct fuse_graph *wide_graph(void)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_graph_api *api = fuse_graph_services();
    const int64_t input[] = {MANY_BATCH, WIDTH}, shape[] = {MANY, WIDTH};
    const struct fuse_init init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, -0.6, 0.6);
    struct fuse_graph *graph = NULL;
    assert_int_equal(fuse_graph_new(2, input, &graph, &error), FUSERUN_OK);
    struct fuse_tensor *w = api->parameter(graph, "w", 2, shape, &init);
    graph->output = api->linear(graph, fuse_graph_input(graph), w, NULL)->index;
    assert_int_equal(api->status(graph), FUSERUN_OK);
    return graph;
}

/* Which rows of panels its callback was asked about, and handed. */
struct asked {
    int asked[MANY], handed[MANY];
};

static uint32_t ask(void *user, int64_t first, int64_t count, struct fuse_span *spans)
{
    struct asked *asked = user;
    static const float beside[4] = {0};
    for (int64_t i = first; i < first + count; i++)
        __atomic_add_fetch(&asked->asked[i / WIDTH], 1, __ATOMIC_RELAXED);
    for (int i = 0; i < FUSERUN_MAX_SPANS; i++)
        spans[i] = (struct fuse_span){beside, (uint64_t)i % 2 * sizeof beside};
    return FUSERUN_MAX_SPANS;
}

static void hand(void *user, const struct fuse_gradient *gradient)
{
    struct asked *asked = user;
    for (int64_t i = gradient->first; i < gradient->first + gradient->count; i++)
        __atomic_add_fetch(&asked->handed[i / WIDTH], 1, __ATOMIC_RELAXED);
}

/* Says that it wrote more than there may be: nothing is fetched then. */
static uint32_t boast(void *user, int64_t first, int64_t count, struct fuse_span *spans)
{
    (void)ask(user, first, count, spans);
    return first % 2 == 0 ? UINT32_MAX : FUSERUN_MAX_SPANS + 1;
}

static void check_spans(uint32_t (*spans)(void *, int64_t, int64_t, struct fuse_span *))
{
    static struct asked asked;
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_graph *graph = wide_graph();
    struct taken ignored = {.calls = 0};
    const struct fuse_gradient_callback callback = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_gradient_callback, spans),
                                                    .form = FUSERUN_GRADIENT_PANELS,
                                                    .gradient = hand,
                                                    .user = &asked,
                                                    .spans = spans};
    attach(graph, 0, FUSERUN_GRADIENT_PANELS, halve, &ignored); /* it tells of none: the next one is asked */
    assert_int_equal(fuse_graph_attach(graph, 0, &callback, &error), FUSERUN_OK);
    const struct fuse_program_options options = {.loss = FUSE_LOSS_CROSS_ENTROPY, .gradients = FUSE_GRADIENTS_RELEASE};
    struct rig rig;
    float x[MANY_BATCH * WIDTH];
    int64_t classes[MANY_BATCH];
    memset(&asked, 0, sizeof asked);
    rig_up_with(&rig, graph, 2, &options);
    fuse_random_uniform(5, 1, 0, x, (size_t)MANY_BATCH * WIDTH);
    for (int n = 0; n < MANY_BATCH; n++)
        classes[n] = n;
    rig_update(&rig, x, classes, 1.0 / MANY_BATCH);
    for (int row = 0; row < MANY; row++) {
        assert_int_equal(asked.handed[row], WIDTH);
        assert_int_equal(asked.asked[row], WIDTH);
    }
    rig_down(&rig);
}

static void a_panels_spans_are_asked_for_its_rows(void **state)
{
    (void)state;
    check_spans(ask);
    check_spans(boast);
}

/* The fused optimizer tells of the weight and of each state, from the panel's first element on; the others of none. */
static void an_optimizer_tells_what_a_panels_update_goes_through(void **state)
{
    (void)state;
    const enum fuse_mode modes[] = {FUSE_MODE_FUSED, FUSE_MODE_PER_PARAM, FUSE_MODE_FOREACH};
    for (size_t m = 0; m < 3; m++) {
        struct rig rig;
        struct fuse_span spans[FUSERUN_MAX_SPANS];
        struct fuse_graph *graph = wide_graph();
        rig_up(&rig, graph, 2, FUSE_LOSS_CROSS_ENTROPY, modes[m], "adam", NULL, 0);
        assert_int_equal(graph->parameters[0].callback_count, 1);
        const struct fuse_gradient_callback *callback = &graph->parameters[0].callbacks[0];
        if (modes[m] != FUSE_MODE_FUSED) {
            assert_true(callback->spans == NULL);
            rig_down(&rig);
            continue;
        }
        const struct fuse_entry *entry = &rig.dict->entries[0];
        assert_int_equal(callback->spans(callback->user, 35, 1000, spans), 3);
        assert_ptr_equal(spans[0].at, rig_parameter(&rig, "w") + 35);
        assert_ptr_equal(spans[1].at, entry->states[0] + 35);
        assert_ptr_equal(spans[2].at, entry->states[1] + 35);
        for (int i = 0; i < 3; i++)
            assert_int_equal(spans[i].bytes, 1000 * sizeof(float));
        rig_down(&rig);
    }
}

/* ---- sums: gradients that share a buffer ---------------------------------------------------------------------- */

/* Sums in every order of making and using their terms: where one gradient buffer serves two tensors, nothing may be
 * added to it before the other has read it. Each case is a net of two square weights; its gradients are compared with
 * finite differences. */
enum { SUM_CASES = 6 };

static struct fuse_tensor *sum_net(int which, struct fuse_graph *graph, struct fuse_tensor *v, struct fuse_tensor *w)
{
    const struct fuse_graph_api *api = fuse_graph_services();
    struct fuse_tensor *x = fuse_graph_input(graph), *a = api->tanh(graph, api->linear(graph, x, v, NULL)), *b, *c;
    switch (which) {
    case 0: /* a residual, as transformers have it */
        return api->add(graph, a, api->linear(graph, api->tanh(graph, a), w, NULL));
    case 1: /* the lone term is made before the other's producer */
        b = api->linear(graph, a, w, NULL);
        c = api->tanh(graph, a);
        return api->add(graph, api->add(graph, c, api->tanh(graph, c)), b);
    case 2: /* a later use of the shared term */
        b = api->linear(graph, a, w, NULL);
        c = api->tanh(graph, a);
        return api->add(graph, api->add(graph, a, b), c);
    case 3: /* twice the same */
        b = api->linear(graph, a, w, NULL);
        return api->add(graph, b, b);
    case 4: /* sums of sums */
        b = api->add(graph, a, api->linear(graph, a, w, NULL));
        return api->add(graph, api->add(graph, b, a), b);
    default: /* the lone term first */
        b = api->linear(graph, api->tanh(graph, a), w, NULL);
        return api->add(graph, b, a);
    }
}

static void sum_reference(int which, const double *v, const double *w, const double *x, double *y)
{
    double a[WIDTH], t[WIDTH], b[WIDTH];
    const double zeros[WIDTH] = {0};
    reference_linear(v, zeros, x, WIDTH, WIDTH, a);
    for (int i = 0; i < WIDTH; i++) {
        a[i] = tanh(a[i]);
        t[i] = tanh(a[i]);
    }
    reference_linear(w, zeros, which == 0 || which == 5 ? t : a, WIDTH, WIDTH, b);
    for (int i = 0; i < WIDTH; i++) {
        const double sums[SUM_CASES] = {a[i] + b[i], t[i] + tanh(t[i]) + b[i], a[i] + b[i] + t[i],
                                        2 * b[i],    3 * a[i] + 2 * b[i],      b[i] + a[i]};
        y[i] = sums[which];
    }
}

static double sum_loss(int which, const double *v, const double *w, const double *x)
{
    double loss = 0;
    for (int n = 0; n < BATCH; n++) {
        double y[WIDTH];
        sum_reference(which, v, w, x + (ptrdiff_t)n * WIDTH, y);
        for (int i = 0; i < WIDTH; i++)
            loss += y[i];
    }
    return loss;
}

static void sums_share_gradients_without_harm(void **state)
{
    (void)state;
    const struct fuse_graph_api *api = fuse_graph_services();
    const int64_t input[] = {BATCH, WIDTH}, square[] = {WIDTH, WIDTH};
    const struct fuse_init init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, -0.6, 0.6);
    for (int which = 0; which < SUM_CASES; which++) {
        struct fuse_error error = FUSE_ERROR_INIT;
        struct fuse_graph *graph = NULL;
        struct taken taken[2];
        memset(taken, 0, sizeof taken);
        assert_int_equal(fuse_graph_new(2, input, &graph, &error), FUSERUN_OK);
        struct fuse_tensor *v = api->parameter(graph, "v", 2, square, &init);
        struct fuse_tensor *w = api->parameter(graph, "w", 2, square, &init);
        graph->output = sum_net(which, graph, v, w)->index;
        attach(graph, 0, FUSERUN_GRADIENT_WHOLE, take, &taken[0]);
        attach(graph, 1, FUSERUN_GRADIENT_WHOLE, take, &taken[1]);
        struct rig rig;
        rig_up(&rig, graph, 1, FUSE_LOSS_SUM, FUSE_MODE_FUSED, NULL, NULL, 0);
        float x[BATCH * WIDTH];
        int64_t classes[BATCH];
        double values[2][WEIGHTS], inputs[BATCH * WIDTH];
        fill_batch(x, classes);
        copy_in(inputs, x, BATCH * WIDTH);
        copy_in(values[0], rig_parameter(&rig, "v"), WEIGHTS);
        copy_in(values[1], rig_parameter(&rig, "w"), WEIGHTS);
        rig_update(&rig, x, NULL, 1.0);
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < WEIGHTS; i++) {
                const double kept = values[p][i], step = 1e-5;
                values[p][i] = kept + step;
                const double above = sum_loss(which, values[0], values[1], inputs);
                values[p][i] = kept - step;
                const double below = sum_loss(which, values[0], values[1], inputs);
                values[p][i] = kept;
                assert_true(fabs((double)taken[p].values[i] - (above - below) / (2 * step)) < 256 * 1.2e-7);
            }
        rig_down(&rig);
    }
}

static void mistakes_of_a_model_stick_and_name_themselves(void **state)
{
    (void)state;
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_graph_api *api = fuse_graph_services();
    const int64_t input[] = {2, 3}, weight[] = {4, 5};
    struct fuse_graph *graph = NULL;
    assert_int_equal(fuse_graph_new(2, input, &graph, &error), FUSERUN_OK);
    struct fuse_tensor *w = api->parameter(graph, "w", 2, weight, NULL);
    const struct fuse_gradient_callback tiny = {.struct_size = 8, .form = FUSERUN_GRADIENT_PANELS, .gradient = halve};
    api->on_gradient(graph, w, &tiny);
    assert_int_equal(graph->error.code, FUSERUN_ERROR_PLUGIN);
    assert_string_equal(graph->error.text,
                        "on_gradient: the callback's struct_size is 8, less than the 24 that it must have");
    assert_int_equal(graph->parameters[0].callback_count, 0);
    graph->error.code = FUSERUN_OK;
    assert_null(api->linear(graph, fuse_graph_input(graph), w, NULL));
    assert_string_equal(graph->error.text, "'w' takes 5 inputs, but gets 3");
    assert_null(api->relu(graph, NULL)); /* the first mistake stays */
    assert_string_equal(graph->error.text, "'w' takes 5 inputs, but gets 3");
    assert_null(api->parameter(graph, "w", 2, weight, NULL));
    fuse_graph_free(&graph);
    const int64_t none[] = {0, 3}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    assert_int_equal(fuse_graph_new(2, none, &graph, &error), FUSERUN_ERROR_CONFIG);
    assert_int_equal(fuse_graph_new(2, huge, &graph, &error), FUSERUN_ERROR_CONFIG);
}

static int teardown(void **state)
{
    (void)state;
    device_close_all();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(a_frozen_weight_gets_no_gradient_but_passes_it_on),
        cmocka_unit_test(callbacks_run_in_order_before_the_optimizer),
        cmocka_unit_test(a_panels_spans_are_asked_for_its_rows),
        cmocka_unit_test(an_optimizer_tells_what_a_panels_update_goes_through),
        cmocka_unit_test(sums_share_gradients_without_harm),
        cmocka_unit_test(mistakes_of_a_model_stick_and_name_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
