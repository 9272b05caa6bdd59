#include "reference.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

void fuse_reference_layer_norm(int64_t rows, int64_t columns, const double *x, const double *w, const double *b,
                               double eps, double *y, double *mean, double *rstd)
{
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0.0, squares = 0.0;
        for (int64_t j = 0; j < columns; j++)
            sum += x[i * columns + j];
        mean[i] = sum / (double)columns;
        for (int64_t j = 0; j < columns; j++)
            squares += (x[i * columns + j] - mean[i]) * (x[i * columns + j] - mean[i]);
        rstd[i] = 1.0 / sqrt(squares / (double)columns + eps);
        for (int64_t j = 0; j < columns; j++)
            y[i * columns + j] = (x[i * columns + j] - mean[i]) * rstd[i] * w[j] + b[j];
    }
}

void fuse_reference_layer_norm_dx(int64_t rows, int64_t columns, const double *dy, const double *x, const double *w,
                                  const double *mean, const double *rstd, double *dx, double *magnitude)
{
    const double count = (double)columns;
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0.0, product = 0.0, sizes = 0.0, product_sizes = 0.0;
        for (int64_t j = 0; j < columns; j++) {
            const double g = dy[i * columns + j] * w[j], n = (x[i * columns + j] - mean[i]) * rstd[i];
            sum += g;
            product += g * n;
            sizes += fabs(g);
            product_sizes += fabs(g * n);
        }
        for (int64_t j = 0; j < columns; j++) {
            const double g = dy[i * columns + j] * w[j], n = (x[i * columns + j] - mean[i]) * rstd[i];
            dx[i * columns + j] = rstd[i] * (g - sum / count - n * product / count);
            if (magnitude != NULL)
                magnitude[i * columns + j] = rstd[i] * (fabs(g) + sizes / count + fabs(n) * product_sizes / count);
        }
    }
}

void fuse_reference_layer_norm_dw(int64_t rows, int64_t columns, const double *dy, const double *x, const double *mean,
                                  const double *rstd, double *dw, double *magnitude)
{
    for (int64_t j = 0; j < columns; j++) {
        double sum = 0.0, size = 0.0;
        for (int64_t i = 0; i < rows; i++) {
            const double term = dy[i * columns + j] * (x[i * columns + j] - mean[i]) * rstd[i];
            sum += term;
            size += fabs(term);
        }
        dw[j] = sum;
        if (magnitude != NULL)
            magnitude[j] = size;
    }
}

/* Where element 0 of a head's row lies: third 0, 1, 2 is q, k, v. */
static int64_t place(const struct fuse_reference_heads *h, int64_t sample, int64_t row, int64_t third, int64_t head)
{
    const int64_t width = h->heads * h->head_width;
    return ((sample * h->tokens + row) * 3 + third) * width + head * h->head_width;
}

