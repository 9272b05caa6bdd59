/* bench_kernels THREADS stream                     bytes a second to and from memory, by pattern
 * bench_kernels THREADS products SAMPLES           every linear product of ViT-L/16, and the library's alone, in turn
 * bench_kernels THREADS update RULE.so COUNTxSIZE[,...]   one foreach update of COUNT tensors of SIZE elements, ...
 * bench_kernels THREADS bandwidth RULE.so COUNTxSIZE[,...]   such updates and streams, in turn
 * Prints `name value...` lines. Measures the best of some runs: what the machine can do. */
#include "kernels.h"

#include "base/error.h"
#include "base/random.h"

#include <fuserun/backend.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_TENSORS 4096
#define MOST_THREADS 4096
#define STREAM_FLOATS ((int64_t)256 << 20) /* 1 GiB an array: there are caches of 480 MiB */
/* What a stream moves while it is timed: about as much as an update of ViT-L/16, so that neither finds a quiet moment
 * more easily. */
#define STREAM_BYTES ((int64_t)8 << 30)
#define STREAM_LEAST 1000000 /* elements; fewer stay in caches */
#define STREAM_REPEATS 5
#define REPEATS 7
#define TURNS 12 /* of a product here and by the library */
#define TURN_REPEATS 3

double fuse_bench_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void stop(const char *what)
{
    fprintf(stderr, "bench_kernels: %s\n", what);
    exit(1);
}

static void log_line(enum fuse_log_level level, const char *format, ...)
{
    (void)level, (void)format;
}

static const struct fuse_host host = {
    .struct_size = FUSERUN_STRUCT_SIZE(fuse_host, random_bits),
    .abi_major = FUSERUN_ABI_MAJOR,
    .abi_minor = FUSERUN_ABI_MINOR,
    .log = log_line,
    .fail = fuse_fail,
    .random_uniform = fuse_random_uniform,
    .random_bits = fuse_random_bits,
};

static const void *load(const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, FUSERUN_ENTRY_NAME) : NULL;
    if (symbol == NULL)
        stop(dlerror());
    fuse_plugin_entry *entry;
    memcpy(&entry, &symbol, sizeof entry);
    return entry(&host)->components[0].api;
}

/* An open CPU backend. */
struct device {
    const struct fuse_backend *backend;
    void *instance;
    struct fuse_error error;
};

static void must(const struct device *device, int status)
{
    if (status != FUSERUN_OK)
        stop(device->error.text);
}

static void open_device(struct device *device, uint32_t threads)
{
    const struct fuse_backend_options options = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_options, precision),
                                                 .thread_count = threads,
                                                 .precision = FUSERUN_FLOAT32};
    *device = (struct device){.backend = load(FUSE_CPU_PLUGIN), .error = FUSE_ERROR_INIT};
    must(device, device->backend->open(&host, &options, &device->instance, &device->error));
}

/* The backend's memory, with small numbers of both signs in it. */
static float *new_floats(struct device *device, int64_t count)
{
    void *memory = NULL;
    must(device, device->backend->allocate(device->instance, (uint64_t)count * sizeof(float), &memory, &device->error));
    float *values = memory;
    for (int64_t i = 0; i < count; i++)
        values[i] = fuse_bench_value(i);
    return values;
}

static void free_floats(struct device *device, float *values, int64_t count)
{
    device->backend->release(device->instance, values, (uint64_t)count * sizeof(float));
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

enum { MOST_ARRAYS = 4 };

/* Ways to go through memory: read and write one array or three in place, or three and read a fourth, as an update does;
 * or J. McCalpin's triad. */
struct pattern {
    const char *name;
    int array_count;
    int bytes; /* an element, read and written; not the line that is read only to be written over */
    void (*sweep)(float *const *arrays, int64_t begin, int64_t end);
};

static void sweep_one(float *const *arrays, int64_t begin, int64_t end)
{
    float *const a = arrays[0];
    for (int64_t i = begin; i < end; i++)
        a[i] *= 1.0001f;
}

static void sweep_three(float *const *arrays, int64_t begin, int64_t end)
{
    float *const a = arrays[0], *const b = arrays[1], *const c = arrays[2];
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        a[i] *= 1.0001f;
        b[i] *= 1.0002f;
        c[i] *= 1.0003f;
    }
}

