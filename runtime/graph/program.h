/* A program: everything that happens for one batch, as a list of operations on planned buffers. Made once for each
 * batch size and purpose, and place in an update of several micro-batches, before the first step; running it allocates
 * nothing. */
#ifndef FUSE_GRAPH_PROGRAM_H
#define FUSE_GRAPH_PROGRAM_H

#include "graph/graph.h"
#include "graph/hold.h"
#include "memory/ledger.h"

enum fuse_loss_kind { FUSE_LOSS_CROSS_ENTROPY = 1, FUSE_LOSS_MSE = 2, FUSE_LOSS_SUM = 3 };

/* Where the gradients go. */
enum fuse_gradient_use {
    FUSE_GRADIENTS_NONE = 0,    /* evaluation: no backward pass */
    FUSE_GRADIENTS_RELEASE = 1, /* each is dropped after its post-accumulate callbacks (fused) */
    FUSE_GRADIENTS_KEEP_ALL =
        2, /* all are alive at the end of backward; then after_backward once, with all (foreach) */
    FUSE_GRADIENTS_KEEP_EACH = 3 /* the same; after_backward for one parameter after another (per_param) */
};

/* How a norm over all gradients is had before any of them is applied. */
enum fuse_norm_use {
    FUSE_NORM_NONE = 0,
    FUSE_NORM_KEEP = 1,  /* all gradients are kept until it is known */
    FUSE_NORM_DEFER = 2, /* linear weights' gradients are measured without being formed; what they are made of is kept,
                            and they are formed, a panel at a time, afterwards */
    FUSE_NORM_TWICE = 3  /* the backward pass runs twice: measures, then applies */
};

/* [no-alloc]. sums: for each parameter its gradient's sum of squares, 0 without one. */
typedef int fuse_on_norm(void *user, const double *sums, struct fuse_error *error);

/* [no-alloc]. gradients: one pointer a parameter, NULL for those without one. parameter: UINT32_MAX for "all". */
typedef int fuse_after_backward(void *user, uint32_t parameter, float *const *gradients, struct fuse_error *error);

struct fuse_program_options {
    enum fuse_loss_kind loss;
    double label_smoothing;
    enum fuse_gradient_use gradients;
    bool recomputes_blocks;  /* keep only what enters the model's blocks */
    bool is_bfloat16;        /* activations and their gradients are, all but the model's output */
    uint64_t seed;           /* of dropout */
    enum fuse_norm_use norm; /* none where `part` is not the end of an update */
    enum fuse_part part;
    int64_t earlier_count;  /* of FUSE_PART_LAST: micro-batches before it */
    struct fuse_hold *hold; /* shared by the programs of an update, the first compiled first; borrowed while compiling;
                               NULL for FUSE_PART_ONLY */
    fuse_after_backward *after_backward;
    fuse_on_norm *on_norm;
    void *user;
};

enum fuse_instruction_kind {
    FUSE_RUN_KERNEL = 1,
    FUSE_RUN_LOAD = 2,      /* the batch's inputs and targets arrive */
    FUSE_RUN_CALLBACKS = 3, /* post-accumulate callbacks of `parameter`, with its whole gradient */
    FUSE_RUN_AFTER = 4,     /* after_backward for `parameter` */
    FUSE_RUN_NORM = 5       /* on_norm */
};

#define FUSE_NO_BUFFER UINT32_MAX

struct fuse_instruction {
    enum fuse_instruction_kind kind;
    enum fuse_phase phase;
    uint32_t parameter; /* whose gradient it makes, hands on or applies; UINT32_MAX: none or all */
    uint32_t node;      /* the forward node it comes from; UINT32_MAX: none */
    struct fuse_op op;
    struct fuse_kernel *kernel;
    struct fuse_kernel_info info;
    uint32_t inputs[FUSERUN_MAX_OPERANDS]; /* buffers; parameters are buffers too */
    uint32_t outputs[FUSERUN_MAX_OPERANDS];
    uint64_t slice_bytes; /* output 0 begins that much further on for each earlier micro-batch of the update */
    uint32_t workspace;   /* buffer or FUSE_NO_BUFFER */
    void *input_pointers[FUSERUN_MAX_OPERANDS]; /* set by fuse_program_bind */
    void *output_pointers[FUSERUN_MAX_OPERANDS];
    void *workspace_pointer;
    struct fuse_panel_hook panel;
};

