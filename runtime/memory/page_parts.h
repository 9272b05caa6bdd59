/* What the pages share. */
#ifndef FUSE_MEMORY_PAGE_PARTS_H
#define FUSE_MEMORY_PAGE_PARTS_H

#include "base/text.h"

void fuse_page_begin(const char *title, struct fuse_text *text);
/* json: what the script reads. */
void fuse_page_end(const char *json, struct fuse_text *text);
/* A number with a title above it and a note below. */
void fuse_page_add_fact(const char *title, const char *value, const char *note, struct fuse_text *text);

#endif
