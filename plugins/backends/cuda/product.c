#include "product.h"

#include <limits.h>

/* cuBLAS counts columns first: a row-major matrix is its transpose there. So c^T = b^T a^T is asked for, with b as the
 * first factor. */
struct form {
    int first_transpose, second_transpose;
    int first_ld, second_ld;
    int factor_type, result_type, compute_type;
    float alpha, beta;
};

static bool fits(int64_t value)
{
    return value <= INT_MAX;
}

int fuse_product_check(const struct fuse_cuda *cuda, const struct fuse_product *product, struct fuse_error *error)
{
    if (fits(product->m) && fits(product->n) && fits(product->k) && fits(product->a_row) && fits(product->a_column) &&
        fits(product->b_row) && fits(product->b_column) && fits(product->c_row))
        return FUSERUN_OK;
    return cuda->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                            "backend cuda: a product of (%lld, %lld) by (%lld, %lld) is too large for cuBLAS",
                            (long long)product->m, (long long)product->k, (long long)product->k, (long long)product->n);
}

static struct form form_of(const struct fuse_cuda *cuda, const struct fuse_product *product)
{
    const bool is_b_plain = fuse_product_has_rows(product->b_row, product->b_column, product->n);
    const bool is_a_plain = fuse_product_has_rows(product->a_row, product->a_column, product->k);
    return (struct form){
        .first_transpose = is_b_plain ? FUSE_CUBLAS_NO_TRANSPOSE : FUSE_CUBLAS_TRANSPOSE,
        .second_transpose = is_a_plain ? FUSE_CUBLAS_NO_TRANSPOSE : FUSE_CUBLAS_TRANSPOSE,
        .first_ld = (int)(is_b_plain ? product->b_row : product->b_column),
        .second_ld = (int)(is_a_plain ? product->a_row : product->a_column),
        .factor_type = product->is_bfloat16 ? FUSE_CUBLAS_BFLOAT16 : FUSE_CUBLAS_FLOAT32,
        .result_type = product->c_is_bfloat16 ? FUSE_CUBLAS_BFLOAT16 : FUSE_CUBLAS_FLOAT32,
        .compute_type = product->is_bfloat16 ? FUSE_CUBLAS_COMPUTE_FLOAT32 : cuda->compute_type,
        .alpha = 1.0f,
        .beta = product->adds ? 1.0f : 0.0f,
    };
}

static int check(const struct fuse_cuda *cuda, const struct fuse_product *product, int result, struct fuse_error *error)
{
    if (result == FUSE_CUBLAS_SUCCESS)
        return FUSERUN_OK;
    return cuda->host->fail(error, FUSERUN_ERROR_DEVICE, NULL,
                            "CUDA device %d: a product of (%lld, %lld) by (%lld, %lld) failed: cuBLAS status %d",
                            cuda->ordinal, (long long)product->m, (long long)product->k, (long long)product->k,
                            (long long)product->n, result);
}

int fuse_product_run(struct fuse_cuda *cuda, const struct fuse_product *product, const void *a, const void *b, void *c,
                     struct fuse_error *error)
{
    const struct form form = form_of(cuda, product);
    FUSE_TRY(fuse_cuda_begin(cuda, error));
    return check(cuda, product,
                 cuda->driver->cublasGemmEx(cuda->cublas, form.first_transpose, form.second_transpose, (int)product->n,
                                            (int)product->m, (int)product->k, &form.alpha, b, form.factor_type,
                                            form.first_ld, a, form.factor_type, form.second_ld, &form.beta, c,
                                            form.result_type, (int)product->c_row, form.compute_type,
                                            FUSE_CUBLAS_DEFAULT_ALGORITHM),
                 error);
}

int fuse_products_run(struct fuse_cuda *cuda, const struct fuse_product *product, const void *const *a,
                      const void *const *b, void *const *c, int64_t count, struct fuse_error *error)
{
    const struct form form = form_of(cuda, product);
    FUSE_TRY(fuse_cuda_begin(cuda, error));
    return check(cuda, product,
                 cuda->driver->cublasGemmBatchedEx(cuda->cublas, form.first_transpose, form.second_transpose,
                                                   (int)product->n, (int)product->m, (int)product->k, &form.alpha, b,
                                                   form.factor_type, form.first_ld, a, form.factor_type, form.second_ld,
                                                   &form.beta, c, form.result_type, (int)product->c_row, (int)count,
                                                   form.compute_type, FUSE_CUBLAS_DEFAULT_ALGORITHM),
                 error);
}
