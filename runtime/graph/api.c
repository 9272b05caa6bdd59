/* The services that models build with: every check of shapes, and a message that names the parameter at fault. */
#include "graph/construct.h"

#include "base/random.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* An operation may follow: no mistake so far, and its tensors belong to this graph. */
static bool is_usable(struct fuse_graph *graph, const struct fuse_tensor *tensor, const char *operation)
{
    if (graph->error.code != FUSERUN_OK)
        return false;
    if (tensor == NULL)
        (void)fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "the model calls %s on no tensor", operation);
    else if (tensor->graph != graph)
        (void)fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "the model calls %s on a tensor of another graph",
                              operation);
    return graph->error.code == FUSERUN_OK;
}

static struct fuse_tensor *api_parameter(struct fuse_graph *graph, const char *name, uint32_t rank,
                                         const int64_t *shape, const struct fuse_init *init)
{
    if (graph->error.code != FUSERUN_OK)
        return NULL;
    if (name == NULL || *name == '\0')
        return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "the model declares a parameter without a name");
    if (rank > FUSERUN_MAX_DIMS || !fuse_is_shape_sound(rank, shape))
        return fuse_graph_fail(graph, FUSERUN_ERROR_CONFIG, NULL, "parameter '%s' has an impossible shape", name);
    for (uint32_t i = 0; i < graph->parameter_count; i++)
        if (strcmp(graph->parameters[i].name, name) == 0)
            return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "the model declares parameter '%s' twice", name);
    if (!fuse_graph_grow((void **)&graph->parameters, graph->parameter_count, &graph->parameter_capacity,
                         sizeof *graph->parameters))
        return fuse_graph_out_of_memory(graph);
    char *copy = fuse_strdup(name);
    struct fuse_tensor *tensor = copy == NULL ? NULL : fuse_graph_add_tensor(graph, FUSE_TENSOR_PARAMETER, rank, shape);
    if (tensor == NULL) {
        free(copy);
        return fuse_graph_out_of_memory(graph);
    }
    tensor->parameter = graph->parameter_count;
    struct fuse_parameter *parameter = &graph->parameters[graph->parameter_count++];
    *parameter = (struct fuse_parameter){
        .name = copy, .tensor = tensor->index, .rank = rank, .element_count = fuse_element_count(rank, shape)};
    memcpy(parameter->shape, shape, rank * sizeof *shape);
    if (init != NULL)
        parameter->init = *init;
    return tensor;
}

static struct fuse_tensor *api_linear(struct fuse_graph *graph, struct fuse_tensor *x, struct fuse_tensor *weight,
                                      struct fuse_tensor *bias)
{
    if (!is_usable(graph, x, "linear") || !is_usable(graph, weight, "linear") ||
        (bias != NULL && !is_usable(graph, bias, "linear")))
        return NULL;
    if (weight->role != FUSE_TENSOR_PARAMETER || weight->rank < 2)
        return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "linear: the weight must be a parameter (N, ...)");
    const int64_t out = weight->shape[0], in = fuse_element_count(weight->rank - 1, weight->shape + 1);
    const char *name = graph->parameters[weight->parameter].name;
    if (x->rank < 2 || x->shape[x->rank - 1] != in)
        return fuse_graph_fail(graph, FUSERUN_ERROR_CONFIG, NULL, "'%s' takes %lld inputs, but gets %lld", name,
                               (long long)in, (long long)(x->rank < 1 ? 0 : x->shape[x->rank - 1]));
    if (bias != NULL && (bias->role != FUSE_TENSOR_PARAMETER || bias->rank != 1 || bias->shape[0] != out))
        return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "linear: the bias of '%s' must be a parameter (%lld)",
                               name, (long long)out);
    int64_t shape[FUSERUN_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->rank - 1] = out;
    struct fuse_tensor *inputs[] = {x, weight, bias};
    return fuse_graph_add_node(graph, FUSERUN_OP_LINEAR, inputs, 3, x->rank, shape);
}

