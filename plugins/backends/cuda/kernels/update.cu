/* Updates by an optimizer's rule, of which update.c has made
 *     void fuse_update_chunk(const struct fuse_update_slice *slice, long long chunk)
 * for chunk `chunk` of a slice. A block updates a chunk. */

FUSE_KERNEL(update_slice, struct fuse_update_arguments, arguments)
{
    if (*arguments.noticed == FUSE_NOTHING)
        fuse_update_chunk(&arguments.slice, FUSE_BLOCK_INDEX);
}

/* All slices' chunks one behind the other: a block looks for the last slice that does not begin behind it. */
FUSE_KERNEL(update_foreach, struct fuse_foreach_arguments, arguments)
{
    int low = 0, high = arguments.slice_count - 1;
    if (*arguments.noticed != FUSE_NOTHING)
        return;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (arguments.slices[middle].first_chunk <= FUSE_BLOCK_INDEX)
            low = middle;
        else
            high = middle - 1;
    }
    fuse_update_chunk(&arguments.slices[low], FUSE_BLOCK_INDEX - arguments.slices[low].first_chunk);
}
