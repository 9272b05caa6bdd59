/* tests/gpu/emulation/ - a CUDA device that is not there. One shared object exports the entry points of the driver, of
 * NVRTC and of cuBLAS that the CUDA backend looks up; the backend's own host code runs on it unchanged, and its kernels
 * are the same text, compiled by cc instead of NVRTC. It is made to find mistakes that a real device hides:
 *
 *   memory.c   device memory between guard pages, out of the host's reach but while the device works; fresh memory is
 *              full of NaN, freed memory is gone for good; what is never freed, or freed twice, is counted
 *   streams.c  work runs as late as the rules of streams and events allow, or in an order drawn from a seed
 *   blocks.c   a block's threads run one after another in a shuffled order from barrier to barrier, blocks shuffled too
 *   modules.c  compiled kernels; compiler.c makes them
 *   products.c matrix products whose order of summation depends on their shape, as a real library's does
 *   calls.c    every call is counted and can be made to fail; a report of all that was seen
 *   driver.c, nvrtc.c, cublas.c: the entry points themselves
 *
 * What the environment says (calls.c reads it once):
 *   FUSERUN_EMULATION_ORDER    late (the default) | eager (at once, where it may) | a number: an order drawn from it
 *   FUSERUN_EMULATION_FAIL     ENTRY:N:CODE, several with commas: the N-th call of ENTRY (of any, for *) returns CODE
 *                              and does nothing; ENTRY may be `launch`: the N-th kernel fails while it runs
 *   FUSERUN_EMULATION_MEMORY   bytes of device memory, 1 GiB by default
 *   FUSERUN_EMULATION_DEVICES  how many devices there are, 1 by default
 *   FUSERUN_EMULATION_CAPABILITY   75 for 7.5; 80 by default
 *   FUSERUN_EMULATION_DRIVER       the CUDA that the driver is for, 12040 for 12.4; 13000 by default
 *   FUSERUN_EMULATION_NO_WAIT  N: the N-th different wait for an event, of a stream or of the host, is left out,
 *                              each time
 *   FUSERUN_EMULATION_REPORT   a file that gets the report, JSON, when the process ends
 *   FUSERUN_EMULATION_CACHE    a folder that keeps compiled kernels from process to process
 *
 * A mistake of the backend is a complaint: one line on stderr and in the report. One after which nothing can go on (a
 * kernel outside its memory) ends the process. */
#ifndef FUSE_TESTS_EMULATION_H
#define FUSE_TESTS_EMULATION_H

#include "device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- calls.c ------------------------------------------------------------------------------------------------- */

enum emu_order { EMU_ORDER_LATE, EMU_ORDER_EAGER, EMU_ORDER_DRAWN };

struct emu_settings {
    enum emu_order order;
    uint64_t seed;
    uint64_t memory_bytes;
    int device_count;
    int driver_version;
    int capability;
    uint64_t no_wait; /* 0: all waits hold */
    const char *report;
    const char *cache;
};
const struct emu_settings *emu_settings(void);

/* One entry point; a static of the function. */
struct emu_entry {
    const char *name;
    uint64_t calls;
    struct emu_entry *next;
};

/* Counts the call and takes the lock; not 0: what it has to return at once. */
int emu_enter(struct emu_entry *entry, const char *name);
void emu_leave(const int *status);

/* The first line of every entry point that can fail. */
#define EMU_ENTER(type_)                                                                                               \
    static struct emu_entry entry_;                                                                                    \
    __attribute__((cleanup(emu_leave))) const int entered_ = emu_enter(&entry_, __func__);                             \
    if (entered_ != 0)                                                                                                 \
    return (type_)entered_

/* Whether the n-th of `name` is to fail now, and with what. */
int emu_injected(const char *name);

/* From now on every call fails with this code, as after a fault of a real device. */
void emu_lose_device(int code);
int emu_lost_code(void);

/* A mistake of the backend; and one after which nothing goes on. */
void emu_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void emu_give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Counters of the report. */
void emu_count_launch(const char *kernel);
enum emu_kind {
    EMU_CONTEXT,
    EMU_MEMORY,
    EMU_PINNED,
    EMU_STREAM,
    EMU_EVENT,
    EMU_MODULE,
    EMU_PROGRAM,
    EMU_LIBRARY,
    EMU_KIND_COUNT
};
void emu_count_made(enum emu_kind kind);
void emu_count_gone(enum emu_kind kind);

