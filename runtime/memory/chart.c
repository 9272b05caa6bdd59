#include "memory/chart.h"

#include "memory/page.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const enum fuse_category fuse_category_order[FUSE_CATEGORY_COUNT] = {
    FUSE_CATEGORY_PARAMETER, FUSE_CATEGORY_OPTIMIZER_STATE, FUSE_CATEGORY_DATA,
    FUSE_CATEGORY_GRADIENT,  FUSE_CATEGORY_ACTIVATION,      FUSE_CATEGORY_WORKSPACE};

const char *fuse_category_title(enum fuse_category category)
{
    static const char *const titles[FUSE_CATEGORY_COUNT] = {"parameters",  "gradients", "optimizer state",
                                                            "activations", "workspace", "data"};
    return titles[category];
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

void fuse_xml_add(struct fuse_text *text, const char *string)
{
    for (const char *at = string; *at != '\0'; at++) {
        if (*at == '<')
            fuse_text_add(text, "&lt;");
        else if (*at == '>')
            fuse_text_add(text, "&gt;");
        else if (*at == '&')
            fuse_text_add(text, "&amp;");
        else if (*at == '"')
            fuse_text_add(text, "&quot;");
        else if ((unsigned char)*at >= 0x20 || *at == '\t' || *at == '\n')
            fuse_text_add_bytes(text, at, 1);
    }
}

void fuse_chart_begin(const struct fuse_chart_look *look, const char *kind, const char *title, const char *description,
                      struct fuse_text *text)
{
    fuse_text_addf(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart-svg %s %s %s\"", kind,
                   look->is_passing ? "passing"
                   : look->by_time  ? "by-time"
                                    : "by-operation",
                   look->width < 600 ? "narrow" : "wide");
    if (look->is_standalone)
        fuse_text_addf(text, " width=\"%d\" height=\"%d\"", look->width, look->height);
    fuse_text_addf(text, " viewBox=\"0 0 %d %d\" role=\"img\">\n<title>", look->width, look->height);
    fuse_xml_add(text, title);
    fuse_text_add(text, "</title>\n<desc>");
    fuse_xml_add(text, description);
    fuse_text_add(text, "</desc>\n");
    if (look->is_standalone) {
        fuse_text_add(text, "<style>\n");
        fuse_text_add(text, fuse_page_chart_css);
        fuse_text_addf(text, "</style>\n<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n", look->width,
                       look->height);
    }
}

double fuse_chart_step(double range, int lines)
{
    static const double factors[] = {1, 2, 2.5, 5, 10};
    const double rough = range / lines;
    const double power = rough > 0 ? pow(10, floor(log10(rough))) : 1;
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++)
        if (factors[i] * power >= rough * (1 - 1e-9))
            return factors[i] * power;
    return 10 * power;
}

double fuse_chart_y(const struct fuse_chart_frame *frame, double value)
{
    return frame->bottom - (value - frame->min) / (frame->max - frame->min) * (frame->bottom - frame->top);
}

/* All ticks in the unit of the greatest, with no more digits than the step needs. */
void fuse_chart_bytes_axis(struct fuse_chart_frame *frame, uint64_t max_bytes, struct fuse_text *text)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    const double step = fuse_chart_step((double)max_bytes * 1.04, 5);
    frame->min = 0;
    frame->max = fmax((double)max_bytes * 1.04, 1);
    size_t unit = 0;
    double scale = 1;
    for (; (double)max_bytes / scale >= 1000 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        scale *= 1000;
    int digits = 0;
    for (double left = step / scale; digits < 3 && fabs(left - floor(left + 0.5)) > 1e-6; left *= 10)
        digits++;
    for (int i = 0; i < 20 && step * i <= frame->max; i++) {
        const double y = fuse_chart_y(frame, step * i);
        fuse_text_addf(text, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", frame->left,
                       frame->right, y, y);
        fuse_text_addf(text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.*f %s</text>\n", frame->left - 6, y + 4,
                       digits, step * i / scale, units[unit]);
    }
}

double fuse_chart_text_width(const char *string)
{
    size_t letters = 0;
    for (const char *at = string; *at != '\0'; at++)
        letters += ((unsigned char)*at & 0xc0) != 0x80;
    return 6.7 * (double)letters;
}

void fuse_chart_band(double x0, double x1, double y, enum fuse_phase phase, struct fuse_text *text)
{
    static const char *const names[FUSE_PHASE_COUNT][3] = {
        {"forward", "fwd", "F"}, {"backward", "bwd", "B"}, {"optimizer", "opt", "O"}};
    fuse_text_addf(text, "<rect class=\"p%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"16\"/>", (int)phase, x0, y,
                   x1 - x0);
    for (int i = 0; i < 3; i++)
        if (fuse_chart_text_width(names[phase][i]) + 4 <= x1 - x0) {
            fuse_text_addf(text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>", (x0 + x1) / 2, y + 12,
                           names[phase][i]);
            break;
        }
    fuse_text_add(text, "\n");
}

