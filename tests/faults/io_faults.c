/* A library to preload: makes the n-th system call on files of one folder fail, or ends the process there.
 *
 *   FAULT_FOLDER  the folder, absolute; calls on it and on what lies below count
 *   FAULT_CALLS   names that count, with commas (write,fsync); all: every one below
 *   FAULT_AT      the number of the call that it happens at, from 1; 0: none, only count
 *   FAULT_ALWAYS  1: at all later ones, too
 *   FAULT_KIND    an errno (28), `short` (a write takes half of its bytes), `kill` (SIGKILL before the call)
 *   FAULT_THEN    an errno for the call that counts next
 *   FAULT_LOG     a file that gets a line `N CALL PATH` for each call that counts, with ` *` behind those that failed
 *
 * Names: open write fsync close rename mkdir unlink rmdir symlink truncate flock. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 1024, PATH_BYTES = 4096 };

static char *paths[MOST_DESCRIPTORS]; /* of open files below the folder */
static unsigned long counted;
static bool was_struck;

static bool is_below(const char *path)
{
    const char *folder = getenv("FAULT_FOLDER");
    const size_t length = folder != NULL ? strlen(folder) : 0;
    return length > 0 && path != NULL && strncmp(path, folder, length) == 0 &&
           (path[length] == '/' || path[length] == '\0');
}

static const char *path_of(int descriptor)
{
    return descriptor >= 0 && descriptor < MOST_DESCRIPTORS ? paths[descriptor] : NULL;
}

static bool is_wanted(const char *call)
{
    const char *wanted = getenv("FAULT_CALLS");
    if (wanted == NULL || strcmp(wanted, "all") == 0)
        return wanted != NULL;
    for (const char *at = wanted; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        const size_t length = strcspn(at, ",");
        if (length == strlen(call) && strncmp(at, call, length) == 0)
            return true;
    }
    return false;
}

static void tell(const char *call, const char *path, bool happens)
{
    char line[PATH_BYTES + 64];
    const char *log = getenv("FAULT_LOG");
    if (log == NULL)
        return;
    const int length = snprintf(line, sizeof line, "%lu %s %s%s\n", counted, call, path, happens ? " *" : "");
    const int descriptor = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return;
    (void)syscall(SYS_write, descriptor, line, (size_t)length);
    (void)syscall(SYS_close, descriptor);
}

/* Whether it happens at this call; *is_short: as a short write, else with errno set. */
static bool strikes(const char *call, const char *path, bool *is_short)
{
    const char *at = getenv("FAULT_AT");
    const char *always = getenv("FAULT_ALWAYS");
    const char *then = getenv("FAULT_THEN");
    const char *kind = getenv("FAULT_KIND");
    const unsigned long number = at != NULL ? strtoul(at, NULL, 10) : 0;
    if (path == NULL || !is_below(path) || !is_wanted(call) || kind == NULL)
        return false;
    counted++;
    const bool is_next = was_struck && then != NULL && counted == number + 1;
    const bool happens =
        number > 0 && (counted == number || is_next || (counted > number && always != NULL && *always == '1'));
    tell(call, path, happens);
    if (!happens)
        return false;
    was_struck = true;
    if (is_next)
        kind = then;
    if (strcmp(kind, "kill") == 0)
        (void)raise(SIGKILL);
    *is_short = strcmp(kind, "short") == 0;
    if (*is_short)
        return strcmp(call, "write") == 0;
    errno = atoi(kind);
    return true;
}

static bool fails(const char *call, const char *path)
{
    bool is_short = false;
    return strikes(call, path, &is_short);
}

/* The next library's function of that name. */
#define NEXT(type, name, ...)                                                                                          \
    static type (*next)(__VA_ARGS__);                                                                                  \
    if (next == NULL) {                                                                                                \
        void *const symbol = dlsym(RTLD_NEXT, name);                                                                   \
        memcpy(&next, &symbol, sizeof next);                                                                           \
    }

static void forget(int descriptor)
{
    if (descriptor < 0 || descriptor >= MOST_DESCRIPTORS)
        return;
    free(paths[descriptor]);
    paths[descriptor] = NULL;
}

