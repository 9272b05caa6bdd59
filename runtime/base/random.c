#include "base/random.h"

#include <math.h>

#define LANES 16 /* blocks that are made side by side */

/* words (4, count): of the blocks from `block` on. Compiled for each count by itself. */
static inline __attribute__((always_inline)) void make_blocks(uint64_t seed, uint64_t stream, uint64_t block,
                                                              const int count, uint32_t *words)
{
    uint32_t *const c0 = words, *const c1 = c0 + count, *const c2 = c1 + count, *const c3 = c2 + count;
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < count; i++) {
        c0[i] = (uint32_t)(block + (uint64_t)i);
        c1[i] = (uint32_t)((block + (uint64_t)i) >> 32);
        c2[i] = (uint32_t)stream;
        c3[i] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < count; i++) {
            const uint64_t product0 = (uint64_t)0xD2511F53u * c0[i], product1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(product1 >> 32) ^ c1[i] ^ key0;
            c2[i] = (uint32_t)(product0 >> 32) ^ c3[i] ^ key1;
            c1[i] = (uint32_t)product1;
            c3[i] = (uint32_t)product0;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

void fuse_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4])
{
    make_blocks(seed, stream, block, 1, words);
}

uint64_t fuse_random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    fuse_random_block(seed, stream, index / 2, words);
    const uint32_t *pair = words + 2 * (index % 2);
    return (uint64_t)pair[1] << 32 | pair[0];
}

static inline float uniform_of(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

static void draw_singly(uint64_t seed, uint64_t stream, uint64_t first, float *values, size_t count)
{
    uint32_t words[4] = {0};
    for (size_t i = 0; i < count; i++) {
        const uint64_t index = first + i;
        if (i == 0 || index % 4 == 0)
            fuse_random_block(seed, stream, index / 4, words);
        values[i] = uniform_of(words[index % 4]);
    }
}

void fuse_random_uniform(uint64_t seed, uint64_t stream, uint64_t first, float *values, size_t count)
{
    const size_t to_block = (size_t)((4 - first % 4) % 4), head = to_block < count ? to_block : count;
    size_t at = head;
    draw_singly(seed, stream, first, values, head);
    /* past the last index follows the first: singly */
    for (; count - at >= 4 * LANES && first + at <= UINT64_MAX - 4 * LANES; at += 4 * LANES) {
        uint32_t words[4 * LANES];
        make_blocks(seed, stream, (first + at) / 4, LANES, words);
        for (int i = 0; i < LANES; i++)
            for (int word = 0; word < 4; word++)
                values[at + (size_t)(4 * i + word)] = uniform_of(words[word * LANES + i]);
    }
    if (at < count)
        draw_singly(seed, stream, first + at, values + at, count - at);
}

double fuse_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint64_t bits = fuse_random_bits(seed, stream, index);
    const double radius = ((double)(uint32_t)bits + 1.0) * 0x1p-32; /* in (0, 1] */
    const double angle = (double)(bits >> 32) * 0x1p-32;
    return sqrt(-2.0 * log(radius)) * cos(2.0 * 3.14159265358979323846 * angle);
}
