/* graph/ - tensors, operations, the backward pass, lifetimes, the planner, and running the result. Uses base/, memory/
 * and the public headers; reaches devices only through a struct fuse_backend.
 *
 * The way: a model plugin describes a forward graph (graph.c, api.c) without any memory; program.c turns it into a list
 * of operations: forward (forward.c), loss, backward (derive.c, one node at a time), with post-accumulate callbacks and
 * a norm over all gradients in their places (backward.c), and what micro-batches leave for each other (hold.c);
 * planner.c gives every buffer an offset; run.c executes the list, and describe.c names what is in it. */
#ifndef FUSE_GRAPH_GRAPH_H
#define FUSE_GRAPH_GRAPH_H

#include "base/error.h"

#include <fuserun/backend.h>
#include <fuserun/model.h>

#include <stdbool.h>

enum fuse_tensor_role { FUSE_TENSOR_INPUT = 1, FUSE_TENSOR_PARAMETER = 2, FUSE_TENSOR_ACTIVATION = 3 };

struct fuse_tensor {
    struct fuse_graph *graph;
    uint32_t index; /* in the graph */
    enum fuse_tensor_role role;
    uint32_t rank;
    int64_t shape[FUSERUN_MAX_DIMS];
    uint32_t parameter; /* FUSE_TENSOR_PARAMETER: its index */
    uint32_t storage;   /* index of the tensor whose memory this one is a view of; itself if none */
};

/* A forward operation. */
struct fuse_node {
    enum fuse_op_kind kind;
    uint32_t input_count;
    uint32_t inputs[4]; /* tensor indices; UINT32_MAX: absent */
    uint32_t output;
    uint32_t extra_count;
    uint32_t
        extras[2]; /* further outputs, for the backward pass only: a layer norm's mean and rstd, an attention's lse */
    int64_t integers[2]; /* as in struct fuse_op */
    double numbers[1];
    uint32_t block; /* 0: before the first block() of the model */
};

struct fuse_parameter {
    char *name;
    uint32_t tensor; /* index */
    uint32_t rank;
    int64_t shape[FUSERUN_MAX_DIMS];
    int64_t element_count;
    struct fuse_init init;
    bool is_frozen; /* no gradient, no state, no update */
    struct fuse_gradient_callback *callbacks;
    uint32_t callback_count;
};

struct fuse_graph {
    struct fuse_tensor **tensors;
    uint32_t tensor_count, tensor_capacity;
    struct fuse_node *nodes;
    uint32_t node_count, node_capacity;
    struct fuse_parameter *parameters;
    uint32_t parameter_count, parameter_capacity;
    uint32_t block_count;    /* calls of block() so far */
    uint32_t random_count;   /* operations that draw random numbers so far */
    uint32_t output;         /* tensor index */
    struct fuse_error error; /* the first mistake of the model */
};

/* Calls the model's build() for inputs of `shape` (B, ...) and checks the result. */
int fuse_graph_build(const struct fuse_host *host, const struct fuse_component *model,
                     const struct fuse_options *options, uint32_t rank, const int64_t *shape, struct fuse_graph **graph,
                     struct fuse_error *error);
void fuse_graph_free(struct fuse_graph **graph);

/* The table that models build with, for tests that build graphs of their own. */
const struct fuse_graph_api *fuse_graph_services(void);
int fuse_graph_new(uint32_t rank, const int64_t *shape, struct fuse_graph **graph, struct fuse_error *error);
struct fuse_tensor *fuse_graph_input(struct fuse_graph *graph);

/* Attaches a callback behind those already there. */
int fuse_graph_attach(struct fuse_graph *graph, uint32_t parameter, const struct fuse_gradient_callback *callback,
                      struct fuse_error *error);

/* Writes a parameter's initial values: element i depends on (seed, the parameter's index, i) alone. */
void fuse_parameter_fill(const struct fuse_parameter *parameter, uint32_t index, uint64_t seed, float *values);

int64_t fuse_element_count(uint32_t rank, const int64_t *shape);

#endif
