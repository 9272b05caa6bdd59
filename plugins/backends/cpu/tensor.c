#include "tensor.h"
#include "product.h"
#include "threads.h"

#include "../tensor_check.h"

#include <stdlib.h>

struct fuse_compiled_tensor {
    struct fuse_tensor_checker checker;
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
    *workspace_bytes = (uint64_t)plan->sum_count * sizeof(double);
    if (made == NULL)
        return fuse_fail_op_memory(cpu, sizeof(*made), error);
    made->checker = fuse_tensor_checker_of(cpu->host, rule, plan);
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
    FUSE_TRY(fuse_tensor_check_product(&call->compiled->checker, product, error));
    return fuse_product_run(call->compiled->products[product], 0, a, b, NULL, c, update->workspace, error);
}

struct pass {
    const struct fuse_pass_call *call;
    void (*function)(const struct fuse_pass_call *call, int64_t begin, int64_t end);
};

static void go_over(void *context, int64_t begin, int64_t end)
{
    const struct pass *const self = context;
    self->function(self->call, begin, end);
}

static int run_pass(const struct fuse_tensor_update *update, uint32_t index, int64_t matrices, int64_t rows,
                    int64_t columns, struct fuse_error *error)
{
    const struct call *const owner = update->backend;
    const struct fuse_tensor_checker *const checker = &owner->compiled->checker;
    FUSE_TRY(fuse_tensor_check_pass(checker, index, matrices, rows, columns, error));
    const struct fuse_tensor_pass *const pass = checker->rule->passes[index];
    const struct fuse_pass_call call = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_pass_call, sums),
                                        .update = update,
                                        .matrices = matrices,
                                        .rows = rows,
                                        .columns = columns,
                                        .sums = update->workspace};
    const int64_t items = fuse_pass_items(pass, matrices, rows, columns);
    struct pass self = {&call, pass->over_elements};
    split(update, items, pass->kind == FUSERUN_OVER_COLUMNS ? rows : columns, go_over, &self);
    if (pass->kind == FUSERUN_OVER_ELEMENTS)
        return FUSERUN_OK;
    if (pass->kind == FUSERUN_OVER_ALL) {
        double total = 0.0;
        for (int64_t i = 0; i < items; i++)
            total += call.sums[i];
        call.sums[0] = total;
    }
    self.function = pass->over_sums;
    split(update, pass->kind == FUSERUN_OVER_ALL ? 1 : items, 1, go_over, &self);
    return FUSERUN_OK;
}

int fuse_tensor_update(const struct fuse_cpu *cpu, struct fuse_compiled_tensor *compiled,
                       const struct fuse_tensor_update *update, struct fuse_error *error)
{
    struct call call = {cpu, compiled};
    struct fuse_tensor_update complete = *update;
    complete.split = split;
    complete.multiply = multiply;
    complete.run_pass = run_pass;
    complete.backend = &call;
    return compiled->checker.rule->update_tensor(&complete, error);
}
