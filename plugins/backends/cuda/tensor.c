/* Updates of whole parameters: the recipe runs on the host, passes and products on the device. Numbers stay there, so
 * nothing is waited for. */
#include "product.h"
#include "rule_text.h"
#include "texts.h"
#include "update.h"

#include "../tensor_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(FUSE_PASS_SCRATCHES == FUSERUN_MAX_SCRATCHES, "the kernels' argument has room for every rule");

/* A rule's passes on the device, for all its parameters. */
struct fuse_compiled_passes {
    const struct fuse_rule *rule;
    void *module;
    void *passes[FUSERUN_MAX_PASSES], *totals[FUSERUN_MAX_PASSES]; /* functions */
    int user_count;
    struct fuse_compiled_passes *next;
};

struct fuse_compiled_tensor {
    struct fuse_tensor_checker checker;
    struct fuse_compiled_passes *passes;
    struct fuse_product products[FUSERUN_MAX_PRODUCTS];
};

/* What the services find behind fuse_tensor_update.backend. */
struct call {
    struct fuse_cuda *cuda;
    const struct fuse_compiled_tensor *compiled;
};

/* ---- compiling ------------------------------------------------------------------------------------------------- */

static void release_passes(struct fuse_cuda *cuda, struct fuse_compiled_passes *passes)
{
    struct fuse_compiled_passes **at = &cuda->passes;
    if (passes == NULL || --passes->user_count > 0)
        return;
    while (*at != passes)
        at = &(*at)->next;
    *at = passes->next;
    if (passes->module != NULL)
        fuse_cuda_note(cuda, cuda->driver->cuModuleUnload(passes->module), "unloading kernels");
    free(passes);
}

static int find(struct fuse_cuda *cuda, void *module, const char *prefix, uint32_t pass, void **function,
                struct fuse_error *error)
{
    char name[32], what[64];
    snprintf(name, sizeof(name), "%s_%u", prefix, pass);
    snprintf(what, sizeof(what), "finding kernel %s", name);
    return fuse_cuda_check(cuda, cuda->driver->cuModuleGetFunction(function, module, name), what, error);
}

static int build(struct fuse_cuda *cuda, struct fuse_compiled_passes *made, struct fuse_error *error)
{
    const struct fuse_rule *const rule = made->rule;
    char name[128];
    char *const text = fuse_passes_text(cuda->host, rule, error);
    if (text == NULL)
        return FUSERUN_ERROR_MEMORY;
    const char *const texts[] = {FUSE_PASSES_PROGRAM(text)};
    snprintf(name, sizeof(name), "the optimizer's rule '%.100s'", rule->name);
    const int status = fuse_cuda_compile(cuda, name, texts, sizeof(texts) / sizeof(texts[0]), &made->module, error);
    free(text);
    FUSE_TRY(status);
    for (uint32_t i = 0; i < rule->pass_count; i++) {
        FUSE_TRY(find(cuda, made->module, "pass", i, &made->passes[i], error));
        if (rule->passes[i]->kind == FUSERUN_OVER_ALL)
            FUSE_TRY(find(cuda, made->module, "total", i, &made->totals[i], error));
    }
    return FUSERUN_OK;
}

/* The rule's, made if this is its first parameter. */
static int take_passes(struct fuse_cuda *cuda, const struct fuse_rule *rule, struct fuse_compiled_passes **passes,
                       struct fuse_error *error)
{
    for (*passes = cuda->passes; *passes != NULL; *passes = (*passes)->next)
        if ((*passes)->rule == rule) {
            (*passes)->user_count++;
            return FUSERUN_OK;
        }
    struct fuse_compiled_passes *const made = calloc(1, sizeof(*made));
    if (made == NULL)
        return cuda->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a rule (%zu bytes)",
                                sizeof(*made));
    *made = (struct fuse_compiled_passes){.rule = rule, .user_count = 1, .next = cuda->passes};
    cuda->passes = made;
    const int status = build(cuda, made, error);
    if (status != FUSERUN_OK)
        release_passes(cuda, made);
    else
        *passes = made;
    return status;
}

static struct fuse_product product_of(const struct fuse_tensor_product *wanted)
{
    return (struct fuse_product){
        .m = wanted->m,
        .n = wanted->n,
        .k = wanted->k,
        .a_row = wanted->is_a_transposed ? 1 : wanted->k,
        .a_column = wanted->is_a_transposed ? wanted->m : 1,
        .b_row = wanted->is_b_transposed ? 1 : wanted->n,
        .b_column = wanted->is_b_transposed ? wanted->k : 1,
        .c_row = wanted->n,
    };
}

