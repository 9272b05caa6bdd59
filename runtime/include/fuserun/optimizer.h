/* fuserun/optimizer.h - how to write an optimizer.
 *
 * An optimizer is an update rule: given a parameter's element, its gradient's element and the optimizer's state for
 * it, the new element and state. You write that once, for one element, as plain C that is also CUDA C++; from the one
 * text fuserun makes the vectorised CPU loops for every mode (foreach, per_param, and the panels of a fused backward)
 * and the CUDA kernels. A whole optimizer, sign descent with momentum, in plugins/template/my_optimizer.c:
 *
 *     #include <fuserun/optimizer.h>
 *
 *     FUSERUN_RULE(sign_rule, (momentum_buffer), (lr, momentum),
 *         momentum_buffer = momentum * momentum_buffer + (1.0f - momentum) * grad;
 *         param -= momentum_buffer > 0.0f ? lr : -lr;
 *     )
 *
 *     enum { LR, MOMENTUM };
 *     static const struct fuse_option options[] = {
 *         FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .default_text = "1e-3", .range = "[0, inf)",
 *                        .flags = FUSERUN_OPTION_SCHEDULABLE, .help = "learning rate"),
 *         FUSERUN_OPTION(.key = "momentum", .type = FUSERUN_OPTION_NUMBER, .default_text = "0.9", .range = "[0, 1)",
 *                        .flags = FUSERUN_OPTION_SCHEDULABLE, .help = "decay of the running mean"),
 *     };
 *     static void prepare(const struct fuse_update *update, double *scalars)
 *     {
 *         scalars[0] = update->hyper[LR];
 *         scalars[1] = update->hyper[MOMENTUM];
 *     }
 *     FUSERUN_OPTIMIZER(my_optimizer, "1.0.0", "MIT", "sign descent with momentum", options, prepare, sign_rule)
 *
 * Build it with nothing of fuserun's sources, drop it into plugins/ beside your config, and name it:
 *
 *     cc -shared -fPIC $(pkg-config --cflags fuserun) my_optimizer.c -o plugins/my_optimizer.so
 *
 * Rules for the rule text (the last argument of FUSERUN_RULE):
 *   - `param` and every state are float variables to read and write, `grad` a const float, every scalar a const float;
 *   - the text sees one element; it may declare locals and call sqrtf and fabsf; use a ?: b : c instead of if, so that
 *     compilers can vectorise it; write float literals with f (0.5f); no preprocessor lines inside; macros are expanded
 *     before the text is kept, so they must expand to the same subset;
 *   - what depends on the step but not on the element (bias corrections) is a scalar, computed in double by prepare().
 *   - states start as zero, and each parameter has its own step count, from 1 at its first update: a state that starts
 *     elsewhere gets its start as a scalar that is 0 from the second update on (plugins/optimizers/adagrad.c);
 *   - a number that lives from update to update but is one for the whole parameter (a product of all momenta so far) is
 *     no state: name it in FUSERUN_RULE_WITH_NUMBERS, and let prepare() carry it on (plugins/optimizers/nadam.c).
 */
#ifndef FUSERUN_OPTIMIZER_H
#define FUSERUN_OPTIMIZER_H

#include <fuserun/abi.h>

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FUSERUN_MAX_STATES 8
#define FUSERUN_MAX_SCALARS 16
#define FUSERUN_MAX_NUMBERS 4
#define FUSERUN_MAX_HYPER 32

/* Capabilities of an optimizer component. */
enum fuse_optimizer_capability {
    FUSERUN_OPTIMIZER_ELEMENTWISE = 1u << 0, /* each element's update needs nothing of the others': may be applied to
                                                panels of a gradient that never exists whole */
    FUSERUN_OPTIMIZER_WHOLE = 1u << 1        /* an update looks at the whole parameter and its whole gradient: all its
                                                rules have update_tensor */
};

/* A contiguous piece of one parameter. Handed over in arrays, so this struct never grows. [worker] */
struct fuse_slice {
    uint32_t struct_size;
    uint32_t state_count;
    float *param;         /* (count) */
    const float *grad;    /* (count) */
    float *const *states; /* state_count pointers, each (count), in the rule's order */
    const float *scalars; /* what prepare() gave, as float */
    int64_t count;
    int64_t first;        /* index of param[0] in the whole parameter */
};

