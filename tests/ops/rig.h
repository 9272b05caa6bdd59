/* A backend under test: loads the CPU plugin, or what FUSE_TEST_BACKEND names, and runs one op at a time on guarded
 * memory. Where the device has memory of its own, operands are taken there and back. */
#ifndef FUSE_TESTS_RIG_H
#define FUSE_TESTS_RIG_H

/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "base/error.h"

#include <fuserun/backend.h>

#include <stdbool.h>

/* float32's unit roundoff */
#define FUSE_EPS 5.9604644775390625e-08

struct fuse_rig {
    const struct fuse_backend *backend;
    void *instance;
    uint32_t worker_count;
    struct fuse_error error;
    uint64_t seed, draw; /* what the next runs get */
    /* What a panel hook of the next runs goes through besides, asked with the hook's user; NULL: not told. */
    uint32_t (*panel_spans)(void *user, int64_t row_begin, int64_t row_end, struct fuse_span *spans);
};

void fuse_rig_open(struct fuse_rig *rig, uint32_t thread_count);
void fuse_rig_close(struct fuse_rig *rig);

/* Of rigs with 1, 2 and 3 threads, those that differ: on a device of its own one. */
int fuse_rig_sets(void);
bool fuse_rig_is_device(const struct fuse_rig *rig);
/* Whether a case of that much work (multiplications, elements) is tried; FUSE_TEST_MOST, for slow backends, is the
 * most. */
bool fuse_is_tried(int64_t work);

/* `bytes` of the host's for the device to work on, and back: the same memory where it is the device's. */
void *fuse_rig_to_device(struct fuse_rig *rig, const void *memory, size_t bytes);
void fuse_rig_from_device(struct fuse_rig *rig, void *memory, void *device, size_t bytes);

/* Memory of exactly `bytes`, aligned to 64, filled with 0xff (NaN as float), with guards on both sides which free
 * checks. */
void *fuse_guarded_new(size_t bytes);
void fuse_guarded_check(const void *data, size_t bytes);
void fuse_guarded_free(void *data, size_t bytes);

/* count floats of [-size, size), from the seed; in tests of bfloat16 (bfloat16.h) rounded to that. */
float *fuse_random_floats(uint64_t seed, int64_t count, double size);
double *fuse_to_doubles(const float *values, int64_t count);

/* Runs op on each rig twice: all outputs have the same bits each time and lie within bound[i] of expected[i] (float32
 * outputs only, element by element). With FUSERUN_OP_ACCUMULATE the last output holds 0.5 before, which expected leaves
 * out; in place, output 0 is input 0. */
void fuse_rigs_compare(struct fuse_rig *rigs, int rig_count, const char *what, const struct fuse_op *op,
                       const void *const *inputs, const double *const *expected, const double *const *bound,
                       bool in_place);

/* Operands: rank 0 is a scalar. */
struct fuse_operand fuse_operand_of(uint32_t dtype, uint32_t rank, int64_t a, int64_t b, int64_t c);
int64_t fuse_operand_elements(const struct fuse_operand *operand);

/* An op with its operands. */
struct fuse_op fuse_op_new(uint32_t kind, uint32_t flags);
void fuse_op_add_input(struct fuse_op *op, struct fuse_operand operand);
void fuse_op_add_output(struct fuse_op *op, struct fuse_operand operand);

/* Compiles, runs and discards; the workspace is guarded and full of NaN. Fails the test if that fails. */
void fuse_rig_run(struct fuse_rig *rig, const struct fuse_op *op, const void *const *inputs, void *const *outputs,
                  const double *scalars, const struct fuse_panel_hook *hook);
/* The status of compiling it, with the error's text in rig->error. */
int fuse_rig_compile_status(struct fuse_rig *rig, const struct fuse_op *op);
void fuse_rig_info(struct fuse_rig *rig, const struct fuse_op *op, struct fuse_kernel_info *info);

/* |got - expected| <= bound[i] for all, else the test fails naming the first. */
void fuse_assert_close(const char *what, int64_t count, const float *got, const double *expected, const double *bound);
/* (terms + 8) * eps * magnitude, in place: the bound of a float32 sum of that many terms. */
void fuse_bound_from_magnitude(int64_t count, double *magnitude, int64_t terms);

/* gradient (count) against central differences of loss(), which reads values. Step 1e-5: the error is about 1e-10. */
void fuse_check_gradient(const char *what, double (*loss)(void), double *values, int count, const double *gradient);

#endif
