/* fuserun/tensor_rule.h - how to write an optimizer that looks at more than one element.
 *
 * Its rule is a few passes, a plan and a recipe. A pass is a text over all elements of a matrix, which every device
 * compiles as it does a rule's text; the recipe says in which order passes and matrix products are done. A step along
 * the gradient divided by its row's root mean square, with momentum:
 *
 *     #include <fuserun/tensor_rule.h>
 *
 *     #define ARRAYS (momentum_buffer), (row_scale), (lr, momentum)
 *     enum { MEASURE, STEP };
 *
 *     FUSERUN_PASS_ROWS(measure, ARRAYS, ((double)grad[i] * (double)grad[i]),
 *         row_scale[at] = (float)(1.0 / sqrt(sum / (double)columns + 1e-12));
 *     )
 *     FUSERUN_PASS_ELEMENTS(step, ARRAYS,
 *         momentum_buffer[i] = momentum * momentum_buffer[i] + row_scale[row] * grad[i];
 *         param[i] -= lr * momentum_buffer[i];
 *     )
 *
 *     static int plan_tensor(const struct fuse_host *host, struct fuse_tensor_plan *plan, struct fuse_error *error)
 *     {
 *         plan->state_counts[0] = rows * columns;
 *         plan->scratch_counts[0] = plan->sum_count = rows;
 *         ...
 *     }
 *     static int update_tensor(const struct fuse_tensor_update *update, struct fuse_error *error)
 *     {
 *         const int status = update->run_pass(update, MEASURE, 1, update->shape[0], update->shape[1], error);
 *         return status != FUSERUN_OK ? status : update->run_pass(update, STEP, 1, ..., error);
 *     }
 *
 *     FUSERUN_PASSES(passes, &measure, &step)
 *     FUSERUN_TENSOR_RULE_OF_PASSES(my_rule, ARRAYS, passes, plan_tensor, update_tensor)
 *     FUSERUN_TENSOR_OPTIMIZER(my_optimizer, "1.0.0", "MIT", "...", options, prepare, my_rule, NULL)
 *
 * ARRAYS names the rule's states, its scratches and its scalars, at least one of each, and is the same everywhere.
 *
 * In a text:
 *   - `param`, every state and every scratch are pointers to float, `grad` one to const float, scalars const float;
 *   - `i` is the element, `row` its row among those of all matrices, `column` its column in the matrix, `matrix` its
 *     matrix; `matrices` counts them, `rows` and `columns` are the size of one; all int64_t. i is row * columns + column;
 *   - an element's text writes to what belongs to that element, and reads nothing that another one's writes;
 *   - of functions sqrtf, fabsf, sqrt and fabs; else as in a rule's text (optimizer.h).
 * A pass that sums has an expression between parentheses, which is summed up in double, and statements for each sum:
 * `sum` is the sum and `at` its index, of the row among those of all matrices (ROWS), of the column among those of
 * all matrices side by side (COLUMNS), or 0 (ALL). There is no row, column or i in these.
 *
 * The recipe runs on the host while tensors are on the device, so it reads and writes none: numbers that follow from
 * tensors stay in a scratch of one element. Arrays of another shape than the parameter's (a matrix product's) are gone
 * over in their own shape. Absent states and scratches (planned with 0 elements) are not to be touched. */
#ifndef FUSERUN_TENSOR_RULE_H
#define FUSERUN_TENSOR_RULE_H

#include <fuserun/optimizer.h>

/* FUSERUN_PASS_ELEMENTS(name, ARRAYS, text) */
#define FUSERUN_PASS_ELEMENTS(name_, arrays_, ...)                                                                    \
    FUSERUN_PASS_SPREAD_(FUSERUN_PASS_ELEMENTS_, name_, arrays_, __VA_ARGS__)
