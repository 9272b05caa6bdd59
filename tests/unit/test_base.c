/* base/: text, numbers, random numbers. */
#include "base/number.h"
#include "base/random.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- text ----------------------------------------------------------------------------------------------------------
 */

static void text_grows_and_keeps_everything(void **state)
{
    (void)state;
    struct fuse_text text = {0};
    for (int i = 0; i < 1000; i++)
        fuse_text_addf(&text, "%d,", i);
    fuse_text_add_bytes(&text, "abcdef", 3);
    assert_false(text.failed);
    assert_int_equal(text.length, 10 * 2 + 90 * 3 + 900 * 4 + 3);
    assert_int_equal(strlen(text.data), text.length);
    assert_memory_equal(text.data, "0,1,2,", 6);
    assert_string_equal(text.data + text.length - 7, "999,abc");
    fuse_text_clear(&text);
    assert_int_equal(text.length, 0);
    assert_string_equal(text.data, "");
    fuse_text_free(&text);
    assert_null(text.data);
}

static void text_writes_json(void **state)
{
    (void)state;
    struct fuse_text text = {0};
    fuse_text_add_json(&text, "a\"b\\c\n\x01\xC3\xA9/");
    assert_string_equal(text.data, "\"a\\\"b\\\\c\\u000a\\u0001\xC3\xA9/\"");
    fuse_text_clear(&text);
    fuse_text_add_json_number(&text, 0.1);
    fuse_text_add(&text, " ");
    fuse_text_add_json_number(&text, (double)INFINITY);
    fuse_text_add(&text, " ");
    fuse_text_add_json_number(&text, (double)NAN);
    assert_string_equal(text.data, "0.1 null null");
    fuse_text_free(&text);
}

static void copies_of_strings(void **state)
{
    (void)state;
    char *whole = fuse_strdup("abc"), *part = fuse_strndup("abcdef", 2), *made = fuse_format("%s-%d", "x", 7);
    assert_string_equal(whole, "abc");
    assert_string_equal(part, "ab");
    assert_string_equal(made, "x-7");
    free(whole);
    free(part);
    free(made);
}

static void edit_distances(void **state)
{
    (void)state;
    assert_int_equal(fuse_edit_distance("", ""), 0);
    assert_int_equal(fuse_edit_distance("lr", "lr"), 0);
    assert_int_equal(fuse_edit_distance("", "abc"), 3);
    assert_int_equal(fuse_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(fuse_edit_distance("sgd", "sdg"), 1); /* neighbours swapped */
    assert_int_equal(fuse_edit_distance("weight_decay", "weigth_decy"), 2);
    char *big = malloc(100001);
    memset(big, 'a', 100000);
    big[100000] = '\0';
    assert_int_equal(fuse_edit_distance(big, "a"), 100000); /* too long for a table; never a suggestion */
    free(big);
}

static void nearest_names(void **state)
{
    (void)state;
    static const char *const names[] = {"lr", "momentum", "weight_decay", "nesterov"};
    assert_string_equal(fuse_nearest("momentun", names, 4), "momentum");
    assert_string_equal(fuse_nearest("lrr", names, 4), "lr");
    assert_string_equal(fuse_nearest("LR", names, 4), "lr");
    assert_string_equal(fuse_nearest("wieght_deacy", names, 4), "weight_decay");
    assert_null(fuse_nearest("dampening", names, 4));
    assert_null(fuse_nearest("x", names, 0));
}

static void globs(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool is_match;
    } cases[] = {
        {"*", "", true},
        {"", "", true},
        {"", "a", false},
        {"*bias", "layers.0.bias", true},
        {"*bias", "layers.0.bias2", false},
        {"*.ln*.weight", "a.b.ln_1.x.weight", true}, /* `*` also matches dots */
        {"*.ln*.weight", "ln_1.weight", false},
        {"layers.?.weight", "layers.3.weight", true},
        {"layers.?.weight", "layers.13.weight", false},
        {"a*b*c", "a-b-b-c", true},
        {"a*b*c", "a-b-b-d", false},
        {"**a**", "xay", true},
        {"[ab]", "a", false}, /* everything else stands for itself */
        {"[ab]", "[ab]", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(fuse_glob_match(cases[i].pattern, cases[i].name), cases[i].is_match);
    /* No exponential time: this would not end with a naive matcher. */
    char name[201];
    memset(name, 'a', 200);
    name[200] = '\0';
    assert_false(fuse_glob_match("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", name));
}

/* ---- numbers
 * --------------------------------------------------------------------------------------------------------- */

static void row_40_numbers_are_the_whole_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"1e-5", 1e-5},    {".5", 0.5}, {"5E-4", 5e-4}, {"5.", 5},       {"+3", 3},    {"-0.25", -0.25},
                {"1e+300", 1e300}, {"0", 0},    {"007", 7},     {"1e-400", 0.0}, {"100", 100}, {"0.1", 0.1}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        double value = -1;
        assert_true(fuse_number_parse(good[i].text, &value));
        assert_memory_equal(&value, &good[i].value, sizeof(value));
    }
    double infinite = 0;
    assert_true(fuse_number_parse("inf", &infinite) && isinf(infinite) && infinite > 0);
    assert_true(fuse_number_parse("-inf", &infinite) && isinf(infinite) && infinite < 0);
    static const char *const bad[] = {"",
                                      "1e-5x",
                                      "3,14",
                                      " 1",
                                      "1 ",
                                      "nan",
                                      "0x10",
                                      "1e",
                                      "e5",
                                      ".",
                                      "1e400",
                                      "--1",
                                      "+-1",
                                      "1.2.3",
                                      "1_0",
                                      "INF",
                                      "infinity",
                                      "1e-5 ",
                                      ("\xC2\xA0"
                                       "1")};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        double value = 42;
        if (fuse_number_parse(bad[i], &value))
            fail_msg("'%s' was read as %g", bad[i], value);
    }
}

