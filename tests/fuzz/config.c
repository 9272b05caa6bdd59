/* An experiment file with what it includes and the command line's overrides, read and resolved with made-up plugins.
 * The parts stand one behind the other, FUZZ_SEPARATOR between them: the file, two that it may include (as `101` and
 * `102`), overrides. A config without a mistake is written out, and that must read back without one as the same. */
#include "fuzz.h"

#include "../unit/fake_plugins.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OVERRIDES = 16 };

/* Every line says where; an include may have written the path in a longer way. */
static void check_line(const char *line, size_t length)
{
    bool is_fine = memmem(line, length, "/proc/self/fd/", 14) != NULL || strncmp(line, "command line: ", 14) == 0;
    for (size_t i = 0; i < length; i++)
        is_fine = is_fine && ((unsigned char)line[i] >= 0x20 || line[i] == '\t') && line[i] != 0x7f;
    if (!is_fine)
        (void)fprintf(stderr, "--- said: %.*s\n", (int)length, line);
    FUZZ_CHECK(is_fine);
}

static void check_said(const char *said, size_t length)
{
    FUZZ_CHECK(said != NULL);
    for (const char *line = said; line < said + length;) {
        const char *end = memchr(line, '\n', (size_t)(said + length - line));
        FUZZ_CHECK(end != NULL && end > line);
        check_line(line, (size_t)(end - line));
        line = end + 1;
    }
}

/* The resolved config's text; NULL if there was a mistake. */
static char *resolve(const char *path, const char *const *overrides, size_t override_count)
{
    struct fuse_config *config = NULL;
    struct fuse_diagnostics *diagnostics = fuse_diagnostics_new();
    char *said = NULL;
    size_t length = 0;
    struct fuse_text text = {0};
    FUZZ_CHECK(diagnostics != NULL);
    int status = fuse_config_read(path, overrides, override_count, diagnostics, &config);
    FUZZ_CHECK(status == FUSERUN_OK && config != NULL);
    status = fuse_config_resolve(config, &fake_resolver, diagnostics);
    FILE *stream = open_memstream(&said, &length);
    FUZZ_CHECK(stream != NULL);
    fuse_diagnostics_print(diagnostics, stream);
    FUZZ_CHECK(fclose(stream) == 0);
    check_said(said, length);
    free(said);
    FUZZ_CHECK((status == FUSERUN_OK) == (fuse_diagnostics_error_count(diagnostics) == 0));
    if (status == FUSERUN_OK)
        fuse_config_write(config, &text);
    FUZZ_CHECK(!text.failed);
    fuse_diagnostics_free(&diagnostics);
    fuse_config_free(&config);
    return text.data;
}

void fuzz_one(const uint8_t *bytes, size_t count)
{
    const uint8_t *part;
    size_t part_count, override_count = 0;
    char *overrides[MOST_OVERRIDES];
    const char *path = NULL;
    if (setenv("FUZZ", "from the environment", 1) != 0)
        return;
    for (int slot = 0; slot < 3; slot++) {
        const bool is_there = fuzz_next_part(&bytes, &count, &part, &part_count);
        const char *made = fuzz_file(slot, is_there ? part : (const uint8_t *)"", is_there ? part_count : 0);
        path = path == NULL ? made : path;
    }
    while (override_count < MOST_OVERRIDES && fuzz_next_part(&bytes, &count, &part, &part_count))
        overrides[override_count++] = fuzz_text(part, part_count);
    char *written = resolve(path, (const char *const *)overrides, override_count);
    if (written != NULL) {
        char *again = resolve(fuzz_file(3, written, strlen(written)), NULL, 0);
        if (again == NULL || strcmp(again, written) != 0)
            (void)fprintf(stderr, "--- written:\n%s--- read and written again:\n%s", written,
                          again != NULL ? again : "a mistake\n");
        FUZZ_CHECK(again != NULL && strcmp(again, written) == 0);
        free(again);
    }
    free(written);
    while (override_count > 0)
        free(overrides[--override_count]);
}
