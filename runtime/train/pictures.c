#include "train/pictures.h"

#include "base/align.h"
#include "config/options.h"
#include "files/output.h"
#include "graph/describe.h"
#include "memory/report.h"
#include "memory/snapshot.h"
#include "train/image.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_on(const struct fuse_experiment *experiment, const char *key)
{
    return fuse_option_bool(fuse_config_options(experiment->config, "memory"), key) != 0;
}

int fuse_pictures_prepare(struct fuse_experiment *experiment, struct fuse_error *error)
{
    size_t counts[FUSE_MAX_PASSES];
    bool is_training[FUSE_MAX_PASSES];
    if (!is_on(experiment, "timeline") && !is_on(experiment, "snapshot"))
        return FUSERUN_OK;
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        counts[i] = experiment->passes[i].program->instruction_count;
        is_training[i] = experiment->passes[i].purpose == FUSE_PURPOSE_TRAIN;
    }
    return fuse_timeline_new(counts, is_training, experiment->pass_count, &experiment->timeline, error);
}

/* ---- describing ------------------------------------------------------------------------------------------------ */

/* A description and all that it borrows. */
struct describer {
    struct fuse_description description;
    struct fuse_described_pass passes[FUSE_MAX_PASSES];
    struct fuse_described_operation *operations[FUSE_MAX_PASSES];
    struct fuse_described_buffer *buffers[FUSE_MAX_PASSES];
    struct fuse_described_buffer *persistent;
    size_t persistent_capacity;
    char **names;
    size_t name_count, name_capacity;
    bool failed;
};

static void free_describer(struct describer *describer)
{
    for (size_t i = 0; i < describer->name_count; i++)
        free(describer->names[i]);
    free(describer->names);
    for (size_t i = 0; i < FUSE_MAX_PASSES; i++) {
        free(describer->operations[i]);
        free(describer->buffers[i]);
    }
    free(describer->persistent);
}

/* Keeps what the text says, and empties it. */
static const char *keep(struct describer *describer, struct fuse_text *text)
{
    if (describer->name_count == describer->name_capacity) {
        const size_t wanted = describer->name_capacity == 0 ? 256 : 2 * describer->name_capacity;
        char **grown = realloc(describer->names, wanted * sizeof *grown);
        if (grown == NULL) {
            describer->failed = true;
            return "";
        }
        describer->names = grown;
        describer->name_capacity = wanted;
    }
    char *name = text->failed ? NULL : fuse_strdup(text->data != NULL ? text->data : "");
    fuse_text_clear(text);
    if (name == NULL) {
        describer->failed = true;
        return "";
    }
    describer->names[describer->name_count++] = name;
    return name;
}

static void describe_pass(struct describer *describer, const struct fuse_experiment *experiment, uint32_t index,
                          struct fuse_text *text)
{
    const struct fuse_pass *pass = &experiment->passes[index];
    const struct fuse_program *program = pass->program;
    struct fuse_described_operation *operations = calloc(program->instruction_count + 1, sizeof *operations);
    struct fuse_described_buffer *buffers = calloc(program->buffer_count + 1, sizeof *buffers);
    describer->operations[index] = operations;
    describer->buffers[index] = buffers;
    if (operations == NULL || buffers == NULL) {
        describer->failed = true;
        return;
    }
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        fuse_program_add_operation(program, i, text);
        operations[i].operation = keep(describer, text);
        fuse_program_add_layer(program, i, text);
        operations[i].layer = keep(describer, text);
        operations[i].phase = program->instructions[i].phase;
    }
    for (uint32_t b = 0; b < program->buffer_count; b++) {
        const struct fuse_buffer *buffer = &program->buffers[b];
        fuse_program_add_buffer(program, b, text);
        buffers[b] = (struct fuse_described_buffer){.name = keep(describer, text),
                                                    .category = buffer->category,
                                                    .bytes = buffer->is_parameter ? 0 : buffer->bytes,
                                                    .offset = buffer->is_parameter ? 0 : buffer->offset};
    }
    describer->passes[index] = (struct fuse_described_pass){.is_training = pass->purpose == FUSE_PURPOSE_TRAIN,
                                                            .batch_size = pass->batch_size,
                                                            .operations = operations,
                                                            .operation_count = program->instruction_count,
                                                            .buffers = buffers,
                                                            .buffer_count = program->buffer_count};
}

