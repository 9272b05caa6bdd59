/* Clipping, and what else must be known of all gradients before any of them is applied.
 *
 * The global norm is that of all gradients of an update, before clipping; the factor is PyTorch's, min(1, c / (norm +
 * 1e-6)). In fused mode the program measures the gradients first (enum fuse_norm_use) and the callbacks apply them
 * afterwards; in the other modes all gradients are alive anyway. */
#ifndef FUSE_OPTIM_CLIP_H
#define FUSE_OPTIM_CLIP_H

#include "graph/program.h"

struct fuse_dict;

enum fuse_clip_algorithm { FUSE_CLIP_AUTO = 1, FUSE_CLIP_DEFERRED = 2, FUSE_CLIP_TWO_PASS = 3, FUSE_CLIP_KEEP = 4 };

struct fuse_clip {
    double max_norm;           /* of all gradients together; 0: off */
    double max_value;          /* of a gradient's element; 0: off */
    double max_parameter_norm; /* of each parameter's gradient by itself; 0: off */
    enum fuse_clip_algorithm algorithm;
    bool logs_norm;
    bool skips_nonfinite; /* an update with a gradient that is not finite must not move any weight */

    /* Of the present update. */
    double norm;      /* NaN: nobody asked */
    bool is_measured; /* by the program, before any gradient is applied */
    float factor;
    double *squares;        /* fused, for the log alone: by entry and row of a panel, a sum of squares */
    int64_t *squares_begin; /* by entry, and one past the last */
};

/* The ways in which a program of this dict may measure the norm, at most two: with two, the one whose program peaks
 * lower is taken, the first if they are equal. 0: no norm is wanted of the program. */
size_t fuse_clip_norm_uses(const struct fuse_dict *dict, enum fuse_norm_use uses[2]);

/* For fuse_program_options; user = the dict. */
fuse_on_norm fuse_clip_on_norm;

/* Room for the sums of squares, where the log wants a norm that the program does not measure. */
int fuse_clip_allocate(struct fuse_dict *dict, struct fuse_error *error);
void fuse_clip_free(struct fuse_dict *dict);
void fuse_clip_begin(struct fuse_dict *dict);
void fuse_clip_end(struct fuse_dict *dict); /* the norm is known now, where it is wanted */

/* Notes the squares of a piece of a gradient (fused, log_grad_norm). [worker] */
void fuse_clip_note(struct fuse_dict *dict, uint32_t entry, const struct fuse_gradient *gradient);

/* Clips a gradient, or a piece of one, in place, just before it is applied. [worker] if is_panel */
void fuse_clip_apply(struct fuse_dict *dict, float *values, int64_t count, bool is_panel);

#endif
