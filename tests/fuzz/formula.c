/* The expression of the `formula` schedule. */
#include "fuzz.h"

#include "plugins/schedulers/expression.h"

#include "files/files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void fuzz_one(const uint8_t *bytes, size_t count)
{
    static const char *const names[] = {"step", "epoch", "base", "total"};
    static const double points[][4] = {{0, 0, 1e-3, 1}, {99, 4.95, 0.1, 100}, {-1, 1e300, -0.0, INFINITY}};
    char message[512] = "";
    struct expression expression;
    char *text = fuzz_text(bytes, count);
    const int status = expression_parse(text, names, 4, &expression, message, sizeof message);
    FUZZ_CHECK(status == 0 || status == -1);
    if (status == 0) {
        FUZZ_CHECK(expression.count > 0 && expression.count <= EXPRESSION_MAX_LENGTH);
        for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
            const double first = expression_value(&expression, points[i]);
            const double again = expression_value(&expression, points[i]);
            FUZZ_CHECK(memcmp(&first, &again, sizeof first) == 0);
        }
    } else {
        bool is_line = true; /* a config's value holds no other bytes */
        for (const char *at = text; *at != '\0'; at++)
            is_line = is_line && (unsigned char)*at >= 0x20 && *at != 0x7f;
        FUZZ_CHECK(strncmp(message, "column ", 7) == 0);
        if (is_line && fuse_is_utf8(text, strlen(text))) {
            fuzz_check_line(message);
            FUZZ_CHECK(fuse_is_utf8(message, strlen(message)));
        }
    }
    free(text);
}
