#include "files/pickle_machine.h"

#include <stdio.h>
#include <string.h>

/* All that a pickle may name. Those with a dtype are storages. */
enum { ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER };
static const struct {
    const char *name;
    const char *dtype;
} globals[] = {
    [ORDERED_DICT] = {"collections.OrderedDict", NULL},
    [REBUILD_TENSOR] = {"torch._utils._rebuild_tensor_v2", NULL},
    [REBUILD_PARAMETER] = {"torch._utils._rebuild_parameter", NULL},
    {"torch.FloatStorage", "F32"},
    {"torch.DoubleStorage", "F64"},
    {"torch.HalfStorage", "F16"},
    {"torch.BFloat16Storage", "BF16"},
    {"torch.LongStorage", "I64"},
    {"torch.IntStorage", "I32"},
    {"torch.ShortStorage", "I16"},
    {"torch.CharStorage", "I8"},
    {"torch.ByteStorage", "U8"},
    {"torch.BoolStorage", "BOOL"},
};

const char *fuse_pickle_storage_class(const char *dtype)
{
    for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++)
        if (globals[i].dtype != NULL && strcmp(globals[i].dtype, dtype) == 0)
            return strchr(globals[i].name, '.') + 1;
    return NULL;
}

int fuse_pickle_push_global(struct fuse_pickle_machine *machine)
{
    const char *module, *name;
    size_t module_length, name_length;
    struct fuse_pickle_value *value;
    FUSE_TRY(fuse_pickle_take_line(machine, &module, &module_length));
    FUSE_TRY(fuse_pickle_take_line(machine, &name, &name_length));
    for (uint32_t i = 0; i < sizeof globals / sizeof globals[0]; i++) {
        const char *known = globals[i].name;
        const size_t known_module = (size_t)(strrchr(known, '.') - known);
        if (known_module != module_length || memcmp(known, module, module_length) != 0 ||
            strlen(known + known_module + 1) != name_length || memcmp(known + known_module + 1, name, name_length) != 0)
            continue;
        FUSE_TRY(fuse_pickle_push_new(machine, FUSE_PICKLE_GLOBAL, &value));
        value->as.global = i;
        return FUSERUN_OK;
    }
    return fuse_pickle_refuses(machine, module, module_length, name, name_length);
}

static bool is_global(const struct fuse_pickle_value *value, uint32_t global)
{
    return value->kind == FUSE_PICKLE_GLOBAL && value->as.global == global;
}

/* A size, stride or offset: an integer that is not negative (and not a bool, which Python would take for one). */
static bool read_size(const struct fuse_pickle_value *value, uint64_t *size)
{
    if (value->kind != FUSE_PICKLE_INTEGER || value->as.integer < 0)
        return false;
    *size = (uint64_t)value->as.integer;
    return true;
}

/* The persistent id of torch.save: ("storage", class, key, location, number of elements). */
int fuse_pickle_load_storage(struct fuse_pickle_machine *machine)
{
    static const char wrong[] = "its persistent id is not that of a storage";
    struct fuse_pickle_value **id, *value;
    void *memory;
    FUSE_TRY(fuse_pickle_top(machine, 1, &id));
    if ((*id)->kind != FUSE_PICKLE_TUPLE || (*id)->count != 5)
        return fuse_pickle_broken(machine, wrong);
    struct fuse_pickle_value *const *parts = (*id)->as.items;
    uint64_t count;
    if (parts[0]->kind != FUSE_PICKLE_TEXT || parts[0]->count != 7 || memcmp(parts[0]->as.text, "storage", 7) != 0 ||
        parts[1]->kind != FUSE_PICKLE_GLOBAL || globals[parts[1]->as.global].dtype == NULL ||
        parts[2]->kind != FUSE_PICKLE_TEXT || parts[3]->kind != FUSE_PICKLE_TEXT || !read_size(parts[4], &count))
        return fuse_pickle_broken(machine, wrong);
    FUSE_TRY(fuse_pickle_allocate(machine, sizeof(struct fuse_pickle_tensor), &memory));
    struct fuse_pickle_tensor *storage = memory;
    *storage = (struct fuse_pickle_tensor){
        .dtype = globals[parts[1]->as.global].dtype,
        .storage = parts[2]->as.text,
        .storage_length = parts[2]->count,
        .storage_count = count,
    };
    machine->stack.count--;
    FUSE_TRY(fuse_pickle_push_new(machine, FUSE_PICKLE_STORAGE, &value));
    value->as.tensor = storage;
    return FUSERUN_OK;
}