/* ---- rules that look at more than one element ----------------------------------------------------------------- *
 *
 * Where an update needs a row's mean, the norm of the parameter or the matrix itself, write texts over a whole matrix
 * (passes) and a function that says in which order they and matrix products are done: <fuserun/tensor_rule.h> shows how.
 * In `fused` mode each gradient is then whole for as long as its update takes. Results must not depend on how work is
 * split over threads. plugins/optimizers/adafactor.c keeps rows and columns, muon.c multiplies matrices.
 *
 * A rule without passes may do its work by `split`, in functions of its own that read and write the parameter: it runs
 * on the CPU alone. */

#define FUSERUN_MAX_PRODUCTS 8
#define FUSERUN_MAX_SCRATCHES 8
#define FUSERUN_MAX_PASSES 16

/* A matrix product that an update will ask for: c (m, n) = a (m, k) b (k, n), all dense and row-major; a factor that is
 * stored transposed, a as (k, m) or b as (n, k), says so. */
struct fuse_tensor_product {
    int64_t m, n, k;
    uint32_t is_a_transposed;
    uint32_t is_b_transposed;
};

/* What the updates of one parameter need. */
struct fuse_tensor_plan {
    uint32_t struct_size;
    uint32_t rank;
    const int64_t *shape; /* (rank) of the parameter */
    const double *hyper;  /* as in fuse_update, from the config */

    /* For plan_tensor to fill; zero before. */
    int64_t state_counts[FUSERUN_MAX_STATES]; /* elements of each state: a row's, a column's, ...; 0: not for this one */
    uint64_t scratch_bytes;
    struct fuse_tensor_product products[FUSERUN_MAX_PRODUCTS];
    uint32_t product_count;
    uint32_t reserved;
    int64_t scratch_counts[FUSERUN_MAX_SCRATCHES]; /* floats of each of the rule's scratches */
    int64_t sum_count; /* the most sums that one pass makes: its rows (also of a pass over all), or its columns */
};

/* Elements [begin, end) of something that is spread over threads. [worker] [no-alloc] */
typedef void fuse_tensor_work(void *context, int64_t begin, int64_t end);

/* One update of one whole parameter, and what may be called during it. */
struct fuse_tensor_update {
    uint32_t struct_size;
    uint32_t rank;
    const int64_t *shape;
    float *param;
    const float *grad;
    float *const *states; /* in the rule's order, of the planned sizes; zero before the first update */
    const float *scalars; /* what prepare() gave, as float */
    void *scratch;        /* the planned bytes, aligned to 64; holds nothing from one update to the next */

    /* work(context, begin, end) over [0, count), each range on one thread; `each`: elements that one of them stands for,
     * so that little work stays on one thread. */
    void (*split)(const struct fuse_tensor_update *update, int64_t count, int64_t each, fuse_tensor_work *work,
                  void *context);

    /* The planned product of that index; c must not overlap a or b. */
    int (*multiply)(const struct fuse_tensor_update *update, uint32_t product, const float *a, const float *b, float *c,
                    struct fuse_error *error);

    void *workspace; /* the host's, for products and sums */
    void *backend;   /* the back-end's own */

    float *const *scratches; /* in the rule's order, of the planned sizes; they hold nothing from update to update */

    /* The rule's pass of that index over `matrices` matrices of (rows, columns), one behind the other. */
    int (*run_pass)(const struct fuse_tensor_update *update, uint32_t pass, int64_t matrices, int64_t rows,
                    int64_t columns, struct fuse_error *error);
};

/* What a pass goes over: elements, or sums of them over each row, over each matrix's columns, or over all. */
enum fuse_pass_kind {
    FUSERUN_OVER_ELEMENTS = 1,
    FUSERUN_OVER_ROWS = 2,
    FUSERUN_OVER_COLUMNS = 3,
    FUSERUN_OVER_ALL = 4
};

struct fuse_pass_call {
    uint32_t struct_size;
    uint32_t reserved;
    const struct fuse_tensor_update *update;
    int64_t matrices;
    int64_t rows, columns; /* of one matrix */
    double *sums;          /* one for each row of all matrices, or for each column of each matrix */
};

/* One of a tensor rule's texts, as the macros of <fuserun/tensor_rule.h> make it. */
struct fuse_tensor_pass {
    uint32_t struct_size;
    uint32_t kind;
    const char *name;
    const char *text;   /* OVER_ELEMENTS: statements; else an expression, what is summed up */
    const char *result; /* statements for one finished sum; "" for OVER_ELEMENTS */

