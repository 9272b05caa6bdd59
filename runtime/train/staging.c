#include "train/staging.h"

#include "base/align.h"

static uint64_t input_bytes(const struct fuse_program *program)
{
    return program->buffers[program->input_buffer].bytes;
}

static uint64_t target_bytes(const struct fuse_program *program)
{
    return program->target_buffer == FUSE_NO_BUFFER ? 0 : program->buffers[program->target_buffer].bytes;
}

uint64_t fuse_staging_bytes(const struct fuse_experiment *experiment)
{
    uint64_t most = 0;
    if (experiment->backend->allocate_staging == NULL)
        return 0;
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        const struct fuse_program *program = experiment->passes[i].program;
        const uint64_t bytes = fuse_aligned(input_bytes(program)) + target_bytes(program);
        most = bytes > most ? bytes : most;
    }
    return most;
}

int fuse_staging_allocate(struct fuse_experiment *experiment, struct fuse_error *error)
{
    void *memory = NULL;
    const uint64_t bytes = fuse_staging_bytes(experiment);
    if (bytes == 0)
        return FUSERUN_OK;
    FUSE_TRY(experiment->backend->allocate_staging(experiment->device, bytes, &memory, error));
    experiment->staging = memory;
    experiment->staging_bytes = bytes;
    return FUSERUN_OK;
}

void fuse_staging_free(struct fuse_experiment *experiment)
{
    if (experiment->staging != NULL)
        experiment->backend->release_staging(experiment->device, experiment->staging, experiment->staging_bytes);
    experiment->staging = NULL;
}

void fuse_staging_find(const struct fuse_experiment *experiment, const struct fuse_program *program, float **inputs,
                       void **targets)
{
    if (experiment->staging == NULL) {
        *inputs = fuse_program_inputs(program);
        *targets = fuse_program_targets(program);
        return;
    }
    *inputs = (float *)(void *)experiment->staging;
    *targets = target_bytes(program) == 0 ? NULL : experiment->staging + fuse_aligned(input_bytes(program));
}

int fuse_staging_upload(const struct fuse_experiment *experiment, const struct fuse_program *program,
                        struct fuse_error *error)
{
    const struct fuse_backend *backend = experiment->backend;
    float *inputs;
    void *targets;
    if (experiment->staging == NULL)
        return FUSERUN_OK;
    fuse_staging_find(experiment, program, &inputs, &targets);
    FUSE_TRY(
        backend->upload_staged(experiment->device, fuse_program_inputs(program), inputs, input_bytes(program), error));
    return targets == NULL ? FUSERUN_OK
                           : backend->upload_staged(experiment->device, fuse_program_targets(program), targets,
                                                    target_bytes(program), error);
}
