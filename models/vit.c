/* torchvision's VisionTransformer (Dosovitskiy et al., "An image is worth 16x16 words", 2020): its parameter names,
 * shapes, order, initial values and arithmetic (eps 1e-6, erf GELU, the class token first, q k^T / sqrt(d)). */
#include <fuserun/model.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "preset", .type = FUSERUN_OPTION_CHOICE,
                   .choices = "vit_b_16|vit_b_32|vit_l_16|vit_l_32|vit_h_14",
                   .help = "a model of torchvision; single dimensions win over it"),
    FUSERUN_OPTION(.key = "image_size", .type = FUSERUN_OPTION_INTEGER, .range = "[1, 16384]", .unit = "pixels",
                   .help = "side of the square images (224 with a preset)"),
    FUSERUN_OPTION(.key = "patch_size", .type = FUSERUN_OPTION_INTEGER, .range = "[1, 16384]", .unit = "pixels",
                   .help = "side of a patch; divides image_size"),
    FUSERUN_OPTION(.key = "num_layers", .type = FUSERUN_OPTION_INTEGER, .range = "[1, 512]", .help = "encoder blocks"),
    FUSERUN_OPTION(.key = "num_heads", .type = FUSERUN_OPTION_INTEGER, .range = "[1, 4096]",
                   .help = "attention heads; divides hidden_dim"),
    FUSERUN_OPTION(.key = "hidden_dim", .type = FUSERUN_OPTION_INTEGER, .range = "[1, 1048576]",
                   .help = "width of a token"),
    FUSERUN_OPTION(.key = "mlp_dim", .type = FUSERUN_OPTION_INTEGER, .range = "[1, 16777216]",
                   .help = "width inside a block's MLP"),
    FUSERUN_OPTION(.key = "num_classes", .type = FUSERUN_OPTION_INTEGER, .range = "[1, 16777216]",
                   .default_text = "1000", .help = "outputs of the head"),
    FUSERUN_OPTION(.key = "representation_size", .type = FUSERUN_OPTION_INTEGER, .range = "[1, 16777216]",
                   .help = "width of a tanh layer before the head; unset: none"),
    FUSERUN_OPTION(.key = "dropout", .type = FUSERUN_OPTION_NUMBER, .range = "[0, 1)", .default_text = "0",
                   .help = "probability to drop an activation in training"),
    FUSERUN_OPTION(.key = "attention_dropout", .type = FUSERUN_OPTION_NUMBER, .range = "[0, 1)", .default_text = "0",
                   .help = "probability to drop an attention weight in training"),
};

struct dimensions {
    int64_t image_size, patch_size, num_layers, num_heads, hidden_dim, mlp_dim;
};

static const struct {
    const char *name;
    struct dimensions dimensions;
} presets[] = {
    {"vit_b_16", {224, 16, 12, 12, 768, 3072}},  {"vit_b_32", {224, 32, 12, 12, 768, 3072}},
    {"vit_l_16", {224, 16, 24, 16, 1024, 4096}}, {"vit_l_32", {224, 32, 24, 16, 1024, 4096}},
    {"vit_h_14", {224, 14, 32, 16, 1280, 5120}},
};

struct builder {
    const struct fuse_graph_api *api;
    struct fuse_graph *graph;
    struct dimensions size;
    double dropout, attention_dropout;
};

static struct fuse_tensor *parameter(const struct builder *b, const char *prefix, const char *name, uint32_t rank,
                                     const int64_t *shape, enum fuse_init_kind kind, double low, double high)
{
    char full[128];
    const struct fuse_init init = FUSERUN_INIT(kind, low, high);
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    return b->api->parameter(b->graph, full, rank, shape, &init);
}

static struct fuse_tensor *vector(const struct builder *b, const char *prefix, const char *name, int64_t width,
                                  enum fuse_init_kind kind, double low, double high)
{
    return parameter(b, prefix, name, 1, &width, kind, low, high);
}

/* A weight (out, in), uniform in +-bound. */
static struct fuse_tensor *matrix(const struct builder *b, const char *prefix, const char *name, int64_t out,
                                  int64_t in, double bound)
{
    const int64_t shape[] = {out, in};
    return parameter(b, prefix, name, 2, shape, FUSERUN_INIT_UNIFORM, -bound, bound);
}

/* torch.nn.init.xavier_uniform_. */
static double xavier(int64_t out, int64_t in)
{
    return sqrt(6.0 / (double)(out + in));
}

