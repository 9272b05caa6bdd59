/* NVRTC: texts become a module on the device, by way of the cache. */
#include "cache.h"
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_ARCHITECTURES 64

/* What NVRTC makes: code for the very device, or, where it does not know that yet, PTX for the newest one that it
 * knows, from which the driver makes code. */
struct target {
    char option[64]; /* "--gpu-architecture=sm_90" */
    int is_ptx;
};

static int choose_target(struct fuse_cuda *cuda, struct target *target, struct fuse_error *error)
{
    const struct fuse_driver *const driver = cuda->driver;
    int architectures[MOST_ARCHITECTURES] = {0};
    int count = 0, best = 0, oldest = 0;
    if (driver->nvrtcVersion(&cuda->nvrtc_major, &cuda->nvrtc_minor) != FUSE_NVRTC_SUCCESS ||
        driver->nvrtcGetNumSupportedArchs(&count) != FUSE_NVRTC_SUCCESS || count < 1 || count > MOST_ARCHITECTURES ||
        driver->nvrtcGetSupportedArchs(architectures) != FUSE_NVRTC_SUCCESS)
        return cuda->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "NVRTC does not say what it compiles for");
    for (int i = 0; i < count; i++) {
        if (architectures[i] <= cuda->capability && architectures[i] > best)
            best = architectures[i];
        if (oldest == 0 || architectures[i] < oldest)
            oldest = architectures[i];
    }
    if (best == 0)
        return cuda->host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                                "CUDA device %d has compute capability %d.%d, this NVRTC compiles for %d.%d and newer",
                                cuda->ordinal, cuda->capability / 10, cuda->capability % 10, oldest / 10, oldest % 10);
    target->is_ptx = best != cuda->capability;
    snprintf(target->option, sizeof(target->option), "--gpu-architecture=%s_%d", target->is_ptx ? "compute" : "sm",
             best);
    return FUSERUN_OK;
}

/* All that the result follows from, then the source itself: *source is where it begins. An emulation that was built
 * anew is another compiler. */
static char *make_key(const struct fuse_cuda *cuda, const struct target *target, const char *const *texts,
                      size_t text_count, size_t *key_bytes, char **source)
{
    const char *const emulation = fuse_driver_emulation();
    struct stat found;
    char head[4096 + 256];
    size_t bytes = 0;
    long long built = 0;
    if (emulation != NULL && stat(emulation, &found) == 0)
        built = (long long)found.st_mtim.tv_sec * 1000000000 + found.st_mtim.tv_nsec;
    const int head_bytes = snprintf(head, sizeof(head), "NVRTC %d.%d %s %.4000s %lld\n", cuda->nvrtc_major,
                                    cuda->nvrtc_minor, target->option, emulation != NULL ? emulation : "", built);
    for (size_t i = 0; i < text_count; i++)
        bytes += strlen(texts[i]);
    char *const key = malloc((size_t)head_bytes + bytes + 1);
    if (key == NULL)
        return NULL;
    memcpy(key, head, (size_t)head_bytes);
    char *at = *source = key + head_bytes;
    for (size_t i = 0; i < text_count; i++) {
        const size_t length = strlen(texts[i]);
        memcpy(at, texts[i], length);
        at += length;
    }
    *at = '\0';
    *key_bytes = (size_t)(at - key);
    return key;
}

/* The first of NVRTC's complaints that is an error, else the first. */
static const char *pick_complaint(char *log)
{
    const char *const error = strstr(log, "error");
    char *begin = log;
    for (char *end = strchr(begin, '\n'); error != NULL && end != NULL && end < error; end = strchr(begin, '\n'))
        begin = end + 1;
    begin[strcspn(begin, "\n")] = '\0';
    return begin;
}

