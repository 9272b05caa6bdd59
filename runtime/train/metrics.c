#include "train/metrics.h"

#include "base/number.h"
#include "files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FLUSH_NS 1000000000
#define FLUSH_BYTES 65536
#define LINE_BYTES 512   /* of a line, without its columns */
#define COLUMN_BYTES 512 /* a group's name, escaped, and a number */

/* Room for what may come, so that nothing grows while updates run. */
static void reserve(struct fuse_text *text, size_t bytes)
{
    static const char filling[1024];
    while (text->capacity < bytes && !text->failed)
        fuse_text_add_bytes(text, filling, sizeof filling);
    fuse_text_clear(text);
}

int fuse_metrics_open(const char *path, const struct fuse_clock *clock, const struct fuse_checkpoint_record *resumed,
                      struct fuse_metrics *metrics, struct fuse_error *error)
{
    *metrics = (struct fuse_metrics){.descriptor = -1, .flushed_ns = fuse_now_ns()};
    metrics->path = fuse_strdup(path);
    metrics->logged = calloc(fuse_clock_column_count(clock) + 1, sizeof *metrics->logged);
    if (metrics->path == NULL || metrics->logged == NULL)
        return fuse_fail_memory(error, "the metrics", strlen(path));
    size_t name_bytes = 0;
    for (size_t i = 0; i < fuse_clock_column_count(clock); i++)
        name_bytes += 2 * strlen(clock->columns[i].option) + COLUMN_BYTES;
    reserve(&metrics->driven, name_bytes + LINE_BYTES);
    reserve(&metrics->lines, FLUSH_BYTES + 2 * (name_bytes + LINE_BYTES));
    if (metrics->driven.failed || metrics->lines.failed)
        return fuse_fail_memory(error, "the metrics", FLUSH_BYTES);
    if (resumed != NULL)
        FUSE_TRY(fuse_metrics_cut_back(path, resumed, &metrics->damaged_lines, error));
    const int if_exists = resumed != NULL ? 0 : O_EXCL;
    do
        metrics->descriptor = open(path, O_WRONLY | O_CREAT | if_exists | O_APPEND | O_CLOEXEC, 0644);
    while (metrics->descriptor < 0 && errno == EINTR);
    if (metrics->descriptor < 0)
        return fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot create '%s': %s", path, strerror(errno));
    return FUSERUN_OK;
}

/* Seconds with nanoseconds: as exact as the measurement, and cheaper than the shortest decimal of a double. */
static void add_seconds(struct fuse_text *text, int64_t nanoseconds)
{
    char digits[40];
    int length =
        snprintf(digits, sizeof digits, "%" PRId64 ".%09" PRId64, nanoseconds / 1000000000, nanoseconds % 1000000000);
    while (length > 0 && digits[length - 1] == '0')
        length--;
    if (length > 0 && digits[length - 1] == '.')
        length--;
    fuse_text_add_bytes(text, digits, (size_t)length);
}

/* `"lr":{"default":0.001},"weight_decay":{...}`: made again only when a value moved. */
static void refresh_driven(struct fuse_metrics *metrics, const struct fuse_clock *clock, const struct fuse_dict *dict)
{
    const size_t count = fuse_clock_column_count(clock);
    bool is_same = metrics->has_logged;
    for (size_t i = 0; i < count; i++) {
        const double value = fuse_clock_column_value(clock, dict, i);
        is_same = is_same && value == metrics->logged[i];
        metrics->logged[i] = value;
    }
    if (is_same)
        return;
    metrics->has_logged = true;
    fuse_text_clear(&metrics->driven);
    fuse_clock_add_json(clock, dict, &metrics->driven);
}

