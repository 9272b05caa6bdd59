#include "cli/cli.h"
#include "files/output.h"
#include "memory/chart.h"

#include <stdlib.h>
#include <string.h>

/* Without a PATH the picture is all that is asked for, and goes to stdout. */
static int make_svg(const struct fuse_arguments *arguments, struct fuse_error *error)
{
    struct fuse_report *report = NULL;
    struct fuse_text text = {0};
    FUSE_TRY(fuse_report_open(arguments->words[0], &report, error));
    fuse_chart_memory(report, &(struct fuse_chart_look){.width = 920, .height = 460, .is_standalone = true}, &text);
    int status = FUSERUN_OK;
    if (text.failed)
        status = fuse_fail_memory(error, "the picture", text.length);
    else if (arguments->svg != NULL)
        status = fuse_output_text(arguments->svg, text.data, text.length, error);
    else if (fuse_print_text(&text) != FUSE_EXIT_DONE)
        status = fuse_fail(error, FUSERUN_ERROR_IO, NULL, "the picture is not whole");
    fuse_text_free(&text);
    fuse_report_free(&report);
    return status;
}

int fuse_command_report(const struct fuse_arguments *arguments)
{
    if (arguments->count != 1)
        return fuse_usage_error("report needs one RUN_DIR");
    if (arguments->wants_json && arguments->wants_svg && arguments->svg == NULL)
        return fuse_usage_error("--json and --svg without a file do not go together");
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_report *report = NULL;
    if (fuse_report_open(arguments->words[0], &report, &error) != FUSERUN_OK)
        return fuse_report_refusal(&error);
    struct fuse_text text = {0};
    char *page = fuse_format("%s/memory.html", report->folder);
    fuse_report_free(&report);
    const bool only_prints = arguments->wants_svg && arguments->svg == NULL;
    int status = page == NULL ? fuse_fail_memory(&error, "a path", 0) : FUSERUN_OK;
    if (status == FUSERUN_OK && !only_prints)
        status = fuse_report_write(arguments->words[0], &error);
    if (status == FUSERUN_OK && arguments->wants_svg)
        status = make_svg(arguments, &error);
    if (status == FUSERUN_OK && arguments->wants_json) {
        fuse_text_add(&text, "{\"html\":");
        fuse_text_add_json(&text, page);
        if (arguments->svg != NULL) {
            fuse_text_add(&text, ",\"svg\":");
            fuse_text_add_json(&text, arguments->svg);
        }
        fuse_text_add(&text, "}\n");
    } else if (status == FUSERUN_OK && !only_prints) {
        fuse_text_addf(&text, "%s\n", page);
        if (arguments->svg != NULL)
            fuse_text_addf(&text, "%s\n", arguments->svg);
    }
    int exit_status = status == FUSERUN_OK ? FUSE_EXIT_DONE : fuse_report_failure(&error);
    if (exit_status == FUSE_EXIT_DONE && text.length > 0)
        exit_status = fuse_print_text(&text);
    fuse_text_free(&text);
    free(page);
    return exit_status;
}
