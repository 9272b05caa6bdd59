/* Building blocks of a graph; shared by graph.c and api.c. */
#ifndef FUSE_GRAPH_CONSTRUCT_H
#define FUSE_GRAPH_CONSTRUCT_H

#include "graph/graph.h"

/* Remembers the first mistake; returns NULL. */
struct fuse_tensor *fuse_graph_fail(struct fuse_graph *graph, int code, const char *key, const char *format, ...)
    FUSERUN_PRINTF(4, 5);
struct fuse_tensor *fuse_graph_out_of_memory(struct fuse_graph *graph);

/* False for a dimension below 1, or more elements than memory could ever hold. */
bool fuse_is_shape_sound(uint32_t rank, const int64_t *shape);

/* Makes room for one more element of `size` bytes. */
bool fuse_graph_grow(void **array, uint32_t count, uint32_t *capacity, size_t size);

struct fuse_tensor *fuse_graph_add_tensor(struct fuse_graph *graph, enum fuse_tensor_role role, uint32_t rank,
                                          const int64_t *shape);

/* A node with one output of the given shape, in the present block; the caller may add attributes and further outputs to
 * the last node. NULL when out of memory. */
struct fuse_tensor *fuse_graph_add_node(struct fuse_graph *graph, enum fuse_op_kind kind,
                                        struct fuse_tensor *const *inputs, uint32_t input_count, uint32_t rank,
                                        const int64_t *shape);

#endif
