#include "train/fit.h"

#include "base/number.h"
#include "config/options.h"
#include "memory/resident.h"
#include "memory/room.h"
#include "train/progress.h"

#include <inttypes.h>
#include <string.h>

/* What "has N bytes left". */
static const char *const bounds[] = {
    [FUSE_ROOM_MACHINE] = "this machine",
    [FUSE_ROOM_COMMIT] = "this machine's vm.overcommit_memory = 2",
    [FUSE_ROOM_GROUP] = "the control group of this process",
    [FUSE_ROOM_ADDRESSES] = "ulimit -v",
    [FUSE_ROOM_DATA] = "ulimit -d",
    [FUSE_ROOM_DEVICE] = "the device",
};

/* What there is for the plan. base_bytes: what of a limit is taken already. */
static void measure_room(const struct fuse_experiment *experiment, struct fuse_room *room, uint64_t *base_bytes)
{
    struct fuse_backend_info info = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_info, total_bytes)};
    experiment->backend->describe(experiment->device, &info);
    if (info.name != NULL && strcmp(info.name, "cpu") == 0) {
        /* A limit is for the process as a whole: what it has taken before the model counts, too. */
        *base_bytes = experiment->resident_base_bytes;
        fuse_room_measure("", room);
        return;
    }
    *base_bytes = 0;
    if (info.total_bytes > 0) /* what the backend holds for itself is in the plan */
        *room = (struct fuse_room){FUSE_ROOM_DEVICE, info.free_bytes + info.own_bytes, info.total_bytes};
}

static void add_hint(struct fuse_text *text, const char *hint)
{
    fuse_text_addf(text, "%s%s", text->length == 0 ? "" : ", ", hint);
}

/* What of the config makes the plan larger than it would have to be. */
static void add_hints(const struct fuse_experiment *experiment, struct fuse_text *text)
{
    const struct fuse_options *memory = fuse_config_options(experiment->config, "memory");
    const struct fuse_options *optimizer = fuse_config_options(experiment->config, "optimizer");
    const struct fuse_pass *pass = &experiment->passes[0];
    for (uint32_t i = 1; i < experiment->pass_count; i++) {
        struct fuse_peak peak;
        fuse_program_peak(experiment->passes[i].program, experiment->persistent, &peak);
        if (peak.bytes == experiment->predicted.bytes)
            pass = &experiment->passes[i];
    }
    if (experiment->dict->mode != FUSE_MODE_FUSED)
        add_hint(text, "optimizer.mode = fused");
    else if (strcmp(fuse_option_text(optimizer, "clip_algorithm"), "keep") == 0)
        add_hint(text, "optimizer.clip_algorithm = auto");
    if (experiment->graph->block_count > 0 && strcmp(fuse_option_text(memory, "recompute"), "none") == 0)
        add_hint(text, "memory.recompute = blocks");
    if (pass->batch_size > 1)
        add_hint(text, pass->purpose == FUSE_PURPOSE_TRAIN ? "a smaller data.batch_size" : "a smaller eval.batch_size");
    add_hint(text, "a smaller model");
}

int fuse_fit_check(const struct fuse_experiment *experiment, bool only_warn, struct fuse_error *error)
{
    const char *limit = fuse_option_text(fuse_config_options(experiment->config, "memory"), "limit");
    const uint64_t needed = experiment->predicted.bytes;
    char needed_shown[FUSE_BYTES_CHARS], left_shown[FUSE_BYTES_CHARS], limit_shown[FUSE_BYTES_CHARS];
    struct fuse_room room = {FUSE_ROOM_UNKNOWN, UINT64_MAX, UINT64_MAX};
    struct fuse_text hints = {0};
    struct fuse_text text = {0};
    uint64_t base_bytes;
    int64_t given;
    if (strcmp(limit, "none") == 0)
        return FUSERUN_OK;
    measure_room(experiment, &room, &base_bytes);
    if (strcmp(limit, "auto") != 0 && fuse_size_parse(limit, &given)) {
        room.bound = FUSE_ROOM_UNKNOWN;
        room.limit_bytes = (uint64_t)given;
        room.bytes = room.limit_bytes > base_bytes ? room.limit_bytes - base_bytes : 0;
    }
    if (needed <= room.bytes)
        return FUSERUN_OK;
    add_hints(experiment, &hints);
    (void)fuse_bytes_show(needed, needed_shown);
    (void)fuse_bytes_show(room.bytes, left_shown);
    (void)fuse_bytes_show(room.limit_bytes, limit_shown);
    fuse_text_addf(&text, "the plan's peak is %s (%" PRIu64 " bytes), and ", needed_shown, needed);
    if (room.bound == FUSE_ROOM_UNKNOWN)
        fuse_text_addf(&text, "the limit leaves %s (%" PRIu64 " bytes) beside the program itself", left_shown,
                       room.bytes);
    else
        fuse_text_addf(&text, "%s has %s (%" PRIu64 " bytes) left of %s", bounds[room.bound], left_shown, room.bytes,
                       limit_shown);
    fuse_text_addf(&text, "; what makes it smaller: %s; memory.limit = none tries all the same",
                   hints.data != NULL ? hints.data : "");
    int status = FUSERUN_OK;
    if (hints.failed || text.failed)
        status = fuse_fail_memory(error, "the plan's size", text.length);
    else if (only_warn)
        fuse_config_warn(experiment->config, experiment->diagnostics, "memory", "limit", "%s", text.data);
    else {
        fuse_config_report(experiment->config, experiment->diagnostics, "memory", "limit", "%s", text.data);
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, NULL, "the plan does not fit");
    }
    fuse_text_free(&hints);
    fuse_text_free(&text);
    return status;
}
