#include "files/pickle_machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Opcodes of pickle protocol 2 (CPython's Lib/pickletools.py describes each), those of the weights_only unpickler. */
enum {
    OP_PROTO = 0x80,
    OP_STOP = '.',
    OP_MARK = '(',
    OP_NONE = 'N',
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_LONG1 = 0x8a,
    OP_BINFLOAT = 'G',
    OP_BINUNICODE = 'X',
    OP_SHORT_BINSTRING = 'U',
    OP_EMPTY_TUPLE = ')',
    OP_EMPTY_LIST = ']',
    OP_EMPTY_DICT = '}',
    OP_EMPTY_SET = 0x8f,
    OP_TUPLE = 't',
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_APPEND = 'a',
    OP_APPENDS = 'e',
    OP_SETITEM = 's',
    OP_SETITEMS = 'u',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_GLOBAL = 'c',
    OP_REDUCE = 'R',
    OP_NEWOBJ = 0x81,
    OP_BUILD = 'b',
    OP_BINPERSID = 'Q',
    /* Not taken, but what they name is worth showing. */
    OP_INST = 'i',
    OP_STACK_GLOBAL = 0x93
};

/* ---- plain values ---------------------------------------------------------------------------------------------- */

static int push_integer(struct fuse_pickle_machine *machine, int64_t integer)
{
    struct fuse_pickle_value *value;
    FUSE_TRY(fuse_pickle_push_new(machine, FUSE_PICKLE_INTEGER, &value));
    value->as.integer = integer;
    return FUSERUN_OK;
}

/* LONG1: a length, then so many bytes of two's complement. */
static int push_long(struct fuse_pickle_machine *machine)
{
    uint64_t length, bits = 0;
    const unsigned char *bytes;
    struct fuse_pickle_value *value;
    FUSE_TRY(fuse_pickle_take_number(machine, 1, &length));
    FUSE_TRY(fuse_pickle_take(machine, (size_t)length, &bytes));
    if (length > 8)
        return fuse_pickle_push_new(machine, FUSE_PICKLE_BIG, &value);
    if (length > 0 && (bytes[length - 1] & 0x80) != 0)
        bits = UINT64_MAX;
    for (size_t i = (size_t)length; i-- > 0;)
        bits = bits << 8 | bytes[i];
    int64_t integer;
    memcpy(&integer, &bits, sizeof integer);
    return push_integer(machine, integer);
}

/* Eight bytes, the highest first. */
static int push_float(struct fuse_pickle_machine *machine)
{
    const unsigned char *bytes;
    uint64_t bits = 0;
    struct fuse_pickle_value *value;
    FUSE_TRY(fuse_pickle_take(machine, 8, &bytes));
    for (size_t i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i];
    FUSE_TRY(fuse_pickle_push_new(machine, FUSE_PICKLE_NUMBER, &value));
    memcpy(&value->as.number, &bits, sizeof bits);
    return FUSERUN_OK;
}

static int push_text(struct fuse_pickle_machine *machine, size_t length_bytes)
{
    uint64_t length;
    const unsigned char *bytes;
    struct fuse_pickle_value *value;
    FUSE_TRY(fuse_pickle_take_number(machine, length_bytes, &length));
    FUSE_TRY(fuse_pickle_take(machine, (size_t)length, &bytes));
    FUSE_TRY(fuse_pickle_push_new(machine, FUSE_PICKLE_TEXT, &value));
    value->as.text = (const char *)bytes;
    value->count = (uint32_t)length;
    return FUSERUN_OK;
}

static int push_bool(struct fuse_pickle_machine *machine, bool boolean)
{
    struct fuse_pickle_value *value;
    FUSE_TRY(fuse_pickle_push_new(machine, FUSE_PICKLE_BOOL, &value));
    value->as.boolean = boolean;
    return FUSERUN_OK;
}

/* ---- values that hold others ----------------------------------------------------------------------------------- */

