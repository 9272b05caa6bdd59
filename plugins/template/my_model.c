/* The smallest model worth its name: a perceptron with a bridge over its hidden layer
 *
 *     h = gelu(W1 x + b1),    h' = h + gelu(W2 h + b2),    output = W3 h' + b3
 *
 * A model only describes: it declares parameters and connects operations. fuserun makes the backward pass from that,
 * plans the memory, and puts each parameter's optimizer behind the last use of its gradient.
 *
 *     cc -shared -fPIC $(pkg-config --cflags fuserun) my_model.c -o plugins/my_model.so */
#include <fuserun/model.h>

#include <math.h>
#include <stdio.h>

/* What the config may say in [model], beside fuserun's own keys. */
static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "hidden", .type = FUSERUN_OPTION_INTEGER, .default_text = "64", .range = "[1, 1000000]",
                   .help = "width of the hidden layers"),
    FUSERUN_OPTION(.key = "num_classes", .type = FUSERUN_OPTION_INTEGER, .default_text = "10", .range = "[1, 1000000]",
                   .help = "width of the output"),
};

/* x (B, in) -> (B, out). The names are those that weights files, groups and freeze globs use. */
static struct fuse_tensor *layer(const struct fuse_graph_api *api, struct fuse_graph *graph, struct fuse_tensor *x,
                                 const char *name, int64_t in, int64_t out)
{
    char text[64];
    const double bound = 1.0 / sqrt((double)in); /* torch.nn.Linear's */
    const struct fuse_init init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, -bound, bound);
    const int64_t weight_shape[] = {out, in}, bias_shape[] = {out};
    (void)snprintf(text, sizeof text, "%s.weight", name);
    struct fuse_tensor *weight = api->parameter(graph, text, 2, weight_shape, &init);
    (void)snprintf(text, sizeof text, "%s.bias", name);
    struct fuse_tensor *bias = api->parameter(graph, text, 1, bias_shape, &init);
    return api->linear(graph, x, weight, bias);
}

/* Mistakes stick to the graph, so nothing is checked on the way. Called once for each batch size of the run. */
static int build(const struct fuse_host *host, const struct fuse_options *values, const struct fuse_graph_api *api,
                 struct fuse_graph *graph, struct fuse_tensor *input, struct fuse_tensor **output)
{
    const int64_t hidden = host->option_integer(values, "hidden");
    const int64_t classes = host->option_integer(values, "num_classes");
    int64_t shape[FUSERUN_MAX_DIMS] = {0};
    struct fuse_tensor *x = api->flatten(graph, input); /* (B, shape[1]) */
    (void)api->shape(x, shape);
    x = api->gelu(graph, layer(api, graph, x, "stem", shape[1], hidden));
    x = api->add(graph, x, api->gelu(graph, layer(api, graph, x, "bridge", hidden, hidden)));
    *output = layer(api, graph, x, "head", hidden, classes);
    return api->status(graph);
}

static const struct fuse_model model = {FUSERUN_STRUCT_SIZE(fuse_model, build), build};
static const struct fuse_component components[] = {FUSERUN_COMPONENT(.kind = FUSERUN_KIND_MODEL, .name = "my_model",
                                                                     .summary = "a perceptron with a bridge",
                                                                     FUSERUN_OPTIONS(options), .api = &model)};
FUSERUN_PLUGIN("my_model", "1.0.0", "MIT", components)
