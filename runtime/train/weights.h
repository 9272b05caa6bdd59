/* Weights on disk: comparing a file's header with the model, loading it, and writing model.safetensors. */
#ifndef FUSE_TRAIN_WEIGHTS_H
#define FUSE_TRAIN_WEIGHTS_H

#include "base/text.h"
#include "files/weights_file.h"
#include "optim/dict.h"

/* Refuses a model whose parameters' names cannot stand in files: not UTF-8, with control characters (a checkpoint lists
 * names on lines), or those that states have there. */
int fuse_weights_check_names(const struct fuse_graph *graph, struct fuse_error *error);

/* Compares names, shapes and element types. `wrong` gets a description if something must not be loaded at all (empty if
 * all is well); with is_strict everything that is missing, unexpected or of another shape counts as wrong, without it
 * such tensors are left out and described in `skipped`. */
void fuse_weights_compare(const struct fuse_weights_file *file, const struct fuse_graph *graph, bool is_strict,
                          struct fuse_text *wrong, struct fuse_text *skipped);

/* Loads every tensor that matches into the dict's parameters. */
int fuse_weights_load(const struct fuse_weights_file *file, const struct fuse_graph *graph,
                      const struct fuse_dict *dict, struct fuse_error *error);

/* Writes all parameters under their names; the bytes depend on nothing else. */
int fuse_weights_save(const char *path, const struct fuse_graph *graph, const struct fuse_dict *dict,
                      struct fuse_error *error);

#endif
