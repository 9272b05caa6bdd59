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

/* Most numbers in configs and logs have few decimals. n / 10^k with n < 2^53 and k <= 22 is one rounding of two exact
 * doubles, so it is the double that the decimal reads back as (Clinger, "How to read floating point numbers
 * accurately", PLDI 1990). The smallest k gives the shortest decimal. Returns false if value is no such number. */
static bool format_short(double value, char *buffer)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const double magnitude = fabs(value);
    int decimals = 0;
    int64_t scaled = 0;
    for (;; decimals++) {
        if (decimals == (int)(sizeof(powers) / sizeof(powers[0])) || magnitude * powers[decimals] >= 0x1p53)
            return false;
        const double rounded = nearbyint(magnitude * powers[decimals]);
        if (rounded / powers[decimals] == magnitude) {
            scaled = (int64_t)rounded;
            break;
        }
    }
    char digits[FUSE_NUMBER_CHARS];
    int count = 0; /* of digits, the last one first */
    do {
        digits[count++] = (char)('0' + scaled % 10);
        scaled /= 10;
    } while (scaled > 0);
    char *to = buffer;
    if (signbit(value))
        *to++ = '-';
    const int exponent = count - 1 - decimals;
    if (exponent < -4) { /* as %g writes it: 1.5e-05 */
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
    return true;
}

const char *fuse_number_format(double value, char buffer[FUSE_NUMBER_CHARS])
{
    if (!isfinite(value)) {
        (void)snprintf(buffer, FUSE_NUMBER_CHARS, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return buffer;
    }
    if (format_short(value, buffer))
        return buffer;
    const locale_t locale = c_locale(), before = uselocale(locale); /* no memory: (locale_t)0 changes nothing */
    for (int digits = 15; digits <= 17; digits++) {                 /* 17 always read back */
        (void)snprintf(buffer, FUSE_NUMBER_CHARS, "%.*g", digits, value);
        if (digits < 17 && locale != (locale_t)0 && strtod_l(buffer, NULL, locale) == value)
            break;
    }
    (void)uselocale(before);
    return buffer;
}
