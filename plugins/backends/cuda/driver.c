#include "driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The names of libraries, newest first. CUDA 12 and 13 have all that we call. The number behind `.so.` is that of CUDA,
 * and a driver runs what belongs to its own CUDA or an older one ("CUDA Compatibility", NVIDIA). */
static const char *const driver_names[] = {"libcuda.so.1", NULL};
static const char *const cublas_names[] = {"libcublas.so.13", "libcublas.so.12", NULL};
static const char *const nvrtc_names[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};

/* A name, and where in struct fuse_driver the function belongs. */
struct entry {
    const char *name;
    size_t offset;
};
#define ENTRY(result, name, parameters, arguments) {#name, offsetof(struct fuse_driver, name)},
static const struct entry driver_entries[] = {FUSE_DRIVER_CALLS(ENTRY){NULL, 0}};
static const struct entry cublas_entries[] = {FUSE_CUBLAS_CALLS(ENTRY){NULL, 0}};
static const struct entry nvrtc_entries[] = {FUSE_NVRTC_CALLS(ENTRY){NULL, 0}};

static struct fuse_driver functions;
static bool has_driver, has_libraries;

const char *fuse_driver_emulation(void)
{
    const char *const path = getenv(FUSE_CUDA_EMULATION_VARIABLE);
    return path != NULL && path[0] != '\0' ? path : NULL;
}

/* dlerror's text begins with the file's name mostly; ours says it once. */
static const char *loading_error(void)
{
    const char *const text = dlerror();
    return text != NULL ? text : "it cannot be loaded";
}

/* CUDA's version that the driver is for, 12040 for 12.4; as long as there is no driver, newer than all. */
static int driver_version(void)
{
    int version = 0;
    return has_driver && functions.cuDriverGetVersion(&version) == FUSE_CU_SUCCESS ? version : INT_MAX;
}

static int library_version(const char *name)
{
    return 1000 * atoi(strstr(name, ".so.") + strlen(".so."));
}

/* *name: of the one that was opened. */
static int open_library(const struct fuse_host *host, const char *const *names, void **library, const char **name,
                        struct fuse_error *error)
{
    const char *const emulation = fuse_driver_emulation();
    char text[320] = "";
    *name = emulation;
    if (emulation != NULL) {
        *library = dlopen(emulation, RTLD_NOW | RTLD_LOCAL);
        if (*library == NULL)
            return host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "CUDA's emulation: %s", loading_error());
        return FUSERUN_OK;
    }
    const int version = driver_version();
    for (size_t i = 0; names[i] != NULL; i++) {
        if (library_version(names[i]) > version) {
            snprintf(text, sizeof(text), "its driver is for CUDA %d.%d, too old for %s", version / 1000,
                     version % 1000 / 10, names[i]);
            continue;
        }
        *name = names[i];
        *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (*library != NULL)
            return FUSERUN_OK;
        if (i == 0 || names[i + 1] == NULL)
            snprintf(text, sizeof(text), "%s", loading_error());
    }
    return host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL, "CUDA cannot be used here: %s", text);
}

static int find_functions(const struct fuse_host *host, const char *const *names, const struct entry *entries,
                          struct fuse_error *error)
{
    void *library = NULL;
    const char *name = NULL;
    const int status = open_library(host, names, &library, &name, error);
    if (status != FUSERUN_OK)
        return status;
    for (const struct entry *entry = entries; entry->name != NULL; entry++) {
        void *const symbol = dlsym(library, entry->name);
        if (symbol == NULL) {
            dlclose(library);
            return host->fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                              "CUDA cannot be used here: %s has no function %s, it is too old", name, entry->name);
        }
        memcpy((char *)&functions + entry->offset, &symbol, sizeof(symbol));
    }
    return FUSERUN_OK; /* the library stays */
}

int fuse_driver_load(const struct fuse_host *host, const struct fuse_driver **driver, struct fuse_error *error)
{
    *driver = &functions;
    if (has_driver)
        return FUSERUN_OK;
    const int status = find_functions(host, driver_names, driver_entries, error);
    has_driver = status == FUSERUN_OK;
    return status;
}

int fuse_driver_load_libraries(const struct fuse_host *host, struct fuse_error *error)
{
    if (has_libraries)
        return FUSERUN_OK;
    int status = find_functions(host, cublas_names, cublas_entries, error);
    if (status == FUSERUN_OK)
        status = find_functions(host, nvrtc_names, nvrtc_entries, error);
    has_libraries = status == FUSERUN_OK;
    return status;
}

/* The first of the names that can be loaded, or NULL. It stays: not every library bears to be unloaded. */
static const char *find_library(const char *const *names)
{
    for (size_t i = 0; names[i] != NULL; i++)
        if (dlopen(names[i], RTLD_LAZY | RTLD_LOCAL) != NULL)
            return names[i];
    return NULL;
}

void fuse_driver_describe(char *text, size_t size)
{
    static const char *const *const libraries[] = {driver_names, cublas_names, nvrtc_names};
    size_t length = 0;
    if (fuse_driver_emulation() != NULL) {
        snprintf(text, size, "emulated by %s", fuse_driver_emulation());
        return;
    }
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]) && length < size; i++) {
        const char *const *const names = libraries[i], *const found = find_library(names);
        const bool has_older = found == NULL && names[1] != NULL;
        length += (size_t)snprintf(text + length, size - length, "%s%s%s%s %s", i > 0 ? ", " : "",
                                   found != NULL ? found : names[0], has_older ? " or " : "", has_older ? names[1] : "",
                                   found != NULL ? "found" : "not found");
    }
}

void fuse_driver_error_text(int result, char *text, size_t size)
{
    const char *name = NULL, *words = NULL;
    if (functions.cuGetErrorName(result, &name) != FUSE_CU_SUCCESS || name == NULL)
        name = "unknown error";
    if (functions.cuGetErrorString(result, &words) != FUSE_CU_SUCCESS || words == NULL)
        snprintf(text, size, "%s %d", name, result);
    else
        snprintf(text, size, "%s (%s)", name, words);
}
