#include "train/experiment.h"

#include "config/options.h"
#include "train/device.h"
#include "train/profile.h"
#include "train/resume.h"
#include "train/staging.h"
#include "train/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages ------------------------------------------------------------------------------------------------ */

int fuse_experiment_blame(struct fuse_experiment *experiment, const char *section, const char *key,
                          const struct fuse_error *cause, struct fuse_error *error)
{
    if (cause->code == FUSERUN_ERROR_MEMORY || cause->code == FUSERUN_ERROR_INTERNAL) {
        *error = *cause;
        return cause->code;
    }
    fuse_config_report(experiment->config, experiment->diagnostics, section, cause->key[0] != '\0' ? cause->key : key,
                       "%s", cause->text);
    return FUSERUN_OK;
}

static bool has_errors(const struct fuse_experiment *experiment)
{
    return fuse_diagnostics_error_count(experiment->diagnostics) > 0;
}

/* The section's values can be relied on, whatever is wrong elsewhere. */
static bool is_clean(const struct fuse_experiment *experiment, const char *section)
{
    return fuse_config_is_clean(experiment->config, section);
}

int fuse_experiment_refused(struct fuse_error *error)
{
    return fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the config has mistakes");
}

/* ---- plugins ------------------------------------------------------------------------------------------------- */

static int find_component(void *user, enum fuse_kind kind, const char *name, const struct fuse_component **component,
                          const char **file, struct fuse_error *error)
{
    const struct fuse_experiment *experiment = user;
    return fuse_registry_find(experiment->registry, kind, name, component, file, error);
}

static bool find_is_standard(void *user, const char *file)
{
    const struct fuse_experiment *experiment = user;
    return fuse_registry_is_standard(experiment->registry, file);
}

static void tell_notices(const struct fuse_experiment *experiment)
{
    for (size_t i = 0; i < fuse_registry_notice_count(experiment->registry); i++)
        fuse_config_warn(experiment->config, experiment->diagnostics, "plugins", "path", "%s",
                         fuse_registry_notice(experiment->registry, i));
}

/* ---- data ---------------------------------------------------------------------------------------------------- */

static void read_loss(struct fuse_experiment *experiment)
{
    const struct fuse_options *options = fuse_config_options(experiment->config, "loss");
    const char *kind = options != NULL ? fuse_option_text(options, "kind") : NULL;
    experiment->loss = FUSE_LOSS_CROSS_ENTROPY;
    if (kind != NULL && strcmp(kind, "mse") == 0)
        experiment->loss = FUSE_LOSS_MSE;
    else if (kind != NULL && strcmp(kind, "sum") == 0)
        experiment->loss = FUSE_LOSS_SUM;
    experiment->label_smoothing = options != NULL && experiment->loss == FUSE_LOSS_CROSS_ENTROPY
                                      ? fuse_option_number(options, "label_smoothing")
                                      : 0;
}

static enum fuse_target_kind wanted_targets(const struct fuse_experiment *experiment)
{
    switch (experiment->loss) {
    case FUSE_LOSS_CROSS_ENTROPY:
        return FUSERUN_TARGET_CLASS;
    case FUSE_LOSS_MSE:
        return FUSERUN_TARGET_VALUES;
    case FUSE_LOSS_SUM:
        break;
    }
    return FUSERUN_TARGET_NONE;
}

/* A file that [eval] takes from [data] is told once: told is the message about [data], or empty. */
static int open_source(struct fuse_experiment *experiment, const char *section, bool for_evaluation,
                       struct fuse_source *source, char told[sizeof((struct fuse_error){0}.text)],
                       struct fuse_error *error)
{
    const struct fuse_component *component = fuse_config_component(experiment->config, section);
    const struct fuse_options *options = fuse_config_options(experiment->config, section);
    if (!is_clean(experiment, section))
        return FUSERUN_OK;
    const struct fuse_dataset_context context = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_dataset_context, target_wanted),
        .for_evaluation = for_evaluation,
        .seed = experiment->seed,
        /* With a loss that nobody understands, the file is there or it is not all the same. */
        .target_wanted = is_clean(experiment, "loss") ? wanted_targets(experiment) : FUSERUN_TARGET_NONE,
    };
    struct fuse_error cause = FUSE_ERROR_INIT;
    if (fuse_source_open(fuse_host(), component, options, &context, source, &cause) != FUSERUN_OK) {
        fuse_source_close(source);
        if (strcmp(cause.text, told) == 0)
            return FUSERUN_OK;
        memcpy(told, cause.text, sizeof cause.text);
        return fuse_experiment_blame(experiment, section, "plugin", &cause, error);
    }
    return FUSERUN_OK;
}

