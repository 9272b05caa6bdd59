/* Opening what must be a file: a FIFO would keep whoever opens it waiting for a writer. */
#ifndef FUSE_BASE_REGULAR_H
#define FUSE_BASE_REGULAR_H

#include <stdio.h>

/* fopen() in mode "r" or "r+", closed on exec. NULL with errno set, ENXIO for what is no regular file. */
FILE *fuse_open_regular(const char *path, const char *mode);

/* Why that failed, for people. */
const char *fuse_open_regular_reason(int cause);

#endif
