/* The file's structure is that of torch/csrc/cuda/memory_snapshot.cpp. The viewer's own unpickler knows few opcodes
 * and its replay of the events few shapes, which is why all of the following holds:
 * protocol 2, only the opcodes below, APPENDS in batches, every integer under 2^53; one segment that is allocated first
 * and never freed, with blocks that tile it; free_requested always followed by free_completed; and one event of the
 * category 'unknown', without which the viewer stumbles over a misspelt word of its own. */
#include "memory/snapshot.h"

#include "base/align.h"
#include "files/output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BASE_ADDRESS 0x100000000u
#define HEADER_BYTES 512u
#define BATCH 1000 /* of one APPENDS: the viewer pushes them as arguments of one call */
#define FLUSH_BYTES 65536

/* ---- a pickler ------------------------------------------------------------------------------------------------- */

enum { NO_MEMO = 0 }; /* numbers in tables are one more than the memo's, so that zero means none */

struct pickler {
    struct fuse_output *output;
    struct fuse_text bytes;
    uint32_t memo_count;
    int status;
    struct fuse_error *error;
};

static void flush(struct pickler *pickler)
{
    if (pickler->status == FUSERUN_OK && pickler->bytes.failed)
        pickler->status = fuse_fail_memory(pickler->error, "the memory snapshot", pickler->bytes.length);
    if (pickler->status == FUSERUN_OK)
        pickler->status =
            fuse_output_write(pickler->output, pickler->bytes.data, pickler->bytes.length, pickler->error);
    fuse_text_clear(&pickler->bytes);
}

static void put(struct pickler *pickler, const void *bytes, size_t count)
{
    fuse_text_add_bytes(&pickler->bytes, bytes, count);
    if (pickler->bytes.length >= FLUSH_BYTES)
        flush(pickler);
}

static void put_code(struct pickler *pickler, char code)
{
    put(pickler, &code, 1);
}

