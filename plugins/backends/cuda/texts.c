/* The files of kernels/ as the build turned them into literals. */
#include "texts.h"

const char fuse_text_arguments[] =
#include "arguments.h.text"
    ;

const char fuse_text_kernel[] =
#include "kernel.h.text"
    ;

const char fuse_text_float_math[] =
#include "float_math.h.text"
    ;

const char fuse_text_elementwise[] =
#include "elementwise.cu.text"
    ;

const char fuse_text_sums[] =
#include "sums.cu.text"
    ;

const char fuse_text_loss[] =
#include "loss.cu.text"
    ;

const char fuse_text_layer_norm[] =
#include "layer_norm.cu.text"
    ;

const char fuse_text_tokens[] =
#include "tokens.cu.text"
    ;

const char fuse_text_attention[] =
#include "attention.cu.text"
    ;

const char fuse_text_update[] =
#include "update.cu.text"
    ;

const char fuse_text_passes[] =
#include "passes.cu.text"
    ;
