/* What the emulation and the kernels that it compiled know of each other. Kernels see this in front of their text, in
 * the place of what NVRTC gives them: plugins/backends/cuda/kernels/kernel.h says which part of CUDA they keep to. */
#ifndef FUSE_TESTS_EMULATION_DEVICE_H
#define FUSE_TESTS_EMULATION_DEVICE_H

struct emu_index {
    unsigned x, y, z;
};

/* The thread that runs now. */
struct emu_thread {
    struct emu_index thread, block, block_size, grid_size;
};

/* What a module gets at its loading, in its variable `emu`. */
struct emu_services {
    struct emu_thread *now;
    /* Until all threads of the block are here. line: of the text; all threads must be at the same. */
    void (*barrier)(int line);
};

/* One kernel of a module. They stand in its section emu_kernels, its shared memory in its section emu_shared. */
struct emu_device_kernel {
    const char *name;
    void (*call)(const void *arguments);
    unsigned long argument_bytes;
} __attribute__((aligned(32)));

#ifdef EMU_KERNEL_TEXT
#include <math.h>
#include <stdint.h>
#include <string.h>

__attribute__((visibility("default"))) struct emu_services *emu;

#define FUSE_KERNEL(name_, type_, arguments_)                                                                          \
    static void name_(const type_ arguments_);                                                                         \
    static void name_##_call(const void *emu_arguments)                                                                \
    {                                                                                                                  \
        name_(*(const type_ *)emu_arguments);                                                                          \
    }                                                                                                                  \
    __attribute__((section("emu_kernels"), used)) static const struct emu_device_kernel name_##_kernel = {             \
        #name_, name_##_call, sizeof(type_)};                                                                          \
    static void name_(const type_ arguments_)
#define FUSE_DEVICE static inline __attribute__((unused))
#define FUSE_SHARED static __attribute__((section("emu_shared")))
#define FUSE_SYNC() emu->barrier(__LINE__)
#define FUSE_THREAD ((int)emu->now->thread.x)
#define FUSE_BLOCK_INDEX ((long long)emu->now->block.x)
#define FUSE_BLOCK_COUNT ((long long)emu->now->grid_size.x)

/* So that the section is there in a module without shared memory. */
FUSE_SHARED char emu_no_shared[16];
extern char __start_emu_shared[], __stop_emu_shared[];
extern const struct emu_device_kernel __start_emu_kernels[], __stop_emu_kernels[];
__attribute__((visibility("default"))) char *const emu_shared_range[] = {__start_emu_shared, __stop_emu_shared,
                                                                         emu_no_shared};
__attribute__((visibility("default")))
const struct emu_device_kernel *const emu_kernel_range[] = {__start_emu_kernels, __stop_emu_kernels};
#endif

#endif
