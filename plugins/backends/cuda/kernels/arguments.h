/* The one argument of each kernel. Read by the C compiler for the host and by NVRTC for the device: pointers, floats,
 * doubles, ints and long longs only, which are laid out alike in both. */
#ifndef FUSE_CUDA_ARGUMENTS_H
#define FUSE_CUDA_ARGUMENTS_H

/* out = f(a, b), or out += f(a, b). In add_bias and add_batch element i of a meets element i % period of b. */
struct fuse_elementwise_arguments {
    const void *a, *b;
    void *out;
    long long count;
    long long period;
    int adds;
    int reserved;
    float factor; /* scale_values, clamp_values: the factor or the limit */
    int reserved2;
};

/* Element i of the whole is dropped if random number i of (seed, stream) is below probability. */
struct fuse_dropout_arguments {
    const void *x;
    void *y;
    long long count;
    unsigned long long seed, stream;
    double probability;
    int adds;
    int reserved;
};

#endif
