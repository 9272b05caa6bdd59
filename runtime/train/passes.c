#include "train/experiment.h"

#include "config/options.h"
#include "train/image.h"
#include "train/pictures.h"
#include "train/profile.h"
#include "train/resume.h"
#include "train/staging.h"
#include "train/weights.h"

#include <stdlib.h>
#include <string.h>

/* The programs of updates. */
struct training {
    struct fuse_way way;
    struct fuse_hold *hold; /* NULL: every update has one micro-batch */
    struct fuse_pass passes[FUSE_MAX_PASSES];
    uint32_t pass_count;
    uint64_t peak_bytes;
};

static void free_training(struct training *training)
{
    for (uint32_t i = 0; i < training->pass_count; i++)
        fuse_program_free(&training->passes[i].program);
    fuse_hold_free(&training->hold);
    *training = (struct training){0};
}

/* A graph of another batch size than experiment->graph. */
static int build_graph(struct fuse_experiment *experiment, int64_t batch_size, struct fuse_graph **graph,
                       struct fuse_error *error)
{
    FUSE_TRY(fuse_experiment_build_graph(experiment, batch_size, graph, error));
    if ((*graph)->parameter_count != experiment->graph->parameter_count)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                         "the model declares other parameters for a batch of %lld than for one of %lld",
                         (long long)batch_size, (long long)experiment->graph->tensors[0]->shape[0]);
    return FUSERUN_OK;
}

static int compile(struct fuse_experiment *experiment, struct fuse_pass *pass, struct fuse_hold *hold,
                   enum fuse_norm_use norm, struct fuse_error *error)
{
    const bool is_training = pass->purpose == FUSE_PURPOSE_TRAIN;
    const struct fuse_options *memory = fuse_config_options(experiment->config, "memory");
    const struct fuse_program_options options = {
        .loss = experiment->loss,
        .label_smoothing = experiment->label_smoothing,
        .gradients = is_training ? fuse_dict_gradient_use(experiment->dict) : FUSE_GRADIENTS_NONE,
        .recomputes_blocks = strcmp(fuse_option_text(memory, "recompute"), "blocks") == 0,
        .is_bfloat16 = fuse_experiment_is_bfloat16(experiment),
        .seed = experiment->seed,
        .norm = norm,
        .part = pass->part,
        .earlier_count = pass->earlier_count,
        .hold = hold,
        .after_backward = is_training ? fuse_dict_after_backward : NULL,
        .on_norm = fuse_clip_on_norm,
        .user = experiment->dict,
    };
    return fuse_program_compile(pass->graph, experiment->backend, experiment->device, &options, &pass->program, error);
}

/* earlier_count: of micro-batches before an update's last one. */
static int add_training_pass(struct fuse_experiment *experiment, struct training *training, enum fuse_part part,
                             int64_t earlier_count, int64_t batch_size, struct fuse_error *error)
{
    const bool is_full = batch_size == experiment->graph->tensors[0]->shape[0];
    const bool is_end = part == FUSE_PART_ONLY || part == FUSE_PART_LAST;
    if (!is_full && experiment->short_graph == NULL) {
        FUSE_TRY(build_graph(experiment, batch_size, &experiment->short_graph, error));
        FUSE_TRY(fuse_dict_attach(experiment->dict, experiment->short_graph, error));
    }
    struct fuse_pass *pass = &training->passes[training->pass_count++];
    *pass = (struct fuse_pass){.purpose = FUSE_PURPOSE_TRAIN,
                               .part = part,
                               .earlier_count = earlier_count,
                               .batch_size = batch_size,
                               .graph = is_full ? experiment->graph : experiment->short_graph};
    FUSE_TRY(compile(experiment, pass, part == FUSE_PART_ONLY ? NULL : training->hold,
                     is_end ? training->way.norm : FUSE_NORM_NONE, error));
    struct fuse_peak peak;
    fuse_program_peak(pass->program, experiment->persistent, &peak);
    if (peak.bytes > training->peak_bytes)
        training->peak_bytes = peak.bytes;
    return FUSERUN_OK;
}

static int add_end(struct fuse_experiment *experiment, struct training *training, int64_t micro_batches,
                   int64_t batch_size, struct fuse_error *error)
{
    return add_training_pass(experiment, training, micro_batches == 1 ? FUSE_PART_ONLY : FUSE_PART_LAST,
                             micro_batches - 1, batch_size, error);
}

/* Only what the run will really execute: the end of an epoch that it never finishes has no program. An update's last
 * micro-batch alone may be a shorter one, and an epoch's last update alone may have fewer of them. */
