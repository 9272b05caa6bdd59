/* Passes of rules over whole parameters. For pass `index` rule_text.c has made
 *     void fuse_pass_element_##index(const struct fuse_pass_arguments *call, long long row, long long column)
 * or, of one that sums,
 *     double fuse_pass_value_##index(call, row, column)     void fuse_pass_result_##index(call, long long at, double sum)
 * and sets FUSE_PASS_... (index) behind them, which make the kernels pass_##index and, for a sum over all, total_##index. */

#define FUSE_PASS_ELEMENTS(index)                                                                                      \
    FUSE_KERNEL(pass_##index, struct fuse_pass_arguments, arguments)                                                   \
    {                                                                                                                  \
        const long long count = arguments.matrices * arguments.rows * arguments.columns;                               \
        if (*arguments.noticed != FUSE_NOTHING)                                                                        \
            return;                                                                                                    \
        for (long long i = FUSE_FIRST; i < count; i += FUSE_STRIDE)                                                    \
            fuse_pass_element_##index(&arguments, i / arguments.columns, i % arguments.columns);                       \
    }

/* A block a row. */
#define FUSE_PASS_OVER_ROW(index, take)                                                                                \
    FUSE_KERNEL(pass_##index, struct fuse_pass_arguments, arguments)                                                   \
    {                                                                                                                  \
        FUSE_SHARED double cells[FUSE_BLOCK];                                                                          \
        const long long row = FUSE_BLOCK_INDEX;                                                                        \
        double sum = 0.0;                                                                                              \
        if (*arguments.noticed != FUSE_NOTHING)                                                                        \
            return;                                                                                                    \
        for (long long column = FUSE_THREAD; column < arguments.columns; column += FUSE_BLOCK)                         \
            sum += fuse_pass_value_##index(&arguments, row, column);                                                   \
        sum = fuse_block_sum(sum, cells);                                                                              \
        if (FUSE_THREAD == 0)                                                                                          \
            take;                                                                                                      \
    }

#define FUSE_PASS_ROWS(index) FUSE_PASS_OVER_ROW(index, fuse_pass_result_##index(&arguments, row, sum))

/* Each row's sum, then the sum of these, by one block. */
#define FUSE_PASS_ALL(index)                                                                                           \
    FUSE_PASS_OVER_ROW(index, arguments.sums[row] = sum)                                                               \
    FUSE_KERNEL(total_##index, struct fuse_pass_arguments, arguments)                                                  \
    {                                                                                                                  \
        FUSE_SHARED double cells[FUSE_BLOCK];                                                                          \
        double sum = 0.0;                                                                                              \
        if (*arguments.noticed != FUSE_NOTHING)                                                                        \
            return;                                                                                                    \
        for (long long row = FUSE_THREAD; row < arguments.matrices * arguments.rows; row += FUSE_BLOCK)                \
            sum += arguments.sums[row];                                                                                \
        sum = fuse_block_sum(sum, cells);                                                                              \
        if (FUSE_THREAD == 0)                                                                                          \
            fuse_pass_result_##index(&arguments, 0, sum);                                                              \
    }

/* A block has 32 columns of those of all matrices side by side, each summed by 8 threads: thread t has column t % 32,
 * and every 8th of its matrix's rows from t / 32 on. */
#define FUSE_PASS_COLUMNS(index)                                                                                       \
    FUSE_KERNEL(pass_##index, struct fuse_pass_arguments, arguments)                                                   \
    {                                                                                                                  \
        FUSE_SHARED double cells[FUSE_BLOCK];                                                                          \
        const long long at = FUSE_BLOCK_INDEX * 32 + FUSE_THREAD % 32;                                                 \
        const long long first_row = at / arguments.columns * arguments.rows;                                           \
        double sum = 0.0;                                                                                              \
        if (*arguments.noticed != FUSE_NOTHING)                                                                        \
            return;                                                                                                    \
        if (at < arguments.matrices * arguments.columns)                                                               \
            for (long long row = FUSE_THREAD / 32; row < arguments.rows; row += FUSE_BLOCK / 32)                       \
                sum += fuse_pass_value_##index(&arguments, first_row + row, at % arguments.columns);                   \
        cells[FUSE_THREAD] = sum;                                                                                      \
        FUSE_SYNC();                                                                                                   \
        if (FUSE_THREAD >= 32 || at >= arguments.matrices * arguments.columns)                                         \
            return;                                                                                                    \
        for (int lane = 1; lane < FUSE_BLOCK / 32; lane++)                                                             \
            sum += cells[lane * 32 + FUSE_THREAD];                                                                     \
        fuse_pass_result_##index(&arguments, at, sum);                                                                 \
    }
