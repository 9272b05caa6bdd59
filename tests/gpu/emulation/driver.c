/* The driver's entry points. What each does is in the CUDA driver API's reference; here stand the checks. */
#include "emulation.h"
#include "entries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
};

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static bool is_initialized;
static int retained; /* uses of the one context */
static char the_context;
static _Thread_local bool is_current;

/* The first lines of an entry point that needs the context. */
#define ENTER_CONTEXT()                                                                                                \
    EMU_ENTER(int);                                                                                                    \
    if (!is_current || retained == 0)                                                                                  \
    return no_context(__func__)

/* The same where something is given back: that happens on a lost device too, which then is what the call says. */
#define ENTER_GIVING_BACK()                                                                                            \
    static struct emu_entry entry_;                                                                                    \
    __attribute__((cleanup(emu_leave))) const int entered_ = emu_enter(&entry_, __func__);                             \
    if (entered_ != 0 && entered_ != emu_lost_code())                                                                  \
        return entered_;                                                                                               \
    if (!is_current || retained == 0)                                                                                  \
    return no_context(__func__)

static int no_context(const char *name)
{
    emu_complain("%s without a context", name);
    return INVALID_CONTEXT;
}

static int wrong(const char *name, const char *what, int code)
{
    emu_complain("%s: %s", name, what);
    return code;
}

/* NULL is the default stream; NULL comes back where it is none. */
static struct emu_stream *stream_of(void *handle)
{
    if (handle == NULL)
        return emu_stream_default();
    return emu_stream_is_alive(handle) ? handle : NULL;
}

static void *pointer_of(fuse_device_address address)
{
    return (void *)(uintptr_t)address;
}

/* ---- devices and contexts ------------------------------------------------------------------------------------------
 */

int cuInit(unsigned flags)
{
    EMU_ENTER(int);
    if (flags != 0)
        return INVALID_VALUE;
    if (emu_settings()->device_count == 0)
        return NO_DEVICE;
    is_initialized = true;
    return SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    EMU_ENTER(int);
    *version = emu_settings()->driver_version;
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    EMU_ENTER(int);
    if (!is_initialized)
        return NOT_INITIALIZED;
    *count = emu_settings()->device_count;
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    EMU_ENTER(int);
    if (!is_initialized)
        return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= emu_settings()->device_count)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int size, int device)
{
    EMU_ENTER(int);
    if (device < 0 || device >= emu_settings()->device_count)
        return INVALID_DEVICE;
    snprintf(name, (size_t)size, "Emulated device");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    EMU_ENTER(int);
    if (device < 0 || device >= emu_settings()->device_count)
        return INVALID_DEVICE;
    switch (attribute) {
    case FUSE_CU_MULTIPROCESSOR_COUNT:
        *value = 3;
        return SUCCESS;
    case FUSE_CU_CAPABILITY_MAJOR:
        *value = emu_settings()->capability / 10;
        return SUCCESS;
    case FUSE_CU_CAPABILITY_MINOR:
        *value = emu_settings()->capability % 10;
        return SUCCESS;
    default:
        return wrong(__func__, "an attribute that the emulation does not know", INVALID_VALUE);
    }
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    EMU_ENTER(int);
    if (!is_initialized)
        return NOT_INITIALIZED;
    if (device < 0 || device >= emu_settings()->device_count)
        return INVALID_DEVICE;
    retained++;
    emu_count_made(EMU_CONTEXT);
    *context = &the_context;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    static struct emu_entry entry;
    __attribute__((cleanup(emu_leave))) const int entered = emu_enter(&entry, __func__);
    if (entered != 0 && entered != emu_lost_code())
        return entered;
    if (device < 0 || device >= emu_settings()->device_count)
        return INVALID_DEVICE;
    if (retained == 0)
        return wrong(__func__, "the context was released more often than retained", INVALID_CONTEXT);
    emu_streams_finish();
    retained--;
    emu_count_gone(EMU_CONTEXT);
    return emu_lost_code();
}