/* Fills shape and stride, and checks that all elements lie inside the storage. */
static int shape_tensor(struct fuse_pickle_machine *machine, struct fuse_pickle_tensor *tensor,
                        struct fuse_pickle_value *shape, struct fuse_pickle_value *stride)
{
    static const char wrong[] = "the shape or the strides of a tensor are not tuples of integers >= 0";
    void *memory;
    if (shape->kind != FUSE_PICKLE_TUPLE || stride->kind != FUSE_PICKLE_TUPLE || shape->count != stride->count)
        return fuse_pickle_broken(machine, wrong);
    if (shape->count > FUSE_PICKLE_RANK_LIMIT)
        return fuse_pickle_broken(machine, "a tensor has more than 64 dimensions");
    FUSE_TRY(fuse_pickle_allocate(machine, 2 * shape->count * sizeof(uint64_t), &memory));
    uint64_t *sizes = memory, *strides = sizes + shape->count;
    uint64_t count = 1, last = tensor->offset;
    bool is_empty = false, overflows = false, reaches_out = false;
    for (uint32_t i = 0; i < shape->count; i++) {
        if (!read_size(shape->as.items[i], &sizes[i]) || !read_size(stride->as.items[i], &strides[i]))
            return fuse_pickle_broken(machine, wrong);
        is_empty = is_empty || sizes[i] == 0;
    }
    for (uint32_t i = 0; i < shape->count; i++) {
        uint64_t step = 0;
        overflows = overflows || __builtin_mul_overflow(count, sizes[i], &count) || count > INT64_MAX;
        if (!is_empty)
            reaches_out = reaches_out || __builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
                          __builtin_add_overflow(last, step, &last);
    }
    if (overflows)
        return fuse_pickle_broken(machine, "the product of a tensor's shape does not fit into 64 bits");
    if (reaches_out || (is_empty ? last > tensor->storage_count : last >= tensor->storage_count))
        return fuse_pickle_broken(machine, "a tensor reaches past the end of its storage");
    tensor->element_count = count;
    tensor->rank = shape->count;
    tensor->shape = sizes;
    tensor->stride = strides;
    return FUSERUN_OK;
}

/* _rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, backward_hooks[, metadata]) */
static int rebuild_tensor(struct fuse_pickle_machine *machine, const struct fuse_pickle_value *arguments,
                          struct fuse_pickle_value *result)
{
    static const char wrong[] = "a tensor is not made from a storage, an offset, a shape and strides";
    struct fuse_pickle_value *const *parts = arguments->as.items;
    uint64_t offset;
    void *memory;
    if ((arguments->count != 6 && arguments->count != 7) || parts[0]->kind != FUSE_PICKLE_STORAGE ||
        !read_size(parts[1], &offset) || parts[4]->kind != FUSE_PICKLE_BOOL || parts[5]->kind != FUSE_PICKLE_DICT)
        return fuse_pickle_broken(machine, wrong);
    FUSE_TRY(fuse_pickle_allocate(machine, sizeof(struct fuse_pickle_tensor), &memory));
    struct fuse_pickle_tensor *tensor = memory;
    *tensor = *parts[0]->as.tensor;
    tensor->offset = offset;
    FUSE_TRY(shape_tensor(machine, tensor, parts[2], parts[3]));
    result->kind = FUSE_PICKLE_TENSOR;
    result->as.tensor = tensor;
    return FUSERUN_OK;
}

/* REDUCE calls, NEWOBJ makes an instance; of the names that are allowed both mean the same. */
int fuse_pickle_call(struct fuse_pickle_machine *machine)
{
    struct fuse_pickle_value **operands, *value, result = {.kind = FUSE_PICKLE_DICT, .is_ordered = true};
    FUSE_TRY(fuse_pickle_top(machine, 2, &operands));
    const struct fuse_pickle_value *called = operands[0], *arguments = operands[1];
    if (called->kind != FUSE_PICKLE_GLOBAL)
        return fuse_pickle_broken(machine, "it calls something that is not a function");
    if (arguments->kind != FUSE_PICKLE_TUPLE)
        return fuse_pickle_broken(machine, "the arguments of a call are not a tuple");
    if (is_global(called, REBUILD_TENSOR))
        FUSE_TRY(rebuild_tensor(machine, arguments, &result));
    else if (is_global(called, REBUILD_PARAMETER)) { /* (data, requires_grad, backward_hooks) */
        if (arguments->count != 3 || arguments->as.items[0]->kind != FUSE_PICKLE_TENSOR)
            return fuse_pickle_broken(machine, "a parameter is not made from a tensor");
        result = *arguments->as.items[0];
    } else if (!is_global(called, ORDERED_DICT) || arguments->count != 0) {
        char what[96];
        (void)snprintf(what, sizeof what, "it calls '%s' in a way that torch.save does not",
                       globals[called->as.global].name);
        return fuse_pickle_broken(machine, what);
    }
    machine->stack.count -= 2;
    FUSE_TRY(fuse_pickle_push_new(machine, FUSE_PICKLE_DICT, &value));
    *value = result;
    return FUSERUN_OK;
}

/* State dicts get their _metadata this way; nothing here needs it. */
int fuse_pickle_build(struct fuse_pickle_machine *machine)
{
    struct fuse_pickle_value **operands;
    FUSE_TRY(fuse_pickle_top(machine, 2, &operands));
    if (operands[0]->kind != FUSE_PICKLE_DICT || !operands[0]->is_ordered || operands[1]->kind != FUSE_PICKLE_DICT)
        return fuse_pickle_broken(machine, "it sets the state of something that is not an OrderedDict");
    machine->stack.count--;
    return FUSERUN_OK;
}
