/* Words for what a program does, for reports: what an instruction is called, which layer it belongs to, what a buffer
 * holds. */
#ifndef FUSE_GRAPH_DESCRIBE_H
#define FUSE_GRAPH_DESCRIBE_H

#include "base/text.h"
#include "graph/program.h"
#include "memory/timeline.h"

/* "linear_dw", as in enum fuse_op_kind. */
const char *fuse_op_name(enum fuse_op_kind kind);

/* "linear_dw + update", "gelu again", "update", ... */
void fuse_program_add_operation(const struct fuse_program *program, uint32_t instruction, struct fuse_text *text);

/* The layer by the name of its nearest parameter: "encoder.layers.encoder_layer_11 · mlp.0". */
void fuse_program_add_layer(const struct fuse_program *program, uint32_t instruction, struct fuse_text *text);

/* "gradient of heads.head.weight", "linear of layers.0". */
void fuse_program_add_buffer(const struct fuse_program *program, uint32_t buffer, struct fuse_text *text);

extern const struct fuse_place fuse_program_run_place; /* run.c */

#endif