void fuse_chart_line_style(size_t index, size_t count, struct fuse_text *text)
{
    static const char *const dashes[] = {"", "9 4", "2.5 3", "9 3 2.5 3", "14 5", "5 2"};
    const double width = 2.4 + (count > 1 ? 2.2 * (double)(count - 1 - index) / (double)(count - 1) : 0);
    fuse_text_addf(text, "class=\"line s%zu\" stroke-width=\"%.1f\"", index % FUSE_CHART_COLORS, width);
    if (index % FUSE_CHART_COLORS > 0)
        fuse_text_addf(text, " stroke-dasharray=\"%s\"", dashes[index % FUSE_CHART_COLORS]);
}

/* ---- where operations stand on the axis -------------------------------------------------------------------------- */

/* Neighbouring operations of one run and phase. */
struct segment {
    size_t run, first, count;
    enum fuse_phase phase;
    double weight, x0, x1;
};

static size_t find_segments(const struct fuse_report *report, bool by_time, struct segment *segments)
{
    size_t count = 0;
    for (size_t r = 0; r < report->run_count; r++) {
        const struct fuse_report_run *run = &report->runs[r];
        const struct fuse_report_pass *pass = &report->passes[run->pass];
        for (size_t i = 0; i < pass->count; i++) {
            if (i == 0 || pass->phases[i] != pass->phases[i - 1])
                segments[count++] = (struct segment){.run = r, .first = i, .phase = pass->phases[i]};
            struct segment *now = &segments[count - 1];
            now->count++;
            now->weight += by_time ? (double)(run->end_us[i] - (i == 0 ? run->begin_us : run->end_us[i - 1])) : 1;
        }
    }
    return count;
}

/* In proportion to their weights, but none so narrow that it cannot be seen: in mode foreach the whole optimizer is one
 * operation of hundreds. */
static void place_segments(struct segment *segments, size_t count, double left, double right)
{
    const double width = right - left;
    const double least = fmin(14, width / (2 * (double)count));
    double taken = 0;
    double weight = 0;
    for (size_t i = 0; i < count; i++) {
        segments[i].x1 = -1; /* a width, not yet fixed */
        weight += segments[i].weight;
    }
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        for (size_t i = 0; i < count; i++)
            if (segments[i].x1 < 0 && (weight <= 0 || segments[i].weight / weight * (width - taken) < least)) {
                segments[i].x1 = least;
                taken += least;
                weight -= segments[i].weight;
                has_changed = true;
            }
    }
    double x = left;
    for (size_t i = 0; i < count; i++) {
        const double own = segments[i].x1 >= 0 ? segments[i].x1 : segments[i].weight / weight * (width - taken);
        segments[i].x0 = x;
        x += own;
        segments[i].x1 = x;
    }
}

/* Where operation number k of a segment begins; k = count: where the last ends. */
static double place(const struct fuse_report *report, const struct segment *segment, size_t k, bool by_time)
{
    const struct fuse_report_run *run = &report->runs[segment->run];
    if (!by_time || segment->weight <= 0)
        return segment->x0 + (segment->x1 - segment->x0) * (double)k / (double)segment->count;
    const size_t index = segment->first + k;
    const int64_t begin_us = segment->first == 0 ? run->begin_us : run->end_us[segment->first - 1];
    const int64_t at_us = index == 0 ? run->begin_us : run->end_us[index - 1];
    return segment->x0 + (segment->x1 - segment->x0) * (double)(at_us - begin_us) / segment->weight;
}

/* ---- one run ------------------------------------------------------------------------------------------------------
 */

/* Half a pixel of the picture shows the greatest of what falls into it: no peak is lost. */
struct columns {
    const uint64_t (**live)[FUSE_CATEGORY_COUNT];
    uint64_t *total;
    size_t count;
};

static void fill_columns(const struct fuse_report *report, const struct segment *segments, size_t segment_count,
                         bool by_time, double left, struct columns *columns)
{
    for (size_t s = 0; s < segment_count; s++) {
        const struct segment *segment = &segments[s];
        const struct fuse_report_pass *pass = &report->passes[report->runs[segment->run].pass];
        for (size_t k = 0; k < segment->count; k++) {
            const size_t begin = (size_t)(2 * (place(report, segment, k, by_time) - left));
            const size_t end = (size_t)ceil(2 * (place(report, segment, k + 1, by_time) - left));
            for (size_t c = begin; c < columns->count && (c < end || c == begin); c++)
                if (columns->live[c] == NULL || pass->total[segment->first + k] > columns->total[c]) {
                    columns->live[c] = (const uint64_t(*)[FUSE_CATEGORY_COUNT]) & pass->live[segment->first + k];
                    columns->total[c] = pass->total[segment->first + k];
                }
        }
    }
}

