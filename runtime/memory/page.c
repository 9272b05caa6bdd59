#include "memory/page.h"

#include "base/json.h"
#include "base/number.h"
#include "files/output.h"
#include "memory/chart.h"
#include "memory/page_parts.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parts of both pages --------------------------------------------------------------------------------------- */

void fuse_page_begin(const char *title, struct fuse_text *text)
{
    /* The policy lets the page's own style and script in and nothing of the network. */
    fuse_text_add(text, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                        "<meta name=\"color-scheme\" content=\"light dark\">\n"
                        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                        "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
                        "<link rel=\"icon\" href=\"data:,\">\n<title>");
    fuse_xml_add(text, title);
    fuse_text_add(text, "</title>\n<style>\n");
    fuse_text_add(text, fuse_page_page_css);
    fuse_text_add(text, fuse_page_chart_css);
    fuse_text_add(text, "</style>\n</head>\n<body>\n<main>\n");
}

void fuse_page_end(const char *json, struct fuse_text *text)
{
    fuse_text_add(text, "</main>\n<script type=\"application/json\" id=\"data\">");
    for (const char *at = json; *at != '\0';) { /* a name may hold "</script>" */
        const size_t plain = strcspn(at, "<");
        fuse_text_add_bytes(text, at, plain);
        at += plain;
        if (*at == '<') {
            fuse_text_add(text, "\\u003c");
            at++;
        }
    }
    fuse_text_add(text, "</script>\n<script>\n");
    fuse_text_add(text, fuse_page_page_js);
    fuse_text_add(text, "</script>\n</body>\n</html>\n");
}

void fuse_page_add_fact(const char *title, const char *value, const char *note, struct fuse_text *text)
{
    fuse_text_addf(text, "<div><dt>%s</dt><dd>%s<small>", title, value);
    fuse_xml_add(text, note);
    fuse_text_add(text, "</small></dd></div>\n");
}

/* ---- memory.html ------------------------------------------------------------------------------------------------ */

static void add_head(const struct fuse_report *report, struct fuse_text *text)
{
    fuse_text_add(text, "<header>\n<p class=\"kicker\">fuserun \u00b7 the memory of a run</p>\n<h1>");
    fuse_xml_add(text, report->name);
    fuse_text_add(text, "</h1>\n<p>");
    fuse_xml_add(text, report->model);
    if (report->preset[0] != '\0') {
        fuse_text_add(text, " ");
        fuse_xml_add(text, report->preset);
    }
    fuse_text_add(text, ", ");
    fuse_report_add_count((uint64_t)report->parameters, text);
    fuse_text_add(text, " parameters \u00b7 ");
    fuse_xml_add(text, report->optimizer);
    fuse_text_add(text, " in mode <b>");
    fuse_report_add_mode(report, text);
    fuse_text_addf(text, "</b> \u00b7 batch of %" PRId64 " \u00b7 ", report->batch_size);
    fuse_report_add_count((uint64_t)report->updates, text);
    fuse_text_add(text, report->updates == 1 ? " update" : " updates");
    fuse_text_add(text, "</p>\n<p class=\"note\">");
    fuse_xml_add(text, report->device);
    fuse_text_add(text, "</p>\n</header>\n");
}

static void add_facts(const struct fuse_report *report, struct fuse_text *text)
{
    char value[FUSE_DECIMAL_CHARS];
    char other[FUSE_DECIMAL_CHARS];
    char note[128];
    fuse_text_add(text, "<dl class=\"facts\">\n");
    struct fuse_text peak = {0};
    fuse_text_addf(&peak, "in %s; ", fuse_phase_name(report->peak_phase));
    fuse_report_add_count(report->peak_bytes, &peak);
    fuse_text_add(&peak, " bytes");
    fuse_page_add_fact("peak of what was alive", fuse_decimal_bytes(report->peak_bytes, value),
                       fuse_text_part(text, &peak), text);
    fuse_text_free(&peak);
    (void)snprintf(note, sizeof note, "from %s before the model", fuse_decimal_bytes(report->rss_base_bytes, other));
    fuse_page_add_fact("the process grew by", fuse_decimal_bytes(fuse_report_growth(report), value), note, text);
    fuse_page_add_fact("an update took", fuse_seconds_show(report->metrics.median_step_s, value), "median", text);
    const bool has_loss = fuse_number_is_finite(report->metrics.last_loss);
    (void)snprintf(value, sizeof value, "%.5g", report->metrics.last_loss);
    (void)snprintf(note, sizeof note, "of update %" PRId64, report->metrics.last_step);
    fuse_page_add_fact("last loss", has_loss ? value : "not finite", note, text);
    fuse_text_add(text, "</dl>\n");
}

