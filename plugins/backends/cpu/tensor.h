/* Updates of whole parameters on the CPU: the rule's own function, with this backend's threads and products. */
#ifndef FUSE_CPU_TENSOR_H
#define FUSE_CPU_TENSOR_H

#include "cpu.h"

int fuse_tensor_compile(struct fuse_cpu *cpu, const struct fuse_rule *rule, const struct fuse_tensor_plan *plan,
                        struct fuse_compiled_tensor **compiled, uint64_t *workspace_bytes, struct fuse_error *error);
void fuse_tensor_discard(struct fuse_compiled_tensor *compiled);
int fuse_tensor_update(const struct fuse_cpu *cpu, struct fuse_compiled_tensor *compiled,
                       const struct fuse_tensor_update *update, struct fuse_error *error);

#endif
