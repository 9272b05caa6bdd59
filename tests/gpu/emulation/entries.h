/* The prototypes of all entry points, from the backend's own table. */
#ifndef FUSE_TESTS_EMULATION_ENTRIES_H
#define FUSE_TESTS_EMULATION_ENTRIES_H

#include "backends/cuda/driver.h"

#define EMU_PROTOTYPE(result, name, parameters, arguments)                                                             \
    __attribute__((visibility("default"))) result name parameters;
FUSE_DRIVER_CALLS(EMU_PROTOTYPE)
FUSE_CUBLAS_CALLS(EMU_PROTOTYPE)
FUSE_NVRTC_CALLS(EMU_PROTOTYPE)

#endif
