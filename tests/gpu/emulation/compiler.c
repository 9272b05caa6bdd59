/* A kernel's text made into a shared object by the machine's C compiler, in the place of NVRTC. What was made once is
 * kept in FUSERUN_EMULATION_CACHE under a hash of all that went in. */
#include "emulation.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* No contraction and no reordering, as NVRTC with --fmad=false; what is not initialised is a large number, and an index
 * outside an array of known size ends the process. */
static const char *const compiler_arguments[] = {EMU_COMPILER,
                                                 "-std=gnu17",
                                                 "-O1",
                                                 "-w",
                                                 "-shared",
                                                 "-fPIC",
                                                 "-fvisibility=hidden",
                                                 "-fno-strict-aliasing",
                                                 "-ffp-contract=off",
                                                 "-ftrivial-auto-var-init=pattern",
                                                 "-fsanitize=bounds",
                                                 "-fsanitize-undefined-trap-on-error",
                                                 "-DEMU_KERNEL_TEXT",
                                                 "-include",
                                                 EMU_DEVICE_HEADER,
                                                 "-x",
                                                 "c",
                                                 "text.cu",
                                                 "-lm",
                                                 "-o",
                                                 "text.so"};
#define ARGUMENT_COUNT (sizeof compiler_arguments / sizeof compiler_arguments[0])

/* ---- files ------------------------------------------------------------------------------------------------------- */

static char *read_file(const char *path, size_t *bytes)
{
    char *data = NULL;
    FILE *const file = fopen(path, "rb");
    if (file == NULL)
        return NULL;
    long size = -1;
    if (fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    if (size >= 0 && fseek(file, 0, SEEK_SET) == 0)
        data = malloc((size_t)size + 1);
    if (data != NULL && fread(data, 1, (size_t)size, file) != (size_t)size) {
        free(data);
        data = NULL;
    }
    fclose(file);
    if (data != NULL) {
        data[size] = '\0';
        *bytes = (size_t)size;
    }
    return data;
}

static bool write_file(const char *path, const void *data, size_t bytes)
{
    FILE *const file = fopen(path, "wb");
    if (file == NULL)
        return false;
    const bool is_written = fwrite(data, 1, bytes, file) == bytes;
    return fclose(file) == 0 && is_written;
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

/* FNV-1a, 64 bits. */
static void add_to_hash(uint64_t *hash, const char *text)
{
    do {
        *hash = (*hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    } while (*text++ != '\0');
}

uint64_t emu_compiler_version(void)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    size_t bytes;
    char *const device = read_file(EMU_DEVICE_HEADER, &bytes);
    if (device != NULL)
        add_to_hash(&hash, device);
    free(device);
    for (size_t i = 0; i < ARGUMENT_COUNT; i++)
        add_to_hash(&hash, compiler_arguments[i]);
    return hash;
}

static uint64_t hash_of(const char *text, const struct emu_text *headers, int header_count)
{
    uint64_t hash = emu_compiler_version();
    for (int i = 0; i < header_count; i++) {
        add_to_hash(&hash, headers[i].name);
        add_to_hash(&hash, headers[i].text);
    }
    add_to_hash(&hash, text);
    return hash;
}

/* Whole or not at all: many tests fill one cache at the same time. */
static void keep(const char *path, const void *image, size_t bytes)
{
    char temporary[PATH_MAX];
    snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
    if (!write_file(temporary, image, bytes) || rename(temporary, path) != 0)
        unlink(temporary);
}

/* ---- the compiler --------------------------------------------------------------------------------------------------
 */

static bool write_texts(const char *folder, const char *text, const struct emu_text *headers, int header_count)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/text.cu", folder);
    bool is_written = write_file(path, text, strlen(text));
    for (int i = 0; i < header_count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, headers[i].name);
        is_written = is_written && strchr(headers[i].name, '/') == NULL &&
                     write_file(path, headers[i].text, strlen(headers[i].text));
    }
    return is_written;
}

static int run_compiler(const char *folder)
{
    char log[PATH_MAX];
    char *arguments[ARGUMENT_COUNT + 1] = {NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    for (size_t i = 0; i < ARGUMENT_COUNT; i++)
        memcpy(&arguments[i], &compiler_arguments[i], sizeof arguments[i]);
    snprintf(log, sizeof log, "%s/log", folder);
    if (posix_spawn_file_actions_init(&actions) != 0)
        return -1;
    if (posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600) == 0 &&
        posix_spawn_file_actions_addchdir_np(&actions, folder) == 0 &&
        posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ) == 0)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

static void remove_folder(const char *folder, const struct emu_text *headers, int header_count)
{
    static const char *const names[] = {"text.cu", "text.so", "log"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    for (int i = 0; i < header_count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, headers[i].name);
        unlink(path);
    }
    rmdir(folder);
}

int emu_compile(const char *text, const struct emu_text *headers, int header_count, void **image, size_t *image_bytes,
                char **log)
{
    char kept[PATH_MAX] = "", folder[] = "/tmp/fuserun-emulation-XXXXXX", path[sizeof folder + 16];
    const char *const cache = emu_settings()->cache;
    *image = NULL;
    *log = NULL;
    if (cache != NULL) {
        snprintf(kept, sizeof kept, "%s/%016" PRIx64 ".so", cache, hash_of(text, headers, header_count));
        *image = read_file(kept, image_bytes);
        if (*image != NULL)
            return 0;
    }
    if (mkdtemp(folder) == NULL)
        return -1;
    if (write_texts(folder, text, headers, header_count) && run_compiler(folder) == 0) {
        snprintf(path, sizeof path, "%s/text.so", folder);
        *image = read_file(path, image_bytes);
    }
    if (*image != NULL && cache != NULL)
        keep(kept, *image, *image_bytes);
    if (*image == NULL) {
        size_t log_bytes;
        snprintf(path, sizeof path, "%s/log", folder);
        *log = read_file(path, &log_bytes);
    }
    remove_folder(folder, headers, header_count);
    return *image != NULL ? 0 : -1;
}