/* Does it live while operation `at` of a run of `pass` is under way? */
static bool is_alive(const struct fuse_report_buffer *buffer, size_t pass, size_t at)
{
    return buffer->pass == SIZE_MAX || (buffer->pass == pass && buffer->first <= at && at <= buffer->last);
}

static void add_share(uint64_t part, uint64_t whole, struct fuse_text *text)
{
    const double percent = whole > 0 ? 100.0 * (double)part / (double)whole : 0;
    fuse_text_addf(text, percent >= 1 || part == 0 ? "%.0f %%" : "%.2g %%", percent);
}

/* A stacked bar, and its parts in words. */
static void add_parts(const uint64_t *bytes, struct fuse_text *text)
{
    char shown[FUSE_DECIMAL_CHARS];
    uint64_t sum = 0;
    for (int i = 0; i < FUSE_CATEGORY_COUNT; i++)
        sum += bytes[i];
    fuse_text_add(text, "<div class=\"bar\" aria-hidden=\"true\">");
    for (int level = 0; level < FUSE_CATEGORY_COUNT; level++) {
        const enum fuse_category category = fuse_category_order[level];
        if (bytes[category] > 0)
            fuse_text_addf(text, "<span class=\"b%d\" style=\"flex:%.6f\"></span>", (int)category,
                           (double)bytes[category] / (double)sum * 1000);
    }
    fuse_text_add(text, "</div>\n<ul class=\"legend\">\n");
    for (int level = 0; level < FUSE_CATEGORY_COUNT; level++) {
        const enum fuse_category category = fuse_category_order[level];
        if (bytes[category] == 0)
            continue;
        fuse_text_addf(text, "<li><i class=\"b%d\"></i>%s %s (", (int)category, fuse_category_title(category),
                       fuse_decimal_bytes(bytes[category], shown));
        add_share(bytes[category], sum, text);
        fuse_text_add(text, ")</li>\n");
    }
    fuse_text_add(text, "</ul>\n");
}

/* The biggest of what came and went: parameters and state are as big at any other moment. */
static void add_biggest_alive(const struct fuse_report *report, struct fuse_text *text)
{
    char shown[FUSE_DECIMAL_CHARS];
    const size_t pass = report->runs[report->peak_run].pass;
    const struct fuse_report_buffer *last = NULL;
    int count = 0;
    for (; count < 4; count++) {
        const struct fuse_report_buffer *best = NULL;
        for (size_t i = 0; i < report->buffer_count; i++) {
            const struct fuse_report_buffer *buffer = &report->buffers[i];
            const bool is_after =
                last == NULL || buffer->bytes < last->bytes || (buffer->bytes == last->bytes && buffer > last);
            if (buffer->pass != SIZE_MAX && is_alive(buffer, pass, report->peak_operation) && is_after &&
                (best == NULL || buffer->bytes > best->bytes))
                best = buffer;
        }
        if (best == NULL)
            break;
        fuse_text_add(text, count == 0 ? "<p>The biggest of what is only there for a while:</p>\n<ul>\n" : "");
        fuse_text_addf(text, "<li>%s ", fuse_decimal_bytes(best->bytes, shown));
        fuse_xml_add(text, best->name);
        fuse_text_add(text, "</li>\n");
        last = best;
    }
    if (count > 0)
        fuse_text_add(text, "</ul>\n");
}

static uint64_t greatest_of(const struct fuse_report *report, enum fuse_category category)
{
    uint64_t greatest = 0;
    for (size_t p = 0; p < report->pass_count; p++)
        for (size_t i = 0; i < report->passes[p].count; i++)
            if (report->passes[p].live[i][category] > greatest)
                greatest = report->passes[p].live[i][category];
    return greatest;
}

