/* Operations on one element at a time; in place is allowed. */

#define A fuse_get(arguments.a, i, arguments.bfloat16 & 1)
#define B(at) fuse_get(arguments.b, at, arguments.bfloat16 & 2)
#define FUSE_ELEMENTWISE(name, expression)                                                                             \
    FUSE_KERNEL(name, struct fuse_elementwise_arguments, arguments)                                                    \
    {                                                                                                                  \
        for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE) {                                        \
            const float a = A;                                                                                         \
            fuse_give(arguments.out, i, (expression), arguments.bfloat16 & FUSE_BFLOAT16_OUT, arguments.adds);         \
        }                                                                                                              \
    }

FUSE_ELEMENTWISE(copy, a)
FUSE_ELEMENTWISE(relu, a <= 0.0f ? 0.0f : a)
FUSE_ELEMENTWISE(relu_dx, B(i) > 0.0f ? a : 0.0f)
FUSE_ELEMENTWISE(gelu, fuse_gelu(a))
FUSE_ELEMENTWISE(gelu_dx, a *fuse_gelu_slope(B(i)))
FUSE_ELEMENTWISE(tanh_forward, fuse_tanh(a))
FUSE_ELEMENTWISE(tanh_dx, a *(1.0f - B(i) * B(i)))
FUSE_ELEMENTWISE(add, a + B(i))
FUSE_ELEMENTWISE(add_period, a + B(i % arguments.period))
FUSE_ELEMENTWISE(scale_values, a *arguments.number)
FUSE_ELEMENTWISE(clamp_values, a > arguments.number ? arguments.number : a < -arguments.number ? -arguments.number : a)
#undef A
#undef B

/* By a factor and not by a choice: what is dropped stays NaN if it was. */
FUSE_KERNEL(dropout, struct fuse_dropout_arguments, arguments)
{
    const float scale = (float)(1.0 / (1.0 - arguments.probability));
    for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE) {
        const float uniform = fuse_random_uniform(arguments.seed, arguments.stream, (uint64_t)i);
        const float factor = (double)uniform < arguments.probability ? 0.0f : scale;
        fuse_give(arguments.y, i, fuse_get(arguments.x, i, arguments.bfloat16 & 1) * factor,
                  arguments.bfloat16 & FUSE_BFLOAT16_OUT, arguments.adds);
    }
}

FUSE_KERNEL(place_rows, struct fuse_rows_arguments, arguments)
{
    const long long chunks = (arguments.columns + FUSE_ROW_CHUNK - 1) / FUSE_ROW_CHUNK;
    for (long long at = FUSE_BLOCK_INDEX; at < arguments.rows * chunks; at += FUSE_BLOCK_COUNT) {
        const long long row = at / chunks, begin = at % chunks * FUSE_ROW_CHUNK;
        const long long end = begin + FUSE_ROW_CHUNK < arguments.columns ? begin + FUSE_ROW_CHUNK : arguments.columns;
        for (long long i = begin + FUSE_THREAD; i < end; i += FUSE_BLOCK) {
            const float value = fuse_get(arguments.from, row * arguments.from_stride + i, arguments.bfloat16 & 1);
            fuse_give(arguments.to, row * arguments.to_stride + i, arguments.bias ? value + arguments.bias[i] : value,
                      arguments.bfloat16 & FUSE_BFLOAT16_OUT, arguments.adds);
        }
    }
}