    /* Rows [begin, end) of all matrices; OVER_COLUMNS: columns [begin, end) of all matrices side by side. Sums go to
     * call->sums; OVER_ALL leaves those of its rows there, and whoever calls adds them up in sums[0]. [worker] [no-alloc] */
    void (*over_elements)(const struct fuse_pass_call *call, int64_t begin, int64_t end);
    void (*over_sums)(const struct fuse_pass_call *call, int64_t begin, int64_t end); /* NULL for OVER_ELEMENTS */
};

/* A rule as FUSERUN_RULE or FUSERUN_TENSOR_RULE makes it. */
struct fuse_rule {
    uint32_t struct_size;
    uint32_t state_count;
    uint32_t scalar_count;
    uint32_t reserved;
    const char *name;
    const char *states;  /* "(exp_avg, exp_avg_sq)": the names under which checkpoints keep them */
    const char *scalars; /* "(lr, beta1)" */
    const char *text;    /* the rule's own text, for other compilers */
    void (*update_slice)(const struct fuse_slice *slice);                  /* [worker] [no-alloc] */
    void (*update_foreach)(const struct fuse_slice *slices, int64_t count); /* [worker] [no-alloc] */
    uint32_t number_count; /* doubles that prepare() keeps for each parameter, FUSERUN_MAX_NUMBERS at the most */
    uint32_t reserved2;
    const char *numbers; /* "(mu_product)", as states; NULL without any */

    /* Both or neither; with them there is no text, and the two functions above are NULL.
     * plan_tensor: once for each parameter, when the run is planned; refuses a parameter that the rule is not meant for
     * by FUSERUN_ERROR_CONFIG and a reason that can follow "parameter 'NAME': ".
     * update_tensor: [no-alloc], on the main thread. */
    int (*plan_tensor)(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error);
    int (*update_tensor)(const struct fuse_tensor_update *update, struct fuse_error *error);

    /* With update_tensor only. A rule that has passes touches no tensor but by them and by products: then it runs on any
     * device. */
    const struct fuse_tensor_pass *const *passes;
    uint32_t pass_count;
    uint32_t scratch_count;
    const char *scratches; /* "(x, gram)", as states; NULL without any */
};

/* What prepare() may look at. */
struct fuse_update {
    uint32_t struct_size;
    uint32_t hyper_count;
    const double *hyper; /* the group's options at this update, in the order of the option table: booleans as 0 or 1,
                            choices as their index, fixed lists as that many entries, none as NaN; driven ones as the
                            schedule gives them */
    int64_t step;        /* this parameter's update count, 1 at its first */
    double *numbers;     /* number_count of the rule: as this parameter's last update left them, 0 before its first;
                            prepare() leaves the next. They count once the update is done: one that is skipped, or whose
                            parameter gets no gradient, leaves no trace */
};

struct fuse_optimizer {
    uint32_t struct_size;
    uint32_t rule_count;
    const struct fuse_rule *const *rules;

    /* Optional: refuses options that contradict each other (nesterov without momentum). */
    int (*check)(const struct fuse_host *host, const struct fuse_options *options, struct fuse_error *error);

    /* Which of the rules a group uses, an index; optional with one rule. hyper: as in fuse_update, from the config.
     * is_driven[i] is non-zero where a schedule drives hyper[i], which then may become any value. */
    uint32_t (*select_rule)(const double *hyper, const uint8_t *is_driven);

    /* Fills scalars, scalar_count of the selected rule. Depends on *update alone; once per parameter and update at the
     * most, and less often where parameters would get the same. [no-alloc] */
    void (*prepare)(const struct fuse_update *update, double *scalars);
};

#ifdef __cplusplus
}
#endif

/* ---- FUSERUN_RULE: machinery --------------------------------------------------------------------------------- */