static void add_mode_text(const struct fuse_report *report, struct fuse_text *text)
{
    char alive[FUSE_DECIMAL_CHARS];
    char all[FUSE_DECIMAL_CHARS];
    (void)fuse_decimal_bytes(greatest_of(report, FUSE_CATEGORY_GRADIENT), alive);
    (void)fuse_decimal_bytes(report->trainable_bytes, all);
    fuse_text_add(text, "<p>");
    if (strcmp(report->mode, "fused") == 0)
        fuse_text_addf(text,
                       "Mode <code>fused</code>: each parameter has its own optimizer, which runs inside the backward "
                       "pass as soon as its gradient is there, and the gradient is dropped. So at most %s of gradients "
                       "are alive at once, where keeping them all would take %s, and there is no optimizer phase.",
                       alive, all);
    else if (strcmp(report->mode, "per_param") == 0)
        fuse_text_addf(text,
                       "Mode <code>per_param</code>: all gradients are kept until the backward pass is done (up to %s "
                       "alive), then one parameter after another is updated. Mode <code>fused</code> does not keep "
                       "them.",
                       alive);
    else
        fuse_text_addf(text,
                       "Mode <code>foreach</code>: all gradients are kept until the backward pass is done (up to %s "
                       "alive), then one update goes over all parameters at once. Mode <code>fused</code> does not "
                       "keep them.",
                       alive);
    if (strcmp(report->recompute, "blocks") == 0)
        fuse_text_add(text, " With <code>recompute = blocks</code> only what enters each block of the model is kept; "
                            "the rest is computed again in the backward pass.");
    fuse_text_add(text, "</p>\n");
}

/* Each look twice, for wide and for narrow pages. */
static void add_figure(const struct fuse_report *report, struct fuse_text *text)
{
    fuse_text_add(text, "<figure class=\"one\" data-axis=\"ops\" aria-label=\"Memory over the recorded updates; arrow "
                        "keys move along it\">\n");
    for (int kind = 0; kind < 3; kind++) {
        struct fuse_chart_look look = {.width = 1040, .height = 430, .by_time = kind == 1, .is_passing = kind == 2};
        fuse_chart_memory(report, &look, text);
        look.width = look.height = 380;
        fuse_chart_memory(report, &look, text);
    }
    fuse_text_add(text, "<div class=\"tools\"></div>\n<div class=\"detail\" aria-live=\"polite\"></div>\n"
                        "<figcaption class=\"note\">Point at the picture, or focus it and use the arrow keys (page "
                        "up and down: 25 operations; p: the peak). A phase of very few operations is drawn wider than "
                        "its share.</figcaption>\n</figure>\n");
}

static void add_life(const struct fuse_report *report, const struct fuse_report_buffer *buffer, struct fuse_text *text)
{
    if (buffer->pass == SIZE_MAX) {
        fuse_text_add(text, "throughout");
        return;
    }
    const struct fuse_report_pass *pass = &report->passes[buffer->pass];
    const char *first = fuse_phase_name(pass->phases[buffer->first]);
    const char *last = fuse_phase_name(pass->phases[buffer->last]);
    fuse_text_add(text, pass->is_training ? "" : "evaluation: ");
    fuse_text_add(text, first);
    if (strcmp(first, last) != 0)
        fuse_text_addf(text, " to %s", last);
    fuse_text_addf(text, ", %zu to %zu", buffer->first + 1, buffer->last + 1);
}

