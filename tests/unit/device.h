/* What tests of graphs need around a graph: the CPU backend, a dict of one optimizer, a program with its memory. */
#ifndef TESTS_UNIT_DEVICE_H
#define TESTS_UNIT_DEVICE_H

#include "graph/program.h"
#include "optim/dict.h"

/* Opens the built cpu backend with `threads` threads (once a process for each count). */
const struct fuse_backend *device_open(uint32_t threads, void **device);
void device_close_all(void);

/* One optimizer for all parameters; options as "key=value" pairs. */
struct rig {
    struct fuse_graph *graph;
    struct fuse_dict *dict; /* NULL: none */
    struct fuse_program *program;
    struct fuse_ledger *ledger;
    struct fuse_options *options;
    const struct fuse_backend *backend;
    void *device;
    char *arena;
    double statistics[2];
    uint64_t draw; /* number of the next batch */
};

/* Takes over `graph`. optimizer NULL: no dict, gradients released to the graph's own callbacks. */
void rig_up(struct rig *rig, struct fuse_graph *graph, uint32_t threads, enum fuse_loss_kind loss, enum fuse_mode mode,
            const char *optimizer, const char *const *pairs, size_t pair_count);
/* Without an optimizer: gradients go to the graph's own callbacks. */
void rig_up_with(struct rig *rig, struct fuse_graph *graph, uint32_t threads,
                 const struct fuse_program_options *options);
void rig_down(struct rig *rig);

/* One update on the batch given: inputs and targets are copied in. */
void rig_update(struct rig *rig, const float *inputs, const void *targets, double scale);

/* Values of the parameter called `name`; without a dict, memory of the rig's. */
float *rig_parameter(struct rig *rig, const char *name);

#endif
