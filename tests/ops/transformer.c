#include "transformer.h"

#include <stdlib.h>

struct fuse_rig fuse_rigs[FUSE_THREAD_SETS];

int fuse_rigs_open(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < FUSE_THREAD_SETS; i++)
        fuse_rig_open(&fuse_rigs[i], i + 1);
    return 0;
}

int fuse_rigs_close(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < FUSE_THREAD_SETS; i++)
        fuse_rig_close(&fuse_rigs[i]);
    return 0;
}

struct fuse_operand fuse_float_operand(uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (struct fuse_operand){.dtype = FUSERUN_FLOAT32, .rank = rank, .shape = {a, b, c, d}};
}

double *fuse_doubles(int64_t count, double value)
{
    double *const values = malloc((size_t)count * sizeof(values[0]));
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = value;
    return values;
}

void fuse_round_to_floats(double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(float)values[i];
}

float *fuse_to_floats(const double *values, int64_t count)
{
    float *const result = fuse_guarded_new((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        result[i] = (float)values[i];
    return result;
}

void fuse_scale_bound(double *magnitude, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; i++)
        magnitude[i] = factor * FUSE_EPS * magnitude[i] + 1e-37;
}