#define FUSERUN_TEXT_(...) #__VA_ARGS__
#define FUSERUN_CAT_(a, b) FUSERUN_CAT2_(a, b)
#define FUSERUN_CAT2_(a, b) a##b
#define FUSERUN_COUNT_(...) FUSERUN_COUNT2_(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define FUSERUN_COUNT2_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, count, ...) count
/* FUSERUN_EACH_(M, (a, b)) is M(0, a) M(1, b): up to 16 names. */
#define FUSERUN_EACH_(macro, names) FUSERUN_CAT_(FUSERUN_EACH_, FUSERUN_COUNT_ names)(macro, FUSERUN_UNPACK_ names)
#define FUSERUN_UNPACK_(...) __VA_ARGS__
#define FUSERUN_EACH_1(m, ...) FUSERUN_EACH_1_(m, __VA_ARGS__)
#define FUSERUN_EACH_1_(m, a) m(0, a)
#define FUSERUN_EACH_2(M, ...) FUSERUN_EACH_2_(M, __VA_ARGS__)
#define FUSERUN_EACH_2_(M, a, b) M(0, a) M(1, b)
#define FUSERUN_EACH_3(M, ...) FUSERUN_EACH_3_(M, __VA_ARGS__)
#define FUSERUN_EACH_3_(M, a, b, c) M(0, a) M(1, b) M(2, c)
#define FUSERUN_EACH_4(M, ...) FUSERUN_EACH_4_(M, __VA_ARGS__)
#define FUSERUN_EACH_4_(M, a, b, c, d) M(0, a) M(1, b) M(2, c) M(3, d)
#define FUSERUN_EACH_5(M, ...) FUSERUN_EACH_5_(M, __VA_ARGS__)
#define FUSERUN_EACH_5_(M, a, b, c, d, e) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e)
#define FUSERUN_EACH_6(M, ...) FUSERUN_EACH_6_(M, __VA_ARGS__)
#define FUSERUN_EACH_6_(M, a, b, c, d, e, f) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f)
#define FUSERUN_EACH_7(M, ...) FUSERUN_EACH_7_(M, __VA_ARGS__)
#define FUSERUN_EACH_7_(M, a, b, c, d, e, f, g) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g)
#define FUSERUN_EACH_8(M, ...) FUSERUN_EACH_8_(M, __VA_ARGS__)
#define FUSERUN_EACH_8_(M, a, b, c, d, e, f, g, h) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h)
#define FUSERUN_EACH_9(M, ...) FUSERUN_EACH_9_(M, __VA_ARGS__)
#define FUSERUN_EACH_9_(M, a, b, c, d, e, f, g, h, i) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h) M(8, i)
#define FUSERUN_EACH_10(M, ...) FUSERUN_EACH_10_(M, __VA_ARGS__)
#define FUSERUN_EACH_10_(M, a, b, c, d, e, f, g, h, i, j) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h) M(8, i) M(9, j)
#define FUSERUN_EACH_11(M, ...) FUSERUN_EACH_11_(M, __VA_ARGS__)
#define FUSERUN_EACH_11_(M, a, b, c, d, e, f, g, h, i, j, k) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h) M(8, i) M(9, j) M(10, k)
#define FUSERUN_EACH_12(M, ...) FUSERUN_EACH_12_(M, __VA_ARGS__)
#define FUSERUN_EACH_12_(M, a, b, c, d, e, f, g, h, i, j, k, l) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h) M(8, i) M(9, j) M(10, k) M(11, l)
#define FUSERUN_EACH_13(M, ...) FUSERUN_EACH_13_(M, __VA_ARGS__)
#define FUSERUN_EACH_13_(M, a, b, c, d, e, f, g, h, i, j, k, l, m) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h) M(8, i) M(9, j) M(10, k) M(11, l) M(12, m)
#define FUSERUN_EACH_14(M, ...) FUSERUN_EACH_14_(M, __VA_ARGS__)
#define FUSERUN_EACH_14_(M, a, b, c, d, e, f, g, h, i, j, k, l, m, n) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h) M(8, i) M(9, j) M(10, k) M(11, l) M(12, m) M(13, n)
#define FUSERUN_EACH_15(M, ...) FUSERUN_EACH_15_(M, __VA_ARGS__)
#define FUSERUN_EACH_15_(M, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h) M(8, i) M(9, j) M(10, k) M(11, l) M(12, m) M(13, n) M(14, o)
#define FUSERUN_EACH_16(M, ...) FUSERUN_EACH_16_(M, __VA_ARGS__)
#define FUSERUN_EACH_16_(M, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) M(0, a) M(1, b) M(2, c) M(3, d) M(4, e) M(5, f) M(6, g) M(7, h) M(8, i) M(9, j) M(10, k) M(11, l) M(12, m) M(13, n) M(14, o) M(15, p)
#define FUSERUN_STATE_PARAMETER_(index, name) , float *__restrict__ fuse_state_##name
#define FUSERUN_STATE_ARGUMENT_(index, name) , fuse_slice_->states[index]
#define FUSERUN_STATE_LOAD_(index, name) float name = fuse_state_##name[fuse_i];
#define FUSERUN_STATE_STORE_(index, name) fuse_state_##name[fuse_i] = name;
#define FUSERUN_STATE_FETCH_(index, name) FUSERUN_FETCH_(fuse_state_##name)
/* A rule need not read all its scalars: several rules of a plugin share one prepare(). */
#define FUSERUN_SCALAR_LOAD_(index, name)                                                                             \
    const float name = fuse_slice_->scalars[index];                                                                   \
    (void)name;