/* A piece of memory with a life. Parameters stand first, one buffer each, in the parameters' order; they live outside
 * the arena, always. */
struct fuse_buffer {
    enum fuse_category category;
    bool is_parameter;
    bool is_fixed;      /* its offset is given: it is held from one micro-batch to the next */
    bool comes_in;      /* holds something when the program begins */
    bool stays;         /* and must when it ends */
    bool is_bfloat16;   /* operands that lie in it are bfloat16, not float32 */
    uint32_t parameter; /* for parameters, gradients, and operands held of earlier micro-batches */
    uint64_t bytes;
    uint64_t offset; /* in the arena */
    uint32_t first;  /* planned life: instructions [first, last] */
    uint32_t last;
};

struct fuse_program {
    const struct fuse_graph *graph; /* borrowed */
    const struct fuse_backend *backend;
    void *device; /* the backend's instance */
    struct fuse_program_options options;
    struct fuse_instruction *instructions;
    uint32_t instruction_count, instruction_capacity;
    struct fuse_buffer *buffers;
    uint32_t buffer_count, buffer_capacity;
    uint64_t arena_bytes; /* the plan's extent */
    int64_t batch_size;
    uint32_t input_buffer, target_buffer, statistics_buffer; /* FUSE_NO_BUFFER where there is none */
    int64_t target_elements;                                 /* of mse targets */
    /* For the ledger and reports: parallel to buffers, and to instructions. */
    struct fuse_ledger_buffer *ledger_buffers;
    enum fuse_phase *phases;
    uint32_t *planned_first, *planned_last;
    uint32_t ledger_pass;
    /* Set by fuse_program_bind. */
    char *arena;
    float **gradients;                   /* one a parameter; NULL: none, or not whole */
    uint32_t *gradient_buffers;          /* one a parameter: its whole gradient, or FUSE_NO_BUFFER */
    struct fuse_panel_user *panel_users; /* one an instruction */
    uint32_t *norm_buffers;              /* one a parameter: its sum of squares, float64, or FUSE_NO_BUFFER */
    double *norm_sums;                   /* one a parameter: the same, on the host */
    int64_t *marks_ns; /* NULL, or (instruction_count + 1) that a run fills: when each began, and the last one's end */
};

/* Makes the list, compiles the kernels, plans the memory. The graph (with its frozen marks and callbacks) and the
 * backend must outlive the program. */
int fuse_program_compile(const struct fuse_graph *graph, const struct fuse_backend *backend, void *device,
                         const struct fuse_program_options *options, struct fuse_program **program,
                         struct fuse_error *error);
void fuse_program_free(struct fuse_program **program);

/* True if the backward pass gives parameter p a gradient. */
bool fuse_program_reaches(const struct fuse_program *program, uint32_t parameter);

/* The peak this program will have on top of `persistent`. */
void fuse_program_peak(const struct fuse_program *program, const uint64_t persistent[FUSE_CATEGORY_COUNT],
                       struct fuse_peak *peak);

/* Gives the program its memory: an arena of at least arena_bytes, and the parameters. */
void fuse_program_bind(struct fuse_program *program, char *arena, float *const *parameters);

/* Where the next batch goes: device memory. */
float *fuse_program_inputs(const struct fuse_program *program); /* (B, ...) */
void *fuse_program_targets(const struct fuse_program *program); /* (B) int64, (B, ...) float32, or NULL */

/* Runs it on the batch that is in place. scale: what the loss's gradient is multiplied by. draw: the batch's number in
 * the run, from which dropout draws. earlier_count: micro-batches of the update before this one. statistics[0] is the
 * loss summed over samples or elements, [1] the number of correct predictions. ledger may be NULL. [no-alloc] */
int fuse_program_run(struct fuse_program *program, double scale, uint64_t draw, int64_t earlier_count,
                     struct fuse_ledger *ledger, double statistics[2], struct fuse_error *error);

/* run.c, once the list is complete: what panel hooks need. parameter_gradients: one buffer a parameter. */
int fuse_program_prepare_callbacks(struct fuse_program *program, const uint32_t *parameter_gradients,
                                   struct fuse_error *error);

/* planner.c: offsets for buffers with lives, none overlapping another that lives at the same time; 64-byte aligned.
 * Those that are fixed stay where they are. Returns the extent. */
int fuse_plan_offsets(struct fuse_buffer *buffers, size_t count, uint64_t *extent_bytes, struct fuse_error *error);

#endif
