/* What every kernel's text begins with: the form of a kernel, and sums over a block in one fixed order.
 *
 * Kernels are plain CUDA C++ in a subset that a C compiler can read too (tests/gpu emulates a device that way):
 *   - FUSE_KERNEL(name, struct type, arguments) { ... }: one parameter, a struct by value, declared in arguments.h,
 * which the host includes as well;
 *   - grids and blocks of one dimension; blocks of FUSE_BLOCK threads, each of which reaches every barrier;
 *   - FUSE_SYNC() (__syncthreads), FUSE_SHARED (__shared__) arrays of fixed size at the top of a kernel, 48 KiB in all;
 *     of mathematical functions sqrtf, fabsf, fabs, sqrt and log, the rest from cpu/float_math.h; no warp intrinsics,
 * no atomics, no dynamic shared memory;
 *   - no templates, classes, references or overloads; bfloat16 is its 16 bits in an unsigned short.
 * A program for NVRTC is arguments.h, kernel.h, cpu/float_math.h (less its #include lines) and kernels, one text behind
 * the other, without headers; whoever defines FUSE_KERNEL before defines all that stands between #ifndef and #endif.
 * All is compiled without contraction into fused multiply-adds (--fmad=false). The order of a sum depends on sizes
 * alone, so the same input gives the same bits every time. */
#ifndef FUSE_KERNEL

#pragma nv_diag_suppress 177 /* a program need not use all functions of this file */

/* NVRTC has no standard headers. */
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
/* What <stdbool.h> and <math.h> make of a rule's text before it gets here. */
typedef bool _Bool;
#define __builtin_inff() (__int_as_float(0x7f800000))
#define __builtin_inf() (__longlong_as_double(0x7ff0000000000000ll))
#define __builtin_nanf(text) (__int_as_float(0x7fc00000))

#define FUSE_KERNEL(name, type, arguments) extern "C" __global__ void name(const type arguments)
#define FUSE_DEVICE static __device__ __forceinline__
#define FUSE_SHARED __shared__
#define FUSE_SYNC() __syncthreads()
#define FUSE_THREAD ((int)threadIdx.x)
#define FUSE_BLOCK_INDEX ((long long)blockIdx.x)
#define FUSE_BLOCK_COUNT ((long long)gridDim.x)

#endif

/* For loops over elements that are spread over the whole grid. */
#define FUSE_FIRST (FUSE_BLOCK_INDEX * FUSE_BLOCK + FUSE_THREAD)
#define FUSE_STRIDE (FUSE_BLOCK_COUNT * FUSE_BLOCK)

/* Threads of a block each bring one value; all of them get the sum. cells: (FUSE_BLOCK), shared. Few barriers: 16
 * threads sum 16 values each, then every thread the 16 sums. */
#define FUSE_PARTS 16
FUSE_DEVICE double fuse_block_sum(double value, double *cells)
{
    FUSE_SYNC(); /* whoever read an earlier result is done */
    cells[FUSE_THREAD] = value;
    FUSE_SYNC();
    if (FUSE_THREAD < FUSE_PARTS)
        for (int i = FUSE_THREAD + FUSE_PARTS; i < FUSE_BLOCK; i += FUSE_PARTS)
            cells[FUSE_THREAD] += cells[i];
    FUSE_SYNC();
    double sum = 0.0;
    for (int i = 0; i < FUSE_PARTS; i++)
        sum += cells[i];
    return sum;
}

/* The same for the largest; where one is NaN, any. */
FUSE_DEVICE double fuse_block_largest(double value, double *cells)
{
    FUSE_SYNC();
    cells[FUSE_THREAD] = value;
    FUSE_SYNC();
    if (FUSE_THREAD < FUSE_PARTS)
        for (int i = FUSE_THREAD + FUSE_PARTS; i < FUSE_BLOCK; i += FUSE_PARTS)
            if (cells[i] > cells[FUSE_THREAD])
                cells[FUSE_THREAD] = cells[i];
    FUSE_SYNC();
    double largest = cells[0];
    for (int i = 1; i < FUSE_PARTS; i++)
        if (cells[i] > largest)
            largest = cells[i];
    return largest;
}

/* Element i of float32 or bfloat16 values. A bfloat16 is the upper half of a float32, rounded to nearest, ties to even;
 * NaN stays NaN. */
FUSE_DEVICE float fuse_get(const void *values, long long i, int is_bfloat16)
{
    union {
        float value;
        uint32_t bits;
    } wide;
    if (!is_bfloat16)
        return ((const float *)values)[i];
    wide.bits = (uint32_t)((const unsigned short *)values)[i] << 16;
    return wide.value;
}

FUSE_DEVICE unsigned short fuse_bfloat16(float value)
{
    union {
        float value;
        uint32_t bits;
    } wide;
    wide.value = value;
    if (value != value)
        return (unsigned short)(wide.bits >> 16 | 0x40u);
    return (unsigned short)((wide.bits + 0x7fffu + (wide.bits >> 16 & 1u)) >> 16);
}

FUSE_DEVICE void fuse_put(void *values, long long i, float value, int is_bfloat16)
{
    if (is_bfloat16)
        ((unsigned short *)values)[i] = fuse_bfloat16(value);
    else
        ((float *)values)[i] = value;
}

/* Stores a result, or adds it to what is there. */
FUSE_DEVICE void fuse_give(void *values, long long i, float value, int is_bfloat16, int adds)
{
    fuse_put(values, i, adds ? fuse_get(values, i, is_bfloat16) + value : value, is_bfloat16);
}

/* Philox 4x32-10, as runtime/base/random.c: number `index` of (seed, stream), in [0, 1). */
FUSE_DEVICE float fuse_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)(index / 4), c1 = (uint32_t)(index / 4 >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * c0, product1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t next0 = (uint32_t)(product1 >> 32) ^ c1 ^ key0, next2 = (uint32_t)(product0 >> 32) ^ c3 ^ key1;
        c1 = (uint32_t)product1;
        c3 = (uint32_t)product0;
        c0 = next0;
        c2 = next2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    const uint32_t pick = (uint32_t)index % 4;
    const uint32_t word = pick == 0 ? c0 : pick == 1 ? c1 : pick == 2 ? c2 : c3;
    return (float)(word >> 8) * 5.9604644775390625e-08f;
}
