/* Operations on one element at a time; in place is allowed. */

#define FUSE_ELEMENTWISE(name, expression)                                                                             \
    FUSE_KERNEL(name, struct fuse_elementwise_arguments, arguments)                                                    \
    {                                                                                                                  \
        const float *const a = (const float *)arguments.a, *const b = (const float *)arguments.b;                      \
        float *const out = (float *)arguments.out;                                                                     \
        (void)a, (void)b;                                                                                              \
        for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE) {                                        \
            const float value = (expression);                                                                          \
            out[i] = arguments.adds ? out[i] + value : value;                                                          \
        }                                                                                                              \
    }

FUSE_ELEMENTWISE(relu, a[i] <= 0.0f ? 0.0f : a[i])
FUSE_ELEMENTWISE(relu_dx, b[i] > 0.0f ? a[i] : 0.0f)
FUSE_ELEMENTWISE(gelu, fuse_gelu(a[i]))
FUSE_ELEMENTWISE(gelu_dx, a[i] * fuse_gelu_slope(b[i]))
FUSE_ELEMENTWISE(tanh_forward, fuse_tanh(a[i]))
FUSE_ELEMENTWISE(tanh_dx, a[i] * (1.0f - b[i] * b[i]))
FUSE_ELEMENTWISE(add, a[i] + b[i])
FUSE_ELEMENTWISE(add_period, a[i] + b[i % arguments.period])
FUSE_ELEMENTWISE(scale_values, a[i] * arguments.factor)
FUSE_ELEMENTWISE(clamp_values,
                 a[i] > arguments.factor ? arguments.factor : a[i] < -arguments.factor ? -arguments.factor : a[i])

/* A factor instead of a selection: what is dropped stays NaN if it was. */
FUSE_KERNEL(dropout, struct fuse_dropout_arguments, arguments)
{
    const float *const x = (const float *)arguments.x;
    float *const y = (float *)arguments.y;
    const float scale = (float)(1.0 / (1.0 - arguments.probability));
    for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE) {
        const float uniform = fuse_random_uniform(arguments.seed, arguments.stream, (unsigned long long)i);
        const float value = x[i] * ((double)uniform < arguments.probability ? 0.0f : scale);
        y[i] = arguments.adds ? y[i] + value : value;
    }
}
