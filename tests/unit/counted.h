/* Counts what our code asks of malloc(), calloc() and realloc(). Link with
 * -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free. */
#ifndef FUSE_TESTS_COUNTED_H
#define FUSE_TESTS_COUNTED_H

#include <stddef.h>

extern size_t counted_bytes; /* in all, whatever was freed again; tests set it to 0 */

/* What is held, as the allocator rounds it, and the most that was; tests set the second to the first. */
extern size_t counted_live_bytes, counted_peak_bytes;

#endif
