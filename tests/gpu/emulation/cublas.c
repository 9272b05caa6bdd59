/* cuBLAS's entry points. Products run in the handle's stream, in order with the kernels there. */
#include "emulation.h"
#include "entries.h"

#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 3,
    INVALID_VALUE = 7,
    ARCH_MISMATCH = 8,
    EXECUTION_FAILED = 13,
    NOT_SUPPORTED = 15
};

#define LEAST_WORKSPACE_BYTES (UINT64_C(4) << 20)

struct library {
    struct library *next;
    struct emu_stream *stream;
    void *workspace;
    size_t workspace_bytes;
    bool has_full_reductions;
};
static struct library *libraries;

static bool is_alive(const struct library *library)
{
    for (const struct library *at = libraries; at != NULL; at = at->next)
        if (at == library)
            return true;
    return false;
}

static int wrong(const char *name, const char *what, int code)
{
    emu_complain("%s: %s", name, what);
    return code;
}

int cublasCreate_v2(void **handle)
{
    EMU_ENTER(int);
    struct library *const made = calloc(1, sizeof *made);
    if (made == NULL)
        return ALLOC_FAILED;
    made->next = libraries;
    libraries = made;
    *handle = made;
    emu_count_made(EMU_LIBRARY);
    return SUCCESS;
}

int cublasDestroy_v2(void *handle)
{
    static struct emu_entry entry;
    __attribute__((cleanup(emu_leave))) const int entered = emu_enter(&entry, __func__);
    if (entered != 0 && emu_lost_code() == 0)
        return entered;
    for (struct library **at = &libraries; *at != NULL; at = &(*at)->next)
        if (*at == handle) {
            *at = (*at)->next;
            emu_streams_finish();
            free(handle);
            emu_count_gone(EMU_LIBRARY);
            return entered;
        }
    return wrong(__func__, "no such handle", NOT_INITIALIZED);
}

int cublasGetVersion_v2(void *handle, int *version)
{
    EMU_ENTER(int);
    if (!is_alive(handle))
        return wrong(__func__, "no such handle", NOT_INITIALIZED);
    *version = 130000;
    return SUCCESS;
}

int cublasSetStream_v2(void *handle, void *stream)
{
    EMU_ENTER(int);
    struct library *const self = handle;
    if (!is_alive(self))
        return wrong(__func__, "no such handle", NOT_INITIALIZED);
    if (stream != NULL && !emu_stream_is_alive(stream))
        return wrong(__func__, "no such stream", INVALID_VALUE);
    self->stream = stream;
    self->workspace = NULL; /* as the library's reference says */
    return SUCCESS;
}

int cublasSetMathMode(void *handle, int mode)
{
    EMU_ENTER(int);
    struct library *const self = handle;
    if (!is_alive(self))
        return wrong(__func__, "no such handle", NOT_INITIALIZED);
    if ((mode & ~FUSE_CUBLAS_FULL_REDUCTIONS) != 0)
        return wrong(__func__, "a mode that the emulation does not know", INVALID_VALUE);
    self->has_full_reductions = mode != 0;
    return SUCCESS;
}

int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes)
{
    EMU_ENTER(int);
    struct library *const self = handle;
    if (!is_alive(self))
        return wrong(__func__, "no such handle", NOT_INITIALIZED);
    if (workspace != NULL && ((uintptr_t)workspace % 256 != 0 || !emu_memory_holds(workspace, bytes)))
        return wrong(__func__, "the workspace is not aligned to 256 bytes, or not in the device's memory",
                     INVALID_VALUE);
    self->workspace = workspace;
    self->workspace_bytes = bytes;
    return SUCCESS;
}

/* ---- products -----------------------------------------------------------------------------------------------------
 */

/* `count` products, their matrices either three pointers or, where is_batched, three arrays of pointers on the device.
 */
struct product {
    struct emu_work work;
    struct emu_product shape;
    const void *a, *b;
    void *c;
    bool is_batched;
    int count;
    void *workspace;
    size_t workspace_bytes;
};

/* Elements from the first to the last of a stored matrix. */
static uint64_t matrix_bytes(const struct emu_matrix *matrix, int64_t rows, int64_t columns)
{
    const int64_t stored_rows = matrix->is_transposed ? columns : rows;
    const int64_t stored_columns = matrix->is_transposed ? rows : columns;
    const uint64_t each = matrix->type == EMU_FLOAT32 ? 4 : 2;
    return (uint64_t)((stored_columns - 1) * matrix->stride + stored_rows) * each;
}

/* To its elements, and, where the library cannot see the pointers when it chooses among its kernels, to what the
 * fastest of them read at once: its reference asks for that in batches of 16 bit types and of TF32. */
static bool is_aligned(const struct emu_product *shape, const struct emu_matrix *matrix, const void *data)
{
    const uintptr_t element_bytes = matrix->type == EMU_FLOAT32 ? 4 : 2;
    return (uintptr_t)data % (shape->wants_alignment ? 16 : element_bytes) == 0;
}

static void run_one(const struct emu_product *shape, const void *a, const void *b, void *c)
{
    if (!emu_memory_holds(a, matrix_bytes(&shape->a, shape->m, shape->k)) ||
        !emu_memory_holds(b, matrix_bytes(&shape->b, shape->k, shape->n)) ||
        !emu_memory_holds(c, matrix_bytes(&shape->c, shape->m, shape->n)))
        emu_give_up("a product's matrix is not in the device's memory");
    if (!is_aligned(shape, &shape->a, a) || !is_aligned(shape, &shape->b, b) || !is_aligned(shape, &shape->c, c))
        emu_give_up("a product's matrix is not aligned");
    emu_product_run(shape, a, b, c);
}

