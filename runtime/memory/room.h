/* How much more memory this process may take before the system ends it or refuses. */
#ifndef FUSE_MEMORY_ROOM_H
#define FUSE_MEMORY_ROOM_H

#include <stdint.h>

enum fuse_room_bound {
    FUSE_ROOM_UNKNOWN,   /* the system does not tell */
    FUSE_ROOM_MACHINE,   /* free and reclaimable memory, and free swap */
    FUSE_ROOM_COMMIT,    /* what a machine that promises no more than it has can still promise */
    FUSE_ROOM_GROUP,     /* a control group that the process is in, or one above it */
    FUSE_ROOM_ADDRESSES, /* ulimit -v */
    FUSE_ROOM_DATA,      /* ulimit -d */
    FUSE_ROOM_DEVICE     /* a device's own memory */
};

struct fuse_room {
    enum fuse_room_bound bound; /* what leaves the least */
    uint64_t bytes;             /* what it leaves; UINT64_MAX: unknown */
    uint64_t limit_bytes;       /* of which */
};

/* root: "" for this system; a folder that holds proc/ and sys/ for tests. */
void fuse_room_measure(const char *root, struct fuse_room *room);

#endif
