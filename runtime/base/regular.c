#include "base/regular.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FILE *fuse_open_regular(const char *path, const char *mode)
{
    struct stat found;
    FILE *file = NULL;
    int descriptor;
    do
        descriptor = open(path, (strcmp(mode, "r+") == 0 ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
    while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0)
        return NULL;
    if (fstat(descriptor, &found) == 0) {
        if (S_ISREG(found.st_mode))
            file = fdopen(descriptor, mode);
        else
            errno = S_ISDIR(found.st_mode) ? EISDIR : ENXIO;
    }
    if (file == NULL) {
        const int cause = errno;
        (void)close(descriptor);
        errno = cause;
    }
    return file;
}

const char *fuse_open_regular_reason(int cause)
{
    return cause == ENXIO ? "not a regular file" : strerror(cause);
}
