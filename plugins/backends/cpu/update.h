/* Update rules on the CPU: the loops that FUSERUN_RULE made, spread over threads. Elements are independent, so how they
 * are spread changes nothing. */
#ifndef FUSE_CPU_UPDATE_H
#define FUSE_CPU_UPDATE_H

#include "cpu.h"

int fuse_update_compile(const struct fuse_cpu *cpu, const struct fuse_rule *rule, struct fuse_compiled_rule **compiled,
                        struct fuse_error *error);
void fuse_update_discard(struct fuse_compiled_rule *compiled);
int fuse_update_slices(const struct fuse_cpu *cpu, const struct fuse_compiled_rule *compiled,
                       const struct fuse_slice *slices, int64_t slice_count);
void fuse_update_panel(const struct fuse_compiled_rule *compiled, const struct fuse_slice *slice);

#endif
