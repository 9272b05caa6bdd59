/* Typed values of one section: what the host's option_* services read, and the flat list of numbers that optimizers
 * get. */
#ifndef FUSE_CONFIG_OPTIONS_H
#define FUSE_CONFIG_OPTIONS_H

#include <fuserun/abi.h>

#include <stdbool.h>

struct fuse_options; /* a table of options and their values */

/* The host services of fuserun/abi.h. */
int fuse_option_is_set(const struct fuse_options *options, const char *key);
int fuse_option_bool(const struct fuse_options *options, const char *key);
int64_t fuse_option_integer(const struct fuse_options *options, const char *key);
double fuse_option_number(const struct fuse_options *options, const char *key);
const char *fuse_option_text(const struct fuse_options *options, const char *key);
const int64_t *fuse_option_integers(const struct fuse_options *options, const char *key, size_t *count);
const double *fuse_option_numbers(const struct fuse_options *options, const char *key, size_t *count);
const char *const *fuse_option_texts(const struct fuse_options *options, const char *key, size_t *count);

/* The component's options as a flat list of numbers, in the order of its option table: booleans as 0 or 1, choices as
 * their index, lists of fixed length as that many entries, none and unset as NaN; texts, paths and open lists take no
 * entry. Returns how many; writes at most `capacity`. */
size_t fuse_options_flatten(const struct fuse_component *component, const struct fuse_options *options, double *values,
                            size_t capacity);

/* The index in that list of the number called `name` (an option's key, or an element of a fixed list: "beta1"); -1 if
 * there is none. *is_schedulable (may be NULL) tells whether a scheduler may drive it. */
int fuse_options_flat_index(const struct fuse_component *component, const char *name, bool *is_schedulable);

/* Whether a value lies in the range that the component declares for number `index` of that list. *range (may be NULL):
 * as the component writes it; NULL if any finite number will do. */
bool fuse_options_flat_fits(const struct fuse_component *component, int index, double value, const char **range);

/* Values from a list of "key=value" texts, for tests and tools: checked exactly as a config would be. */
int fuse_options_from_pairs(const struct fuse_component *component, const char *const *pairs, size_t pair_count,
                            struct fuse_options **options, struct fuse_error *error);
void fuse_options_free(struct fuse_options **options);

#endif
