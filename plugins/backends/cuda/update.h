/* Optimizers' rules on the device. */
#ifndef FUSE_CUDA_UPDATE_H
#define FUSE_CUDA_UPDATE_H

#include "cuda.h"

/* The rule's text as CUDA C++, for kernels/update.cu to follow; the caller frees it. NULL with the error set. */
char *fuse_update_text(const struct fuse_host *host, const struct fuse_rule *rule, struct fuse_error *error);

int fuse_update_compile(struct fuse_cuda *cuda, const struct fuse_rule *rule, struct fuse_compiled_rule **compiled,
                        struct fuse_error *error);
void fuse_update_discard(struct fuse_cuda *cuda, struct fuse_compiled_rule *compiled);

/* All slices: one launch for as many as the table holds, and one without a table for a single one. */
int fuse_update_slices(struct fuse_cuda *cuda, struct fuse_compiled_rule *compiled, const struct fuse_slice *slices,
                       int64_t slice_count, struct fuse_error *error);

#endif