static int fail_compilation(const struct fuse_cuda *cuda, const char *name, void *program, int result,
                            struct fuse_error *error)
{
    size_t bytes = 0;
    char *log = NULL;
    if (cuda->driver->nvrtcGetProgramLogSize(program, &bytes) == FUSE_NVRTC_SUCCESS && bytes > 0)
        log = calloc(bytes + 1, 1);
    if (log != NULL && cuda->driver->nvrtcGetProgramLog(program, log) == FUSE_NVRTC_SUCCESS && log[0] != '\0') {
        (void)cuda->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL, "%s does not compile for CUDA: %s", name,
                               pick_complaint(log));
    } else {
        (void)cuda->host->fail(error, FUSERUN_ERROR_PLUGIN, NULL, "%s does not compile for CUDA: NVRTC status %d", name,
                               result);
    }
    free(log);
    return FUSERUN_ERROR_PLUGIN;
}

static int take_image(const struct fuse_cuda *cuda, const char *name, void *program, const struct target *target,
                      char **image, size_t *image_bytes, struct fuse_error *error)
{
    const struct fuse_driver *const driver = cuda->driver;
    int result = target->is_ptx ? driver->nvrtcGetPTXSize(program, image_bytes)
                                : driver->nvrtcGetCUBINSize(program, image_bytes);
    if (result != FUSE_NVRTC_SUCCESS || *image_bytes == 0)
        return fail_compilation(cuda, name, program, result, error);
    *image = malloc(*image_bytes);
    if (*image == NULL)
        return cuda->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for %s (%zu bytes)", name,
                                *image_bytes);
    result = target->is_ptx ? driver->nvrtcGetPTX(program, *image) : driver->nvrtcGetCUBIN(program, *image);
    return result == FUSE_NVRTC_SUCCESS ? FUSERUN_OK : fail_compilation(cuda, name, program, result, error);
}

/* On success *image is for the caller to free. */
static int compile(const struct fuse_cuda *cuda, const char *name, const char *source, const struct target *target,
                   char **image, size_t *image_bytes, struct fuse_error *error)
{
    const char *const options[] = {target->option, FUSE_COMPILER_OPTIONS};
    void *program = NULL;
    *image = NULL;
    int result = cuda->driver->nvrtcCreateProgram(&program, source, name, 0, NULL, NULL);
    if (result != FUSE_NVRTC_SUCCESS)
        return cuda->host->fail(error, FUSERUN_ERROR_DEVICE, NULL, "NVRTC cannot begin with %s: status %d", name,
                                result);
    result = cuda->driver->nvrtcCompileProgram(program, (int)(sizeof(options) / sizeof(options[0])), options);
    int status = result == FUSE_NVRTC_SUCCESS ? FUSERUN_OK : fail_compilation(cuda, name, program, result, error);
    if (status == FUSERUN_OK)
        status = take_image(cuda, name, program, target, image, image_bytes, error);
    (void)cuda->driver->nvrtcDestroyProgram(&program);
    if (status != FUSERUN_OK) {
        free(*image);
        *image = NULL;
    }
    return status;
}

int fuse_cuda_compile(struct fuse_cuda *cuda, const char *name, const char *const *texts, size_t text_count,
                      void **module, struct fuse_error *error)
{
    struct target target;
    size_t key_bytes = 0, image_bytes = 0;
    char *source = NULL;
    *module = NULL;
    FUSE_TRY(choose_target(cuda, &target, error));
    char *const key = make_key(cuda, &target, texts, text_count, &key_bytes, &source);
    if (key == NULL)
        return cuda->host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for %s", name);
    char *image = fuse_cache_read(key, key_bytes, &image_bytes);
    if (image != NULL && cuda->driver->cuModuleLoadData(module, image) != FUSE_CU_SUCCESS)
        *module = NULL;
    int status = FUSERUN_OK;
    if (*module == NULL) {
        free(image);
        status = compile(cuda, name, source, &target, &image, &image_bytes, error);
        if (status == FUSERUN_OK)
            status = fuse_cuda_check(cuda, cuda->driver->cuModuleLoadData(module, image), "loading kernels", error);
        if (status == FUSERUN_OK)
            fuse_cache_write(key, key_bytes, image, image_bytes);
    }
    free(image);
    free(key);
    return status;
}
