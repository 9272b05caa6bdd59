/* Nets that several tests of graphs train. */
#ifndef TESTS_UNIT_NETS_H
#define TESTS_UNIT_NETS_H

#include "graph/graph.h"

/* NAME.weight (out, in) and NAME.bias. */
struct fuse_tensor *net_layer(struct fuse_graph *graph, const char *name, struct fuse_tensor *x, int64_t in,
                              int64_t out);

/* 70 -> 1030 -> 1100 -> 10, wide enough for several panels. */
struct fuse_graph *net_wide(int64_t batch);

/* 96 -> 96. The head is the embedding again (two uses far apart), and one square layer is applied twice in a row. */
struct fuse_graph *net_tied(int64_t batch);

/* (NET_TOKENS, NET_WIDTH) -> NET_CLASSES: two transformer blocks, a weight used three times, dropout: everything that
 * recomputes, shares or gathers. */
enum { NET_TOKENS = 5, NET_WIDTH = 96, NET_CLASSES = 7 };
struct fuse_graph *net_transformer(int64_t batch);

#endif
