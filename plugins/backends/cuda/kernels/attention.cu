/* Attention between its matrix products, which cuBLAS does for a group of heads at a time. The probabilities of a group
 * exist only in the workspace; the backward pass makes them again from q, k and the row's log of the sum of exponentials
 * (T. Dao et al., "FlashAttention", 2022):
 *   p = exp(q k^T / sqrt d - lse), dv = p^T dy, dp = dy v^T, ds = p (dp - sum(dy y)) / sqrt d, dq = ds k, dk = ds^T q. */

FUSE_KERNEL(attention_pointers, struct fuse_pointers_arguments, arguments)
{
    for (long long at = FUSE_FIRST; at < arguments.arrays * arguments.count; at += FUSE_STRIDE) {
        const int array = (int)(at / arguments.count);
        const long long i = at % arguments.count, task = arguments.first_task + i;
        arguments.table[at] = arguments.base[array] + task / arguments.heads * arguments.sample_bytes[array] +
                              task % arguments.heads * arguments.head_bytes[array] + i * arguments.task_bytes[array];
    }
}

/* What dropout does to a probability; row among all (tasks, tokens). */
FUSE_DEVICE float fuse_drop_factor(const struct fuse_attention_arguments *arguments, long long row, long long column)
{
    if (arguments->probability == 0.0)
        return 1.0f;
    const uint64_t index = (uint64_t)(row * arguments->tokens + column);
    const float uniform = fuse_random_uniform(arguments->seed, arguments->stream, index);
    return (double)uniform < arguments->probability ? 0.0f : (float)(1.0 / (1.0 - arguments->probability));
}

FUSE_KERNEL(attention_softmax, struct fuse_attention_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long tokens = arguments.tokens;
    float *const scores = arguments.scores + FUSE_BLOCK_INDEX * arguments.pitch;
    const long long row = (arguments.first_task + FUSE_BLOCK_INDEX / arguments.rows) * tokens + arguments.first_row +
                          FUSE_BLOCK_INDEX % arguments.rows;
    const float slope = (float)arguments.scale;
    double largest = (double)scores[0], sum = 0.0;
    for (long long i = FUSE_THREAD; i < tokens; i += FUSE_BLOCK)
        largest = (double)scores[i] > largest ? (double)scores[i] : largest;
    largest = fuse_block_largest(largest, cells);
    for (long long i = FUSE_THREAD; i < tokens; i += FUSE_BLOCK)
        sum += (double)fuse_exp_float((scores[i] - (float)largest) * slope);
    sum = fuse_block_sum(sum, cells);
    if (FUSE_THREAD == 0)
        arguments.lse[row] = (float)(largest * arguments.scale + log(sum));
    const float factor = (float)(1.0 / sum);
    /* In bfloat16 a result lies where other threads still have to read: each waits for its neighbours. */
    for (long long first = 0; first < tokens; first += FUSE_BLOCK) {
        const long long i = first + FUSE_THREAD;
        float p = 0.0f;
        if (i < tokens)
            p = fuse_exp_float((scores[i] - (float)largest) * slope) * factor *
                fuse_drop_factor(&arguments, row, i);
        FUSE_SYNC();
        if (i < tokens)
            fuse_put(scores, i, p, arguments.bfloat16 & FUSE_BFLOAT16_OUT);
    }
}

FUSE_KERNEL(attention_softmax_dx, struct fuse_attention_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long tokens = arguments.tokens, width = arguments.heads * arguments.head_width;
    const long long task = arguments.first_task + FUSE_BLOCK_INDEX / arguments.rows;
    const long long token = arguments.first_row + FUSE_BLOCK_INDEX % arguments.rows, row = task * tokens + token;
    const long long out =
        (task / arguments.heads * tokens + token) * width + task % arguments.heads * arguments.head_width;
    float *const scores = arguments.scores + FUSE_BLOCK_INDEX * arguments.pitch;
    float *const dp = arguments.dp + FUSE_BLOCK_INDEX * arguments.pitch;
    const float slope = (float)arguments.scale;
    const double lse = (double)arguments.lse[row];
    double product = 0.0;
    for (long long i = FUSE_THREAD; i < arguments.head_width; i += FUSE_BLOCK)
        product += (double)fuse_get(arguments.dy, out + i, arguments.bfloat16 & 1) *
                   (double)fuse_get(arguments.y, out + i, arguments.bfloat16 & 2);
    const float sum = (float)fuse_block_sum(product, cells);
    for (long long first = 0; first < tokens; first += FUSE_BLOCK) {
        const long long i = first + FUSE_THREAD;
        float p = 0.0f, ds = 0.0f;
        if (i < tokens) {
            const float factor = fuse_drop_factor(&arguments, row, i);
            p = fuse_exp_negative((float)((double)scores[i] * arguments.scale - lse));
            ds = p * (dp[i] * factor - sum) * slope;
            p *= factor;
        }
        FUSE_SYNC();
        if (i < tokens) {
            fuse_put(scores, i, p, arguments.bfloat16 & FUSE_BFLOAT16_OUT);
            fuse_put(dp, i, ds, arguments.bfloat16 & FUSE_BFLOAT16_OUT);
        }
    }
}
