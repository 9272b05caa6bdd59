/* Numbers do not change with the locale: a locale with a decimal comma is made, set, and everything read and written.
 */
#include "config_case.h"

#include "base/number.h"

#include <locale.h>

static const char *skipped; /* why */

static int make_comma_locale(void **state)
{
    if (enter_temporary_folder(state) != 0)
        return -1;
    char *folder = getcwd(NULL, 0);
    const int made = system("localedef -i de_DE -f UTF-8 ./de_DE.UTF-8 >localedef.log 2>&1");
    if (folder == NULL || setenv("LOCPATH", folder, 1) != 0)
        return -1;
    free(folder);
    if (setlocale(LC_ALL, "de_DE.UTF-8") == NULL)
        skipped = made == 0 ? "the locale that localedef made cannot be set"
                            : "localedef or its sources are missing (packages libc-bin and locales)";
    else if (strcmp(localeconv()->decimal_point, ",") != 0)
        skipped = "the locale's decimal point is no comma";
    return 0;
}

static void row_40_numbers_under_a_comma_locale(void **state)
{
    (void)state;
    if (skipped != NULL)
        skip();
    assert_true(strtod("1,5", NULL) == 1.5); /* the trap is set */
    static const struct {
        const char *text;
        double value;
    } good[] = {{"1e-5", 1e-5}, {".5", 0.5}, {"5E-4", 5e-4}, {"0.1", 0.1}, {"-2.75", -2.75}, {"1e300", 1e300}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        double value = 0;
        assert_true(fuse_number_parse(good[i].text, &value));
        assert_memory_equal(&value, &good[i].value, sizeof(value));
    }
    double value = 0;
    assert_true(fuse_number_parse("inf", &value) && value > 1e308);
    assert_false(fuse_number_parse("1e-5x", &value));
    assert_false(fuse_number_parse("3,14", &value));
    assert_false(fuse_number_parse("1.000,5", &value));
    static const struct {
        double value;
        const char *text;
    } written[] = {
        {0.1, "0.1"}, {1e-5, "1e-05"}, {1.0 / 3, "0.3333333333333333"}, {1.5e-300, "1.5e-300"}, {1.5e300, "1.5e+300"}};
    char buffer[FUSE_NUMBER_CHARS];
    for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++)
        assert_string_equal(fuse_number_format(written[i].value, buffer), written[i].text);
}

/* The resolved config of one and the same file, in both locales. */
static void row_40_configs_under_a_comma_locale(void **state)
{
    (void)state;
    if (skipped != NULL)
        skip();
    write_text("x.ini", GOOD "lr = 1.5e-5\nbetas = .5, 0.123456789\neps = 1.5e-300\n[loss]\nlabel_smoothing = 0.1\n");
    struct fuse_text texts[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        assert_non_null(setlocale(LC_ALL, i == 0 ? "C" : "de_DE.UTF-8"));
        struct outcome outcome = read_good("x.ini", NULL);
        assert_true(fuse_option_number(fuse_config_options(outcome.config, "optimizer"), "lr") == 1.5e-5);
        fuse_config_write(outcome.config, &texts[i]);
        end_outcome(&outcome);
    }
    assert_string_equal(texts[0].data, texts[1].data);
    assert_non_null(strstr(texts[0].data, "\nbetas = 0.5, 0.123456789\n"));
    fuse_text_free(&texts[0]);
    fuse_text_free(&texts[1]);
    assert_said(GOOD "lr = 3,14\n", NULL,
                "x.ini:10: optimizer.lr: '3,14' is not a number in [0, inf) (the decimal point is '.')\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_40_numbers_under_a_comma_locale),
        cmocka_unit_test(row_40_configs_under_a_comma_locale),
    };
    const int failed = cmocka_run_group_tests_name("locale", tests, make_comma_locale, leave_temporary_folder);
    if (skipped != NULL)
        print_message("skipped: %s\n", skipped);
    return failed == 0 && skipped != NULL ? 77 : failed;
}