static void sweep_update(float *const *arrays, int64_t begin, int64_t end)
{
    float *const a = arrays[0], *const b = arrays[1], *const c = arrays[2];
    const float *const d = arrays[3];
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        a[i] += 0.5f * d[i];
        b[i] -= 0.5f * d[i];
        c[i] = 0.5f * (c[i] + d[i]);
    }
}

static void sweep_triad(float *const *arrays, int64_t begin, int64_t end)
{
    float *const a = arrays[0];
    const float *const b = arrays[1], *const c = arrays[2];
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        a[i] = b[i] + 0.5f * c[i];
}

static const struct pattern patterns[] = {
    {"one_in_place", 1, 8, sweep_one},
    {"three_in_place", 3, 24, sweep_three},
    {"three_in_place_one_read", 4, 28, sweep_update},
    {"triad", 3, 12, sweep_triad},
};

/* Bytes a second of some sweeps over arrays of `count`. */
static double sweep_rate(const struct pattern *pattern, float *const *arrays, int64_t count, int threads)
{
    const int64_t each = count / threads, bytes = pattern->bytes * each * threads, sweeps = STREAM_BYTES / bytes + 1;
    const double begin = fuse_bench_seconds();
    for (int64_t i = 0; i < sweeps; i++) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int part = 0; part < threads; part++)
            pattern->sweep(arrays, each * part, each * (part + 1));
    }
    return (double)(sweeps * bytes) / (fuse_bench_seconds() - begin);
}

/* The best of the patterns that go through no more arrays than there are, each once. */
static double stream_rate(float *const *arrays, int array_count, int64_t count, int threads)
{
    double best = 0;
    for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++) {
        if (patterns[p].array_count > array_count)
            continue;
        const double rate = sweep_rate(&patterns[p], arrays, count, threads);
        best = rate > best ? rate : best;
    }
    return best;
}

/* The best rate of each pattern; the best of them is what an update is held against. */
static void measure_stream(struct device *device, int threads)
{
    float *arrays[MOST_ARRAYS];
    double best[sizeof(patterns) / sizeof(patterns[0])] = {0};
    for (int i = 0; i < MOST_ARRAYS; i++)
        arrays[i] = new_floats(device, STREAM_FLOATS);
    for (int i = 0; i < STREAM_REPEATS; i++)
        for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++) {
            const double rate = sweep_rate(&patterns[p], arrays, STREAM_FLOATS, threads);
            best[p] = rate > best[p] ? rate : best[p];
        }
    for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++)
        printf("%s %.6g\n", patterns[p].name, best[p]);
    for (int i = 0; i < MOST_ARRAYS; i++)
        free_floats(device, arrays[i], STREAM_FLOATS);
}

/* ---- products ------------------------------------------------------------------------------------------------- */

static struct fuse_operand matrix(int64_t rows, int64_t columns)
{
    return (struct fuse_operand){.dtype = FUSERUN_FLOAT32, .rank = 2, .shape = {rows, columns}};
}

/* The best time of an op on two matrices. */
static double op_seconds(struct device *device, uint32_t kind, struct fuse_operand a, struct fuse_operand b,
                         struct fuse_operand c, float *a_values, float *b_values, float *c_values)
{
    struct fuse_op op = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_op, numbers),
                         .kind = kind,
                         .input_count = 2,
                         .output_count = 1,
                         .inputs = {a, b},
                         .outputs = {c}};
    struct fuse_kernel *kernel = NULL;
    struct fuse_kernel_info info = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_info, workspace_bytes)};
    must(device, device->backend->compile(device->instance, &op, &kernel, &info, &device->error));
    const int64_t workspace_floats = (int64_t)(info.workspace_bytes / sizeof(float)) + 16;
    float *workspace = new_floats(device, workspace_floats);
    void *const inputs[] = {a_values, b_values}, *const outputs[] = {c_values};
    const struct fuse_kernel_call call = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_kernel_call, draw),
                                          .inputs = inputs,
                                          .outputs = outputs,
                                          .workspace = workspace};
    double best = 1e30;
    for (int i = 0; i <= TURN_REPEATS; i++) { /* the first warms up */
        const double begin = fuse_bench_seconds();
        must(device, device->backend->run(device->instance, kernel, &call, &device->error));
        const double taken = fuse_bench_seconds() - begin;
        best = i > 0 && taken < best ? taken : best;
    }
    device->backend->discard(device->instance, kernel);
    free_floats(device, workspace, workspace_floats);
    return best;
}

