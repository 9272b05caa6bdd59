/* Counts what our code asks of malloc(), calloc() and realloc(). Link with
 * -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc. */
#ifndef FUSE_TESTS_COUNTED_H
#define FUSE_TESTS_COUNTED_H

#include <stddef.h>

extern size_t counted_bytes; /* in all, whatever was freed again; tests set it to 0 */

#endif
