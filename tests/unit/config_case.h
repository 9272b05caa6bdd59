/* Configs written to a temporary folder, read with the made-up plugins, and what that says. */
#ifndef FUSE_TESTS_CONFIG_CASE_H
#define FUSE_TESTS_CONFIG_CASE_H

#include "fake_plugins.h"

#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

/* Lines 1 to 9 of a config with nothing wrong; a case goes on with line 10. */
#define GOOD                                                                                                           \
    "[run]\nsteps = 5\n[model]\nplugin = mlp\nsizes = 2, 3\n[data]\nplugin = noise\n[optimizer]\nplugin = adam\n"

static inline int enter_temporary_folder(void **state)
{
    (void)state;
    static char folder[] = "/tmp/fuserun-config-XXXXXX";
    return mkdtemp(folder) == NULL || chdir(folder) != 0 ? -1 : 0;
}

static inline int leave_temporary_folder(void **state)
{
    (void)state;
    char *folder = getcwd(NULL, 0);
    char *command = fuse_format("rm -rf '%s'", folder);
    const int status = chdir("/") == 0 && command != NULL ? system(command) : -1;
    free(command);
    free(folder);
    return status;
}

static inline void write_bytes(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

/* A config read and resolved, with all that was said. */
struct outcome {
    struct fuse_config *config;
    char *said;
    size_t error_count;
    int status; /* of resolving */
};

static inline struct outcome read_config(const char *path, const char *const *overrides)
{
    struct outcome outcome = {.status = FUSERUN_ERROR_IO};
    size_t override_count = 0, size = 0;
    while (overrides != NULL && overrides[override_count] != NULL)
        override_count++;
    struct fuse_diagnostics *diagnostics = fuse_diagnostics_new();
    assert_non_null(diagnostics);
    if (fuse_config_read(path, overrides, override_count, diagnostics, &outcome.config) == FUSERUN_OK)
        outcome.status = fuse_config_resolve(outcome.config, &fake_resolver, diagnostics);
    FILE *stream = open_memstream(&outcome.said, &size);
    assert_non_null(stream);
    fuse_diagnostics_print(diagnostics, stream);
    assert_int_equal(fclose(stream), 0);
    outcome.error_count = fuse_diagnostics_error_count(diagnostics);
    fuse_diagnostics_free(&diagnostics);
    assert_int_equal(outcome.status == FUSERUN_OK, outcome.error_count == 0);
    return outcome;
}

static inline void end_outcome(struct outcome *outcome)
{
    fuse_config_free(&outcome->config);
    free(outcome->said);
    outcome->said = NULL;
}

/* The config must be read without a word. */
static inline struct outcome read_good(const char *path, const char *const *overrides)
{
    struct outcome outcome = read_config(path, overrides);
    assert_string_equal(outcome.said, "");
    assert_int_equal(outcome.status, FUSERUN_OK);
    return outcome;
}

/* Exactly this must be said. */
static inline void assert_said(const char *text, const char *const *overrides, const char *expected)
{
    write_text("x.ini", text);
    struct outcome outcome = read_config("x.ini", overrides);
    if (strcmp(outcome.said, expected) != 0)
        print_error("--- config:\n%s--- said:\n%s--- expected:\n%s", text, outcome.said, expected);
    assert_string_equal(outcome.said, expected);
    end_outcome(&outcome);
}

#endif