/* One of a layer's products: c = a b by the backend's op on a and b, and by the library, in turn. */
struct measured {
    const char *what;
    uint32_t kind;
    struct fuse_bench_product product;
    struct fuse_operand a, b, c;
    float *a_values, *b_values, *c_values;
};

static void measure_product(struct device *device, const char *layer, const struct measured *it)
{
    const double flop = 2.0 * (double)it->product.m * (double)it->product.n * (double)it->product.k;
    for (int i = 0; i < TURNS; i++) {
        const double ours = op_seconds(device, it->kind, it->a, it->b, it->c, it->a_values, it->b_values, it->c_values);
        const double library =
            fuse_bench_library_seconds(&it->product, it->a_values, it->b_values, it->c_values, TURN_REPEATS);
        printf("product %s_%s %.6g %.6g\n", layer, it->what, flop / ours, library > 0 ? flop / library : 0);
    }
}

/* y = x w^T, dx = dy w, dw = dy^T x of a layer with w (n, k) and a batch of b rows. */
static void measure_layer(struct device *device, const char *layer, int64_t b, int64_t n, int64_t k)
{
    float *x = new_floats(device, b * k), *w = new_floats(device, n * k), *y = new_floats(device, b * n);
    const struct measured products[] = {
        {"forward", FUSERUN_OP_LINEAR, {b, n, k, false, true}, matrix(b, k), matrix(n, k), matrix(b, n), x, w, y},
        {"dx", FUSERUN_OP_LINEAR_DX, {b, k, n, false, false}, matrix(b, n), matrix(n, k), matrix(b, k), y, w, x},
        {"dw", FUSERUN_OP_LINEAR_DW, {n, k, b, true, false}, matrix(b, n), matrix(b, k), matrix(n, k), y, x, w},
    };
    for (int i = 0; i < 3; i++)
        measure_product(device, layer, &products[i]);
    free_floats(device, x, b * k);
    free_floats(device, w, n * k);
    free_floats(device, y, b * n);
}

/* The layers of ViT-L/16, whose names these are. */
static void measure_products(struct device *device, int64_t samples)
{
    measure_layer(device, "conv_proj", 196 * samples, 1024, 768);
    measure_layer(device, "in_proj", 197 * samples, 3072, 1024);
    measure_layer(device, "out_proj", 197 * samples, 1024, 1024);
    measure_layer(device, "mlp.0", 197 * samples, 4096, 1024);
    measure_layer(device, "mlp.3", 197 * samples, 1024, 4096);
}

/* ---- updates -------------------------------------------------------------------------------------------------- */

struct tensors {
    int64_t counts[MOST_TENSORS];
    int64_t tensor_count, element_count;
};

/* COUNTxSIZE,COUNTxSIZE */
static void read_tensors(const char *text, struct tensors *tensors)
{
    while (*text != '\0') {
        char *end = NULL;
        const long long count = strtoll(text, &end, 10);
        const long long size = *end == 'x' ? strtoll(end + 1, &end, 10) : 0;
        if (count < 1 || size < 1 || tensors->tensor_count + count > MOST_TENSORS || (*end != ',' && *end != '\0'))
            stop("tensors are written COUNTxSIZE,COUNTxSIZE");
        for (long long i = 0; i < count; i++)
            tensors->counts[tensors->tensor_count++] = size;
        tensors->element_count += count * size;
        text = *end == ',' ? end + 1 : end;
    }
}

/* Parameters, gradients and states lie as the program lays them: each kind's tensors one behind the other. With
 * streams, before each update that counts, what they reach at that moment in the very same memory: a cache of hundreds
 * of MiB keeps some of what was used last, and both find as little of it there. */
