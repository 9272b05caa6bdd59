#include "files/lock.h"

#include "files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

int fuse_lock_folder(const char *folder, struct fuse_lock *lock, struct fuse_error *error)
{
    int descriptor;
    int result;
    *lock = (struct fuse_lock){.state = FUSE_LOCK_IMPOSSIBLE};
    do
        descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR))
        lock->state = FUSE_LOCK_NO_FOLDER;
    else if (descriptor < 0 && errno != EACCES)
        return fuse_fail_errno(error, "lock the folder", folder, errno);
    if (descriptor < 0)
        return FUSERUN_OK;
    do
        result = flock(descriptor, LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    if (result == 0) {
        *lock = (struct fuse_lock){.state = FUSE_LOCK_TAKEN, .descriptor = descriptor};
        return FUSERUN_OK;
    }
    if (errno == EWOULDBLOCK)
        lock->state = FUSE_LOCK_BUSY;
    (void)close(descriptor);
    return FUSERUN_OK;
}

void fuse_lock_release(struct fuse_lock *lock)
{
    if (lock->state == FUSE_LOCK_TAKEN)
        (void)close(lock->descriptor);
    *lock = (struct fuse_lock){0};
}