static struct fuse_tensor *norm(const struct builder *b, const char *prefix, const char *weight, const char *bias,
                                struct fuse_tensor *x)
{
    const int64_t width = b->size.hidden_dim;
    struct fuse_tensor *w = vector(b, prefix, weight, width, FUSERUN_INIT_CONSTANT, 1, 0);
    struct fuse_tensor *c = vector(b, prefix, bias, width, FUSERUN_INIT_ZEROS, 0, 0);
    return b->api->layer_norm(b->graph, x, w, c, 1e-6);
}

/* x + drop(out_proj(attention(in_proj(ln_1(x))))), then y + drop(mlp.3(drop(gelu(mlp.0(ln_2(y)))))). x: (B, S, D) */
static struct fuse_tensor *encoder_layer(const struct builder *b, int64_t index, struct fuse_tensor *x)
{
    const struct fuse_graph_api *api = b->api;
    struct fuse_graph *graph = b->graph;
    const int64_t width = b->size.hidden_dim, inner = b->size.mlp_dim;
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "encoder.layers.encoder_layer_%lld.", (long long)index);
    api->block(graph, x);

    struct fuse_tensor *y = norm(b, prefix, "ln_1.weight", "ln_1.bias", x);
    struct fuse_tensor *w =
        matrix(b, prefix, "self_attention.in_proj_weight", 3 * width, width, xavier(3 * width, width));
    struct fuse_tensor *c = vector(b, prefix, "self_attention.in_proj_bias", 3 * width, FUSERUN_INIT_ZEROS, 0, 0);
    y = api->attention(graph, api->linear(graph, y, w, c), b->size.num_heads, b->attention_dropout);
    w = matrix(b, prefix, "self_attention.out_proj.weight", width, width, 1.0 / sqrt((double)width));
    c = vector(b, prefix, "self_attention.out_proj.bias", width, FUSERUN_INIT_ZEROS, 0, 0);
    x = api->add(graph, x, api->dropout(graph, api->linear(graph, y, w, c), b->dropout));

    y = norm(b, prefix, "ln_2.weight", "ln_2.bias", x);
    w = matrix(b, prefix, "mlp.0.weight", inner, width, xavier(inner, width));
    c = vector(b, prefix, "mlp.0.bias", inner, FUSERUN_INIT_NORMAL, 0, 1e-6);
    y = api->dropout(graph, api->gelu(graph, api->linear(graph, y, w, c)), b->dropout);
    w = matrix(b, prefix, "mlp.3.weight", width, inner, xavier(width, inner));
    c = vector(b, prefix, "mlp.3.bias", width, FUSERUN_INIT_NORMAL, 0, 1e-6);
    return api->add(graph, x, api->dropout(graph, api->linear(graph, y, w, c), b->dropout));
}

/* (B, 3, H, W) -> (B, 1 + patches, D): the convolution whose stride is its size is a product of patches. */
static struct fuse_tensor *embed(const struct builder *b, int64_t channels, struct fuse_tensor *input)
{
    const struct fuse_graph_api *api = b->api;
    const int64_t width = b->size.hidden_dim, patch = b->size.patch_size, side = b->size.image_size / patch;
    const int64_t token_shape[] = {1, 1, width}, kernel_shape[] = {width, channels, patch, patch};
    const int64_t position_shape[] = {1, side * side + 1, width};
    struct fuse_tensor *token = parameter(b, "", "class_token", 3, token_shape, FUSERUN_INIT_ZEROS, 0, 0);
    /* torch's trunc_normal_ cuts at +-2, which is 50 standard deviations away: a normal distribution */
    struct fuse_tensor *kernel = parameter(b, "", "conv_proj.weight", 4, kernel_shape, FUSERUN_INIT_NORMAL, 0,
                                           sqrt(1.0 / (double)(channels * patch * patch)));
    struct fuse_tensor *bias = vector(b, "", "conv_proj.bias", width, FUSERUN_INIT_ZEROS, 0, 0);
    struct fuse_tensor *positions =
        parameter(b, "", "encoder.pos_embedding", 3, position_shape, FUSERUN_INIT_NORMAL, 0, 0.02);
    struct fuse_tensor *x = api->linear(b->graph, api->patches(b->graph, input, patch), kernel, bias);
    x = api->add_batch(b->graph, api->prepend(b->graph, x, token), positions);
    return api->dropout(b->graph, x, b->dropout);
}

