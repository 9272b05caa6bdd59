#include "cli/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PLOT_ROWS 12
#define TABLE_ROWS 20

/* Sets every group's options to those of update `step` (from 1). */
static int go_to(struct fuse_experiment *experiment, int64_t step, struct fuse_error *error)
{
    experiment->clock->completed_updates = step - 1;
    return fuse_clock_apply(experiment->clock, experiment->dict, error);
}

static const char *group_of(const struct fuse_experiment *experiment, size_t column)
{
    return experiment->dict->groups[experiment->clock->columns[column].group].name;
}

/* Text is printed and cleared now and then, so that a long run's table needs no memory of its length. */
static int flush_text(struct fuse_text *text, bool is_last)
{
    if (!is_last && text->length < 65536)
        return FUSE_EXIT_DONE;
    const int status = fuse_print_text(text);
    fuse_text_clear(text);
    return status;
}

static int print_csv(struct fuse_experiment *experiment, struct fuse_text *text, struct fuse_error *error)
{
    const struct fuse_clock *clock = experiment->clock;
    fuse_text_add(text, "step");
    for (size_t c = 0; c < fuse_clock_column_count(clock); c++)
        fuse_text_addf(text, ",%s.%s", group_of(experiment, c), clock->columns[c].option);
    fuse_text_add(text, "\n");
    for (int64_t step = 1; step <= clock->total_updates; step++) {
        if (go_to(experiment, step, error) != FUSERUN_OK)
            return fuse_report_failure(error);
        fuse_text_addf(text, "%" PRId64, step);
        for (size_t c = 0; c < fuse_clock_column_count(clock); c++) {
            fuse_text_add(text, ",");
            fuse_text_add_json_number(text, fuse_clock_column_value(clock, experiment->dict, c));
        }
        fuse_text_add(text, "\n");
        if (flush_text(text, false) != FUSE_EXIT_DONE)
            return FUSE_EXIT_FAILED;
    }
    return flush_text(text, true);
}

static int print_json(struct fuse_experiment *experiment, struct fuse_text *text, struct fuse_error *error)
{
    for (int64_t step = 1; step <= experiment->clock->total_updates; step++) {
        if (go_to(experiment, step, error) != FUSERUN_OK)
            return fuse_report_failure(error);
        fuse_text_addf(text, "%s{\"step\":%" PRId64 ",", step == 1 ? "[" : ",\n ", step);
        fuse_clock_add_json(experiment->clock, experiment->dict, text);
        fuse_text_add(text, "}");
        if (flush_text(text, false) != FUSE_EXIT_DONE)
            return FUSE_EXIT_FAILED;
    }
    fuse_text_add(text, experiment->clock->total_updates > 0 ? "]\n" : "[]\n");
    return flush_text(text, true);
}

/* The update that the row shows of `rows` spread over all, the first and the last among them. Divided before it is
 * multiplied: a run may be 2^63 - 1 updates long. */
static int64_t step_of(int64_t total, int64_t row, int64_t rows)
{
    if (rows < 2)
        return 1;
    const int64_t each = (total - 1) / (rows - 1), rest = (total - 1) % (rows - 1);
    return 1 + row * each + row * rest / (rows - 1);
}

/* A table of about TABLE_ROWS updates, the first and the last among them. */
static int print_table(struct fuse_experiment *experiment, struct fuse_text *text, struct fuse_error *error)
{
    const struct fuse_clock *clock = experiment->clock;
    const int64_t total = clock->total_updates;
    const int64_t rows = total < TABLE_ROWS ? total : TABLE_ROWS;
    fuse_text_addf(text, "%10s", "step");
    for (size_t c = 0; c < fuse_clock_column_count(clock); c++)
        fuse_text_addf(text, "  %s.%s", group_of(experiment, c), clock->columns[c].option);
    fuse_text_add(text, "\n");
    for (int64_t row = 0; row < rows; row++) {
        const int64_t step = step_of(total, row, rows);
        if (go_to(experiment, step, error) != FUSERUN_OK)
            return fuse_report_failure(error);
        fuse_text_addf(text, "%10" PRId64, step);
        for (size_t c = 0; c < fuse_clock_column_count(clock); c++) {
            char name[256];
            const int width = snprintf(name, sizeof name, "%s.%s", group_of(experiment, c), clock->columns[c].option);
            fuse_text_addf(text, "  %*.6g", width, fuse_clock_column_value(clock, experiment->dict, c));
        }
        fuse_text_add(text, "\n");
    }
    return flush_text(text, true);
}

