/* Optimizers' rules on the device: of single elements (update.c), and of whole parameters (tensor.c). */
#ifndef FUSE_CUDA_UPDATE_H
#define FUSE_CUDA_UPDATE_H

#include "cuda.h"

int fuse_update_compile(struct fuse_cuda *cuda, const struct fuse_rule *rule, struct fuse_compiled_rule **compiled,
                        struct fuse_error *error);
void fuse_update_discard(struct fuse_cuda *cuda, struct fuse_compiled_rule *compiled);

/* All slices: one launch for as many as the table holds, and one without a table for a single one. */
int fuse_update_slices(struct fuse_cuda *cuda, struct fuse_compiled_rule *compiled, const struct fuse_slice *slices,
                       int64_t slice_count, struct fuse_error *error);

/* The rule's passes are compiled once, whatever the number of parameters. */
int fuse_tensor_compile(struct fuse_cuda *cuda, const struct fuse_rule *rule, const struct fuse_tensor_plan *plan,
                        struct fuse_compiled_tensor **compiled, uint64_t *workspace_bytes, struct fuse_error *error);
void fuse_tensor_discard(struct fuse_cuda *cuda, struct fuse_compiled_tensor *compiled);
int fuse_tensor_update(struct fuse_cuda *cuda, struct fuse_compiled_tensor *compiled,
                       const struct fuse_tensor_update *update, struct fuse_error *error);

#endif