/* An update is bound by memory, and divides and takes roots meanwhile: the processor foresees what is read, but not far
 * enough ahead for both. So each block of an array asks for the line this far behind it (48 instead of 45 GB/s of Adam's
 * on two cores with AVX-512). A block is a line, and a whole number of every instruction set's vectors. */
#define FUSERUN_BLOCK_ 16
#define FUSERUN_BLOCKS_AHEAD_ 32
#if defined(__GNUC__)
#define FUSERUN_FETCH_(array_) __builtin_prefetch(array_ + fuse_block + FUSERUN_BLOCKS_AHEAD_ * FUSERUN_BLOCK_);
#else
#define FUSERUN_FETCH_(array_)
#endif

/* One loop, compiled for several instruction sets; which one runs is decided by the processor: no -march is needed.
 * Contraction into fused multiply-adds is off (fuserun.pc's flags), so all of them give the same bits. The choice is
 * written out because target_clones needs glibc's ifunc, fails under sanitizers, and under clang 14 leaves a second
 * exported symbol. The loop stands in a function of its own because clang believes __restrict__ only of parameters, and
 * leaves a rule of three states scalar without. */
#if defined(__GNUC__)
#define FUSERUN_INLINE_ static inline __attribute__((always_inline))
#else
#define FUSERUN_INLINE_ static inline
#endif

/* `static void function_ parameters_`, which calls function_##_loop with arguments_. */
#if defined(__x86_64__) && defined(__GNUC__)
#define FUSERUN_DISPATCH_(function_, parameters_, passed_, arguments_)                                                \
    __attribute__((target("avx512f"))) static void function_##_avx512 parameters_                                     \
    {                                                                                                                 \
        function_##_loop arguments_;                                                                                  \
    }                                                                                                                 \
    __attribute__((target("avx2"))) static void function_##_avx2 parameters_                                          \
    {                                                                                                                 \
        function_##_loop arguments_;                                                                                  \
    }                                                                                                                 \
    static void function_ parameters_                                                                                 \
    {                                                                                                                 \
        if (__builtin_cpu_supports("avx512f"))                                                                        \
            function_##_avx512 passed_;                                                                               \
        else if (__builtin_cpu_supports("avx2"))                                                                      \
            function_##_avx2 passed_;                                                                                 \
        else                                                                                                          \
            function_##_loop arguments_;                                                                              \
    }
#else
#define FUSERUN_DISPATCH_(function_, parameters_, passed_, arguments_)                                                \
    static void function_ parameters_                                                                                 \
    {                                                                                                                 \
        function_##_loop arguments_;                                                                                  \
    }
#endif

/* One element. */
#define FUSERUN_RULE_BODY_(loads_, stores_, ...)                                                                      \
    {                                                                                                                 \
        float param = fuse_param[fuse_i];                                                                             \
        const float grad = fuse_grad[fuse_i];                                                                         \
        (void)grad;                                                                                                   \
        loads_ { __VA_ARGS__ } fuse_param[fuse_i] = param;                                                            \
        stores_                                                                                                       \
    }

