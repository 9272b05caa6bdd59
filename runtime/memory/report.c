#include "memory/report.h"

#include "base/json.h"
#include "base/number.h"
#include "base/regular.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values of memory.json ------------------------------------------------------------------------------------- */

static int damaged(const struct fuse_report *report, const char *where, struct fuse_error *error)
{
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "%s/memory.json: '%s' is missing or not as fuserun writes it",
                     report->folder, where);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static bool read_count(const json_t *value, uint64_t *count)
{
    *count = json_is_integer(value) && json_integer_value(value) >= 0 ? (uint64_t)json_integer_value(value) : 0;
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static bool read_category(const char *name, enum fuse_category *category)
{
    for (int i = 0; i < FUSE_CATEGORY_COUNT; i++)
        if (strcmp(name, fuse_category_name((enum fuse_category)i)) == 0) {
            *category = (enum fuse_category)i;
            return true;
        }
    return false;
}

static bool read_phase(const char *name, enum fuse_phase *phase)
{
    for (int i = 0; i < FUSE_PHASE_COUNT; i++)
        if (strcmp(name, fuse_phase_name((enum fuse_phase)i)) == 0) {
            *phase = (enum fuse_phase)i;
            return true;
        }
    return false;
}

static int read_head(struct fuse_report *report, const json_t *root, struct fuse_error *error)
{
    const json_t *run = json_object_get(root, "run");
    const json_t *memory = json_object_get(root, "memory");
    if (!read_count(json_object_get(root, "peak_bytes"), &report->peak_bytes) ||
        !read_phase(text_of(root, "peak_phase"), &report->peak_phase))
        return damaged(report, "peak_bytes, peak_phase", error);
    for (int i = 0; i < FUSE_CATEGORY_COUNT; i++)
        if (!read_count(json_object_get(memory, fuse_category_name((enum fuse_category)i)), &report->peak_memory[i]))
            return damaged(report, "memory", error);
    uint64_t parameters;
    if (!read_count(json_object_get(root, "rss_base_bytes"), &report->rss_base_bytes) ||
        !read_count(json_object_get(root, "rss_peak_bytes"), &report->rss_peak_bytes) ||
        !read_count(json_object_get(root, "parameters"), &parameters))
        return damaged(report, "rss_base_bytes, rss_peak_bytes, parameters", error);
    if (!json_is_object(run))
        return damaged(report, "run", error);
    report->parameters = (int64_t)parameters;
    report->name = text_of(run, "name");
    report->model = text_of(run, "model");
    report->preset = text_of(run, "preset");
    report->optimizer = text_of(run, "optimizer");
    report->mode = text_of(run, "mode");
    report->recompute = text_of(run, "recompute");
    report->loss = text_of(run, "loss");
    report->device = text_of(run, "device");
    report->version = text_of(run, "version");
    report->batch_size = json_integer_value(json_object_get(run, "batch_size"));
    report->updates = json_integer_value(json_object_get(run, "updates"));
    (void)read_count(json_object_get(run, "trainable_bytes"), &report->trainable_bytes);
    return FUSERUN_OK;
}

static bool is_array_of(const json_t *value, size_t count)
{
    return json_is_array(value) && json_array_size(value) == count;
}

/* Numbers that stand for words. */
static bool read_words(const json_t *numbers, const json_t *words, const char **texts, size_t count)
{
    if (!is_array_of(numbers, count) || !json_is_array(words))
        return false;
    for (size_t i = 0; i < count; i++) {
        uint64_t number;
        if (!read_count(json_array_get(numbers, i), &number) || number >= json_array_size(words))
            return false;
        texts[i] = json_string_value(json_array_get(words, (size_t)number));
        if (texts[i] == NULL)
            return false;
    }
    return true;
}

static int read_pass(struct fuse_report *report, struct fuse_report_pass *pass, const json_t *timeline,
                     const json_t *value, struct fuse_error *error)
{
    const json_t *bytes = json_object_get(value, "bytes");
    const json_t *phases = json_object_get(value, "phase");
    const size_t count = json_array_size(phases);
    pass->count = count;
    pass->is_training = strcmp(text_of(value, "purpose"), "training") == 0;
    pass->batch_size = json_integer_value(json_object_get(value, "batch_size"));
    pass->operations = calloc(count + 1, sizeof *pass->operations);
    pass->layers = calloc(count + 1, sizeof *pass->layers);
    pass->phases = calloc(count + 1, sizeof *pass->phases);
    pass->live = calloc(count + 1, sizeof *pass->live);
    pass->total = calloc(count + 1, sizeof *pass->total);
    if (pass->operations == NULL || pass->layers == NULL || pass->phases == NULL || pass->live == NULL ||
        pass->total == NULL)
        return fuse_fail_memory(error, "the report", count * sizeof *pass->live);
    if (count == 0 || !is_array_of(bytes, FUSE_CATEGORY_COUNT) ||
        !read_words(json_object_get(value, "operation"), json_object_get(timeline, "operations"), pass->operations,
                    count) ||
        !read_words(json_object_get(value, "layer"), json_object_get(timeline, "layers"), pass->layers, count))
        return damaged(report, "timeline.passes", error);
    for (size_t i = 0; i < count; i++) {
        uint64_t phase;
        if (!read_count(json_array_get(phases, i), &phase) || phase >= FUSE_PHASE_COUNT)
            return damaged(report, "timeline.passes.phase", error);
        pass->phases[i] = (enum fuse_phase)phase;
    }
    for (size_t c = 0; c < FUSE_CATEGORY_COUNT; c++) {
        const json_t *own = json_array_get(bytes, c);
        if (!is_array_of(own, count))
            return damaged(report, "timeline.passes.bytes", error);
        for (size_t i = 0; i < count; i++) {
            if (!read_count(json_array_get(own, i), &pass->live[i][c]) ||
                __builtin_add_overflow(pass->live[i][c], report->persistent[c], &pass->live[i][c]) ||
                __builtin_add_overflow(pass->total[i], pass->live[i][c], &pass->total[i]))
                return damaged(report, "timeline.passes.bytes", error);
        }
    }
    return FUSERUN_OK;
}

static int read_run(struct fuse_report *report, struct fuse_report_run *run, const json_t *value,
                    struct fuse_error *error)
{
    const json_t *end_us = json_object_get(value, "end_us");
    uint64_t pass;
    uint64_t begin_us;
    if (!read_count(json_object_get(value, "pass"), &pass) || pass >= report->pass_count ||
        !is_array_of(end_us, report->passes[pass].count) || !read_count(json_object_get(value, "begin_us"), &begin_us))
        return damaged(report, "timeline.runs", error);
    run->pass = (size_t)pass;
    run->update = json_integer_value(json_object_get(value, "update"));
    run->begin_us = (int64_t)begin_us;
    const size_t count = report->passes[pass].count;
    run->end_us = calloc(count, sizeof *run->end_us);
    if (run->end_us == NULL)
        return fuse_fail_memory(error, "the report", count * sizeof *run->end_us);
    int64_t before_us = run->begin_us;
    for (size_t i = 0; i < count; i++) {
        run->end_us[i] = json_integer_value(json_array_get(end_us, i));
        if (run->end_us[i] < before_us)
            return damaged(report, "timeline.runs.end_us", error);
        before_us = run->end_us[i];
    }
    return FUSERUN_OK;
}

static int read_timeline(struct fuse_report *report, const json_t *root, struct fuse_error *error)
{
    const json_t *timeline = json_object_get(root, "timeline");
    const json_t *passes = json_object_get(timeline, "passes");
    const json_t *runs = json_object_get(timeline, "runs");
    if (timeline == NULL)
        return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL,
                         "%s/memory.json has no timeline: it is of an older version; run the experiment again",
                         report->folder);
    if (json_array_size(passes) == 0 || json_array_size(runs) == 0)
        return damaged(report, "timeline", error);
    for (size_t c = 0; c < FUSE_CATEGORY_COUNT; c++)
        if (!read_count(json_array_get(json_object_get(timeline, "persistent"), c), &report->persistent[c]))
            return damaged(report, "timeline.persistent", error);
    report->passes = calloc(json_array_size(passes), sizeof *report->passes);
    report->runs = calloc(json_array_size(runs), sizeof *report->runs);
    if (report->passes == NULL || report->runs == NULL)
        return fuse_fail_memory(error, "the report", json_array_size(runs) * sizeof *report->runs);
    for (size_t p = 0; p < json_array_size(passes); p++) {
        report->pass_count++; /* what it holds is freed from here on */
        FUSE_TRY(read_pass(report, &report->passes[p], timeline, json_array_get(passes, p), error));
    }
    for (size_t r = 0; r < json_array_size(runs); r++) {
        report->run_count++;
        FUSE_TRY(read_run(report, &report->runs[r], json_array_get(runs, r), error));
    }
    for (size_t r = 0; r < report->run_count; r++) {
        const struct fuse_report_pass *pass = &report->passes[report->runs[r].pass];
        const struct fuse_report_pass *best = &report->passes[report->runs[report->peak_run].pass];
        for (size_t i = 0; i < pass->count; i++)
            if (pass->total[i] > best->total[report->peak_operation]) {
                report->peak_run = r;
                report->peak_operation = i;
                best = pass;
            }
    }
    if (report->passes[report->runs[report->peak_run].pass].total[report->peak_operation] != report->peak_bytes)
        return damaged(report, "peak_bytes (it is not the timeline's)", error);
    return FUSERUN_OK;
}

