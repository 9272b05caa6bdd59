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
    uint32_t *producer;            /* by tensor storage: the node that makes it; UINT32_MAX: none */
    uint32_t *again;               /* by tensor storage: the buffer of its value made again for the backward pass */
    bool *crosses_blocks;          /* by tensor storage: used in another block than its own */
    uint32_t *operand_buffers;     /* by parameter, two each: X and dY of earlier micro-batches */
    uint32_t *use_counts;          /* by parameter: forward nodes that read it */
    bool measures;                 /* linear weights' gradients are measured, not formed */
    bool defers;                   /* their products wait in `deferred` */
    bool keeps_loss_gradient;      /* a second backward pass will start from it */
    struct fuse_deferred *deferred;
    uint32_t deferred_count;
    struct fuse_error *error;
};

/* A weight's gradient that is still to be formed: the linear node, and the gradient of its output. */
struct fuse_deferred {
    uint32_t node;
    uint32_t dy;
};

/* Buffers and instructions at the end of the list; on failure the error is set. */
int fuse_builder_add_buffer(struct fuse_builder *builder, enum fuse_category category, uint32_t parameter,
                            uint64_t bytes, uint32_t *buffer);
/* A buffer for a tensor's value or for its gradient. */
int fuse_builder_add_activation(struct fuse_builder *builder, uint32_t tensor, uint32_t *buffer);
/* Whether a tensor's value and its gradient are bfloat16: under that precision all activations but the model's output,
 * on which the loss is computed. */
bool fuse_builder_is_bfloat16(const struct fuse_builder *builder, uint32_t tensor);
uint64_t fuse_builder_tensor_bytes(const struct fuse_builder *builder, uint32_t tensor);
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

/* An input of a node as its kernel takes it: a weight as (N, K), the operands of structured operations whole, all else
 * as (rows, last dimension). */
void fuse_instruction_add_node_input(struct fuse_instruction *instruction, const struct fuse_builder *builder,
                                     const struct fuse_node *node, uint32_t input, uint32_t buffer);

/* forward.c: the instruction of a forward node; values: one buffer an input (FUSE_NO_BUFFER: absent). */
int fuse_builder_add_node(struct fuse_builder *builder, uint32_t node, enum fuse_phase phase, const uint32_t *values,
                          uint32_t output);
int fuse_builder_add_forward(struct fuse_builder *builder);
/* The value of a tensor for the backward pass of `node`: what the forward pass left, or, for what is cheap to make
 * again and for the inside of blocks under recompute = blocks, instructions that make it again. */
int fuse_builder_value(struct fuse_builder *builder, uint32_t tensor, uint32_t *buffer);

/* derive.c: the backward instructions of one node. */
void fuse_builder_mark_gradients(struct fuse_builder *builder);
int fuse_builder_derive(struct fuse_builder *builder, uint32_t node);
int fuse_builder_form_deferred(struct fuse_builder *builder, const struct fuse_deferred *deferred);
/* Sums of squares of the gradients that are whole, into norm_buffers. */
int fuse_builder_measure_whole(struct fuse_builder *builder);

/* hold.c: what micro-batches leave for each other; see hold.h. A gradient's buffer gets its place; is it a linear node
 * whose operands are held?; their copies are kept; they join the present ones as inputs. */
void fuse_builder_hold_gradient(struct fuse_builder *builder, uint32_t parameter, uint32_t buffer);
bool fuse_builder_holds_operands(const struct fuse_builder *builder, uint32_t node);
int fuse_builder_keep_operands(struct fuse_builder *builder, const struct fuse_deferred *deferred);
int fuse_builder_add_earlier_operands(struct fuse_builder *builder, const struct fuse_deferred *deferred,
                                      struct fuse_instruction *instruction);

/* backward.c: the backward pass of all nodes, with post-accumulate callbacks in place. */
int fuse_builder_add_backward(struct fuse_builder *builder);

#endif
