/* Opening what must be a file: a FIFO would keep whoever opens it waiting for a writer. */
#ifndef FUSE_BASE_REGULAR_H
#define FUSE_BASE_REGULAR_H

#include <stdio.h>

/* A descriptor, closed on exec; flags: O_RDONLY or O_RDWR. -1 with errno set, ENXIO for what is no regular file. */
int fuse_open_regular(const char *path, int flags);

/* The same as a stream, in mode "r" or "r+". */
FILE *fuse_stream_regular(const char *path, const char *mode);

/* Why that failed, for people. */
const char *fuse_regular_reason(int cause);

#endif
