/* What rules over whole parameters share: a sum of squares whose bits do not depend on threads or instruction sets. */
#ifndef FUSE_OPTIMIZERS_TENSOR_PARTS_H
#define FUSE_OPTIMIZERS_TENSOR_PARTS_H

#include "rule_parts.h"

/* In double, over eight lanes in a fixed order. */
static inline double sum_squares(const float *values, int64_t count)
{
    double lanes[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int lane = 0; lane < 8; lane++)
            lanes[lane] += (double)values[i + lane] * (double)values[i + lane];
    for (; i < count; i++)
        lanes[0] += (double)values[i] * (double)values[i];
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

static inline double sum(const double *values, int64_t count)
{
    double total = 0.0;
    for (int64_t i = 0; i < count; i++)
        total += values[i];
    return total;
}

#endif
