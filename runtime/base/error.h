/* base/ - what every other room may use and which uses none of them: errors, text, numbers, random numbers.
 *
 * Errors: functions that can fail return an int, FUSERUN_OK or a negative enum fuse_status, and take a
 * struct fuse_error * last. Whoever notices an error writes the whole message; everybody else passes it on. */
#ifndef FUSE_BASE_ERROR_H
#define FUSE_BASE_ERROR_H

#include <fuserun/abi.h>

#include <stdarg.h>

#define FUSE_ERROR_INIT                                                                                                \
    {                                                                                                                  \
        FUSERUN_STRUCT_SIZE(fuse_error, text), 0, "", ""                                                               \
    }

/* Passes a failure on: from functions with nothing to clean up, and to the one `out:` label of those that have. */
#define FUSE_TRY(expression)                                                                                           \
    do {                                                                                                               \
        const int fuse_status_ = (expression);                                                                         \
        if (fuse_status_ != FUSERUN_OK)                                                                                \
            return fuse_status_;                                                                                       \
    } while (0)
#define FUSE_TRY_OUT(expression)                                                                                       \
    do {                                                                                                               \
        status = (expression);                                                                                         \
        if (status != FUSERUN_OK)                                                                                      \
            goto out;                                                                                                  \
    } while (0)

/* Fills *error (which may be NULL) and returns code. key: the option at fault, or NULL. Control bytes in what the
 * message quotes become `?`. */
int fuse_fail(struct fuse_error *error, int code, const char *key, const char *format, ...) FUSERUN_PRINTF(4, 5);
int fuse_fail_va(struct fuse_error *error, int code, const char *key, const char *format, va_list arguments)
    FUSERUN_PRINTF(4, 0);

/* "out of memory for WHAT (N bytes)", without the bytes where they are 0. */
int fuse_fail_memory(struct fuse_error *error, const char *what, size_t bytes);

/* After `what`, a plugin's, failed with this status: makes up for a message that it did not write. Never FUSERUN_OK. */
int fuse_fail_unsaid(struct fuse_error *error, int status, const char *what);

#endif
