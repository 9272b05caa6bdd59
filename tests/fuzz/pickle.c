/* The pickle of a .pth file, without the zip file around it. */
#include "fuzz.h"

#include "files/pickle.h"

#include <string.h>

void fuzz_one(const uint8_t *bytes, size_t count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_pickle *pickle = NULL;
    const int status = fuse_pickle_read("weights.pth", bytes, count, &pickle, &error);
    fuzz_check_error(status, &error);
    FUZZ_CHECK((status == FUSERUN_OK) == (pickle != NULL));
    if (pickle == NULL)
        return;
    FUZZ_CHECK(fuse_pickle_memory(pickle) <= FUSE_PICKLE_MEMORY_LIMIT);
    const struct fuse_pickle_value *value = fuse_pickle_root(pickle);
    /* The leftmost path, which must end. */
    for (int depth = 0; value->kind == FUSE_PICKLE_DICT && value->count > 0; depth++) {
        FUZZ_CHECK(depth < FUSE_PICKLE_DEPTH_LIMIT && value->count % 2 == 0);
        value = value->as.items[1];
    }
    fuse_pickle_free(&pickle);
}