static void integers_are_the_whole_text(void **state)
{
    (void)state;
    int64_t value = 0;
    assert_true(fuse_integer_parse("0", &value) && value == 0);
    assert_true(fuse_integer_parse("-12", &value) && value == -12);
    assert_true(fuse_integer_parse("9223372036854775807", &value) && value == INT64_MAX);
    assert_true(fuse_integer_parse("-9223372036854775808", &value) && value == INT64_MIN);
    static const char *const bad[] = {"", "-", "1.0", "1e3", "9223372036854775808", "12a", " 1", "0x1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(fuse_integer_parse(bad[i], &value));
}

static void numbers_are_written_short(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0, "0"},
        {-0.0, "-0"},
        {1797, "1797"},
        {-2.5, "-2.5"},
        {0.1, "0.1"},
        {0.001, "0.001"},
        {0.0001, "0.0001"},
        {1e-5, "1e-05"},
        {1.25e-21, "1.25e-21"},
        {123456.789, "123456.789"},
        {1e15, "1000000000000000"},
        {1e16, "1e+16"},
        {1.0 / 3, "0.3333333333333333"},
        {2.0 / 3, "0.6666666666666666"},
        {0.1f, "0.10000000149011612"},
        {12345.678901234567, "12345.678901234567"},
        {1e300, "1e+300"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {5e-324, "5e-324"},
        {INFINITY, "inf"},
        {-INFINITY, "-inf"},
    };
    char buffer[FUSE_NUMBER_CHARS];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(fuse_number_format(cases[i].value, buffer), cases[i].text);
}

/* How many digits are written, trailing zeros apart. */
static int digit_count(const char *text)
{
    int count = 0, significant = 0;
    for (; *text != '\0' && *text != 'e'; text++) {
        count += *text >= '0' && *text <= '9' && (count > 0 || *text != '0');
        if (*text >= '1' && *text <= '9')
            significant = count;
    }
    return significant;
}