static void add_table(const struct fuse_report *report, struct fuse_text *text)
{
    char shown[FUSE_DECIMAL_CHARS];
    const size_t peak_pass = report->runs[report->peak_run].pass;
    fuse_text_add(text, "<h2>The biggest buffers</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>buffer</th><th "
                        "class=\"n\">size</th><th>alive, in operations</th><th>at the peak</th></tr></thead>\n");
    for (int level = 0; level < FUSE_CATEGORY_COUNT; level++) {
        const enum fuse_category category = fuse_category_order[level];
        if (report->buffer_counts[category] == 0)
            continue;
        size_t listed = 0;
        for (size_t i = 0; i < report->buffer_count; i++)
            listed += report->buffers[i].category == category;
        fuse_text_addf(text, "<tbody><tr><th colspan=\"4\"><i class=\"b%d\"></i>%s <span>at most %s at once, ",
                       (int)category, fuse_category_title(category),
                       fuse_decimal_bytes(greatest_of(report, category), shown));
        fuse_report_add_count(report->buffer_counts[category], text);
        fuse_text_add(text, report->buffer_counts[category] == 1 ? " buffer" : " buffers");
        if (listed < report->buffer_counts[category])
            fuse_text_addf(text, ", the %zu biggest", listed);
        fuse_text_add(text, "</span></th></tr>\n");
        for (size_t i = 0; i < report->buffer_count; i++) {
            const struct fuse_report_buffer *buffer = &report->buffers[i];
            if (buffer->category != category)
                continue;
            fuse_text_add(text, "<tr><td class=\"name\">");
            fuse_xml_add(text, buffer->name);
            fuse_text_addf(text, "</td><td class=\"n\">%s</td><td>", fuse_decimal_bytes(buffer->bytes, shown));
            add_life(report, buffer, text);
            fuse_text_addf(text, "</td><td>%s</td></tr>\n",
                           is_alive(buffer, peak_pass, report->peak_operation) ? "yes" : "");
        }
        fuse_text_add(text, "</tbody>\n");
    }
    fuse_text_add(text, "</table></div>\n");
}

struct writing {
    const json_t *json;
    struct fuse_text text;
};

static int add_bytes(const char *bytes, size_t count, void *user)
{
    struct writing *writing = user;
    fuse_text_add_bytes(&writing->text, bytes, count);
    return 0;
}

static void write_json(void *user)
{
    struct writing *writing = user;
    (void)json_dump_callback(writing->json, add_bytes, writing, JSON_COMPACT);
}

void fuse_page_memory(const struct fuse_report *report, struct fuse_text *text)
{
    struct fuse_text title = {0};
    fuse_text_addf(&title, "%s \u00b7 memory", report->name);
    fuse_page_begin(fuse_text_part(text, &title), text);
    fuse_text_free(&title);
    add_head(report, text);
    add_facts(report, text);
    fuse_text_add(text, "<h2>What is alive, and when</h2>\n");
    add_figure(report, text);
    fuse_text_add(text, "<h2>The peak</h2>\n<p>");
    struct fuse_text peak = {0};
    fuse_report_add_peak(report, &peak);
    fuse_xml_add(text, fuse_text_part(text, &peak));
    fuse_text_free(&peak);
    fuse_text_add(text, " These are alive then:</p>\n");
    add_parts(report->peak_memory, text);
    add_biggest_alive(report, text);
    add_mode_text(report, text);
    add_table(report, text);
    fuse_text_add(text, "<footer><p>Recorded are the first updates, and every other kind of pass once. A buffer is "
                        "alive from the operation that first writes it to the last one that uses it, as observed "
                        "while they ran. 1 GB is 1,000,000,000 bytes. Made by fuserun ");
    fuse_xml_add(text, report->version);
    fuse_text_add(text, " from memory.json and metrics.jsonl.</p></footer>\n");
    struct writing writing = {.json = report->json};
    if (fuse_json_try(write_json, &writing) && !writing.text.failed && writing.text.data != NULL)
        fuse_page_end(writing.text.data, text);
    else
        text->failed = true;
    fuse_text_free(&writing.text);
}

int fuse_report_write(const char *folder, struct fuse_error *error)
{
    struct fuse_report *report = NULL;
    struct fuse_text text = {0};
    FUSE_TRY(fuse_report_open(folder, &report, error));
    fuse_page_memory(report, &text);
    char *path = fuse_format("%s/memory.html", report->folder);
    const int status = path == NULL || text.failed ? fuse_fail_memory(error, "memory.html", text.length)
                                                   : fuse_output_text(path, text.data, text.length, error);
    free(path);
    fuse_text_free(&text);
    fuse_report_free(&report);
    return status;
}