static int64_t output_place(const struct fuse_reference_heads *h, int64_t sample, int64_t row, int64_t head)
{
    return (sample * h->tokens + row) * h->heads * h->head_width + head * h->head_width;
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static double score(const struct fuse_reference_heads *h, const double *qkv, int64_t sample, int64_t head, int64_t i,
                    int64_t j)
{
    return dot(qkv + place(h, sample, i, 0, head), qkv + place(h, sample, j, 1, head), h->head_width) /
           sqrt((double)h->head_width);
}

static double factor(const struct fuse_reference_heads *h, int64_t sample, int64_t head, int64_t i, int64_t j)
{
    return h->factors == NULL ? 1.0 : h->factors[((sample * h->heads + head) * h->tokens + i) * h->tokens + j];
}

void fuse_reference_attention(const struct fuse_reference_heads *h, const double *qkv, double *y, double *lse)
{
    for (int64_t b = 0; b < h->batch; b++)
        for (int64_t head = 0; head < h->heads; head++)
            for (int64_t i = 0; i < h->tokens; i++) {
                double largest = -INFINITY, sum = 0.0;
                for (int64_t j = 0; j < h->tokens; j++)
                    largest = fmax(largest, score(h, qkv, b, head, i, j));
                for (int64_t j = 0; j < h->tokens; j++)
                    sum += exp(score(h, qkv, b, head, i, j) - largest);
                lse[(b * h->heads + head) * h->tokens + i] = largest + log(sum);
                double *const out = y + output_place(h, b, i, head);
                memset(out, 0, (size_t)h->head_width * sizeof(out[0]));
                for (int64_t j = 0; j < h->tokens; j++) {
                    const double p = exp(score(h, qkv, b, head, i, j) - largest) / sum * factor(h, b, head, i, j);
                    for (int64_t d = 0; d < h->head_width; d++)
                        out[d] += p * qkv[place(h, b, j, 2, head) + d];
                }
            }
}

void fuse_reference_attention_dx(const struct fuse_reference_heads *h, const double *dy, const double *qkv,
                                 const double *y, const double *lse, double *dqkv, double *magnitude)
{
    const int64_t n = h->tokens, width = h->head_width;
    const size_t bytes = (size_t)(h->batch * n * 3 * h->heads * width) * sizeof(dqkv[0]);
    const double scale = 1.0 / sqrt((double)width);
    memset(dqkv, 0, bytes);
    if (magnitude != NULL)
        memset(magnitude, 0, bytes);
    for (int64_t b = 0; b < h->batch; b++)
        for (int64_t head = 0; head < h->heads; head++)
            for (int64_t i = 0; i < n; i++) {
                const double *const g = dy + output_place(h, b, i, head), *const out = y + output_place(h, b, i, head);
                double sum = 0.0, sum_size = 0.0;
                for (int64_t d = 0; d < width; d++) {
                    sum += g[d] * out[d];
                    sum_size += fabs(g[d] * out[d]);
                }
                for (int64_t j = 0; j < n; j++) {
                    const double p = exp(score(h, qkv, b, head, i, j) - lse[(b * h->heads + head) * n + i]);
                    const double f = factor(h, b, head, i, j);
                    const int64_t q = place(h, b, i, 0, head), k = place(h, b, j, 1, head), v = place(h, b, j, 2, head);
                    double dp_size = 0.0;
                    for (int64_t d = 0; d < width; d++)
                        dp_size += fabs(g[d] * qkv[v + d]);
                    const double ds = p * (dot(g, qkv + v, width) * f - sum) * scale;
                    const double ds_size = p * (dp_size * f + sum_size) * scale;
                    for (int64_t d = 0; d < width; d++) {
                        dqkv[v + d] += p * f * g[d];
                        dqkv[q + d] += ds * qkv[k + d];
                        dqkv[k + d] += ds * qkv[q + d];
                        if (magnitude != NULL) {
                            magnitude[v + d] += fabs(p * f * g[d]);
                            magnitude[q + d] += fabs(ds_size * qkv[k + d]);
                            magnitude[k + d] += fabs(ds_size * qkv[q + d]);
                        }
                    }
                }
            }
}

void fuse_reference_patches(int64_t batch, int64_t channels, int64_t rows, int64_t columns, int64_t patch,
                            const double *x, double *y)
{
    int64_t at = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t top = 0; top < rows; top += patch)
            for (int64_t left = 0; left < columns; left += patch)
                for (int64_t c = 0; c < channels; c++)
                    for (int64_t i = top; i < top + patch; i++)
                        for (int64_t j = left; j < left + patch; j++)
                            y[at++] = x[((b * channels + c) * rows + i) * columns + j];
}

void fuse_reference_prepend(int64_t batch, int64_t tokens, int64_t width, const double *x, const double *token,
                            double *y)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t s = 0; s <= tokens; s++)
            for (int64_t d = 0; d < width; d++)
                y[(b * (tokens + 1) + s) * width + d] = s == 0 ? token[d] : x[(b * tokens + s - 1) * width + d];
}

void fuse_reference_prepend_dx(int64_t batch, int64_t tokens, int64_t width, const double *dy, double *dx)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t s = 0; s < tokens; s++)
            for (int64_t d = 0; d < width; d++)
                dx[(b * tokens + s) * width + d] = dy[(b * (tokens + 1) + s + 1) * width + d];
}

void fuse_reference_prepend_dw(int64_t batch, int64_t tokens, int64_t width, const double *dy, double *dtoken)
{
    for (int64_t d = 0; d < width; d++) {
        dtoken[d] = 0.0;
        for (int64_t b = 0; b < batch; b++)
            dtoken[d] += dy[b * (tokens + 1) * width + d];
    }
}

void fuse_reference_add_batch(int64_t batch, int64_t count, const double *x, const double *p, double *y)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < count; i++)
            y[b * count + i] = x[b * count + i] + p[i];
}

void fuse_reference_add_batch_dw(int64_t batch, int64_t count, const double *dy, double *dp)
{
    for (int64_t i = 0; i < count; i++) {
        dp[i] = 0.0;
        for (int64_t b = 0; b < batch; b++)
            dp[i] += dy[b * count + i];
    }
}

void fuse_reference_select(int64_t batch, int64_t tokens, int64_t width, int64_t index, const double *x, double *y)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t d = 0; d < width; d++)
            y[b * width + d] = x[(b * tokens + index) * width + d];
}

void fuse_reference_select_dx(int64_t batch, int64_t tokens, int64_t width, int64_t index, const double *dy, double *dx)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t s = 0; s < tokens; s++)
            for (int64_t d = 0; d < width; d++)
                dx[(b * tokens + s) * width + d] = s == index ? dy[b * width + d] : 0.0;
}