static void measure_update(struct device *device, const char *rule_file, const char *text, bool has_streams,
                           int threads)
{
    static struct tensors tensors;
    static struct fuse_slice slices[MOST_TENSORS];
    static float *states[MOST_TENSORS][FUSERUN_MAX_STATES];
    read_tensors(text, &tensors);
    if (tensors.element_count < (has_streams ? STREAM_LEAST : 1))
        stop(has_streams ? "a bandwidth wants a million elements at least" : "no elements");
    const struct fuse_optimizer *optimizer = load(rule_file);
    const struct fuse_rule *rule = optimizer->rules[0];
    const double hyper[FUSERUN_MAX_HYPER] = {1e-4, 0.9, 0.999, 1e-8};
    const struct fuse_update update = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_update, numbers),
                                       .hyper_count = FUSERUN_MAX_HYPER,
                                       .hyper = hyper,
                                       .step = 10};
    double exact[FUSERUN_MAX_SCALARS] = {0};
    float scalars[FUSERUN_MAX_SCALARS];
    optimizer->prepare(&update, exact);
    for (int i = 0; i < FUSERUN_MAX_SCALARS; i++)
        scalars[i] = (float)exact[i];
    struct fuse_compiled_rule *compiled = NULL;
    must(device, device->backend->compile_rule(device->instance, rule, &compiled, &device->error));
    float *param = new_floats(device, tensors.element_count), *grad = new_floats(device, tensors.element_count);
    float *state[FUSERUN_MAX_STATES];
    for (uint32_t s = 0; s < rule->state_count; s++)
        state[s] = new_floats(device, tensors.element_count);
    for (uint32_t s = 0; s < rule->state_count; s++)
        for (int64_t i = 0; i < tensors.element_count; i++)
            state[s][i] = state[s][i] < 0 ? -state[s][i] : state[s][i];
    for (int64_t t = 0, at = 0; t < tensors.tensor_count; at += tensors.counts[t++]) {
        for (uint32_t s = 0; s < rule->state_count; s++)
            states[t][s] = state[s] + at;
        slices[t] = (struct fuse_slice){.struct_size = FUSERUN_STRUCT_SIZE(fuse_slice, first),
                                        .state_count = rule->state_count,
                                        .param = param + at,
                                        .grad = grad + at,
                                        .states = states[t],
                                        .scalars = scalars,
                                        .count = tensors.counts[t]};
    }
    /* The last one is only read: a second moment, which has a sign. */
    float *arrays[2 + FUSERUN_MAX_STATES] = {param, grad};
    memcpy(arrays + 2, state, rule->state_count * sizeof state[0]);
    const int inner = tensors.element_count < 1000000 ? 1000 : 1;
    for (int i = 0; i <= REPEATS; i++) { /* the first warms up */
        if (has_streams && i > 0)
            printf("stream_bytes_per_s %.6g\n",
                   stream_rate(arrays, 2 + (int)rule->state_count, tensors.element_count, threads));
        const double begin = fuse_bench_seconds();
        for (int j = 0; j < inner; j++)
            must(device,
                 device->backend->update(device->instance, compiled, slices, tensors.tensor_count, &device->error));
        if (i > 0)
            printf("update_s %.6g\n", (fuse_bench_seconds() - begin) / inner);
    }
    printf("elements %lld\nbytes_per_element %u\n", (long long)tensors.element_count, 12 + 8 * rule->state_count);
    device->backend->discard_rule(device->instance, compiled);
}

int main(int count, char **arguments)
{
    const int threads = count > 2 ? atoi(arguments[1]) : 0;
    const char *command = threads > 0 && threads <= MOST_THREADS ? arguments[2] : "";
    struct device device;
    const bool is_update = strcmp(command, "update") == 0, is_bandwidth = strcmp(command, "bandwidth") == 0;
    if (strcmp(command, "stream") != 0 && !(strcmp(command, "products") == 0 && count == 4) &&
        !((is_update || is_bandwidth) && count == 5))
        stop("THREADS stream | products SAMPLES | update RULE.so COUNTxSIZE,... | bandwidth RULE.so COUNTxSIZE,...");
    open_device(&device, (uint32_t)threads);
    if (strcmp(command, "stream") == 0)
        measure_stream(&device, threads);
    else if (strcmp(command, "products") == 0)
        measure_products(&device, atoll(arguments[3]));
    else
        measure_update(&device, arguments[3], arguments[4], is_bandwidth, threads);
    device.backend->close(device.instance);
    return 0;
}
