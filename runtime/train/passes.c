#include "train/experiment.h"

#include "config/options.h"
#include "train/pictures.h"
#include "train/weights.h"

#include <stdlib.h>
#include <string.h>

/* Compiles the pass's program; where there are several ways to measure a norm, with the one that peaks lowest. */
static int compile(struct fuse_experiment *experiment, struct fuse_pass *pass, struct fuse_program_options *options,
                   struct fuse_error *error)
{
    enum fuse_norm_use uses[2] = {FUSE_NORM_NONE, FUSE_NORM_NONE};
    const size_t count = pass->purpose == FUSE_PURPOSE_TRAIN ? fuse_clip_norm_uses(experiment->dict, uses) : 0;
    for (size_t i = 0; i < (count > 0 ? count : 1); i++) {
        struct fuse_program *program = NULL;
        options->norm = uses[i];
        FUSE_TRY(fuse_program_compile(pass->graph, experiment->backend, experiment->device, options, &program, error));
        struct fuse_peak peak, other;
        fuse_program_peak(program, experiment->persistent, &peak);
        if (pass->program != NULL) {
            fuse_program_peak(pass->program, experiment->persistent, &other);
            struct fuse_program **worse = peak.bytes < other.bytes ? &pass->program : &program;
            fuse_program_free(worse);
        }
        if (program != NULL)
            pass->program = program;
    }
    return FUSERUN_OK;
}

static int add_pass(struct fuse_experiment *experiment, enum fuse_purpose purpose, int64_t batch_size,
                    struct fuse_error *error)
{
    if (batch_size == 0 || fuse_experiment_program(experiment, purpose, batch_size) != NULL)
        return FUSERUN_OK;
    const bool is_training = purpose == FUSE_PURPOSE_TRAIN;
    struct fuse_pass *pass = &experiment->passes[experiment->pass_count++];
    *pass = (struct fuse_pass){.purpose = purpose, .batch_size = batch_size};
    if (is_training && batch_size == experiment->graph->tensors[0]->shape[0])
        pass->graph = experiment->graph;
    else
        FUSE_TRY(fuse_experiment_build_graph(experiment, batch_size, &pass->graph, error));
    if (pass->graph->parameter_count != experiment->graph->parameter_count)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                         "the model declares other parameters for a batch of %lld than for one of %lld",
                         (long long)batch_size, (long long)experiment->graph->tensors[0]->shape[0]);
    if (is_training)
        FUSE_TRY(fuse_dict_attach(experiment->dict, pass->graph, error));
    const struct fuse_options *memory = fuse_config_options(experiment->config, "memory");
    struct fuse_program_options options = {
        .loss = experiment->loss,
        .label_smoothing = experiment->label_smoothing,
        .gradients = is_training ? fuse_dict_gradient_use(experiment->dict) : FUSE_GRADIENTS_NONE,
        .recomputes_blocks = strcmp(fuse_option_text(memory, "recompute"), "blocks") == 0,
        .seed = experiment->seed,
        .after_backward = is_training ? fuse_dict_after_backward : NULL,
        .on_norm = fuse_clip_on_norm,
        .user = experiment->dict,
    };
    FUSE_TRY(compile(experiment, pass, &options, error));
    if (pass->program->arena_bytes > experiment->arena_bytes)
        experiment->arena_bytes = pass->program->arena_bytes;
    return FUSERUN_OK;
}

/* What [optimizer] and run.nonfinite ask to be known of all gradients. */
static void read_clipping(const struct fuse_experiment *experiment)
{
    const struct fuse_options *optimizer = fuse_config_options(experiment->config, "optimizer");
    const struct fuse_options *run = fuse_config_options(experiment->config, "run");
    struct fuse_clip *clip = &experiment->dict->clip;
    const char *algorithm = fuse_option_text(optimizer, "clip_algorithm");
    clip->max_norm = fuse_option_number(optimizer, "clip_grad_norm");
    clip->max_value = fuse_option_number(optimizer, "clip_grad_value");
    clip->max_parameter_norm = fuse_option_number(optimizer, "clip_grad_norm_per_parameter");
    clip->logs_norm = fuse_option_bool(optimizer, "log_grad_norm") != 0;
    clip->skips_nonfinite = strcmp(fuse_option_text(run, "nonfinite"), "skip") == 0;
    clip->algorithm = strcmp(algorithm, "deferred") == 0   ? FUSE_CLIP_DEFERRED
                      : strcmp(algorithm, "two_pass") == 0 ? FUSE_CLIP_TWO_PASS
                      : strcmp(algorithm, "keep") == 0     ? FUSE_CLIP_KEEP
                                                           : FUSE_CLIP_AUTO;
}