static struct fuse_tensor *unary(struct fuse_graph *graph, struct fuse_tensor *x, enum fuse_op_kind kind,
                                 const char *operation)
{
    return is_usable(graph, x, operation) ? fuse_graph_add_node(graph, kind, &x, 1, x->rank, x->shape) : NULL;
}

static struct fuse_tensor *api_relu(struct fuse_graph *graph, struct fuse_tensor *x)
{
    return unary(graph, x, FUSERUN_OP_RELU, "relu");
}

static struct fuse_tensor *api_gelu(struct fuse_graph *graph, struct fuse_tensor *x)
{
    return unary(graph, x, FUSERUN_OP_GELU, "gelu");
}

static struct fuse_tensor *api_tanh(struct fuse_graph *graph, struct fuse_tensor *x)
{
    return unary(graph, x, FUSERUN_OP_TANH, "tanh");
}

static struct fuse_tensor *api_add(struct fuse_graph *graph, struct fuse_tensor *a, struct fuse_tensor *b)
{
    if (!is_usable(graph, a, "add") || !is_usable(graph, b, "add"))
        return NULL;
    if (a->rank != b->rank || memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) != 0)
        return fuse_graph_fail(graph, FUSERUN_ERROR_CONFIG, NULL, "add: the two shapes differ");
    struct fuse_tensor *inputs[] = {a, b};
    return fuse_graph_add_node(graph, FUSERUN_OP_ADD, inputs, 2, a->rank, a->shape);
}

static struct fuse_tensor *api_flatten(struct fuse_graph *graph, struct fuse_tensor *x)
{
    if (!is_usable(graph, x, "flatten"))
        return NULL;
    if (x->rank == 2)
        return x;
    if (x->rank < 1)
        return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "flatten: the tensor has no batch dimension");
    const int64_t shape[] = {x->shape[0], fuse_element_count(x->rank, x->shape) / x->shape[0]};
    struct fuse_tensor *view = fuse_graph_add_tensor(graph, x->role, 2, shape);
    if (view != NULL)
        view->storage = x->storage;
    return view;
}

static uint32_t api_shape(const struct fuse_tensor *tensor, int64_t shape[FUSERUN_MAX_DIMS])
{
    if (tensor == NULL)
        return 0;
    memcpy(shape, tensor->shape, tensor->rank * sizeof *shape);
    return tensor->rank;
}

static void api_on_gradient(struct fuse_graph *graph, struct fuse_tensor *tensor,
                            const struct fuse_gradient_callback *callback)
{
    if (!is_usable(graph, tensor, "on_gradient"))
        return;
    const uint32_t least = FUSERUN_STRUCT_SIZE(fuse_gradient_callback, user);
    if (callback != NULL && callback->struct_size < least) {
        (void)fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL,
                              "on_gradient: the callback's struct_size is %u, less than the %u that it must have",
                              callback->struct_size, least);
        return;
    }
    if (tensor->role != FUSE_TENSOR_PARAMETER || callback == NULL || callback->gradient == NULL) {
        (void)fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "on_gradient: needs a parameter and a callback");
        return;
    }
    (void)fuse_graph_attach(graph, tensor->parameter, callback, &graph->error);
}

static int api_status(const struct fuse_graph *graph)
{
    return graph->error.code;
}

static struct fuse_tensor *api_fail(struct fuse_graph *graph, const char *key, const char *format, ...)
{
    if (graph->error.code == FUSERUN_OK) {
        va_list arguments;
        va_start(arguments, format);
        (void)fuse_fail_va(&graph->error, FUSERUN_ERROR_CONFIG, key, format, arguments);
        va_end(arguments);
    }
    return NULL;
}

/* ---- transformers --------------------------------------------------------------------------------------------- */

static struct fuse_node *last_node(struct fuse_graph *graph)
{
    return &graph->nodes[graph->node_count - 1];
}

/* A further output of the last node; false when out of memory. */
static bool add_extra(struct fuse_graph *graph, uint32_t rank, const int64_t *shape)
{
    const struct fuse_tensor *extra = fuse_graph_add_tensor(graph, FUSE_TENSOR_ACTIVATION, rank, shape);
    if (extra == NULL)
        return false;
    struct fuse_node *node = last_node(graph);
    node->extras[node->extra_count++] = extra->index;
    return true;
}