void fuse_tensor_discard(struct fuse_cuda *cuda, struct fuse_compiled_tensor *compiled)
{
    if (compiled == NULL)
        return;
    release_passes(cuda, compiled->passes);
    free(compiled);
}

static int fill(struct fuse_cuda *cuda, const struct fuse_rule *rule, const struct fuse_tensor_plan *plan,
                struct fuse_compiled_tensor *made, struct fuse_error *error)
{
    for (uint32_t i = 0; i < plan->product_count; i++) {
        made->products[i] = product_of(&plan->products[i]);
        FUSE_TRY(fuse_product_check(cuda, &made->products[i], error));
    }
    return take_passes(cuda, rule, &made->passes, error);
}

int fuse_tensor_compile(struct fuse_cuda *cuda, const struct fuse_rule *rule, const struct fuse_tensor_plan *plan,
                        struct fuse_compiled_tensor **compiled, uint64_t *workspace_bytes, struct fuse_error *error)
{
    *compiled = NULL;
    *workspace_bytes = (uint64_t)plan->sum_count * sizeof(double);
    if (rule->pass_count == 0)
        return cuda->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                                "the optimizer's rule '%s' has no passes that CUDA could compile", rule->name);
    struct fuse_compiled_tensor *const made = calloc(1, sizeof(*made));
    if (made == NULL)
        return cuda->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for a rule (%zu bytes)",
                                sizeof(*made));
    made->checker = fuse_tensor_checker_of(cuda->host, rule, plan);
    const int status = fill(cuda, rule, plan, made, error);
    if (status != FUSERUN_OK)
        fuse_tensor_discard(cuda, made);
    else
        *compiled = made;
    return status;
}

/* ---- updating -------------------------------------------------------------------------------------------------- */

static int multiply(const struct fuse_tensor_update *update, uint32_t product, const float *a, const float *b, float *c,
                    struct fuse_error *error)
{
    const struct call *const call = update->backend;
    FUSE_TRY(fuse_tensor_check_product(&call->compiled->checker, product, error));
    return fuse_product_run(call->cuda, &call->compiled->products[product], a, b, c, error);
}

static int64_t blocks_of(const struct fuse_cuda *cuda, const struct fuse_tensor_pass *pass, int64_t matrices,
                         int64_t rows, int64_t columns)
{
    switch ((enum fuse_pass_kind)pass->kind) {
    case FUSERUN_OVER_ELEMENTS:
        return fuse_cuda_blocks(cuda, matrices * rows * columns);
    case FUSERUN_OVER_COLUMNS:
        return fuse_cuda_column_blocks(matrices * columns);
    case FUSERUN_OVER_ROWS:
    case FUSERUN_OVER_ALL:
        break;
    }
    return matrices * rows;
}

static int run_pass(const struct fuse_tensor_update *update, uint32_t index, int64_t matrices, int64_t rows,
                    int64_t columns, struct fuse_error *error)
{
    const struct call *const call = update->backend;
    struct fuse_cuda *const cuda = call->cuda;
    const struct fuse_rule *const rule = call->compiled->checker.rule;
    const struct fuse_compiled_passes *const passes = call->compiled->passes;
    FUSE_TRY(fuse_tensor_check_pass(&call->compiled->checker, index, matrices, rows, columns, error));
    struct fuse_pass_arguments arguments = {.param = update->param,
                                            .grad = update->grad,
                                            .matrices = matrices,
                                            .rows = rows,
                                            .columns = columns,
                                            .sums = update->workspace,
                                            .noticed = &cuda->results->noticed};
    memcpy(arguments.states, update->states, rule->state_count * sizeof(update->states[0]));
    memcpy(arguments.scratches, update->scratches, rule->scratch_count * sizeof(update->scratches[0]));
    memcpy(arguments.scalars, update->scalars, rule->scalar_count * sizeof(update->scalars[0]));
    const struct fuse_tensor_pass *const pass = rule->passes[index];
    FUSE_TRY(fuse_cuda_launch(cuda, passes->passes[index], pass->name, blocks_of(cuda, pass, matrices, rows, columns),
                              &arguments, error));
    if (pass->kind == FUSERUN_OVER_ALL)
        FUSE_TRY(fuse_cuda_launch(cuda, passes->totals[index], pass->name, 1, &arguments, error));
    return FUSERUN_OK;
}

int fuse_tensor_update(struct fuse_cuda *cuda, struct fuse_compiled_tensor *compiled,
                       const struct fuse_tensor_update *update, struct fuse_error *error)
{
    struct call call = {cuda, compiled};
    struct fuse_tensor_update complete = *update;
    complete.multiply = multiply;
    complete.run_pass = run_pass;
    complete.backend = &call;
    return compiled->checker.rule->update_tensor(&complete, error);
}