static int add_items(struct fuse_pickle_machine *machine, struct fuse_pickle_value *into,
                     struct fuse_pickle_value *const *items, size_t count)
{
    /* A count fits: every item took a byte of the pickle. */
    const size_t wanted = into->count + count;
    if (wanted > into->capacity) {
        void *memory;
        const size_t twice = (size_t)into->capacity * 2, capacity = wanted > twice ? wanted : twice;
        FUSE_TRY(fuse_pickle_allocate(machine, capacity * sizeof *items, &memory));
        if (into->count > 0)
            memcpy(memory, into->as.items, into->count * sizeof *items);
        into->as.items = memory;
        into->capacity = (uint32_t)capacity;
    }
    if (count > 0)
        memcpy(into->as.items + into->count, items, count * sizeof *items);
    into->count = (uint32_t)wanted;
    return FUSERUN_OK;
}

static int make_tuple(struct fuse_pickle_machine *machine, struct fuse_pickle_value *const *items, size_t count)
{
    struct fuse_pickle_value tuple = {.kind = FUSE_PICKLE_TUPLE}, *value;
    FUSE_TRY(add_items(machine, &tuple, items, count)); /* before the push, which may move the stack */
    machine->stack.count -= count;                      /* items are the topmost */
    FUSE_TRY(fuse_pickle_push_new(machine, FUSE_PICKLE_TUPLE, &value));
    *value = tuple;
    return FUSERUN_OK;
}

static int make_tuple_of(struct fuse_pickle_machine *machine, size_t count)
{
    struct fuse_pickle_value **items;
    FUSE_TRY(fuse_pickle_top(machine, count, &items));
    return make_tuple(machine, items, count);
}

static int make_tuple_from_mark(struct fuse_pickle_machine *machine)
{
    struct fuse_pickle_value **items;
    size_t count;
    FUSE_TRY(fuse_pickle_pop_mark(machine, &items, &count));
    machine->stack.count += count; /* make_tuple takes them off */
    return make_tuple(machine, items, count);
}

static int append(struct fuse_pickle_machine *machine, struct fuse_pickle_value *const *items, size_t count)
{
    struct fuse_pickle_value **list;
    FUSE_TRY(fuse_pickle_top(machine, 1, &list));
    if ((*list)->kind != FUSE_PICKLE_LIST)
        return fuse_pickle_broken(machine, "it appends to something that is not a list");
    return add_items(machine, *list, items, count);
}

static int set_items(struct fuse_pickle_machine *machine, struct fuse_pickle_value *const *items, size_t count)
{
    struct fuse_pickle_value **dict;
    FUSE_TRY(fuse_pickle_top(machine, 1, &dict));
    if ((*dict)->kind != FUSE_PICKLE_DICT)
        return fuse_pickle_broken(machine, "it sets items of something that is not a dict");
    if (count % 2 != 0)
        return fuse_pickle_broken(machine, "a key of a dict has no value");
    for (size_t i = 0; i < count; i += 2)
        if (items[i]->kind > FUSE_PICKLE_TUPLE)
            return fuse_pickle_broken(machine, "a key of a dict is neither text nor another plain value");
    return add_items(machine, *dict, items, count);
}

/* APPEND and SETITEM take a fixed number of values, APPENDS and SETITEMS those above a mark. */
static int add_to_container(struct fuse_pickle_machine *machine, unsigned char op)
{
    struct fuse_pickle_value **items;
    size_t count = op == OP_APPEND ? 1 : 2;
    if (op == OP_APPENDS || op == OP_SETITEMS)
        FUSE_TRY(fuse_pickle_pop_mark(machine, &items, &count));
    else {
        FUSE_TRY(fuse_pickle_top(machine, count, &items));
        machine->stack.count -= count;
    }
    return op == OP_APPEND || op == OP_APPENDS ? append(machine, items, count) : set_items(machine, items, count);
}

/* ---- the memo -------------------------------------------------------------------------------------------------- */

static int put(struct fuse_pickle_machine *machine, size_t index_bytes)
{
    uint64_t index;
    struct fuse_pickle_value **value;
    FUSE_TRY(fuse_pickle_take_number(machine, index_bytes, &index));
    FUSE_TRY(fuse_pickle_top(machine, 1, &value));
    /* Picklers number from 0 or 1 on, and a number takes two bytes or more to set. */
    if (index > machine->byte_count / 2)
        return fuse_pickle_broken(machine,
                                  "it stores a value under a number that is larger than a pickle of this size needs");
    FUSE_TRY(fuse_pickle_reserve(machine, &machine->memo, (size_t)index + 1));
    while (machine->memo.count <= index)
        machine->memo.values[machine->memo.count++] = NULL;
    machine->memo.values[index] = *value;
    return FUSERUN_OK;
}

