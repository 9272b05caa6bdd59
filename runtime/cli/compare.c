#include "base/number.h"
#include "cli/cli.h"
#include "files/output.h"
#include "memory/chart.h"
#include "memory/page.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---------------------------------------------------------------------------------------------------------
 */

static bool are_distinct(struct fuse_report *const *reports, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(reports[i]->name, reports[j]->name) == 0)
                return false;
    return true;
}

/* Runs of one config have one name: then the folder's, then its whole path tells them apart. */
static void name_apart(struct fuse_report **reports, size_t count)
{
    if (are_distinct(reports, count))
        return;
    for (size_t i = 0; i < count; i++) {
        const char *slash = strrchr(reports[i]->folder, '/');
        reports[i]->name = slash != NULL && slash[1] != '\0' ? slash + 1 : reports[i]->folder;
    }
    if (are_distinct(reports, count))
        return;
    for (size_t i = 0; i < count; i++)
        reports[i]->name = reports[i]->folder;
}

/* ---- the table -----------------------------------------------------------------------------------------------------
 */

enum { COLUMNS = 12, CELL_CHARS = 96 };

static void add_padded(struct fuse_text *text, const char *cell, int width, bool is_left)
{
    int letters = 0;
    for (const char *at = cell; *at != '\0'; at++)
        letters += ((unsigned char)*at & 0xc0) != 0x80;
    if (is_left)
        fuse_text_add(text, cell);
    fuse_text_addf(text, "%*s", width > letters ? width - letters : 0, "");
    if (!is_left)
        fuse_text_add(text, cell);
}

static void fill_row(const struct fuse_report *report, char (*cells)[CELL_CHARS])
{
    struct fuse_text mode = {0};
    fuse_report_add_mode(report, &mode);
    (void)snprintf(cells[0], CELL_CHARS, "%s", report->name);
    (void)snprintf(cells[1], CELL_CHARS, "%s", mode.data != NULL ? mode.data : "");
    fuse_text_free(&mode);
    char shown[FUSE_DECIMAL_CHARS];
    (void)snprintf(cells[2], CELL_CHARS, "%s", fuse_decimal_bytes(report->peak_bytes, shown));
    (void)snprintf(cells[3], CELL_CHARS, "%s", fuse_phase_name(report->peak_phase));
    for (int level = 0; level < FUSE_CATEGORY_COUNT; level++)
        (void)snprintf(cells[4 + level], CELL_CHARS, "%s",
                       fuse_decimal_bytes(report->peak_memory[fuse_category_order[level]], shown));
    (void)snprintf(cells[10], CELL_CHARS, "%s", fuse_decimal_bytes(fuse_report_growth(report), shown));
    (void)snprintf(cells[11], CELL_CHARS, "%s", fuse_seconds_show(report->metrics.median_step_s, shown));
}

/* A row a run; the last column is the loss, as long as it is. */
static int add_table(struct fuse_report *const *reports, size_t count, struct fuse_text *text, struct fuse_error *error)
{
    static const char *const titles[COLUMNS] = {"run",         "mode",      "peak",         "in phase",
                                                "parameters",  "state",     "data",         "gradients",
                                                "activations", "workspace", "process grew", "update"};
    char(*cells)[COLUMNS][CELL_CHARS] = calloc(count + 1, sizeof *cells);
    int widths[COLUMNS] = {0};
    if (cells == NULL)
        return fuse_fail_memory(error, "the table", (count + 1) * sizeof *cells);
    for (int c = 0; c < COLUMNS; c++)
        (void)snprintf(cells[0][c], CELL_CHARS, "%s", titles[c]);
    for (size_t i = 0; i < count; i++)
        fill_row(reports[i], cells[i + 1]);
    for (size_t r = 0; r <= count; r++)
        for (int c = 0; c < COLUMNS; c++)
            widths[c] = (int)strlen(cells[r][c]) > widths[c] ? (int)strlen(cells[r][c]) : widths[c];
    for (size_t r = 0; r <= count; r++) {
        for (int c = 0; c < COLUMNS; c++) {
            add_padded(text, cells[r][c], widths[c], c < 2 || c == 3);
            fuse_text_add(text, "  ");
        }
        if (r == 0)
            fuse_text_add(text, "last loss\n");
        else if (fuse_number_is_finite(reports[r - 1]->metrics.last_loss))
            fuse_text_addf(text, "%.7g\n", reports[r - 1]->metrics.last_loss);
        else
            fuse_text_add(text, "not finite\n");
    }
    free(cells);
    return FUSERUN_OK;
}

