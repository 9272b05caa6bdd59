/* The kernels' sources, for NVRTC. */
#ifndef FUSE_CUDA_TEXTS_H
#define FUSE_CUDA_TEXTS_H

/* What every program begins with: kernel.h, cpu/float_math.h and arguments.h. */
extern const char fuse_text_kernel[], fuse_text_float_math[], fuse_text_arguments[];

extern const char fuse_text_elementwise[];

#endif
