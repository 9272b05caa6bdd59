#include "graph/construct.h"

#include "base/random.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t fuse_element_count(uint32_t rank, const int64_t *shape)
{
    int64_t count = 1;
    for (uint32_t i = 0; i < rank; i++)
        count *= shape[i];
    return count;
}

/* False if the shape is not usable: a dimension below 1, or more elements than memory could ever hold. */
bool fuse_is_shape_sound(uint32_t rank, const int64_t *shape)
{
    int64_t count = 1;
    if (rank > FUSERUN_MAX_DIMS)
        return false;
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] < 1 || shape[i] > (INT64_C(1) << 44) / count)
            return false;
        count *= shape[i];
    }
    return true;
}

/* Makes room for one more of `size` bytes. */
bool fuse_graph_grow(void **array, uint32_t count, uint32_t *capacity, size_t size)
{
    if (count < *capacity)
        return true;
    const uint32_t wanted = *capacity == 0 ? 16 : *capacity * 2;
    void *grown = realloc(*array, wanted * size);
    if (grown == NULL)
        return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

struct fuse_tensor *fuse_graph_fail(struct fuse_graph *graph, int code, const char *key, const char *format, ...)
{
    if (graph->error.code == FUSERUN_OK) {
        va_list arguments;
        va_start(arguments, format);
        (void)fuse_fail_va(&graph->error, code, key, format, arguments);
        va_end(arguments);
    }
    return NULL;
}

struct fuse_tensor *fuse_graph_out_of_memory(struct fuse_graph *graph)
{
    return fuse_graph_fail(graph, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the graph");
}

struct fuse_tensor *fuse_graph_add_tensor(struct fuse_graph *graph, enum fuse_tensor_role role, uint32_t rank,
                                          const int64_t *shape)
{
    if (!fuse_graph_grow((void **)&graph->tensors, graph->tensor_count, &graph->tensor_capacity,
                         sizeof *graph->tensors))
        return fuse_graph_out_of_memory(graph);
    struct fuse_tensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL)
        return fuse_graph_out_of_memory(graph);
    *tensor = (struct fuse_tensor){.graph = graph,
                                   .index = graph->tensor_count,
                                   .role = role,
                                   .rank = rank,
                                   .parameter = UINT32_MAX,
                                   .storage = graph->tensor_count};
    memcpy(tensor->shape, shape, rank * sizeof *shape);
    graph->tensors[graph->tensor_count++] = tensor;
    return tensor;
}

struct fuse_tensor *fuse_graph_add_node(struct fuse_graph *graph, enum fuse_op_kind kind,
                                        struct fuse_tensor *const *inputs, uint32_t input_count, uint32_t rank,
                                        const int64_t *shape)
{
    if (!fuse_graph_grow((void **)&graph->nodes, graph->node_count, &graph->node_capacity, sizeof *graph->nodes))
        return fuse_graph_out_of_memory(graph);
    struct fuse_tensor *output = fuse_graph_add_tensor(graph, FUSE_TENSOR_ACTIVATION, rank, shape);
    if (output == NULL)
        return NULL;
    struct fuse_node *node = &graph->nodes[graph->node_count++];
    *node = (struct fuse_node){
        .kind = kind, .input_count = input_count, .output = output->index, .block = graph->block_count};
    for (uint32_t i = 0; i < input_count; i++)
        node->inputs[i] = inputs[i] == NULL ? UINT32_MAX : inputs[i]->index;
    return output;
}

int fuse_graph_attach(struct fuse_graph *graph, uint32_t parameter, const struct fuse_gradient_callback *callback,
                      struct fuse_error *error)
{
    struct fuse_parameter *target = &graph->parameters[parameter];
    const size_t bytes = (target->callback_count + 1) * sizeof *target->callbacks;
    struct fuse_gradient_callback *callbacks = realloc(target->callbacks, bytes);
    if (callbacks == NULL)
        return fuse_fail_memory(error, "a gradient callback", bytes);
    target->callbacks = callbacks;
    struct fuse_gradient_callback *added = &callbacks[target->callback_count++];
    *added = (struct fuse_gradient_callback){0};
    memcpy(added, callback, callback->struct_size < sizeof *added ? callback->struct_size : sizeof *added);
    return FUSERUN_OK;
}

int fuse_graph_new(uint32_t rank, const int64_t *shape, struct fuse_graph **graph, struct fuse_error *error)
{
    *graph = NULL;
    if (rank < 1 || !fuse_is_shape_sound(rank, shape))
        return fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the input has an impossible shape");
    struct fuse_graph *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "the graph", sizeof *made);
    made->error = (struct fuse_error)FUSE_ERROR_INIT;
    if (fuse_graph_add_tensor(made, FUSE_TENSOR_INPUT, rank, shape) == NULL) {
        *error = made->error;
        fuse_graph_free(&made);
        return FUSERUN_ERROR_MEMORY;
    }
    *graph = made;
    return FUSERUN_OK;
}

