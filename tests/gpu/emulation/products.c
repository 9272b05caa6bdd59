/* Matrix products in plain loops. A real library picks another kernel for another shape, and with it another order of
 * summation: here each element's sum is split in as many parts as the shape says, so that code which expects a part of
 * a product to have the bits of the whole is found out. */
#include "emulation.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 5

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* To `kept` bits of the fraction, to nearest, ties to even; NaN and infinity stay. */
static float rounded(float value, int kept)
{
    const uint32_t bits = bits_of_float(value), dropped = 23u - (uint32_t)kept;
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return value;
    const uint32_t half = (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1u);
    return float_of_bits((bits + half) >> dropped << dropped);
}

static float load(enum emu_type type, const void *data, int64_t index)
{
    float value;
    uint16_t half;
    if (type == EMU_FLOAT32) {
        memcpy(&value, (const char *)data + index * 4, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)data + index * 2, sizeof half);
    return float_of_bits((uint32_t)half << 16);
}

static void store(enum emu_type type, void *data, int64_t index, float value)
{
    if (type == EMU_FLOAT32) {
        memcpy((char *)data + index * 4, &value, sizeof value);
        return;
    }
    const bool is_nan = value != value;
    const uint16_t half = is_nan ? 0x7fff : (uint16_t)(bits_of_float(rounded(value, 7)) >> 16);
    memcpy((char *)data + index * 2, &half, sizeof half);
}

/* Vector `index` of op(a)'s rows or of op(b)'s columns, k long, as float. */
static void gather(const struct emu_matrix *matrix, bool is_along_column, const void *data, int64_t index, int64_t k,
                   bool rounds_to_tf32, float *vector)
{
    for (int64_t i = 0; i < k; i++) {
        const float value =
            load(matrix->type, data, is_along_column ? index * matrix->stride + i : i * matrix->stride + index);
        vector[i] = rounds_to_tf32 ? rounded(value, 10) : value;
    }
}

static float dot(const float *a, const float *b, int64_t k, int64_t parts, bool rounds_parts)
{
    float sums[MAX_PARTS] = {0};
    for (int64_t part = 0; part < parts; part++)
        for (int64_t i = k * part / parts; i < k * (part + 1) / parts; i++)
            sums[part] += a[i] * b[i];
    for (int64_t part = 0; part < parts && rounds_parts; part++)
        sums[part] = rounded(sums[part], 7);
    for (int64_t part = 1; part < parts; part++)
        sums[0] += sums[part];
    return sums[0];
}

void emu_product_run(const struct emu_product *p, const void *a, const void *b, void *c)
{
    const int64_t parts = 1 + (p->m * 7 + p->n * 3 + p->k) % MAX_PARTS;
    const bool rounds_parts = p->c.type == EMU_BFLOAT16 && p->reduces_in_c;
    float *const rows = malloc((size_t)(p->m * p->k + p->k + 1) * sizeof *rows);
    if (rows == NULL)
        emu_give_up("no host memory for a product");
    float *const column = rows + p->m * p->k;
    for (int64_t row = 0; row < p->m; row++)
        gather(&p->a, p->a.is_transposed, a, row, p->k, p->rounds_to_tf32, rows + row * p->k);
    for (int64_t j = 0; j < p->n; j++) {
        gather(&p->b, !p->b.is_transposed, b, j, p->k, p->rounds_to_tf32, column);
        for (int64_t i = 0; i < p->m; i++) {
            const int64_t at = j * p->c.stride + i;
            float value = p->alpha * dot(rows + i * p->k, column, p->k, parts, rounds_parts);
            if (p->beta != 0.0f) /* what is not read may be NaN */
                value += p->beta * load(p->c.type, c, at);
            store(p->c.type, c, at, value);
        }
    }
    free(rows);
}
