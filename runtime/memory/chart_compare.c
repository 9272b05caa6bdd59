/* Several runs over each other. */
#include "memory/chart.h"

#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the legend ----------------------------------------------------------------------------------------------------
 */

static void add_legend(struct fuse_report *const *reports, size_t count, double x, double y, struct fuse_text *text)
{
    char bytes[FUSE_DECIMAL_CHARS];
    for (size_t i = 0; i < count; i++, y += 19) {
        fuse_text_add(text, "<path ");
        fuse_chart_line_style(i, count, text);
        fuse_text_addf(text, " d=\"M%.1f %.1fh30\"/><text x=\"%.1f\" y=\"%.1f\">", x, y - 4, x + 38, y);
        fuse_xml_add(text, reports[i]->name);
        fuse_text_add(text, " (");
        struct fuse_text mode = {0};
        fuse_report_add_mode(reports[i], &mode);
        fuse_xml_add(text, fuse_text_part(text, &mode));
        fuse_text_free(&mode);
        fuse_text_addf(text, "): peak %s in %s</text>\n", fuse_decimal_bytes(reports[i]->peak_bytes, bytes),
                       fuse_phase_name(reports[i]->peak_phase));
    }
}

/* ---- memory --------------------------------------------------------------------------------------------------------
 */

/* The axis that all runs share: as many slots as the longest has, each with a band for each phase that any run has. */
struct axis {
    size_t slot_count;
    double slot_width;
    double band_x[FUSE_PHASE_COUNT], band_width[FUSE_PHASE_COUNT]; /* within a slot; width 0: no run has it */
    double span_us;                                                /* by time: all of the longest */
};

/* The run that fills a slot; NULL: it has none. */
static const struct fuse_report_run *run_of_slot(const struct fuse_report *report, size_t slot)
{
    for (size_t r = 0; r < report->run_count; r++)
        if (report->passes[report->runs[r].pass].is_training && slot-- == 0)
            return &report->runs[r];
    return NULL;
}

static const struct fuse_report_pass *pass_of(const struct fuse_report *report, const struct fuse_report_run *run)
{
    return &report->passes[run->pass];
}

static struct axis find_axis(struct fuse_report *const *reports, size_t count, double width)
{
    static const double shares[FUSE_PHASE_COUNT] = {0.3, 0.5, 0.2};
    struct axis axis = {0};
    double share = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t slot = 0; slot < FUSE_CHART_SLOTS; slot++) {
            const struct fuse_report_run *first = run_of_slot(reports[i], 0);
            const struct fuse_report_run *run = run_of_slot(reports[i], slot);
            if (run == NULL)
                break;
            const struct fuse_report_pass *pass = pass_of(reports[i], run);
            axis.slot_count = slot + 1 > axis.slot_count ? slot + 1 : axis.slot_count;
            axis.span_us = fmax(axis.span_us, (double)(run->end_us[pass->count - 1] - first->begin_us));
            for (size_t k = 0; k < pass->count; k++)
                axis.band_width[pass->phases[k]] = shares[pass->phases[k]];
        }
    axis.slot_width = width / (double)(axis.slot_count > 0 ? axis.slot_count : 1);
    for (int phase = 0; phase < FUSE_PHASE_COUNT; phase++)
        share += axis.band_width[phase];
    double x = 0;
    for (int phase = 0; phase < FUSE_PHASE_COUNT && share > 0; phase++) {
        axis.band_x[phase] = x;
        axis.band_width[phase] *= axis.slot_width / share;
        x += axis.band_width[phase];
    }
    return axis;
}

/* Operations [first, end) of one phase. */
static size_t phase_end(const struct fuse_report_pass *pass, size_t first)
{
    size_t end = first + 1;
    while (end < pass->count && pass->phases[end] == pass->phases[first])
        end++;
    return end;
}

/* Phases of a pass that was cut by several of a kind share their band. */
static void phase_place(const struct fuse_report_pass *pass, size_t first, size_t end, double *from, double *to)
{
    size_t before = 0;
    size_t all = 0;
    for (size_t k = 0; k < pass->count; k++) {
        if (pass->phases[k] != pass->phases[first])
            continue;
        before += k < first;
        all++;
    }
    *from = (double)before / (double)all;
    *to = (double)(before + end - first) / (double)all;
}

