/* The cases of tools/make_golden_optimizers.py: which options, what a schedule drives, and the portable numbers that
 * weights and gradients are made of. */
#ifndef FUSE_TESTS_OPTIMIZER_CASES_H
#define FUSE_TESTS_OPTIMIZER_CASES_H

#include <stddef.h>
#include <stdint.h>

#define MAX_CASES 192
#define MAX_PAIRS 8
#define MAX_DRIVEN 4
#define UPDATES 12

struct golden_case {
    char *line; /* what the others point into */
    const char *name;
    const char *plugin;
    const char *drives[MAX_DRIVEN];
    size_t drive_count;
    const char *pairs[MAX_PAIRS];
    size_t pair_count;
};

struct golden_cases {
    struct golden_case cases[MAX_CASES];
    size_t count;
    double factors[UPDATES]; /* driven options of update k: configured value times the k-th */
};

/* Fails the test that runs if the file is not as it should be. */
void golden_cases_read(const char *path, struct golden_cases *golden);
void golden_cases_free(struct golden_cases *golden);

/* Element `index` of a stream: 0 is the weights, k the gradients of update k. */
float golden_value(uint32_t stream, uint32_t index);

#endif
