#include "base/regular.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void close_quietly(int descriptor)
{
    const int cause = errno;
    (void)close(descriptor);
    errno = cause;
}

int fuse_open_regular(const char *path, int flags)
{
    struct stat found;
    int descriptor;
    do
        descriptor = open(path, flags | O_CLOEXEC | O_NONBLOCK);
    while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &found) == 0) {
        if (S_ISREG(found.st_mode))
            return descriptor;
        errno = ENXIO;
    }
    close_quietly(descriptor);
    return -1;
}

FILE *fuse_stream_regular(const char *path, const char *mode)
{
    const int descriptor = fuse_open_regular(path, strcmp(mode, "r+") == 0 ? O_RDWR : O_RDONLY);
    FILE *stream = descriptor < 0 ? NULL : fdopen(descriptor, mode);
    if (stream == NULL && descriptor >= 0)
        close_quietly(descriptor);
    return stream;
}

const char *fuse_regular_reason(int cause)
{
    return cause == ENXIO ? "not a regular file" : strerror(cause);
}
