/* A library to preload: makes the n-th allocation fail, of those that the named modules ask for.
 *
 *   FAULT_MODULES  parts of file names, with commas: allocations called from those programs and libraries count
 *   FAULT_AT       the number of the allocation that fails, from 1; 0: none
 *   FAULT_ALWAYS   1: all later ones, too
 *   FAULT_LOG      a file for what was seen
 *
 * With FAULT_STRIDE instead of FAULT_AT every STRIDE-th, from number FAULT_FROM on, is made to fail in a copy of the
 * process (fork), while the process itself waits and then goes on: one run tries them all, and each costs only what
 * comes behind the failure. FAULT_LOG gets a line for each, fields with tabs between: number, function, bytes, caller
 * (module+offset), exit status (128 + signal), FNV-1a of stdout, stderr (newlines as \n). When the process begins to
 * write files it has come to what copies would disturb: no further copies are made, and the log gets `written N`, the
 * allocations so far; a copy that comes so far ends with status 77. At the end the log gets `counted N`. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANGES = 256, TEXT_BYTES = 2048, MOST_FILES = 64, ENDED_IN_WRITING = 77, MOST_SECONDS = 60 };

static struct {
    unsigned long at, from, stride;
    bool is_always;
    const char *modules;
    int log; /* -1: none */
} plan;

static unsigned long counted;
static bool is_ready, is_copy, has_written;
static _Thread_local bool is_busy;                       /* looking at an allocation: its own do not count */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* checkpoints are written by a thread of their own */

/* ---- who calls --------------------------------------------------------------------------------------------------- */

static struct {
    uintptr_t page;
    bool counts;
} ranges[MOST_RANGES]; /* by 64 KiB of code, which no two modules share */

static bool is_named(const char *file)
{
    const char *at = plan.modules;
    while (at != NULL && *at != '\0') {
        char part[128];
        const size_t length = strcspn(at, ",");
        if (length < sizeof part) {
            memcpy(part, at, length);
            part[length] = '\0';
            if (strstr(file, part) != NULL)
                return true;
        }
        at += length + (at[length] == ',');
    }
    return false;
}

