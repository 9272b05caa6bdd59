#include "graph/hold.h"

#include "base/align.h"

#include <stdlib.h>

int fuse_hold_new(uint32_t parameter_count, struct fuse_hold **hold, struct fuse_error *error)
{
    struct fuse_hold *made = calloc(1, sizeof *made);
    if (made != NULL)
        made->gradients = calloc((size_t)parameter_count + 1, sizeof *made->gradients);
    if (made == NULL || made->gradients == NULL) {
        fuse_hold_free(&made);
        return fuse_fail_memory(error, "the accumulation", parameter_count * sizeof(struct fuse_held));
    }
    *hold = made;
    return FUSERUN_OK;
}

void fuse_hold_free(struct fuse_hold **hold)
{
    if (*hold == NULL)
        return;
    free((*hold)->gradients);
    free(*hold);
    *hold = NULL;
}

uint64_t fuse_hold_place(struct fuse_hold *hold, struct fuse_held *held, uint64_t bytes)
{
    if (!held->is_settled) {
        *held = (struct fuse_held){.is_settled = true, .offset = hold->bytes};
        hold->bytes += fuse_aligned(bytes);
    }
    return held->offset;
}
