/* Images as sequences: patches, the class token, positions, and picking one token. An output element a turn. */

#define FUSE_MOVE(from, at)                                                                                            \
    fuse_give(arguments.out, i, fuse_get(from, at, arguments.bfloat16 & 1), arguments.bfloat16 & FUSE_BFLOAT16_OUT,    \
              arguments.adds)

/* A row is one patch in the order (channel, y, x), patches row by row. */
FUSE_KERNEL(patches, struct fuse_tokens_arguments, arguments)
{
    const long long patch = arguments.patch, across = arguments.image_columns / patch;
    for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE) {
        const long long in_patch = i % arguments.width, index = i / arguments.width % arguments.tokens;
        const long long sample = i / (arguments.width * arguments.tokens);
        const long long channel = in_patch / (patch * patch);
        const long long y = index / across * patch + in_patch / patch % patch;
        const long long x = index % across * patch + in_patch % patch;
        FUSE_MOVE(arguments.a,
                  ((sample * arguments.channels + channel) * arguments.image_rows + y) * arguments.image_columns + x);
    }
}

FUSE_KERNEL(prepend, struct fuse_tokens_arguments, arguments)
{
    const long long width = arguments.width, tokens = arguments.tokens;
    for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE) {
        const long long column = i % width, token = i / width % tokens, sample = i / (width * tokens);
        if (token == 0)
            fuse_put(arguments.out, i, fuse_get(arguments.b, column, arguments.bfloat16 & 2),
                     arguments.bfloat16 & FUSE_BFLOAT16_OUT);
        else
            FUSE_MOVE(arguments.a, (sample * (tokens - 1) + token - 1) * width + column);
    }
}

FUSE_KERNEL(prepend_dx, struct fuse_tokens_arguments, arguments)
{
    const long long sample_count = (arguments.tokens - 1) * arguments.width;
    for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE)
        FUSE_MOVE(arguments.a, i + (i / sample_count + 1) * arguments.width);
}

FUSE_KERNEL(select_token, struct fuse_tokens_arguments, arguments)
{
    const long long width = arguments.width;
    for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE)
        FUSE_MOVE(arguments.a, (i / width * arguments.tokens + arguments.index) * width + i % width);
}

FUSE_KERNEL(select_dx, struct fuse_tokens_arguments, arguments)
{
    const long long width = arguments.width, tokens = arguments.tokens;
    for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE) {
        if (i / width % tokens == arguments.index)
            FUSE_MOVE(arguments.a, i / (width * tokens) * width + i % width);
        else if (!arguments.adds)
            fuse_put(arguments.out, i, 0.0f, arguments.bfloat16 & FUSE_BFLOAT16_OUT);
    }
}