static void run_product(struct emu_work *work)
{
    const struct product *const self = (const struct product *)work;
    if (self->workspace != NULL) /* it is the library's */
        memset(self->workspace, 0xff, self->workspace_bytes);
    for (int i = 0; i < self->count; i++)
        if (self->is_batched)
            run_one(&self->shape, ((const void *const *)self->a)[i], ((const void *const *)self->b)[i],
                    ((void *const *)self->c)[i]);
        else
            run_one(&self->shape, self->a, self->b, self->c);
}

static bool read_type(int type, enum emu_type *known)
{
    *known = type == FUSE_CUBLAS_BFLOAT16 ? EMU_BFLOAT16 : EMU_FLOAT32;
    return type == FUSE_CUBLAS_BFLOAT16 || type == FUSE_CUBLAS_FLOAT32;
}

static int push(const char *name, struct product product, const struct library *library, int a_type, int b_type,
                int c_type, int transpose_a, int transpose_b, int compute_type)
{
    struct emu_product *const shape = &product.shape;
    if (!is_alive(library))
        return wrong(name, "no such handle", NOT_INITIALIZED);
    shape->a.is_transposed = transpose_a == FUSE_CUBLAS_TRANSPOSE;
    shape->b.is_transposed = transpose_b == FUSE_CUBLAS_TRANSPOSE;
    shape->rounds_to_tf32 = compute_type == FUSE_CUBLAS_COMPUTE_TF32;
    if (!read_type(a_type, &shape->a.type) || !read_type(b_type, &shape->b.type) ||
        !read_type(c_type, &shape->c.type) || shape->a.type != shape->b.type ||
        (shape->a.type == EMU_FLOAT32 && shape->c.type != EMU_FLOAT32) ||
        (compute_type != FUSE_CUBLAS_COMPUTE_FLOAT32 &&
         (compute_type != FUSE_CUBLAS_COMPUTE_TF32 || shape->a.type == EMU_BFLOAT16)))
        return wrong(name, "types that do not go together", NOT_SUPPORTED);
    if (shape->a.type == EMU_BFLOAT16 && emu_settings()->capability < 80)
        return wrong(name, "bfloat16 on a device that does not multiply it", ARCH_MISMATCH);
    shape->reduces_in_c = !library->has_full_reductions;
    shape->wants_alignment = product.is_batched && (shape->a.type == EMU_BFLOAT16 || shape->rounds_to_tf32);
    if (transpose_a < 0 || transpose_a > 1 || transpose_b < 0 || transpose_b > 1 || shape->m <= 0 || shape->n <= 0 ||
        shape->k <= 0 || shape->a.stride < (shape->a.is_transposed ? shape->k : shape->m) ||
        shape->b.stride < (shape->b.is_transposed ? shape->n : shape->k) || shape->c.stride < shape->m ||
        product.count < 0)
        return wrong(name, "sizes that do not go together", INVALID_VALUE);
    struct product *const work = malloc(sizeof *work);
    if (work == NULL)
        return ALLOC_FAILED;
    *work = product;
    work->work.run = run_product;
    work->workspace = library->workspace;
    work->workspace_bytes = library->workspace_bytes;
    emu_count_launch(name);
    emu_stream_push(library->stream != NULL ? library->stream : emu_stream_default(), &work->work);
    return emu_lost_code() != 0 ? EXECUTION_FAILED : SUCCESS;
}

int cublasGemmEx(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
                 int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type,
                 int ldc, int compute_type, int algorithm)
{
    EMU_ENTER(int);
    (void)algorithm;
    const struct product product = {.shape = {.m = m,
                                              .n = n,
                                              .k = k,
                                              .a.stride = lda,
                                              .b.stride = ldb,
                                              .c.stride = ldc,
                                              .alpha = *(const float *)alpha,
                                              .beta = *(const float *)beta},
                                    .a = a,
                                    .b = b,
                                    .c = c,
                                    .count = 1};
    return push(__func__, product, handle, a_type, b_type, c_type, transpose_a, transpose_b, compute_type);
}

int cublasGemmBatchedEx(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                        const void *const *a, int a_type, int lda, const void *const *b, int b_type, int ldb,
                        const void *beta, void *const *c, int c_type, int ldc, int count, int compute_type,
                        int algorithm)
{
    EMU_ENTER(int);
    (void)algorithm;
    const uint64_t bytes = (uint64_t)count * sizeof(void *);
    if (!emu_memory_holds(a, bytes) || !emu_memory_holds(b, bytes) || !emu_memory_holds(c, bytes))
        return wrong(__func__, "the arrays of pointers are not in the device's memory", INVALID_VALUE);
    const struct product product = {.shape = {.m = m,
                                              .n = n,
                                              .k = k,
                                              .a.stride = lda,
                                              .b.stride = ldb,
                                              .c.stride = ldc,
                                              .alpha = *(const float *)alpha,
                                              .beta = *(const float *)beta},
                                    .a = (const void *)a,
                                    .b = (const void *)b,
                                    .c = (void *)(uintptr_t)c,
                                    .is_batched = true,
                                    .count = count};
    return push(__func__, product, handle, a_type, b_type, c_type, transpose_a, transpose_b, compute_type);
}
