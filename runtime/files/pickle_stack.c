#include "files/pickle_machine.h"

#include "files/files.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 32 * 1024 };

/* ---- messages -------------------------------------------------------------------------------------------------- */

int fuse_pickle_broken(const struct fuse_pickle_machine *machine, const char *what)
{
    (void)fuse_fail(machine->error, FUSERUN_ERROR_FORMAT, NULL, "'%s' is not a valid .pth file: data.pkl, byte %zu: %s",
                    fuse_shown_path(machine->path), machine->op_at, what);
    return FUSERUN_ERROR_FORMAT;
}

int fuse_pickle_refuses(const struct fuse_pickle_machine *machine, const char *module, size_t module_length,
                        const char *name, size_t name_length)
{
    char first[FUSE_SHOWN_BYTES], second[FUSE_SHOWN_BYTES];
    (void)fuse_fail(machine->error, FUSERUN_ERROR_FORMAT, NULL,
                    "%s: refuses '%s.%s' (data.pkl, byte %zu): a .pth file may hold tensors and plain values, and "
                    "nothing in it is executed; save model.state_dict() instead of objects",
                    fuse_shown_path(machine->path), fuse_shown(module, module_length, first),
                    fuse_shown(name, name_length, second), machine->op_at);
    return FUSERUN_ERROR_FORMAT;
}

static int no_memory(const struct fuse_pickle_machine *machine, size_t bytes)
{
    (void)fuse_fail_memory(machine->error, "the values of a .pth file", bytes);
    return FUSERUN_ERROR_MEMORY;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static int charge(struct fuse_pickle_machine *machine, size_t bytes)
{
    if (bytes > FUSE_PICKLE_MEMORY_LIMIT - machine->pickle->memory_bytes)
        return fuse_pickle_broken(machine, "its values take more than 48 MiB");
    machine->pickle->memory_bytes += bytes;
    return FUSERUN_OK;
}

int fuse_pickle_allocate(struct fuse_pickle_machine *machine, size_t bytes, void **memory)
{
    struct fuse_pickle *pickle = machine->pickle;
    bytes = (bytes + 7) / 8 * 8;
    if (bytes > pickle->block_left) {
        const size_t wanted = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        FUSE_TRY(charge(machine, wanted));
        struct fuse_pickle_block *block = malloc(sizeof *block + wanted);
        if (block == NULL)
            return no_memory(machine, wanted);
        block->next = pickle->blocks;
        pickle->blocks = block;
        pickle->block_left = pickle->block_bytes = wanted;
    }
    *memory = pickle->blocks->bytes + (pickle->block_bytes - pickle->block_left);
    pickle->block_left -= bytes;
    return FUSERUN_OK;
}

/* Room for at least `wanted` elements of `size` bytes; *capacity counts them. */
static int reserve(struct fuse_pickle_machine *machine, void **array, size_t wanted, size_t *capacity, size_t size)
{
    if (wanted <= *capacity)
        return FUSERUN_OK;
    const size_t twice = *capacity * 2 > 64 ? *capacity * 2 : 64, count = wanted > twice ? wanted : twice;
    if (count > FUSE_PICKLE_MEMORY_LIMIT / size)
        return fuse_pickle_broken(machine, "its values take more than 48 MiB");
    FUSE_TRY(charge(machine, (count - *capacity) * size));
    void *grown = realloc(*array, count * size);
    if (grown == NULL)
        return no_memory(machine, count * size);
    *array = grown;
    *capacity = count;
    return FUSERUN_OK;
}

int fuse_pickle_reserve(struct fuse_pickle_machine *machine, struct fuse_pickle_stack *stack, size_t wanted)
{
    void *array = stack->values;
    const int status = reserve(machine, &array, wanted, &stack->capacity, sizeof *stack->values);
    stack->values = array;
    return status;
}

/* ---- the stack ------------------------------------------------------------------------------------------------- */

int fuse_pickle_push(struct fuse_pickle_machine *machine, struct fuse_pickle_value *value)
{
    FUSE_TRY(fuse_pickle_reserve(machine, &machine->stack, machine->stack.count + 1));
    machine->stack.values[machine->stack.count++] = value;
    return FUSERUN_OK;
}

int fuse_pickle_push_new(struct fuse_pickle_machine *machine, enum fuse_pickle_kind kind,
                         struct fuse_pickle_value **value)
{
    void *memory;
    FUSE_TRY(fuse_pickle_allocate(machine, sizeof **value, &memory));
    *value = memory;
    memset(*value, 0, sizeof **value);
    (*value)->kind = (uint8_t)kind;
    return fuse_pickle_push(machine, *value);
}

/* The stack's values from a place on; never NULL, also before anything was pushed. */
static struct fuse_pickle_value **values_from(const struct fuse_pickle_machine *machine, size_t place)
{
    static struct fuse_pickle_value *nothing[1];
    return machine->stack.values == NULL ? nothing : machine->stack.values + place;
}

/* The topmost `count` values above the last mark. They are still the stack's. */
int fuse_pickle_top(struct fuse_pickle_machine *machine, size_t count, struct fuse_pickle_value ***values)
{
    const size_t floor = machine->mark_count > 0 ? machine->marks[machine->mark_count - 1] : 0;
    if (machine->stack.count - floor < count)
        return fuse_pickle_broken(machine, "it takes more from its stack than is there");
    *values = values_from(machine, machine->stack.count - count);
    return FUSERUN_OK;
}

/* Takes the values above the last mark off the stack, and the mark with them. They stay readable until the next push.
 */
int fuse_pickle_pop_mark(struct fuse_pickle_machine *machine, struct fuse_pickle_value ***values, size_t *count)
{
    if (machine->mark_count == 0)
        return fuse_pickle_broken(machine, "there is no mark where it goes back to one");
    const size_t floor = machine->marks[--machine->mark_count];
    *values = values_from(machine, floor);
    *count = machine->stack.count - floor;
    machine->stack.count = floor;
    return FUSERUN_OK;
}

int fuse_pickle_push_mark(struct fuse_pickle_machine *machine)
{
    void *array = machine->marks;
    const int status =
        reserve(machine, &array, machine->mark_count + 1, &machine->mark_capacity, sizeof *machine->marks);
    machine->marks = array;
    FUSE_TRY(status);
    machine->marks[machine->mark_count++] = machine->stack.count;
    return FUSERUN_OK;
}

/* ---- reading the program --------------------------------------------------------------------------------------- */

int fuse_pickle_take(struct fuse_pickle_machine *machine, size_t count, const unsigned char **bytes)
{
    if (machine->byte_count - machine->at < count)
        return fuse_pickle_broken(machine, "it ends in the middle");
    *bytes = machine->bytes + machine->at;
    machine->at += count;
    return FUSERUN_OK;
}

int fuse_pickle_take_number(struct fuse_pickle_machine *machine, size_t byte_count, uint64_t *value)
{
    const unsigned char *bytes;
    FUSE_TRY(fuse_pickle_take(machine, byte_count, &bytes));
    *value = 0;
    while (byte_count-- > 0)
        *value = *value << 8 | bytes[byte_count];
    return FUSERUN_OK;
}

int fuse_pickle_take_line(struct fuse_pickle_machine *machine, const char **line, size_t *length)
{
    const unsigned char *begin = machine->bytes + machine->at;
    const unsigned char *end = memchr(begin, '\n', machine->byte_count - machine->at);
    if (end == NULL)
        return fuse_pickle_broken(machine, "it ends in the middle");
    *line = (const char *)begin;
    *length = (size_t)(end - begin);
    machine->at += *length + 1;
    return FUSERUN_OK;
}
