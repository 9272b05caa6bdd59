/* The monotonic clock. */
#ifndef FUSE_BASE_NOW_H
#define FUSE_BASE_NOW_H

#include <stdint.h>

int64_t fuse_now_ns(void);

#endif
