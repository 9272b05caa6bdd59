#include "fuzz.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_fail(const char *file, int line, const char *what)
{
    (void)fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    abort();
}

/* ---- memory: counted where a sanitizer's allocator is linked in -------------------------------------------------- */

#define MEMORY_FACTOR 32
#define MEMORY_BYTES ((size_t)64 << 20)

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *)) __attribute__((weak));
size_t __sanitizer_get_allocated_size(const volatile void *memory) __attribute__((weak));

static _Atomic size_t live_bytes, peak_bytes;

static void count_malloc(const volatile void *memory, size_t size)
{
    if (memory == NULL)
        return;
    const size_t live = atomic_fetch_add(&live_bytes, size) + size;
    if (live > atomic_load(&peak_bytes))
        atomic_store(&peak_bytes, live);
}

static void count_free(const volatile void *memory)
{
    if (memory != NULL)
        (void)atomic_fetch_sub(&live_bytes, __sanitizer_get_allocated_size(memory));
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

enum { SLOTS = 4, FIRST_DESCRIPTOR = 100 };

const char *fuzz_file(int slot, const void *bytes, size_t count)
{
    static char paths[SLOTS][sizeof FUZZ_FILE_PATH + 1];
    const int descriptor = FIRST_DESCRIPTOR + slot;
    if (paths[slot][0] == '\0') {
        const int made = memfd_create("fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(made >= 0 && dup2(made, descriptor) == descriptor && close(made) == 0);
        (void)snprintf(paths[slot], sizeof paths[slot], FUZZ_FILE_PATH "%c", '0' + slot);
    }
    FUZZ_CHECK(ftruncate(descriptor, 0) == 0 && pwrite(descriptor, bytes, count, 0) == (ssize_t)count);
    return paths[slot];
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

char *fuzz_text(const uint8_t *bytes, size_t count)
{
    char *text = malloc(count + 1);
    FUZZ_CHECK(text != NULL);
    if (count > 0)
        memcpy(text, bytes, count);
    text[count] = '\0';
    return text;
}

bool fuzz_next_part(const uint8_t **bytes, size_t *count, const uint8_t **part, size_t *part_count)
{
    if (*bytes == NULL)
        return false;
    const uint8_t *end = *count > 0 ? memchr(*bytes, FUZZ_SEPARATOR, *count) : NULL;
    *part = *bytes;
    *part_count = end != NULL ? (size_t)(end - *bytes) : *count;
    *bytes = end != NULL ? end + 1 : NULL;
    *count -= end != NULL ? *part_count + 1 : *part_count;
    return true;
}

void fuzz_check_line(const char *text)
{
    FUZZ_CHECK(*text != '\0');
    for (const char *at = text; *at != '\0'; at++)
        FUZZ_CHECK((unsigned char)*at >= 0x20 && *at != 0x7f);
}

void fuzz_check_error(int status, const struct fuse_error *error)
{
    FUZZ_CHECK(status <= 0);
    if (status == FUSERUN_OK)
        return;
    FUZZ_CHECK(error->code == status && status != FUSERUN_ERROR_INTERNAL);
    fuzz_check_line(error->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static bool is_counting;
    if (!is_counting && __sanitizer_install_malloc_and_free_hooks != NULL)
        (void)__sanitizer_install_malloc_and_free_hooks(count_malloc, count_free);
    is_counting = true;
    const size_t before = atomic_load(&live_bytes);
    atomic_store(&peak_bytes, before);
    fuzz_one(bytes, count);
    FUZZ_CHECK(atomic_load(&peak_bytes) - before <= MEMORY_FACTOR * count + MEMORY_BYTES);
    return 0;
}
