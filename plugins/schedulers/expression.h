/* Arithmetic as people type it, "base * 0.5 ^ floor(epoch / 30)", read once into a list of operations on a stack and
 * then only evaluated: no memory, no recursion, bounded in length and depth, the same in every locale.
 *
 *     numbers       1, .5, 2.5e-3                    names  the caller's variables, and pi
 *     from the tightest to the loosest: x ^ y (also x ** y; from the right), - x, x * y  x / y  x % y (fmod), x + y  x
 * - y, x < y  x <= y  x > y  x >= y  x == y  x != y (1 or 0) abs ceil cos exp floor log log10 log2 round sin sqrt tan
 * tanh of one value, pow(x, y), min and max of two or more, if(condition, x, y): x where the condition is not 0, else y
 */
#ifndef FUSE_SCHEDULERS_EXPRESSION_H
#define FUSE_SCHEDULERS_EXPRESSION_H

#include <stddef.h>

#define EXPRESSION_MAX_LENGTH 256 /* operations */
#define EXPRESSION_MAX_DEPTH 64   /* open parentheses and operators; values on the stack */

struct expression {
    int count;
    struct operation {
        int code;
        int variable;
        double number;
    } operations[EXPRESSION_MAX_LENGTH];
};

/* 0, or -1 with `message` (size bytes) saying in which column what is wrong and what is allowed. */
int expression_parse(const char *text, const char *const *variables, int variable_count, struct expression *expression,
                     char *message, size_t size);

/* [no-alloc] */
double expression_value(const struct expression *expression, const double *variables);

#endif
