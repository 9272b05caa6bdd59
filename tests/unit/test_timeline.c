/* The memory timeline: which runs of passes are recorded, what is left out, and the bound of the snapshot. */
#include "memory/snapshot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define OPERATIONS 4
static const enum fuse_phase phases[OPERATIONS] = {FUSE_PHASE_FORWARD, FUSE_PHASE_FORWARD, FUSE_PHASE_BACKWARD,
                                                   FUSE_PHASE_OPTIMIZER};
static const struct fuse_ledger_buffer ledger_buffers[] = {{"a", FUSE_CATEGORY_ACTIVATION, 128},
                                                           {"g", FUSE_CATEGORY_GRADIENT, 64}};
static const struct fuse_described_operation operations[OPERATIONS] = {{"load", "batch", FUSE_PHASE_FORWARD},
                                                                       {"linear", "l", FUSE_PHASE_FORWARD},
                                                                       {"linear_dw", "l", FUSE_PHASE_BACKWARD},
                                                                       {"update", "l", FUSE_PHASE_OPTIMIZER}};
static const struct fuse_described_buffer buffers[] = {{"output", FUSE_CATEGORY_ACTIVATION, 128, 0},
                                                       {"gradient", FUSE_CATEGORY_GRADIENT, 64, 128}};
static const struct fuse_described_buffer persistent[] = {{"w", FUSE_CATEGORY_PARAMETER, 64, 0}};

struct rig {
    struct fuse_ledger *ledger;
    struct fuse_timeline *timeline;
    struct fuse_described_pass passes[2];
    struct fuse_description description;
};

/* Two passes, one of training and one of evaluation, of the same list. */
static void open_rig(struct rig *rig)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const size_t counts[] = {OPERATIONS, OPERATIONS};
    const bool is_training[] = {true, false};
    *rig = (struct rig){0};
    assert_int_equal(fuse_ledger_new(&rig->ledger, &error), FUSERUN_OK);
    fuse_ledger_add_persistent(rig->ledger, FUSE_CATEGORY_PARAMETER, 64);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t pass;
        assert_int_equal(fuse_ledger_add_pass(rig->ledger, ledger_buffers, 2, phases, OPERATIONS, &pass, &error),
                         FUSERUN_OK);
        assert_int_equal(pass, i);
        rig->passes[i] = (struct fuse_described_pass){is_training[i], 1, operations, OPERATIONS, buffers, 2};
    }
    assert_int_equal(fuse_timeline_new(counts, is_training, 2, &rig->timeline, &error), FUSERUN_OK);
    rig->description = (struct fuse_description){.timeline = rig->timeline,
                                                 .ledger = rig->ledger,
                                                 .passes = rig->passes,
                                                 .pass_count = 2,
                                                 .persistent = persistent,
                                                 .persistent_count = 1,
                                                 .persistent_bytes = 64,
                                                 .arena_bytes = 192,
                                                 .allocate_place = {"a.c", 1, "a"},
                                                 .run_place = {"b.c", 2, "b"}};
}

static void close_rig(struct rig *rig)
{
    fuse_timeline_free(&rig->timeline);
    assert_null(rig->timeline);
    fuse_ledger_free(&rig->ledger);
}

/* The activation lives in [1, 2], the gradient in [2, 3]. */
static void run_pass(struct rig *rig, uint32_t pass, int64_t update)
{
    fuse_timeline_begin(rig->timeline, rig->ledger, pass, update);
    fuse_ledger_begin(rig->ledger, pass);
    for (uint32_t time = 0; time < OPERATIONS; time++) {
        if (time == 1 || time == 2)
            fuse_ledger_touch(rig->ledger, 0, time);
        if (time >= 2)
            fuse_ledger_touch(rig->ledger, 1, time);
        fuse_ledger_done(rig->ledger, time);
    }
    fuse_ledger_end(rig->ledger);
}