static int read_buffers(struct fuse_report *report, const json_t *root, struct fuse_error *error)
{
    const json_t *buffers = json_object_get(root, "buffers");
    const json_t *counts = json_object_get(root, "buffer_counts");
    const size_t count = json_array_size(buffers);
    report->buffers = calloc(count + 1, sizeof *report->buffers);
    if (report->buffers == NULL)
        return fuse_fail_memory(error, "the report", count * sizeof *report->buffers);
    for (size_t c = 0; c < FUSE_CATEGORY_COUNT; c++) {
        uint64_t number;
        if (!is_array_of(counts, FUSE_CATEGORY_COUNT) || !read_count(json_array_get(counts, c), &number))
            return damaged(report, "buffer_counts", error);
        report->buffer_counts[c] = (size_t)number;
    }
    for (; report->buffer_count < count; report->buffer_count++) {
        struct fuse_report_buffer *buffer = &report->buffers[report->buffer_count];
        const json_t *value = json_array_get(buffers, report->buffer_count);
        uint64_t pass = 0;
        uint64_t first = 0;
        uint64_t last = 0;
        buffer->name = text_of(value, "name");
        buffer->pass = SIZE_MAX;
        if (!read_count(json_object_get(value, "bytes"), &buffer->bytes) ||
            !read_category(text_of(value, "category"), &buffer->category))
            return damaged(report, "buffers", error);
        if (json_object_get(value, "pass") == NULL)
            continue;
        if (!read_count(json_object_get(value, "pass"), &pass) || pass >= report->pass_count ||
            !read_count(json_object_get(value, "first"), &first) ||
            !read_count(json_object_get(value, "last"), &last) || first > last || last >= report->passes[pass].count)
            return damaged(report, "buffers", error);
        buffer->pass = (size_t)pass;
        buffer->first = (size_t)first;
        buffer->last = (size_t)last;
    }
    return FUSERUN_OK;
}

