/* Names of one kind of difference, for one line of a message: "missing: a, b and 3 more". */
#ifndef FUSE_TRAIN_LISTING_H
#define FUSE_TRAIN_LISTING_H

#include "base/text.h"

/* Zero but for the title. */
struct fuse_listing {
    struct fuse_text text;
    const char *title;
    size_t count;
};

/* Counts one more and puts what stands before it. False: the line names enough, this one is only counted. */
bool fuse_listing_next(struct fuse_listing *listing);
/* Adds the whole to `into`, behind a semicolon if something stands there, and frees the listing. */
void fuse_listing_finish(struct fuse_listing *listing, struct fuse_text *into);

#endif
