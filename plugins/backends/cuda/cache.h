/* Compiled kernels on disk, in $XDG_CACHE_HOME/fuserun or ~/.cache/fuserun, so that a run need not wait for NVRTC. An
 * entry holds all that its content follows from (the key: source, options, compiler), and is used only if that is equal
 * to the byte. Whatever is wrong with the folder or a file in it, the kernels are compiled as if there were no cache.
 */
#ifndef FUSE_CUDA_CACHE_H
#define FUSE_CUDA_CACHE_H

#include <stddef.h>

/* What the cache has for that key, in memory that the caller frees, or NULL. */
char *fuse_cache_read(const char *key, size_t key_bytes, size_t *image_bytes);
void fuse_cache_write(const char *key, size_t key_bytes, const char *image, size_t image_bytes);

#endif