int fuse_metrics_update(struct fuse_metrics *metrics, const struct fuse_clock *clock, const struct fuse_dict *dict,
                        const struct fuse_update_record *record, int64_t now_ns, struct fuse_error *error)
{
    struct fuse_text *lines = &metrics->lines;
    refresh_driven(metrics, clock, dict);
    fuse_text_addf(lines, "{\"step\":%" PRId64 ",\"epoch\":", record->step);
    fuse_text_add_json_number(lines, record->epoch);
    fuse_text_add(lines, ",\"loss\":");
    fuse_text_add_json_number(lines, record->loss);
    fuse_text_add(lines, ",");
    fuse_text_add_bytes(lines, metrics->driven.data, metrics->driven.length);
    if (record->has_grad_norm) {
        fuse_text_add(lines, ",\"grad_norm\":");
        fuse_text_add_json_number(lines, record->grad_norm);
    }
    if (record->is_skipped)
        fuse_text_add(lines, ",\"skipped\":true");
    fuse_text_add(lines, ",\"step_s\":");
    add_seconds(lines, record->step_ns);
    const double rate = record->step_ns > 0 ? (double)record->samples * 1e9 / (double)record->step_ns : 0;
    if (rate >= 1000)
        fuse_text_addf(lines, ",\"samples_per_s\":%.0f", rate);
    else {
        fuse_text_add(lines, ",\"samples_per_s\":");
        fuse_text_add_json_number(lines, rate);
    }
    fuse_text_addf(lines, ",\"peak_bytes\":%" PRIu64 "}\n", record->peak_bytes);
    if (lines->failed || metrics->driven.failed)
        return fuse_fail_memory(error, "the metrics", lines->length);
    /* If the next step takes as long as this one, will this line have waited for more than a second by then? */
    if (lines->length >= FLUSH_BYTES || now_ns + record->step_ns - metrics->flushed_ns >= FLUSH_NS)
        return fuse_metrics_flush(metrics, now_ns, error);
    return FUSERUN_OK;
}

int fuse_metrics_evaluation(struct fuse_metrics *metrics, int64_t step, double loss, const double *accuracy,
                            struct fuse_error *error)
{
    struct fuse_text *lines = &metrics->lines;
    fuse_text_addf(lines, "{\"step\":%" PRId64 ",\"eval_loss\":", step);
    fuse_text_add_json_number(lines, loss);
    if (accuracy != NULL) {
        fuse_text_add(lines, ",\"eval_accuracy\":");
        fuse_text_add_json_number(lines, *accuracy);
    }
    fuse_text_add(lines, "}\n");
    if (lines->failed)
        return fuse_fail_memory(error, "the metrics", lines->length);
    return fuse_metrics_flush(metrics, fuse_now_ns(), error); /* evaluations are rare, the next line may be far away */
}

/* Takes a line of which only a part could be written off the file again: its last `cut` bytes. */
static void drop_cut_line(int descriptor, size_t cut)
{
    struct stat found;
    if (cut > 0 && fstat(descriptor, &found) == 0 && (uint64_t)found.st_size >= cut)
        (void)!ftruncate(descriptor, found.st_size - (off_t)cut);
}

int fuse_metrics_flush(struct fuse_metrics *metrics, int64_t now_ns, struct fuse_error *error)
{
    const char *bytes = metrics->lines.data;
    size_t left = metrics->lines.length;
    metrics->flushed_ns = now_ns;
    while (left > 0) {
        const ssize_t written = write(metrics->descriptor, bytes, left);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            const int cause = errno;
            const char *begin = metrics->lines.data;
            const char *cut = bytes;
            while (cut > begin && cut[-1] != '\n')
                cut--;
            drop_cut_line(metrics->descriptor, (size_t)(bytes - cut));
            fuse_text_clear(&metrics->lines);
            return fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot write '%s': %s", metrics->path, strerror(cause));
        }
        bytes += written;
        left -= (size_t)written;
    }
    fuse_text_clear(&metrics->lines);
    return FUSERUN_OK;
}

int fuse_metrics_close(struct fuse_metrics *metrics, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    if (metrics->descriptor >= 0) {
        status = fuse_metrics_flush(metrics, fuse_now_ns(), error);
        int cause = fuse_sync_descriptor(metrics->descriptor);
        /* Linux closes the descriptor even when close() reports an error, EINTR included. */
        if (close(metrics->descriptor) != 0 && errno != EINTR && cause == 0)
            cause = errno;
        if (cause != 0 && status == FUSERUN_OK)
            status = fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot write '%s': %s", metrics->path, strerror(cause));
    }
    fuse_text_free(&metrics->lines);
    fuse_text_free(&metrics->driven);
    free(metrics->path);
    free(metrics->logged);
    *metrics = (struct fuse_metrics){.descriptor = -1};
    return status;
}