static bool counts_from(const void *caller)
{
    const uintptr_t page = (uintptr_t)caller >> 12;
    const size_t slot = (page * 0x9E3779B1u >> 8) % MOST_RANGES;
    if (ranges[slot].page == page)
        return ranges[slot].counts;
    Dl_info info;
    ranges[slot].page = page;
    ranges[slot].counts = dladdr(caller, &info) != 0 && info.dli_fname != NULL && is_named(info.dli_fname);
    return ranges[slot].counts;
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

static void tell(const char *format, ...)
{
    char line[2 * TEXT_BYTES];
    va_list arguments;
    if (plan.log < 0)
        return;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    (void)!write(plan.log, line, length < (int)sizeof line ? (size_t)length : sizeof line - 1);
}

/* FNV-1a of a file's bytes. */
static uint64_t hash_of(int descriptor)
{
    unsigned char bytes[4096];
    uint64_t hash = 0xcbf29ce484222325u;
    ssize_t count;
    for (off_t at = 0; (count = pread(descriptor, bytes, sizeof bytes, at)) > 0; at += count) {
        for (ssize_t i = 0; i < count; i++)
            hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    return hash;
}

/* Fields hold no newline. */
static void read_text(int descriptor, char text[TEXT_BYTES])
{
    char bytes[TEXT_BYTES / 2];
    const ssize_t count = pread(descriptor, bytes, sizeof bytes, 0);
    char *to = text;
    for (ssize_t i = 0; i < count; i++) {
        if (bytes[i] == '\n')
            *to++ = '\\';
        *to++ = bytes[i] == '\n' ? 'n' : bytes[i] == '\t' || bytes[i] == '\0' ? ' ' : bytes[i];
    }
    *to = '\0';
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Runs the rest of the process in a copy. True in the copy. A copy shares the places in open files with the process:
 * they are put back. */
static bool try_copy(const char *function, size_t bytes, const void *caller)
{
    off_t places[MOST_FILES];
    char text[TEXT_BYTES];
    Dl_info info = {.dli_fname = "?"};
    const int words = memfd_create("stderr", MFD_CLOEXEC), rest = memfd_create("stdout", MFD_CLOEXEC);
    for (int file = 0; file < MOST_FILES; file++)
        places[file] = lseek(file, 0, SEEK_CUR);
    const pid_t copy = fork();
    if (copy == 0) {
        (void)dup2(words, STDERR_FILENO);
        (void)dup2(rest, STDOUT_FILENO);
        (void)alarm(MOST_SECONDS);
        is_copy = true;
        return true;
    }
    int status = 0;
    while (copy > 0 && waitpid(copy, &status, 0) < 0 && errno == EINTR)
        continue;
    for (int file = 0; file < MOST_FILES; file++) {
        if (places[file] >= 0)
            (void)lseek(file, places[file], SEEK_SET);
    }
    read_text(words, text);
    (void)dladdr(caller, &info);
    const char *slash = strrchr(info.dli_fname, '/');
    tell("%lu\t%s\t%zu\t%s+%#zx\t%d\t%016llx\t%s\n", counted, function, bytes,
         slash != NULL ? slash + 1 : info.dli_fname, (size_t)((const char *)caller - (const char *)info.dli_fbase),
         copy < 0            ? -1
         : WIFEXITED(status) ? WEXITSTATUS(status)
                             : 128 + WTERMSIG(status),
         (unsigned long long)hash_of(rest), text);
    (void)close(words);
    (void)close(rest);
    return false;
}

static bool fails(const char *function, size_t bytes, const void *caller)
{
    if (!is_ready || is_busy)
        return false;
    is_busy = true;
    bool is_failing = false;
    (void)pthread_mutex_lock(&lock);
    if (counts_from(caller)) {
        counted++;
        if (plan.stride > 0 && !is_copy && !has_written && counted >= plan.from &&
            (counted - plan.from) % plan.stride == 0 && try_copy(function, bytes, caller))
            plan.at = counted;
        is_failing = plan.at > 0 && (counted == plan.at || (plan.is_always && counted > plan.at));
    }
    (void)pthread_mutex_unlock(&lock);
    is_busy = false;
    if (is_failing)
        errno = ENOMEM;
    return is_failing;
}

static void begin_writing(void)
{
    if (plan.stride == 0 || has_written)
        return;
    has_written = true;
    if (is_copy)
        _exit(ENDED_IN_WRITING);
    tell("written %lu\n", counted);
}

static unsigned long number_of(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? strtoul(text, NULL, 10) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *log = getenv("FAULT_LOG");
    plan.at = number_of("FAULT_AT");
    plan.from = number_of("FAULT_FROM");
    plan.stride = number_of("FAULT_STRIDE");
    plan.is_always = number_of("FAULT_ALWAYS") != 0;
    plan.modules = getenv("FAULT_MODULES");
    plan.log = log != NULL ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    is_ready = true;
}

__attribute__((destructor)) static void end(void)
{
    if (!is_copy)
        tell("counted %lu\n", counted);
}

/* ---- the functions ----------------------------------------------------------------------------------------------- */

/* The next library's function of that name. */
#define NEXT(type, name, ...)                                                                                          \
    static type (*next)(__VA_ARGS__);                                                                                  \
    if (next == NULL) {                                                                                                \
        void *const symbol = dlsym(RTLD_NEXT, name);                                                                   \
        memcpy(&next, &symbol, sizeof next);                                                                           \
    }
#define CALLER __builtin_return_address(0)

void *malloc(size_t bytes)
{
    NEXT(void *, "malloc", size_t)
    return fails("malloc", bytes, CALLER) ? NULL : next(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    NEXT(void *, "calloc", size_t, size_t)
    return fails("calloc", count * bytes, CALLER) ? NULL : next(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    NEXT(void *, "realloc", void *, size_t)
    return fails("realloc", bytes, CALLER) ? NULL : next(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    NEXT(void *, "aligned_alloc", size_t, size_t)
    return fails("aligned_alloc", bytes, CALLER) ? NULL : next(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    NEXT(int, "posix_memalign", void **, size_t, size_t)
    return fails("posix_memalign", bytes, CALLER) ? ENOMEM : next(memory, alignment, bytes);
}

char *strdup(const char *text)
{
    NEXT(char *, "strdup", const char *)
    return fails("strdup", strlen(text) + 1, CALLER) ? NULL : next(text);
}

char *strndup(const char *text, size_t count)
{
    NEXT(char *, "strndup", const char *, size_t)
    return fails("strndup", count + 1, CALLER) ? NULL : next(text, count);
}

void *mmap(void *place, size_t bytes, int protection, int flags, int descriptor, off_t offset)
{
    NEXT(void *, "mmap", void *, size_t, int, int, int, off_t)
    return fails("mmap", bytes, CALLER) ? MAP_FAILED : next(place, bytes, protection, flags, descriptor, offset);
}

void *mmap64(void *place, size_t bytes, int protection, int flags, int descriptor, off64_t offset)
{
    NEXT(void *, "mmap64", void *, size_t, int, int, int, off64_t)
    return fails("mmap", bytes, CALLER) ? MAP_FAILED : next(place, bytes, protection, flags, descriptor, offset);
}

char *getcwd(char *buffer, size_t bytes)
{
    NEXT(char *, "getcwd", char *, size_t)
    return buffer == NULL && fails("getcwd", bytes, CALLER) ? NULL : next(buffer, bytes);
}

char *realpath(const char *restrict path, char *restrict resolved)
{
    NEXT(char *, "realpath", const char *restrict, char *restrict)
    return resolved == NULL && fails("realpath", 0, CALLER) ? NULL : next(path, resolved);
}

DIR *opendir(const char *path)
{
    NEXT(DIR *, "opendir", const char *)
    return fails("opendir", 0, CALLER) ? NULL : next(path);
}

FILE *fopen(const char *restrict path, const char *restrict mode)
{
    NEXT(FILE *, "fopen", const char *restrict, const char *restrict)
    return fails("fopen", 0, CALLER) ? NULL : next(path, mode);
}

FILE *fopen64(const char *restrict path, const char *restrict mode)
{
    NEXT(FILE *, "fopen64", const char *restrict, const char *restrict)
    return fails("fopen", 0, CALLER) ? NULL : next(path, mode);
}

/* ---- where writing begins ---------------------------------------------------------------------------------------- */

static int open_next(const char *name, const char *path, int flags, mode_t mode)
{
    int (*next)(const char *, int, ...);
    void *const symbol = dlsym(RTLD_NEXT, name);
    memcpy(&next, &symbol, sizeof next);
    if ((flags & O_CREAT) != 0 && is_ready)
        begin_writing();
    return next(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open_next("open", path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open_next("open64", path, flags, mode);
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(int, "mkdir", const char *, mode_t)
    begin_writing();
    return next(path, mode);
}

int unlink(const char *path)
{
    NEXT(int, "unlink", const char *)
    begin_writing();
    return next(path);
}

int rename(const char *from, const char *to)
{
    NEXT(int, "rename", const char *, const char *)
    begin_writing();
    return next(from, to);
}
