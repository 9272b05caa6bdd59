#include "base/error.h"

#include <stdio.h>

/* A message is one line, and does nothing to a terminal, whatever it quotes of a file or a plugin. */
static void make_one_line(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

int fuse_fail_va(struct fuse_error *error, int code, const char *key, const char *format, va_list arguments)
{
    if (error != NULL) {
        error->code = code;
        (void)snprintf(error->key, sizeof error->key, "%s", key != NULL ? key : "");
        (void)vsnprintf(error->text, sizeof error->text, format, arguments);
        make_one_line(error->text);
    }
    return code;
}

int fuse_fail(struct fuse_error *error, int code, const char *key, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)fuse_fail_va(error, code, key, format, arguments);
    va_end(arguments);
    return code;
}

int fuse_fail_memory(struct fuse_error *error, const char *what, size_t bytes)
{
    if (bytes == 0)
        return fuse_fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for %s", what);
    return fuse_fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for %s (%zu bytes)", what, bytes);
}

int fuse_fail_unsaid(struct fuse_error *error, int status, const char *what)
{
    status = status < 0 ? status : FUSERUN_ERROR_PLUGIN;
    if (error->text[0] != '\0') {
        error->code = status;
        return status;
    }
    return fuse_fail(error, status, NULL, "%s failed without saying why", what);
}