#define FUSERUN_RULE_(name_, states_, state_count_, numbers_, number_count_, scalars_, scalar_count_, parameters_,    \
                      arguments_, fetches_, loads_, stores_, constants_, text_, ...)                                            \
    FUSERUN_INLINE_ void name_##_slice_loop(const struct fuse_slice *fuse_slice_, float *__restrict__ fuse_param,     \
                                      const float *__restrict__ fuse_grad parameters_)                                \
    {                                                                                                                 \
        const int64_t fuse_count = fuse_slice_->count, fuse_whole = fuse_count - fuse_count % FUSERUN_BLOCK_;         \
        constants_ for (int64_t fuse_block = 0; fuse_block < fuse_whole; fuse_block += FUSERUN_BLOCK_)                \
        {                                                                                                             \
            FUSERUN_FETCH_(fuse_param)                                                                                \
            FUSERUN_FETCH_(fuse_grad)                                                                                 \
            fetches_ for (int64_t fuse_i = fuse_block; fuse_i < fuse_block + FUSERUN_BLOCK_; fuse_i++)                \
                FUSERUN_RULE_BODY_(loads_, stores_, __VA_ARGS__)                                                      \
        }                                                                                                             \
        for (int64_t fuse_i = fuse_whole; fuse_i < fuse_count; fuse_i++)                                              \
            FUSERUN_RULE_BODY_(loads_, stores_, __VA_ARGS__)                                                          \
    }                                                                                                                 \
    FUSERUN_DISPATCH_(name_##_slice, (const struct fuse_slice *fuse_slice_), (fuse_slice_),                           \
                      (fuse_slice_, fuse_slice_->param, fuse_slice_->grad arguments_))                                \
    static void name_##_foreach(const struct fuse_slice *slices, int64_t count)                                       \
    {                                                                                                                 \
        for (int64_t i = 0; i < count; i++)                                                                           \
            name_##_slice(&slices[i]);                                                                                \
    }                                                                                                                 \
    static const struct fuse_rule name_ = {FUSERUN_STRUCT_SIZE(fuse_rule, scratches),                                 \
                                           state_count_,                                                              \
                                           scalar_count_,                                                             \
                                           0,                                                                         \
                                           #name_,                                                                    \
                                           states_,                                                                   \
                                           scalars_,                                                                  \
                                           text_,                                                                     \
                                           name_##_slice,                                                             \
                                           name_##_foreach,                                                           \
                                           number_count_,                                                             \
                                           0,                                                                         \
                                           numbers_,                                                                  \
                                           NULL,                                                                      \
                                           NULL,                                                                      \
                                           NULL,                                                                      \
                                           0,                                                                         \
                                           0,                                                                         \
                                           NULL};

/* FUSERUN_TENSOR_RULE(name, (state, ...), (scalar, ...), plan_tensor, update_tensor): of a rule without passes. */
#define FUSERUN_TENSOR_RULE(name_, states_, scalars_, plan_, update_)                                                 \
    FUSERUN_TENSOR_RULE_(name_, states_, scalars_, plan_, update_, NULL, 0, 0, NULL)

#define FUSERUN_TENSOR_RULE_(name_, states_, scalars_, plan_, update_, passes_, pass_count_, scratch_count_,          \
                             scratches_)                                                                              \
    static const struct fuse_rule name_ = {FUSERUN_STRUCT_SIZE(fuse_rule, scratches),                                 \
                                           FUSERUN_COUNT_ states_,                                                    \
                                           FUSERUN_COUNT_ scalars_,                                                   \
                                           0,                                                                         \
                                           #name_,                                                                    \
                                           FUSERUN_TEXT_(states_),                                                    \
                                           FUSERUN_TEXT_(scalars_),                                                   \
                                           "",                                                                        \
                                           NULL,                                                                      \
                                           NULL,                                                                      \
                                           0,                                                                         \
                                           0,                                                                         \
                                           NULL,                                                                      \
                                           plan_,                                                                     \
                                           update_,                                                                   \
                                           passes_,                                                                   \
                                           pass_count_,                                                               \
                                           scratch_count_,                                                            \
                                           scratches_};

/* FUSERUN_RULE(name, (state, ...), (scalar, ...), text): defines `static const struct fuse_rule name`. */
#define FUSERUN_RULE(name_, states_, scalars_, ...)                                                                   \
    FUSERUN_RULE_(name_, FUSERUN_TEXT_(states_), FUSERUN_COUNT_ states_, NULL, 0, FUSERUN_TEXT_(scalars_),            \
                  FUSERUN_COUNT_ scalars_, FUSERUN_EACH_(FUSERUN_STATE_PARAMETER_, states_), FUSERUN_EACH_(FUSERUN_STATE_ARGUMENT_, states_),  \
                  FUSERUN_EACH_(FUSERUN_STATE_FETCH_, states_), FUSERUN_EACH_(FUSERUN_STATE_LOAD_, states_),                                                        \
                  FUSERUN_EACH_(FUSERUN_STATE_STORE_, states_), FUSERUN_EACH_(FUSERUN_SCALAR_LOAD_, scalars_),        \
                  FUSERUN_TEXT_(__VA_ARGS__), __VA_ARGS__)

