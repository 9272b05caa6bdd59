/* The kernels' sources, for NVRTC. */
#ifndef FUSE_CUDA_TEXTS_H
#define FUSE_CUDA_TEXTS_H

/* What every program begins with: arguments.h, kernel.h and cpu/float_math.h, in this order. */
extern const char fuse_text_arguments[], fuse_text_kernel[], fuse_text_float_math[];

extern const char fuse_text_elementwise[], fuse_text_sums[], fuse_text_loss[], fuse_text_layer_norm[],
    fuse_text_tokens[], fuse_text_attention[];

/* The program of all kernels but updates. */
#define FUSE_KERNELS_PROGRAM                                                                                           \
    fuse_text_arguments, fuse_text_kernel, fuse_text_float_math, fuse_text_elementwise, fuse_text_sums,                \
        fuse_text_loss, fuse_text_layer_norm, fuse_text_tokens, fuse_text_attention

/* What stands before and behind an optimizer's rule (update.c). */
extern const char fuse_text_update[];

/* The program of a rule over whole parameters, with what rule_text.c made of its passes. */
extern const char fuse_text_passes[];
#define FUSE_PASSES_PROGRAM(text) fuse_text_arguments, fuse_text_kernel, fuse_text_passes, text

#endif