/* Where the operations [first, end) of a slot's run stand. */
static void place(const struct fuse_report *report, const struct axis *axis, const struct fuse_chart_frame *frame,
                  bool by_time, size_t slot, size_t first, size_t end, double *x0, double *x1)
{
    const struct fuse_report_run *run = run_of_slot(report, slot);
    const struct fuse_report_pass *pass = pass_of(report, run);
    const int64_t origin_us = run_of_slot(report, 0)->begin_us;
    if (by_time) {
        const double scale = (frame->right - frame->left) / (axis->span_us > 0 ? axis->span_us : 1);
        const int64_t begin_us = first == 0 ? run->begin_us : run->end_us[first - 1];
        *x0 = frame->left + (double)(begin_us - origin_us) * scale;
        *x1 = frame->left + (double)(run->end_us[end - 1] - origin_us) * scale;
        return;
    }
    double from, to;
    phase_place(pass, first, end, &from, &to);
    const double begin = frame->left + (double)slot * axis->slot_width + axis->band_x[pass->phases[first]];
    *x0 = begin + from * axis->band_width[pass->phases[first]];
    *x1 = begin + to * axis->band_width[pass->phases[first]];
}

/* The outline: the greatest sum of each half pixel; a gap where the run has no such phase. */
static void add_line(const struct fuse_report *report, const struct axis *axis, const struct fuse_chart_frame *frame,
                     bool by_time, size_t index, size_t count, struct fuse_text *text)
{
    fuse_text_add(text, "<path ");
    fuse_chart_line_style(index, count, text);
    fuse_text_add(text, " d=\"");
    double end_x = -1;
    for (size_t slot = 0; slot < axis->slot_count && run_of_slot(report, slot) != NULL; slot++) {
        const struct fuse_report_run *run = run_of_slot(report, slot);
        const struct fuse_report_pass *pass = pass_of(report, run);
        for (size_t first = 0, end; first < pass->count; first = end) {
            double x0, x1;
            end = phase_end(pass, first);
            place(report, axis, frame, by_time, slot, first, end, &x0, &x1);
            const bool is_joined = fabs(x0 - end_x) < 2;
            size_t shown = SIZE_MAX;
            double before = -1;
            for (double column = floor(2 * x0) / 2; column < x1 || shown == SIZE_MAX; column += 0.5) {
                /* operations are looked at once: `shown` is the first not yet seen */
                const size_t from = shown == SIZE_MAX ? first : shown;
                uint64_t greatest = 0;
                size_t k = from;
                for (; k < end; k++) {
                    double k0, k1;
                    place(report, axis, frame, by_time, slot, k, k + 1, &k0, &k1);
                    if (k0 >= column + 0.5)
                        break;
                    greatest = pass->total[k] > greatest ? pass->total[k] : greatest;
                    if (k1 > column + 0.5)
                        break; /* it reaches into the next one */
                }
                shown = k < end ? k : end - 1;
                if (greatest == 0)
                    continue;
                const double y = floor(10 * fuse_chart_y(frame, (double)greatest) + 0.5) / 10;
                if (before < 0 && !is_joined)
                    fuse_text_addf(text, "M%.1f %.1f", x0, y);
                else if (y != before)
                    fuse_text_addf(text, "H%.1fV%.1f", fmax(column, x0), y);
                before = y;
            }
            fuse_text_addf(text, "H%.1f", x1);
            end_x = x1;
        }
    }
    fuse_text_add(text, "\"/>\n");
}

static void add_phases(struct fuse_report *const *reports, size_t count, const struct axis *axis,
                       const struct fuse_chart_frame *frame, struct fuse_text *text)
{
    for (size_t slot = 0; slot < axis->slot_count; slot++) {
        const double left = frame->left + (double)slot * axis->slot_width;
        const struct fuse_report_run *run = NULL;
        for (size_t i = 0; i < count && run == NULL; i++)
            run = run_of_slot(reports[i], slot);
        for (int phase = 0; phase < FUSE_PHASE_COUNT; phase++)
            if (axis->band_width[phase] > 0)
                fuse_chart_band(left + axis->band_x[phase], left + axis->band_x[phase] + axis->band_width[phase],
                                frame->bottom + 4, (enum fuse_phase)phase, text);
        if (run != NULL)
            fuse_text_addf(text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">update %" PRId64 "</text>\n",
                           left + axis->slot_width / 2, frame->bottom + 35, run->update);
        if (slot > 0)
            fuse_text_addf(text, "<line class=\"between\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", left,
                           left, frame->top, frame->bottom + 38);
    }
}

