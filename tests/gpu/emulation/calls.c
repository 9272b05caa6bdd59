/* Calls: counted, made to fail when told to; settings, complaints and the report at the process's end. */
#include "emulation.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MEMORY_BYTES (UINT64_C(1) << 30)
#define MAX_FAILURES 16
#define CUBLAS_EXECUTION_FAILED 13

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t is_set_up = PTHREAD_ONCE_INIT;

static struct emu_settings settings;
static int lost_code;
static uint64_t random_counter;

/* One FUSERUN_EMULATION_FAIL entry. */
struct failure {
    char name[64];
    uint64_t at;
    int code;
    uint64_t seen;
};
static struct failure failures[MAX_FAILURES];
static size_t failure_count;

static struct emu_entry *entries;
static uint64_t call_count, complaint_count, injected_count, launch_count;
static uint64_t made[EMU_KIND_COUNT], gone[EMU_KIND_COUNT];
static uint64_t peak_bytes;

/* Launches by kernel. */
struct kernel_count {
    char name[96];
    uint64_t launches;
    struct kernel_count *next;
};
static struct kernel_count *kernels;

/* ---- settings -------------------------------------------------------------------------------------------------- */

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *const text = getenv(name);
    return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

static void read_failures(const char *text)
{
    while (text != NULL && *text != '\0' && failure_count < MAX_FAILURES) {
        struct failure *const failure = &failures[failure_count];
        if (sscanf(text, "%63[^:]:%" SCNu64 ":%d", failure->name, &failure->at, &failure->code) != 3)
            emu_give_up("FUSERUN_EMULATION_FAIL: '%s' is not ENTRY:N:CODE", text);
        failure_count++;
        text = strchr(text, ',');
        text = text != NULL ? text + 1 : NULL;
    }
}

static void write_report(void);

static void set_up(void)
{
    const char *const order = getenv("FUSERUN_EMULATION_ORDER");
    settings = (struct emu_settings){
        .memory_bytes = number_of("FUSERUN_EMULATION_MEMORY", DEFAULT_MEMORY_BYTES),
        .device_count = (int)number_of("FUSERUN_EMULATION_DEVICES", 1),
        .driver_version = (int)number_of("FUSERUN_EMULATION_DRIVER", 13000),
        .capability = (int)number_of("FUSERUN_EMULATION_CAPABILITY", 80),
        .no_wait = number_of("FUSERUN_EMULATION_NO_WAIT", 0),
        .report = getenv("FUSERUN_EMULATION_REPORT"),
        .cache = getenv("FUSERUN_EMULATION_CACHE"),
    };
    if (order != NULL && strcmp(order, "eager") == 0)
        settings.order = EMU_ORDER_EAGER;
    else if (order != NULL && order[0] >= '0' && order[0] <= '9') {
        settings.order = EMU_ORDER_DRAWN;
        settings.seed = strtoull(order, NULL, 10);
    }
    read_failures(getenv("FUSERUN_EMULATION_FAIL"));
    emu_catch_faults();
    if (settings.report != NULL)
        atexit(write_report);
}

const struct emu_settings *emu_settings(void)
{
    pthread_once(&is_set_up, set_up);
    return &settings;
}

/* splitmix64 (G. Steele and others, "Fast splittable pseudorandom number generators", 2014). */
uint64_t emu_random(void)
{
    uint64_t z = emu_settings()->seed + UINT64_C(0x9e3779b97f4a7c15) * ++random_counter;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t emu_random_below(uint64_t bound)
{
    return emu_random() % bound;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

int emu_injected(const char *name)
{
    for (size_t i = 0; i < failure_count; i++) {
        struct failure *const failure = &failures[i];
        if (strcmp(failure->name, name) != 0 && (strcmp(failure->name, "*") != 0 || strcmp(name, "launch") == 0))
            continue;
        if (++failure->seen == failure->at) {
            injected_count++;
            return failure->code;
        }
    }
    return 0;
}

static void list(struct emu_entry *entry, const char *name)
{
    if (entry->name != NULL)
        return;
    entry->name = name;
    entry->next = entries;
    entries = entry;
}

int emu_enter(struct emu_entry *entry, const char *name)
{
    emu_settings();
    pthread_mutex_lock(&lock);
    list(entry, name);
    entry->calls++;
    call_count++;
    const int code = emu_injected(name);
    if (code != 0)
        return code;
    if (lost_code == 0 || strncmp(name, "nvrtc", 5) == 0)
        return 0;
    return strncmp(name, "cublas", 6) == 0 ? CUBLAS_EXECUTION_FAILED : lost_code;
}

void emu_leave(const int *status)
{
    (void)status;
    if (emu_memory_used() > peak_bytes)
        peak_bytes = emu_memory_used();
    pthread_mutex_unlock(&lock);
}

void emu_lose_device(int code)
{
    if (lost_code == 0)
        lost_code = code;
}

int emu_lost_code(void)
{
    return lost_code;
}

void emu_complain(const char *format, ...)
{
    va_list arguments;
    complaint_count++;
    fputs("emulated device: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void emu_give_up(const char *format, ...)
{
    va_list arguments;
    fputs("emulated device: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    signal(SIGABRT, SIG_DFL); /* a test's handler would go on, and wait for our lock for ever */
    abort();
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

void emu_count_launch(const char *kernel)
{
    launch_count++;
    struct kernel_count *at = kernels;
    while (at != NULL && strcmp(at->name, kernel) != 0)
        at = at->next;
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        if (at == NULL)
            return;
        snprintf(at->name, sizeof at->name, "%s", kernel);
        at->next = kernels;
        kernels = at;
    }
    at->launches++;
}

void emu_count_made(enum emu_kind kind)
{
    made[kind]++;
}

void emu_count_gone(enum emu_kind kind)
{
    gone[kind]++;
}

static void write_report(void)
{
    static const char *const kinds[EMU_KIND_COUNT] = {"context", "memory", "pinned",  "stream",
                                                      "event",   "module", "program", "library"};
    FILE *const file = fopen(settings.report, "w");
    if (file == NULL)
        return;
    fprintf(file, "{\"calls\": %" PRIu64 ", \"launches\": %" PRIu64 ", \"complaints\": %" PRIu64, call_count,
            launch_count, complaint_count);
    fprintf(file, ", \"injected\": %" PRIu64 ", \"lost\": %d, \"peak_bytes\": %" PRIu64, injected_count, lost_code,
            peak_bytes);
    fprintf(file, ", \"waits\": %" PRIu64 ", \"waits_left_out\": %" PRIu64, emu_wait_count(), emu_wait_left_out());
    fprintf(file, ",\n \"leaks\": {");
    const char *comma = "";
    for (int i = 0; i < EMU_KIND_COUNT; i++)
        if (made[i] != gone[i]) {
            fprintf(file, "%s\"%s\": %" PRIu64, comma, kinds[i], made[i] - gone[i]);
            comma = ", ";
        }
    fprintf(file, "},\n \"entries\": {");
    comma = "";
    for (const struct emu_entry *entry = entries; entry != NULL; entry = entry->next) {
        fprintf(file, "%s\"%s\": %" PRIu64, comma, entry->name, entry->calls);
        comma = ", ";
    }
    fprintf(file, "},\n \"kernels\": {");
    comma = "";
    for (const struct kernel_count *at = kernels; at != NULL; at = at->next) {
        fprintf(file, "%s\"%s\": %" PRIu64, comma, at->name, at->launches);
        comma = ", ";
    }
    fprintf(file, "}}\n");
    fclose(file);
}