static void first_updates_and_every_pass_once(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig);
    for (int64_t update = 1; update <= 10; update++)
        run_pass(&rig, 0, update);
    for (int i = 0; i < 5; i++)
        run_pass(&rig, 1, 10);
    assert_int_equal(fuse_timeline_run_count(rig.timeline), FUSE_TIMELINE_UPDATES + 1);
    for (size_t r = 0; r < FUSE_TIMELINE_UPDATES; r++) {
        const struct fuse_timeline_run *run = fuse_timeline_run(rig.timeline, r);
        assert_int_equal(run->pass, 0);
        assert_int_equal(run->update, r + 1);
        int64_t before_ns = run->begin_ns;
        for (size_t i = 0; i < OPERATIONS; i++) {
            assert_true(run->end_ns[i] >= before_ns);
            before_ns = run->end_ns[i];
        }
    }
    assert_int_equal(fuse_timeline_run(rig.timeline, FUSE_TIMELINE_UPDATES)->pass, 1);
    assert_int_equal(fuse_timeline_left_out(rig.timeline, 0), 10 - FUSE_TIMELINE_UPDATES);
    assert_int_equal(fuse_timeline_left_out(rig.timeline, 1), 4);
    uint64_t live[OPERATIONS][FUSE_CATEGORY_COUNT];
    fuse_timeline_live(&rig.description, 0, live);
    const uint64_t activations[] = {0, 128, 128, 0};
    const uint64_t gradients[] = {0, 0, 64, 64};
    for (size_t i = 0; i < OPERATIONS; i++) {
        assert_int_equal(live[i][FUSE_CATEGORY_ACTIVATION], activations[i]);
        assert_int_equal(live[i][FUSE_CATEGORY_GRADIENT], gradients[i]);
        assert_int_equal(live[i][FUSE_CATEGORY_PARAMETER], 0);
    }
    close_rig(&rig);
}

/* An update of a thousand micro-batches fills the room, and the pass that comes last is recorded all the same. */
static void room_is_kept_for_what_has_not_run(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig);
    for (int i = 0; i < 1000; i++)
        run_pass(&rig, 0, 1);
    run_pass(&rig, 1, 1);
    const size_t count = fuse_timeline_run_count(rig.timeline);
    assert_true(count <= FUSE_TIMELINE_RUNS);
    assert_int_equal(fuse_timeline_run(rig.timeline, count - 1)->pass, 1);
    assert_int_equal(fuse_timeline_left_out(rig.timeline, 0), 1000 - (count - 1));
    assert_int_equal(fuse_timeline_left_out(rig.timeline, 1), 0);
    close_rig(&rig);
}

static size_t read_all(const char *path, unsigned char *content, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t length = fread(content, 1, capacity, file);
    assert_true(length < capacity);
    (void)fclose(file);
    return length;
}

/* The small integer behind a key that is a string of the pickle. */
static int value_of(const unsigned char *content, size_t length, const char *key)
{
    const unsigned char *at = memmem(content, length, key, strlen(key));
    assert_non_null(at);
    at += strlen(key);
    assert_int_equal(at[0], 'K');
    return at[1];
}

static void snapshot_stops_at_its_bound(void **state)
{
    (void)state;
    static unsigned char content[65536];
    char path[] = "/tmp/fuserun-snapshot-XXXXXX";
    struct fuse_error error = FUSE_ERROR_INIT;
    struct rig rig;
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    (void)close(descriptor);
    open_rig(&rig);
    for (int64_t update = 1; update <= 5; update++)
        run_pass(&rig, 0, update);
    /* segment, head and parameter, then 6 events a pass: the second pass would be one too many */
    const int recorded[] = {3, 3 + 6, 3 + 18};
    const size_t bounds[] = {3, 3 + 11, 1000};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(fuse_snapshot_write(path, &rig.description, "0", bounds[i], &error), FUSERUN_OK);
        const size_t length = read_all(path, content, sizeof content);
        assert_int_equal(value_of(content, length, "recorded_events"), recorded[i]);
        assert_int_equal(value_of(content, length, "dropped_events"), 3 + 5 * 6 - recorded[i]);
    }
    assert_int_equal(fuse_snapshot_write("/no/such/folder/x", &rig.description, "0", 10, &error), FUSERUN_ERROR_IO);
    (void)unlink(path);
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_updates_and_every_pass_once),
        cmocka_unit_test(room_is_kept_for_what_has_not_run),
        cmocka_unit_test(snapshot_stops_at_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