/* One curve: a column of characters for each of `width` updates, a mark at its value's row. */
static int plot_column(struct fuse_experiment *experiment, size_t column, int width, double *values,
                       struct fuse_text *text, struct fuse_error *error)
{
    const struct fuse_clock *clock = experiment->clock;
    const int64_t total = clock->total_updates;
    double low = 0;
    double high = 0;
    if (total < width)
        width = (int)total;
    for (int x = 0; x < width; x++) {
        FUSE_TRY(go_to(experiment, step_of(total, x, width), error));
        values[x] = fuse_clock_column_value(clock, experiment->dict, column);
        low = values[x] < low ? values[x] : low;
        high = values[x] > high ? values[x] : high;
    }
    fuse_text_addf(text, "%s.%s\n", group_of(experiment, column), clock->columns[column].option);
    for (int row = PLOT_ROWS - 1; row >= 0; row--) {
        if (row == PLOT_ROWS - 1)
            fuse_text_addf(text, "%11.4g |", high);
        else if (row == 0)
            fuse_text_addf(text, "%11.4g |", low);
        else
            fuse_text_add(text, "            |");
        for (int x = 0; x < width; x++) {
            const double share = high > low ? (values[x] - low) / (high - low) : 0;
            fuse_text_add(text, (int)(share * (PLOT_ROWS - 1) + 0.5) == row ? "*" : " ");
        }
        fuse_text_add(text, "\n");
    }
    fuse_text_add(text, "            +");
    for (int x = 0; x < width; x++)
        fuse_text_add(text, "-");
    fuse_text_addf(text, "\n             1%*" PRId64 "\n", width > 1 ? width - 1 : 1, total);
    return FUSERUN_OK;
}

static int print_plots(struct fuse_experiment *experiment, struct fuse_text *text, struct fuse_error *error)
{
    struct winsize window = {0};
    int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 30 ? window.ws_col - 14 : 66;
    width = width > 120 ? 120 : width;
    double *values = calloc((size_t)width, sizeof *values);
    if (values == NULL)
        return fuse_report_no_memory();
    int status = FUSERUN_OK;
    for (size_t c = 0; c < fuse_clock_column_count(experiment->clock) && status == FUSERUN_OK; c++)
        status = plot_column(experiment, c, width, values, text, error);
    free(values);
    return status == FUSERUN_OK ? flush_text(text, true) : fuse_report_failure(error);
}

/* On stderr: stdout is for the values. */
static void tell_notes(const struct fuse_experiment *experiment)
{
    struct fuse_text notes = {0};
    fuse_clock_add_notes(experiment->clock, "fuserun: ", &notes);
    if (!notes.failed && notes.length > 0)
        (void)fputs(notes.data, stderr);
    fuse_text_free(&notes);
}

int fuse_command_schedule(const struct fuse_arguments *arguments)
{
    struct fuse_experiment *experiment = NULL;
    struct fuse_text text = {0};
    struct fuse_error error = FUSE_ERROR_INIT;
    int exit_status = fuse_open_experiment(arguments, &experiment);
    if (exit_status != FUSE_EXIT_DONE)
        goto out;
    tell_notes(experiment);
    if (arguments->wants_csv)
        exit_status = print_csv(experiment, &text, &error);
    else if (arguments->wants_json)
        exit_status = print_json(experiment, &text, &error);
    else if (isatty(STDOUT_FILENO))
        exit_status = print_plots(experiment, &text, &error);
    else
        exit_status = print_table(experiment, &text, &error);
out:
    fuse_text_free(&text);
    fuse_experiment_free(&experiment);
    return exit_status;
}
