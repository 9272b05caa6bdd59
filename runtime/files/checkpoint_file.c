#include "files/checkpoint_file.h"

#include "base/number.h"
#include "files/checksums.h"
#include "files/files.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { NUMBER_BYTES = 24 };
#define MOST ((int64_t)1 << 53) /* of anything counted: whoever adds to it need not think of overflow */

/* The numbers' keys; each value of a file is an integer >= 0. */
static const struct {
    const char *key;
    size_t offset;
} numbers[] = {
    {"clock.step", offsetof(struct fuse_checkpoint_record, step)},
    {"data.batch_size", offsetof(struct fuse_checkpoint_record, batch_size)},
    {"data.batches", offsetof(struct fuse_checkpoint_record, batches)},
    {"data.drawn", offsetof(struct fuse_checkpoint_record, drawn)},
    {"data.epoch", offsetof(struct fuse_checkpoint_record, epoch)},
    {"data.samples", offsetof(struct fuse_checkpoint_record, samples)},
    {"random.seed", offsetof(struct fuse_checkpoint_record, seed)},
    {"run.skips", offsetof(struct fuse_checkpoint_record, skips)},
};
#define NUMBER_COUNT (sizeof numbers / sizeof numbers[0])
#define TEXT_COUNT 7 /* further pairs */

bool fuse_checkpoint_is_state(const char *tensor_name)
{
    return strncmp(tensor_name, FUSE_CHECKPOINT_OPTIMIZER, strlen(FUSE_CHECKPOINT_OPTIMIZER)) == 0 ||
           strncmp(tensor_name, FUSE_CHECKPOINT_SCHEDULER, strlen(FUSE_CHECKPOINT_SCHEDULER)) == 0;
}

int fuse_checkpoint_file_write(const char *path, const struct fuse_safetensors_output *outputs, size_t output_count,
                               const struct fuse_checkpoint_record *record, const struct fuse_checkpoint_texts *texts,
                               struct fuse_error *error)
{
    char digits[NUMBER_COUNT][NUMBER_BYTES];
    const char *const others[TEXT_COUNT][2] = {
        {"format", FUSE_CHECKPOINT_FORMAT},
        {"fuserun", FUSERUN_VERSION},
        {"run.evaluation", record->is_evaluation_due ? "due" : "done"},
        {"scheduler", texts->scheduler},
        {"optimizers", texts->optimizers},
        {"plugins", texts->plugins},
        {"config", texts->config},
    };
    const char *metadata[2 * (NUMBER_COUNT + TEXT_COUNT)];
    size_t count = 0;
    for (size_t i = 0; i < NUMBER_COUNT; i++) {
        int64_t value;
        memcpy(&value, (const char *)record + numbers[i].offset, sizeof value);
        (void)snprintf(digits[i], NUMBER_BYTES, "%" PRId64, value);
        metadata[2 * count] = numbers[i].key;
        metadata[2 * count++ + 1] = digits[i];
    }
    for (size_t i = 0; i < TEXT_COUNT; i++) {
        metadata[2 * count] = others[i][0];
        metadata[2 * count++ + 1] = others[i][1];
    }
    return fuse_safetensors_write_checked(path, outputs, output_count, metadata, count, error);
}

static int bad_value(const struct fuse_safetensors *file, const char *key, const char *value, struct fuse_error *error)
{
    char shown[FUSE_SHOWN_BYTES];
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s' is not a valid checkpoint: its %s is '%s'",
                     fuse_shown_path(fuse_safetensors_path(file)), key, fuse_shown(value, strlen(value), shown));
}

static int read_record(const struct fuse_safetensors *file, struct fuse_checkpoint_record *record,
                       struct fuse_error *error)
{
    *record = (struct fuse_checkpoint_record){0};
    const char *format = fuse_safetensors_metadata(file, "format");
    if (format == NULL || strncmp(format, "fuserun checkpoint ", strlen("fuserun checkpoint ")) != 0 ||
        fuse_safetensors_metadata(file, "clock.step") == NULL)
        return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL,
                         "'%s' is not a checkpoint: its metadata names no format and no step",
                         fuse_shown_path(fuse_safetensors_path(file)));
    char shown[FUSE_SHOWN_BYTES];
    const char *version = format + strlen("fuserun checkpoint ");
    if (version[strspn(version, "0123456789")] != '\0')
        return bad_value(file, "format", format, error);
    if (strcmp(format, FUSE_CHECKPOINT_FORMAT) != 0)
        return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                         "'%s' is a checkpoint of another version of fuserun: its format is '%s', this one reads '%s'",
                         fuse_shown_path(fuse_safetensors_path(file)), fuse_shown(format, strlen(format), shown),
                         FUSE_CHECKPOINT_FORMAT);
    for (size_t i = 0; i < NUMBER_COUNT; i++) {
        int64_t value = 0;
        const char *text = fuse_safetensors_metadata(file, numbers[i].key);
        const bool is_seed = numbers[i].offset == offsetof(struct fuse_checkpoint_record, seed);
        if (text != NULL && (!fuse_integer_parse(text, &value) || value < 0 || (!is_seed && value > MOST)))
            return bad_value(file, numbers[i].key, text, error);
        memcpy((char *)record + numbers[i].offset, &value, sizeof value);
    }
    const char *evaluation = fuse_safetensors_metadata(file, "run.evaluation");
    record->is_evaluation_due = evaluation != NULL && strcmp(evaluation, "due") == 0;
    return FUSERUN_OK;
}

int fuse_checkpoint_file_open(const char *path, struct fuse_safetensors **file, struct fuse_checkpoint_record *record,
                              struct fuse_checkpoint_texts *texts, bool *is_checked, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    *file = NULL;
    struct fuse_safetensors *opened = NULL;
    FUSE_TRY_OUT(fuse_safetensors_open(path, &opened, error));
    FUSE_TRY_OUT(read_record(opened, record, error));
    FUSE_TRY_OUT(fuse_checksums_verify(opened, is_checked, error));
    *texts = (struct fuse_checkpoint_texts){
        .scheduler = fuse_safetensors_metadata(opened, "scheduler"),
        .optimizers = fuse_safetensors_metadata(opened, "optimizers"),
        .plugins = fuse_safetensors_metadata(opened, "plugins"),
        .config = fuse_safetensors_metadata(opened, "config"),
    };
    *file = opened;
    opened = NULL;
out:
    fuse_safetensors_close(&opened);
    return status;
}