/* From the top of the stack down, each area over the ones above it: one outline a category. */
static void add_areas(const struct columns *columns, const uint64_t base[FUSE_CATEGORY_COUNT],
                      const struct fuse_chart_frame *frame, struct fuse_text *text)
{
    for (int level = FUSE_CATEGORY_COUNT - 1; level >= 0; level--) {
        const enum fuse_category category = fuse_category_order[level];
        bool is_there = false;
        double before = -1;
        struct fuse_text path = {0};
        for (size_t c = 0; c < columns->count; c++) {
            uint64_t sum = 0;
            for (int i = 0; columns->live[c] != NULL && i <= level; i++)
                sum += (*columns->live[c])[fuse_category_order[i]] - base[fuse_category_order[i]];
            is_there = is_there || (columns->live[c] != NULL && (*columns->live[c])[category] > base[category]);
            const double y = floor(10 * fuse_chart_y(frame, (double)sum) + 0.5) / 10;
            if (y == before)
                continue;
            fuse_text_addf(&path, "H%.1fV%.1f", frame->left + (double)c / 2, y);
            before = y;
        }
        if (is_there)
            fuse_text_addf(text, "<path class=\"area c%d\" d=\"M%.1f %.1f%sH%.1fV%.1fZ\"/>\n", (int)category,
                           frame->left, frame->bottom, fuse_text_part(text, &path), frame->right, frame->bottom);
        fuse_text_free(&path);
    }
}

static void add_run_label(const struct fuse_report *report, size_t r, double x0, double x1, double y,
                          struct fuse_text *text)
{
    const struct fuse_report_run *run = &report->runs[r];
    char label[64];
    char shorter[32];
    if (report->passes[run->pass].is_training) {
        (void)snprintf(label, sizeof label, "update %" PRId64, run->update);
        (void)snprintf(shorter, sizeof shorter, "%" PRId64, run->update);
    } else {
        (void)snprintf(label, sizeof label, "evaluation");
        (void)snprintf(shorter, sizeof shorter, "eval");
    }
    const char *fitting = fuse_chart_text_width(label) <= x1 - x0     ? label
                          : fuse_chart_text_width(shorter) <= x1 - x0 ? shorter
                                                                      : NULL;
    if (fitting != NULL)
        fuse_text_addf(text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", (x0 + x1) / 2, y,
                       fitting);
}