struct fuse_tensor *fuse_graph_input(struct fuse_graph *graph)
{
    return graph->tensors[0];
}

int fuse_graph_build(const struct fuse_host *host, const struct fuse_component *model,
                     const struct fuse_options *options, uint32_t rank, const int64_t *shape, struct fuse_graph **graph,
                     struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_graph *made = NULL;
    FUSE_TRY_OUT(fuse_graph_new(rank, shape, &made, error));
    const struct fuse_model *api = model->api;
    struct fuse_tensor *output = NULL;
    status = api->build(host, options, fuse_graph_services(), made, fuse_graph_input(made), &output);
    if (made->error.code != FUSERUN_OK) {
        *error = made->error;
        status = made->error.code;
    } else if (status != FUSERUN_OK)
        (void)fuse_fail(error, status, NULL, "model '%s' failed without saying why", model->name);
    else if (output == NULL || output->graph != made)
        status = fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "model '%s' gives no output", model->name);
    else if (output->rank < 2 || output->shape[0] != shape[0])
        status = fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                           "model '%s': the output must be (B, ...) for the batch of %lld", model->name,
                           (long long)shape[0]);
    else
        made->output = output->index;
    if (status == FUSERUN_OK) {
        *graph = made;
        made = NULL;
    }
out:
    fuse_graph_free(&made);
    return status;
}

void fuse_graph_free(struct fuse_graph **graph)
{
    struct fuse_graph *freed = *graph;
    if (freed == NULL)
        return;
    for (uint32_t i = 0; i < freed->tensor_count; i++)
        free(freed->tensors[i]);
    for (uint32_t i = 0; i < freed->parameter_count; i++) {
        free(freed->parameters[i].name);
        free(freed->parameters[i].callbacks);
    }
    free(freed->tensors);
    free(freed->nodes);
    free(freed->parameters);
    free(freed);
    *graph = NULL;
}

void fuse_parameter_fill(const struct fuse_parameter *parameter, uint32_t index, uint64_t seed, float *values)
{
    const struct fuse_init *init = &parameter->init;
    const uint64_t stream = FUSE_STREAM_PARAMETER + index;
    const size_t count = (size_t)parameter->element_count;
    switch (init->kind) {
    case FUSERUN_INIT_UNIFORM:
        fuse_random_uniform(seed, stream, 0, values, count);
        for (size_t i = 0; i < count; i++)
            values[i] = (float)(init->a + (init->b - init->a) * (double)values[i]);
        break;
    case FUSERUN_INIT_NORMAL:
        for (size_t i = 0; i < count; i++)
            values[i] = (float)(init->a + init->b * fuse_random_normal(seed, stream, i));
        break;
    case FUSERUN_INIT_TRUNC_NORMAL:
        /* Rejection with draws of its own for each element, so that an element never depends on its neighbours. */
        for (size_t i = 0; i < count; i++) {
            double value = 0;
            for (uint64_t draw = 0; draw < 64; draw++) {
                value = fuse_random_normal(seed, stream, (uint64_t)i * 64 + draw);
                if (fabs(value) <= 2.0)
                    break;
            }
            values[i] = (float)(init->a + init->b * value);
        }
        break;
    case FUSERUN_INIT_CONSTANT:
        for (size_t i = 0; i < count; i++)
            values[i] = (float)init->a;
        break;
    default:
        memset(values, 0, count * sizeof *values);
    }
}