static void add_persistent(struct describer *describer, const char *name, enum fuse_category category, uint64_t bytes,
                           uint64_t offset)
{
    struct fuse_description *description = &describer->description;
    if (bytes == 0)
        return;
    if (description->persistent_count == describer->persistent_capacity) {
        const size_t wanted = describer->persistent_capacity == 0 ? 256 : 2 * describer->persistent_capacity;
        struct fuse_described_buffer *grown = realloc(describer->persistent, wanted * sizeof *grown);
        if (grown == NULL) {
            describer->failed = true;
            return;
        }
        describer->persistent = grown;
        describer->persistent_capacity = wanted;
    }
    describer->persistent[description->persistent_count++] =
        (struct fuse_described_buffer){.name = name, .category = category, .bytes = bytes, .offset = offset};
    if (offset + bytes > description->persistent_bytes)
        description->persistent_bytes = offset + bytes;
}

static void describe_persistent(struct describer *describer, const struct fuse_experiment *experiment,
                                struct fuse_text *text)
{
    const struct fuse_dict *dict = experiment->dict;
    for (uint32_t p = 0; p < experiment->graph->parameter_count; p++) {
        const struct fuse_parameter *parameter = &experiment->graph->parameters[p];
        add_persistent(describer, parameter->name, FUSE_CATEGORY_PARAMETER,
                       (uint64_t)parameter->element_count * sizeof(float),
                       (uint64_t)((const char *)dict->parameters[p] - dict->memory));
    }
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        const struct fuse_entry *entry = &dict->entries[e];
        const struct fuse_rule *rule = dict->groups[entry->group].rule;
        for (uint32_t s = 0; s < rule->state_count; s++) {
            size_t length = 0;
            const char *state = fuse_rule_name(rule->states, s, &length);
            fuse_text_addf(text, "optimizer/%s/%.*s", experiment->graph->parameters[entry->parameter].name, (int)length,
                           state);
            add_persistent(describer, keep(describer, text), FUSE_CATEGORY_OPTIMIZER_STATE,
                           (uint64_t)entry->state_counts[s] * sizeof(float),
                           (uint64_t)((const char *)entry->states[s] - dict->memory));
        }
    }
    if (dict->scratch_bytes > 0)
        add_persistent(describer, "the optimizers' scratch", FUSE_CATEGORY_WORKSPACE, dict->scratch_bytes,
                       (uint64_t)(dict->scratch - dict->memory));
    if (experiment->checkpoints_in_background)
        add_persistent(describer, "the copy that checkpoints are written from", FUSE_CATEGORY_WORKSPACE,
                       fuse_image_copy_bytes(experiment), fuse_aligned(describer->description.persistent_bytes));
    const bool reads_targets = experiment->loss != FUSE_LOSS_SUM;
    const struct {
        const char *name;
        uint64_t bytes;
    } data[] = {
        {"the training data", experiment->train.info.cache_bytes},
        {"the order of the training data", fuse_feed_bytes(&experiment->train, reads_targets)},
        {"the evaluation data", experiment->has_evaluation ? experiment->evaluation.info.cache_bytes : 0},
        {"the order of the evaluation data",
         experiment->has_evaluation ? fuse_feed_bytes(&experiment->evaluation, reads_targets) : 0},
    };
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++)
        add_persistent(describer, data[i].name, FUSE_CATEGORY_DATA, data[i].bytes,
                       fuse_aligned(describer->description.persistent_bytes));
}

