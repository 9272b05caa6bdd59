/* fuserun/model.h - how to write a model, and how to watch its gradients.
 *
 * A model builds a graph: it declares parameters and connects operations. It allocates nothing and computes nothing;
 * fuserun derives the backward pass, plans the memory and runs it. build() is called once for every batch size that the
 * run needs, and must declare the same parameters in the same order each time.
 *
 * Errors stick: an operation on wrong shapes (or on NULL) remembers the first mistake and returns NULL, so a model may
 * chain calls without checking each, and return graph->status() at its end. */
#ifndef FUSERUN_MODEL_H
#define FUSERUN_MODEL_H

#include <fuserun/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fuse_graph;  /* opaque; valid during build() */
struct fuse_tensor; /* opaque; owned by its graph */

enum fuse_init_kind {
    FUSERUN_INIT_ZEROS = 1,
    FUSERUN_INIT_CONSTANT = 2,     /* a */
    FUSERUN_INIT_UNIFORM = 3,      /* in [a, b) */
    FUSERUN_INIT_NORMAL = 4,       /* mean a, standard deviation b */
    FUSERUN_INIT_TRUNC_NORMAL = 5  /* the same, within two standard deviations */
};

struct fuse_init {
    uint32_t struct_size;
    uint32_t kind; /* enum fuse_init_kind */
    double a;
    double b;
};
#define FUSERUN_INIT(kind_, a_, b_) {FUSERUN_STRUCT_SIZE(fuse_init, b), kind_, a_, b_}

/* A gradient, or a piece of one, at the moment it is complete. The values may be changed by the callback; the memory is
 * reused after the last callback returns. */
struct fuse_gradient {
    uint32_t struct_size;
    uint32_t rank;
    const char *parameter;             /* its name */
    int64_t shape[FUSERUN_MAX_DIMS];   /* of the whole parameter */
    float *values;                     /* device memory: elements [first, first + count) of the gradient */
    int64_t first;
    int64_t count;
    uint32_t is_panel;                 /* 1: called from inside a product, on one of several threads; 0: on the main one */
};

enum fuse_gradient_form {
    FUSERUN_GRADIENT_PANELS = 1, /* pieces of whole rows, in any order, from several threads at once: [worker] */
    FUSERUN_GRADIENT_WHOLE = 2   /* the whole gradient, in one call: [main]; makes the planner keep it whole */
};

/* Post-accumulate callback: runs inside the backward pass, once a gradient has its last contribution (after every use
 * of a tied weight) and after the last operation that reads the old weight. Callbacks of a parameter run in the order
 * they were attached; the fused optimizer is one of them, attached last. [no-alloc] */
struct fuse_gradient_callback {
    uint32_t struct_size;
    uint32_t form; /* enum fuse_gradient_form */
    void (*gradient)(void *user, const struct fuse_gradient *gradient);
    void *user;
    /* Optional: what gradient(), handed the panel of elements [first, first + count), will go through besides its
     * values. Writes up to FUSERUN_MAX_SPANS spans of host memory and returns how many; they may be fetched
     * into a cache while the panel is made. [worker] [no-alloc] */
    uint32_t (*spans)(void *user, int64_t first, int64_t count, struct fuse_span *spans);
};

/* What a model builds with. Tensors keep their leading batch dimension: the input is (B, input shape...). */
struct fuse_graph_api {
    uint32_t struct_size;

    /* A trainable parameter. Using the tensor in several places ties the weight; its gradient is the sum. */
    struct fuse_tensor *(*parameter)(struct fuse_graph *graph, const char *name, uint32_t rank, const int64_t *shape,
                                     const struct fuse_init *init);
    struct fuse_tensor *(*linear)(struct fuse_graph *graph, struct fuse_tensor *x, struct fuse_tensor *weight,
                                  struct fuse_tensor *bias); /* x (..., K), weight (N, K) or (N, ...) with K elements a
                                                                row, bias (N) or NULL -> (..., N) */
    struct fuse_tensor *(*relu)(struct fuse_graph *graph, struct fuse_tensor *x);
    struct fuse_tensor *(*gelu)(struct fuse_graph *graph, struct fuse_tensor *x); /* the erf form */
    struct fuse_tensor *(*tanh)(struct fuse_graph *graph, struct fuse_tensor *x);
    struct fuse_tensor *(*add)(struct fuse_graph *graph, struct fuse_tensor *a, struct fuse_tensor *b);
    struct fuse_tensor *(*flatten)(struct fuse_graph *graph, struct fuse_tensor *x); /* (B, ...) -> (B, product) */

    /* The dimensions of a tensor; returns the rank. */
    uint32_t (*shape)(const struct fuse_tensor *tensor, int64_t shape[FUSERUN_MAX_DIMS]);

    /* Attaches a callback to a parameter; `callback` is copied. */
    void (*on_gradient)(struct fuse_graph *graph, struct fuse_tensor *parameter,
                        const struct fuse_gradient_callback *callback);

    /* The sticky error: FUSERUN_OK while there was none. fail() sets it with a message of the model's own. */
    int (*status)(const struct fuse_graph *graph);
    struct fuse_tensor *(*fail)(struct fuse_graph *graph, const char *key, const char *format, ...) FUSERUN_PRINTF(3, 4);

    /* For transformers. */
    struct fuse_tensor *(*patches)(struct fuse_graph *graph, struct fuse_tensor *x,
                                   int64_t patch); /* (B, C, H, W) -> (B, (H/p)(W/p), C p p) */
    struct fuse_tensor *(*layer_norm)(struct fuse_graph *graph, struct fuse_tensor *x, struct fuse_tensor *weight,
                                      struct fuse_tensor *bias, double eps); /* over the last dimension */
    struct fuse_tensor *(*attention)(struct fuse_graph *graph, struct fuse_tensor *qkv, int64_t heads,
                                     double dropout); /* (B, S, 3 D) -> (B, S, D) */
    struct fuse_tensor *(*prepend)(struct fuse_graph *graph, struct fuse_tensor *x,
                                   struct fuse_tensor *token); /* (B, S, D), D elements -> (B, S + 1, D) */
    struct fuse_tensor *(*add_batch)(struct fuse_graph *graph, struct fuse_tensor *x,
                                     struct fuse_tensor *parameter); /* added to every sample */
    struct fuse_tensor *(*select)(struct fuse_graph *graph, struct fuse_tensor *x,
                                  int64_t index); /* (B, S, D) -> (B, D) */
    struct fuse_tensor *(*dropout)(struct fuse_graph *graph, struct fuse_tensor *x,
                                   double probability); /* in training only */

    /* Says that a new block begins with tensor x: with `recompute = blocks` only the tensors that enter blocks are kept, and
     * what is inside a block is computed again, with the same random numbers, when the backward pass comes to it. */
    void (*block)(struct fuse_graph *graph, struct fuse_tensor *x);
};

struct fuse_model {
    uint32_t struct_size;

    /* Builds the graph on `input` and sets *output, (B, ...). */
    int (*build)(const struct fuse_host *host, const struct fuse_options *options, const struct fuse_graph_api *api,
                 struct fuse_graph *graph, struct fuse_tensor *input, struct fuse_tensor **output);
};

#ifdef __cplusplus
}
#endif
#endif