static int opened(int descriptor, const char *path)
{
    forget(descriptor);
    if (descriptor >= 0 && descriptor < MOST_DESCRIPTORS && is_below(path))
        paths[descriptor] = strdup(path);
    return descriptor;
}

static int open_at(const char *path, int flags, mode_t mode)
{
    if (fails("open", path))
        return -1;
    return opened((int)syscall(SYS_openat, AT_FDCWD, path, flags, mode), path);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open_at(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open_at(path, flags, mode);
}

int close(int descriptor)
{
    NEXT(int, "close", int)
    char *path = descriptor >= 0 && descriptor < MOST_DESCRIPTORS ? paths[descriptor] : NULL;
    if (path == NULL)
        return next(descriptor);
    paths[descriptor] = NULL;
    const bool is_failing = fails("close", path);
    const int cause = errno;
    free(path);
    const int result = next(descriptor); /* Linux closes it, whatever it returns */
    errno = is_failing ? cause : errno;
    return is_failing ? -1 : result;
}

/* The C library closes a stream's descriptor without calling close(). */
int fclose(FILE *stream)
{
    NEXT(int, "fclose", FILE *)
    forget(fileno(stream));
    return next(stream);
}

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    NEXT(ssize_t, "write", int, const void *, size_t)
    bool is_short = false;
    if (!strikes("write", path_of(descriptor), &is_short))
        return next(descriptor, bytes, count);
    return is_short ? next(descriptor, bytes, (count + 1) / 2) : -1;
}

ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t offset)
{
    NEXT(ssize_t, "pwrite", int, const void *, size_t, off_t)
    bool is_short = false;
    if (!strikes("write", path_of(descriptor), &is_short))
        return next(descriptor, bytes, count, offset);
    return is_short ? next(descriptor, bytes, (count + 1) / 2, offset) : -1;
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off64_t offset)
{
    NEXT(ssize_t, "pwrite64", int, const void *, size_t, off64_t)
    bool is_short = false;
    if (!strikes("write", path_of(descriptor), &is_short))
        return next(descriptor, bytes, count, offset);
    return is_short ? next(descriptor, bytes, (count + 1) / 2, offset) : -1;
}

ssize_t writev(int descriptor, const struct iovec *pieces, int count)
{
    NEXT(ssize_t, "writev", int, const struct iovec *, int)
    bool is_short = false;
    if (!strikes("write", path_of(descriptor), &is_short))
        return next(descriptor, pieces, count);
    return is_short ? write(descriptor, pieces[0].iov_base, (pieces[0].iov_len + 1) / 2) : -1;
}

int fsync(int descriptor)
{
    NEXT(int, "fsync", int)
    return fails("fsync", path_of(descriptor)) ? -1 : next(descriptor);
}

int fdatasync(int descriptor)
{
    NEXT(int, "fdatasync", int)
    return fails("fsync", path_of(descriptor)) ? -1 : next(descriptor);
}

int ftruncate(int descriptor, off_t length)
{
    NEXT(int, "ftruncate", int, off_t)
    return fails("truncate", path_of(descriptor)) ? -1 : next(descriptor, length);
}

int ftruncate64(int descriptor, off64_t length)
{
    NEXT(int, "ftruncate64", int, off64_t)
    return fails("truncate", path_of(descriptor)) ? -1 : next(descriptor, length);
}

int flock(int descriptor, int operation)
{
    NEXT(int, "flock", int, int)
    return fails("flock", path_of(descriptor)) ? -1 : next(descriptor, operation);
}

int rename(const char *from, const char *to)
{
    NEXT(int, "rename", const char *, const char *)
    return fails("rename", to) ? -1 : next(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(int, "mkdir", const char *, mode_t)
    return fails("mkdir", path) ? -1 : next(path, mode);
}

int unlink(const char *path)
{
    NEXT(int, "unlink", const char *)
    return fails("unlink", path) ? -1 : next(path);
}

int rmdir(const char *path)
{
    NEXT(int, "rmdir", const char *)
    return fails("rmdir", path) ? -1 : next(path);
}

int symlink(const char *target, const char *path)
{
    NEXT(int, "symlink", const char *, const char *)
    return fails("symlink", path) ? -1 : next(target, path);
}