static void numbers_read_back(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        const uint64_t bits = fuse_random_bits(1, 2, i);
        double value = 0;
        if (i % 4 == 0)
            memcpy(&value, &bits, sizeof(value)); /* any double at all */
        else if (i % 4 == 1)
            value = (double)(bits >> 11) * 0x1p-53 * 5;
        else if (i % 4 == 2)
            value = (double)(float)((double)(bits >> 40) * 0x1p-24);
        else
            value = (double)(bits % 1000000) / 999.0 * ldexp(1, (int)(bits >> 58) - 32);
        if (!isfinite(value))
            continue;
        char buffer[FUSE_NUMBER_CHARS], shortest[FUSE_NUMBER_CHARS];
        double back = 0;
        assert_true(fuse_number_parse(fuse_number_format(value, buffer), &back));
        assert_memory_equal(&back, &value, sizeof(value));
        int digits = 0;
        do
            (void)snprintf(shortest, sizeof(shortest), "%.*g", ++digits, value);
        while (strtod(shortest, NULL) != value);
        if (digit_count(buffer) > digits)
            fail_msg("%s is written, and %d digits would do", buffer, digits);
    }
}

/* ---- random numbers
 * --------------------------------------------------------------------------------------------------- */

/* philox4x32, 10 rounds: the known answers of the Random123 distribution (kat_vectors). */
static void philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, stream, block;
        uint32_t words[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822u,
         0x0370734413198a2eu,
         0x85a308d3243f6a88u,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t words[4];
        fuse_random_block(cases[i].seed, cases[i].stream, cases[i].block, words);
        assert_memory_equal(words, cases[i].words, sizeof(words));
    }
}

static void random_elements_do_not_depend_on_the_draw(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static float whole[COUNT], pieces[COUNT];
    /* the first: blocks whose numbers take more than 32 bits come in between */
    const uint64_t firsts[] = {4 * (((uint64_t)1 << 32) - 40) + 3, 0, 5};
    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++) {
        const uint64_t first = firsts[i];
        fuse_random_uniform(7, FUSE_STREAM_DATA, first, whole, COUNT);
        for (size_t at = 0, size = 1; at < COUNT; at += size, size = size % 13 + 1)
            fuse_random_uniform(7, FUSE_STREAM_DATA, first + at, pieces + at, at + size > COUNT ? COUNT - at : size);
        assert_memory_equal(whole, pieces, sizeof(whole));
    }
    uint32_t words[4];
    fuse_random_block(7, FUSE_STREAM_DATA, 1, words);
    assert_true(whole[0] == (float)(words[1] >> 8) * 0x1p-24f); /* element 5 is word 1 of block 1 */
    assert_int_equal(fuse_random_bits(7, FUSE_STREAM_DATA, 3), (uint64_t)words[3] << 32 | words[2]);
    fuse_random_uniform(7, FUSE_STREAM_DATA, (uint64_t)0 - 500, whole, COUNT); /* the first follows the last */
    fuse_random_uniform(7, FUSE_STREAM_DATA, 0, pieces, COUNT - 500);
    assert_memory_equal(whole + 500, pieces, (COUNT - 500) * sizeof(whole[0]));
    float other = 0;
    fuse_random_uniform(7, FUSE_STREAM_SHUFFLE, 5, &other, 1);
    assert_true(other != whole[0]);
}

/* Means and variances of n draws, within 5 standard errors. */
static void random_distributions(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    static float uniform[COUNT];
    fuse_random_uniform(3, 1, 0, uniform, COUNT);
    double sum = 0, normal_sum = 0, normal_squares = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(uniform[i] >= 0.0f && uniform[i] < 1.0f);
        sum += (double)uniform[i];
        const double normal = fuse_random_normal(3, FUSE_STREAM_PARAMETER, i);
        assert_true(isfinite(normal));
        normal_sum += normal;
        normal_squares += normal * normal;
    }
    assert_true(fabs(sum / COUNT - 0.5) < 5 * sqrt(1.0 / 12 / COUNT));
    assert_true(fabs(normal_sum / COUNT) < 5 * sqrt(1.0 / COUNT));
    assert_true(fabs(normal_squares / COUNT - 1) < 5 * sqrt(2.0 / COUNT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows_and_keeps_everything),
        cmocka_unit_test(text_writes_json),
        cmocka_unit_test(copies_of_strings),
        cmocka_unit_test(edit_distances),
        cmocka_unit_test(nearest_names),
        cmocka_unit_test(globs),
        cmocka_unit_test(row_40_numbers_are_the_whole_text),
        cmocka_unit_test(integers_are_the_whole_text),
        cmocka_unit_test(numbers_are_written_short),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(random_elements_do_not_depend_on_the_draw),
        cmocka_unit_test(random_distributions),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