static void add_shape(struct fuse_text *text, uint32_t rank, const int64_t *shape)
{
    fuse_text_add(text, "(");
    for (uint32_t i = 0; i < rank; i++)
        fuse_text_addf(text, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
    fuse_text_add(text, ")");
}

static bool is_same_shape(uint32_t rank_a, const int64_t *a, uint32_t rank_b, const int64_t *b)
{
    return rank_a == rank_b && memcmp(a, b, rank_a * sizeof *a) == 0;
}

static int open_data(struct fuse_experiment *experiment, struct fuse_error *error)
{
    char told[sizeof((struct fuse_error){0}.text)] = "";
    FUSE_TRY(open_source(experiment, "data", false, &experiment->train, told, error));
    experiment->has_evaluation = fuse_config_options(experiment->config, "eval") != NULL;
    if (!experiment->has_evaluation)
        return FUSERUN_OK;
    FUSE_TRY(open_source(experiment, "eval", true, &experiment->evaluation, told, error));
    const struct fuse_dataset_info *a = &experiment->train.info;
    const struct fuse_dataset_info *b = &experiment->evaluation.info;
    if (experiment->train.dataset == NULL || experiment->evaluation.dataset == NULL ||
        is_same_shape(a->input_rank, a->input_shape, b->input_rank, b->input_shape))
        return FUSERUN_OK;
    struct fuse_text text = {0};
    fuse_text_add(&text, "its inputs have the shape ");
    add_shape(&text, b->input_rank, b->input_shape);
    fuse_text_add(&text, ", those of [data] ");
    add_shape(&text, a->input_rank, a->input_shape);
    fuse_config_report(experiment->config, experiment->diagnostics, "eval", "plugin", "%s",
                       text.failed ? "its inputs have another shape than those of [data]" : text.data);
    fuse_text_free(&text);
    return FUSERUN_OK;
}

/* At most INT64_MAX. */
static int64_t updates_of_epochs(const struct fuse_experiment *experiment, int64_t epochs)
{
    int64_t updates = 0;
    return __builtin_mul_overflow(epochs, experiment->updates_per_epoch, &updates) ? INT64_MAX : updates;
}

/* 0 where the section or the key is absent. */
static int64_t updates_of_span(const struct fuse_experiment *experiment, const struct fuse_options *options,
                               const char *key)
{
    if (options == NULL || !fuse_option_is_set(options, key))
        return 0;
    const char *unit = fuse_option_text(options, key);
    const int64_t count = fuse_option_integer(options, key);
    const bool counts_epochs = unit != NULL && strncmp(unit, "epoch", 5) == 0;
    return counts_epochs ? updates_of_epochs(experiment, count) : count;
}

static void count_updates(struct fuse_experiment *experiment)
{
    const struct fuse_options *run = fuse_config_options(experiment->config, "run");
    const struct fuse_options *evaluation = fuse_config_options(experiment->config, "eval");
    const struct fuse_options *checkpoint = fuse_config_options(experiment->config, "checkpoint");
    experiment->accumulate = fuse_option_integer(fuse_config_options(experiment->config, "optimizer"), "accumulate");
    experiment->updates_per_epoch = (fuse_source_batch_count(&experiment->train) - 1) / experiment->accumulate + 1;
    experiment->total_updates = fuse_option_is_set(run, "steps")
                                    ? fuse_option_integer(run, "steps")
                                    : updates_of_epochs(experiment, fuse_option_integer(run, "epochs"));
    experiment->evaluate_every = updates_of_span(experiment, evaluation, "every");
    experiment->checkpoint_every = updates_of_span(experiment, checkpoint, "every");
    experiment->checkpoints_in_background =
        experiment->checkpoint_every > 0 && fuse_option_bool(checkpoint, "background") != 0;
}

/* ---- the model ------------------------------------------------------------------------------------------------- */

static int mark_frozen(struct fuse_experiment *experiment, struct fuse_graph *graph, bool is_first)
{
    size_t count = 0;
    const struct fuse_options *model = fuse_config_options(experiment->config, "model");
    const char *const *globs = fuse_option_texts(model, "freeze", &count);
    for (size_t g = 0; g < count; g++) {
        bool is_used = false;
        for (uint32_t p = 0; p < graph->parameter_count; p++) {
            if (!fuse_glob_match(globs[g], graph->parameters[p].name))
                continue;
            graph->parameters[p].is_frozen = true;
            is_used = true;
        }
        if (!is_used && is_first)
            fuse_config_report(experiment->config, experiment->diagnostics, "model", "freeze",
                               "'%s' matches no parameter of the model", globs[g]);
    }
    bool is_trained = count == 0;
    for (uint32_t p = 0; p < graph->parameter_count; p++)
        is_trained = is_trained || !graph->parameters[p].is_frozen;
    if (!is_trained && is_first)
        fuse_config_warn(experiment->config, experiment->diagnostics, "model", "freeze",
                         "every parameter is frozen: nothing will be trained");
    return FUSERUN_OK;
}

int fuse_experiment_build_graph(struct fuse_experiment *experiment, int64_t batch_size, struct fuse_graph **graph,
                                struct fuse_error *error)
{
    const struct fuse_dataset_info *info = &experiment->train.info;
    int64_t shape[FUSERUN_MAX_DIMS] = {batch_size};
    for (uint32_t i = 0; i < info->input_rank; i++)
        shape[i + 1] = info->input_shape[i];
    FUSE_TRY(fuse_graph_build(fuse_host(), fuse_config_component(experiment->config, "model"),
                              fuse_config_options(experiment->config, "model"), info->input_rank + 1, shape, graph,
                              error));
    return mark_frozen(experiment, *graph, experiment->graph == NULL);
}

static bool takes_option(const struct fuse_component *component, const char *key)
{
    for (uint32_t i = 0; i < component->option_count; i++) {
        const struct fuse_option *option =
            (const void *)((const char *)component->options + (size_t)i * component->option_stride);
        if (strcmp(option->key, key) == 0)
            return true;
    }
    return false;
}

/* The targets of one section against what the loss reads and the model gives. */
static void check_targets(struct fuse_experiment *experiment, const char *section, const struct fuse_source *source)
{
    const struct fuse_tensor *output = experiment->graph->tensors[experiment->graph->output];
    const struct fuse_dataset_info *info = &source->info;
    const struct fuse_component *component = fuse_config_component(experiment->config, section);
    if (experiment->loss == FUSE_LOSS_CROSS_ENTROPY) {
        if (info->target_kind != FUSERUN_TARGET_CLASS)
            fuse_config_report(experiment->config, experiment->diagnostics, "loss", "kind",
                               "cross_entropy needs class numbers, which the dataset '%s' of [%s] does not have",
                               component->name, section);
        else if (info->class_count > output->shape[output->rank - 1])
            fuse_config_report(experiment->config, experiment->diagnostics, section,
                               takes_option(component, "classes") ? "classes" : "plugin",
                               "%" PRId64 " classes, but the model's outputs are only %" PRId64, info->class_count,
                               output->shape[output->rank - 1]);
        return;
    }
    if (experiment->loss != FUSE_LOSS_MSE)
        return;
    if (info->target_kind != FUSERUN_TARGET_VALUES) {
        fuse_config_report(experiment->config, experiment->diagnostics, "loss", "kind",
                           "mse needs target values, which the dataset '%s' of [%s] does not have", component->name,
                           section);
        return;
    }
    if (is_same_shape(output->rank - 1, output->shape + 1, info->target_rank, info->target_shape))
        return;
    struct fuse_text text = {0};
    fuse_text_add(&text, "mse compares equal shapes, but an output is ");
    add_shape(&text, output->rank - 1, output->shape + 1);
    fuse_text_addf(&text, " and a target of [%s] ", section);
    add_shape(&text, info->target_rank, info->target_shape);
    fuse_config_report(experiment->config, experiment->diagnostics, "loss", "kind", "%s",
                       text.failed ? "outputs and targets have different shapes" : text.data);
    fuse_text_free(&text);
}

static int build_model(struct fuse_experiment *experiment, struct fuse_error *error)
{
    struct fuse_error cause = FUSE_ERROR_INIT;
    struct fuse_graph *graph = NULL;
    if (fuse_experiment_build_graph(experiment, fuse_source_full_batch(&experiment->train), &graph, &cause) !=
            FUSERUN_OK ||
        fuse_weights_check_names(graph, &cause) != FUSERUN_OK) {
        fuse_graph_free(&graph);
        return fuse_experiment_blame(experiment, "model", "plugin", &cause, error);
    }
    experiment->graph = graph;
    const struct fuse_tensor *output = graph->tensors[graph->output];
    experiment->output_elements = fuse_element_count(output->rank, output->shape) / output->shape[0];
    if (!is_clean(experiment, "loss"))
        return FUSERUN_OK;
    if (experiment->loss == FUSE_LOSS_CROSS_ENTROPY && output->rank != 2) {
        fuse_config_report(experiment->config, experiment->diagnostics, "loss", "kind",
                           "cross_entropy needs one row of class scores a sample, but the model's outputs have %u "
                           "dimensions a sample",
                           output->rank - 1);
        return FUSERUN_OK;
    }
    check_targets(experiment, "data", &experiment->train);
    if (experiment->evaluation.dataset != NULL)
        check_targets(experiment, "eval", &experiment->evaluation);
    return FUSERUN_OK;
}

/* ---- weights ------------------------------------------------------------------------------------------------- */

static int open_weights(struct fuse_experiment *experiment, struct fuse_error *error)
{
    const struct fuse_options *model = fuse_config_options(experiment->config, "model");
    const char *path = is_clean(experiment, "model") ? fuse_option_text(model, "weights") : NULL;
    const char *weights_key = is_clean(experiment, "model") ? fuse_option_text(model, "weights_key") : NULL;
    struct fuse_error cause = FUSE_ERROR_INIT;
    if (path == NULL && weights_key != NULL)
        (void)fuse_fail(&cause, FUSERUN_ERROR_CONFIG, NULL, "there is no 'weights' whose dict this could name");
    if (path == NULL)
        return weights_key == NULL ? FUSERUN_OK
                                   : fuse_experiment_blame(experiment, "model", "weights_key", &cause, error);
    if (fuse_weights_file_open(path, FUSE_PTH_STATE_DICT, weights_key, &experiment->weights, &cause) == FUSERUN_OK)
        return FUSERUN_OK;
    if (weights_key == NULL) /* the line that names the file is the one to show */
        cause.key[0] = '\0';
    return fuse_experiment_blame(experiment, "model", "weights", &cause, error);
}

static int compare_weights(struct fuse_experiment *experiment, struct fuse_error *error)
{
    if (experiment->weights == NULL)
        return FUSERUN_OK;
    const bool is_strict = fuse_option_bool(fuse_config_options(experiment->config, "model"), "strict") != 0;
    struct fuse_text wrong = {0};
    struct fuse_text skipped = {0};
    fuse_weights_compare(experiment->weights, experiment->graph, is_strict, &wrong, &skipped);
    const bool has_failed = wrong.failed || skipped.failed;
    if (!has_failed && wrong.length > 0)
        fuse_config_report(experiment->config, experiment->diagnostics, "model", "weights",
                           "the file does not fit the model: %s%s", wrong.data,
                           is_strict ? "; strict = no takes what matches" : "");
    if (!has_failed && skipped.length > 0)
        fuse_config_warn(experiment->config, experiment->diagnostics, "model", "weights",
                         "strict = no: taken is what matches; %s", skipped.data);
    fuse_text_free(&wrong);
    fuse_text_free(&skipped);
    return has_failed ? fuse_fail_memory(error, "comparing weights", 0) : FUSERUN_OK;
}

/* ---- groups, clock, backend ------------------------------------------------------------------------------------ */

static struct fuse_group_spec *group_specs(const struct fuse_experiment *experiment, size_t *count)
{
    *count = fuse_config_group_count(experiment->config) + 1;
    struct fuse_group_spec *specs = calloc(*count, sizeof *specs);
    if (specs == NULL)
        return NULL;
    specs[0] = (struct fuse_group_spec){.name = "default",
                                        .component = fuse_config_component(experiment->config, "optimizer"),
                                        .options = fuse_config_options(experiment->config, "optimizer")};
    for (size_t i = 1; i < *count; i++) {
        const struct fuse_config_group *group = fuse_config_group(experiment->config, i - 1);
        specs[i] =
            (struct fuse_group_spec){group->name, group->match, group->match_count, group->component, group->options};
    }
    return specs;
}

/* Options that contradict each other. What a group inherits is told once, under [optimizer]. */
static int check_optimizers(struct fuse_experiment *experiment, const struct fuse_group_spec *specs, size_t count,
                            struct fuse_error *error)
{
    struct fuse_error inherited = FUSE_ERROR_INIT;
    for (size_t g = 0; g < count; g++) {
        const char *section = g == 0 ? "optimizer" : fuse_config_group(experiment->config, g - 1)->section;
        struct fuse_error cause = FUSE_ERROR_INIT;
        if (!is_clean(experiment, section))
            continue;
        const struct fuse_optimizer *optimizer = specs[g].component->api;
        const int status =
            optimizer->check == NULL ? FUSERUN_OK : optimizer->check(fuse_host(), specs[g].options, &cause);
        if (status == FUSERUN_OK)
            continue;
        (void)fuse_fail_unsaid(&cause, status, "the optimizer's check of its options");
        if (strcmp(cause.text, inherited.text) == 0)
            continue;
        if (g == 0)
            inherited = cause;
        FUSE_TRY(fuse_experiment_blame(experiment, section, "plugin", &cause, error));
    }
    return FUSERUN_OK;
}

/* Every group that no parameter is left for. */
static void check_groups(struct fuse_experiment *experiment, const struct fuse_group_spec *specs, size_t count)
{
    for (size_t g = 1; g < count; g++) {
        bool is_used = !is_clean(experiment, fuse_config_group(experiment->config, g - 1)->section);
        for (uint32_t p = 0; p < experiment->graph->parameter_count && !is_used; p++)
            is_used = fuse_group_of(experiment->graph->parameters[p].name, specs, count) == g;
        if (!is_used)
            fuse_config_report(experiment->config, experiment->diagnostics,
                               fuse_config_group(experiment->config, g - 1)->section, "match",
                               "no parameter is left for the group '%s'", specs[g].name);
    }
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* What needs no backend. The parts that can be judged are, even if there are mistakes in others; what cannot be judged
 * for a mistake somewhere else stays silent. */
static int open_inputs(struct fuse_experiment *experiment, const struct fuse_group_spec *specs, size_t count,
                       struct fuse_error *error)
{
    const bool is_whole = !has_errors(experiment);
    const bool can_build = is_clean(experiment, "model"); /* absent weights hide nothing of the model */
    read_loss(experiment);
    experiment->seed = (uint64_t)fuse_option_integer(fuse_config_options(experiment->config, "run"), "seed");
    FUSE_TRY(open_weights(experiment, error));
    FUSE_TRY(open_data(experiment, error));
    FUSE_TRY(check_optimizers(experiment, specs, count, error));
    if (experiment->train.dataset == NULL)
        return FUSERUN_OK;
    if (can_build)
        FUSE_TRY(build_model(experiment, error));
    if (experiment->graph != NULL) {
        FUSE_TRY(compare_weights(experiment, error));
        check_groups(experiment, specs, count);
    }
    if (!is_whole)
        return FUSERUN_OK;
    count_updates(experiment);
    const int status = fuse_clock_new(experiment->config, experiment->updates_per_epoch, experiment->total_updates,
                                      experiment->diagnostics, &experiment->clock, error);
    return status == FUSERUN_ERROR_CONFIG ? FUSERUN_OK : status;
}

static int open_all(struct fuse_experiment *experiment, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    size_t count = 0;
    struct fuse_group_spec *specs = group_specs(experiment, &count);
    if (specs == NULL)
        return fuse_fail_memory(error, "the parameter groups", count * sizeof *specs);
    FUSE_TRY_OUT(open_inputs(experiment, specs, count, error));
    if (has_errors(experiment)) {
        status = fuse_experiment_refused(error);
        goto out;
    }
    FUSE_TRY_OUT(fuse_experiment_open_device(experiment, specs, count,
                                             error)); /* late: its libraries take longer than all the rest */
    FUSE_TRY_OUT(
        fuse_clock_bind(experiment->clock, experiment->dict, experiment->config, experiment->diagnostics, error));
    FUSE_TRY_OUT(
        fuse_clock_check(experiment->clock, experiment->dict, experiment->config, experiment->diagnostics, error));
    FUSE_TRY_OUT(fuse_passes_build(experiment, error));
out:
    free(specs);
    return status;
}

int fuse_experiment_open(const char *path, const char *const *overrides, size_t override_count,
                         struct fuse_experiment **experiment, struct fuse_error *error)
{
    struct fuse_experiment *made = calloc(1, sizeof *made);
    *experiment = made;
    if (made == NULL)
        return fuse_fail_memory(error, "the experiment", sizeof *made);
    made->diagnostics = fuse_diagnostics_new();
    if (made->diagnostics == NULL)
        return fuse_fail_memory(error, "the experiment", sizeof *made);
    const int read = fuse_config_read(path, overrides, override_count, made->diagnostics, &made->config);
    if (made->config == NULL)
        return read == FUSERUN_ERROR_MEMORY ? fuse_fail_memory(error, "the config", 0) : fuse_experiment_refused(error);
    size_t folder_count = 0;
    const char *const *folders = fuse_config_plugin_path(made->config, &folder_count);
    FUSE_TRY(fuse_registry_new(folders, folder_count, fuse_config_folder(made->config), &made->registry, error));
    const struct fuse_resolver resolver = {
        .find = find_component, .is_standard = find_is_standard, .user = made, .checks_data_files = true};
    const int resolved = fuse_config_resolve(made->config, &resolver, made->diagnostics);
    tell_notices(made);
    return resolved == FUSERUN_ERROR_MEMORY ? fuse_fail_memory(error, "the config", 0) : open_all(made, error);
}

void fuse_experiment_free(struct fuse_experiment **experiment)
{
    struct fuse_experiment *old = *experiment;
    if (old == NULL)
        return;
    for (uint32_t i = 0; i < old->pass_count; i++) {
        fuse_program_free(&old->passes[i].program);
        if (old->passes[i].owns_graph)
            fuse_graph_free(&old->passes[i].graph);
    }
    fuse_timeline_free(&old->timeline);
    fuse_profile_free(&old->profile);
    fuse_ledger_free(&old->ledger);
    fuse_staging_free(old);
    if (old->arena != NULL)
        old->backend->release(old->device, old->arena, old->arena_bytes);
    fuse_feed_free(&old->train_feed);
    fuse_feed_free(&old->evaluation_feed);
    fuse_dict_free(&old->dict);
    fuse_clock_free(&old->clock);
    fuse_weights_file_close(&old->weights);
    fuse_resume_free(&old->resume);
    fuse_hold_free(&old->hold);
    fuse_graph_free(&old->short_graph);
    fuse_graph_free(&old->graph);
    fuse_source_close(&old->train);
    fuse_source_close(&old->evaluation);
    fuse_experiment_close_device(old);
    fuse_config_free(&old->config);
    fuse_registry_free(&old->registry);
    fuse_diagnostics_free(&old->diagnostics);
    free(old);
    *experiment = NULL;
}

bool fuse_experiment_is_bfloat16(const struct fuse_experiment *experiment)
{
    return strcmp(fuse_option_text(fuse_config_options(experiment->config, "run"), "precision"), "bf16") == 0;
}

int64_t fuse_experiment_parameter_values(const struct fuse_experiment *experiment)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < experiment->graph->parameter_count; i++)
        count += experiment->graph->parameters[i].element_count;
    return count;
}

double fuse_experiment_scale(const struct fuse_experiment *experiment, int64_t samples)
{
    switch (experiment->loss) {
    case FUSE_LOSS_CROSS_ENTROPY:
        return 1.0 / (double)samples;
    case FUSE_LOSS_MSE:
        return 1.0 / ((double)samples * (double)experiment->output_elements);
    case FUSE_LOSS_SUM:
        break;
    }
    return 1.0;
}