/* The next number of the one stream of random numbers; below(n): in [0, n). */
uint64_t emu_random(void);
uint64_t emu_random_below(uint64_t bound);

/* ---- memory.c ------------------------------------------------------------------------------------------------ */

/* NULL: there is not enough. Not 0 from free: no such memory. */
void *emu_memory_new(uint64_t bytes);
int emu_memory_free(void *memory);
bool emu_memory_holds(const void *memory, uint64_t bytes);
uint64_t emu_memory_used(void);

/* The device works: its memory can be reached. Nests. */
void emu_memory_open(void);
void emu_memory_close(void);

void *emu_pinned_new(size_t bytes);
int emu_pinned_free(void *memory);
bool emu_is_pinned(const void *memory, uint64_t bytes);

/* What the address is, for messages. */
void emu_memory_name(const void *address, char *text, size_t size);

/* ---- streams.c ----------------------------------------------------------------------------------------------- */

struct emu_stream;
struct emu_event;

/* Work that waits in a stream; the first member of whatever its function needs. Freed after it ran. */
struct emu_work {
    void (*run)(struct emu_work *work); /* NULL: only waits */
    struct emu_work *next;
    struct emu_stream *awaited; /* runs only after this stream has done `awaited_until` of its work */
    uint64_t awaited_until;
};

struct emu_stream *emu_stream_new(bool is_blocking);
bool emu_stream_is_alive(const struct emu_stream *stream);
struct emu_stream *emu_stream_default(void);
void emu_stream_drop(struct emu_stream *stream);
void emu_stream_push(struct emu_stream *stream, struct emu_work *work);
void emu_stream_finish(struct emu_stream *stream);
void emu_streams_finish(void);

struct emu_event *emu_event_new(void);
bool emu_event_is_alive(const struct emu_event *event);
void emu_event_drop(struct emu_event *event);
void emu_event_record(struct emu_event *event, struct emu_stream *stream);
void emu_event_wait(struct emu_event *event, struct emu_stream *stream);
void emu_event_finish(struct emu_event *event);
/* Different waits so far, and those that were left out. */
uint64_t emu_wait_count(void);
uint64_t emu_wait_left_out(void);

/* ---- compiler.c, modules.c, blocks.c ---------------------------------------------------------------------------- */

struct emu_text {
    const char *text;
    const char *name; /* of a header */
};

/* Compiles a text with its headers. 0, and *image (malloc) of *image_bytes; else *log (malloc) says what is wrong. */
int emu_compile(const char *text, const struct emu_text *headers, int header_count, void **image, size_t *image_bytes,
                char **log);

/* Another number for another compiler or another device.h. */
uint64_t emu_compiler_version(void);

struct emu_module;

/* A kernel of a loaded module: what cuModuleGetFunction gives out. */
struct emu_kernel {
    const struct emu_device_kernel *device;
    struct emu_module *module;
    struct emu_kernel *next;
};

/* image: what emu_compile made. NULL: it is not. */
struct emu_module *emu_module_load(const void *image);
bool emu_module_is_alive(const struct emu_module *module);
void emu_module_drop(struct emu_module *module);
struct emu_kernel *emu_module_kernel(struct emu_module *module, const char *name);
bool emu_kernel_is_alive(const struct emu_kernel *kernel);
/* A block begins: its shared memory holds nothing. */
void emu_module_poison_shared(const struct emu_module *module);

struct emu_launch {
    const struct emu_kernel *kernel;
    struct emu_index grid, block;
    const void *arguments;
};
void emu_launch_run(const struct emu_launch *launch);
struct emu_services *emu_blocks_services(void);
void emu_catch_faults(void);

/* ---- products.c ------------------------------------------------------------------------------------------------- */

enum emu_type { EMU_FLOAT32, EMU_BFLOAT16 };

struct emu_matrix {
    enum emu_type type;
    bool is_transposed;
    int64_t stride; /* from column to column, all being column-major as BLAS has them */
};

/* c (m, n) = alpha op(a) op(b) + beta c */
struct emu_product {
    int64_t m, n, k;
    struct emu_matrix a, b, c;
    float alpha, beta;
    bool rounds_to_tf32;
    bool reduces_in_c;    /* parts of a sum are of c's type */
    bool wants_alignment; /* to 16 bytes, of every matrix */
};
void emu_product_run(const struct emu_product *product, const void *a, const void *b, void *c);

#endif
