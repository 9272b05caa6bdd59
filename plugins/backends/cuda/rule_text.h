/* Optimizers' rules as CUDA C++. */
#ifndef FUSE_CUDA_RULE_TEXT_H
#define FUSE_CUDA_RULE_TEXT_H

#include <fuserun/optimizer.h>

/* For kernels/update.cu to follow; the caller frees it. NULL with the error set. */
char *fuse_update_text(const struct fuse_host *host, const struct fuse_rule *rule, struct fuse_error *error);

/* The same of a rule's passes; it stands behind kernels/passes.cu. */
char *fuse_passes_text(const struct fuse_host *host, const struct fuse_rule *rule, struct fuse_error *error);

#endif
