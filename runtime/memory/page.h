/* The pages: memory.html of one run, and the comparison of several. Each is one file that needs nothing else, works
 * without scripts (they add what hovering shows), and follows the reader's light or dark setting. */
#ifndef FUSE_MEMORY_PAGE_H
#define FUSE_MEMORY_PAGE_H

#include "memory/report.h"

void fuse_page_memory(const struct fuse_report *report, struct fuse_text *text);
void fuse_page_compare(struct fuse_report *const *reports, size_t count, struct fuse_text *text);

/* The files of page/, each with a NUL behind it (embed.py). */
extern const char fuse_page_chart_css[], fuse_page_page_css[], fuse_page_page_js[];

#endif