/* One call of jansson. */
struct reading {
    FILE *file;
    const char *line;
    json_t *json;
    json_error_t cause;
};

static void read_file(void *user)
{
    struct reading *reading = user;
    reading->json = json_loadf(reading->file, 0, &reading->cause);
}

static void read_text(void *user)
{
    struct reading *reading = user;
    reading->json = json_loads(reading->line, 0, &reading->cause);
}

static int read_json(struct fuse_report *report, FILE *file, struct fuse_error *error)
{
    struct reading reading = {.file = file};
    if (!fuse_json_try(read_file, &reading))
        return fuse_fail_memory(error, "memory.json", 0);
    report->json = reading.json;
    if (report->json == NULL)
        return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "%s/memory.json:%d: %s", report->folder, reading.cause.line,
                         reading.cause.text);
    FUSE_TRY(read_head(report, report->json, error));
    FUSE_TRY(read_timeline(report, report->json, error));
    return read_buffers(report, report->json, error);
}

/* ---- metrics.jsonl --------------------------------------------------------------------------------------------- */

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void read_line(struct fuse_report_metrics *metrics, const json_t *line)
{
    if (json_object_get(line, "eval_loss") != NULL) {
        metrics->last_evaluation_loss = number_of(line, "eval_loss");
        metrics->last_accuracy = number_of(line, "eval_accuracy");
        return;
    }
    metrics->last_step = json_integer_value(json_object_get(line, "step"));
    metrics->last_loss = number_of(line, "loss");
    metrics->steps[metrics->count] = metrics->last_step;
    metrics->losses[metrics->count] = metrics->last_loss;
    metrics->step_s[metrics->count++] = number_of(line, "step_s");
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of those that are numbers. */
static int find_median(const double *values, size_t count, double *middle, struct fuse_error *error)
{
    double *sorted = malloc((count + 1) * sizeof *sorted);
    size_t found = 0;
    if (sorted == NULL)
        return fuse_fail_memory(error, "the metrics", count * sizeof *sorted);
    for (size_t i = 0; i < count; i++)
        if (fuse_number_is_finite(values[i]))
            sorted[found++] = values[i];
    *middle = NAN;
    if (found > 0) {
        qsort(sorted, found, sizeof *sorted, compare_doubles);
        *middle = (sorted[(found - 1) / 2] + sorted[found / 2]) / 2;
    }
    free(sorted);
    return FUSERUN_OK;
}

/* A file of a million updates is not held in memory: lines are counted first, then read one by one. */
static size_t count_lines(FILE *file)
{
    char block[16384];
    size_t lines = 0;
    for (size_t length; (length = fread(block, 1, sizeof block, file)) > 0;)
        for (size_t i = 0; i < length; i++)
            lines += block[i] == '\n';
    rewind(file);
    return lines;
}

/* All lines of a short file; of a long one every k-th, the last one, and all evaluations. */
static int read_metrics(struct fuse_report *report, FILE *file, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const size_t lines = count_lines(file);
    const size_t every = lines / FUSE_REPORT_LINES + 1;
    const size_t capacity = lines / every + 2;
    struct fuse_report_metrics *metrics = &report->metrics;
    char *line = NULL;
    size_t line_capacity = 0;
    *metrics = (struct fuse_report_metrics){
        .last_loss = NAN, .last_evaluation_loss = NAN, .last_accuracy = NAN, .median_step_s = NAN};
    metrics->steps = calloc(capacity, sizeof *metrics->steps);
    metrics->losses = calloc(capacity, sizeof *metrics->losses);
    metrics->step_s = calloc(capacity, sizeof *metrics->step_s);
    if (metrics->steps == NULL || metrics->losses == NULL || metrics->step_s == NULL)
        return fuse_fail_memory(error, "the metrics", capacity * sizeof *metrics->steps);
    ssize_t length;
    for (size_t number = 0; number < lines && (length = getline(&line, &line_capacity, file)) >= 0; number++) {
        if (number % every != 0 && number + 1 != lines && strstr(line, "\"eval_loss\"") == NULL)
            continue;
        if (memchr(line, '\0', (size_t)length) != NULL) /* jansson would not see what stands behind it */
            FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "%s/metrics.jsonl:%zu: a NUL byte",
                                   report->folder, number + 1));
        struct reading reading = {.line = line};
        if (!fuse_json_try(read_text, &reading)) {
            status = fuse_fail_memory(error, "metrics.jsonl", 0);
            goto out;
        }
        json_t *object = reading.json;
        if (object == NULL) {
            status = fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "%s/metrics.jsonl:%zu: %s", report->folder,
                               number + 1, reading.cause.text);
            goto out;
        }
        if (metrics->count < capacity)
            read_line(metrics, object);
        json_decref(object);
    }
    status = find_median(metrics->step_s, metrics->count, &metrics->median_step_s, error);