/* Of an axis, which has far fewer: a step that is lost in rounding, as of losses of 1e17, comes to no end. */
enum { MOST_TICKS = 20 };

static void add_number_axis(double left, double right, double min, double max, double bottom, int lines,
                            const char *unit, struct fuse_text *text)
{
    const double step = fuse_chart_step(max - min > 0 ? max - min : 1, lines);
    const double first = ceil(min / step - 1e-9) * step;
    for (int i = 0; i < MOST_TICKS && first + i * step <= max + step * 1e-6; i++) {
        const double value = first + i * step;
        const double x = left + (max > min ? (value - min) / (max - min) : 0) * (right - left);
        fuse_text_addf(text,
                       "<line class=\"edge\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                       "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.6g%s</text>\n",
                       x, x, bottom, bottom + 5, fmin(x, right - 8), bottom + 19, fabs(value) < step / 2 ? 0 : value,
                       unit);
    }
}

static void add_time_axis(const struct axis *axis, const struct fuse_chart_frame *frame, int lines,
                          struct fuse_text *text)
{
    const bool is_long = axis->span_us >= 2e6;
    const bool is_short = axis->span_us < 2e3;
    add_number_axis(frame->left, frame->right, 0,
                    axis->span_us / (is_long    ? 1e6
                                     : is_short ? 1
                                                : 1e3),
                    frame->bottom, lines,
                    is_long    ? " s"
                    : is_short ? " \u00b5s"
                               : " ms",
                    text);
}

/* What hovering needs: the runs' segments (slot,first,count,x0,x1), one run behind the other. */
static void add_places(struct fuse_report *const *reports, size_t count, const struct axis *axis,
                       const struct fuse_chart_frame *frame, bool by_time, struct fuse_text *text)
{
    fuse_text_addf(text, "<g class=\"hover\" data-frame=\"%.1f,%.1f,%.1f,%.1f\" data-segments=\"", frame->left,
                   frame->top, frame->right, frame->bottom);
    for (size_t i = 0; i < count; i++) {
        fuse_text_add(text, i > 0 ? "|" : "");
        for (size_t slot = 0; slot < axis->slot_count && run_of_slot(reports[i], slot) != NULL; slot++) {
            const struct fuse_report_pass *pass = pass_of(reports[i], run_of_slot(reports[i], slot));
            for (size_t first = 0, end; first < pass->count; first = end) {
                double x0, x1;
                end = phase_end(pass, first);
                place(reports[i], axis, frame, by_time, slot, first, end, &x0, &x1);
                fuse_text_addf(text, "%s%zu,%zu,%zu,%.2f,%.2f", slot + first > 0 ? ";" : "", slot, first, end - first,
                               x0, x1);
            }
        }
    }
    fuse_text_add(text, "\"></g>\n");
}

static void begin(const struct fuse_chart_look *look, const char *kind, const char *title, struct fuse_text *text)
{
    fuse_chart_begin(look, kind, title, title, text);
    if (look->is_standalone)
        fuse_text_addf(text, "<text class=\"title\" x=\"12\" y=\"24\">%s</text>\n", title);
}