/* Only what the run will really execute: the shorter last batch of an epoch that it never finishes has no program. */
int fuse_passes_build(struct fuse_experiment *experiment, struct fuse_error *error)
{
    const struct fuse_source *train = &experiment->train;
    read_clipping(experiment);
    if (experiment->total_updates > 0)
        FUSE_TRY(add_pass(experiment, FUSE_PURPOSE_TRAIN, fuse_source_full_batch(train), error));
    /* Skipped updates use up batches of a run of any length. */
    if (experiment->total_updates >= experiment->updates_per_epoch || experiment->dict->clip.skips_nonfinite)
        FUSE_TRY(add_pass(experiment, FUSE_PURPOSE_TRAIN, fuse_source_last_batch(train), error));
    if (experiment->has_evaluation) {
        FUSE_TRY(add_pass(experiment, FUSE_PURPOSE_EVALUATE, fuse_source_full_batch(&experiment->evaluation), error));
        FUSE_TRY(add_pass(experiment, FUSE_PURPOSE_EVALUATE, fuse_source_last_batch(&experiment->evaluation), error));
    }
    const bool reads_targets = experiment->loss != FUSE_LOSS_SUM;
    experiment->persistent[FUSE_CATEGORY_PARAMETER] = experiment->dict->parameter_bytes;
    experiment->persistent[FUSE_CATEGORY_OPTIMIZER_STATE] = experiment->dict->state_bytes;
    experiment->persistent[FUSE_CATEGORY_WORKSPACE] = experiment->dict->scratch_bytes;
    experiment->persistent[FUSE_CATEGORY_DATA] = train->info.cache_bytes + fuse_feed_bytes(train, reads_targets);
    if (experiment->has_evaluation)
        experiment->persistent[FUSE_CATEGORY_DATA] +=
            experiment->evaluation.info.cache_bytes + fuse_feed_bytes(&experiment->evaluation, reads_targets);
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        struct fuse_peak peak;
        fuse_program_peak(experiment->passes[i].program, experiment->persistent, &peak);
        if (i == 0 || peak.bytes > experiment->predicted.bytes)
            experiment->predicted = peak;
    }
    return FUSERUN_OK;
}

struct fuse_program *fuse_experiment_program(const struct fuse_experiment *experiment, enum fuse_purpose purpose,
                                             int64_t batch_size)
{
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        if (experiment->passes[i].purpose == purpose && experiment->passes[i].batch_size == batch_size)
            return experiment->passes[i].program;
    }
    return NULL;
}

/* What only shows when a file is read (a cut .gz, weights that are not finite) is told at the config line that names
 * it. */
static int told_at_line(struct fuse_experiment *experiment, const char *section, const struct fuse_error *error,
                        int status)
{
    if (status != FUSERUN_OK && error->key[0] != '\0')
        fuse_config_report(experiment->config, experiment->diagnostics, section, error->key, "%s", error->text);
    return status;
}

const struct fuse_place fuse_experiment_allocate_place = {"runtime/train/passes.c", __LINE__ + 3,
                                                          "fuse_experiment_allocate"};

int fuse_experiment_allocate(struct fuse_experiment *experiment, struct fuse_error *error)
{
    const bool reads_targets = experiment->loss != FUSE_LOSS_SUM;
    FUSE_TRY(fuse_ledger_new(&experiment->ledger, error));
    for (int category = 0; category < FUSE_CATEGORY_COUNT; category++) {
        if (experiment->persistent[category] > 0)
            fuse_ledger_add_persistent(experiment->ledger, (enum fuse_category)category,
                                       experiment->persistent[category]);
    }
    FUSE_TRY(fuse_dict_allocate(experiment->dict, experiment->graph, experiment->seed, error));
    if (experiment->weights != NULL)
        FUSE_TRY(told_at_line(experiment, "model", error,
                              fuse_weights_load(experiment->weights, experiment->graph, experiment->dict, error)));
    FUSE_TRY(told_at_line(experiment, "data", error, fuse_source_load(&experiment->train, error)));
    FUSE_TRY(fuse_feed_new(&experiment->train, experiment->seed, reads_targets, &experiment->train_feed, error));
    if (experiment->has_evaluation) {
        FUSE_TRY(told_at_line(experiment, "eval", error, fuse_source_load(&experiment->evaluation, error)));
        FUSE_TRY(fuse_feed_new(&experiment->evaluation, experiment->seed, reads_targets, &experiment->evaluation_feed,
                               error));
    }
    if (experiment->arena_bytes > 0)
        FUSE_TRY(experiment->backend->allocate(experiment->device, experiment->arena_bytes, &experiment->arena, error));
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        struct fuse_program *program = experiment->passes[i].program;
        fuse_program_bind(program, experiment->arena, experiment->dict->parameters);
        FUSE_TRY(fuse_ledger_add_pass(experiment->ledger, program->ledger_buffers, program->buffer_count,
                                      program->phases, program->instruction_count, &program->ledger_pass, error));
    }
    return fuse_pictures_prepare(experiment, error);
}
