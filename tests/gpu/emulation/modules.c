/* Modules: an image is the shared object that the compiler made; loading it is dlopen. */
#include "emulation.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct emu_module {
    struct emu_module *next;
    void *library;
    int file;
    char *shared, *shared_end;
    const struct emu_device_kernel *kernels, *kernels_end;
    struct emu_kernel *given; /* kernels that were asked for; they stay, so that late uses can be told */
    bool is_alive;
};

static struct emu_module *modules;

/* An image comes without its size, as a cubin does: it ends with its table of sections. */
static size_t image_bytes(const void *image)
{
    Elf64_Ehdr header;
    memcpy(&header, image, SELFMAG);
    if (memcmp(&header, ELFMAG, SELFMAG) != 0)
        return 0;
    memcpy(&header, image, sizeof header);
    return header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
}

static void *open_image(const void *image, size_t bytes, int *file)
{
    char path[64];
    *file = memfd_create("emulated-module", MFD_CLOEXEC);
    if (*file < 0)
        return NULL;
    for (size_t at = 0; at < bytes;) {
        const ssize_t written = write(*file, (const char *)image + at, bytes - at);
        if (written <= 0)
            return NULL;
        at += (size_t)written;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", *file);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

struct emu_module *emu_module_load(const void *image)
{
    struct emu_module *const module = calloc(1, sizeof *module);
    const size_t bytes = image_bytes(image);
    if (module == NULL || bytes == 0) {
        free(module);
        return NULL;
    }
    module->library = open_image(image, bytes, &module->file);
    struct emu_services **const services = module->library != NULL ? dlsym(module->library, "emu") : NULL;
    char *const *const shared = module->library != NULL ? dlsym(module->library, "emu_shared_range") : NULL;
    const struct emu_device_kernel *const *const kernels =
        module->library != NULL ? dlsym(module->library, "emu_kernel_range") : NULL;
    if (services == NULL || shared == NULL || kernels == NULL) {
        if (module->library != NULL)
            dlclose(module->library);
        close(module->file);
        free(module);
        return NULL;
    }
    *services = emu_blocks_services();
    module->shared = shared[0];
    module->shared_end = shared[1];
    module->kernels = kernels[0];
    module->kernels_end = kernels[1];
    module->is_alive = true;
    module->next = modules;
    modules = module;
    emu_count_made(EMU_MODULE);
    return module;
}

bool emu_module_is_alive(const struct emu_module *module)
{
    for (const struct emu_module *at = modules; at != NULL; at = at->next)
        if (at == module)
            return at->is_alive;
    return false;
}

void emu_module_drop(struct emu_module *module)
{
    dlclose(module->library);
    close(module->file);
    module->is_alive = false;
    emu_count_gone(EMU_MODULE);
}

struct emu_kernel *emu_module_kernel(struct emu_module *module, const char *name)
{
    for (struct emu_kernel *at = module->given; at != NULL; at = at->next)
        if (strcmp(at->device->name, name) == 0)
            return at;
    for (const struct emu_device_kernel *device = module->kernels; device < module->kernels_end; device++) {
        if (strcmp(device->name, name) != 0)
            continue;
        struct emu_kernel *const kernel = malloc(sizeof *kernel);
        if (kernel == NULL)
            return NULL;
        *kernel = (struct emu_kernel){device, module, module->given};
        module->given = kernel;
        return kernel;
    }
    return NULL;
}

bool emu_kernel_is_alive(const struct emu_kernel *kernel)
{
    for (const struct emu_module *module = modules; module != NULL; module = module->next)
        for (const struct emu_kernel *at = module->given; at != NULL; at = at->next)
            if (at == kernel)
                return module->is_alive;
    return false;
}

void emu_module_poison_shared(const struct emu_module *module)
{
    memset(module->shared, 0xff, (size_t)(module->shared_end - module->shared));
}
