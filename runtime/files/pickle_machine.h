/* The machine that runs a pickle: what its three files share. pickle_stack.c holds its memory, stack and program,
 * pickle_call.c what names and calls may do, pickle.c everything else. */
#ifndef FUSE_FILES_PICKLE_MACHINE_H
#define FUSE_FILES_PICKLE_MACHINE_H

#include "files/pickle.h"

/* Values are freed all at once. */
struct fuse_pickle_block {
    struct fuse_pickle_block *next;
    _Alignas(8) unsigned char bytes[];
};

struct fuse_pickle {
    struct fuse_pickle_block *blocks;
    size_t block_left; /* bytes of the newest block */
    size_t block_bytes;
    size_t memory_bytes;
    struct fuse_pickle_value *root;
};

/* A growing array of the machine's. */
struct fuse_pickle_stack {
    struct fuse_pickle_value **values;
    size_t count;
    size_t capacity;
};

struct fuse_pickle_machine {
    const char *path;
    const unsigned char *bytes;
    size_t byte_count;
    size_t at;
    size_t op_at; /* of the opcode at work */
    struct fuse_pickle *pickle;
    struct fuse_pickle_stack stack;
    struct fuse_pickle_stack memo; /* values may be NULL */
    size_t *marks;                 /* heights of the stack */
    size_t mark_count;
    size_t mark_capacity;
    struct fuse_error *error;
};

/* ---- pickle_stack.c ---- */

/* The message with its place; returns FUSERUN_ERROR_FORMAT. */
int fuse_pickle_broken(const struct fuse_pickle_machine *machine, const char *what);
/* The same for a name that is not allowed. */
int fuse_pickle_refuses(const struct fuse_pickle_machine *machine, const char *module, size_t module_length,
                        const char *name, size_t name_length);
/* Memory that lives as long as the pickle, a multiple of 8 aligned to 8; and room in a stack. All counts towards the
 * limit. */
int fuse_pickle_allocate(struct fuse_pickle_machine *machine, size_t bytes, void **memory);
int fuse_pickle_reserve(struct fuse_pickle_machine *machine, struct fuse_pickle_stack *stack, size_t wanted);
int fuse_pickle_push(struct fuse_pickle_machine *machine, struct fuse_pickle_value *value);
int fuse_pickle_push_new(struct fuse_pickle_machine *machine, enum fuse_pickle_kind kind,
                         struct fuse_pickle_value **value);
/* The topmost `count` values above the last mark. They are still the stack's. */
int fuse_pickle_top(struct fuse_pickle_machine *machine, size_t count, struct fuse_pickle_value ***values);
/* Takes the values above the last mark off the stack, and the mark with them. They stay readable until the next push.
 */
int fuse_pickle_pop_mark(struct fuse_pickle_machine *machine, struct fuse_pickle_value ***values, size_t *count);
int fuse_pickle_push_mark(struct fuse_pickle_machine *machine);
/* The next bytes of the program; a number, the lowest byte first; a line without its end. */
int fuse_pickle_take(struct fuse_pickle_machine *machine, size_t count, const unsigned char **bytes);
int fuse_pickle_take_number(struct fuse_pickle_machine *machine, size_t byte_count, uint64_t *value);
int fuse_pickle_take_line(struct fuse_pickle_machine *machine, const char **line, size_t *length);
/* ---- pickle_call.c ---- */

int fuse_pickle_push_global(struct fuse_pickle_machine *machine);
/* The persistent id of torch.save: ("storage", class, key, location, number of elements). */
int fuse_pickle_load_storage(struct fuse_pickle_machine *machine);
/* REDUCE calls, NEWOBJ makes an instance; of the names that are allowed both mean the same. */
int fuse_pickle_call(struct fuse_pickle_machine *machine);
/* State dicts get their _metadata by BUILD; nothing here needs it. */
int fuse_pickle_build(struct fuse_pickle_machine *machine);

#endif
