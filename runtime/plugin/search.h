/* The folders in which plugins are looked for, in order (internal to plugin/). */
#ifndef FUSE_PLUGIN_SEARCH_H
#define FUSE_PLUGIN_SEARCH_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

/* A growing list of texts that it owns. */
struct fuse_text_list {
    char **items;
    size_t count;
};
/* Takes over `text`; NULL counts as out of memory. */
int fuse_text_list_add(struct fuse_text_list *list, char *text, struct fuse_error *error);
void fuse_text_list_free(struct fuse_text_list *list);
void fuse_text_list_sort(struct fuse_text_list *list);

struct fuse_folder {
    char *path; /* absolute */
    dev_t device;
    ino_t inode;
    uint32_t kind;    /* of the plugins it is meant for, enum fuse_kind; 0: any */
    bool is_standard; /* comes with fuserun: the source tree's, the build's, the installation's */
    bool is_ours;     /* and holds nothing but what the build put there */
};

/* Existing folders only, each once, at its first place. */
struct fuse_search {
    struct fuse_folder *folders;
    size_t count;
};

/* See fuse_registry_new(). What is wrong with single folders goes to notices. */
int fuse_search_init(struct fuse_search *search, const char *const *first, size_t first_count,
                     const char *config_folder, struct fuse_text_list *notices, struct fuse_error *error);
void fuse_search_free(struct fuse_search *search);

/* The folder of the path that holds `file`, or NULL. */
const struct fuse_folder *fuse_search_folder_of(const struct fuse_search *search, const char *file);

/* The stems of the *.so files in a folder, sorted. */
int fuse_folder_stems(const struct fuse_folder *folder, struct fuse_text_list *stems, struct fuse_error *error);

#endif
