/* Going on from a checkpoint: finding the one to take (run.resume), judging whether it fits the config, loading it.
 *
 * The checkpoint gives what training made: weights, states, counts, the place in the data, what schedules know of
 * evaluations. Everything else is the config's; where that differs from the config that the checkpoint was made under,
 * a notice says so for each key. */
#ifndef FUSE_TRAIN_RESUME_H
#define FUSE_TRAIN_RESUME_H

#include "files/checkpoint_file.h"
#include "train/experiment.h"

struct fuse_resume {
    char *path; /* of the file itself */
    struct fuse_safetensors *file;
    struct fuse_checkpoint_record record;
    struct fuse_checkpoint_texts texts;
    bool *takes_state; /* by entry of the dict: its states, numbers and count are loaded, or start at zero */
    bool takes_schedules;
    bool is_own;       /* it lies among the checkpoints of the run's own folder */
    bool is_whole;     /* every weight of the model comes from the checkpoint */
    bool begins_epoch; /* the place in the data means nothing any more: the next epoch begins */
};

/* Finds the checkpoint that run.resume asks for, reads all of it once to see that it is whole, and compares it with the
 * experiment: experiment->resume is set, or stays NULL where the run starts afresh. folder: the run's. What the user
 * has to mend is reported at its config line, and then the result is FUSERUN_ERROR_CONFIG. Writes nothing. */
int fuse_resume_find(struct fuse_experiment *experiment, const char *folder, struct fuse_error *error);
void fuse_resume_free(struct fuse_resume **resume);

/* Loads weights, states and the clock into an allocated experiment. */
int fuse_resume_load(struct fuse_experiment *experiment, struct fuse_error *error);

/* ---- resume_compare.c ----------------------------------------------------------------------------------------- */

/* What does not fit goes to the line of run.resume; what is left out, and what differs, is told as notices. Fills
 * takes_state, takes_schedules and begins_epoch. */
int fuse_resume_compare(const struct fuse_experiment *experiment, struct fuse_resume *resume, struct fuse_error *error);

/* A parameter's weight; NULL: there is none of its shape. */
const struct fuse_safetensors_entry *fuse_resume_weight(const struct fuse_safetensors *file,
                                                        const struct fuse_parameter *parameter);
/* A parameter's state, number or count by the place of its name in a rule's list; NULL: not there, or name->failed.
 * name: made here, kept for the next call. */
#define FUSE_CHECKPOINT_STEP "(step)"
const struct fuse_safetensors_entry *fuse_resume_state(const struct fuse_safetensors *file, const char *parameter,
                                                       const char *list, uint32_t index, struct fuse_text *name);
/* The plugin that a parameter was trained by: *plugin and the number of its bytes, 0 if nothing is known. */
size_t fuse_resume_optimizer(const struct fuse_resume *resume, const char *parameter, const char **plugin);
/* The stages with a state, as a checkpoint's `scheduler` lists them. */
void fuse_resume_add_stages(const struct fuse_clock *clock, struct fuse_text *text);

/* ---- resume_differences.c -------------------------------------------------------------------------------------- */

/* A notice for each key by which the config that the checkpoint was made under differs from the present one, as far as
 * training depends on it. */
int fuse_resume_tell_differences(const struct fuse_experiment *experiment, const struct fuse_resume *resume,
                                 struct fuse_error *error);

#endif
