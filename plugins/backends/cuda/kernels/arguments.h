/* The one argument of each kernel. Read by the C compiler for the host and by NVRTC for the device: pointers, floats,
 * doubles, ints and long longs only, which are laid out alike in both.
 *
 * Operands are float32; those whose bit is set in `bfloat16` are bfloat16: bit i for input i, FUSE_BFLOAT16_OUT for the
 * output. `adds`: to what the output holds. */
#ifndef FUSE_CUDA_ARGUMENTS_H
#define FUSE_CUDA_ARGUMENTS_H

#define FUSE_BLOCK 256 /* threads of a block */
#define FUSE_BFLOAT16_OUT 256

/* out = f(a, b). add_period: element i of a meets element i % period of b. */
struct fuse_elementwise_arguments {
    const void *a, *b;
    void *out;
    long long count, period;
    int bfloat16, adds;
    float number; /* scale_values, clamp_values: the factor, the limit */
    int reserved;
};

/* to = from [+ bias (columns)], which may be NULL: (rows, columns), from row to row the strides. */
#define FUSE_ROW_CHUNK 1024 /* columns that a block deals with at a time */
struct fuse_rows_arguments {
    const void *from;
    const float *bias;
    void *to;
    long long rows, columns, from_stride, to_stride;
    int bfloat16, adds;
};

/* Element i is dropped if random number i of (seed, stream) is below probability. */
struct fuse_dropout_arguments {
    const void *x;
    void *y;
    long long count;
    unsigned long long seed, stream;
    double probability;
    int bfloat16, adds;
};

/* sums (columns) = the sum over rows (row_count, columns), which begin row_stride apart; layer_norm_dw: of
 * rows (x - mean) rstd, x as rows. */
struct fuse_columns_arguments {
    const void *rows, *x;
    const float *mean, *rstd; /* (row_count) */
    float *sums;
    long long row_count, row_stride, columns;
    int bfloat16, adds;
};

/* Block i sums the products of a and b over chunk i of FUSE_SUM_CHUNK elements; with a width of 2 their magnitudes as
 * well. */
#define FUSE_SUM_CHUNK 65536
struct fuse_products_arguments {
    const float *a, *b; /* (count) */
    double *partials;   /* (chunks, width) */
    long long count;
    int width, reserved;
};

/* The sum of the squares of dw (n, k) = dy^T x, of which sums holds what came of x x^T and dy dy^T: that itself unless
 * it is less than least_share of its terms' magnitudes; then block i forms row i of dw. */
struct fuse_norm_arguments {
    const void *dy, *x; /* (batch, n) and (batch, k) */
    const double *sums; /* the sum, and that of its terms' magnitudes */
    double *partials;   /* (n) */
    double *out;        /* one */
    long long batch, n, k;
    double least_share;
    int bfloat16, rounds; /* rounds: factors to bfloat16, as the products of dw do */
};

/* sums (width) = the sums of partials (count, width), one after the other; width is 1 or 2. */
struct fuse_partials_arguments {
    const double *partials;
    double *sums;
    long long count;
    int width, adds;
};

/* Leaves `number` in *noticed if that holds FUSE_NOTHING and a value is not finite. */
#define FUSE_NOTHING 0xffffffffu
struct fuse_watch_arguments {
    const float *values; /* (count) */
    unsigned *noticed;
    long long count;
    unsigned number;
    int reserved;
};

/* Losses: y is (rows, columns), or (count) in chunks of FUSE_LOSS_CHUNK, one a block. partials: loss and correct
 * predictions of each row or chunk. gradient may be NULL. */
#define FUSE_LOSS_CHUNK 4096
struct fuse_loss_arguments {
    const float *y;
    const void *target; /* (rows) long long, or (count) float */
    float *gradient;
    double *partials;
    long long rows, columns, count;
    double scale, smoothing;
};

/* Rows of (rows, columns). */
struct fuse_layer_norm_arguments {
    const void *x, *dy;
    const float *w, *b; /* (columns) */
    float *mean, *rstd; /* (rows) */
    void *out;
    long long rows, columns;
    double eps;
    int bfloat16, adds;
};

/* Sequences: (batch, tokens, width), of which tokens counts the longer side. */
struct fuse_tokens_arguments {
    const void *a, *b;
    void *out;
    long long count; /* elements of out */
    long long batch, tokens, width;
    long long channels, image_rows, image_columns, patch; /* patches */
    long long index;                                      /* select */
    int bfloat16, adds;
};

/* Where each of a group of heads has its matrices: table[array][i] = base + sample * sample_bytes + head * head_bytes +
 * i * task_bytes, with task = first_task + i = sample * heads + head. */
#define FUSE_ATTENTION_ARRAYS 9
struct fuse_pointers_arguments {
    void **table; /* (arrays, count) */
    char *base[FUSE_ATTENTION_ARRAYS];
    long long sample_bytes[FUSE_ATTENTION_ARRAYS];
    long long head_bytes[FUSE_ATTENTION_ARRAYS];
    long long task_bytes[FUSE_ATTENTION_ARRAYS];
    long long first_task, count, heads;
    int arrays, reserved;
};

/* One block a row of scores (count, rows, tokens): rows first_row on of each of the tasks first_task on. Input 0 is dy,
 * input 1 is y; results in bfloat16 stand at the beginning of their row, whose length in memory stays that of pitch
 * floats. */
struct fuse_attention_arguments {
    float *scores; /* q k^T; becomes the probabilities */
    float *dp;     /* dy v^T; becomes ds */
    const void *dy, *y;
    float *lse; /* (tasks, tokens): written forward, read backward */
    long long rows, tokens, heads, head_width;
    long long pitch; /* floats from row to row of scores and dp */
    long long first_task, first_row;
    double scale, probability; /* of being dropped */
    unsigned long long seed, stream;
    int bfloat16, reserved;
};

/* A piece of a parameter with its gradient and states, as struct fuse_slice. */
#define FUSE_UPDATE_STATES 8
#define FUSE_UPDATE_SCALARS 16
#define FUSE_UPDATE_CHUNK 4096 /* elements that a block updates */
struct fuse_update_slice {
    float *param;
    const float *grad;
    float *states[FUSE_UPDATE_STATES];
    long long count;
    long long first_chunk; /* chunks of all slices before it */
    float scalars[FUSE_UPDATE_SCALARS];
};

/* One slice by value, or many in a table. */
struct fuse_update_arguments {
    struct fuse_update_slice slice;
    const unsigned *noticed; /* nothing is updated unless it holds FUSE_NOTHING */
};
struct fuse_foreach_arguments {
    const struct fuse_update_slice *slices; /* (slice_count) */
    const unsigned *noticed;
    int slice_count, reserved;
};

/* A pass of a rule over whole parameters, as struct fuse_pass_call; nothing is done unless *noticed holds
 * FUSE_NOTHING. Row and column count all matrices. */
#define FUSE_PASS_SCRATCHES 8
struct fuse_pass_arguments {
    float *param;
    const float *grad;
    float *states[FUSE_UPDATE_STATES];
    float *scratches[FUSE_PASS_SCRATCHES];
    float scalars[FUSE_UPDATE_SCALARS];
    long long matrices, rows, columns;
    double *sums; /* PASS_ALL: of each row */
    const unsigned *noticed;
};

#endif
