/* bfloat16: the upper half of a float32, the same range with 8 bits of precision. Kernels compute in float32 whatever
 * their operands are made of: what is bfloat16 in memory is widened piece by piece into a little room on the way in,
 * and rounded, once, on the way out. */
#ifndef FUSE_CPU_BFLOAT16_H
#define FUSE_CPU_BFLOAT16_H

#include "cpu.h"

#include <string.h>

/* A piece's room: small enough for the first-level cache together with a few others. */
#define FUSE_ROOM_FLOATS 1024

static inline float fuse_widen_one(uint16_t value)
{
    const uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof(result));
    return result;
}

/* To the nearest, ties to even; a NaN stays one, quiet. */
static inline uint16_t fuse_narrow_one(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
}

void fuse_widen(float *to, const uint16_t *from, int64_t count);
void fuse_narrow(uint16_t *to, const float *from, int64_t count);

/* Where number `index` lies. */
static inline void *fuse_values_at(struct fuse_values values, int64_t index)
{
    return values.is_bfloat16 ? (void *)((uint16_t *)values.at + index) : (void *)((float *)values.at + index);
}

/* How many numbers to take at a time: all of `count` where no room is needed. */
static inline int64_t fuse_values_piece(bool needs_room, int64_t count)
{
    return needs_room && count > FUSE_ROOM_FLOATS ? FUSE_ROOM_FLOATS : count;
}

/* Numbers [first, first + count) to read: where they lie, or widened into room (count). */
static inline const float *fuse_values_read(struct fuse_values values, int64_t first, int64_t count, float *room)
{
    if (!values.is_bfloat16)
        return (const float *)values.at + first;
    fuse_widen(room, (const uint16_t *)values.at + first, count);
    return room;
}

/* Where to write numbers from `first` on: where they lie, or room; fuse_values_write then puts the room's into place.
 */
static inline float *fuse_values_target(struct fuse_values values, int64_t first, float *room)
{
    return values.is_bfloat16 ? room : (float *)values.at + first;
}

static inline void fuse_values_write(struct fuse_values values, int64_t first, int64_t count, const float *room)
{
    if (values.is_bfloat16)
        fuse_narrow((uint16_t *)values.at + first, room, count);
}

/* Asks for numbers [first, first + count), which are read soon: what an earlier op of the step left in memory lies too
 * far from what was read before for the processor to foresee. */
static inline void fuse_values_fetch(struct fuse_values values, int64_t first, int64_t count)
{
    const char *const from = fuse_values_at(values, first);
    const int64_t bytes = count * (int64_t)(values.is_bfloat16 ? sizeof(uint16_t) : sizeof(float));
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(from + at, 0, 2);
}

#endif
