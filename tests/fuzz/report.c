/* memory.json and metrics.jsonl of a run's folder, FUZZ_SEPARATOR between them, and every picture and page that is
 * drawn of what they say. */
#include "fuzz.h"

#include "memory/chart.h"
#include "memory/page.h"

#include <stdio.h>

static void draw(struct fuse_report *report)
{
    struct fuse_text text = {0};
    struct fuse_report *both[] = {report, report};
    for (int kind = 0; kind < 4; kind++) {
        const struct fuse_chart_look look = {.width = kind < 2 ? 920 : 300,
                                             .height = 460,
                                             .is_standalone = kind == 0,
                                             .by_time = kind == 1,
                                             .is_passing = kind == 2};
        fuse_chart_memory(report, &look, &text);
        fuse_chart_overlay(both, 2, &look, &text);
        fuse_chart_losses(both, 2, &look, &text);
        fuse_text_clear(&text);
    }
    fuse_page_memory(report, &text);
    fuse_text_clear(&text);
    fuse_page_compare(both, 2, &text);
    FUZZ_CHECK(!text.failed && text.length > 0);
    fuse_text_free(&text);
}

static FILE *open_part(const uint8_t **bytes, size_t *count)
{
    const uint8_t *part = NULL;
    size_t part_count = 0;
    static uint8_t nothing[1];
    (void)fuzz_next_part(bytes, count, &part, &part_count);
    FILE *stream = fmemopen(part_count > 0 ? (void *)(uintptr_t)part : nothing, part_count > 0 ? part_count : 1, "r");
    FUZZ_CHECK(stream != NULL);
    return stream;
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_report *report = NULL;
    FILE *json = open_part(&bytes, &count), *metrics = open_part(&bytes, &count);
    const int status = fuse_report_read("folder", json, metrics, &report, &error);
    fuzz_check_error(status, &error);
    FUZZ_CHECK((status == FUSERUN_OK) == (report != NULL));
    (void)fclose(json);
    (void)fclose(metrics);
    if (report != NULL)
        draw(report);
    fuse_report_free(&report);
}
