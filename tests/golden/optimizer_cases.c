#include "optimizer_cases.h"

#include "base/text.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* value() of tools/make_golden_optimizers.py, exactly. */
float golden_value(uint32_t stream, uint32_t index)
{
    uint32_t word = stream * 0x9E3779B9u + index + 1u;
    word ^= word >> 16;
    word *= 0x7FEB352Du;
    word ^= word >> 15;
    word *= 0x846CA68Bu;
    word ^= word >> 16;
    if (stream > 0 && (word >> 3) % 16 == 0)
        return 0.0f;
    return (float)ldexp((double)(word >> 8) - 8388608.0, -23 - (int)(word & 7));
}

static void read_case(struct golden_case *golden)
{
    char *rest = NULL;
    char *drives = NULL;
    char *word = NULL;
    (void)strtok_r(golden->line, " \n", &rest); /* "case" */
    golden->name = strtok_r(NULL, " \n", &rest);
    golden->plugin = strtok_r(NULL, " \n", &rest);
    drives = strtok_r(NULL, " \n", &rest);
    assert_non_null(drives);
    while ((word = strtok_r(NULL, " \n", &rest)) != NULL) {
        assert_true(golden->pair_count < MAX_PAIRS);
        golden->pairs[golden->pair_count++] = word;
    }
    for (word = strtok_r(drives, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        assert_true(golden->drive_count < MAX_DRIVEN);
        golden->drives[golden->drive_count++] = word;
    }
}

void golden_cases_read(const char *path, struct golden_cases *golden)
{
    char line[512];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    memset(golden, 0, sizeof *golden);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "factors ", 8) == 0) {
            char *at = line + 8;
            for (int i = 0; i < UPDATES; i++)
                golden->factors[i] = strtod(at, &at);
        } else if (strncmp(line, "case ", 5) == 0) {
            assert_true(golden->count < MAX_CASES);
            golden->cases[golden->count].line = fuse_strdup(line);
            read_case(&golden->cases[golden->count++]);
        }
    }
    (void)fclose(file);
    assert_true(golden->count > 0);
    assert_true(golden->factors[UPDATES - 1] > 0.0);
}

void golden_cases_free(struct golden_cases *golden)
{
    for (size_t i = 0; i < golden->count; i++)
        free(golden->cases[i].line);
    golden->count = 0;
}
