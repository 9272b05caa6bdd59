#include "train/profile.h"

#include "config/options.h"
#include "files/output.h"
#include "graph/cost.h"
#include "graph/describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRACED_RUNS 16 /* of all programs together, the first ones */
#define SHOWN_LAYERS 30

/* One program's times. The first run touches memory for the first time: where others follow it is left out. */
struct pass {
    const struct fuse_program *program;
    int64_t *total_ns; /* one an instruction */
    int64_t run_count, counted_runs;
};

/* One run on the trace. */
struct run {
    const struct fuse_program *program;
    int64_t *marks_ns; /* instruction_count + 1 */
};

struct fuse_profile {
    struct pass passes[FUSE_MAX_PASSES];
    uint32_t pass_count;
    struct run runs[TRACED_RUNS];
    int run_count;
};

/* A line of a table. */
struct line {
    char *name;
    int64_t ns, calls;
    double flop, bytes;
};

struct table {
    struct line *lines;
    size_t count, capacity;
};

int fuse_profile_prepare(struct fuse_experiment *experiment, struct fuse_error *error)
{
    if (fuse_option_bool(fuse_config_options(experiment->config, "run"), "profile") == 0)
        return FUSERUN_OK;
    size_t most = 0;
    struct fuse_profile *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "the profile", sizeof *made);
    experiment->profile = made;
    for (uint32_t i = 0; i < experiment->pass_count; i++) {
        struct fuse_program *program = experiment->passes[i].program;
        if (experiment->passes[i].purpose != FUSE_PURPOSE_TRAIN)
            continue;
        const size_t count = program->instruction_count + 1;
        most = count > most ? count : most;
        struct pass *pass = &made->passes[made->pass_count++];
        pass->program = program;
        pass->total_ns = calloc(count, sizeof *pass->total_ns);
        program->marks_ns = calloc(count, sizeof *program->marks_ns);
        if (pass->total_ns == NULL || program->marks_ns == NULL)
            return fuse_fail_memory(error, "the profile", count * sizeof *pass->total_ns);
    }
    for (int i = 0; i < TRACED_RUNS; i++) {
        made->runs[i].marks_ns = calloc(most + 1, sizeof *made->runs[i].marks_ns);
        if (made->runs[i].marks_ns == NULL)
            return fuse_fail_memory(error, "the profile", most * sizeof *made->runs[i].marks_ns);
    }
    return FUSERUN_OK;
}

void fuse_profile_free(struct fuse_profile **profile)
{
    struct fuse_profile *freed = *profile;
    if (freed == NULL)
        return;
    for (uint32_t i = 0; i < freed->pass_count; i++)
        free(freed->passes[i].total_ns);
    for (int i = 0; i < TRACED_RUNS; i++)
        free(freed->runs[i].marks_ns);
    free(freed);
    *profile = NULL;
}

