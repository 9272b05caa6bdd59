/* memory.pickle: the timeline as a memory snapshot that PyTorch's viewer (pytorch.org/memory_viz) and
 * `python -m torch.cuda._memory_viz` open. */
#ifndef FUSE_MEMORY_SNAPSHOT_H
#define FUSE_MEMORY_SNAPSHOT_H

#include "memory/timeline.h"

/* Browsers give up on much more. What is left out is counted in the file's allocator_settings. */
#define FUSE_SNAPSHOT_EVENTS 100000

/* version: of fuserun. A run that would not fit into max_events is left out, and all behind it. */
int fuse_snapshot_write(const char *path, const struct fuse_description *description, const char *version,
                        size_t max_events, struct fuse_error *error);

#endif
