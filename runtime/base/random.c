#include "base/random.h"

#include <math.h>

void fuse_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4])
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
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
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

uint64_t fuse_random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    fuse_random_block(seed, stream, index / 2, words);
    const uint32_t *pair = words + 2 * (index % 2);
    return (uint64_t)pair[1] << 32 | pair[0];
}

void fuse_random_uniform(uint64_t seed, uint64_t stream, uint64_t first, float *values, size_t count)
{
    uint32_t words[4] = {0};
    for (size_t i = 0; i < count; i++) {
        const uint64_t index = first + i;
        if (i == 0 || index % 4 == 0)
            fuse_random_block(seed, stream, index / 4, words);
        values[i] = (float)(words[index % 4] >> 8) * 0x1p-24f;
    }
}

double fuse_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint64_t bits = fuse_random_bits(seed, stream, index);
    const double radius = ((double)(uint32_t)bits + 1.0) * 0x1p-32; /* in (0, 1] */
    const double angle = (double)(bits >> 32) * 0x1p-32;
    return sqrt(-2.0 * log(radius)) * cos(2.0 * 3.14159265358979323846 * angle);
}