static void add_json(struct fuse_report *const *reports, size_t count, const char *html, const char *svg,
                     struct fuse_text *text)
{
    fuse_text_add(text, "{\"runs\":[");
    for (size_t i = 0; i < count; i++) {
        const struct fuse_report *report = reports[i];
        fuse_text_add(text, i > 0 ? ",\n{\"run\":" : "\n{\"run\":");
        fuse_text_add_json(text, report->name);
        fuse_text_add(text, ",\"folder\":");
        fuse_text_add_json(text, report->folder);
        fuse_text_add(text, ",\"mode\":");
        fuse_text_add_json(text, report->mode);
        fuse_text_add(text, ",\"recompute\":");
        fuse_text_add_json(text, report->recompute);
        fuse_text_addf(text, ",\"peak_bytes\":%" PRIu64 ",\"peak_phase\":\"%s\",\"memory\":{", report->peak_bytes,
                       fuse_phase_name(report->peak_phase));
        for (int c = 0; c < FUSE_CATEGORY_COUNT; c++)
            fuse_text_addf(text, "%s\"%s\":%" PRIu64, c > 0 ? "," : "", fuse_category_name((enum fuse_category)c),
                           report->peak_memory[c]);
        fuse_text_addf(text, "},\"rss_growth_bytes\":%" PRIu64 ",\"updates\":%" PRId64 ",\"step_s\":",
                       fuse_report_growth(report), report->metrics.last_step);
        fuse_text_add_json_number(text, report->metrics.median_step_s);
        fuse_text_add(text, ",\"loss\":");
        fuse_text_add_json_number(text, report->metrics.last_loss);
        fuse_text_add(text, "}");
    }
    fuse_text_add(text, "],\n\"html\":");
    fuse_text_add_json(text, html);
    if (svg != NULL) {
        fuse_text_add(text, ",\"svg\":");
        fuse_text_add_json(text, svg);
    }
    fuse_text_add(text, "}\n");
}

/* ---- the command ---------------------------------------------------------------------------------------------------
 */

static int write_page(struct fuse_report *const *reports, size_t count, const char *path, struct fuse_error *error)
{
    struct fuse_text text = {0};
    fuse_page_compare(reports, count, &text);
    const int status = text.failed ? fuse_fail_memory(error, "the page", text.length)
                                   : fuse_output_text(path, text.data, text.length, error);
    fuse_text_free(&text);
    return status;
}

static void draw(struct fuse_report *const *reports, size_t count, struct fuse_text *text)
{
    fuse_chart_overlay(reports, count,
                       &(struct fuse_chart_look){.width = 920, .height = 440 + 19 * (int)count, .is_standalone = true},
                       text);
}

static int write_svg(struct fuse_report *const *reports, size_t count, const char *path, struct fuse_error *error)
{
    struct fuse_text text = {0};
    draw(reports, count, &text);
    const int status = text.failed ? fuse_fail_memory(error, "the picture", text.length)
                                   : fuse_output_text(path, text.data, text.length, error);
    fuse_text_free(&text);
    return status;
}

static int compare(struct fuse_report *const *reports, const struct fuse_arguments *arguments, struct fuse_text *text,
                   struct fuse_error *error)
{
    const size_t count = arguments->count;
    const char *html = arguments->html != NULL ? arguments->html : "fuserun-compare.html";
    if (arguments->wants_svg && arguments->svg == NULL) {
        draw(reports, count, text);
        return FUSERUN_OK;
    }
    FUSE_TRY(write_page(reports, count, html, error));
    if (arguments->svg != NULL)
        FUSE_TRY(write_svg(reports, count, arguments->svg, error));
    if (arguments->wants_json) {
        add_json(reports, count, html, arguments->svg, text);
        return FUSERUN_OK;
    }
    FUSE_TRY(add_table(reports, count, text, error));
    fuse_text_addf(text, "\npage in %s\n", html);
    if (arguments->svg != NULL)
        fuse_text_addf(text, "picture in %s\n", arguments->svg);
    return FUSERUN_OK;
}

int fuse_command_compare(const struct fuse_arguments *arguments)
{
    if (arguments->count == 0)
        return fuse_usage_error("compare needs a RUN_DIR or several");
    if (arguments->wants_json && arguments->wants_svg && arguments->svg == NULL)
        return fuse_usage_error("--json and --svg without a file do not go together");
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_text text = {0};
    int exit_status = FUSE_EXIT_DONE;
    struct fuse_report **reports = calloc(arguments->count, sizeof *reports);
    if (reports == NULL)
        return fuse_report_no_memory();
    /* Every folder that cannot be compared is told; a lack of memory once. */
    for (size_t i = 0; i < arguments->count && error.code != FUSERUN_ERROR_MEMORY; i++)
        if (fuse_report_open(arguments->words[i], &reports[i], &error) != FUSERUN_OK)
            exit_status = fuse_report_refusal(&error);
    if (exit_status == FUSE_EXIT_DONE) {
        name_apart(reports, arguments->count);
        exit_status = compare(reports, arguments, &text, &error) == FUSERUN_OK ? fuse_print_text(&text)
                                                                               : fuse_report_failure(&error);
    }
    for (size_t i = 0; i < arguments->count; i++)
        fuse_report_free(&reports[i]);
    free(reports);
    fuse_text_free(&text);
    return exit_status;
}
