/* The files of kernels/ as the build turned them into literals. */
#include "texts.h"

const char fuse_text_kernel[] =
#include "kernel.h.text"
    ;
const char fuse_text_float_math[] =
#include "float_math.h.text"
    ;
const char fuse_text_arguments[] =
#include "arguments.h.text"
    ;
const char fuse_text_elementwise[] =
#include "elementwise.cu.text"
    ;