static void add_axis(const struct fuse_report *report, const struct segment *segments, size_t count,
                     const struct fuse_chart_frame *frame, struct fuse_text *text)
{
    for (size_t s = 0; s < count;) {
        size_t end = s;
        for (; end < count && segments[end].run == segments[s].run; end++)
            fuse_chart_band(segments[end].x0, segments[end].x1, frame->bottom + 4, segments[end].phase, text);
        add_run_label(report, segments[s].run, segments[s].x0, segments[end - 1].x1, frame->bottom + 35, text);
        if (s > 0)
            fuse_text_addf(text, "<line class=\"between\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                           segments[s].x0, segments[s].x0, frame->top, frame->bottom + 38);
        s = end;
    }
    fuse_text_addf(text, "<line class=\"edge\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", frame->left,
                   frame->right, frame->bottom, frame->bottom);
}

static void add_peak(const struct fuse_report *report, const struct segment *segments, size_t count, bool by_time,
                     uint64_t base, const struct fuse_chart_frame *frame, struct fuse_text *text)
{
    char bytes[FUSE_DECIMAL_CHARS];
    char label[96];
    const struct fuse_report_pass *pass = &report->passes[report->runs[report->peak_run].pass];
    for (size_t s = 0; s < count; s++) {
        const struct segment *segment = &segments[s];
        if (segment->run != report->peak_run || report->peak_operation < segment->first ||
            report->peak_operation >= segment->first + segment->count)
            continue;
        const size_t k = report->peak_operation - segment->first;
        const double x = (place(report, segment, k, by_time) + place(report, segment, k + 1, by_time)) / 2;
        const uint64_t shown = pass->total[report->peak_operation] - base;
        const double y = fuse_chart_y(frame, (double)shown);
        (void)snprintf(label, sizeof label, "%s%s in %s", base > 0 ? "at the peak " : "peak ",
                       fuse_decimal_bytes(shown, bytes), fuse_phase_name(segment->phase));
        const double half = fuse_chart_text_width(label) / 2;
        const double middle = fmin(fmax(x, frame->left + half), frame->right - half);
        fuse_text_addf(text, "<line class=\"peak\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x,
                       frame->top - 8, frame->bottom);
        fuse_text_addf(text, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", x, y);
        fuse_text_addf(text, "<text class=\"strong\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", middle,
                       frame->top - 12, label);
    }
}

/* What hovering needs: run,first,count,x0,x1 of each segment, and the frame. */
static void add_places(const struct segment *segments, size_t count, const struct fuse_chart_frame *frame,
                       struct fuse_text *text)
{
    fuse_text_addf(text, "<g class=\"hover\" data-frame=\"%.1f,%.1f,%.1f,%.1f\" data-segments=\"", frame->left,
                   frame->top, frame->right, frame->bottom);
    for (size_t s = 0; s < count; s++)
        fuse_text_addf(text, "%s%zu,%zu,%zu,%.2f,%.2f", s > 0 ? ";" : "", segments[s].run, segments[s].first,
                       segments[s].count, segments[s].x0, segments[s].x1);
    fuse_text_add(text, "\"></g>\n");
}

/* Swatches with what each category had at the peak, in as many rows as they need. Returns the height. */
static double add_legend(const struct fuse_report *report, double left, double right, double y, struct fuse_text *text)
{
    char bytes[FUSE_DECIMAL_CHARS];
    char label[96];
    double x = left;
    double row = y;
    for (int level = 0; level < FUSE_CATEGORY_COUNT; level++) {
        const enum fuse_category category = fuse_category_order[level];
        if (report->peak_memory[category] == 0)
            continue;
        (void)snprintf(label, sizeof label, "%s %s", fuse_category_title(category),
                       fuse_decimal_bytes(report->peak_memory[category], bytes));
        const double width = fuse_chart_text_width(label) + 32;
        if (x > left && x + width > right) {
            x = left;
            row += 19;
        }
        fuse_text_addf(text, "<rect class=\"c%d\" x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\" rx=\"2\"/>",
                       (int)category, x, row - 10);
        fuse_text_addf(text, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 16, row, label);
        x += width;
    }
    return row + 10 - y;
}

void fuse_chart_memory(const struct fuse_report *report, const struct fuse_chart_look *look, struct fuse_text *text)
{
    size_t operations = 0;
    for (size_t r = 0; r < report->run_count; r++)
        operations += report->passes[report->runs[r].pass].count;
    struct fuse_chart_frame frame = {.left = look->width < 600 ? 58 : 66,
                                     .top = look->is_standalone ? 66 : 26,
                                     .right = look->width - 10,
                                     .bottom = look->height - (look->is_standalone ? 88 : 46)};
    struct segment *segments = calloc(operations + 1, sizeof *segments);
    struct columns columns = {.count = (size_t)(2 * (frame.right - frame.left))};
    columns.live = calloc(columns.count + 1, sizeof *columns.live);
    columns.total = calloc(columns.count + 1, sizeof *columns.total);
    struct fuse_text description = {0};
    struct fuse_text title = {0};
    if (segments == NULL || columns.live == NULL || columns.total == NULL) {
        text->failed = true;
        goto out;
    }
    const size_t count = find_segments(report, look->by_time, segments);
    place_segments(segments, count, frame.left, frame.right);
    fill_columns(report, segments, count, look->by_time, frame.left, &columns);
    fuse_report_add_peak(report, &description);
    fuse_text_addf(&title, "Memory of %s, ", report->name);
    fuse_report_add_mode(report, &title);
    if (title.failed || description.failed) {
        text->failed = true;
        goto out;
    }
    fuse_chart_begin(look, "memory", title.data, description.data, text);
    if (look->is_standalone) {
        fuse_text_addf(text, "<text class=\"title\" x=\"12\" y=\"24\">");
        fuse_xml_add(text, title.data);
        fuse_text_add(text, "</text>\n");
    }
    uint64_t base[FUSE_CATEGORY_COUNT] = {0};
    uint64_t base_sum = 0;
    for (int c = 0; c < FUSE_CATEGORY_COUNT && look->is_passing; c++) {
        base[c] = report->persistent[c];
        base_sum += base[c];
    }
    fuse_chart_bytes_axis(&frame, report->peak_bytes - base_sum, text);
    add_areas(&columns, base, &frame, text);
    add_axis(report, segments, count, &frame, text);
    add_peak(report, segments, count, look->by_time, base_sum, &frame, text);
    if (look->is_standalone)
        (void)add_legend(report, 12, look->width - 4, frame.bottom + 62, text);
    else
        add_places(segments, count, &frame, text);
    fuse_text_add(text, "</svg>\n");
out:
    free(segments);
    free(columns.live);
    free(columns.total);
    fuse_text_free(&description);
    fuse_text_free(&title);
}