static int build_training(struct fuse_experiment *experiment, struct training *training, struct fuse_error *error)
{
    const struct fuse_source *train = &experiment->train;
    const int64_t full = fuse_source_full_batch(train), remainder = fuse_source_last_batch(train);
    const int64_t updates = experiment->updates_per_epoch, most = experiment->accumulate;
    const int64_t last_count = fuse_source_batch_count(train) - (updates - 1) * most;
    const int64_t last_size = remainder > 0 ? remainder : full;
    /* Skipped updates use up batches of a run of any length. */
    const bool reaches_end = experiment->total_updates >= updates || experiment->dict->clip.skips_nonfinite;
    const int64_t greatest = updates > 1 ? most : last_count;
    if (experiment->total_updates == 0)
        return FUSERUN_OK;
    if (greatest > 1) {
        /* a deferred norm keeps the last one's operands as long as the others' */
        const int64_t limit = greatest - 1 + (training->way.norm == FUSE_NORM_DEFER ? 1 : 0);
        FUSE_TRY(fuse_hold_new(experiment->graph->parameter_count, greatest - 1,
                               training->way.holds_operands ? limit : 0, &training->hold, error));
        FUSE_TRY(add_training_pass(experiment, training, FUSE_PART_FIRST, 0, full, error));
    }
    if (greatest > 2)
        FUSE_TRY(add_training_pass(experiment, training, FUSE_PART_MORE, 0, full, error));
    if (updates > 1)
        FUSE_TRY(add_end(experiment, training, most, full, error));
    if (updates > 1 && (!reaches_end || (last_count == most && last_size == full)))
        return FUSERUN_OK;
    return add_end(experiment, training, last_count, last_size, error);
}

int fuse_passes_weigh(struct fuse_experiment *experiment, struct fuse_way way, uint64_t *peak_bytes,
                      struct fuse_error *error)
{
    struct training training = {.way = way};
    const int status = build_training(experiment, &training, error);
    *peak_bytes = training.peak_bytes;
    free_training(&training);
    return status;
}

/* The ways that a program of this dict allows: each way to measure the norm, with operands held of earlier
 * micro-batches and without. To keep all gradients until the norm is known is to hold them. */
static size_t list_ways(const struct fuse_experiment *experiment, struct fuse_way ways[4])
{
    enum fuse_norm_use norms[2] = {FUSE_NORM_NONE, FUSE_NORM_NONE};
    const size_t norm_count = fuse_clip_norm_uses(experiment->dict, norms);
    const bool may_hold = experiment->accumulate > 1 && experiment->dict->mode == FUSE_MODE_FUSED;
    size_t count = 0;
    for (size_t i = 0; i < (norm_count > 0 ? norm_count : 1); i++) {
        if (may_hold && norms[i] != FUSE_NORM_KEEP)
            ways[count++] = (struct fuse_way){norms[i], .holds_operands = true};
        ways[count++] = (struct fuse_way){norms[i], .holds_operands = false};
    }
    return count;
}

/* Of several ways the one that peaks lowest, the first if they are equal. */
static int choose_training(struct fuse_experiment *experiment, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_way ways[4];
    struct training best = {0}, tried = {0};
    bool has_best = false;
    const size_t count = list_ways(experiment, ways);
    for (size_t i = 0; i < count; i++) {
        tried.way = ways[i];
        status = build_training(experiment, &tried, error);
        /* a device may lack the sum over micro-batches; the next way is the same without it */
        const bool is_passed_over = status == FUSERUN_ERROR_UNSUPPORTED && ways[i].holds_operands;
        if (status != FUSERUN_OK && !is_passed_over)
            goto out;
        status = FUSERUN_OK;
        if (is_passed_over || (has_best && tried.peak_bytes >= best.peak_bytes)) {
            free_training(&tried);
            continue;
        }
        free_training(&best);
        best = tried;
        has_best = true;
        tried = (struct training){0};
    }
    memcpy(experiment->passes, best.passes, sizeof best.passes);
    experiment->pass_count = best.pass_count;
    experiment->way = best.way;
    experiment->hold = best.hold;
    best = (struct training){0};
out:
    free_training(&best);
    free_training(&tried);
    return status;
}

