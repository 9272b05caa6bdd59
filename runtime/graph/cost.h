/* What an instruction computes and moves, from its operands' shapes: for profiles. */
#ifndef FUSE_GRAPH_COST_H
#define FUSE_GRAPH_COST_H

#include "graph/program.h"

struct fuse_cost {
    double flop;  /* of its products; 0 where it has none */
    double bytes; /* operands read and written once each, and what an update inside it reads and writes */
};

/* state_counts: numbers of the optimizer's state for each number of a parameter; (parameter_count). */
struct fuse_cost fuse_instruction_cost(const struct fuse_program *program, uint32_t instruction,
                                       const double *state_counts);

#endif
