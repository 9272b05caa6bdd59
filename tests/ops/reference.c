#include "reference.h"

#include <math.h>
#include <stddef.h>

static void put(double *values, int64_t index, double value)
{
    if (values != NULL)
        values[index] = value;
}

void fuse_reference_linear(int64_t batch, int64_t n, int64_t k, const double *x, const double *w, const double *b,
                           double *y, double *magnitude)
{
    for (int64_t i = 0; i < batch; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = b != NULL ? b[j] : 0.0, size = fabs(sum);
            for (int64_t l = 0; l < k; l++) {
                sum += x[i * k + l] * w[j * k + l];
                size += fabs(x[i * k + l] * w[j * k + l]);
            }
            y[i * n + j] = sum;
            put(magnitude, i * n + j, size);
        }
}

void fuse_reference_linear_dx(int64_t batch, int64_t n, int64_t k, const double *dy, const double *w, double *dx,
                              double *magnitude)
{
    for (int64_t i = 0; i < batch; i++)
        for (int64_t l = 0; l < k; l++) {
            double sum = 0.0, size = 0.0;
            for (int64_t j = 0; j < n; j++) {
                sum += dy[i * n + j] * w[j * k + l];
                size += fabs(dy[i * n + j] * w[j * k + l]);
            }
            dx[i * k + l] = sum;
            put(magnitude, i * k + l, size);
        }
}

void fuse_reference_linear_dw(int64_t batch, int64_t n, int64_t k, const double *dy, const double *x, double *dw,
                              double *magnitude)
{
    for (int64_t j = 0; j < n; j++)
        for (int64_t l = 0; l < k; l++) {
            double sum = 0.0, size = 0.0;
            for (int64_t i = 0; i < batch; i++) {
                sum += dy[i * n + j] * x[i * k + l];
                size += fabs(dy[i * n + j] * x[i * k + l]);
            }
            dw[j * k + l] = sum;
            put(magnitude, j * k + l, size);
        }
}

void fuse_reference_linear_db(int64_t batch, int64_t n, const double *dy, double *db, double *magnitude)
{
    for (int64_t j = 0; j < n; j++) {
        double sum = 0.0, size = 0.0;
        for (int64_t i = 0; i < batch; i++) {
            sum += dy[i * n + j];
            size += fabs(dy[i * n + j]);
        }
        db[j] = sum;
        put(magnitude, j, size);
    }
}

double fuse_reference_relu(double x)
{
    return x > 0.0 ? x : 0.0;
}

double fuse_reference_relu_dx(double dy, double y)
{
    return y > 0.0 ? dy : 0.0;
}

/* x/2 (1 + erf(x / sqrt 2)), by erfc so that the left tail keeps its digits */
double fuse_reference_gelu(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2.0));
}

double fuse_reference_gelu_dx(double dy, double x)
{
    const double pi = 3.14159265358979323846;
    return dy * (0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) / sqrt(2.0 * pi));
}

double fuse_reference_tanh(double x)
{
    return tanh(x);
}

double fuse_reference_tanh_dx(double dy, double y)
{
    return dy * (1.0 - y * y);
}

void fuse_reference_cross_entropy(int64_t batch, int64_t classes, const double *logits, const int64_t *labels,
                                  double smoothing, double scale, double *statistics, double *gradient)
{
    statistics[0] = statistics[1] = 0.0;
    for (int64_t i = 0; i < batch; i++) {
        const double *const x = logits + i * classes;
        int64_t best = 0;
        for (int64_t j = 1; j < classes; j++)
            best = x[j] > x[best] ? j : best;
        double sum = 0.0;
        for (int64_t j = 0; j < classes; j++)
            sum += exp(x[j] - x[best]);
        for (int64_t j = 0; j < classes; j++) {
            const double target = (j == labels[i] ? 1.0 - smoothing : 0.0) + smoothing / (double)classes;
            const double log_p = x[j] - x[best] - log(sum);
            statistics[0] -= target > 0.0 ? target * log_p : 0.0;
            put(gradient, i * classes + j, scale * (exp(log_p) - target));
        }
        statistics[1] += best == labels[i] ? 1.0 : 0.0;
    }
}

void fuse_reference_mse(int64_t count, const double *y, const double *target, double scale, double *statistics,
                        double *gradient)
{
    statistics[0] = statistics[1] = 0.0;
    for (int64_t i = 0; i < count; i++) {
        statistics[0] += (y[i] - target[i]) * (y[i] - target[i]);
        put(gradient, i, 2.0 * scale * (y[i] - target[i]));
    }
}

void fuse_reference_sum(int64_t count, const double *y, double scale, double *statistics, double *gradient)
{
    statistics[0] = statistics[1] = 0.0;
    for (int64_t i = 0; i < count; i++) {
        statistics[0] += y[i];
        put(gradient, i, scale);
    }
}
