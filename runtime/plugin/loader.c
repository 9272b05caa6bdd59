#include "plugin/loader.h"

#include "plugin/registry.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if __SIZEOF_POINTER__ == 8
#define NATIVE_CLASS ELFCLASS64
#else
#define NATIVE_CLASS ELFCLASS32
#endif
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NATIVE_DATA ELFDATA2LSB
#else
#define NATIVE_DATA ELFDATA2MSB
#endif
#if defined(__x86_64__)
#define NATIVE_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define NATIVE_MACHINE EM_AARCH64
#endif

/* dlopen() maps a file without comparing its length with what its headers promise, and a cut one is then a SIGBUS. So
 * the length is checked here; everything else that can be wrong with an ELF file is left to dlopen(). */
static int check_elf(int descriptor, uint64_t file_bytes, struct fuse_error *error)
{
    ElfW(Ehdr) header;
    const ssize_t got = pread(descriptor, &header, sizeof header, 0);
    if (got < 0)
        return fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot be read: %s", strerror(errno));
    if (got == 0)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "the file is empty");
    if (got < SELFMAG || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "not a shared object (no ELF header)");
    if ((size_t)got < sizeof header)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "cut short: only %zd bytes of an ELF header", got);
    if (header.e_ident[EI_CLASS] != NATIVE_CLASS)
        return FUSERUN_OK;
    if (header.e_ident[EI_DATA] != NATIVE_DATA)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                         "built for another processor (its bytes are in the other order)");
#ifdef NATIVE_MACHINE
    /* dlopen() says "No such file" here. */
    if (header.e_machine != NATIVE_MACHINE)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                         "built for another processor (its ELF machine is %u, this fuserun's %u)", header.e_machine,
                         NATIVE_MACHINE);
#endif
    if (header.e_phentsize != sizeof(ElfW(Phdr)))
        return FUSERUN_OK;
    uint64_t needed = header.e_phoff + (uint64_t)header.e_phnum * sizeof(ElfW(Phdr));
    for (unsigned i = 0; i < header.e_phnum && needed <= file_bytes; i++) {
        ElfW(Phdr) segment;
        if (pread(descriptor, &segment, sizeof segment, (off_t)(header.e_phoff + i * sizeof segment)) !=
            (ssize_t)sizeof segment)
            break;
        const uint64_t end = (uint64_t)segment.p_offset + segment.p_filesz;
        if (segment.p_type == PT_LOAD && end > needed)
            needed = end;
    }
    if (needed > file_bytes)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "cut short: %llu bytes of at least %llu",
                         (unsigned long long)file_bytes, (unsigned long long)needed);
    return FUSERUN_OK;
}

static int check_file(const char *file, struct fuse_error *error)
{
    struct stat info;
    /* O_NONBLOCK: a pipe of that name must not hold us up. */
    const int descriptor = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot be opened: %s", strerror(errno));
    int status = FUSERUN_OK;
    if (fstat(descriptor, &info) != 0)
        status = fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot be read: %s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "not a file");
    else
        status = check_elf(descriptor, (uint64_t)info.st_size, error);
    (void)close(descriptor);
    return status;
}

static fuse_plugin_entry *entry_of(void *handle)
{
    fuse_plugin_entry *entry = NULL;
    void *symbol = dlsym(handle, FUSERUN_ENTRY_NAME);
    /* ISO C has no cast from an object pointer to a function pointer; POSIX promises that the bytes fit. */
    _Static_assert(sizeof entry == sizeof symbol, "function and object pointers of one size");
    memcpy(&entry, &symbol, sizeof entry);
    return entry;
}

/* The child's exit status when nothing crashed; whatever else was wrong is found again, and told, by the parent. */
#define CHILD_CAME_BACK 93

static int try_in_child(const char *file, struct fuse_error *error)
{
    const pid_t child = fork();
    if (child < 0)
        return FUSERUN_OK; /* no process to spare: go without the trial */
    if (child == 0) {
        const int nowhere = open("/dev/null", O_RDWR);
        if (nowhere >= 0) {
            (void)dup2(nowhere, STDIN_FILENO);
            (void)dup2(nowhere, STDOUT_FILENO);
            (void)dup2(nowhere, STDERR_FILENO);
        }
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        /* A crash must end the child as what it is, whoever (a sanitizer, a test) has a handler of their own for it. */
        static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
        for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
            (void)signal(crashes[i], SIG_DFL);
        void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        fuse_plugin_entry *entry = handle != NULL ? entry_of(handle) : NULL;
        if (entry != NULL)
            (void)entry(fuse_host());
        _exit(CHILD_CAME_BACK);
    }
    int result = 0;
    while (waitpid(child, &result, 0) < 0) {
        if (errno != EINTR)
            return FUSERUN_OK;
    }
    if (WIFSIGNALED(result))
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "crashes while it is loaded (%s)",
                         strsignal(WTERMSIG(result)));
    if (WEXITSTATUS(result) != CHILD_CAME_BACK)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "ends the process while it is loaded (exit status %d)",
                         WEXITSTATUS(result));
    return FUSERUN_OK;
}

/* dlerror()'s text without the file's name in front, which our message has already. */
static const char *dl_reason(const char *file)
{
    const char *text = dlerror();
    const size_t length = strlen(file);
    if (text == NULL)
        return "unknown reason";
    return strncmp(text, file, length) == 0 && text[length] == ':' && text[length + 1] == ' ' ? text + length + 2
                                                                                              : text;
}

static int load(const char *file, const char *stem, bool try_first, struct fuse_checked_plugin *checked,
                struct fuse_error *error)
{
    int status = FUSERUN_OK;
    FUSE_TRY(check_file(file, error));
    if (try_first)
        FUSE_TRY(try_in_child(file, error));
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "cannot be loaded: %s", dl_reason(file));
    fuse_plugin_entry *entry = entry_of(handle);
    if (entry == NULL)
        FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL,
                               "not a fuserun plugin of ABI major %d: it exports no %s()", FUSERUN_ABI_MAJOR,
                               FUSERUN_ENTRY_NAME));
    const struct fuse_plugin *given = entry(fuse_host());
    if (given == NULL)
        FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, "says that it cannot work here (%s() returned NULL)",
                               FUSERUN_ENTRY_NAME));
    FUSE_TRY_OUT(fuse_plugin_check(given, stem, checked, error));
out:
    if (status != FUSERUN_OK)
        (void)dlclose(handle);
    return status;
}

int fuse_plugin_load(const char *file, const char *stem, bool try_first, struct fuse_checked_plugin *checked,
                     struct fuse_error *error)
{
    struct fuse_error reason = FUSE_ERROR_INIT;
    const int status = load(file, stem, try_first, checked, &reason);
    if (status == FUSERUN_OK)
        return FUSERUN_OK;
    return fuse_fail(error, status, "plugin", "plugin %s%s: %s", FUSE_SHOWN_PATH(file), reason.text);
}
