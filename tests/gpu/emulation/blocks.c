/* A grid on one thread of the host. Each thread of a block runs until it ends or comes to a barrier, on a stack of its
 * own; then another one does. Their order is shuffled, block by block, so that a value which is read before the barrier
 * that should stand in front of it is not there yet. */
#include "emulation.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_THREADS 1024
/* Odd multiples of a cache line, so that the tops of all stacks do not fall into the same place of the cache. */
#define STACK_BYTES ((32u << 10) + 320u)

/* ---- changing from one stack to another -------------------------------------------------------------------------- */

#if defined(__x86_64__)

/* Registers that a function must keep go onto the old stack, which is left at *from; the new one gives its own back. */
void emu_switch(void **from, void *to);
__asm__(".text\n"
        ".globl emu_switch\n"
        ".hidden emu_switch\n"
        ".type emu_switch,@function\n"
        "emu_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    popq %rcx\n    jmp *%rcx\n" /* a return would always be predicted wrongly */
        ".size emu_switch,.-emu_switch\n");

struct fiber {
    void *stack;
    void *at;
};

static void prepare(struct fiber *fiber, void (*start)(void))
{
    void **top = (void **)(void *)((char *)fiber->stack + STACK_BYTES);
    *--top = NULL; /* so that the stack is aligned as after a call */
    memcpy(--top, &start, sizeof start);
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    fiber->at = top;
}

static void switch_to(struct fiber *from, struct fiber *to)
{
    emu_switch(&from->at, to->at);
}

#else

#include <ucontext.h>

struct fiber {
    void *stack;
    ucontext_t at;
};

static void prepare(struct fiber *fiber, void (*start)(void))
{
    getcontext(&fiber->at);
    fiber->at.uc_stack.ss_sp = fiber->stack;
    fiber->at.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber->at, start, 0);
}

static void switch_to(struct fiber *from, struct fiber *to)
{
    swapcontext(&from->at, &to->at);
}

#endif

/* ---- one block ----------------------------------------------------------------------------------------------------
 */

/* The block that runs. Fibers take a thread each, and the next one when it ended without ever having met a barrier, so
 * that most kernels need a single fiber. From barrier to barrier the fibers take turns, each handing on to the next. */
static struct {
    const struct emu_launch *launch;
    struct emu_thread now;
    struct emu_services services;
    struct fiber scheduler;
    struct fiber fibers[MAX_THREADS];
    char *stacks;
    unsigned order[MAX_THREADS]; /* of the threads' beginnings */
    unsigned thread_count, started, ended;
    unsigned fiber;                          /* that runs */
    struct emu_index thread_of[MAX_THREADS]; /* by fiber */
    unsigned waiting[MAX_THREADS];           /* fibers that came to the barrier */
    unsigned waiting_count;
    unsigned turns[MAX_THREADS]; /* fibers that still have to run to the next one, from turn_at on */
    unsigned turn_at, turn_count;
    int barrier_line;
} block;

static void enter(struct fiber *from, unsigned fiber)
{
    block.fiber = fiber;
    block.now.thread = block.thread_of[fiber];
    switch_to(from, &block.fibers[fiber]);
}

static void leave(struct fiber *from)
{
    switch_to(from, &block.scheduler);
}

/* Threads one after another until one waits, or there are no more. */
static void run_threads(void)
{
    while (block.started < block.thread_count) {
        const struct emu_index size = block.launch->block;
        const unsigned thread = block.order[block.started++];
        block.thread_of[block.fiber] =
            (struct emu_index){thread % size.x, thread / size.x % size.y, thread / (size.x * size.y)};
        block.now.thread = block.thread_of[block.fiber];
        block.launch->kernel->device->call(block.launch->arguments);
        block.ended++;
    }
}

static void start_fiber(void)
{
    for (;;) {
        run_threads();
        struct fiber *const self = &block.fibers[block.fiber];
        if (block.turn_at < block.turn_count)
            enter(self, block.turns[block.turn_at++]);
        else
            leave(self);
    }
}

/* All came: they go on in another order, from anywhere on, forwards or back. (Shuffling would take longer than most
 * kernels.) */