out:
    free(line);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

int fuse_report_read(const char *folder, FILE *json, FILE *metrics, struct fuse_report **report,
                     struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_report *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "the report", sizeof *made);
    made->folder = fuse_strdup(folder);
    if (made->folder == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a path", strlen(folder)));
    size_t length = strlen(made->folder);
    while (length > 1 && made->folder[length - 1] == '/')
        made->folder[--length] = '\0';
    FUSE_TRY_OUT(read_json(made, json, error));
    FUSE_TRY_OUT(read_metrics(made, metrics, error));
    *report = made;
    made = NULL;
out:
    fuse_report_free(&made);
    return status;
}

/* NULL with errno set. */
static FILE *open_file(const char *folder, const char *name)
{
    char *path = fuse_format("%s/%s", folder, name);
    FILE *file = path != NULL ? fuse_stream_regular(path, "r") : NULL;
    const int cause = errno;
    free(path);
    errno = cause;
    return file;
}

static int cannot_open(const char *folder, const char *name, int cause, struct fuse_error *error)
{
    return fuse_fail(error, cause == ENOMEM ? FUSERUN_ERROR_MEMORY : FUSERUN_ERROR_IO, NULL, "cannot open '%s/%s': %s",
                     folder, name, fuse_regular_reason(cause));
}

