/* One process at a time in a folder. The lock is the kernel's and lies on the folder itself (flock): no file is needed
 * for it, and it goes with the process, however that ends. */
#ifndef FUSE_FILES_LOCK_H
#define FUSE_FILES_LOCK_H

#include "base/error.h"

enum fuse_lock_state {
    FUSE_LOCK_TAKEN = 1,
    FUSE_LOCK_BUSY,      /* another process has it */
    FUSE_LOCK_NO_FOLDER, /* nothing to lock yet */
    FUSE_LOCK_IMPOSSIBLE /* the file system has no such locks (some of the network), or the folder cannot be opened */
};

struct fuse_lock {
    enum fuse_lock_state state; /* 0: not tried */
    int descriptor;             /* FUSE_LOCK_TAKEN only */
};

/* Does not wait. An error is only what says nothing of the lock, as too many open files. */
int fuse_lock_folder(const char *folder, struct fuse_lock *lock, struct fuse_error *error);
/* Also fine for one that is zero-filled or was not taken. */
void fuse_lock_release(struct fuse_lock *lock);

#endif
