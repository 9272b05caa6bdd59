/* Runs a fuzz target on files and on all files of folders: the corpus in tools/test, one finding in a debugger. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static size_t replayed;

static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat found;
    FUZZ_CHECK(file != NULL && fstat(fileno(file), &found) == 0);
    /* Exactly as long as the file, so that a sanitizer sees a read past its end. */
    uint8_t *bytes = malloc(found.st_size > 0 ? (size_t)found.st_size : 1);
    FUZZ_CHECK(bytes != NULL && fread(bytes, 1, (size_t)found.st_size, file) == (size_t)found.st_size);
    (void)fclose(file);
    (void)fprintf(stderr, "%s\n", path);
    (void)LLVMFuzzerTestOneInput(bytes, (size_t)found.st_size);
    free(bytes);
    replayed++;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void replay_folder(const char *path)
{
    struct dirent **entries;
    const int count = scandir(path, &entries, is_visible, alphasort);
    FUZZ_CHECK(count >= 0);
    for (int i = 0; i < count; i++) {
        char file[4096];
        FUZZ_CHECK(snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name) < (int)sizeof file);
        replay_file(file);
        free(entries[i]);
    }
    free(entries);
}

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        struct stat found;
        if (stat(arguments[i], &found) != 0) {
            (void)fprintf(stderr, "%s: not there\n", arguments[i]);
            return 1;
        }
        if (S_ISDIR(found.st_mode))
            replay_folder(arguments[i]);
        else
            replay_file(arguments[i]);
    }
    (void)fprintf(stderr, "%zu inputs\n", replayed);
    return replayed == 0;
}
