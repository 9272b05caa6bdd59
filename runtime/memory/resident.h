/* What the operating system says about this process's memory. */
#ifndef FUSE_MEMORY_RESIDENT_H
#define FUSE_MEMORY_RESIDENT_H

#include <stdint.h>

/* From /proc/self/status, in bytes; 0 where the system does not tell. */
uint64_t fuse_resident_now_bytes(void);
uint64_t fuse_resident_peak_bytes(void);
/* Makes the peak count from now on, where the system allows that. */
void fuse_resident_reset_peak(void);

#endif
