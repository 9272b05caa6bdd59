#include "train/listing.h"

#define LISTED_NAMES 8 /* more only make the line unreadable */

bool fuse_listing_next(struct fuse_listing *listing)
{
    if (listing->count++ == 0)
        fuse_text_addf(&listing->text, "%s: ", listing->title);
    else if (listing->count <= LISTED_NAMES)
        fuse_text_add(&listing->text, ", ");
    return listing->count <= LISTED_NAMES;
}

void fuse_listing_finish(struct fuse_listing *listing, struct fuse_text *into)
{
    if (listing->count > LISTED_NAMES)
        fuse_text_addf(&listing->text, " and %zu more", listing->count - LISTED_NAMES);
    if (listing->count > 0) {
        fuse_text_add(into, into->length > 0 ? "; " : "");
        fuse_text_add_bytes(into, listing->text.data, listing->text.length);
    }
    into->failed = into->failed || listing->text.failed;
    fuse_text_free(&listing->text);
}
