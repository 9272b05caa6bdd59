#include "memory/timeline.h"

#include "base/now.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LISTED_BUFFERS 12 /* the biggest of each category */

struct fuse_timeline {
    size_t pass_count;
    size_t *operation_counts;
    bool *is_training;
    uint64_t *run_counts; /* all runs of a pass, recorded or not */
    uint64_t *recorded;
    struct fuse_timeline_run runs[FUSE_TIMELINE_RUNS];
    size_t run_count;
    int64_t *end_ns; /* room for `capacity` operations, of which `used` are taken */
    size_t capacity, used;
    size_t kept; /* of the capacity, for passes that have not run yet */
    int64_t monotonic_ns, real_ns;
};

/* ---- recording --------------------------------------------------------------------------------------------------- */

int fuse_timeline_new(const size_t *operation_counts, const bool *is_training, size_t pass_count,
                      struct fuse_timeline **timeline, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_timeline *made = calloc(1, sizeof *made);
    if (made == NULL)
        return fuse_fail_memory(error, "the memory timeline", sizeof *made);
    made->pass_count = pass_count;
    for (size_t i = 0; i < pass_count; i++)
        made->kept += operation_counts[i];
    made->capacity = FUSE_TIMELINE_OPERATIONS + made->kept;
    made->operation_counts = malloc((pass_count + 1) * sizeof *made->operation_counts);
    made->is_training = malloc((pass_count + 1) * sizeof *made->is_training);
    made->run_counts = calloc(pass_count + 1, sizeof *made->run_counts);
    made->recorded = calloc(pass_count + 1, sizeof *made->recorded);
    made->end_ns = malloc(made->capacity * sizeof *made->end_ns); /* untouched pages cost nothing */
    if (made->operation_counts == NULL || made->is_training == NULL || made->run_counts == NULL ||
        made->recorded == NULL || made->end_ns == NULL) {
        status = fuse_fail_memory(error, "the memory timeline", made->capacity * sizeof *made->end_ns);
        goto out;
    }
    memcpy(made->operation_counts, operation_counts, pass_count * sizeof *operation_counts);
    memcpy(made->is_training, is_training, pass_count * sizeof *is_training);
    struct timespec real;
    (void)clock_gettime(CLOCK_REALTIME, &real);
    made->real_ns = (int64_t)real.tv_sec * 1000000000 + real.tv_nsec;
    made->monotonic_ns = fuse_now_ns();
    *timeline = made;
    made = NULL;
out:
    fuse_timeline_free(&made);
    return status;
}

void fuse_timeline_free(struct fuse_timeline **timeline)
{
    struct fuse_timeline *freed = *timeline;
    if (freed == NULL)
        return;
    free(freed->operation_counts);
    free(freed->is_training);
    free(freed->run_counts);
    free(freed->recorded);
    free(freed->end_ns);
    free(freed);
    *timeline = NULL;
}

void fuse_timeline_begin(struct fuse_timeline *timeline, struct fuse_ledger *ledger, uint32_t pass, int64_t update)
{
    const size_t count = timeline->operation_counts[pass];
    const bool is_first = timeline->run_counts[pass]++ == 0;
    const size_t kept = timeline->kept - (is_first ? count : 0);
    if (is_first)
        timeline->kept = kept;
    /* Passes that have not run yet keep their room, in operations and in runs. */
    const bool has_room = timeline->used + count + kept <= timeline->capacity &&
                          timeline->run_count + (is_first ? 0 : timeline->pass_count) < FUSE_TIMELINE_RUNS;
    if (!has_room || (!is_first && (!timeline->is_training[pass] || update > FUSE_TIMELINE_UPDATES)))
        return;
    int64_t *end_ns = timeline->end_ns + timeline->used;
    timeline->runs[timeline->run_count++] =
        (struct fuse_timeline_run){.pass = pass, .update = update, .begin_ns = fuse_now_ns(), .end_ns = end_ns};
    timeline->used += count;
    timeline->recorded[pass]++;
    fuse_ledger_time(ledger, end_ns);
}

size_t fuse_timeline_run_count(const struct fuse_timeline *timeline)
{
    return timeline->run_count;
}

const struct fuse_timeline_run *fuse_timeline_run(const struct fuse_timeline *timeline, size_t index)
{
    return &timeline->runs[index];
}

uint64_t fuse_timeline_left_out(const struct fuse_timeline *timeline, uint32_t pass)
{
    return timeline->run_counts[pass] - timeline->recorded[pass];
}

int64_t fuse_timeline_start_real_ns(const struct fuse_timeline *timeline)
{
    return timeline->real_ns;
}

int64_t fuse_timeline_to_real_ns(const struct fuse_timeline *timeline, int64_t monotonic_ns)
{
    return timeline->real_ns + (monotonic_ns - timeline->monotonic_ns);
}

/* ---- what was alive ---------------------------------------------------------------------------------------------- */

