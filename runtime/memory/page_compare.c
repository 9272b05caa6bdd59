#include "memory/chart.h"
#include "memory/page.h"
#include "memory/page_parts.h"

#include "base/number.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void add_runs_name(const struct fuse_report *report, size_t index, struct fuse_text *text)
{
    fuse_text_addf(text, "<td class=\"name\"><i class=\"l k%zu\"></i>", index % FUSE_CHART_COLORS);
    fuse_xml_add(text, report->name);
    fuse_text_add(text, "</td><td>");
    struct fuse_text mode = {0};
    fuse_report_add_mode(report, &mode);
    fuse_xml_add(text, fuse_text_part(text, &mode));
    fuse_text_free(&mode);
    fuse_text_add(text, "</td>");
}

static void add_cell(const char *value, struct fuse_text *text)
{
    fuse_text_addf(text, "<td class=\"n\">%s</td>", value);
}

static void add_table(struct fuse_report *const *reports, size_t count, struct fuse_text *text)
{
    char shown[FUSE_DECIMAL_CHARS];
    fuse_text_add(
        text,
        "<div class=\"scroll\"><table class=\"compare\">\n<thead><tr><th>run</th><th>mode</th><th class=\"n\">peak</th>"
        "<th>in phase</th>");
    for (int level = 0; level < FUSE_CATEGORY_COUNT; level++)
        fuse_text_addf(text, "<th class=\"n\">%s</th>", fuse_category_title(fuse_category_order[level]));
    fuse_text_add(text, "<th class=\"n\">process grew by</th><th class=\"n\">update</th><th class=\"n\">last loss</th>"
                        "</tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < count; i++) {
        const struct fuse_report *report = reports[i];
        fuse_text_add(text, "<tr>");
        add_runs_name(report, i, text);
        add_cell(fuse_decimal_bytes(report->peak_bytes, shown), text);
        fuse_text_addf(text, "<td>%s</td>", fuse_phase_name(report->peak_phase));
        for (int level = 0; level < FUSE_CATEGORY_COUNT; level++)
            add_cell(fuse_decimal_bytes(report->peak_memory[fuse_category_order[level]], shown), text);
        add_cell(fuse_decimal_bytes(fuse_report_growth(report), shown), text);
        add_cell(fuse_seconds_show(report->metrics.median_step_s, shown), text);
        if (fuse_number_is_finite(report->metrics.last_loss))
            fuse_text_addf(text, "<td class=\"n\">%.6g</td>", report->metrics.last_loss);
        else
            add_cell("not finite", text);
        fuse_text_add(text, "</tr>\n");
    }
    fuse_text_add(text, "</tbody>\n</table></div>\n<p class=\"note\">The categories are what was alive at the peak. "
                        "The process grew from before the model to its greatest resident size.</p>\n");
}

/* The runs with the smallest and the greatest peak, in a sentence. */
static void add_sentence(struct fuse_report *const *reports, size_t count, struct fuse_text *text)
{
    char shown[FUSE_DECIMAL_CHARS];
    size_t low = 0;
    size_t high = 0;
    for (size_t i = 0; i < count; i++) {
        low = reports[i]->peak_bytes < reports[low]->peak_bytes ? i : low;
        high = reports[i]->peak_bytes > reports[high]->peak_bytes ? i : high;
    }
    if (reports[low]->peak_bytes == reports[high]->peak_bytes)
        return;
    fuse_text_add(text, "<p><b>");
    fuse_xml_add(text, reports[low]->name);
    fuse_text_addf(text, "</b> needs the least: %s, ", fuse_decimal_bytes(reports[low]->peak_bytes, shown));
    fuse_text_addf(text, "%.0f %% less than <b>",
                   100 * (1 - (double)reports[low]->peak_bytes / (double)reports[high]->peak_bytes));
    fuse_xml_add(text, reports[high]->name);
    fuse_text_addf(text, "</b> with %s.</p>\n", fuse_decimal_bytes(reports[high]->peak_bytes, shown));
}

static bool has_same_losses(const struct fuse_report *a, const struct fuse_report *b)
{
    return a->metrics.count == b->metrics.count &&
           memcmp(a->metrics.losses, b->metrics.losses, a->metrics.count * sizeof *a->metrics.losses) == 0;
}

static void add_losses(struct fuse_report *const *reports, size_t count, struct fuse_text *text)
{
    bool are_same = count > 1;
    for (size_t i = 1; i < count; i++)
        are_same = are_same && has_same_losses(reports[0], reports[i]);
    fuse_text_add(text, "<h2>Loss</h2>\n");
    if (are_same)
        fuse_text_add(text, "<p>All curves are the same, to the last bit of every loss.</p>\n");
    fuse_text_add(text, "<figure>\n");
    fuse_chart_losses(reports, count, &(struct fuse_chart_look){.width = 1040, .height = 300}, text);
    fuse_chart_losses(reports, count, &(struct fuse_chart_look){.width = 380, .height = 280}, text);
    fuse_text_add(text, "</figure>\n");
}

static void add_legend(struct fuse_report *const *reports, size_t count, struct fuse_text *text)
{
    fuse_text_add(text, "<ul class=\"legend\">\n");
    for (size_t i = 0; i < count; i++) {
        fuse_text_addf(text, "<li><i class=\"l k%zu\"></i>", i % FUSE_CHART_COLORS);
        fuse_xml_add(text, reports[i]->name);
        fuse_text_add(text, "</li>\n");
    }
    fuse_text_add(text, "</ul>\n");
}

/* ---- what the script reads --------------------------------------------------------------------------------------- */

/* Texts of a pass are shared pointers into one table: their numbers are found by address. */
static size_t number_of(const char **table, size_t *count, const char *word)
{
    for (size_t i = *count; i-- > 0;)
        if (table[i] == word)
            return i;
    table[*count] = word;
    return (*count)++;
}

