/* The table of services that every plugin is handed. */
#include "plugin/registry.h"

#include "base/random.h"
#include "config/options.h"
#include "files/files.h"

#include <fuserun/scheduler.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fuse_schedule_services schedule_services; /* empty until optim/ installs its own */

void fuse_host_set_schedule_services(const struct fuse_schedule_services *services)
{
    schedule_services = services != NULL ? *services : (struct fuse_schedule_services){0};
}

static FUSERUN_PRINTF(2, 3) void host_log(enum fuse_log_level level, const char *format, ...)
{
    const char *prefix = "";
    switch (level) {
    case FUSERUN_LOG_DEBUG:
        if (getenv("FUSERUN_DEBUG") == NULL)
            return;
        prefix = "debug: ";
        break;
    case FUSERUN_LOG_INFO:
        break;
    case FUSERUN_LOG_WARNING:
        prefix = "warning: ";
        break;
    case FUSERUN_LOG_ERROR:
        prefix = "error: ";
        break;
    }
    /* One write for the whole line, so that lines of several threads do not mix; one line, whatever the plugin sends.
     */
    char line[1024];
    const int head = snprintf(line, sizeof line, "fuserun: %s", prefix);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line + head, sizeof line - 1 - (size_t)head, format, arguments);
    va_end(arguments);
    size_t length = strlen(line);
    while (length > 0 && line[length - 1] == '\n')
        length--;
    for (size_t i = 0; i < length; i++) {
        if (line[i] == '\n' || line[i] == '\r')
            line[i] = ' ';
    }
    line[length++] = '\n';
    (void)fwrite(line, 1, length, stderr);
}

static int schedule_create(const struct fuse_schedule_context *context, const char *stage, int64_t length,
                           struct fuse_schedule **schedule, struct fuse_error *error)
{
    *schedule = NULL;
    if (schedule_services.create == NULL)
        return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "stage '%s': no schedule is being made here", stage);
    return schedule_services.create(context, stage, length, schedule, error);
}

static double schedule_value(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query)
{
    return schedule_services.value == NULL ? query->base : schedule_services.value(schedule, query);
}

static double schedule_momentum(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query)
{
    return schedule_services.momentum == NULL ? query->base : schedule_services.momentum(schedule, query);
}

static int schedule_cycles_momentum(const struct fuse_schedule *schedule)
{
    return schedule_services.cycles_momentum == NULL ? 0 : schedule_services.cycles_momentum(schedule);
}

static void schedule_observe(struct fuse_schedule *schedule, const struct fuse_schedule_observation *observation)
{
    if (schedule_services.observe != NULL)
        schedule_services.observe(schedule, observation);
}

static const void *get_service(const char *id)
{
    return strcmp(id, FUSERUN_FILE_SERVICES) == 0 ? fuse_file_services() : NULL;
}

const struct fuse_host *fuse_host(void)
{
    static const struct fuse_host host = {
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_host, schedule_observe),
        .abi_major = FUSERUN_ABI_MAJOR,
        .abi_minor = FUSERUN_ABI_MINOR,
        .log = host_log,
        .fail = fuse_fail,
        .option_is_set = fuse_option_is_set,
        .option_bool = fuse_option_bool,
        .option_integer = fuse_option_integer,
        .option_number = fuse_option_number,
        .option_text = fuse_option_text,
        .option_integers = fuse_option_integers,
        .option_numbers = fuse_option_numbers,
        .option_texts = fuse_option_texts,
        .schedule_create = schedule_create,
        .schedule_value = schedule_value,
        .schedule_momentum = schedule_momentum,
        .schedule_cycles_momentum = schedule_cycles_momentum,
        .random_uniform = fuse_random_uniform,
        .random_bits = fuse_random_bits,
        .get_service = get_service,
        .schedule_observe = schedule_observe,
    };
    return &host;
}
