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

#endif
