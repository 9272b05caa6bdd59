/* A checkpoint: its metadata, its checksums, and the texts in it that resuming reads: which plugin trained a parameter,
 * and the config, which is compared with the present one. */
#include "fuzz.h"

#include "../unit/fake_plugins.h"

#include "train/resume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the comparison needs of an experiment: a config, resolved once. */
static struct fuse_config *present_config(void)
{
    static const char text[] = "[run]\nsteps = 5\n[model]\nplugin = mlp\nsizes = 2, 3\n[data]\nplugin = noise\n"
                               "[optimizer]\nplugin = adam\n[group other]\nmatch = *bias\n";
    static struct fuse_config *config;
    struct fuse_diagnostics *diagnostics = config == NULL ? fuse_diagnostics_new() : NULL;
    if (diagnostics != NULL) {
        FUZZ_CHECK(fuse_config_read(fuzz_file(1, text, sizeof text - 1), NULL, 0, diagnostics, &config) == FUSERUN_OK);
        FUZZ_CHECK(fuse_config_resolve(config, &fake_resolver, diagnostics) == FUSERUN_OK);
        fuse_diagnostics_free(&diagnostics);
    }
    return config;
}

/* And the plugins in use, whose versions are compared: one does. */
static struct fuse_registry *present_plugins(void)
{
    static struct fuse_registry *registry;
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    if (registry == NULL) {
        FUZZ_CHECK(fuse_registry_new(NULL, 0, NULL, &registry, &error) == FUSERUN_OK);
        FUZZ_CHECK(fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, "adam", &component, &file, &error) ==
                   FUSERUN_OK);
    }
    return registry;
}

static void check_notices(struct fuse_diagnostics *diagnostics)
{
    char *said = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&said, &length);
    FUZZ_CHECK(stream != NULL);
    fuse_diagnostics_print(diagnostics, stream);
    FUZZ_CHECK(fclose(stream) == 0);
    for (size_t i = 0; i < length; i++)
        FUZZ_CHECK((unsigned char)said[i] >= 0x20 || said[i] == '\n' || said[i] == '\t');
    free(said);
}

static void read_texts(const struct fuse_resume *resume)
{
    const char *plugin = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_experiment experiment = {
        .config = present_config(), .registry = present_plugins(), .diagnostics = fuse_diagnostics_new()};
    FUZZ_CHECK(experiment.diagnostics != NULL);
    const size_t length = fuse_resume_optimizer(resume, "layers.0.weight", &plugin);
    FUZZ_CHECK(length == 0 || (plugin != NULL && memchr(plugin, '\0', length) == NULL));
    const int status = fuse_resume_tell_differences(&experiment, resume, &error);
    FUZZ_CHECK(status == FUSERUN_OK && fuse_diagnostics_error_count(experiment.diagnostics) == 0);
    check_notices(experiment.diagnostics);
    fuse_diagnostics_free(&experiment.diagnostics);
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_resume resume = {0};
    bool is_checked = false;
    (void)present_config();
    (void)present_plugins();
    const int status = fuse_checkpoint_file_open(fuzz_file(0, bytes, count), &resume.file, &resume.record,
                                                 &resume.texts, &is_checked, &error);
    fuzz_check_error(status, &error);
    FUZZ_CHECK((status == FUSERUN_OK) == (resume.file != NULL));
    if (resume.file == NULL)
        return;
    const struct fuse_checkpoint_record *record = &resume.record;
    FUZZ_CHECK(record->step >= 0 && record->epoch >= 0 && record->batches >= 0 && record->drawn >= 0 &&
               record->batch_size >= 0 && record->samples >= 0 && record->seed >= 0 && record->skips >= 0);
    for (size_t i = 0; i < fuse_safetensors_count(resume.file); i++)
        (void)fuse_checkpoint_is_state(fuse_safetensors_entry(resume.file, i)->name);
    read_texts(&resume);
    fuse_safetensors_close(&resume.file);
}
