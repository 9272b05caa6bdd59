#include "base/number.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool fuse_number_is_finite(double value)
{
    return isfinite(value);
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
    const locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0)
        return false;
    const locale_t previous = uselocale(c_locale);
    char *end = NULL;
    const double parsed = strtod(text, &end);
    (void)uselocale(previous);
    freelocale(c_locale);
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

const char *fuse_number_format(double value, char buffer[FUSE_NUMBER_CHARS])
{
    if (!isfinite(value)) {
        (void)snprintf(buffer, FUSE_NUMBER_CHARS, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return buffer;
    }
    if (value == (double)(int64_t)(value > -1e15 && value < 1e15 ? value : 0) && (value != 0 || !signbit(value))) {
        (void)snprintf(buffer, FUSE_NUMBER_CHARS, "%" PRId64, (int64_t)value);
        return buffer;
    }
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(buffer, FUSE_NUMBER_CHARS, "%.*g", digits, value);
        char *comma = strchr(buffer, ','); /* a library may have set a comma locale */
        if (comma != NULL)
            *comma = '.';
        double back = 0;
        if (fuse_number_parse(buffer, &back) && back == value)
            break;
    }
    return buffer;
}
