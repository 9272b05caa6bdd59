/* The memory ledger: lives as told, sums by category, the earliest greatest moment. */
#include "memory/ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const enum fuse_phase phases[] = {FUSE_PHASE_FORWARD, FUSE_PHASE_FORWARD, FUSE_PHASE_BACKWARD,
                                         FUSE_PHASE_OPTIMIZER};
static const struct fuse_ledger_buffer buffers[] = {
    {"a", FUSE_CATEGORY_ACTIVATION, 100}, {"g", FUSE_CATEGORY_GRADIENT, 50}, {"w", FUSE_CATEGORY_WORKSPACE, 7}};

static struct fuse_ledger *new_ledger(uint32_t *pass)
{
    struct fuse_ledger *ledger = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_ledger_new(&ledger, &error), FUSERUN_OK);
    assert_int_equal(fuse_ledger_add_pass(ledger, buffers, 3, phases, 4, pass, &error), FUSERUN_OK);
    return ledger;
}

static void life_is_first_write_to_last_use(void **state)
{
    (void)state;
    uint32_t pass, first, last;
    struct fuse_ledger *ledger = new_ledger(&pass);
    assert_false(fuse_ledger_life(ledger, pass, 0, &first, &last));
    fuse_ledger_begin(ledger, pass);
    fuse_ledger_touch(ledger, 0, 0);
    fuse_ledger_touch(ledger, 1, 2);
    fuse_ledger_touch(ledger, 0, 2);
    fuse_ledger_touch(ledger, 0, 1);
    fuse_ledger_end(ledger);
    assert_true(fuse_ledger_life(ledger, pass, 0, &first, &last));
    assert_int_equal(first, 0);
    assert_int_equal(last, 2);
    assert_true(fuse_ledger_life(ledger, pass, 1, &first, &last));
    assert_int_equal(first, 2);
    assert_int_equal(last, 2);
    assert_false(fuse_ledger_life(ledger, pass, 2, &first, &last));
    fuse_ledger_free(&ledger);
    assert_null(ledger);
}

static void peak_sums_what_is_alive_with_what_stays(void **state)
{
    (void)state;
    uint32_t pass;
    struct fuse_ledger *ledger = new_ledger(&pass);
    fuse_ledger_add_persistent(ledger, FUSE_CATEGORY_PARAMETER, 1000);
    fuse_ledger_add_persistent(ledger, FUSE_CATEGORY_OPTIMIZER_STATE, 2000);
    assert_int_equal(fuse_ledger_peak(ledger)->bytes, 3000);
    fuse_ledger_begin(ledger, pass);
    fuse_ledger_touch(ledger, 0, 1);
    fuse_ledger_touch(ledger, 0, 2);
    fuse_ledger_touch(ledger, 1, 2);
    fuse_ledger_touch(ledger, 1, 3);
    fuse_ledger_touch(ledger, 2, 1);
    fuse_ledger_end(ledger);
    const struct fuse_peak *peak = fuse_ledger_peak(ledger);
    assert_int_equal(peak->bytes, 3150);
    assert_int_equal(peak->time, 2);
    assert_int_equal(peak->phase, FUSE_PHASE_BACKWARD);
    assert_int_equal(peak->category_bytes[FUSE_CATEGORY_ACTIVATION], 100);
    assert_int_equal(peak->category_bytes[FUSE_CATEGORY_GRADIENT], 50);
    assert_int_equal(peak->category_bytes[FUSE_CATEGORY_WORKSPACE], 0);
    assert_int_equal(fuse_ledger_category_peak(ledger, pass, FUSE_CATEGORY_GRADIENT), 50);
    fuse_ledger_free(&ledger);
}

static void a_later_smaller_run_leaves_the_peak(void **state)
{
    (void)state;
    uint32_t pass;
    struct fuse_ledger *ledger = new_ledger(&pass);
    fuse_ledger_begin(ledger, pass);
    fuse_ledger_touch(ledger, 0, 1);
    fuse_ledger_end(ledger);
    fuse_ledger_begin(ledger, pass);
    fuse_ledger_touch(ledger, 1, 1);
    fuse_ledger_end(ledger);
    uint32_t first, last;
    assert_int_equal(fuse_ledger_peak(ledger)->bytes, 100);
    assert_false(fuse_ledger_life(ledger, pass, 0, &first, &last));
    assert_true(fuse_ledger_life(ledger, pass, 1, &first, &last));
    fuse_ledger_free(&ledger);
}

static void the_earliest_of_equal_moments_wins(void **state)
{
    (void)state;
    const uint32_t first[] = {0, 3, 4}, last[] = {1, 3, 3}; /* the third is never alive */
    const struct fuse_ledger_buffer equal[] = {
        {"a", FUSE_CATEGORY_DATA, 8}, {"b", FUSE_CATEGORY_DATA, 8}, {"c", FUSE_CATEGORY_DATA, 800}};
    const uint64_t nothing[FUSE_CATEGORY_COUNT] = {0};
    struct fuse_peak peak;
    fuse_peak_of(equal, first, last, 3, phases, 4, nothing, &peak);
    assert_int_equal(peak.bytes, 8);
    assert_int_equal(peak.time, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(life_is_first_write_to_last_use),
        cmocka_unit_test(peak_sums_what_is_alive_with_what_stays),
        cmocka_unit_test(a_later_smaller_run_leaves_the_peak),
        cmocka_unit_test(the_earliest_of_equal_moments_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