static int describe(struct describer *describer, const struct fuse_experiment *experiment, struct fuse_error *error)
{
    struct fuse_text text = {0};
    for (uint32_t i = 0; i < experiment->pass_count; i++)
        describe_pass(describer, experiment, i, &text);
    describe_persistent(describer, experiment, &text);
    struct fuse_description *description = &describer->description;
    description->timeline = experiment->timeline;
    description->ledger = experiment->ledger;
    description->passes = describer->passes;
    description->pass_count = experiment->pass_count;
    description->persistent = describer->persistent;
    description->arena_bytes = experiment->arena_bytes;
    description->allocate_place = fuse_experiment_allocate_place;
    description->run_place = fuse_program_run_place;
    const bool has_failed = describer->failed || text.failed;
    fuse_text_free(&text);
    return has_failed ? fuse_fail_memory(error, "the memory report", describer->name_count) : FUSERUN_OK;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void add_text_option(struct fuse_text *text, const char *title, const char *value)
{
    if (value == NULL)
        return;
    fuse_text_addf(text, ",\"%s\":", title);
    fuse_text_add_json(text, value);
}

/* What kind of run it was, for pages and tables. */
static void add_run(const struct fuse_experiment *experiment, struct fuse_text *text)
{
    const struct fuse_config *config = experiment->config;
    const struct fuse_options *run = fuse_config_options(config, "run");
    const struct fuse_options *optimizer = fuse_config_options(config, "optimizer");
    const struct fuse_options *loss = fuse_config_options(config, "loss");
    struct fuse_backend_info device = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_info, own_bytes)};
    experiment->backend->describe(experiment->device, &device);
    uint64_t trainable = 0;
    for (uint32_t e = 0; e < experiment->dict->entry_count; e++)
        trainable += (uint64_t)experiment->dict->entries[e].element_count * sizeof(float);
    fuse_text_add(text, "\"run\":{\"name\":");
    fuse_text_add_json(text, fuse_option_text(run, "name"));
    add_text_option(text, "model", fuse_config_component(config, "model")->name);
    add_text_option(text, "preset", fuse_option_text(fuse_config_options(config, "model"), "preset"));
    add_text_option(text, "optimizer", fuse_config_component(config, "optimizer")->name);
    add_text_option(text, "mode", fuse_option_text(optimizer, "mode"));
    add_text_option(text, "recompute", fuse_option_text(fuse_config_options(config, "memory"), "recompute"));
    add_text_option(text, "loss", loss != NULL ? fuse_option_text(loss, "kind") : "cross_entropy");
    add_text_option(text, "precision", fuse_option_text(run, "precision"));
    add_text_option(text, "device", device.description != NULL ? device.description : device.name);
    fuse_text_addf(text, ",\"batch_size\":%" PRId64 ",\"updates\":%" PRId64 ",\"trainable_bytes\":%" PRIu64,
                   fuse_source_full_batch(&experiment->train), experiment->clock->completed_updates, trainable);
    add_text_option(text, "version", FUSERUN_VERSION);
    fuse_text_add(text, "}");
}

static int write_json(const struct fuse_experiment *experiment, const struct fuse_description *description,
                      const char *path, uint64_t rss_peak_bytes, struct fuse_error *error)
{
    struct fuse_text text = {0};
    fuse_text_add(&text, "{");
    fuse_peak_add_json(fuse_ledger_peak(experiment->ledger), &text);
    fuse_text_addf(&text,
                   ",\"rss_base_bytes\":%" PRIu64 ",\"rss_peak_bytes\":%" PRIu64 ",\"parameters\":%" PRId64 ",\n",
                   experiment->resident_base_bytes, rss_peak_bytes, fuse_experiment_parameter_values(experiment));
    add_run(experiment, &text);
    fuse_text_add(&text, ",\n");
    int status = fuse_timeline_add_json(description, &text, error);
    fuse_text_add(&text, "}\n");
    if (status == FUSERUN_OK && text.failed)
        status = fuse_fail_memory(error, "memory.json", text.length);
    if (status == FUSERUN_OK)
        status = fuse_output_text(path, text.data, text.length, error);
    fuse_text_free(&text);
    return status;
}

int fuse_pictures_write(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs,
                        uint64_t rss_peak_bytes, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct describer describer = {0};
    char *json = NULL;
    char *pickle = NULL;
    if (experiment->timeline == NULL || fuse_timeline_run_count(experiment->timeline) == 0)
        return FUSERUN_OK;
    FUSE_TRY_OUT(describe(&describer, experiment, error));
    json = fuse_outputs_path(outputs, "memory.json");
    pickle = fuse_outputs_path(outputs, "memory.pickle");
    if (json == NULL || pickle == NULL) {
        status = fuse_fail_memory(error, "a path", strlen(outputs->folder));
        goto out;
    }
    if (is_on(experiment, "snapshot"))
        FUSE_TRY_OUT(fuse_snapshot_write(pickle, &describer.description, FUSERUN_VERSION, FUSE_SNAPSHOT_EVENTS, error));
    if (is_on(experiment, "timeline")) {
        FUSE_TRY_OUT(write_json(experiment, &describer.description, json, rss_peak_bytes, error));
        FUSE_TRY_OUT(fuse_report_write(outputs->folder, error));
    }
out:
    free(json);
    free(pickle);
    free_describer(&describer);
    return status;
}

void fuse_pictures_remove(const struct fuse_outputs *outputs)
{
    static const char *const names[] = {"memory.html", "memory.json", "memory.pickle"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct fuse_error ignored = FUSE_ERROR_INIT;
        char *path = fuse_outputs_path(outputs, names[i]);
        if (path != NULL)
            (void)fuse_remove_file(path, &ignored);
        free(path);
    }
}