void fuse_timeline_live(const struct fuse_description *description, uint32_t pass,
                        uint64_t (*live)[FUSE_CATEGORY_COUNT])
{
    const struct fuse_described_pass *described = &description->passes[pass];
    memset(live, 0, described->operation_count * sizeof *live);
    for (uint32_t b = 0; b < described->buffer_count; b++) {
        const struct fuse_described_buffer *buffer = &described->buffers[b];
        uint32_t first, last;
        if (!fuse_ledger_life(description->ledger, pass, b, &first, &last))
            continue;
        for (size_t time = first; time <= last && time < described->operation_count; time++)
            live[time][buffer->category] += buffer->bytes;
    }
}

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

/* Strings that repeat are written once and then meant by number. */
struct words {
    const char **words;
    size_t count, capacity;
    bool failed;
};

/* Neighbours mostly share their words: looking from the end is short. */
static size_t word_number(struct words *words, const char *word)
{
    for (size_t i = words->count; i-- > 0;)
        if (strcmp(words->words[i], word) == 0)
            return i;
    if (words->count == words->capacity) {
        const size_t wanted = words->capacity == 0 ? 64 : 2 * words->capacity;
        const char **grown = realloc(words->words, wanted * sizeof *grown);
        if (grown == NULL) {
            words->failed = true;
            return 0;
        }
        words->words = grown;
        words->capacity = wanted;
    }
    words->words[words->count] = word;
    return words->count++;
}

static void add_words(const struct words *words, const char *title, struct fuse_text *text)
{
    fuse_text_addf(text, "\"%s\":[", title);
    for (size_t i = 0; i < words->count; i++) {
        fuse_text_add(text, i > 0 ? "," : "");
        fuse_text_add_json(text, words->words[i]);
    }
    fuse_text_add(text, "]");
}

static int add_pass(const struct fuse_description *description, uint32_t pass, struct words *operations,
                    struct words *layers, struct fuse_text *text, struct fuse_error *error)
{
    const struct fuse_described_pass *described = &description->passes[pass];
    const size_t count = described->operation_count;
    uint64_t(*live)[FUSE_CATEGORY_COUNT] = malloc((count + 1) * sizeof *live);
    if (live == NULL)
        return fuse_fail_memory(error, "the memory timeline", (count + 1) * sizeof *live);
    fuse_timeline_live(description, pass, live);
    fuse_text_addf(text, "%s\n{\"purpose\":\"%s\",\"batch_size\":%" PRId64 ",\"operation\":[", pass > 0 ? "," : "",
                   described->is_training ? "training" : "evaluation", described->batch_size);
    for (size_t i = 0; i < count; i++)
        fuse_text_addf(text, "%s%zu", i > 0 ? "," : "", word_number(operations, described->operations[i].operation));
    fuse_text_add(text, "],\n\"layer\":[");
    for (size_t i = 0; i < count; i++)
        fuse_text_addf(text, "%s%zu", i > 0 ? "," : "", word_number(layers, described->operations[i].layer));
    fuse_text_add(text, "],\n\"phase\":[");
    for (size_t i = 0; i < count; i++)
        fuse_text_addf(text, "%s%d", i > 0 ? "," : "", (int)described->operations[i].phase);
    fuse_text_add(text, "],\n\"bytes\":[");
    for (int category = 0; category < FUSE_CATEGORY_COUNT; category++) {
        fuse_text_add(text, category > 0 ? ",\n[" : "[");
        for (size_t i = 0; i < count; i++)
            fuse_text_addf(text, "%s%" PRIu64, i > 0 ? "," : "", live[i][category]);
        fuse_text_add(text, "]");
    }
    fuse_text_add(text, "]}");
    free(live);
    return FUSERUN_OK;
}

static void add_run(const struct fuse_description *description, size_t index, struct fuse_text *text)
{
    const struct fuse_timeline *timeline = description->timeline;
    const struct fuse_timeline_run *run = &timeline->runs[index];
    const int64_t origin_ns = timeline->runs[0].begin_ns;
    fuse_text_addf(text, "%s\n{\"pass\":%" PRIu32 ",\"update\":%" PRId64 ",\"begin_us\":%" PRId64 ",\"end_us\":[",
                   index > 0 ? "," : "", run->pass, run->update, (run->begin_ns - origin_ns) / 1000);
    for (size_t i = 0; i < description->passes[run->pass].operation_count; i++)
        fuse_text_addf(text, "%s%" PRId64, i > 0 ? "," : "", (run->end_ns[i] - origin_ns) / 1000);
    fuse_text_add(text, "]}");
}

/* A buffer and where it lives: pass UINT32_MAX: everywhere. */
struct listed {
    const struct fuse_described_buffer *buffer;
    uint32_t pass, first, last;
};

static int compare_listed(const void *a, const void *b)
{
    const struct listed *x = a;
    const struct listed *y = b;
    if (x->buffer->category != y->buffer->category)
        return x->buffer->category < y->buffer->category ? -1 : 1;
    if (x->buffer->bytes != y->buffer->bytes)
        return x->buffer->bytes > y->buffer->bytes ? -1 : 1;
    if (x->pass != y->pass)
        return x->pass < y->pass ? -1 : 1;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : strcmp(x->buffer->name, y->buffer->name);
}

