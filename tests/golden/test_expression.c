/* The expressions of `formula`: what is wrong with one is told with its column, whatever is written. (Their values are
 * compared with Python's in schedulers.json.) */
#include "plugins/schedulers/expression.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {"step", "base"};

static void assert_wrong(const char *text, const char *message)
{
    struct expression expression;
    char told[512];
    assert_int_equal(expression_parse(text, names, 2, &expression, told, sizeof told), -1);
    if (strncmp(told, message, strlen(message)) != 0)
        fail_msg("'%s' gives '%s', not '%s'", text, told, message);
}

static void mistakes_name_the_column(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "column 1: expected is a number, a name or '(', but there is the end of the expression"},
        {"   ", "column 4: expected is a number"},
        {"1 +", "column 4: expected is a number"},
        {"* 2", "column 1: expected is a number, a name or '(', but there is '*'"},
        {"1 2", "column 3: expected is an operator (+ - * / % ^ < <= > >= == !=), ',' or ')', but there is '2'"},
        {"base step", "column 6: expected is an operator"},
        {"0x10", "column 2: expected is an operator"},
        {"\xc3\xa9", "column 1: expected is a number, a name or '(', but there is '\xc3\xa9'"}, /* a whole letter */
        {"1 \xe2\x82\xac 2",
         "column 3: expected is an operator (+ - * / % ^ < <= > >= == !=), ',' or ')', but there is "
         "'\xe2\x82\xac'"},
        {"1 = 2", "column 3: expected is an operator"},
        {"(1", "column 1: this '(' is not closed"},
        {"2 * sqrt(1", "column 5: the '(' of sqrt is not closed"},
        {"1)", "column 2: this ')' has no '('"},
        {"()", "column 2: expected is a number"},
        {"max(1,)", "column 7: expected is a number"},
        {"(1, 2)", "column 3: a ',' stands between the values of a function only"},
        {"3,14", "column 2: a ',' stands"},
        {"sqrt(1, 2)", "column 1: sqrt takes 1 value, but here are 2"},
        {"1 + if(1, 2)", "column 5: if takes 3 values, but here are 2"},
        {"max(1)", "column 1: max takes 2 or more values, but here are 1"},
        {"sqrt + 1", "column 1: sqrt is a function: sqrt(...)"},
        {"base(1)", "column 1: 'base' is unknown; there are step, base, pi, and the functions abs, ceil,"},
        {"1 + lr", "column 5: 'lr' is unknown; there are step, base, pi, and the functions abs, ceil,"},
        {"1 < step < 3", "column 10: comparisons do not chain"},
        {".", "column 1: '.' alone is no number"},
        {"1e999", "column 1: the number is too large"},
        {"1..2", "column 3: expected is an operator"},
        {"1e", "column 2: expected is an operator"},
        {"base \xc3\x97 2", "column 6: expected is an operator"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_wrong(cases[i][0], cases[i][1]);
}

/* n times `repeated`, then `last`. */
static void repeat(char *text, size_t size, int n, const char *repeated, const char *last)
{
    size_t used = 0;
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, size - used, "%s", repeated);
    (void)snprintf(text + used, size - used, "%s", last);
}

static void length_and_depth_are_bounded(void **state)
{
    (void)state;
    static char text[400000];
    struct expression expression;
    char told[512];
    const double values[] = {2, 3};
    repeat(text, sizeof text, 100000, "(", "1");
    assert_wrong(text, "column 65: more than 64 parentheses and operators are open");
    repeat(text, sizeof text, 100000, "-", "1");
    assert_wrong(text, "column 65: more than 64");
    repeat(text, sizeof text, 100000, "2^", "1");
    assert_wrong(text, "column ");
    repeat(text, sizeof text, 1000, "1+", "1");
    assert_wrong(text, "column ");
    repeat(text, sizeof text, 300, "min(1,", "1");
    assert_wrong(text, "column ");
    repeat(text, sizeof text, 1000, "9", "");
    assert_wrong(text, "column 1: a number of more than");
    repeat(text, sizeof text, 1, "1e", "0");
    repeat(text + 2, sizeof text - 2, 1000, "0", "");
    assert_wrong(text, "column 1: a number of more than");
    repeat(text, sizeof text, 1000, "x", "");
    assert_wrong(text, "column 1: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' is unknown");
    repeat(text, sizeof text, 63, "(step - ", "base");
    repeat(text + strlen(text), sizeof text - strlen(text), 63, ")", "");
    assert_int_equal(expression_parse(text, names, 2, &expression, told, sizeof told), -1); /* 126 are open */
    repeat(text, sizeof text, 31, "(step - ", "base");
    repeat(text + strlen(text), sizeof text - strlen(text), 31, ")", "");
    assert_int_equal(expression_parse(text, names, 2, &expression, told, sizeof told), 0);
    assert_true(expression_value(&expression, values) == -1); /* 2 - (2 - (... - 3)), 31 times */
    repeat(text, sizeof text, 127, "step + ", "base");
    assert_int_equal(expression_parse(text, names, 2, &expression, told, sizeof told), 0);
    assert_true(expression_value(&expression, values) == 257);
    repeat(text, sizeof text, 128, "step + ", "base");
    assert_int_equal(expression_parse(text, names, 2, &expression, told, sizeof told), -1);
}

/* Anything at all is either refused with a message or evaluates within the stack. */
static void noise_is_survived(void **state)
{
    (void)state;
    static const char *const parts[] = {"1", "step", "base", "(",   ")",    ",", "+", "-",  "*",    "/",  "^", "**",
                                        "<", "==",   "min(", "if(", "max(", " ", ".", "e3", "abs(", "pi", "%", "?"};
    uint32_t seed = 7;
    int accepted = 0;
    for (int n = 0; n < 200000; n++) {
        char text[128] = "";
        const int count = (int)(seed >> 16) % 14;
        for (int i = 0; i <= count; i++) {
            seed = seed * 1664525u + 1013904223u;
            (void)strncat(text, parts[(seed >> 16) % (sizeof parts / sizeof parts[0])], sizeof text - strlen(text) - 1);
        }
        seed = seed * 1664525u + 1013904223u;
        struct expression expression;
        char told[512] = "";
        const double values[] = {2, 3};
        if (expression_parse(text, names, 2, &expression, told, sizeof told) != 0) {
            assert_int_equal(strncmp(told, "column ", 7), 0);
            continue;
        }
        accepted++;
        (void)expression_value(&expression, values); /* the sanitizers watch its stack */
    }
    assert_true(accepted > 2000);
}

static void min_and_max_show_what_is_no_number(void **state)
{
    (void)state;
    static const char *const texts[] = {"min(0 / 0, 1)", "min(1, 0 / 0)", "max(0 / 0, 1)", "max(1, 0 / 0)",
                                        "max(1, 2, 0/0, 3)"};
    const double values[] = {2, 3};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct expression expression;
        char told[512];
        assert_int_equal(expression_parse(texts[i], names, 2, &expression, told, sizeof told), 0);
        assert_true(isnan(expression_value(&expression, values)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_name_the_column),
        cmocka_unit_test(length_and_depth_are_bounded),
        cmocka_unit_test(noise_is_survived),
        cmocka_unit_test(min_and_max_show_what_is_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