#define FUSERUN_PASS_ELEMENTS_(name_, states_, scratches_, scalars_, ...)                                             \
    FUSERUN_PASS_FUNCTION_(name_##_elements, states_, scratches_, scalars_, FUSERUN_PASS_EACH_LOOP_, 0, __VA_ARGS__)  \
    FUSERUN_PASS_TABLE_(name_, FUSERUN_OVER_ELEMENTS, FUSERUN_TEXT_(__VA_ARGS__), "", NULL)

/* FUSERUN_PASS_ROWS(name, ARRAYS, (expression), text), and the same with COLUMNS and ALL */
#define FUSERUN_PASS_ROWS(name_, arrays_, value_, ...)                                                                \
    FUSERUN_PASS_SPREAD_(FUSERUN_PASS_SUMS_, name_, arrays_, FUSERUN_OVER_ROWS, FUSERUN_PASS_ROW_LOOP_, value_, __VA_ARGS__)
#define FUSERUN_PASS_COLUMNS(name_, arrays_, value_, ...)                                                             \
    FUSERUN_PASS_SPREAD_(FUSERUN_PASS_SUMS_, name_, arrays_, FUSERUN_OVER_COLUMNS, FUSERUN_PASS_COLUMN_LOOP_, value_, __VA_ARGS__)
#define FUSERUN_PASS_ALL(name_, arrays_, value_, ...)                                                                 \
    FUSERUN_PASS_SPREAD_(FUSERUN_PASS_SUMS_, name_, arrays_, FUSERUN_OVER_ALL, FUSERUN_PASS_ROW_LOOP_, value_, __VA_ARGS__)
#define FUSERUN_PASS_SUMS_(name_, states_, scratches_, scalars_, kind_, loop_, value_, ...)                           \
    FUSERUN_PASS_FUNCTION_(name_##_elements, states_, scratches_, scalars_, loop_, value_, 0)                         \
    FUSERUN_PASS_FUNCTION_(name_##_sums, states_, scratches_, scalars_, FUSERUN_PASS_RESULT_LOOP_, 0, __VA_ARGS__)    \
    FUSERUN_PASS_TABLE_(name_, kind_, FUSERUN_TEXT_(value_), FUSERUN_TEXT_(__VA_ARGS__), name_##_sums)

#define FUSERUN_PASSES(name_, ...) static const struct fuse_tensor_pass *const name_[] = {__VA_ARGS__};

/* FUSERUN_TENSOR_RULE_OF_PASSES(name, ARRAYS, passes, plan_tensor, update_tensor) */
#define FUSERUN_TENSOR_RULE_OF_PASSES(name_, arrays_, passes_, plan_, update_)                                        \
    FUSERUN_PASS_SPREAD_(FUSERUN_TENSOR_RULE_OF_PASSES_, name_, arrays_, passes_, plan_, update_)
#define FUSERUN_TENSOR_RULE_OF_PASSES_(name_, states_, scratches_, scalars_, passes_, plan_, update_)                 \
    FUSERUN_TENSOR_RULE_(name_, states_, scalars_, plan_, update_, passes_,                                           \
                         (uint32_t)(sizeof(passes_) / sizeof((passes_)[0])), FUSERUN_COUNT_ scratches_,               \
                         FUSERUN_TEXT_(scratches_))

/* ---- machinery ------------------------------------------------------------------------------------------------- */

/* ARRAYS as three arguments. */
#define FUSERUN_PASS_SPREAD_(macro_, ...) macro_(__VA_ARGS__)

#define FUSERUN_PASS_ARRAY_(index, name) , float *__restrict__ name
#define FUSERUN_PASS_ARRAY_USE_(index, name) (void)name;
#define FUSERUN_PASS_STATE_(index, name) , fuse_call_->update->states[index]
#define FUSERUN_PASS_SCRATCH_(index, name) , fuse_call_->update->scratches[index]
#define FUSERUN_PASS_SCALAR_(index, name)                                                                             \
    const float name = fuse_call_->update->scalars[index];                                                            \
    (void)name;

/* Arrays are parameters: compilers believe __restrict__ of nothing else. */
#define FUSERUN_PASS_FUNCTION_(function_, states_, scratches_, scalars_, loop_, value_, ...)                          \
    FUSERUN_INLINE_ void function_##_loop(                                                                            \
        const struct fuse_pass_call *fuse_call_, int64_t fuse_begin_, int64_t fuse_end_, float *__restrict__ param,   \
        const float *__restrict__ grad FUSERUN_EACH_(FUSERUN_PASS_ARRAY_, states_)                                    \
            FUSERUN_EACH_(FUSERUN_PASS_ARRAY_, scratches_))                                                           \
    {                                                                                                                 \
        const int64_t matrices = fuse_call_->matrices, rows = fuse_call_->rows, columns = fuse_call_->columns;        \
        (void)param, (void)grad, (void)matrices, (void)rows, (void)columns;                                           \
        FUSERUN_EACH_(FUSERUN_PASS_ARRAY_USE_, states_)                                                               \
        FUSERUN_EACH_(FUSERUN_PASS_ARRAY_USE_, scratches_)                                                            \
        FUSERUN_EACH_(FUSERUN_PASS_SCALAR_, scalars_)                                                                 \
        loop_(value_, __VA_ARGS__)                                                                                    \
    }                                                                                                                 \
    FUSERUN_DISPATCH_(function_, (const struct fuse_pass_call *fuse_call_, int64_t fuse_begin_, int64_t fuse_end_),   \
                      (fuse_call_, fuse_begin_, fuse_end_),                                                           \
                      (fuse_call_, fuse_begin_, fuse_end_, fuse_call_->update->param,                                 \
                       fuse_call_->update->grad FUSERUN_EACH_(FUSERUN_PASS_STATE_, states_)                           \
                           FUSERUN_EACH_(FUSERUN_PASS_SCRATCH_, scratches_)))

#define FUSERUN_PASS_EACH_LOOP_(value_, ...)                                                                          \
    for (int64_t row = fuse_begin_; row < fuse_end_; row++) {                                                         \
        const int64_t matrix = row / rows;                                                                            \
        for (int64_t column = 0; column < columns; column++) {                                                        \
            const int64_t i = row * columns + column;                                                                 \
            (void)matrix, (void)i;                                                                                    \
            __VA_ARGS__                                                                                               \
        }                                                                                                             \
    }

/* In double, over eight lanes in a fixed order; values are made a piece at a time, for both loops to be vectorised. */
#define FUSERUN_PASS_PIECE_ 256
FUSERUN_INLINE_ void fuse_pass_add_(double *lanes, const double *values, int64_t count)
{
    int64_t at = 0;
    for (; at + 8 <= count; at += 8)
        for (int lane = 0; lane < 8; lane++)
            lanes[lane] += values[at + lane];
    for (; at < count; at++)
        lanes[0] += values[at];
}

#define FUSERUN_PASS_ROW_LOOP_(value_, ...)                                                                           \
    for (int64_t row = fuse_begin_; row < fuse_end_; row++) {                                                         \
        const int64_t matrix = row / rows;                                                                            \
        double fuse_lanes_[8] = {0}, fuse_values_[FUSERUN_PASS_PIECE_];                                               \
        (void)matrix;                                                                                                 \
        for (int64_t fuse_from_ = 0; fuse_from_ < columns; fuse_from_ += FUSERUN_PASS_PIECE_) {                       \
            const int64_t fuse_rest_ = columns - fuse_from_;                                                          \
            const int64_t fuse_count_ = fuse_rest_ < FUSERUN_PASS_PIECE_ ? fuse_rest_ : FUSERUN_PASS_PIECE_;          \
            for (int64_t fuse_at_ = 0; fuse_at_ < fuse_count_; fuse_at_++) {                                          \
                const int64_t column = fuse_from_ + fuse_at_, i = row * columns + column;                             \
                (void)i;                                                                                              \
                fuse_values_[fuse_at_] = (double)(value_);                                                            \
            }                                                                                                         \
            fuse_pass_add_(fuse_lanes_, fuse_values_, fuse_count_);                                                   \
        }                                                                                                             \
        fuse_call_->sums[row] = ((fuse_lanes_[0] + fuse_lanes_[1]) + (fuse_lanes_[2] + fuse_lanes_[3])) +             \
                                ((fuse_lanes_[4] + fuse_lanes_[5]) + (fuse_lanes_[6] + fuse_lanes_[7]));              \
    }

#define FUSERUN_PASS_COLUMN_LOOP_(value_, ...)                                                                        \
    for (int64_t fuse_from_ = fuse_begin_, fuse_to_; fuse_from_ < fuse_end_; fuse_from_ = fuse_to_) {                 \
        const int64_t matrix = fuse_from_ / columns, fuse_next_ = (matrix + 1) * columns;                             \
        double *const fuse_sums_ = fuse_call_->sums + matrix * columns;                                               \
        fuse_to_ = fuse_next_ < fuse_end_ ? fuse_next_ : fuse_end_;                                                   \
        const int64_t fuse_first_ = fuse_from_ - matrix * columns, fuse_stop_ = fuse_to_ - matrix * columns;          \
        for (int64_t column = fuse_first_; column < fuse_stop_; column++)                                             \
            fuse_sums_[column] = 0.0;                                                                                 \
        for (int64_t row = matrix * rows; row < (matrix + 1) * rows; row++)                                           \
            for (int64_t column = fuse_first_; column < fuse_stop_; column++) {                                       \
                const int64_t i = row * columns + column;                                                             \
                (void)i;                                                                                              \
                fuse_sums_[column] += (double)(value_);                                                               \
            }                                                                                                         \
    }

#define FUSERUN_PASS_RESULT_LOOP_(value_, ...)                                                                        \
    for (int64_t at = fuse_begin_; at < fuse_end_; at++) {                                                            \
        const double sum = fuse_call_->sums[at];                                                                      \
        (void)sum;                                                                                                    \
        __VA_ARGS__                                                                                                   \
    }

#define FUSERUN_PASS_TABLE_(name_, kind_, text_, result_, over_sums_)                                                 \
    static const struct fuse_tensor_pass name_ = {FUSERUN_STRUCT_SIZE(fuse_tensor_pass, over_sums),                   \
                                                  kind_,                                                              \
                                                  #name_,                                                             \
                                                  text_,                                                              \
                                                  result_,                                                            \
                                                  name_##_elements,                                                   \
                                                  over_sums_};

#endif