static void open_barrier(void)
{
    const unsigned count = block.waiting_count;
    const uint64_t drawn = emu_random();
    const unsigned first = (unsigned)(drawn % count);
    if (count != block.thread_count)
        emu_give_up("kernel %s: %u of a block's %u threads came to the barrier in line %d of its text",
                    block.launch->kernel->device->name, count, block.thread_count, block.barrier_line);
    for (unsigned i = 0; i < count; i++) {
        const unsigned at = first + i < count ? first + i : first + i - count;
        block.turns[i] = block.waiting[drawn >> 63 != 0 ? at : count - 1 - at];
    }
    block.turn_at = 0;
    block.turn_count = count;
    block.waiting_count = 0;
}

static void barrier(int line)
{
    const unsigned self = block.fiber;
    if (block.waiting_count > 0 && block.barrier_line != line)
        emu_give_up("kernel %s: threads of one block are at different barriers, lines %d and %d of its text",
                    block.launch->kernel->device->name, block.barrier_line, line);
    block.barrier_line = line;
    block.waiting[block.waiting_count++] = self;
    if (block.started < block.thread_count) {
        leave(&block.fibers[self]);
        return;
    }
    if (block.turn_at == block.turn_count)
        open_barrier();
    const unsigned next = block.turns[block.turn_at++];
    if (next != self)
        enter(&block.fibers[self], next);
}

static void make_stacks(void)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    block.stacks = mmap(NULL, (size_t)MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (block.stacks == MAP_FAILED)
        emu_give_up("no host memory for the threads' stacks");
    for (unsigned i = 0; i < MAX_THREADS; i++)
        block.fibers[i].stack = block.stacks + (size_t)i * STACK_BYTES;
}

static void shuffle(unsigned *values, unsigned count)
{
    for (unsigned i = count; i > 1; i--) {
        const unsigned j = (unsigned)emu_random_below(i), kept = values[i - 1];
        values[i - 1] = values[j];
        values[j] = kept;
    }
}

static void run_block(void)
{
    unsigned fibers = 0;
    block.started = block.ended = 0;
    block.waiting_count = 0;
    block.turn_at = block.turn_count = 0;
    shuffle(block.order, block.thread_count);
    while (block.started < block.thread_count) {
        prepare(&block.fibers[fibers], start_fiber);
        enter(&block.scheduler, fibers++);
    }
    if (block.waiting_count > 0) /* while others ended: it stays shut */
        open_barrier();
}

/* ---- faults ---------------------------------------------------------------------------------------------------------
 */

/* A kernel outside its memory, or host code inside the device's. The process ends: what a real device would do after it
 * is of no use to a test. */
static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    char where[128];
    (void)context;
    emu_memory_name(info->si_addr, where, sizeof where);
    if (block.launch == NULL)
        emu_give_up("the host reached for %s", where);
    if (signal_number == SIGILL)
        emu_give_up("kernel %s, block %u, thread %u: an index outside its array", block.launch->kernel->device->name,
                    block.now.block.x, block.now.thread.x);
    emu_give_up("kernel %s, block %u, thread %u reached for %s", block.launch->kernel->device->name, block.now.block.x,
                block.now.thread.x, where);
}

void emu_catch_faults(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGILL, &action, NULL);
}

struct emu_services *emu_blocks_services(void)
{
    block.services = (struct emu_services){&block.now, barrier};
    return &block.services;
}

/* ---- one grid
 * -------------------------------------------------------------------------------------------------------- */

void emu_launch_run(const struct emu_launch *launch)
{
    const struct emu_index grid = launch->grid, size = launch->block;
    const unsigned block_count = grid.x * grid.y * grid.z;
    unsigned *const blocks = malloc(block_count * sizeof *blocks);
    if (blocks == NULL)
        emu_give_up("no host memory for %u blocks", block_count);
    for (unsigned i = 0; i < block_count; i++)
        blocks[i] = i;
    shuffle(blocks, block_count);
    if (block.stacks == NULL)
        make_stacks();
    block.launch = launch;
    block.thread_count = size.x * size.y * size.z;
    for (unsigned i = 0; i < block.thread_count; i++)
        block.order[i] = i;
    block.now.block_size = size;
    block.now.grid_size = grid;
    for (unsigned i = 0; i < block_count; i++) {
        block.now.block =
            (struct emu_index){blocks[i] % grid.x, blocks[i] / grid.x % grid.y, blocks[i] / (grid.x * grid.y)};
        emu_module_poison_shared(launch->kernel->module);
        run_block();
    }
    block.launch = NULL;
    free(blocks);
}