static int get(struct fuse_pickle_machine *machine, size_t index_bytes)
{
    uint64_t index;
    FUSE_TRY(fuse_pickle_take_number(machine, index_bytes, &index));
    if (index >= machine->memo.count || machine->memo.values[index] == NULL)
        return fuse_pickle_broken(machine, "it uses a stored value that was never stored");
    return fuse_pickle_push(machine, machine->memo.values[index]);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static int refuse_opcode(struct fuse_pickle_machine *machine, unsigned char op)
{
    const char *module, *name;
    size_t module_length, name_length;
    struct fuse_pickle_value **names;
    char what[80];
    if (op == OP_INST) {
        FUSE_TRY(fuse_pickle_take_line(machine, &module, &module_length));
        FUSE_TRY(fuse_pickle_take_line(machine, &name, &name_length));
        return fuse_pickle_refuses(machine, module, module_length, name, name_length);
    }
    if (op == OP_STACK_GLOBAL) {
        FUSE_TRY(fuse_pickle_top(machine, 2, &names));
        if (names[0]->kind == FUSE_PICKLE_TEXT && names[1]->kind == FUSE_PICKLE_TEXT)
            return fuse_pickle_refuses(machine, names[0]->as.text, names[0]->count, names[1]->as.text, names[1]->count);
    }
    (void)snprintf(what, sizeof what, "refuses the pickle opcode 0x%02x, which weights do not need", op);
    return fuse_pickle_broken(machine, what);
}

static int execute(struct fuse_pickle_machine *machine, unsigned char op)
{
    struct fuse_pickle_value *value;
    uint64_t number = 0;
    switch (op) {
    case OP_MARK:
        return fuse_pickle_push_mark(machine);
    case OP_NONE:
        return fuse_pickle_push_new(machine, FUSE_PICKLE_NONE, &value);
    case OP_NEWTRUE:
        return push_bool(machine, true);
    case OP_NEWFALSE:
        return push_bool(machine, false);
    case OP_BININT:
        FUSE_TRY(fuse_pickle_take_number(machine, 4, &number));
        return push_integer(machine, number < 0x80000000u ? (int64_t)number : (int64_t)number - 0x100000000);
    case OP_BININT1:
        FUSE_TRY(fuse_pickle_take_number(machine, 1, &number));
        return push_integer(machine, (int64_t)number);
    case OP_BININT2:
        FUSE_TRY(fuse_pickle_take_number(machine, 2, &number));
        return push_integer(machine, (int64_t)number);
    case OP_LONG1:
        return push_long(machine);
    case OP_BINFLOAT:
        return push_float(machine);
    case OP_BINUNICODE:
        return push_text(machine, 4);
    case OP_SHORT_BINSTRING:
        return push_text(machine, 1);
    case OP_EMPTY_TUPLE:
        return fuse_pickle_push_new(machine, FUSE_PICKLE_TUPLE, &value);
    case OP_EMPTY_LIST:
        return fuse_pickle_push_new(machine, FUSE_PICKLE_LIST, &value);
    case OP_EMPTY_DICT:
        return fuse_pickle_push_new(machine, FUSE_PICKLE_DICT, &value);
    case OP_EMPTY_SET:
        return fuse_pickle_push_new(machine, FUSE_PICKLE_SET, &value);
    case OP_TUPLE:
        return make_tuple_from_mark(machine);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        return make_tuple_of(machine, (size_t)(op - OP_TUPLE1) + 1);
    case OP_APPEND:
    case OP_APPENDS:
    case OP_SETITEM:
    case OP_SETITEMS:
        return add_to_container(machine, op);
    case OP_BINPUT:
        return put(machine, 1);
    case OP_LONG_BINPUT:
        return put(machine, 4);
    case OP_BINGET:
        return get(machine, 1);
    case OP_LONG_BINGET:
        return get(machine, 4);
    case OP_GLOBAL:
        return fuse_pickle_push_global(machine);
    case OP_REDUCE:
    case OP_NEWOBJ:
        return fuse_pickle_call(machine);
    case OP_BUILD:
        return fuse_pickle_build(machine);
    case OP_BINPERSID:
        return fuse_pickle_load_storage(machine);
    default:
        return refuse_opcode(machine, op);
    }
}

static int run(struct fuse_pickle_machine *machine)
{
    const unsigned char *bytes;
    FUSE_TRY(fuse_pickle_take(machine, 2, &bytes));
    if (bytes[0] != OP_PROTO)
        return fuse_pickle_broken(machine, "it does not begin as a pickle");
    if (bytes[1] != 2) {
        char what[64];
        (void)snprintf(what, sizeof what, "pickle protocol %u, where torch.save writes 2", bytes[1]);
        return fuse_pickle_broken(machine, what);
    }
    for (;;) {
        machine->op_at = machine->at;
        if (machine->at == machine->byte_count)
            return fuse_pickle_broken(machine, "it ends without STOP");
        const unsigned char op = machine->bytes[machine->at++];
        if (op == OP_STOP)
            break;
        FUSE_TRY(execute(machine, op));
    }
    if (machine->at != machine->byte_count)
        return fuse_pickle_broken(machine, "bytes follow behind its STOP");
    if (machine->mark_count != 0 || machine->stack.count != 1)
        return fuse_pickle_broken(machine, "it stops with anything but one value on its stack");
    machine->pickle->root = machine->stack.values[0];
    return FUSERUN_OK;
}

/* Depth first, each value once. Values that are on the path are marked 1, those behind it 2, with their height. */
static int check_tree(struct fuse_pickle_machine *machine)
{
    struct {
        struct fuse_pickle_value *value;
        uint32_t next;
    } path[FUSE_PICKLE_DEPTH_LIMIT];
    size_t depth = 0;
    struct fuse_pickle_value *entered = machine->pickle->root;
    for (;;) {
        if (entered != NULL) {
            const bool has_items = entered->kind == FUSE_PICKLE_TUPLE || entered->kind == FUSE_PICKLE_LIST ||
                                   entered->kind == FUSE_PICKLE_DICT;
            if (entered->mark == 1)
                return fuse_pickle_broken(machine, "a value holds itself");
            if (depth + entered->height + 1 > FUSE_PICKLE_DEPTH_LIMIT)
                return fuse_pickle_broken(machine, "its values are nested more than 64 deep");
            if (entered->mark == 0) {
                entered->mark = 1;
                path[depth].value = entered;
                path[depth++].next = has_items ? 0 : entered->count;
            } else if (depth > 0 && path[depth - 1].value->height <= entered->height)
                path[depth - 1].value->height = (uint8_t)(entered->height + 1);
            entered = NULL;
        } else if (depth == 0)
            return FUSERUN_OK;
        else if (path[depth - 1].next < path[depth - 1].value->count)
            entered = path[depth - 1].value->as.items[path[depth - 1].next++];
        else {
            struct fuse_pickle_value *left = path[--depth].value;
            left->mark = 2;
            if (depth > 0 && path[depth - 1].value->height <= left->height)
                path[depth - 1].value->height = (uint8_t)(left->height + 1);
        }
    }
}

/* ---- the calls ------------------------------------------------------------------------------------------------- */

int fuse_pickle_read(const char *path, const unsigned char *bytes, size_t byte_count, struct fuse_pickle **pickle,
                     struct fuse_error *error)
{
    int status;
    *pickle = NULL;
    struct fuse_pickle *self = calloc(1, sizeof *self);
    if (self == NULL)
        return fuse_fail_memory(error, "the values of a .pth file", sizeof *self);
    struct fuse_pickle_machine machine = {
        .path = path, .bytes = bytes, .byte_count = byte_count, .pickle = self, .error = error};
    FUSE_TRY_OUT(run(&machine));
    FUSE_TRY_OUT(check_tree(&machine));
    *pickle = self;
    self = NULL;
out:
    free(machine.stack.values);
    free(machine.memo.values);
    free(machine.marks);
    fuse_pickle_free(&self);
    return status;
}

void fuse_pickle_free(struct fuse_pickle **pickle)
{
    struct fuse_pickle *self = *pickle;
    if (self == NULL)
        return;
    while (self->blocks != NULL) {
        struct fuse_pickle_block *block = self->blocks;
        self->blocks = block->next;
        free(block);
    }
    free(self);
    *pickle = NULL;
}

const struct fuse_pickle_value *fuse_pickle_root(const struct fuse_pickle *pickle)
{
    return pickle->root;
}

size_t fuse_pickle_memory(const struct fuse_pickle *pickle)
{
    return pickle->memory_bytes;
}
