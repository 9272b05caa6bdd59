#include "base/number.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool fuse_number_is_finite(double value)
{
    return isfinite(value);
}

/* One for the whole process, made at the first use and never freed. (locale_t)0 when there is no memory for it. */
static locale_t c_locale(void)
{
    static _Atomic(locale_t) made;
    locale_t locale = atomic_load(&made);
    if (locale != (locale_t)0)
        return locale;
    locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t expected = (locale_t)0;
    if (locale != (locale_t)0 && !atomic_compare_exchange_strong(&made, &expected, locale)) {
        freelocale(locale); /* another thread was first */
        locale = expected;
    }
    return locale;
}

bool fuse_number_parse(const char *text, double *value)
{
    const char *digits = text + (*text == '+' || *text == '-');
    const bool is_infinity = strcmp(digits, "inf") == 0;
    if (!is_infinity && strspn(digits, "0123456789.eE+-") != strlen(digits))
        return false;
    if (!is_infinity && strchr(".0123456789", *digits) == NULL)
        return false;
    if (*digits == '\0')
        return false;
    const locale_t locale = c_locale();
    if (locale == (locale_t)0)
        return false;
    char *end = NULL;
    const double parsed = strtod_l(text, &end, locale);
    if (end == text || *end != '\0')
        return false;
    *value = parsed;
    return is_infinity || isfinite(parsed);
}

bool fuse_integer_parse(const char *text, int64_t *value)
{
    const char *digits = text + (*text == '+' || *text == '-');
    if (*digits == '\0' || strspn(digits, "0123456789") != strlen(digits))
        return false;
    errno = 0;
    char *end = NULL;
    const intmax_t parsed = strtoimax(text, &end, 10);
    if (errno != 0 || *end != '\0' || parsed < INT64_MIN || parsed > INT64_MAX)
        return false;
    *value = parsed;
    return true;
}

bool fuse_count_parse(const char *text, int64_t *count, const char **unit)
{
    char digits[24];
    const size_t length = strspn(text, "0123456789");
    if (length == 0 || length >= sizeof digits)
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    *unit = text + length + strspn(text + length, " \t");
    return fuse_integer_parse(digits, count);
}

bool fuse_size_parse(const char *text, int64_t *bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    const char *unit = NULL;
    int64_t count = 0;
    int shift = -1;
    if (!fuse_count_parse(text, &count, &unit))
        return false;
    if (*unit == '\0')
        shift = 0;
    for (int i = 0; i < 5; i++) {
        if (strcmp(unit, units[i]) == 0)
            shift = 10 * i;
    }
    if (shift < 0 || count > INT64_MAX >> shift)
        return false;
    *bytes = count << shift;
    return true;
}

/* digits / 10^decimals, written as %g would: 0.0015, 1.5e-05. */
static void write_decimal(bool is_negative, uint64_t number, int decimals, char *to)
{
    char digits[FUSE_NUMBER_CHARS]; /* the last one first */
    int count = 0;
    while (decimals > 0 && number % 10 == 0 && number > 0) {
        number /= 10;
        decimals--;
    }
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    if (is_negative)
        *to++ = '-';
    const int exponent = count - 1 - decimals;
    if (exponent < -4) {
        *to++ = digits[count - 1];
        if (count > 1)
            *to++ = '.';
        for (int i = count - 2; i >= 0; i--)
            *to++ = digits[i];
        *to++ = 'e';
        *to++ = '-';
        *to++ = (char)('0' - exponent / 10);
        *to++ = (char)('0' - exponent % 10);
    } else {
        for (int i = decimals + 1 > count ? decimals : count - 1; i >= 0; i--) {
            *to++ = i < count ? digits[i] : '0';
            if (i == decimals && decimals > 0)
                *to++ = '.';
        }
    }
    *to = '\0';
}

/* Most numbers in configs have few decimals. n / 10^k with n < 2^53 and k <= 22 is one rounding of two exact doubles,
 * so it is the double that the decimal reads back as (Clinger, "How to read floating point numbers accurately", PLDI
 * 1990). The smallest k gives the shortest decimal. Returns false if value is no such number. */
static bool format_short(double value, char *buffer)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const double magnitude = fabs(value);
    for (int decimals = 0; decimals < (int)(sizeof(powers) / sizeof(powers[0])); decimals++) {
        const double scaled = magnitude * powers[decimals];
        if (scaled >= 0x1p53)
            return false;
        const double rounded = (double)(int64_t)(scaled + 0.5);
        if (rounded / powers[decimals] == magnitude && rounded < 0x1p53) {
            write_decimal(signbit(value), (uint64_t)rounded, decimals, buffer);
            return true;
        }
    }
    return false;
}

#ifdef __SIZEOF_INT128__
__extension__ typedef unsigned __int128 uint128;

/* m * 10^k / 2^s to the nearest integer, ties to even. */
static uint64_t scale(uint64_t m, uint128 power, int s)
{
    const uint128 product = m * power, rest = product & (((uint128)1 << s) - 1), half = (uint128)1 << (s - 1);
    const uint64_t quotient = (uint64_t)(product >> s);
    return quotient + (rest > half || (rest == half && quotient % 2 == 1));
}

/* 16 or 17 digits of a number in [1e-6, 1e15), exactly: value = m / 2^s, and m * 10^k stays below 2^127. Losses and
 * learning rates are such numbers, and several are written for each update. */
static bool format_long(double value, char *buffer)
{
    const double magnitude = fabs(value);
    if (magnitude < 1e-6 || magnitude >= 1e15)
        return false;
    int exponent = 0;
    const uint64_t m = (uint64_t)ldexp(frexp(magnitude, &exponent), 53);
    const int s = 53 - exponent;
    int decimals = 1; /* so many that the integer before the point has 16 digits */
    uint128 power = 10;
    while ((m * power >> s) < 1000000000000000u) {
        power *= 10;
        decimals++;
    }
    /* Half the distance to the next double, times 2^s 10^k; a quarter below a power of two. */
    uint64_t number = scale(m, power, s);
    const uint128 exact = m * power, shown = (uint128)number << s;
    const uint128 error = shown > exact ? shown - exact : exact - shown;
    if (error < (m == (uint64_t)1 << 52 ? power / 4 : power / 2)) {
        write_decimal(signbit(value), number, decimals, buffer);
        return true;
    }
    write_decimal(signbit(value), scale(m, power * 10, s), decimals + 1, buffer);
    return true;
}
#else
static bool format_long(double value, char *buffer)
{
    (void)value;
    (void)buffer;
    return false;
}
#endif

const char *fuse_number_format(double value, char buffer[FUSE_NUMBER_CHARS])
{
    if (!isfinite(value)) {
        (void)snprintf(buffer, FUSE_NUMBER_CHARS, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return buffer;
    }
    if (format_short(value, buffer) || format_long(value, buffer))
        return buffer;
    const locale_t locale = c_locale();
    const locale_t before = uselocale(locale); /* without memory that is (locale_t)0, which changes nothing */
    /* Below the normal range fewer than 15 digits may tell neighbours apart; 17 always do. */
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        (void)snprintf(buffer, FUSE_NUMBER_CHARS, "%.*g", digits, value);
        if (digits < 17 && locale != (locale_t)0 && strtod_l(buffer, NULL, locale) == value)
            break;
    }
    (void)uselocale(before);
    return buffer;
}