void fuse_profile_note(struct fuse_profile *profile, const struct fuse_program *program)
{
    const uint32_t count = program->instruction_count;
    if (profile->run_count < TRACED_RUNS) {
        struct run *run = &profile->runs[profile->run_count++];
        run->program = program;
        memcpy(run->marks_ns, program->marks_ns, (count + 1) * sizeof *run->marks_ns);
    }
    for (uint32_t p = 0; p < profile->pass_count; p++) {
        struct pass *pass = &profile->passes[p];
        if (pass->program != program)
            continue;
        if (pass->run_count++ == 1) {
            memset(pass->total_ns, 0, count * sizeof *pass->total_ns);
            pass->counted_runs = 0;
        }
        pass->counted_runs++;
        for (uint32_t i = 0; i < count; i++)
            pass->total_ns[i] += program->marks_ns[i + 1] - program->marks_ns[i];
    }
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static void free_table(struct table *table)
{
    for (size_t i = 0; i < table->count; i++)
        free(table->lines[i].name);
    free(table->lines);
}

/* Adds to the line of that name. */
static int add(struct table *table, const char *name, const struct line *more, struct fuse_error *error)
{
    size_t at = 0;
    while (at < table->count && strcmp(table->lines[at].name, name) != 0)
        at++;
    if (at == table->capacity) {
        const size_t capacity = 2 * table->capacity + 16;
        struct line *lines = realloc(table->lines, capacity * sizeof *lines);
        if (lines == NULL)
            return fuse_fail_memory(error, "the profile", capacity * sizeof *lines);
        table->lines = lines;
        table->capacity = capacity;
    }
    if (at == table->count) {
        table->lines[at] = (struct line){.name = fuse_strdup(name)};
        if (table->lines[at].name == NULL)
            return fuse_fail_memory(error, "the profile", strlen(name));
        table->count++;
    }
    struct line *line = &table->lines[at];
    line->ns += more->ns;
    line->calls += more->calls;
    line->flop += more->flop;
    line->bytes += more->bytes;
    return FUSERUN_OK;
}

static int by_time(const void *a, const void *b)
{
    const struct line *const left = a, *const right = b;
    if (left->ns != right->ns)
        return left->ns < right->ns ? 1 : -1;
    return strcmp(left->name, right->name);
}

static int fill_tables(const struct fuse_profile *profile, const double *state_counts, struct table *operations,
                       struct table *layers, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_text name = {0};
    for (uint32_t p = 0; p < profile->pass_count; p++) {
        const struct pass *pass = &profile->passes[p];
        for (uint32_t i = 0; i < pass->program->instruction_count && pass->counted_runs > 0; i++) {
            const struct fuse_cost cost = fuse_instruction_cost(pass->program, i, state_counts);
            const double runs = (double)pass->counted_runs;
            const struct line line = {.ns = pass->total_ns[i],
                                      .calls = pass->counted_runs,
                                      .flop = cost.flop * runs,
                                      .bytes = cost.bytes * runs};
            if (pass->program->instructions[i].kind == FUSE_RUN_LOAD)
                continue; /* the batch is in place already */
            fuse_text_clear(&name);
            fuse_program_add_operation(pass->program, i, &name);
            FUSE_TRY_OUT(name.failed ? fuse_fail_memory(error, "the profile", 0)
                                     : add(operations, name.data, &line, error));
            fuse_text_clear(&name);
            fuse_program_add_layer(pass->program, i, &name);
            FUSE_TRY_OUT(name.failed ? fuse_fail_memory(error, "the profile", 0)
                                     : add(layers, name.data, &line, error));
        }
    }
    if (operations->count > 0)
        qsort(operations->lines, operations->count, sizeof *operations->lines, by_time);
    if (layers->count > 0)
        qsort(layers->lines, layers->count, sizeof *layers->lines, by_time);
out:
    fuse_text_free(&name);
    return status;
}

static int64_t sum_ns(const struct table *table)
{
    int64_t sum = 0;
    for (size_t i = 0; i < table->count; i++)
        sum += table->lines[i].ns;
    return sum;
}

/* Columns on a screen: bytes that go on a character take none. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_table(const char *title, const struct table *table, size_t shown, int64_t all_ns)
{
    int widest = width_of(title);
    for (size_t i = 0; i < table->count && i < shown; i++) {
        const int width = width_of(table->lines[i].name);
        widest = width > widest ? width : widest;
    }
    printf("\n%-*s %10s %8s %7s %9s %8s\n", widest, title, "ms", "calls", "share", "GFLOP/s", "GB/s");
    int64_t rest_ns = 0;
    for (size_t i = 0; i < table->count; i++) {
        const struct line *const line = &table->lines[i];
        if (i >= shown) {
            rest_ns += line->ns;
            continue;
        }
        const double ns = line->ns > 0 ? (double)line->ns : 1.0, share = all_ns > 0 ? 100 * ns / (double)all_ns : 0;
        printf("%s%*s %10.3f %8" PRId64 " %6.1f%%", line->name, widest - width_of(line->name), "", ns / 1e6,
               line->calls, share);
        if (line->flop > 0)
            printf(" %9.1f", line->flop / ns);
        else
            printf(" %9s", "");
        printf(" %8.1f\n", line->bytes / ns);
    }
    if (table->count > shown)
        printf("(%zu more: %.3f ms)\n", table->count - shown, (double)rest_ns / 1e6);
}

/* ---- the trace -------------------------------------------------------------------------------------------------- */

static void add_table_json(struct fuse_text *text, const char *key, const struct table *table)
{
    fuse_text_addf(text, "\"%s\":[", key);
    for (size_t i = 0; i < table->count; i++) {
        const struct line *const line = &table->lines[i];
        fuse_text_add(text, i == 0 ? "\n{\"name\":" : ",\n{\"name\":");
        fuse_text_add_json(text, line->name);
        fuse_text_addf(text, ",\"ns\":%" PRId64 ",\"calls\":%" PRId64 ",\"flop\":", line->ns, line->calls);
        fuse_text_add_json_number(text, line->flop);
        fuse_text_add(text, ",\"bytes\":");
        fuse_text_add_json_number(text, line->bytes);
        fuse_text_add(text, "}");
    }
    fuse_text_add(text, "]");
}

/* The format's "complete events": microseconds from the first run's beginning. A run's own event spans its operations'.
 */
static void add_run_json(struct fuse_text *text, const struct run *run, int number, int64_t begin_ns,
                         const double *state_counts)
{
    const uint32_t count = run->program->instruction_count;
    fuse_text_addf(text,
                   "%s\n{\"name\":\"training pass "
                   "%d\",\"cat\":\"pass\",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f}",
                   number == 1 ? "" : ",", number, (double)(run->marks_ns[0] - begin_ns) / 1e3,
                   (double)(run->marks_ns[count] - run->marks_ns[0]) / 1e3);
    for (uint32_t i = 0; i < count; i++) {
        static const char *const phases[] = {
            [FUSE_PHASE_FORWARD] = "forward", [FUSE_PHASE_BACKWARD] = "backward", [FUSE_PHASE_OPTIMIZER] = "optimizer"};
        const struct fuse_cost cost = fuse_instruction_cost(run->program, i, state_counts);
        struct fuse_text word = {0};
        if (run->program->instructions[i].kind == FUSE_RUN_LOAD)
            continue;
        fuse_program_add_operation(run->program, i, &word);
        fuse_text_add(text, ",\n{\"name\":");
        fuse_text_add_json(text, word.data != NULL ? word.data : "");
        fuse_text_clear(&word);
        fuse_program_add_layer(run->program, i, &word);
        fuse_text_addf(text,
                       ",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"layer\":",
                       phases[run->program->instructions[i].phase], (double)(run->marks_ns[i] - begin_ns) / 1e3,
                       (double)(run->marks_ns[i + 1] - run->marks_ns[i]) / 1e3);
        fuse_text_add_json(text, word.data != NULL ? word.data : "");
        fuse_text_add(text, ",\"flop\":");
        fuse_text_add_json_number(text, cost.flop);
        fuse_text_add(text, ",\"bytes\":");
        fuse_text_add_json_number(text, cost.bytes);
        fuse_text_add(text, "}}");
        text->failed |= word.failed;
        fuse_text_free(&word);
    }
}

static int write_trace(const struct fuse_profile *profile, const double *state_counts, const struct table *operations,
                       const struct table *layers, const char *path, struct fuse_error *error)
{
    struct fuse_text text = {0};
    fuse_text_add(&text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int i = 0; i < profile->run_count; i++)
        add_run_json(&text, &profile->runs[i], i + 1, profile->runs[0].marks_ns[0], state_counts);
    fuse_text_add(&text, "],\n");
    add_table_json(&text, "operations", operations);
    fuse_text_add(&text, ",\n");
    add_table_json(&text, "layers", layers);
    fuse_text_add(&text, "}\n");
    const int status = text.failed ? fuse_fail_memory(error, "profile.json", text.length)
                                   : fuse_output_text(path, text.data, text.length, error);
    fuse_text_free(&text);
    return status;
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

static void count_states(const struct fuse_experiment *experiment, double *state_counts)
{
    const struct fuse_dict *dict = experiment->dict;
    for (uint32_t e = 0; e < dict->entry_count; e++) {
        const struct fuse_entry *entry = &dict->entries[e];
        double count = 0;
        for (uint32_t s = 0; s < dict->groups[entry->group].rule->state_count; s++)
            count += (double)entry->state_counts[s];
        state_counts[entry->parameter] = count / (double)entry->element_count;
    }
}

int fuse_profile_write(const struct fuse_experiment *experiment, const struct fuse_outputs *outputs,
                       struct fuse_error *error)
{
    const struct fuse_profile *profile = experiment->profile;
    if (profile == NULL)
        return FUSERUN_OK;
    int status = FUSERUN_OK;
    struct table operations = {0}, layers = {0};
    char *path = fuse_outputs_path(outputs, "profile.json");
    const size_t bytes = (experiment->graph->parameter_count + 1) * sizeof(double);
    double *state_counts = calloc(1, bytes);
    if (path == NULL || state_counts == NULL) {
        status = fuse_fail_memory(error, "the profile", bytes);
        goto out;
    }
    count_states(experiment, state_counts);
    FUSE_TRY_OUT(fill_tables(profile, state_counts, &operations, &layers, error));
    FUSE_TRY_OUT(write_trace(profile, state_counts, &operations, &layers, path, error));
    int64_t passes = 0;
    for (uint32_t p = 0; p < profile->pass_count; p++)
        passes += profile->passes[p].counted_runs;
    const int64_t all_ns = sum_ns(&operations);
    printf("\nprofile of %" PRId64 " training passes: %.3f s, %.3f ms each (a program's first is left out)\n", passes,
           (double)all_ns / 1e9, passes > 0 ? (double)all_ns / 1e6 / (double)passes : 0.0);
    print_table("operation", &operations, SIZE_MAX, all_ns);
    print_table("layer", &layers, SHOWN_LAYERS, all_ns);
    printf("\ntrace of the first %d in %s (chrome://tracing, ui.perfetto.dev)\n", profile->run_count, path);
out:
    free_table(&operations);
    free_table(&layers);
    free(state_counts);
    free(path);
    return status;
}
