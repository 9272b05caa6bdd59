/* A run's folder read back, for the pages and pictures that are made of it: memory.json and metrics.jsonl. */
#ifndef FUSE_MEMORY_REPORT_H
#define FUSE_MEMORY_REPORT_H

#include "base/text.h"
#include "memory/ledger.h"

#include <stdio.h>

struct fuse_report_pass {
    bool is_training;
    int64_t batch_size;
    size_t count;                          /* operations */
    const char **operations, **layers;     /* (count), borrowed */
    enum fuse_phase *phases;               /* (count) */
    uint64_t (*live)[FUSE_CATEGORY_COUNT]; /* (count), what is persistent included */
    uint64_t *total;                       /* (count) */
};
struct fuse_report_run {
    size_t pass;
    int64_t update;
    int64_t begin_us;
    int64_t *end_us; /* (count of its pass) */
};
/* A buffer of the listed ones; pass SIZE_MAX: lives through the whole run. */
struct fuse_report_buffer {
    const char *name; /* borrowed */
    enum fuse_category category;
    uint64_t bytes;
    size_t pass, first, last;
};

/* metrics.jsonl, thinned out if it is long. */
#define FUSE_REPORT_LINES 4096
struct fuse_report_metrics {
    int64_t *steps;
    double *losses; /* NaN: not finite */
    double *step_s;
    size_t count;
    double median_step_s, last_loss;
    double last_evaluation_loss, last_accuracy; /* NaN: none */
    int64_t last_step;
};

/* Texts are borrowed from what was read; "" where the file does not say. */
struct fuse_report {
    char *folder;
    void *json; /* keeps the texts alive */
    const char *name, *model, *preset, *optimizer, *mode, *recompute, *loss, *device, *version;
    int64_t batch_size, updates, parameters;
    uint64_t trainable_bytes;
    uint64_t peak_bytes, peak_memory[FUSE_CATEGORY_COUNT];
    enum fuse_phase peak_phase;
    uint64_t persistent[FUSE_CATEGORY_COUNT]; /* alive throughout */
    uint64_t rss_base_bytes, rss_peak_bytes;
    struct fuse_report_pass *passes;
    size_t pass_count;
    struct fuse_report_run *runs;
    size_t run_count;
    struct fuse_report_buffer *buffers;
    size_t buffer_count;
    size_t buffer_counts[FUSE_CATEGORY_COUNT]; /* all of them, listed or not */
    size_t peak_run, peak_operation;           /* where the peak is reached first */
    struct fuse_report_metrics metrics;
};

/* What is missing or damaged is an error that names the file. */
int fuse_report_open(const char *folder, struct fuse_report **report, struct fuse_error *error);
/* From open files; metrics must be one that can be rewound. `folder` is what messages call it. */
int fuse_report_read(const char *folder, FILE *json, FILE *metrics, struct fuse_report **report,
                     struct fuse_error *error);
void fuse_report_free(struct fuse_report **report);

/* memory.html of a run's folder, from the files that lie there. */
int fuse_report_write(const char *folder, struct fuse_error *error);

/* By how much the process's resident memory grew. */
uint64_t fuse_report_growth(const struct fuse_report *report);

/* "fused", "fused + recompute": the mode as people call it. */
void fuse_report_add_mode(const struct fuse_report *report, struct fuse_text *text);

/* The peak in words: how much, when, at what. */
void fuse_report_add_peak(const struct fuse_report *report, struct fuse_text *text);
/* "1,234,567". */
void fuse_report_add_count(uint64_t count, struct fuse_text *text);

/* "3.90 GB": three digits, in decimal units as in the tables of the documentation. */
#define FUSE_DECIMAL_CHARS 32
const char *fuse_decimal_bytes(uint64_t bytes, char buffer[FUSE_DECIMAL_CHARS]);
/* "2.31 s", "0.104 ms". */
const char *fuse_seconds_show(double seconds, char buffer[FUSE_DECIMAL_CHARS]);

#endif
