/* fuzz/ - everything that reads what others wrote, fed with anything at all. One file a target: a fuzz_one() that reads
 * the bytes as the program would and holds it to what must be true of any input. tools/fuzz links the targets with
 * libFuzzer and the sanitizers; tools/test links them with replay.c and runs what is in corpus/ (the smallest set that
 * reaches all that fuzzing ever reached), findings/ (each once broke something; its name says what) and what seeds.py
 * makes (files to begin with, and the known attacks on these formats). */
#ifndef FUSE_TESTS_FUZZ_H
#define FUSE_TESTS_FUZZ_H

#include "base/error.h"

#include <stdbool.h>

/* The target's own: must return, whatever the bytes. Its memory is watched: at most 32 times the input and 64 MiB. */
void fuzz_one(const uint8_t *bytes, size_t count);

/* Ends the process with the place if something is not as it must be. */
#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fuzz_fail(__FILE__, __LINE__, #condition);                                                                 \
    } while (0)
_Noreturn void fuzz_fail(const char *file, int line, const char *what);

/* A file with these bytes, in memory; its path stays the same for each of the slots 0 to 3. */
#define FUZZ_FILE_PATH "/proc/self/fd/10" /* and the slot's digit */
const char *fuzz_file(int slot, const void *bytes, size_t count);

/* The bytes as text: a copy with a NUL behind it, freed by the caller. */
char *fuzz_text(const uint8_t *bytes, size_t count);

/* The part up to the next separator, a byte that no text file of ours holds; moves on behind it. False: none is left.
 */
#define FUZZ_SEPARATOR 0x1e
bool fuzz_next_part(const uint8_t **bytes, size_t *count, const uint8_t **part, size_t *part_count);

/* A failure must say something, on one line; success must say nothing that matters. */
void fuzz_check_error(int status, const struct fuse_error *error);
/* The same of any message. */
void fuzz_check_line(const char *text);

/* libFuzzer's and replay.c's way in. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#endif