static int read_dimensions(const struct fuse_host *host, const struct fuse_options *values, struct builder *b)
{
    static const char *const keys[] = {"image_size", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim"};
    int64_t *const fields[] = {&b->size.image_size, &b->size.patch_size, &b->size.num_layers,
                               &b->size.num_heads,  &b->size.hidden_dim, &b->size.mlp_dim};
    if (host->option_is_set(values, "preset"))
        for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
            if (strcmp(presets[i].name, host->option_text(values, "preset")) == 0)
                b->size = presets[i].dimensions;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (host->option_is_set(values, keys[i]))
            *fields[i] = host->option_integer(values, keys[i]);
        if (*fields[i] == 0) {
            (void)b->api->fail(b->graph, keys[i], "must be set, or a preset");
            return b->api->status(b->graph);
        }
    }
    b->dropout = host->option_number(values, "dropout");
    b->attention_dropout = host->option_number(values, "attention_dropout");
    if (b->size.image_size % b->size.patch_size != 0)
        (void)b->api->fail(b->graph, "patch_size", "%lld does not divide image_size = %lld",
                           (long long)b->size.patch_size, (long long)b->size.image_size);
    if (b->size.hidden_dim % b->size.num_heads != 0)
        (void)b->api->fail(b->graph, "num_heads", "%lld does not divide hidden_dim = %lld",
                           (long long)b->size.num_heads, (long long)b->size.hidden_dim);
    return b->api->status(b->graph);
}

static int build(const struct fuse_host *host, const struct fuse_options *values, const struct fuse_graph_api *api,
                 struct fuse_graph *graph, struct fuse_tensor *input, struct fuse_tensor **output)
{
    struct builder b = {.api = api, .graph = graph};
    int64_t shape[FUSERUN_MAX_DIMS] = {0};
    const uint32_t rank = api->shape(input, shape);
    if (read_dimensions(host, values, &b) != FUSERUN_OK)
        return api->status(graph);
    const long long side = b.size.image_size;
    if (rank != 4)
        (void)api->fail(graph, "image_size", "the model takes images (channels, %lld, %lld), but a sample has rank %u",
                        side, side, rank - 1);
    else if (shape[2] != side || shape[3] != side)
        (void)api->fail(graph, "image_size",
                        "the model takes images (channels, %lld, %lld), a sample is %lld x %lld x %lld", side, side,
                        (long long)shape[1], (long long)shape[2], (long long)shape[3]);
    struct fuse_tensor *x = embed(&b, shape[1], input);
    for (int64_t i = 0; i < b.size.num_layers && api->status(graph) == FUSERUN_OK; i++)
        x = encoder_layer(&b, i, x);
    /* a layer norm works on each token by itself, and only the class token goes on */
    x = norm(&b, "", "encoder.ln.weight", "encoder.ln.bias", api->select(graph, x, 0));
    int64_t width = b.size.hidden_dim;
    if (host->option_is_set(values, "representation_size")) {
        const int64_t wide = host->option_integer(values, "representation_size");
        const int64_t pre_shape[] = {wide, width};
        struct fuse_tensor *w = parameter(&b, "", "heads.pre_logits.weight", 2, pre_shape, FUSERUN_INIT_NORMAL, 0,
                                          sqrt(1.0 / (double)width));
        struct fuse_tensor *c = vector(&b, "", "heads.pre_logits.bias", wide, FUSERUN_INIT_ZEROS, 0, 0);
        x = api->tanh(graph, api->linear(graph, x, w, c));
        width = wide;
    }
    const int64_t classes = host->option_integer(values, "num_classes"), head_shape[] = {classes, width};
    struct fuse_tensor *w = parameter(&b, "", "heads.head.weight", 2, head_shape, FUSERUN_INIT_ZEROS, 0, 0);
    struct fuse_tensor *c = vector(&b, "", "heads.head.bias", classes, FUSERUN_INIT_ZEROS, 0, 0);
    *output = api->linear(graph, x, w, c);
    return api->status(graph);
}

static const struct fuse_model model = {FUSERUN_STRUCT_SIZE(fuse_model, build), build};
static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_MODEL, .name = "vit", .summary = "vision transformer, as torchvision's",
                      FUSERUN_OPTIONS(options), .api = &model),
};
FUSERUN_PLUGIN("vit", "1.0.0", "MIT", components)
