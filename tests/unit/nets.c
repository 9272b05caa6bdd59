#include "nets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>

static const struct fuse_init init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, -0.05, 0.05);
static const struct fuse_init scale_init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, 0.5, 1.5);

struct fuse_tensor *net_layer(struct fuse_graph *graph, const char *name, struct fuse_tensor *x, int64_t in,
                              int64_t out)
{
    const struct fuse_graph_api *api = fuse_graph_services();
    char full[64];
    const int64_t weight[] = {out, in};
    (void)snprintf(full, sizeof full, "%s.weight", name);
    struct fuse_tensor *w = api->parameter(graph, full, 2, weight, &init);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    return api->linear(graph, x, w, api->parameter(graph, full, 1, &out, &init));
}

struct fuse_graph *net_wide(int64_t batch)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_graph_api *api = fuse_graph_services();
    const int64_t input[] = {batch, 70};
    struct fuse_graph *graph = NULL;
    assert_int_equal(fuse_graph_new(2, input, &graph, &error), FUSERUN_OK);
    struct fuse_tensor *x = api->relu(graph, net_layer(graph, "a", fuse_graph_input(graph), 70, 1030));
    x = api->relu(graph, net_layer(graph, "b", x, 1030, 1100));
    graph->output = net_layer(graph, "c", x, 1100, 10)->index;
    assert_int_equal(api->status(graph), FUSERUN_OK);
    return graph;
}

struct fuse_graph *net_tied(int64_t batch)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_graph_api *api = fuse_graph_services();
    const int64_t input[] = {batch, 96}, square[] = {96, 96};
    struct fuse_graph *graph = NULL;
    assert_int_equal(fuse_graph_new(2, input, &graph, &error), FUSERUN_OK);
    struct fuse_tensor *embedding = api->parameter(graph, "embedding", 2, square, &init);
    struct fuse_tensor *twice = api->parameter(graph, "twice", 2, square, &init);
    struct fuse_tensor *x = api->linear(graph, fuse_graph_input(graph), embedding, NULL);
    struct fuse_tensor *y = api->add(graph, api->gelu(graph, api->linear(graph, x, twice, NULL)), x);
    y = api->tanh(graph, api->linear(graph, y, twice, NULL));
    graph->output = api->linear(graph, y, embedding, NULL)->index;
    assert_int_equal(api->status(graph), FUSERUN_OK);
    return graph;
}

static struct fuse_tensor *norm(struct fuse_graph *graph, const char *name, struct fuse_tensor *x)
{
    const struct fuse_graph_api *api = fuse_graph_services();
    char full[64];
    const int64_t width[] = {NET_WIDTH};
    (void)snprintf(full, sizeof full, "%s.weight", name);
    struct fuse_tensor *w = api->parameter(graph, full, 1, width, &scale_init);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    return api->layer_norm(graph, x, w, api->parameter(graph, full, 1, width, &init), 1e-6);
}

struct fuse_graph *net_transformer(int64_t batch)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_graph_api *api = fuse_graph_services();
    const int64_t input[] = {batch, NET_TOKENS, NET_WIDTH}, square[] = {NET_WIDTH, NET_WIDTH};
    struct fuse_graph *graph = NULL;
    assert_int_equal(fuse_graph_new(3, input, &graph, &error), FUSERUN_OK);
    struct fuse_tensor *twice = api->parameter(graph, "twice", 2, square, &init);
    struct fuse_tensor *x = api->linear(graph, fuse_graph_input(graph), twice, NULL);
    for (int i = 0; i < 2; i++) {
        char name[16];
        api->block(graph, x);
        (void)snprintf(name, sizeof name, "n%d", i);
        struct fuse_tensor *y = norm(graph, name, x);
        (void)snprintf(name, sizeof name, "qkv%d", i);
        y = api->attention(graph, net_layer(graph, name, y, NET_WIDTH, 3 * NET_WIDTH), 4, 0.1);
        x = api->add(graph, x, api->dropout(graph, api->linear(graph, y, twice, NULL), 0.1));
        (void)snprintf(name, sizeof name, "m%d", i);
        y = norm(graph, name, x);
        (void)snprintf(name, sizeof name, "fc%d", i);
        y = api->gelu(graph, net_layer(graph, name, y, NET_WIDTH, 4 * NET_WIDTH));
        (void)snprintf(name, sizeof name, "out%d", i);
        x = api->add(graph, x, net_layer(graph, name, y, 4 * NET_WIDTH, NET_WIDTH));
    }
    graph->output = net_layer(graph, "head", api->select(graph, x, 0), NET_WIDTH, NET_CLASSES)->index;
    assert_int_equal(api->status(graph), FUSERUN_OK);
    return graph;
}