int cuCtxSetCurrent(void *context)
{
    EMU_ENTER(int);
    if (context != NULL && (context != &the_context || retained == 0))
        return wrong(__func__, "this is no context", INVALID_CONTEXT);
    is_current = context != NULL;
    return SUCCESS;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------
 */

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    ENTER_CONTEXT();
    *total_bytes = emu_settings()->memory_bytes;
    *free_bytes = emu_settings()->memory_bytes - emu_memory_used();
    return SUCCESS;
}

int cuMemAlloc_v2(fuse_device_address *memory, size_t bytes)
{
    ENTER_CONTEXT();
    if (bytes == 0)
        return wrong(__func__, "no bytes are asked for", INVALID_VALUE);
    *memory = (uintptr_t)emu_memory_new(bytes);
    return *memory != 0 ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFree_v2(fuse_device_address memory)
{
    ENTER_GIVING_BACK();
    emu_streams_finish(); /* as the driver does */
    if (memory != 0 && emu_memory_free(pointer_of(memory)) != 0)
        return INVALID_VALUE;
    return emu_lost_code();
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    ENTER_CONTEXT();
    if (flags > 7)
        return INVALID_VALUE;
    *memory = emu_pinned_new(bytes);
    return *memory != NULL ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFreeHost(void *memory)
{
    ENTER_GIVING_BACK();
    emu_streams_finish();
    if (emu_pinned_free(memory) != 0)
        return INVALID_VALUE;
    return emu_lost_code();
}

/* A copy; `staged` stands behind it where the host's memory is not pinned. */
struct copy {
    struct emu_work work;
    void *to;
    const void *from;
    size_t bytes;
    char staged[];
};

static void run_copy(struct emu_work *work)
{
    const struct copy *const copy = (const struct copy *)work;
    memcpy(copy->to, copy->from, copy->bytes);
}

static int push_copy(void *to, const void *from, size_t bytes, bool is_staged, struct emu_stream *stream)
{
    struct copy *const copy = malloc(sizeof *copy + (is_staged ? bytes : 0));
    if (copy == NULL)
        return OUT_OF_MEMORY;
    *copy = (struct copy){.work.run = run_copy, .to = to, .from = is_staged ? copy->staged : from, .bytes = bytes};
    if (is_staged)
        memcpy(copy->staged, from, bytes);
    emu_stream_push(stream, &copy->work);
    return emu_lost_code();
}

/* Pinned memory is read when the copy runs, other memory before the call returns. */
int cuMemcpyHtoDAsync_v2(fuse_device_address to, const void *from, size_t bytes, void *stream)
{
    ENTER_CONTEXT();
    struct emu_stream *const into = stream_of(stream);
    if (into == NULL)
        return wrong(__func__, "no such stream", INVALID_HANDLE);
    if (!emu_memory_holds(pointer_of(to), bytes))
        return wrong(__func__, "the target is not in the device's memory", INVALID_VALUE);
    return push_copy(pointer_of(to), from, bytes, !emu_is_pinned(from, bytes), into);
}

/* Pinned memory is written when the copy runs, and nothing that it holds before then is of use; other memory before the
 * call returns. */
int cuMemcpyDtoHAsync_v2(void *to, fuse_device_address from, size_t bytes, void *stream)
{
    ENTER_CONTEXT();
    struct emu_stream *const into = stream_of(stream);
    const bool is_pinned = emu_is_pinned(to, bytes);
    if (into == NULL)
        return wrong(__func__, "no such stream", INVALID_HANDLE);
    if (!emu_memory_holds(pointer_of(from), bytes))
        return wrong(__func__, "the source is not in the device's memory", INVALID_VALUE);
    if (is_pinned)
        memset(to, 0xff, bytes);
    const int status = push_copy(to, pointer_of(from), bytes, false, into);
    if (!is_pinned)
        emu_stream_finish(into);
    return status != SUCCESS ? status : emu_lost_code();
}

int cuMemcpyDtoDAsync_v2(fuse_device_address to, fuse_device_address from, size_t bytes, void *stream)
{
    ENTER_CONTEXT();
    struct emu_stream *const into = stream_of(stream);
    if (into == NULL)
        return wrong(__func__, "no such stream", INVALID_HANDLE);
    if (!emu_memory_holds(pointer_of(to), bytes) || !emu_memory_holds(pointer_of(from), bytes))
        return wrong(__func__, "not in the device's memory", INVALID_VALUE);
    if (to < from + bytes && from < to + bytes)
        return wrong(__func__, "source and target overlap", INVALID_VALUE);
    return push_copy(pointer_of(to), pointer_of(from), bytes, false, into);
}

struct filling {
    struct emu_work work;
    void *memory;
    int value;
    size_t count;
};

static void run_filling(struct emu_work *work)
{
    const struct filling *const filling = (const struct filling *)work;
    memset(filling->memory, filling->value, filling->count);
}

int cuMemsetD8Async(fuse_device_address memory, unsigned char value, size_t count, void *stream)
{
    ENTER_CONTEXT();
    struct emu_stream *const into = stream_of(stream);
    if (into == NULL)
        return wrong(__func__, "no such stream", INVALID_HANDLE);
    if (!emu_memory_holds(pointer_of(memory), count))
        return wrong(__func__, "not in the device's memory", INVALID_VALUE);
    struct filling *const filling = malloc(sizeof *filling);
    if (filling == NULL)
        return OUT_OF_MEMORY;
    *filling = (struct filling){{.run = run_filling}, pointer_of(memory), value, count};
    emu_stream_push(into, &filling->work);
    return emu_lost_code();
}

/* ---- streams and events
 * ---------------------------------------------------------------------------------------------- */

int cuStreamCreate(void **stream, unsigned flags)
{
    ENTER_CONTEXT();
    if (flags > FUSE_CU_STREAM_NON_BLOCKING)
        return INVALID_VALUE;
    *stream = emu_stream_new(flags == 0);
    if (*stream == NULL)
        return OUT_OF_MEMORY;
    emu_count_made(EMU_STREAM);
    return SUCCESS;
}

int cuStreamDestroy_v2(void *stream)
{
    ENTER_GIVING_BACK();
    if (stream == NULL || !emu_stream_is_alive(stream))
        return wrong(__func__, "no such stream", INVALID_HANDLE);
    emu_stream_drop(stream);
    emu_count_gone(EMU_STREAM);
    return emu_lost_code();
}

int cuStreamSynchronize(void *stream)
{
    ENTER_CONTEXT();
    struct emu_stream *const finished = stream_of(stream);
    if (finished == NULL)
        return wrong(__func__, "no such stream", INVALID_HANDLE);
    emu_stream_finish(finished);
    return emu_lost_code();
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    ENTER_CONTEXT();
    struct emu_stream *const waiting = stream_of(stream);
    if (flags != 0)
        return INVALID_VALUE;
    if (waiting == NULL || !emu_event_is_alive(event))
        return wrong(__func__, "no such stream or event", INVALID_HANDLE);
    emu_event_wait(event, waiting);
    return emu_lost_code();
}

int cuEventCreate(void **event, unsigned flags)
{
    ENTER_CONTEXT();
    if (flags > 7)
        return INVALID_VALUE;
    *event = emu_event_new();
    if (*event == NULL)
        return OUT_OF_MEMORY;
    emu_count_made(EMU_EVENT);
    return SUCCESS;
}

int cuEventDestroy_v2(void *event)
{
    ENTER_GIVING_BACK();
    if (!emu_event_is_alive(event))
        return wrong(__func__, "no such event", INVALID_HANDLE);
    emu_event_drop(event);
    emu_count_gone(EMU_EVENT);
    return emu_lost_code();
}

int cuEventRecord(void *event, void *stream)
{
    ENTER_CONTEXT();
    struct emu_stream *const into = stream_of(stream);
    if (into == NULL || !emu_event_is_alive(event))
        return wrong(__func__, "no such stream or event", INVALID_HANDLE);
    emu_event_record(event, into);
    return emu_lost_code();
}

int cuEventSynchronize(void *event)
{
    ENTER_CONTEXT();
    if (!emu_event_is_alive(event))
        return wrong(__func__, "no such event", INVALID_HANDLE);
    emu_event_finish(event);
    return emu_lost_code();
}

/* ---- modules and kernels
 * --------------------------------------------------------------------------------------------- */

int cuModuleLoadData(void **module, const void *image)
{
    ENTER_CONTEXT();
    *module = emu_module_load(image);
    return *module != NULL ? SUCCESS : INVALID_IMAGE;
}

int cuModuleUnload(void *module)
{
    ENTER_GIVING_BACK();
    if (!emu_module_is_alive(module))
        return wrong(__func__, "no such module", INVALID_HANDLE);
    emu_streams_finish();
    emu_module_drop(module);
    return emu_lost_code();
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    ENTER_CONTEXT();
    if (!emu_module_is_alive(module))
        return wrong(__func__, "no such module", INVALID_HANDLE);
    *function = emu_module_kernel(module, name);
    return *function != NULL ? SUCCESS : NOT_FOUND;
}

/* A launch with its arguments as they were when it was asked for. */
struct launch {
    struct emu_work work;
    struct emu_launch launch;
    _Alignas(16) char arguments[];
};

static void run_launch(struct emu_work *work)
{
    struct launch *const self = (struct launch *)work;
    const int code = emu_injected("launch");
    if (code != 0) {
        emu_lose_device(code);
        return;
    }
    self->launch.arguments = self->arguments;
    emu_launch_run(&self->launch);
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra)
{
    ENTER_CONTEXT();
    struct emu_stream *const into = stream_of(stream);
    if (!emu_kernel_is_alive(function) || into == NULL)
        return wrong(__func__, "no such kernel or stream", INVALID_HANDLE);
    const struct emu_kernel *const kernel = function;
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 || grid_z > 65535 || block_x == 0 || block_y == 0 ||
        block_z == 0 || block_x > 1024 || block_y > 1024 || block_z > 64 || block_x * block_y * block_z > 1024 ||
        grid_x > 2147483647u || extra != NULL || shared_bytes != 0)
        return wrong(__func__, kernel->device->name, INVALID_VALUE);
    const size_t bytes = kernel->device->argument_bytes;
    if (bytes > 4096)
        return wrong(__func__, "more than 4096 bytes of arguments", INVALID_VALUE);
    struct launch *const launch = malloc(sizeof *launch + bytes);
    if (launch == NULL)
        return OUT_OF_MEMORY;
    *launch = (struct launch){
        .work.run = run_launch,
        .launch = {.kernel = kernel, .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}}};
    memcpy(launch->arguments, parameters[0], bytes);
    emu_count_launch(kernel->device->name);
    emu_stream_push(into, &launch->work);
    return emu_lost_code();
}

/* ---- words
 * ------------------------------------------------------------------------------------------------------------ */

static size_t error_index(int code)
{
    size_t i = 0;
    while (i < sizeof errors / sizeof errors[0] && errors[i].code != code)
        i++;
    return i;
}

int cuGetErrorName(int result, const char **name)
{
    const size_t i = error_index(result);
    *name = i < sizeof errors / sizeof errors[0] ? errors[i].name : NULL;
    return *name != NULL ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int result, const char **text)
{
    const size_t i = error_index(result);
    *text = i < sizeof errors / sizeof errors[0] ? errors[i].text : NULL;
    return *text != NULL ? SUCCESS : INVALID_VALUE;
}