void fuse_chart_overlay(struct fuse_report *const *reports, size_t count, const struct fuse_chart_look *look,
                        struct fuse_text *text)
{
    const double foot = look->is_standalone ? 56 + 19.0 * (double)count : 46;
    struct fuse_chart_frame frame = {.left = look->width < 600 ? 58 : 66,
                                     .top = look->is_standalone ? 44 : 10,
                                     .right = look->width - 10,
                                     .bottom = look->height - foot};
    const struct axis axis = find_axis(reports, count, frame.right - frame.left);
    uint64_t greatest = 0;
    for (size_t i = 0; i < count; i++)
        greatest = reports[i]->peak_bytes > greatest ? reports[i]->peak_bytes : greatest;
    begin(look, "overlay",
          look->by_time ? "Memory of training, run by run, over time" : "Memory of training, run by run", text);
    fuse_chart_bytes_axis(&frame, greatest, text);
    for (size_t i = 0; i < count; i++)
        add_line(reports[i], &axis, &frame, look->by_time, i, count, text);
    if (look->by_time)
        add_time_axis(&axis, &frame, look->width < 600 ? 4 : 8, text);
    else
        add_phases(reports, count, &axis, &frame, text);
    fuse_text_addf(text, "<line class=\"edge\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", frame.left,
                   frame.right, frame.bottom, frame.bottom);
    if (look->is_standalone)
        add_legend(reports, count, 14, frame.bottom + 62, text);
    else
        add_places(reports, count, &axis, &frame, look->by_time, text);
    fuse_text_add(text, "</svg>\n");
}

/* ---- losses --------------------------------------------------------------------------------------------------------
 */

static void add_loss_line(const struct fuse_report *report, const struct fuse_chart_frame *frame, double min_step,
                          double max_step, size_t index, size_t count, struct fuse_text *text)
{
    const struct fuse_report_metrics *metrics = &report->metrics;
    const double span = max_step > min_step ? max_step - min_step : 1;
    bool is_open = false;
    fuse_text_add(text, "<path ");
    fuse_chart_line_style(index, count, text);
    fuse_text_add(text, " d=\"");
    for (size_t i = 0; i < metrics->count; i++) {
        if (!fuse_number_is_finite(metrics->losses[i])) {
            is_open = false;
            continue;
        }
        const double x = frame->left + ((double)metrics->steps[i] - min_step) / span * (frame->right - frame->left);
        fuse_text_addf(text, "%c%.1f %.1f", is_open ? 'L' : 'M', x, fuse_chart_y(frame, metrics->losses[i]));
        if (!is_open && (i + 1 == metrics->count || !fuse_number_is_finite(metrics->losses[i + 1])))
            fuse_text_add(text, "h1.5"); /* a single point is seen too */
        is_open = true;
    }
    fuse_text_add(text, "\"/>\n");
}

void fuse_chart_losses(struct fuse_report *const *reports, size_t count, const struct fuse_chart_look *look,
                       struct fuse_text *text)
{
    struct fuse_chart_frame frame = {
        .left = look->width < 600 ? 58 : 66, .top = 10, .right = look->width - 10, .bottom = look->height - 28};
    double min_step = INFINITY;
    double max_step = -INFINITY;
    double min = INFINITY;
    double max = -INFINITY;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < reports[i]->metrics.count; k++) {
            const double loss = reports[i]->metrics.losses[k];
            min_step = fmin(min_step, (double)reports[i]->metrics.steps[k]);
            max_step = fmax(max_step, (double)reports[i]->metrics.steps[k]);
            if (!fuse_number_is_finite(loss))
                continue;
            min = fmin(min, loss);
            max = fmax(max, loss);
        }
    begin(look, "losses", "Loss by update", text);
    if (min <= max) {
        const double step = fuse_chart_step(max > min ? max - min : fmax(fabs(max), 1e-6), 4);
        frame.min = floor(min / step) * step;
        frame.max = fmax(ceil(max / step) * step, frame.min + step);
        for (int k = 0; k < MOST_TICKS && frame.min + k * step <= frame.max + step / 2; k++) {
            const double value = frame.min + k * step;
            const double y = fuse_chart_y(&frame, value);
            fuse_text_addf(text,
                           "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                           "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
                           frame.left, frame.right, y, y, frame.left - 6, y + 4, fabs(value) < step / 2 ? 0 : value);
        }
        for (size_t i = 0; i < count; i++)
            add_loss_line(reports[i], &frame, min_step, max_step, i, count, text);
        add_number_axis(frame.left, frame.right, min_step, max_step, frame.bottom,
                        (int)fmin(look->width < 600 ? 4 : 8, fmax(max_step - min_step, 1)), "", text);
    } else
        fuse_text_addf(text, "<text x=\"%.1f\" y=\"%.1f\">no finite loss</text>\n", frame.left, frame.top + 20);
    fuse_text_add(text, "</svg>\n");
}