static void add_listed(const struct fuse_description *description, const struct listed *listed, struct fuse_text *text)
{
    fuse_text_add(text, "{\"name\":");
    fuse_text_add_json(text, listed->buffer->name);
    fuse_text_addf(text, ",\"category\":\"%s\",\"bytes\":%" PRIu64, fuse_category_name(listed->buffer->category),
                   listed->buffer->bytes);
    if (listed->pass != UINT32_MAX)
        fuse_text_addf(text, ",\"pass\":%" PRIu32 ",\"first\":%" PRIu32 ",\"last\":%" PRIu32 ",\"phase\":\"%s\"",
                       listed->pass, listed->first, listed->last,
                       fuse_phase_name(description->passes[listed->pass].operations[listed->first].phase));
    fuse_text_add(text, "}");
}

/* How many buffers there are of each category, then the biggest. */
static int add_buffers(const struct fuse_description *description, struct fuse_text *text, struct fuse_error *error)
{
    size_t capacity = description->persistent_count;
    for (size_t p = 0; p < description->pass_count; p++)
        capacity += description->passes[p].buffer_count;
    struct listed *all = malloc((capacity + 1) * sizeof *all);
    if (all == NULL)
        return fuse_fail_memory(error, "the list of buffers", (capacity + 1) * sizeof *all);
    size_t count = 0;
    for (size_t i = 0; i < description->persistent_count; i++)
        all[count++] = (struct listed){&description->persistent[i], UINT32_MAX, 0, 0};
    for (uint32_t p = 0; p < description->pass_count; p++)
        for (uint32_t b = 0; b < description->passes[p].buffer_count; b++) {
            struct listed *added = &all[count];
            *added = (struct listed){.buffer = &description->passes[p].buffers[b], .pass = p};
            if (added->buffer->bytes > 0 && fuse_ledger_life(description->ledger, p, b, &added->first, &added->last))
                count++;
        }
    qsort(all, count, sizeof *all, compare_listed);
    size_t counts[FUSE_CATEGORY_COUNT] = {0};
    for (size_t i = 0; i < count; i++)
        counts[all[i].buffer->category]++;
    fuse_text_add(text, "\"buffer_counts\":[");
    for (int category = 0; category < FUSE_CATEGORY_COUNT; category++)
        fuse_text_addf(text, "%s%zu", category > 0 ? "," : "", counts[category]);
    fuse_text_add(text, "],\n\"buffers\":[");
    size_t listed[FUSE_CATEGORY_COUNT] = {0};
    bool is_first = true;
    for (size_t i = 0; i < count; i++) {
        if (listed[all[i].buffer->category]++ >= LISTED_BUFFERS)
            continue;
        fuse_text_add(text, is_first ? "\n" : ",\n");
        is_first = false;
        add_listed(description, &all[i], text);
    }
    fuse_text_add(text, "]");
    free(all);
    return FUSERUN_OK;
}

int fuse_timeline_add_json(const struct fuse_description *description, struct fuse_text *text, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct words operations = {0};
    struct words layers = {0};
    const uint64_t *persistent = fuse_ledger_persistent(description->ledger);
    fuse_text_add(text, "\"timeline\":{\"categories\":[");
    for (int i = 0; i < FUSE_CATEGORY_COUNT; i++)
        fuse_text_addf(text, "%s\"%s\"", i > 0 ? "," : "", fuse_category_name((enum fuse_category)i));
    fuse_text_add(text, "],\"phases\":[");
    for (int i = 0; i < FUSE_PHASE_COUNT; i++)
        fuse_text_addf(text, "%s\"%s\"", i > 0 ? "," : "", fuse_phase_name((enum fuse_phase)i));
    fuse_text_add(text, "],\"persistent\":[");
    for (int i = 0; i < FUSE_CATEGORY_COUNT; i++)
        fuse_text_addf(text, "%s%" PRIu64, i > 0 ? "," : "", persistent[i]);
    fuse_text_add(text, "],\n\"passes\":[");
    for (uint32_t p = 0; p < description->pass_count; p++)
        FUSE_TRY_OUT(add_pass(description, p, &operations, &layers, text, error));
    fuse_text_add(text, "],\n\"runs\":[");
    for (size_t r = 0; r < description->timeline->run_count; r++)
        add_run(description, r, text);
    fuse_text_add(text, "],\n");
    add_words(&operations, "operations", text);
    fuse_text_add(text, ",\n");
    add_words(&layers, "layers", text);
    fuse_text_add(text, "},\n");
    FUSE_TRY_OUT(add_buffers(description, text, error));
    if (operations.failed || layers.failed || text->failed)
        status = fuse_fail_memory(error, "the memory timeline", text->length);
out:
    free(operations.words);
    free(layers.words);
    return status;
}