static int add_evaluation_pass(struct fuse_experiment *experiment, int64_t batch_size, struct fuse_error *error)
{
    if (batch_size == 0)
        return FUSERUN_OK;
    struct fuse_pass *pass = &experiment->passes[experiment->pass_count++];
    *pass = (struct fuse_pass){.purpose = FUSE_PURPOSE_EVALUATE, .batch_size = batch_size, .owns_graph = true};
    FUSE_TRY(build_graph(experiment, batch_size, &pass->graph, error));
    return compile(experiment, pass, NULL, FUSE_NORM_NONE, error);
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

int fuse_passes_build(struct fuse_experiment *experiment, struct fuse_error *error)
{
    const struct fuse_source *train = &experiment->train, *evaluation = &experiment->evaluation;
    const bool reads_targets = experiment->loss != FUSE_LOSS_SUM;
    read_clipping(experiment);
    experiment->persistent[FUSE_CATEGORY_PARAMETER] = experiment->dict->parameter_bytes;
    experiment->persistent[FUSE_CATEGORY_OPTIMIZER_STATE] = experiment->dict->state_bytes;
    experiment->persistent[FUSE_CATEGORY_WORKSPACE] =
        experiment->dict->scratch_bytes +
        (experiment->checkpoints_in_background ? fuse_image_copy_bytes(experiment) : 0);
    experiment->persistent[FUSE_CATEGORY_DATA] = train->info.cache_bytes + fuse_feed_bytes(train, reads_targets);
    if (experiment->has_evaluation)
        experiment->persistent[FUSE_CATEGORY_DATA] +=
            evaluation->info.cache_bytes + fuse_feed_bytes(evaluation, reads_targets);
    struct fuse_backend_info device = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_info, own_bytes)};
    experiment->backend->describe(experiment->device, &device);
    experiment->persistent[FUSE_CATEGORY_WORKSPACE] += device.own_bytes;
    FUSE_TRY(fuse_dict_attach(experiment->dict, experiment->graph, error));
    FUSE_TRY(choose_training(experiment, error));
    if (experiment->has_evaluation) {
        FUSE_TRY(add_evaluation_pass(experiment, fuse_source_full_batch(evaluation), error));
        FUSE_TRY(add_evaluation_pass(experiment, fuse_source_last_batch(evaluation), error));
    }
    experiment->persistent[FUSE_CATEGORY_DATA] += fuse_staging_bytes(experiment);
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        struct fuse_peak peak;
        fuse_program_peak(experiment->passes[i].program, experiment->persistent, &peak);
        if (i == 0 || peak.bytes > experiment->predicted.bytes)
            experiment->predicted = peak;
        if (experiment->passes[i].program->arena_bytes > experiment->arena_bytes)
            experiment->arena_bytes = experiment->passes[i].program->arena_bytes;
    }
    return FUSERUN_OK;
}

struct fuse_program *fuse_experiment_program(const struct fuse_experiment *experiment, enum fuse_purpose purpose,
                                             enum fuse_part part, int64_t earlier_count, int64_t batch_size)
{
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        const struct fuse_pass *pass = &experiment->passes[i];
        if (pass->purpose == purpose && pass->part == part && pass->batch_size == batch_size &&
            (part != FUSE_PART_LAST || pass->earlier_count == earlier_count))
            return pass->program;
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
    if (experiment->weights != NULL && (experiment->resume == NULL || !experiment->resume->is_whole))
        FUSE_TRY(told_at_line(experiment, "model", error,
                              fuse_weights_load(experiment->weights, experiment->graph, experiment->dict, error)));
    if (experiment->resume != NULL)
        FUSE_TRY(fuse_resume_load(experiment, error));
    FUSE_TRY(told_at_line(experiment, "data", error, fuse_source_load(&experiment->train, error)));
    FUSE_TRY(fuse_feed_new(&experiment->train, experiment->seed, reads_targets, &experiment->train_feed, error));
    if (experiment->has_evaluation) {
        FUSE_TRY(told_at_line(experiment, "eval", error, fuse_source_load(&experiment->evaluation, error)));
        FUSE_TRY(fuse_feed_new(&experiment->evaluation, experiment->seed, reads_targets, &experiment->evaluation_feed,
                               error));
    }
    FUSE_TRY(fuse_staging_allocate(experiment, error));
    if (experiment->arena_bytes > 0)
        FUSE_TRY(experiment->backend->allocate(experiment->device, experiment->arena_bytes, &experiment->arena, error));
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        struct fuse_program *program = experiment->passes[i].program;
        fuse_program_bind(program, experiment->arena, experiment->dict->parameters);
        FUSE_TRY(fuse_ledger_add_pass(experiment->ledger, program->ledger_buffers, program->buffer_count,
                                      program->phases, program->instruction_count, &program->ledger_pass, error));
    }
    FUSE_TRY(fuse_pictures_prepare(experiment, error));
    return fuse_profile_prepare(experiment, error);
}
