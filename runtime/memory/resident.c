#include "memory/resident.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t status_bytes(const char *key)
{
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL)
        return 0;
    char line[256];
    uint64_t kibibytes = 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), ": %" SCNu64, &kibibytes) == 1)
            break;
    (void)fclose(file);
    return kibibytes * 1024;
}

uint64_t fuse_resident_now_bytes(void)
{
    return status_bytes("VmRSS");
}

uint64_t fuse_resident_peak_bytes(void)
{
    return status_bytes("VmHWM");
}

void fuse_resident_reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");
    if (file == NULL)
        return;
    (void)fputs("5", file); /* Linux: 5 sets VmHWM to what is resident now */
    (void)fclose(file);
}
