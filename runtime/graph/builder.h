/* The state while a program's list is being made; shared by program.c (forward, loss, memory) and backward.c. */
#ifndef FUSE_GRAPH_BUILDER_H
#define FUSE_GRAPH_BUILDER_H

#include "graph/program.h"

struct fuse_builder {
    struct fuse_program *program;
    const struct fuse_graph *graph;
    uint32_t *values;              /* by tensor storage: the buffer that holds it */
    uint32_t *gradients;           /* by tensor storage: the buffer that holds the loss's gradient so far */
    uint32_t *parameter_gradients; /* by parameter: its whole gradient, or its panels' scratch */
    bool *needs_gradient;          /* by tensor storage */
    struct fuse_error *error;
};

/* Buffers and instructions at the end of the list; on failure the error is set. */
int fuse_builder_add_buffer(struct fuse_builder *builder, enum fuse_category category, uint32_t parameter,
                            uint64_t bytes, uint32_t *buffer);
int fuse_builder_add_instruction(struct fuse_builder *builder, const struct fuse_instruction *instruction);

/* An instruction that runs kernel `kind`, without operands yet. */
struct fuse_instruction fuse_instruction_of(enum fuse_op_kind kind, enum fuse_phase phase, uint32_t node);
void fuse_instruction_add_input(struct fuse_instruction *instruction, uint32_t buffer, enum fuse_dtype dtype,
                                uint32_t rank, const int64_t *shape);
void fuse_instruction_add_output(struct fuse_instruction *instruction, uint32_t buffer, enum fuse_dtype dtype,
                                 uint32_t rank, const int64_t *shape);
/* A float32 tensor as (rows, last dimension). */
void fuse_instruction_add_input_tensor(struct fuse_instruction *instruction, uint32_t buffer,
                                       const struct fuse_tensor *tensor);
void fuse_instruction_add_output_tensor(struct fuse_instruction *instruction, uint32_t buffer,
                                        const struct fuse_tensor *tensor);

/* backward.c: the backward pass of all nodes, with post-accumulate callbacks in place. */
int fuse_builder_mark_gradients(struct fuse_builder *builder);
int fuse_builder_add_backward(struct fuse_builder *builder);

#endif
