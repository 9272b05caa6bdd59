/* Offsets: buffers that live together never overlap, and the extent is near the greatest sum of live bytes. */
#include "base/random.h"
#include "graph/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void check_no_overlap(const struct fuse_buffer *buffers, size_t count, uint64_t extent)
{
    for (size_t i = 0; i < count; i++) {
        const struct fuse_buffer *a = &buffers[i];
        if (a->bytes == 0 || a->first > a->last)
            continue;
        assert_int_equal(a->offset % 64, 0);
        assert_true(a->offset + a->bytes <= extent);
        for (size_t j = 0; j < i; j++) {
            const struct fuse_buffer *b = &buffers[j];
            if (b->bytes == 0 || b->first > b->last || a->first > b->last || b->first > a->last)
                continue;
            assert_true(a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset);
        }
    }
}

static uint64_t greatest_live_sum(const struct fuse_buffer *buffers, size_t count)
{
    uint64_t greatest = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (size_t j = 0; j < count; j++)
            if (buffers[j].first <= buffers[i].first && buffers[i].first <= buffers[j].last)
                sum += aligned(buffers[j].bytes);
        greatest = sum > greatest ? sum : greatest;
    }
    return greatest;
}

static void random_lives_never_overlap(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct fuse_buffer buffers[40] = {{0}};
        const size_t count = 1 + fuse_random_bits(seed, 1, 0) % 40;
        for (size_t i = 0; i < count; i++) {
            buffers[i].first = (uint32_t)(fuse_random_bits(seed, 2, i) % 30);
            buffers[i].last = buffers[i].first + (uint32_t)(fuse_random_bits(seed, 3, i) % 10);
            buffers[i].bytes = 1 + fuse_random_bits(seed, 4, i) % 5000;
        }
        uint64_t extent = 0;
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_plan_offsets(buffers, count, &extent, &error), FUSERUN_OK);
        check_no_overlap(buffers, count, extent);
        const uint64_t bound = greatest_live_sum(buffers, count);
        assert_true(extent >= bound);
        assert_true(extent <= bound + bound / 2); /* random lives are harder than a network's */
    }
}

/* The lives of a backward pass: activations begin in turn and end in reverse, gradients begin as they end. */
/* What is held between programs lies where it lies, in its life; the others find their places around it, and below it
 * before it lives. */
static void fixed_buffers_stay_and_nothing_overlaps_them(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct fuse_buffer buffers[40] = {{0}};
        const size_t count = 10 + fuse_random_bits(seed, 1, 0) % 31;
        uint64_t begin = 0;
        for (size_t i = 0; i < count; i++) {
            buffers[i].first = (uint32_t)(fuse_random_bits(seed, 2, i) % 30);
            buffers[i].last = buffers[i].first + (uint32_t)(fuse_random_bits(seed, 3, i) % 10);
            buffers[i].bytes = 1 + fuse_random_bits(seed, 4, i) % 5000;
            if (i % 4 != 3)
                continue;
            buffers[i].is_fixed = true;
            buffers[i].offset = begin;
            begin += aligned(buffers[i].bytes);
        }
        struct fuse_buffer planned[40];
        memcpy(planned, buffers, sizeof planned);
        uint64_t extent = 0;
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_plan_offsets(planned, count, &extent, &error), FUSERUN_OK);
        check_no_overlap(planned, count, extent);
        for (size_t i = 3; i < count; i += 4)
            assert_int_equal(planned[i].offset, buffers[i].offset);
    }
    struct fuse_buffer two[] = {{.bytes = 64, .first = 5, .last = 9, .is_fixed = true, .offset = 64},
                                {.bytes = 128, .first = 0, .last = 4}};
    uint64_t extent = 0;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_plan_offsets(two, 2, &extent, &error), FUSERUN_OK);
    assert_int_equal(extent, 128);
    assert_int_equal(two[1].offset, 0);
}

static void a_backward_pass_is_planned_tightly(void **state)
{
    (void)state;
    enum { LAYERS = 24 };
    for (int keeps = 0; keeps < 2; keeps++) {
        struct fuse_buffer buffers[3 * LAYERS] = {{0}};
        for (uint32_t i = 0; i < LAYERS; i++) {
            const uint64_t width = 1000 + fuse_random_bits(7, 1, i) % 3000;
            buffers[i] = (struct fuse_buffer){.first = i, .last = 2 * LAYERS - i, .bytes = width * 4};
            buffers[LAYERS + i] = (struct fuse_buffer){
                .first = 2 * LAYERS - i, .last = keeps ? 2 * LAYERS + 1 : 2 * LAYERS - i, .bytes = width * 40};
            buffers[2 * LAYERS + i] =
                (struct fuse_buffer){.first = 2 * LAYERS - i - 1, .last = 2 * LAYERS - i, .bytes = width * 4};
        }
        uint64_t extent = 0;
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_plan_offsets(buffers, 3 * LAYERS, &extent, &error), FUSERUN_OK);
        check_no_overlap(buffers, 3 * LAYERS, extent);
        assert_true((double)extent <= 1.02 * (double)greatest_live_sum(buffers, 3 * LAYERS));
    }
}

static void nothing_to_place_takes_nothing(void **state)
{
    (void)state;
    struct fuse_buffer buffers[] = {{.bytes = 0, .first = 0, .last = 3},
                                    {.bytes = 64, .first = 1, .last = 0},
                                    {.bytes = 64, .first = 0, .last = 3, .is_parameter = true}};
    uint64_t extent = 1;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_plan_offsets(buffers, 3, &extent, &error), FUSERUN_OK);
    assert_int_equal(extent, 0);
    assert_int_equal(fuse_plan_offsets(buffers, 0, &extent, &error), FUSERUN_OK);
    assert_int_equal(extent, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lives_never_overlap),
        cmocka_unit_test(fixed_buffers_stay_and_nothing_overlaps_them),
        cmocka_unit_test(a_backward_pass_is_planned_tightly),
        cmocka_unit_test(nothing_to_place_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