static void add_words(const char *title, const char *const *words, size_t count, struct fuse_text *text)
{
    fuse_text_addf(text, "\"%s\":[", title);
    for (size_t i = 0; i < count; i++) {
        fuse_text_add(text, i > 0 ? "," : "");
        fuse_text_add_json(text, words[i]);
    }
    fuse_text_add(text, "]");
}

static void add_pass(const struct fuse_report_pass *pass, const char **operations, size_t *operation_count,
                     const char **layers, size_t *layer_count, struct fuse_text *text)
{
    fuse_text_add(text, "{\"operation\":[");
    for (size_t i = 0; i < pass->count; i++)
        fuse_text_addf(text, "%s%zu", i > 0 ? "," : "", number_of(operations, operation_count, pass->operations[i]));
    fuse_text_add(text, "],\"layer\":[");
    for (size_t i = 0; i < pass->count; i++)
        fuse_text_addf(text, "%s%zu", i > 0 ? "," : "", number_of(layers, layer_count, pass->layers[i]));
    fuse_text_add(text, "],\"total\":[");
    for (size_t i = 0; i < pass->count; i++)
        fuse_text_addf(text, "%s%" PRIu64, i > 0 ? "," : "", pass->total[i]);
    fuse_text_add(text, "]}");
}

static void add_slots(const struct fuse_report *report, struct fuse_text *text)
{
    size_t slot = 0;
    fuse_text_add(text, "\"slots\":[");
    for (size_t r = 0; r < report->run_count && slot < FUSE_CHART_SLOTS; r++) {
        const struct fuse_report_run *run = &report->runs[r];
        if (!report->passes[run->pass].is_training)
            continue;
        fuse_text_addf(text, "%s{\"pass\":%zu,\"update\":%" PRId64 ",\"begin_us\":%" PRId64 ",\"end_us\":[",
                       slot++ > 0 ? "," : "", run->pass, run->update, run->begin_us);
        for (size_t i = 0; i < report->passes[run->pass].count; i++)
            fuse_text_addf(text, "%s%" PRId64, i > 0 ? "," : "", run->end_us[i]);
        fuse_text_add(text, "]}");
    }
    fuse_text_add(text, "]");
}

static void add_run(const struct fuse_report *report, struct fuse_text *text)
{
    size_t capacity = 0;
    for (size_t p = 0; p < report->pass_count; p++)
        capacity += report->passes[p].count;
    const char **words = calloc(2 * capacity + 1, sizeof *words);
    if (words == NULL) {
        text->failed = true;
        return;
    }
    size_t operations = 0;
    size_t layers = 0;
    fuse_text_add(text, "{\"name\":");
    fuse_text_add_json(text, report->name);
    struct fuse_text mode = {0};
    fuse_report_add_mode(report, &mode);
    fuse_text_add(text, ",\"mode\":");
    fuse_text_add_json(text, fuse_text_part(text, &mode));
    fuse_text_free(&mode);
    fuse_text_add(text, ",\"passes\":[");
    for (size_t p = 0; p < report->pass_count; p++) {
        fuse_text_add(text, p > 0 ? "," : "");
        add_pass(&report->passes[p], words, &operations, words + capacity, &layers, text);
    }
    fuse_text_add(text, "],");
    add_words("operations", words, operations, text);
    fuse_text_add(text, ",");
    add_words("layers", words + capacity, layers, text);
    fuse_text_add(text, ",");
    add_slots(report, text);
    fuse_text_add(text, "}");
    free(words);
}

void fuse_page_compare(struct fuse_report *const *reports, size_t count, struct fuse_text *text)
{
    struct fuse_text json = {0};
    fuse_page_begin("fuserun \u00b7 runs compared", text);
    fuse_text_addf(text, "<header>\n<p class=\"kicker\">fuserun</p>\n<h1>%zu run%s compared</h1>\n</header>\n", count,
                   count == 1 ? "" : "s");
    add_sentence(reports, count, text);
    add_table(reports, count, text);
    fuse_text_add(text, "<h2>Memory</h2>\n<p>The first updates of each run. By operation, equal phases lie over each "
                        "other, whatever they consist of; by time, each run takes the time it took.</p>\n");
    add_legend(reports, count, text);
    fuse_text_add(text,
                  "<figure class=\"many\" data-axis=\"ops\" aria-label=\"Memory of all runs; arrow keys move along "
                  "it\">\n");
    for (int by_time = 0; by_time < 2; by_time++) {
        fuse_chart_overlay(reports, count,
                           &(struct fuse_chart_look){.width = 1040, .height = 400, .by_time = by_time != 0}, text);
        fuse_chart_overlay(reports, count,
                           &(struct fuse_chart_look){.width = 380, .height = 360, .by_time = by_time != 0}, text);
    }
    fuse_text_add(text,
                  "<div class=\"tools\"></div>\n<div class=\"detail\" aria-live=\"polite\"><p>Point at the picture, "
                  "or focus it and use the arrow keys, to see what each run does there.</p></div>\n</figure>\n");
    add_losses(reports, count, text);
    fuse_text_add(text, "<footer><p>1 GB is 1,000,000,000 bytes. Made by <code>fuserun compare</code> from each run's "
                        "memory.json and metrics.jsonl.</p></footer>\n");
    fuse_text_add(&json, "{\"runs\":[");
    for (size_t i = 0; i < count; i++) {
        fuse_text_add(&json, i > 0 ? "," : "");
        add_run(reports[i], &json);
    }
    fuse_text_add(&json, "]}");
    fuse_page_end(fuse_text_part(text, &json), text);
    fuse_text_free(&json);
}
