/* Losses: cross_entropy a row a block, the others a chunk a block. What they leave in partials sum_partials brings
 * together. */

/* With p = softmax(x), s the smoothing and C classes (PyTorch's cross_entropy):
 *   loss = (1 - s) * -log p[label] + s / C * sum of -log p,  d loss / dx = p - ((1 - s) [label] + s / C). */
FUSE_KERNEL(cross_entropy, struct fuse_loss_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long row = FUSE_BLOCK_INDEX, classes = arguments.columns;
    const float *const x = arguments.y + row * classes;
    const long long label = ((const long long *)arguments.target)[row];
    const int is_label = label >= 0 && label < classes; /* the caller has checked; this keeps the read inside x */
    double largest = (double)x[0];
    for (long long i = FUSE_THREAD; i < classes; i += FUSE_BLOCK)
        largest = (double)x[i] > largest ? (double)x[i] : largest;
    const double top = fuse_block_largest(largest, cells);
    long long first = classes; /* the first of the largest, which is the prediction */
    double sum = 0.0, distance = 0.0;
    for (long long i = FUSE_THREAD; i < classes; i += FUSE_BLOCK) {
        const double from_top = (double)x[i] - top;
        first = from_top == 0.0 && i < first ? i : first;
        distance += from_top;
        sum += fuse_exp(from_top);
    }
    const double best = -fuse_block_largest(-(double)first, cells);
    sum = fuse_block_sum(sum, cells);
    distance = fuse_block_sum(distance, cells);
    if (FUSE_THREAD == 0) {
        const double log_sum = log(sum), smoothing = arguments.smoothing;
        double loss = is_label ? log_sum - ((double)x[label] - top) : (sum - sum) / (sum - sum); /* NaN */
        if (smoothing != 0.0)
            loss = (1.0 - smoothing) * loss + smoothing * (log_sum - distance / (double)classes);
        arguments.partials[2 * row] = loss;
        arguments.partials[2 * row + 1] = best == (double)label ? 1.0 : 0.0;
    }
    if (arguments.gradient == 0)
        return;
    const double factor = arguments.scale / sum, off = arguments.scale * arguments.smoothing / (double)classes;
    for (long long i = FUSE_THREAD; i < classes; i += FUSE_BLOCK) {
        const double here = i == label ? arguments.scale * (1.0 - arguments.smoothing) : 0.0;
        arguments.gradient[row * classes + i] = (float)(fuse_exp((double)x[i] - top) * factor - off - here);
    }
}

FUSE_KERNEL(mse, struct fuse_loss_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long begin = FUSE_BLOCK_INDEX * FUSE_LOSS_CHUNK;
    const long long end = begin + FUSE_LOSS_CHUNK < arguments.count ? begin + FUSE_LOSS_CHUNK : arguments.count;
    double sum = 0.0;
    for (long long i = begin + FUSE_THREAD; i < end; i += FUSE_BLOCK) {
        const double difference = (double)arguments.y[i] - (double)((const float *)arguments.target)[i];
        sum += difference * difference;
        if (arguments.gradient != 0)
            arguments.gradient[i] = (float)(difference * (2.0 * arguments.scale));
    }
    sum = fuse_block_sum(sum, cells);
    if (FUSE_THREAD == 0) {
        arguments.partials[2 * FUSE_BLOCK_INDEX] = sum;
        arguments.partials[2 * FUSE_BLOCK_INDEX + 1] = 0.0;
    }
}

FUSE_KERNEL(sum_loss, struct fuse_loss_arguments, arguments)
{
    FUSE_SHARED double cells[FUSE_BLOCK];
    const long long begin = FUSE_BLOCK_INDEX * FUSE_LOSS_CHUNK;
    const long long end = begin + FUSE_LOSS_CHUNK < arguments.count ? begin + FUSE_LOSS_CHUNK : arguments.count;
    double sum = 0.0;
    for (long long i = begin + FUSE_THREAD; i < end; i += FUSE_BLOCK) {
        sum += (double)arguments.y[i];
        if (arguments.gradient != 0)
            arguments.gradient[i] = (float)arguments.scale;
    }
    sum = fuse_block_sum(sum, cells);
    if (FUSE_THREAD == 0) {
        arguments.partials[2 * FUSE_BLOCK_INDEX] = sum;
        arguments.partials[2 * FUSE_BLOCK_INDEX + 1] = 0.0;
    }
}