/* Every operation that draws has a stream of its own, with room for 2^40 batches. */
static int64_t next_stream(struct fuse_graph *graph)
{
    return (int64_t)(FUSE_STREAM_DROPOUT + ((uint64_t)graph->random_count++ << 40));
}

static struct fuse_tensor *api_patches(struct fuse_graph *graph, struct fuse_tensor *x, int64_t patch)
{
    if (!is_usable(graph, x, "patches"))
        return NULL;
    if (x->rank != 4)
        return fuse_graph_fail(graph, FUSERUN_ERROR_CONFIG, NULL,
                               "patches: a sample must be an image (channels, height, width)");
    if (patch < 1 || x->shape[2] % patch != 0 || x->shape[3] % patch != 0)
        return fuse_graph_fail(graph, FUSERUN_ERROR_CONFIG, NULL,
                               "images of %lld x %lld do not divide into patches of %lld", (long long)x->shape[2],
                               (long long)x->shape[3], (long long)patch);
    if (x->role != FUSE_TENSOR_INPUT)
        return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "patches: only of the model's input");
    const int64_t shape[] = {x->shape[0], (x->shape[2] / patch) * (x->shape[3] / patch), x->shape[1] * patch * patch};
    struct fuse_tensor *y = fuse_graph_add_node(graph, FUSERUN_OP_PATCHES, &x, 1, 3, shape);
    if (y != NULL)
        last_node(graph)->integers[0] = patch;
    return y;
}

static struct fuse_tensor *api_layer_norm(struct fuse_graph *graph, struct fuse_tensor *x, struct fuse_tensor *weight,
                                          struct fuse_tensor *bias, double eps)
{
    if (!is_usable(graph, x, "layer_norm") || !is_usable(graph, weight, "layer_norm") ||
        !is_usable(graph, bias, "layer_norm"))
        return NULL;
    const int64_t width = x->rank < 2 ? 0 : x->shape[x->rank - 1];
    if (width < 1 || weight->role != FUSE_TENSOR_PARAMETER || bias->role != FUSE_TENSOR_PARAMETER ||
        weight->rank != 1 || bias->rank != 1 || weight->shape[0] != width || bias->shape[0] != width)
        return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL,
                               "layer_norm: weight and bias must be parameters (%lld)", (long long)width);
    struct fuse_tensor *inputs[] = {x, weight, bias};
    struct fuse_tensor *y = fuse_graph_add_node(graph, FUSERUN_OP_LAYER_NORM, inputs, 3, x->rank, x->shape);
    const int64_t rows = fuse_element_count(x->rank, x->shape) / width;
    if (y == NULL || !add_extra(graph, 1, &rows) || !add_extra(graph, 1, &rows))
        return NULL;
    last_node(graph)->numbers[0] = eps;
    return y;
}

static bool is_probability(struct fuse_graph *graph, double p)
{
    if (p >= 0 && p < 1)
        return true;
    (void)fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL, "a dropout probability must be in [0, 1)");
    return false;
}

static struct fuse_tensor *api_attention(struct fuse_graph *graph, struct fuse_tensor *qkv, int64_t heads,
                                         double dropout)
{
    if (!is_usable(graph, qkv, "attention") || !is_probability(graph, dropout))
        return NULL;
    if (qkv->rank != 3 || heads < 1 || qkv->shape[2] % (3 * heads) != 0)
        return fuse_graph_fail(graph, FUSERUN_ERROR_CONFIG, NULL,
                               "attention: %lld values do not divide into q, k, v of %lld heads",
                               (long long)(qkv->rank != 3 ? 0 : qkv->shape[2]), (long long)heads);
    const int64_t shape[] = {qkv->shape[0], qkv->shape[1], qkv->shape[2] / 3};
    const int64_t sums[] = {qkv->shape[0], heads, qkv->shape[1]};
    struct fuse_tensor *y = fuse_graph_add_node(graph, FUSERUN_OP_ATTENTION, &qkv, 1, 3, shape);
    if (y == NULL || !add_extra(graph, 3, sums))
        return NULL;
    last_node(graph)->integers[0] = heads;
    last_node(graph)->integers[1] = next_stream(graph);
    last_node(graph)->numbers[0] = dropout;
    return y;
}