/* The same for a rule that keeps no state. */
#define FUSERUN_RULE_STATELESS(name_, scalars_, ...)                                                                  \
    FUSERUN_RULE_(name_, "()", 0, NULL, 0, FUSERUN_TEXT_(scalars_), FUSERUN_COUNT_ scalars_, , , , , ,                                       \
                  FUSERUN_EACH_(FUSERUN_SCALAR_LOAD_, scalars_), FUSERUN_TEXT_(__VA_ARGS__), __VA_ARGS__)

/* The same for a rule whose prepare() keeps numbers: FUSERUN_RULE_WITH_NUMBERS(name, (state, ...), (number, ...),
 * (scalar, ...), text). The text does not see them. */
#define FUSERUN_RULE_WITH_NUMBERS(name_, states_, numbers_, scalars_, ...)                                            \
    FUSERUN_RULE_(name_, FUSERUN_TEXT_(states_), FUSERUN_COUNT_ states_, FUSERUN_TEXT_(numbers_),                     \
                  FUSERUN_COUNT_ numbers_, FUSERUN_TEXT_(scalars_), FUSERUN_COUNT_ scalars_,                          \
                  FUSERUN_EACH_(FUSERUN_STATE_PARAMETER_, states_), FUSERUN_EACH_(FUSERUN_STATE_ARGUMENT_, states_),  \
                  FUSERUN_EACH_(FUSERUN_STATE_FETCH_, states_), FUSERUN_EACH_(FUSERUN_STATE_LOAD_, states_),                                                        \
                  FUSERUN_EACH_(FUSERUN_STATE_STORE_, states_), FUSERUN_EACH_(FUSERUN_SCALAR_LOAD_, scalars_),        \
                  FUSERUN_TEXT_(__VA_ARGS__), __VA_ARGS__)

/* A plugin of one element-wise optimizer with one rule; name is the file's stem. */
#define FUSERUN_OPTIMIZER(name_, version_, license_, summary_, options_, prepare_, rule_)                             \
    static const struct fuse_rule *const fuse_rules_[] = {&rule_};                                                    \
    FUSERUN_OPTIMIZER_WITH(name_, version_, license_, summary_, options_, prepare_, fuse_rules_, NULL, NULL)

/* The same with several rules, a select_rule and a check function (either may be NULL, select_rule not with several). */
#define FUSERUN_OPTIMIZER_WITH(name_, version_, license_, summary_, options_, prepare_, rules_, select_, check_)      \
    FUSERUN_OPTIMIZER_AS_(name_, version_, license_, summary_, options_, prepare_, rules_, select_, check_,           \
                          FUSERUN_OPTIMIZER_ELEMENTWISE)

/* A plugin of one optimizer with one FUSERUN_TENSOR_RULE; check_ may be NULL. */
#define FUSERUN_TENSOR_OPTIMIZER(name_, version_, license_, summary_, options_, prepare_, rule_, check_)              \
    static const struct fuse_rule *const fuse_rules_[] = {&rule_};                                                    \
    FUSERUN_OPTIMIZER_AS_(name_, version_, license_, summary_, options_, prepare_, fuse_rules_, NULL, check_,         \
                          FUSERUN_OPTIMIZER_WHOLE)

#define FUSERUN_OPTIMIZER_AS_(name_, version_, license_, summary_, options_, prepare_, rules_, select_, check_,       \
                              capabilities_)                                                                          \
    static const struct fuse_optimizer fuse_optimizer_ = {FUSERUN_STRUCT_SIZE(fuse_optimizer, prepare),               \
                                                          (uint32_t)(sizeof(rules_) / sizeof((rules_)[0])),           \
                                                          rules_,                                                     \
                                                          check_,                                                     \
                                                          select_,                                                    \
                                                          prepare_};                                                  \
    static const struct fuse_component fuse_components_[] = {                                                         \
        {FUSERUN_STRUCT_SIZE(fuse_component, api), FUSERUN_KIND_OPTIMIZER, #name_, summary_,                          \
         capabilities_, options_, (uint32_t)(sizeof(options_) / sizeof((options_)[0])),                               \
         (uint32_t)sizeof((options_)[0]), &fuse_optimizer_}};                                                         \
    FUSERUN_PLUGIN(#name_, version_, license_, fuse_components_)

#endif