int fuse_report_open(const char *folder, struct fuse_report **report, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    FILE *metrics = NULL, *json = open_file(folder, "memory.json");
    if (json == NULL && errno == ENOENT)
        FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_IO, NULL,
                               "%s has no memory.json: it is no run's folder, or the run did not end, or had "
                               "memory.timeline = no",
                               folder));
    if (json == NULL)
        FUSE_TRY_OUT(cannot_open(folder, "memory.json", errno, error));
    metrics = open_file(folder, "metrics.jsonl");
    if (metrics == NULL)
        FUSE_TRY_OUT(cannot_open(folder, "metrics.jsonl", errno, error));
    FUSE_TRY_OUT(fuse_report_read(folder, json, metrics, report, error));
out:
    if (json != NULL)
        (void)fclose(json);
    if (metrics != NULL)
        (void)fclose(metrics);
    return status;
}

void fuse_report_free(struct fuse_report **report)
{
    struct fuse_report *freed = *report;
    if (freed == NULL)
        return;
    for (size_t p = 0; p < freed->pass_count; p++) {
        struct fuse_report_pass *pass = &freed->passes[p];
        free(pass->operations);
        free(pass->layers);
        free(pass->phases);
        free(pass->live);
        free(pass->total);
    }
    for (size_t r = 0; r < freed->run_count; r++)
        free(freed->runs[r].end_us);
    free(freed->passes);
    free(freed->runs);
    free(freed->buffers);
    free(freed->metrics.steps);
    free(freed->metrics.losses);
    free(freed->metrics.step_s);
    free(freed->folder);
    json_decref(freed->json);
    free(freed);
    *report = NULL;
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

uint64_t fuse_report_growth(const struct fuse_report *report)
{
    return report->rss_peak_bytes > report->rss_base_bytes ? report->rss_peak_bytes - report->rss_base_bytes : 0;
}

void fuse_report_add_mode(const struct fuse_report *report, struct fuse_text *text)
{
    fuse_text_add(text, report->mode);
    if (strcmp(report->recompute, "blocks") == 0)
        fuse_text_add(text, " + recompute");
}

void fuse_report_add_count(uint64_t count, struct fuse_text *text)
{
    char digits[FUSE_DECIMAL_CHARS];
    const int length = snprintf(digits, sizeof digits, "%" PRIu64, count);
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            fuse_text_add(text, ",");
        fuse_text_add_bytes(text, digits + i, 1);
    }
}

void fuse_report_add_peak(const struct fuse_report *report, struct fuse_text *text)
{
    char bytes[FUSE_DECIMAL_CHARS];
    const struct fuse_report_run *run = &report->runs[report->peak_run];
    const struct fuse_report_pass *pass = &report->passes[run->pass];
    const size_t at = report->peak_operation;
    fuse_text_addf(text, "At the peak %s are alive: in the %s phase of ", fuse_decimal_bytes(pass->total[at], bytes),
                   fuse_phase_name(pass->phases[at]));
    if (pass->is_training)
        fuse_text_addf(text, "update %" PRId64, run->update);
    else
        fuse_text_add(text, "an evaluation");
    fuse_text_addf(text, ", while '%s' of %s runs (operation ", pass->operations[at], pass->layers[at]);
    fuse_report_add_count(at + 1, text);
    fuse_text_add(text, " of ");
    fuse_report_add_count(pass->count, text);
    fuse_text_add(text, ").");
}

static const char *show(double value, const char *const *units, size_t count, char buffer[FUSE_DECIMAL_CHARS])
{
    size_t unit = 0;
    for (; value >= 999.5 && unit + 1 < count; unit++)
        value /= 1000;
    (void)snprintf(buffer, FUSE_DECIMAL_CHARS, "%.*f %s",
                   value >= 99.95   ? 0
                   : value >= 9.995 ? 1
                                    : 2,
                   value, units[unit]);
    return buffer;
}

const char *fuse_decimal_bytes(uint64_t bytes, char buffer[FUSE_DECIMAL_CHARS])
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB"};
    if (bytes >= 1000)
        return show((double)bytes / 1000, units, sizeof units / sizeof units[0], buffer);
    (void)snprintf(buffer, FUSE_DECIMAL_CHARS, "%" PRIu64 " B", bytes);
    return buffer;
}

const char *fuse_seconds_show(double seconds, char buffer[FUSE_DECIMAL_CHARS])
{
    static const char *const units[] = {"\u00b5s", "ms", "s"};
    if (!fuse_number_is_finite(seconds))
        (void)snprintf(buffer, FUSE_DECIMAL_CHARS, "-");
    else
        (void)show(seconds * 1e6, units, sizeof units / sizeof units[0], buffer);
    return buffer;
}