static struct fuse_tensor *api_prepend(struct fuse_graph *graph, struct fuse_tensor *x, struct fuse_tensor *token)
{
    if (!is_usable(graph, x, "prepend") || !is_usable(graph, token, "prepend"))
        return NULL;
    if (x->rank != 3 || token->role != FUSE_TENSOR_PARAMETER ||
        fuse_element_count(token->rank, token->shape) != x->shape[2])
        return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL,
                               "prepend: needs a sequence (B, S, D) and a parameter of D elements");
    const int64_t shape[] = {x->shape[0], x->shape[1] + 1, x->shape[2]};
    struct fuse_tensor *inputs[] = {x, token};
    return fuse_graph_add_node(graph, FUSERUN_OP_PREPEND, inputs, 2, 3, shape);
}

static struct fuse_tensor *api_add_batch(struct fuse_graph *graph, struct fuse_tensor *x, struct fuse_tensor *parameter)
{
    if (!is_usable(graph, x, "add_batch") || !is_usable(graph, parameter, "add_batch"))
        return NULL;
    if (x->rank < 2 || parameter->role != FUSE_TENSOR_PARAMETER ||
        fuse_element_count(parameter->rank, parameter->shape) != fuse_element_count(x->rank - 1, x->shape + 1))
        return fuse_graph_fail(graph, FUSERUN_ERROR_CONFIG, NULL,
                               "add_batch: the parameter must have as many elements as a sample");
    struct fuse_tensor *inputs[] = {x, parameter};
    return fuse_graph_add_node(graph, FUSERUN_OP_ADD_BATCH, inputs, 2, x->rank, x->shape);
}

static struct fuse_tensor *api_select(struct fuse_graph *graph, struct fuse_tensor *x, int64_t index)
{
    if (!is_usable(graph, x, "select"))
        return NULL;
    if (x->rank != 3 || index < 0 || index >= x->shape[1])
        return fuse_graph_fail(graph, FUSERUN_ERROR_PLUGIN, NULL,
                               "select: needs a sequence (B, S, D) and an index in it");
    const int64_t shape[] = {x->shape[0], x->shape[2]};
    struct fuse_tensor *y = fuse_graph_add_node(graph, FUSERUN_OP_SELECT, &x, 1, 2, shape);
    if (y != NULL)
        last_node(graph)->integers[0] = index;
    return y;
}

static struct fuse_tensor *api_dropout(struct fuse_graph *graph, struct fuse_tensor *x, double probability)
{
    if (!is_usable(graph, x, "dropout") || !is_probability(graph, probability))
        return NULL;
    if (probability == 0)
        return x;
    struct fuse_tensor *y = fuse_graph_add_node(graph, FUSERUN_OP_DROPOUT, &x, 1, x->rank, x->shape);
    if (y != NULL) {
        last_node(graph)->integers[0] = next_stream(graph);
        last_node(graph)->numbers[0] = probability;
    }
    return y;
}

static void api_block(struct fuse_graph *graph, struct fuse_tensor *x)
{
    if (is_usable(graph, x, "block"))
        graph->block_count++;
}

const struct fuse_graph_api *fuse_graph_services(void)
{
    static const struct fuse_graph_api services = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_graph_api, block),
        .parameter = api_parameter,
        .linear = api_linear,
        .relu = api_relu,
        .gelu = api_gelu,
        .tanh = api_tanh,
        .add = api_add,
        .flatten = api_flatten,
        .shape = api_shape,
        .on_gradient = api_on_gradient,
        .status = api_status,
        .fail = api_fail,
        .patches = api_patches,
        .layer_norm = api_layer_norm,
        .attention = api_attention,
        .prepend = api_prepend,
        .add_batch = api_add_batch,
        .select = api_select,
        .dropout = api_dropout,
        .block = api_block,
    };
    return &services;
}
