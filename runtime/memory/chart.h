/* The pictures as SVG, for pages and by themselves. What they show is drawn to the pixel of the given size, text too,
 * so that a narrow picture stays readable. */
#ifndef FUSE_MEMORY_CHART_H
#define FUSE_MEMORY_CHART_H

#include "memory/report.h"

struct fuse_chart_look {
    int width, height;
    bool is_standalone; /* a file of its own: with title, legend, background and style */
    bool by_time;       /* the axis is time; else operations */
    bool is_passing;    /* only what comes and goes, without what lives through the run */
};

/* What is alive, by category, over the recorded runs of a report. */
void fuse_chart_memory(const struct fuse_report *report, const struct fuse_chart_look *look, struct fuse_text *text);

/* The sums of several runs over each other. Without by_time their phases are aligned. */
void fuse_chart_overlay(struct fuse_report *const *reports, size_t count, const struct fuse_chart_look *look,
                        struct fuse_text *text);
void fuse_chart_losses(struct fuse_report *const *reports, size_t count, const struct fuse_chart_look *look,
                       struct fuse_text *text);

/* ---- shared by the charts and the pages -------------------------------------------------------------------------- */

#define FUSE_CHART_SLOTS 3  /* passes of training that an overlay shows, from the first on */
#define FUSE_CHART_COLORS 6 /* of lines, before they repeat */

void fuse_xml_add(struct fuse_text *text, const char *string); /* as character data or an attribute's value */
const char *fuse_category_title(enum fuse_category category);  /* "optimizer state", for people */
extern const enum fuse_category fuse_category_order[FUSE_CATEGORY_COUNT]; /* from the bottom of a stack to its top */

struct fuse_chart_frame {
    double left, top, right, bottom;
    double min, max; /* of the vertical axis */
};
void fuse_chart_begin(const struct fuse_chart_look *look, const char *kind, const char *title, const char *description,
                      struct fuse_text *text);
/* Horizontal lines with bytes at the left, from 0; sets frame->min and max. */
void fuse_chart_bytes_axis(struct fuse_chart_frame *frame, uint64_t max_bytes, struct fuse_text *text);
double fuse_chart_y(const struct fuse_chart_frame *frame, double value);
/* The smallest of 1, 2, 2.5, 5 times a power of ten of which at most `lines` fit into `range`. */
double fuse_chart_step(double range, int lines);
/* Text of about this many pixels. */
double fuse_chart_text_width(const char *string);
void fuse_chart_band(double x0, double x1, double y, enum fuse_phase phase, struct fuse_text *text);
/* A dash pattern and a width for line number `index` of `count`: equal lines stay visible under each other. */
void fuse_chart_line_style(size_t index, size_t count, struct fuse_text *text);

#endif
