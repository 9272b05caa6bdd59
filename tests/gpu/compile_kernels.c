/* compile_kernels ARCHITECTURE FOLDER OPTIMIZER...: compiles all kernels and every rule of the optimizers with NVRTC
 * for sm_ARCHITECTURE, as the backend would, and leaves FOLDER/NAME.cubin. A warning is a failure. No device is needed.
 * 77: there is no NVRTC here. FUSERUN_NVRTC names its library where the linker does not find it. */
#include "backends/cuda/rule_text.h"
#include "backends/cuda/texts.h"
#include "config/options.h"
#include "plugin/registry.h"

#include "backends/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77 };

struct nvrtc {
    FUSE_NVRTC_CALLS(FUSE_CALL_POINTER_)
};

struct job {
    struct nvrtc nvrtc;
    const char *architecture, *folder;
    int count, failures;
};

static void *open_library(void)
{
    const char *const names[] = {getenv("FUSERUN_NVRTC"), "libnvrtc.so.13", "libnvrtc.so.12"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && library == NULL; i++)
        library = names[i] == NULL ? NULL : dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static int load(struct nvrtc *nvrtc)
{
    void *const library = open_library();
    void *symbol;
    if (library == NULL)
        return SKIPPED;
#define LOAD(result, name, parameters, arguments)                                                                      \
    symbol = dlsym(library, #name);                                                                                    \
    if (symbol == NULL)                                                                                                \
        return SKIPPED;                                                                                                \
    memcpy(&nvrtc->name, &symbol, sizeof symbol);
    FUSE_NVRTC_CALLS(LOAD)
#undef LOAD
    return 0;
}

static char *join(const char *const *texts, size_t count)
{
    size_t bytes = 1;
    for (size_t i = 0; i < count; i++)
        bytes += strlen(texts[i]);
    char *const joined = calloc(bytes, 1);
    for (size_t i = 0; i < count && joined != NULL; i++)
        strcat(joined, texts[i]);
    return joined;
}

static void save(struct job *job, void *program, const char *name)
{
    char path[4096];
    size_t bytes = 0;
    job->nvrtc.nvrtcGetCUBINSize(program, &bytes);
    char *const image = calloc(bytes + 1, 1);
    snprintf(path, sizeof path, "%s/%s.cubin", job->folder, name);
    FILE *const file = fopen(path, "wb");
    if (image == NULL || file == NULL || job->nvrtc.nvrtcGetCUBIN(program, image) != 0 ||
        fwrite(image, 1, bytes, file) != bytes || fclose(file) != 0) {
        fprintf(stderr, "%s: cannot be written\n", path);
        job->failures++;
    }
    free(image);
}

static void compile(struct job *job, const char *name, const char *const *texts, size_t count)
{
    char option[64];
    void *program = NULL;
    size_t log_bytes = 0;
    char *const source = join(texts, count);
    snprintf(option, sizeof option, "--gpu-architecture=sm_%s", job->architecture);
    const char *const options[] = {option, "--fmad=false", "-default-device"}; /* as compiler.c */
    int result = job->nvrtc.nvrtcCreateProgram(&program, source, name, 0, NULL, NULL);
    if (result == 0)
        result = job->nvrtc.nvrtcCompileProgram(program, 3, options);
    job->nvrtc.nvrtcGetProgramLogSize(program, &log_bytes);
    char *const log = calloc(log_bytes + 1, 1);
    if (log != NULL)
        job->nvrtc.nvrtcGetProgramLog(program, log);
    job->count++;
    if (result != 0 || log == NULL || log[0] != '\0') {
        fprintf(stderr, "%s for sm_%s: status %d\n%s\n", name, job->architecture, result, log != NULL ? log : "");
        job->failures++;
    } else {
        save(job, program, name);
    }
    job->nvrtc.nvrtcDestroyProgram(&program);
    free(log);
    free(source);
}

static void compile_optimizer(struct job *job, struct fuse_registry *registry, const char *name)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    if (fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, name, &component, &file, &error) != FUSERUN_OK) {
        fprintf(stderr, "%s\n", error.text);
        job->failures++;
        return;
    }
    const struct fuse_optimizer *const optimizer = component->api;
    for (uint32_t i = 0; i < optimizer->rule_count; i++) {
        char program[256];
        const bool is_whole = optimizer->rules[i]->update_tensor != NULL;
        char *const rule = is_whole ? fuse_passes_text(fuse_host(), optimizer->rules[i], &error)
                                    : fuse_update_text(fuse_host(), optimizer->rules[i], &error);
        const char *const of_elements[] = {fuse_text_arguments, fuse_text_kernel, rule, fuse_text_update};
        const char *const of_tensors[] = {FUSE_PASSES_PROGRAM(rule)};
        snprintf(program, sizeof program, "%s.%s", name, optimizer->rules[i]->name);
        compile(job, program, is_whole ? of_tensors : of_elements, 4);
        free(rule);
    }
}

int main(int count, char **values)
{
    static const char *const kernels[] = {FUSE_KERNELS_PROGRAM};
    struct job job = {.architecture = count > 1 ? values[1] : "", .folder = count > 2 ? values[2] : "."};
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_registry *registry = NULL;
    int major = 0, minor = 0;
    if (count < 3)
        return 2;
    if (load(&job.nvrtc) != 0) {
        fprintf(stderr, "no NVRTC here: neither libnvrtc.so.13 nor libnvrtc.so.12 is found\n");
        return SKIPPED;
    }
    if (fuse_registry_new(NULL, 0, NULL, &registry, &error) != FUSERUN_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    job.nvrtc.nvrtcVersion(&major, &minor);
    printf("NVRTC %d.%d\n", major, minor);
    compile(&job, "kernels", kernels, sizeof kernels / sizeof kernels[0]);
    for (int i = 3; i < count; i++)
        compile_optimizer(&job, registry, values[i]);
    printf("%d programs, %d failed\n", job.count, job.failures);
    fuse_registry_free(&registry);
    return job.failures == 0 ? 0 : 1;
}
