#include "product_small.h"

bool fuse_small_product_pays(const struct fuse_product_shape *shape)
{
    return (double)shape->m * (double)shape->n * (double)shape->k <= 4096.0;
}

uint64_t fuse_small_product_workspace_bytes(const struct fuse_product_shape *shape)
{
    (void)shape;
    return 0;
}

void fuse_small_product(const struct fuse_product_shape *shape, int64_t column_begin, int64_t column_end,
                        const float *a, const float *b, const float *bias, float *c, void *workspace)
{
    (void)workspace;
    for (int64_t i = 0; i < shape->m; i++)
        for (int64_t j = column_begin; j < column_end; j++) {
            float sum = 0.0f;
            for (int64_t l = 0; l < shape->k; l++)
                sum += a[i * shape->a_row + l * shape->a_column] * b[l * shape->b_row + j * shape->b_column];
            if (shape->has_bias)
                sum += bias[j];
            float *const out = &c[i * fuse_product_c_row(shape) + j];
            *out = shape->accumulate ? *out + sum : sum;
        }
}
