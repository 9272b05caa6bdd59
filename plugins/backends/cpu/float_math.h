/* Transcendental functions for float results, computed in double so that the float is within 1 ulp of the true value,
 * written without branches so that loops over them vectorise.
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

/* erfc(z) e^(z^2) for 0 <= z <= 11, relative error below 1e-10: a polynomial of degree 12 in t = (z - 3)/(z + 3) over
 * 1 + 2 z, the form of M. Shepherd and J. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x",
 * Math. Comp. 36 (1981). */
FUSE_INLINE double fuse_scaled_erfc(double z)
{
    const double t = (z - 3.0) / (z + 3.0);
    double p = 3.3348582686619454e-05;
    p = p * t + 0.00012685970772722082;
    p = p * t + -0.0001277800840805051;
    p = p * t + -0.000791368471023742;
    p = p * t + 0.0018943955907603635;
    p = p * t + 0.0025343389311838355;
    p = p * t + -0.023770891597893425;
    p = p * t + 0.06830720794252892;
    p = p * t + -0.11927369546729556;
    p = p * t + 0.12964521317825906;
    p = p * t + -0.04756229114948793;
    p = p * t + -0.13562110716001385;
    p = p * t + 1.25300805824133;
    return p / (1.0 + 2.0 * z);
}

/* Phi(x), the normal distribution's integral up to x, and e^(-x^2/2) in *bell. Phi(-x) = erfc(x / sqrt 2) / 2, without
 * the cancellation of 1 + erf. */
FUSE_INLINE double fuse_normal(double x, double *bell)
{
    const double z = fabs(x) * 0.70710678118654752;
    *bell = fuse_exp(-z * z);
    const double tail = 0.5 * fuse_scaled_erfc(z > 11.0 ? 11.0 : z) * *bell;
    return x < 0.0 ? tail : 1.0 - tail;
}

FUSE_INLINE float fuse_gelu(float x)
{
    double bell;
    return (float)((double)x * fuse_normal((double)x, &bell));
}

/* d gelu / dx = Phi(x) + x e^(-x^2/2) / sqrt(2 pi) */
FUSE_INLINE float fuse_gelu_slope(float x)
{
    double bell;
    const double integral = fuse_normal((double)x, &bell);
    return (float)(integral + (double)x * bell * 0.39894228040143268);
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
    float lanes[8];
    for (int j = 0; j < 8; j++)
        lanes[j] = x[0];
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int j = 0; j < 8; j++)
            lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (; i < count; i++)
        lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    float max = lanes[0];
    for (int j = 1; j < 8; j++)
        max = lanes[j] > max ? lanes[j] : max;
    return max;
}

#endif
