/* fuserun/dataset.h - how to write a data source.
 *
 * A dataset is a numbered list of samples, each an input (float32, a fixed shape) and a target (a class number, or
 * float32 values of a fixed shape). fuserun decides which samples make a batch and in which order; the dataset only
 * fills the batch's memory. */
#ifndef FUSERUN_DATASET_H
#define FUSERUN_DATASET_H

#include <fuserun/abi.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fuse_target_kind {
    FUSERUN_TARGET_CLASS = 1, /* one int64 a sample */
    FUSERUN_TARGET_VALUES = 2, /* float32, target_shape, a sample */
    FUSERUN_TARGET_NONE = 3
};

struct fuse_dataset_info {
    uint32_t struct_size;
    uint32_t target_kind;  /* enum fuse_target_kind */
    int64_t sample_count;  /* in an epoch */
    int64_t class_count;   /* FUSERUN_TARGET_CLASS: how many, or 0 where the files do not say */
    uint32_t input_rank;   /* without the batch dimension */
    uint32_t target_rank;
    int64_t input_shape[FUSERUN_MAX_DIMS];
    int64_t target_shape[FUSERUN_MAX_DIMS];
    uint64_t cache_bytes;  /* memory that the dataset wants for the whole run; the host provides it */
};

struct fuse_dataset_context {
    uint32_t struct_size;
    uint32_t for_evaluation; /* 1 when opened for [eval] */
    uint64_t seed;           /* run.seed */
    uint32_t target_wanted;  /* enum fuse_target_kind that the loss needs. A dataset that has either kind follows it; one
                              * that cannot says so in open() with the key "plugin". NONE: targets need not be there */
};

/* One batch to fill. */
struct fuse_batch {
    uint32_t struct_size;
    uint32_t reserved;
    const int64_t *indices; /* (count): which samples, each in [0, sample_count) */
    int64_t count;
    uint64_t ordinal;       /* of this batch in the run, from 0; generated data draws from it */
    float *inputs;          /* (count, input_shape...) to write */
    int64_t *classes;       /* (count) to write; NULL unless FUSERUN_TARGET_CLASS */
    float *values;          /* (count, target_shape...) to write; NULL unless FUSERUN_TARGET_VALUES */
};

struct fuse_dataset {
    uint32_t struct_size;

    /* Opens the files and checks their headers and sizes; reads no samples. Everything that can be found wrong without
     * reading the samples is an error here, with the key of the option that names the file. */
    int (*open)(const struct fuse_host *host, const struct fuse_options *options,
                const struct fuse_dataset_context *context, void **instance, struct fuse_error *error);
    void (*close)(void *instance);

    /* Fills *info (struct_size is set by the caller). */
    void (*describe)(const void *instance, struct fuse_dataset_info *info);

    /* Optional: hands over `cache`, cache_bytes long (NULL where that is 0), aligned to 64, owned by the host and valid until
     * close(); the dataset reads its samples into it. Called once, before the first read(), not by `fuserun check`. What
     * only the samples show (a .gz cut in its middle) is an error here, with the option's key again. */
    int (*load)(void *instance, void *cache, struct fuse_error *error);

    /* Fills one batch. [no-alloc] */
    int (*read)(void *instance, const struct fuse_batch *batch, struct fuse_error *error);
};

#ifdef __cplusplus
}
#endif
#endif
