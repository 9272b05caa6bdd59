/* Streams and events. Work stands in queues and runs when somebody has to wait for it (late), at once (eager), or in
 * an order drawn from a seed: whatever the rules of CUDA allow and the backend did not forbid by a wait.
 *
 * The default stream is the legacy one: its work comes after all that stands in blocking streams, and theirs after it.
 */
#include "emulation.h"

#include <stdlib.h>

#define HOST UINT64_MAX /* in the place of a stream's number */

struct emu_stream {
    struct emu_stream *next;
    struct emu_work *first, *last;
    uint64_t pushed, done; /* pieces of work */
    uint64_t number;
    bool is_blocking;
    bool is_alive;
};

struct emu_event {
    struct emu_event *next;
    struct emu_stream *stream; /* of the last record; NULL: never recorded */
    uint64_t until;
    uint64_t number;
    bool is_alive;
};

/* A wait of one stream, or of the host, for an event, seen at least once. */
struct wait {
    struct wait *next;
    uint64_t stream, other;
};

static struct emu_stream *streams, *default_stream;
static struct emu_event *events;
static uint64_t stream_number, event_number;
static struct wait *waits;
static uint64_t wait_count, left_out_count;

/* ---- streams ---------------------------------------------------------------------------------------------------- */

struct emu_stream *emu_stream_new(bool is_blocking)
{
    struct emu_stream *const stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return NULL;
    stream->is_blocking = is_blocking;
    stream->is_alive = true;
    stream->number = stream_number++;
    stream->next = streams;
    streams = stream;
    return stream;
}

bool emu_stream_is_alive(const struct emu_stream *stream)
{
    for (const struct emu_stream *at = streams; at != NULL; at = at->next)
        if (at == stream)
            return at->is_alive;
    return false;
}

struct emu_stream *emu_stream_default(void)
{
    if (default_stream == NULL) {
        default_stream = emu_stream_new(true);
        if (default_stream == NULL)
            emu_give_up("no host memory for the default stream");
    }
    return default_stream;
}

static void run_until(struct emu_stream *stream, uint64_t until);

static void run_first(struct emu_stream *stream)
{
    struct emu_work *const work = stream->first;
    if (work->awaited != NULL)
        run_until(work->awaited, work->awaited_until);
    if (work->run != NULL && emu_lost_code() == 0)
        work->run(work);
    stream->first = work->next;
    if (stream->first == NULL)
        stream->last = NULL;
    stream->done++;
    free(work);
}

/* What a piece of work awaits was pushed before it, so this comes to an end. */
static void run_until(struct emu_stream *stream, uint64_t until)
{
    if (stream->done >= until)
        return;
    emu_memory_open();
    while (stream->done < until)
        run_first(stream);
    emu_memory_close();
}

/* Some of what may run now does, in some stream. */
static void run_some(void)
{
    uint64_t count = 0;
    for (const struct emu_stream *at = streams; at != NULL; at = at->next)
        count += at->first != NULL;
    if (count == 0)
        return;
    uint64_t chosen = emu_random_below(count);
    for (struct emu_stream *at = streams; at != NULL; at = at->next)
        if (at->first != NULL && chosen-- == 0) {
            run_until(at, at->done + 1 + emu_random_below(at->pushed - at->done));
            return;
        }
}

static void append(struct emu_stream *stream, struct emu_work *work)
{
    work->next = NULL;
    if (stream->last != NULL)
        stream->last->next = work;
    else
        stream->first = work;
    stream->last = work;
    stream->pushed++;
}

static void append_wait(struct emu_stream *stream, struct emu_stream *awaited, uint64_t until)
{
    if (awaited->done >= until)
        return;
    struct emu_work *const work = calloc(1, sizeof *work);
    if (work == NULL)
        emu_give_up("no host memory for a wait");
    work->awaited = awaited;
    work->awaited_until = until;
    append(stream, work);
}

static void order_with_default(struct emu_stream *stream)
{
    struct emu_stream *const first = emu_stream_default();
    if (stream != first) {
        if (stream->is_blocking)
            append_wait(stream, first, first->pushed);
        return;
    }
    for (struct emu_stream *at = streams; at != NULL; at = at->next)
        if (at != first && at->is_blocking)
            append_wait(first, at, at->pushed);
}

void emu_stream_push(struct emu_stream *stream, struct emu_work *work)
{
    order_with_default(stream);
    append(stream, work);
    if (emu_settings()->order == EMU_ORDER_EAGER)
        run_until(stream, stream->pushed);
    else if (emu_settings()->order == EMU_ORDER_DRAWN && emu_random_below(4) == 0)
        run_some();
}

void emu_stream_finish(struct emu_stream *stream)
{
    while (emu_settings()->order == EMU_ORDER_DRAWN && emu_random_below(2) == 0)
        run_some();
    order_with_default(stream);
    run_until(stream, stream->pushed);
}

void emu_stream_drop(struct emu_stream *stream)
{
    emu_stream_finish(stream);
    stream->is_alive = false;
}

void emu_streams_finish(void)
{
    for (struct emu_stream *at = streams; at != NULL; at = at->next)
        run_until(at, at->pushed);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

struct emu_event *emu_event_new(void)
{
    struct emu_event *const event = calloc(1, sizeof *event);
    if (event == NULL)
        return NULL;
    event->is_alive = true;
    event->number = event_number++;
    event->next = events;
    events = event;
    return event;
}

bool emu_event_is_alive(const struct emu_event *event)
{
    for (const struct emu_event *at = events; at != NULL; at = at->next)
        if (at == event)
            return at->is_alive;
    return false;
}

void emu_event_drop(struct emu_event *event)
{
    event->is_alive = false;
}

void emu_event_record(struct emu_event *event, struct emu_stream *stream)
{
    struct emu_work *const work = calloc(1, sizeof *work);
    if (work == NULL)
        emu_give_up("no host memory for an event");
    emu_stream_push(stream, work);
    event->stream = stream;
    event->until = stream->pushed;
}

/* Waits are told apart by who waits and by the event: a backend that has one event for each purpose has as many
 * waits as purposes. */
static bool is_left_out(uint64_t stream, const struct emu_event *event)
{
    uint64_t number = wait_count;
    struct wait *at = waits;
    while (at != NULL && (at->stream != stream || at->other != event->number)) {
        at = at->next;
        number--;
    }
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        if (at == NULL)
            emu_give_up("no host memory for a wait");
        *at = (struct wait){waits, stream, event->number};
        waits = at;
        number = ++wait_count;
    }
    left_out_count += number == emu_settings()->no_wait;
    return number == emu_settings()->no_wait;
}

void emu_event_wait(struct emu_event *event, struct emu_stream *stream)
{
    if (event->stream == NULL) {
        emu_complain("a stream waits for an event that was never recorded, which is no wait at all");
        return;
    }
    if (event->stream != stream && !is_left_out(stream->number, event))
        append_wait(stream, event->stream, event->until);
}

void emu_event_finish(struct emu_event *event)
{
    if (event->stream != NULL && !is_left_out(HOST, event))
        run_until(event->stream, event->until);
}

uint64_t emu_wait_count(void)
{
    return wait_count;
}

uint64_t emu_wait_left_out(void)
{
    return left_out_count;
}
