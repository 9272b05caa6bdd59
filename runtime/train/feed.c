#include "train/source.h"

#include "base/random.h"

#include <stdlib.h>

static int64_t order_length(const struct fuse_source *source)
{
    return source->is_shuffled ? source->info.sample_count : fuse_source_full_batch(source);
}

/* A dataset that has targets writes them whether the loss reads them or not. */
static uint64_t unused_target_bytes(const struct fuse_source *source, bool loss_reads_targets)
{
    if (loss_reads_targets || source->info.target_kind == FUSERUN_TARGET_NONE)
        return 0;
    const uint64_t each = source->info.target_kind == FUSERUN_TARGET_CLASS
                              ? sizeof(int64_t)
                              : sizeof(float) * (uint64_t)fuse_source_target_elements(source);
    return each * (uint64_t)fuse_source_full_batch(source);
}

uint64_t fuse_feed_bytes(const struct fuse_source *source, bool loss_reads_targets)
{
    return (uint64_t)order_length(source) * sizeof(int64_t) + unused_target_bytes(source, loss_reads_targets);
}

int fuse_feed_new(struct fuse_source *source, uint64_t seed, bool loss_reads_targets, struct fuse_feed *feed,
                  struct fuse_error *error)
{
    *feed = (struct fuse_feed){.source = source, .seed = seed};
    const size_t count = (size_t)order_length(source);
    feed->order = count > SIZE_MAX / sizeof *feed->order ? NULL : malloc(count * sizeof *feed->order);
    if (feed->order == NULL)
        return fuse_fail_memory(error, "the order of the samples", count * sizeof *feed->order);
    const uint64_t bytes = unused_target_bytes(source, loss_reads_targets);
    if (bytes > 0) {
        feed->unused_targets = malloc(bytes);
        if (feed->unused_targets == NULL)
            return fuse_fail_memory(error, "a batch's targets", bytes);
    }
    return FUSERUN_OK;
}

void fuse_feed_free(struct fuse_feed *feed)
{
    free(feed->order);
    free(feed->unused_targets);
    *feed = (struct fuse_feed){0};
}

/* Uniform in [0, bound): the top of a 128-bit product, drawn again where that would favour some values (D. Lemire,
 * "Fast random integer generation in an interval", 2019). */
static uint64_t random_below(uint64_t seed, uint64_t stream, uint64_t *counter, uint64_t bound)
{
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)fuse_random_bits(seed, stream, (*counter)++) * bound;
    const uint64_t unfair = (0 - bound) % bound;
    while ((uint64_t)product < unfair)
        product = (wide)fuse_random_bits(seed, stream, (*counter)++) * bound;
    return (uint64_t)(product >> 64);
}

void fuse_feed_begin_epoch(struct fuse_feed *feed, int64_t epoch)
{
    feed->next = 0;
    if (!feed->source->is_shuffled)
        return;
    const int64_t count = feed->source->info.sample_count;
    const uint64_t stream = FUSE_STREAM_SHUFFLE + (uint64_t)epoch;
    uint64_t counter = 0;
    for (int64_t i = 0; i < count; i++)
        feed->order[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = (int64_t)random_below(feed->seed, stream, &counter, (uint64_t)i + 1);
        const int64_t kept = feed->order[i];
        feed->order[i] = feed->order[j];
        feed->order[j] = kept;
    }
}

int64_t fuse_feed_update(const struct fuse_feed *feed, int64_t most, int64_t *samples)
{
    const struct fuse_source *source = feed->source;
    const int64_t full = fuse_source_full_batch(source), left = source->info.sample_count - feed->next;
    const int64_t whole = left / full, batches = whole + (!source->drops_last && left % full > 0 ? 1 : 0);
    const int64_t count = batches < most ? batches : most;
    *samples = count > whole ? left : count * full;
    return count;
}

void fuse_feed_seek(struct fuse_feed *feed, int64_t epoch, int64_t batches)
{
    const int64_t count = feed->source->info.sample_count, full = fuse_source_full_batch(feed->source);
    fuse_feed_begin_epoch(feed, epoch);
    feed->next = batches < (count + full - 1) / full ? batches * full : count;
}

int64_t fuse_feed_batches(const struct fuse_feed *feed)
{
    const int64_t full = fuse_source_full_batch(feed->source);
    return (feed->next + full - 1) / full;
}

int64_t fuse_feed_next_size(const struct fuse_feed *feed)
{
    const int64_t left = feed->source->info.sample_count - feed->next;
    const int64_t full = fuse_source_full_batch(feed->source);
    if (left >= full)
        return full;
    return feed->source->drops_last ? 0 : left;
}

int fuse_feed_read(struct fuse_feed *feed, float *inputs, void *targets, const int64_t **indices,
                   struct fuse_error *error)
{
    const struct fuse_source *source = feed->source;
    const int64_t count = fuse_feed_next_size(feed);
    const int64_t *samples = feed->order + feed->next;
    if (!source->is_shuffled) {
        for (int64_t i = 0; i < count; i++)
            feed->order[i] = feed->next + i;
        samples = feed->order;
    }
    if (targets == NULL)
        targets = feed->unused_targets;
    const struct fuse_batch batch = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_batch, values),
        .indices = samples,
        .count = count,
        .ordinal = feed->ordinal,
        .inputs = inputs,
        .classes = source->info.target_kind == FUSERUN_TARGET_CLASS ? targets : NULL,
        .values = source->info.target_kind == FUSERUN_TARGET_VALUES ? targets : NULL,
    };
    const int status = source->dataset->read(source->instance, &batch, error);
    if (status != FUSERUN_OK)
        return fuse_fail_unsaid(error, status, "the dataset");
    feed->next += count;
    feed->ordinal++;
    *indices = samples;
    return FUSERUN_OK;
}
