/* The ops of fuserun/backend.h as plain loops in double, straight from their definitions: what the backends' kernels
 * are compared with. magnitude, where there is one, gets the sum of the absolute values of the terms of each sum (may
 * be NULL): what a float32 sum's rounding error is proportional to. */
#ifndef FUSE_TESTS_REFERENCE_H
#define FUSE_TESTS_REFERENCE_H

#include <stdint.h>

/* x (B, K), w (N, K), b (N) or NULL, y (B, N), dy (B, N) */
void fuse_reference_linear(int64_t batch, int64_t n, int64_t k, const double *x, const double *w, const double *b,
                           double *y, double *magnitude);
void fuse_reference_linear_dx(int64_t batch, int64_t n, int64_t k, const double *dy, const double *w, double *dx,
                              double *magnitude);
void fuse_reference_linear_dw(int64_t batch, int64_t n, int64_t k, const double *dy, const double *x, double *dw,
                              double *magnitude);
void fuse_reference_linear_db(int64_t batch, int64_t n, const double *dy, double *db, double *magnitude);

double fuse_reference_relu(double x);
double fuse_reference_relu_dx(double dy, double y);
double fuse_reference_gelu(double x);
double fuse_reference_gelu_dx(double dy, double x);
double fuse_reference_tanh(double x);
double fuse_reference_tanh_dx(double dy, double y);

/* statistics (2): the loss's sum and the count of right predictions; gradient may be NULL. */
void fuse_reference_cross_entropy(int64_t batch, int64_t classes, const double *logits, const int64_t *labels,
                                  double smoothing, double scale, double *statistics, double *gradient);
void fuse_reference_mse(int64_t count, const double *y, const double *target, double scale, double *statistics,
                        double *gradient);
void fuse_reference_sum(int64_t count, const double *y, double scale, double *statistics, double *gradient);

/* Transformers (reference_transformer.c). x (B, D), w (D), b (D), mean (B), rstd (B) */
void fuse_reference_layer_norm(int64_t rows, int64_t columns, const double *x, const double *w, const double *b,
                               double eps, double *y, double *mean, double *rstd);
void fuse_reference_layer_norm_dx(int64_t rows, int64_t columns, const double *dy, const double *x, const double *w,
                                  const double *mean, const double *rstd, double *dx, double *magnitude);
void fuse_reference_layer_norm_dw(int64_t rows, int64_t columns, const double *dy, const double *x, const double *mean,
                                  const double *rstd, double *dw, double *magnitude);

/* qkv (B, S, 3 H d), y (B, S, H d), lse (B, H, S); factors (B, H, S, S): what each probability is multiplied by, or
 * NULL. magnitude of dqkv. */
struct fuse_reference_heads {
    int64_t batch, tokens, heads, head_width;
    const double *factors;
};
void fuse_reference_attention(const struct fuse_reference_heads *heads, const double *qkv, double *y, double *lse);
void fuse_reference_attention_dx(const struct fuse_reference_heads *heads, const double *dy, const double *qkv,
                                 const double *y, const double *lse, double *dqkv, double *magnitude);

/* x (B, C, H, W) -> y (B, (H/p)(W/p), C p p) */
void fuse_reference_patches(int64_t batch, int64_t channels, int64_t rows, int64_t columns, int64_t patch,
                            const double *x, double *y);
/* x (B, S, D), token (D), y (B, S + 1, D) */
void fuse_reference_prepend(int64_t batch, int64_t tokens, int64_t width, const double *x, const double *token,
                            double *y);
void fuse_reference_prepend_dx(int64_t batch, int64_t tokens, int64_t width, const double *dy, double *dx);
void fuse_reference_prepend_dw(int64_t batch, int64_t tokens, int64_t width, const double *dy, double *dtoken);
/* x (B, N), p (N) */
void fuse_reference_add_batch(int64_t batch, int64_t count, const double *x, const double *p, double *y);
void fuse_reference_add_batch_dw(int64_t batch, int64_t count, const double *dy, double *dp);
/* x (B, S, D), y (B, D) */
void fuse_reference_select(int64_t batch, int64_t tokens, int64_t width, int64_t index, const double *x, double *y);
void fuse_reference_select_dx(int64_t batch, int64_t tokens, int64_t width, int64_t index, const double *dy,
                              double *dx);

#endif
