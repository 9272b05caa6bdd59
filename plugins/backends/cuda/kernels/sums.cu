/* Sums in double, each in an order that sizes alone decide. */

/* A block has 32 columns, each summed by 8 threads: thread t has column t % 32, and every 8th row from t / 32 on. */
#define FUSE_COLUMNS 32
#define FUSE_LANES (FUSE_BLOCK / FUSE_COLUMNS)

/* Brings a column's lanes together. Every thread of the block comes here. */
FUSE_DEVICE void fuse_finish_column(const struct fuse_columns_arguments *arguments, long long column, double sum,
                                    double *cells)
{
    cells[FUSE_THREAD] = sum;
    FUSE_SYNC();
    if (FUSE_THREAD >= FUSE_COLUMNS || column >= arguments->columns)
        return;
    for (int lane = 1; lane < FUSE_LANES; lane++)
        sum += cells[lane * FUSE_COLUMNS + FUSE_THREAD];
    arguments->sums[column] = (float)(arguments->adds ? (double)arguments->sums[column] + sum : sum);
}

FUSE_KERNEL(sum_columns, struct fuse_columns_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long column = FUSE_BLOCK_INDEX * FUSE_COLUMNS + FUSE_THREAD % FUSE_COLUMNS;
    double sum = 0.0;
    if (column < arguments.columns)
        for (long long row = FUSE_THREAD / FUSE_COLUMNS; row < arguments.row_count; row += FUSE_LANES)
            sum += (double)fuse_get(arguments.rows, row * arguments.row_stride + column, arguments.bfloat16 & 1);
    fuse_finish_column(&arguments, column, sum, cells);
}

FUSE_KERNEL(layer_norm_dw, struct fuse_columns_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long column = FUSE_BLOCK_INDEX * FUSE_COLUMNS + FUSE_THREAD % FUSE_COLUMNS;
    double sum = 0.0;
    if (column < arguments.columns)
        for (long long row = FUSE_THREAD / FUSE_COLUMNS; row < arguments.row_count; row += FUSE_LANES) {
            const long long at = row * arguments.row_stride + column;
            const float x = fuse_get(arguments.x, at, arguments.bfloat16 & 2);
            sum += (double)(fuse_get(arguments.rows, at, arguments.bfloat16 & 1) *
                            ((x - arguments.mean[row]) * arguments.rstd[row]));
        }
    fuse_finish_column(&arguments, column, sum, cells);
}

FUSE_KERNEL(sum_products, struct fuse_products_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long begin = FUSE_BLOCK_INDEX * FUSE_SUM_CHUNK;
    const long long end = begin + FUSE_SUM_CHUNK < arguments.count ? begin + FUSE_SUM_CHUNK : arguments.count;
    double sum = 0.0, magnitude = 0.0;
    for (long long i = begin + FUSE_THREAD; i < end; i += FUSE_BLOCK) {
        const double term = (double)arguments.a[i] * (double)arguments.b[i];
        sum += term;
        magnitude += fabs(term);
    }
    sum = fuse_block_sum(sum, cells);
    if (arguments.width == 2)
        magnitude = fuse_block_sum(magnitude, cells);
    if (FUSE_THREAD != 0)
        return;
    arguments.partials[FUSE_BLOCK_INDEX * arguments.width] = sum;
    if (arguments.width == 2)
        arguments.partials[FUSE_BLOCK_INDEX * arguments.width + 1] = magnitude;
}

FUSE_DEVICE int fuse_norm_is_good(const struct fuse_norm_arguments *arguments)
{
    const double magnitude = arguments->sums[1];
    return magnitude - magnitude == 0.0 && arguments->sums[0] >= arguments->least_share * magnitude;
}

/* A factor as a product of matrices takes it: in bf16, float32 is rounded first. */
FUSE_DEVICE float fuse_factor(const void *values, long long i, int is_bfloat16, int rounds)
{
    const float value = fuse_get(values, i, is_bfloat16);
    const unsigned short rounded = fuse_bfloat16(value);
    return rounds ? fuse_get(&rounded, 0, 1) : value;
}

/* Elements are summed in float, as a product of matrices does. */
FUSE_KERNEL(norm_rows, struct fuse_norm_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long row = FUSE_BLOCK_INDEX;
    double sum = 0.0;
    if (fuse_norm_is_good(&arguments))
        return;
    for (long long column = FUSE_THREAD; column < arguments.k; column += FUSE_BLOCK) {
        float element = 0.0f;
        for (long long b = 0; b < arguments.batch; b++)
            element += fuse_factor(arguments.dy, b * arguments.n + row, arguments.bfloat16 & 1, arguments.rounds) *
                       fuse_factor(arguments.x, b * arguments.k + column, arguments.bfloat16 & 2, arguments.rounds);
        sum += (double)element * (double)element;
    }
    sum = fuse_block_sum(sum, cells);
    if (FUSE_THREAD == 0)
        arguments.partials[row] = sum;
}

/* One block. */
FUSE_KERNEL(norm_finish, struct fuse_norm_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    double sum = 0.0;
    if (!fuse_norm_is_good(&arguments))
        for (long long row = FUSE_THREAD; row < arguments.n; row += FUSE_BLOCK)
            sum += arguments.partials[row];
    sum = fuse_block_sum(sum, cells);
    if (FUSE_THREAD == 0)
        *arguments.out = fuse_norm_is_good(&arguments) ? arguments.sums[0] : sum;
}

/* One block. */
FUSE_KERNEL(sum_partials, struct fuse_partials_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    for (int part = 0; part < arguments.width; part++) {
        double sum = 0.0;
        for (long long i = FUSE_THREAD; i < arguments.count; i += FUSE_BLOCK)
            sum += arguments.partials[i * arguments.width + part];
        sum = fuse_block_sum(sum, cells);
        if (FUSE_THREAD == 0)
            arguments.sums[part] = arguments.adds ? arguments.sums[part] + sum : sum;
    }
}

/* All who find something leave the same number, so it does not matter who is last. */
FUSE_KERNEL(watch_values, struct fuse_watch_arguments, arguments)
{
    int found = 0;
    for (long long i = FUSE_FIRST; i < arguments.count; i += FUSE_STRIDE) {
        union {
            float value;
            uint32_t bits;
        } u;
        u.value = arguments.values[i];
        found |= (u.bits & 0x7f800000u) == 0x7f800000u;
    }
    if (found && *arguments.noticed == FUSE_NOTHING)
        *arguments.noticed = arguments.number;
}
