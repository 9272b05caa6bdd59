/* Transcendental functions for float results, written without branches so that loops over them vectorise. In double
 * where the float is to be within 1 unit in the last place of the true value, in float (half the time, and less) where
 * a few are as good: in gelu and attention.
 *
 * The polynomials are fits at Chebyshev nodes made for these functions (tools/fit-float-math.py makes them again and
 * prints their errors). */
#ifndef FUSE_CPU_FLOAT_MATH_H
#define FUSE_CPU_FLOAT_MATH_H

#include <math.h>
#include <stdint.h>

#define FUSE_INLINE static inline __attribute__((always_inline))

/* e^x, relative error below 1e-10; 0 < result for x < -700, inf past 709 only in the caller's float. x = n ln 2 + r,
 * |r| <= ln 2 / 2: a polynomial of degree 7 in r, then n into the exponent's bits. Adding 1.5 * 2^52 rounds to an
 * integer, which then stands in the low bits. NaN stays NaN. */
FUSE_INLINE double fuse_exp(double x)
{
    const double shift = 0x1.8p52;
    union {
        double value;
        uint64_t bits;
    } integer, scale;
    x = x < -700.0 ? -700.0 : x;
    x = x > 700.0 ? 700.0 : x;
    integer.value = x * 1.4426950408889634 + shift;
    const double n = integer.value - shift;
    const double r = x - n * 0.69314718055994531;
    double p = 0.00019907582591325134;
    p = p * r + 0.0013948590286863383;
    p = p * r + 0.008333283518768105;
    p = p * r + 0.041666218139710595;
    p = p * r + 0.1666666678638044;
    p = p * r + 0.5000000107793876;
    p = p * r + 0.9999999999955055;
    p = p * r + 0.9999999999595294;
    scale.bits = (integer.bits + 1023u) << 52;
    return p * scale.value;
}

/* e^(x + rest) in float for -87 <= x <= 88 and a rest that is small beside 1: relative error below 1.2 units in the
 * last place. As above, with ln 2 in two parts, of which the first has few enough bits for n times it to be exact. */
FUSE_INLINE float fuse_exp_float_between(float x, float rest)
{
    const float shift = 0x1.8p23f;
    union {
        float value;
        uint32_t bits;
    } integer, scale;
    integer.value = x * 1.44269504f + shift;
    const float n = integer.value - shift;
    const float r = x - n * 0x1.62e4p-1f - n * 1.42860677e-6f + rest;
    float p = 0.0013941119f;
    p = p * r + 0.0083751348f;
    p = p * r + 0.041666353f;
    p = p * r + 0.16666415f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    scale.bits = (integer.bits + 127u) << 23;
    return p * scale.value;
}

/* e^x for x <= 88; below -87 the result stays at the smallest normal numbers. NaN stays NaN. */
FUSE_INLINE float fuse_exp_float(float x)
{
    return fuse_exp_float_between(x < -87.0f ? -87.0f : x, 0.0f);
}

/* The same of an x that only rounding brings above 0, as that of the log of a sum of exponentials does to a score less
 * it: at most 1. */
FUSE_INLINE float fuse_exp_negative(float x)
{
    return fuse_exp_float(x > 0.0f ? 0.0f : x);
}

/* Phi(-|x|), the normal distribution's integral up to there, as *bell times what is returned; *bell = e^(-x^2/2). The
 * form keeps the relative error of far tails: x^2 is taken apart into a square that is exact and a small rest, and the
 * other factor is 1 / (1 + 0.3 |x|) times a polynomial of degree 9 in q = 0.3 |x| / (1 + 0.3 |x|). |x| counts as 13.15
 * past that, where the tail is no normal number any more; and for NaN, of which the caller takes care. The minimum is
 * taken of the bits, for compilers turn comparisons into branches that compute both sides. */
FUSE_INLINE float fuse_normal_tail(float x, float *size, float *bell)
{
    union {
        float value;
        uint32_t bits;
    } u = {x}, coarse;
    u.bits &= 0x7fffffffu;
    u.bits = u.bits < 0x41526666u ? u.bits : 0x41526666u;
    coarse.bits = u.bits & 0xfffff000u;
    const float rest = u.value - coarse.value;
    *size = u.value;
    *bell = fuse_exp_float_between(-0.5f * coarse.value * coarse.value, -0.5f * rest * (u.value + coarse.value));
    const float s = 1.0f / (1.0f + 0.3f * u.value), q = 0.3f * u.value * s;
    float p = 0.020962733f;
    p = p * q + -0.07437277f;
    p = p * q + 0.07292348f;
    p = p * q + 0.0087462615f;
    p = p * q + 0.02398232f;
    p = p * q + -0.13989417f;
    p = p * q + -0.08099651f;
    p = p * q + 0.61814355f;
    p = p * q + -0.8298071f;
    p = p * q + 0.5f;
    return p * s;
}

/* x Phi(x): within 4 units in the last place for |x| < 2, 8 beyond; 0 below -13.15. */
FUSE_INLINE float fuse_gelu(float x)
{
    float size, bell;
    const float factor = fuse_normal_tail(x, &size, &bell);
    const float tail = x < -13.15f ? 0.0f : bell;
    return x < 0.0f ? -size * factor * tail : x * (1.0f - factor * bell);
}

/* d gelu / dx = Phi(x) + x e^(-x^2/2) / sqrt(2 pi): within 4 units in the last place of the larger term. */
FUSE_INLINE float fuse_gelu_slope(float x)
{
    float size, bell;
    const float factor = fuse_normal_tail(x, &size, &bell);
    const float falling = bell * (factor - size * 0.39894228f);
    const float slope = x < 0.0f ? falling : 1.0f - falling;
    return x != x ? x : slope;
}

/* (1 - e^(-2|x|)) / (1 + e^(-2|x|)), and x - x^3/3 where the difference would lose digits. */
FUSE_INLINE float fuse_tanh(float x)
{
    const double d = (double)x, size = fabs(d);
    const double e = fuse_exp(-2.0 * size);
    const double large = (1.0 - e) / (1.0 + e);
    const double small = size - size * size * size * (1.0 / 3.0);
    const double result = size < 1e-3 ? small : large;
    return (float)(d < 0.0 ? -result : result);
}

/* The largest of count >= 1 numbers; where one is NaN, any. In lanes, since a compiler must keep the order of
 * comparisons with NaN otherwise. */
FUSE_INLINE float fuse_largest(const float *x, int64_t count)
{
    enum { LANE_COUNT = 16 };
    const int64_t whole = count / LANE_COUNT * LANE_COUNT;
    float lanes[LANE_COUNT];
    for (int64_t j = 0; j < LANE_COUNT; j++)
        lanes[j] = x[0];
    for (int64_t i = 0; i < whole; i += LANE_COUNT) {
#pragma omp simd
        for (int64_t j = 0; j < LANE_COUNT; j++)
            lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    }
    for (int64_t i = whole; i < count; i++)
        lanes[i - whole] = x[i] > lanes[i - whole] ? x[i] : lanes[i - whole];
    for (int64_t j = 0; j < 8; j++)
        lanes[j] = lanes[j + 8] > lanes[j] ? lanes[j + 8] : lanes[j];
    for (int64_t j = 0; j < 4; j++)
        lanes[j] = lanes[j + 4] > lanes[j] ? lanes[j + 4] : lanes[j];
    const float low = lanes[2] > lanes[0] ? lanes[2] : lanes[0], high = lanes[3] > lanes[1] ? lanes[3] : lanes[1];
    return high > low ? high : low;
}

#endif