static void put_u32(struct pickler *pickler, char code, uint32_t value)
{
    const unsigned char bytes[] = {(unsigned char)code, (unsigned char)value, (unsigned char)(value >> 8),
                                   (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
    put(pickler, bytes, sizeof bytes);
}

static void put_integer(struct pickler *pickler, uint64_t value)
{
    unsigned char bytes[10] = {'K', (unsigned char)value};
    if (value < 256) {
        put(pickler, bytes, 2);
    } else if (value < 65536) {
        bytes[0] = 'M';
        bytes[2] = (unsigned char)(value >> 8);
        put(pickler, bytes, 3);
    } else if (value <= INT32_MAX) {
        put_u32(pickler, 'J', (uint32_t)value);
    } else { /* LONG1: the fewest bytes whose highest bit, the sign, is clear */
        unsigned char count = 0;
        for (uint64_t rest = value; count < 8 && (count == 0 || rest != 0 || (bytes[1 + count] & 0x80) != 0);
             rest >>= 8)
            bytes[1 + ++count] = (unsigned char)rest;
        bytes[0] = 0x8a;
        bytes[1] = count;
        put(pickler, bytes, 2u + count);
    }
}

/* Remembers what stands on top; returns the number for get(). */
static uint32_t remember(struct pickler *pickler)
{
    const uint32_t number = pickler->memo_count++;
    const unsigned char bytes[] = {'q', (unsigned char)number};
    if (number < 256)
        put(pickler, bytes, 2);
    else
        put_u32(pickler, 'r', number);
    return number + 1;
}

static void get(struct pickler *pickler, uint32_t remembered)
{
    const uint32_t number = remembered - 1;
    const unsigned char bytes[] = {'h', (unsigned char)number};
    if (number < 256)
        put(pickler, bytes, 2);
    else
        put_u32(pickler, 'j', number);
}

static void put_text(struct pickler *pickler, const char *text)
{
    const size_t length = strlen(text);
    put_u32(pickler, 'X', (uint32_t)length);
    put(pickler, text, length);
}

/* A string that comes again: *remembered is its place in the memo, NO_MEMO at first. */
static void put_shared(struct pickler *pickler, const char *text, uint32_t *remembered)
{
    if (*remembered != NO_MEMO) {
        get(pickler, *remembered);
        return;
    }
    put_text(pickler, text);
    *remembered = remember(pickler);
}

/* ---- words that come again and again ------------------------------------------------------------------------- */

enum word {
    ACTION,
    ADDR,
    SIZE,
    STREAM,
    FRAMES,
    TIME_US,
    CATEGORY,
    USER_METADATA,
    FILENAME,
    LINE,
    NAME,
    ADDRESS,
    REQUESTED_SIZE,
    STATE,
    ALLOC,
    FREE_REQUESTED,
    FREE_COMPLETED,
    SEGMENT_ALLOC,
    ACTIVE,
    INACTIVE,
    UNKNOWN,
    WORD_COUNT
};
static const char *const words[WORD_COUNT] = {
    "action",           "addr",          "size",     "stream",         "frames",         "time_us",
    "category",         "user_metadata", "filename", "line",           "name",           "address",
    "requested_size",   "state",         "alloc",    "free_requested", "free_completed", "segment_alloc",
    "active_allocated", "inactive",      "unknown"};

struct writer {
    struct pickler pickler;
    const struct fuse_description *description;
    uint32_t words[WORD_COUNT];
    uint32_t categories[FUSE_CATEGORY_COUNT];
    uint32_t no_frames, allocate_frames;
    uint32_t **operation_frames; /* by pass and operation */
    uint32_t **buffer_names;     /* by pass and buffer */
    uint32_t *persistent_names;
    size_t batch; /* entries since the last APPENDS */
};

static void put_word(struct writer *writer, enum word word)
{
    put_shared(&writer->pickler, words[word], &writer->words[word]);
}

static void put_word_integer(struct writer *writer, enum word key, uint64_t value)
{
    put_word(writer, key);
    put_integer(&writer->pickler, value);
}

static void put_key_integer(struct pickler *pickler, const char *key, uint64_t value)
{
    put_text(pickler, key);
    put_integer(pickler, value);
}

static void put_frame(struct writer *writer, const char *file, uint64_t line, const char *name)
{
    put_code(&writer->pickler, '}');
    put_code(&writer->pickler, '(');
    put_word(writer, FILENAME);
    put_text(&writer->pickler, file);
    put_word_integer(writer, LINE, line);
    put_word(writer, NAME);
    put_text(&writer->pickler, name);
    put_code(&writer->pickler, 'u');
}

static void begin_list(struct pickler *pickler)
{
    put_code(pickler, ']');
    put_code(pickler, '(');
}

static void put_no_frames(struct writer *writer)
{
    if (writer->no_frames != NO_MEMO) {
        get(&writer->pickler, writer->no_frames);
        return;
    }
    put_code(&writer->pickler, ']');
    writer->no_frames = remember(&writer->pickler);
}

static void put_allocate_frames(struct writer *writer)
{
    const struct fuse_place *place = &writer->description->allocate_place;
    if (writer->allocate_frames != NO_MEMO) {
        get(&writer->pickler, writer->allocate_frames);
        return;
    }
    begin_list(&writer->pickler);
    put_frame(writer, "before update 1", 0, "allocate");
    put_frame(writer, place->file, (uint64_t)place->line, place->function);
    put_code(&writer->pickler, 'e');
    writer->allocate_frames = remember(&writer->pickler);
}

/* Innermost first: the operation in its layer, the phase, our function. */
static void put_operation_frames(struct writer *writer, uint32_t pass, uint32_t time)
{
    uint32_t *remembered = &writer->operation_frames[pass][time];
    const struct fuse_described_pass *described = &writer->description->passes[pass];
    const struct fuse_described_operation *operation = &described->operations[time];
    const struct fuse_place *place = &writer->description->run_place;
    if (*remembered != NO_MEMO) {
        get(&writer->pickler, *remembered);
        return;
    }
    begin_list(&writer->pickler);
    put_frame(writer, operation->layer, time, operation->operation);
    put_frame(writer, described->is_training ? "training" : "evaluation", (uint64_t)described->batch_size,
              fuse_phase_name(operation->phase));
    put_frame(writer, place->file, (uint64_t)place->line, place->function);
    put_code(&writer->pickler, 'e');
    *remembered = remember(&writer->pickler);
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

/* In front of an entry of the list that is open, and behind the last one. */
static void next_entry(struct writer *writer)
{
    if (writer->batch == BATCH) {
        put_code(&writer->pickler, 'e');
        put_code(&writer->pickler, '(');
        writer->batch = 0;
    }
    writer->batch++;
}

/* An event without its end, so that more keys may follow. Entries are changed when they are loaded: never shared. */
static void begin_event(struct writer *writer, enum word action, uint64_t address, uint64_t bytes, int64_t real_ns)
{
    next_entry(writer);
    put_code(&writer->pickler, '}');
    put_code(&writer->pickler, '(');
    put_word(writer, ACTION);
    put_word(writer, action);
    put_word_integer(writer, ADDR, address);
    put_word_integer(writer, SIZE, bytes);
    put_word_integer(writer, STREAM, 0);
    put_word_integer(writer, TIME_US, (uint64_t)real_ns / 1000);
    put_word(writer, FRAMES);
}

static void end_event(struct writer *writer)
{
    put_code(&writer->pickler, 'u');
}

static void put_category(struct writer *writer, enum fuse_category category)
{
    put_word(writer, CATEGORY);
    put_shared(&writer->pickler, fuse_category_name(category), &writer->categories[category]);
}

static uint64_t persistent_address(const struct fuse_described_buffer *buffer)
{
    return BASE_ADDRESS + HEADER_BYTES + buffer->offset;
}

static uint64_t arena_address(const struct fuse_description *description)
{
    return BASE_ADDRESS + HEADER_BYTES + fuse_aligned(description->persistent_bytes);
}

static uint64_t total_bytes(const struct fuse_description *description)
{
    return arena_address(description) + fuse_aligned(description->arena_bytes) - BASE_ADDRESS;
}

/* The segment, the header that carries the category 'unknown', and all that lives through the run. */
static void put_persistent(struct writer *writer)
{
    const struct fuse_description *description = writer->description;
    const int64_t begin_ns = fuse_timeline_start_real_ns(description->timeline);
    begin_event(writer, SEGMENT_ALLOC, BASE_ADDRESS, total_bytes(description), begin_ns);
    put_allocate_frames(writer);
    end_event(writer);
    begin_event(writer, ALLOC, BASE_ADDRESS, HEADER_BYTES, begin_ns);
    put_allocate_frames(writer);
    put_word(writer, CATEGORY);
    put_word(writer, UNKNOWN);
    put_word(writer, USER_METADATA);
    put_text(&writer->pickler, "the head of the segment, nobody's");
    end_event(writer);
    for (size_t i = 0; i < description->persistent_count; i++) {
        const struct fuse_described_buffer *buffer = &description->persistent[i];
        begin_event(writer, ALLOC, persistent_address(buffer), buffer->bytes, begin_ns);
        put_allocate_frames(writer);
        put_category(writer, buffer->category);
        put_word(writer, USER_METADATA);
        put_shared(&writer->pickler, buffer->name, &writer->persistent_names[i]);
        end_event(writer);
    }
}

static void put_alloc(struct writer *writer, uint32_t pass, uint32_t b, uint32_t time, int64_t real_ns)
{
    const struct fuse_described_pass *described = &writer->description->passes[pass];
    const struct fuse_described_buffer *buffer = &described->buffers[b];
    begin_event(writer, ALLOC, arena_address(writer->description) + buffer->offset, buffer->bytes, real_ns);
    put_operation_frames(writer, pass, time);
    put_category(writer, buffer->category);
    put_word(writer, USER_METADATA);
    uint32_t *remembered = &writer->buffer_names[pass][b];
    if (*remembered == NO_MEMO) {
        char *text = fuse_format("%s (%s)", buffer->name, fuse_phase_name(described->operations[time].phase));
        put_shared(&writer->pickler, text != NULL ? text : buffer->name, remembered);
        free(text);
    } else
        get(&writer->pickler, *remembered);
    end_event(writer);
}

/* The viewer makes one "free" of the two. */
static void put_free(struct writer *writer, uint32_t pass, uint32_t b, uint32_t time, int64_t real_ns)
{
    const struct fuse_described_buffer *buffer = &writer->description->passes[pass].buffers[b];
    const uint64_t address = arena_address(writer->description) + buffer->offset;
    for (int i = 0; i < 2; i++) {
        begin_event(writer, i == 0 ? FREE_REQUESTED : FREE_COMPLETED, address, buffer->bytes, real_ns);
        put_operation_frames(writer, pass, time);
        end_event(writer);
    }
}

/* Buffers of a pass that have a life, in the order in which they come (first) or go (last). */
struct life {
    uint32_t buffer, first, last;
};

static int compare_first(const void *a, const void *b)
{
    const struct life *x = a;
    const struct life *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (x->buffer < y->buffer ? -1 : 1);
}

static int compare_last(const void *a, const void *b)
{
    const struct life *x = a;
    const struct life *y = b;
    return x->last != y->last ? (x->last < y->last ? -1 : 1) : (x->buffer < y->buffer ? -1 : 1);
}

static size_t find_lives(const struct fuse_description *description, uint32_t pass, struct life *lives)
{
    size_t count = 0;
    for (uint32_t b = 0; b < description->passes[pass].buffer_count; b++) {
        struct life life = {.buffer = b};
        if (description->passes[pass].buffers[b].bytes > 0 &&
            fuse_ledger_life(description->ledger, pass, b, &life.first, &life.last))
            lives[count++] = life;
    }
    return count;
}

static int put_run(struct writer *writer, const struct fuse_timeline_run *run)
{
    const struct fuse_timeline *timeline = writer->description->timeline;
    const struct fuse_described_pass *described = &writer->description->passes[run->pass];
    struct life *come = calloc(2 * described->buffer_count + 1, sizeof *come);
    if (come == NULL)
        return fuse_fail_memory(writer->pickler.error, "the memory snapshot",
                                (2 * described->buffer_count + 1) * sizeof *come);
    const size_t count = find_lives(writer->description, run->pass, come);
    struct life *go = come + described->buffer_count;
    memcpy(go, come, count * sizeof *come);
    qsort(come, count, sizeof *come, compare_first);
    qsort(go, count, sizeof *go, compare_last);
    size_t came = 0;
    size_t gone = 0;
    for (uint32_t time = 0; time < described->operation_count; time++) {
        const int64_t before_ns = time == 0 ? run->begin_ns : run->end_ns[time - 1];
        for (; came < count && come[came].first == time; came++)
            put_alloc(writer, run->pass, come[came].buffer, time, fuse_timeline_to_real_ns(timeline, before_ns));
        for (; gone < count && go[gone].last == time; gone++)
            put_free(writer, run->pass, go[gone].buffer, time, fuse_timeline_to_real_ns(timeline, run->end_ns[time]));
    }
    free(come);
    return writer->pickler.status;
}

/* ---- the segment at the end ---------------------------------------------------------------------------------------
 */

static void put_block(struct writer *writer, uint64_t address, uint64_t bytes, bool is_live)
{
    next_entry(writer);
    put_code(&writer->pickler, '}');
    put_code(&writer->pickler, '(');
    put_word_integer(writer, ADDRESS, address);
    put_word_integer(writer, SIZE, bytes);
    put_word_integer(writer, REQUESTED_SIZE, bytes);
    put_word(writer, STATE);
    put_word(writer, is_live ? ACTIVE : INACTIVE);
    put_word(writer, FRAMES);
    if (is_live)
        put_allocate_frames(writer);
    else
        put_no_frames(writer);
    put_code(&writer->pickler, 'u');
}

static int compare_offsets(const void *a, const void *b)
{
    const struct fuse_described_buffer *x = *(const struct fuse_described_buffer *const *)a;
    const struct fuse_described_buffer *y = *(const struct fuse_described_buffer *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* What still lives when the run is over is what lived throughout; all between is free. */
static int put_blocks(struct writer *writer)
{
    const struct fuse_description *description = writer->description;
    const size_t count = description->persistent_count;
    const struct fuse_described_buffer **sorted = malloc((count + 1) * sizeof *sorted);
    if (sorted == NULL)
        return fuse_fail_memory(writer->pickler.error, "the memory snapshot", (count + 1) * sizeof *sorted);
    for (size_t i = 0; i < count; i++)
        sorted[i] = &description->persistent[i];
    qsort(sorted, count, sizeof *sorted, compare_offsets);
    put_block(writer, BASE_ADDRESS, HEADER_BYTES, true);
    uint64_t end = BASE_ADDRESS + HEADER_BYTES;
    for (size_t i = 0; i < count; i++) {
        const uint64_t address = persistent_address(sorted[i]);
        if (address > end)
            put_block(writer, end, address - end, false);
        put_block(writer, address, sorted[i]->bytes, true);
        end = address + sorted[i]->bytes;
    }
    if (BASE_ADDRESS + total_bytes(description) > end)
        put_block(writer, end, BASE_ADDRESS + total_bytes(description) - end, false);
    free(sorted);
    return FUSERUN_OK;
}

static uint64_t live_bytes(const struct fuse_description *description)
{
    uint64_t bytes = HEADER_BYTES;
    for (size_t i = 0; i < description->persistent_count; i++)
        bytes += description->persistent[i].bytes;
    return bytes;
}

static int put_segment(struct writer *writer)
{
    struct pickler *pickler = &writer->pickler;
    const struct fuse_description *description = writer->description;
    put_code(pickler, '}');
    put_code(pickler, '(');
    put_key_integer(pickler, "device", 0);
    put_word_integer(writer, ADDRESS, BASE_ADDRESS);
    put_key_integer(pickler, "total_size", total_bytes(description));
    put_key_integer(pickler, "allocated_size", live_bytes(description));
    put_key_integer(pickler, "active_size", live_bytes(description));
    put_word_integer(writer, REQUESTED_SIZE, live_bytes(description));
    put_word_integer(writer, STREAM, 0);
    put_text(pickler, "segment_type");
    put_text(pickler, "large");
    put_text(pickler, "segment_pool_id");
    put_integer(pickler, 0);
    put_integer(pickler, 0);
    put_code(pickler, (char)0x86); /* TUPLE2 */
    put_text(pickler, "is_expandable");
    put_code(pickler, (char)0x89); /* False */
    put_word(writer, FRAMES);
    put_allocate_frames(writer);
    put_text(pickler, "blocks");
    begin_list(pickler);
    writer->batch = 0;
    FUSE_TRY(put_blocks(writer));
    put_code(pickler, 'e');
    put_code(pickler, 'u');
    return FUSERUN_OK;
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static int new_tables(struct writer *writer)
{
    const struct fuse_description *description = writer->description;
    writer->operation_frames = calloc(description->pass_count + 1, sizeof *writer->operation_frames);
    writer->buffer_names = calloc(description->pass_count + 1, sizeof *writer->buffer_names);
    writer->persistent_names = calloc(description->persistent_count + 1, sizeof *writer->persistent_names);
    bool has_failed =
        writer->operation_frames == NULL || writer->buffer_names == NULL || writer->persistent_names == NULL;
    for (size_t p = 0; p < description->pass_count && !has_failed; p++) {
        writer->operation_frames[p] = calloc(description->passes[p].operation_count + 1, sizeof(uint32_t));
        writer->buffer_names[p] = calloc(description->passes[p].buffer_count + 1, sizeof(uint32_t));
        has_failed = writer->operation_frames[p] == NULL || writer->buffer_names[p] == NULL;
    }
    return has_failed ? fuse_fail_memory(writer->pickler.error, "the memory snapshot", description->persistent_count)
                      : FUSERUN_OK;
}

static void free_tables(struct writer *writer)
{
    for (size_t p = 0; p < writer->description->pass_count; p++) {
        if (writer->operation_frames != NULL)
            free(writer->operation_frames[p]);
        if (writer->buffer_names != NULL)
            free(writer->buffer_names[p]);
    }
    free(writer->operation_frames);
    free(writer->buffer_names);
    free(writer->persistent_names);
}

/* An alloc and the two halves of a free for each buffer that lives. */
static size_t events_of_run(const struct fuse_description *description, uint32_t pass)
{
    size_t count = 0;
    uint32_t first, last;
    for (uint32_t b = 0; b < description->passes[pass].buffer_count; b++)
        if (description->passes[pass].buffers[b].bytes > 0 &&
            fuse_ledger_life(description->ledger, pass, b, &first, &last))
            count += 3;
    return count;
}

static int put_all(struct writer *writer, const char *version, size_t max_events)
{
    struct pickler *pickler = &writer->pickler;
    const struct fuse_description *description = writer->description;
    const size_t run_count = fuse_timeline_run_count(description->timeline);
    put(pickler, "\x80\x02}(", 4);
    put_text(pickler, "segments");
    begin_list(pickler);
    FUSE_TRY(put_segment(writer));
    put_code(pickler, 'e');
    put_text(pickler, "device_traces");
    begin_list(pickler);
    begin_list(pickler);
    writer->batch = 0;
    put_persistent(writer);
    size_t events = description->persistent_count + 2;
    size_t runs = 0;
    uint64_t dropped = 0;
    for (; runs < run_count; runs++) {
        const struct fuse_timeline_run *run = fuse_timeline_run(description->timeline, runs);
        if (events + events_of_run(description, run->pass) > max_events)
            break;
        events += events_of_run(description, run->pass);
        FUSE_TRY(put_run(writer, run));
    }
    for (size_t r = runs; r < run_count; r++)
        dropped += events_of_run(description, fuse_timeline_run(description->timeline, r)->pass);
    for (uint32_t p = 0; p < description->pass_count; p++)
        dropped += fuse_timeline_left_out(description->timeline, p) * events_of_run(description, p);
    put(pickler, "ee", 2);
    put_text(pickler, "allocator_settings");
    put(pickler, "}(", 2);
    put_text(pickler, "allocator");
    put_text(pickler, "fuserun: offsets planned before update 1");
    put_text(pickler, "fuserun");
    put_text(pickler, version);
    put_key_integer(pickler, "recorded_events", events);
    put_key_integer(pickler, "recorded_passes", runs);
    put_key_integer(pickler, "dropped_events", dropped);
    put(pickler, "uu.", 3);
    flush(pickler);
    return pickler->status;
}

int fuse_snapshot_write(const char *path, const struct fuse_description *description, const char *version,
                        size_t max_events, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct writer writer = {.pickler = {.status = FUSERUN_OK, .error = error}, .description = description};
    FUSE_TRY_OUT(new_tables(&writer));
    FUSE_TRY_OUT(fuse_output_open(path, &writer.pickler.output, error));
    FUSE_TRY_OUT(put_all(&writer, version, max_events));
    FUSE_TRY_OUT(fuse_output_commit(&writer.pickler.output, error));
out:
    fuse_output_abandon(&writer.pickler.output);
    fuse_text_free(&writer.pickler.bytes);
    free_tables(&writer);
    return status;
}
