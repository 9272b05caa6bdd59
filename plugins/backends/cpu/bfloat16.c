#include "bfloat16.h"

FUSE_CLONES static void widen_all(float *restrict to, const uint16_t *restrict from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = fuse_widen_one(from[i]);
}

FUSE_CLONES static void narrow_all(uint16_t *restrict to, const float *restrict from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = fuse_narrow_one(from[i]);
}

void fuse_widen(float *to, const uint16_t *from, int64_t count)
{
    widen_all(to, from, count);
}

void fuse_narrow(uint16_t *to, const float *from, int64_t count)
{
    narrow_all(to, from, count);
}
