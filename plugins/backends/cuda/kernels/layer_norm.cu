/* Layer normalization (Ba, Kiros, Hinton 2016), a row a block: y = (x - mean) rstd w + b, rstd = 1 / sqrt(variance +
 * eps). The sums are in double, in two passes, so that a mean far from zero costs nothing. */

FUSE_KERNEL(layer_norm, struct fuse_layer_norm_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long columns = arguments.columns, row = FUSE_BLOCK_INDEX, first = row * columns;
    double sum = 0.0, squares = 0.0;
    for (long long i = FUSE_THREAD; i < columns; i += FUSE_BLOCK)
        sum += (double)fuse_get(arguments.x, first + i, arguments.bfloat16 & 1);
    const double center = fuse_block_sum(sum, cells) / (double)columns;
    for (long long i = FUSE_THREAD; i < columns; i += FUSE_BLOCK) {
        const double distance = (double)fuse_get(arguments.x, first + i, arguments.bfloat16 & 1) - center;
        squares += distance * distance;
    }
    const double variance = fuse_block_sum(squares, cells) / (double)columns;
    const float mean = (float)center, rstd = (float)(1.0 / sqrt(variance + arguments.eps));
    if (FUSE_THREAD == 0) {
        arguments.mean[row] = mean;
        arguments.rstd[row] = rstd;
    }
    for (long long i = FUSE_THREAD; i < columns; i += FUSE_BLOCK) {
        const float x = fuse_get(arguments.x, first + i, arguments.bfloat16 & 1);
        fuse_put(arguments.out, first + i, (x - mean) * rstd * arguments.w[i] + arguments.b[i],
                 arguments.bfloat16 & FUSE_BFLOAT16_OUT);
    }
}

/* With g = dy w and n = (x - mean) rstd: dx = rstd (g - avg(g) - n avg(g n)). */
FUSE_KERNEL(layer_norm_dx, struct fuse_layer_norm_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long columns = arguments.columns, row = FUSE_BLOCK_INDEX, first = row * columns;
    const float mean = arguments.mean[row], rstd = arguments.rstd[row];
    double sum = 0.0, product = 0.0;
    for (long long i = FUSE_THREAD; i < columns; i += FUSE_BLOCK) {
        const float g = fuse_get(arguments.dy, first + i, arguments.bfloat16 & 1) * arguments.w[i];
        sum += (double)g;
        product += (double)(g * ((fuse_get(arguments.x, first + i, arguments.bfloat16 & 2) - mean) * rstd));
    }
    const float average = (float)(fuse_block_sum(sum, cells) / (double)columns);
    const float slope = (float)(fuse_block_sum(product, cells) / (double)columns);
    for (long long i = FUSE_THREAD; i < columns; i += FUSE_BLOCK) {
        const float g = fuse_get(arguments.dy, first + i, arguments.bfloat16 & 1) * arguments.w[i];
        const float x = fuse_get(arguments.x, first + i, arguments.bfloat16 & 2);
        fuse_give(arguments.out, first + i, rstd * (g - average - (x - mean) * rstd * slope),
                  arguments.bfloat16 & FUSE_BFLOAT16_OUT, arguments.adds);
    }
}
