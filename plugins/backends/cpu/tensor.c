#include "tensor.h"
#include "product.h"
#include "threads.h"

#include <stdlib.h>

struct fuse_compiled_tensor {
    const struct fuse_rule *rule;
    struct fuse_product *products[FUSERUN_MAX_PRODUCTS];
    uint32_t product_count;
};

/* What the services find behind fuse_tensor_update.backend. */
struct call {
    const struct fuse_cpu *cpu;
    const struct fuse_compiled_tensor *compiled;
};

void fuse_tensor_discard(struct fuse_compiled_tensor *compiled)
{
    if (compiled == NULL)
        return;
    for (uint32_t i = 0; i < compiled->product_count; i++)
        fuse_product_free(&compiled->products[i]);
    free(compiled);
}

int fuse_tensor_compile(struct fuse_cpu *cpu, const struct fuse_rule *rule, const struct fuse_tensor_plan *plan,
                        struct fuse_compiled_tensor **compiled, uint64_t *workspace_bytes, struct fuse_error *error)
{
    struct fuse_compiled_tensor *made = calloc(1, sizeof(*made));
    *compiled = NULL;
    *workspace_bytes = 0;
    if (made == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*made), error);
    made->rule = rule;
    for (uint32_t i = 0; i < plan->product_count; i++) {
        const struct fuse_tensor_product *const wanted = &plan->products[i];
        const struct fuse_product_shape shape = {
            .m = wanted->m,
            .n = wanted->n,
            .k = wanted->k,
            .a_row = wanted->is_a_transposed ? 1 : wanted->k,
            .a_column = wanted->is_a_transposed ? wanted->m : 1,
            .b_row = wanted->is_b_transposed ? 1 : wanted->n,
            .b_column = wanted->is_b_transposed ? wanted->k : 1,
        };
        const int status = fuse_product_create(cpu->products, &shape, &made->products[i], error);
        if (status != FUSERUN_OK) {
            fuse_tensor_discard(made);
            return status;
        }
        made->product_count++;
        const uint64_t bytes = fuse_product_workspace_bytes(made->products[i]);
        *workspace_bytes = bytes > *workspace_bytes ? bytes : *workspace_bytes;
    }
    *compiled = made;
    return FUSERUN_OK;
}

struct split {
    fuse_tensor_work *work;
    void *context;
};

static void work_on(const void *context, int64_t begin, int64_t end)
{
    const struct split *const self = context;
    self->work(self->context, begin, end);
}

static void split(const struct fuse_tensor_update *update, int64_t count, int64_t each, fuse_tensor_work *work,
                  void *context)
{
    const struct call *const call = update->backend;
    const struct split self = {work, context};
    if (count > 0)
        fuse_threads_split(call->cpu->thread_count, count, each >= 16 ? 1 : 16,
                           FUSE_SERIAL_ELEMENTS / (each > 0 ? each : 1), work_on, &self);
}

static int multiply(const struct fuse_tensor_update *update, uint32_t product, const float *a, const float *b, float *c,
                    struct fuse_error *error)
{
    const struct call *const call = update->backend;
    if (product >= call->compiled->product_count)
        return call->cpu->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL, "rule %s multiplies by product %u of %u",
                                     call->compiled->rule->name, product, call->compiled->product_count);
    return fuse_product_run(call->compiled->products[product], 0, a, b, NULL, c, update->workspace, error);
}

int fuse_tensor_update(const struct fuse_cpu *cpu, struct fuse_compiled_tensor *compiled,
                       const struct fuse_tensor_update *update, struct fuse_error *error)
{
    struct call call = {cpu, compiled};
    struct fuse_tensor_update complete = *update;
    complete.split = split;
    complete.multiply = multiply;
    complete.backend = &call;
    return compiled->rule->update_tensor(&complete, error);
}
