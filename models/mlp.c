/* A multi-layer perceptron: linear layers with an activation between them, none after the last.
 * Names and initial values are torch.nn.Linear's: weights (out, in) and biases uniform in +-1/sqrt(in). */
#include <fuserun/model.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "sizes", .type = FUSERUN_OPTION_INTEGER,
                   .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_REQUIRED, .range = "[1, 16777216]",
                   .help = "width of the input, of each hidden layer, and of the output"),
    FUSERUN_OPTION(.key = "activation", .type = FUSERUN_OPTION_CHOICE, .choices = "relu|gelu|tanh",
                   .default_text = "relu", .help = "between the layers; gelu is the erf form"),
};

static struct fuse_tensor *layer(const struct fuse_graph_api *api, struct fuse_graph *graph, struct fuse_tensor *x,
                                 size_t index, int64_t in, int64_t out)
{
    char name[64];
    const double bound = 1.0 / sqrt((double)in);
    const struct fuse_init init = FUSERUN_INIT(FUSERUN_INIT_UNIFORM, -bound, bound);
    const int64_t weight_shape[] = {out, in}, bias_shape[] = {out};
    (void)snprintf(name, sizeof name, "layers.%zu.weight", index);
    struct fuse_tensor *weight = api->parameter(graph, name, 2, weight_shape, &init);
    (void)snprintf(name, sizeof name, "layers.%zu.bias", index);
    struct fuse_tensor *bias = api->parameter(graph, name, 1, bias_shape, &init);
    return api->linear(graph, x, weight, bias);
}

static int build(const struct fuse_host *host, const struct fuse_options *values, const struct fuse_graph_api *api,
                 struct fuse_graph *graph, struct fuse_tensor *input, struct fuse_tensor **output)
{
    size_t count = 0;
    const int64_t *sizes = host->option_integers(values, "sizes", &count);
    const char *activation = host->option_text(values, "activation");
    struct fuse_tensor *x = api->flatten(graph, input); /* (B, sizes[0]) */
    int64_t shape[FUSERUN_MAX_DIMS] = {0};
    (void)api->shape(x, shape);
    if (count < 2)
        (void)api->fail(graph, "sizes", "needs at least two widths, input and output");
    else if (shape[1] != sizes[0])
        (void)api->fail(graph, "sizes", "the first width is %lld, but a sample has %lld values", (long long)sizes[0],
                        (long long)shape[1]);
    for (size_t i = 0; i + 1 < count && api->status(graph) == FUSERUN_OK; i++) {
        x = layer(api, graph, x, i, sizes[i], sizes[i + 1]);
        if (i + 2 == count)
            break;
        if (strcmp(activation, "relu") == 0)
            x = api->relu(graph, x);
        else if (strcmp(activation, "gelu") == 0)
            x = api->gelu(graph, x);
        else
            x = api->tanh(graph, x);
    }
    *output = x;
    return api->status(graph);
}

static const struct fuse_model model = {FUSERUN_STRUCT_SIZE(fuse_model, build), build};
static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_MODEL, .name = "mlp", .summary = "multi-layer perceptron",
                      FUSERUN_OPTIONS(options), .api = &model),
};
FUSERUN_PLUGIN("mlp", "1.0.0", "MIT", components)
