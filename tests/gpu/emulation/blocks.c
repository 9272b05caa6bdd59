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
#define STACK_BYTES (64u << 10)

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
        "    ret\n"
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

/* The block that runs. Threads are numbered; fibers take a thread each, and the next one when it ended without ever
 * having met a barrier, so that most kernels need a single fiber. */
static struct {
    const struct emu_launch *launch;
    struct emu_thread now;
    struct emu_services services;
    struct fiber scheduler;
    struct fiber fibers[MAX_THREADS];
    unsigned fiber_count; /* that have a stack */
    unsigned order[MAX_THREADS];
    unsigned thread_count, started, ended;
    unsigned fiber; /* that runs, or MAX_THREADS */
    unsigned thread_of[MAX_THREADS];
    unsigned waiting[MAX_THREADS]; /* fibers at the barrier */
    unsigned waiting_count;
    int barrier_line;
} block;

static void set_thread(unsigned thread)
{
    const struct emu_index size = block.launch->block;
    block.now.thread = (struct emu_index){thread % size.x, thread / size.x % size.y, thread / (size.x * size.y)};
}

/* Threads one after another until one waits, or there are no more. */
static void run_threads(void)
{
    for (;;) {
        const unsigned thread = block.order[block.started++];
        block.thread_of[block.fiber] = thread;
        set_thread(thread);
        block.launch->kernel->device->call(block.launch->arguments);
        block.ended++;
        if (block.started == block.thread_count)
            break;
    }
}

static void start_fiber(void)
{
    for (;;) {
        if (block.started < block.thread_count)
            run_threads();
        switch_to(&block.fibers[block.fiber], &block.scheduler);
    }
}

static void barrier(int line)
{
    if (block.waiting_count > 0 && block.barrier_line != line)
        emu_give_up("kernel %s: threads of one block are at different barriers, lines %d and %d of its text",
                    block.launch->kernel->device->name, block.barrier_line, line);
    block.barrier_line = line;
    block.waiting[block.waiting_count++] = block.fiber;
    const unsigned fiber = block.fiber;
    switch_to(&block.fibers[fiber], &block.scheduler);
    set_thread(block.thread_of[fiber]);
}

static void enter(unsigned fiber)
{
    block.fiber = fiber;
    switch_to(&block.scheduler, &block.fibers[fiber]);
    block.fiber = MAX_THREADS;
}

static void need_fiber(unsigned fiber)
{
    while (block.fiber_count <= fiber) {
        void *const stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED)
            emu_give_up("no host memory for a thread's stack");
        block.fibers[block.fiber_count++].stack = stack;
    }
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
    shuffle(block.order, block.thread_count);
    while (block.started < block.thread_count) {
        need_fiber(fibers);
        prepare(&block.fibers[fibers], start_fiber);
        enter(fibers++);
    }
    while (block.waiting_count > 0) {
        unsigned woken[MAX_THREADS];
        const unsigned count = block.waiting_count;
        if (count + block.ended != block.thread_count || block.ended > 0)
            emu_give_up("kernel %s: %u of a block's %u threads came to the barrier in line %d of its text",
                        block.launch->kernel->device->name, count, block.thread_count, block.barrier_line);
        memcpy(woken, block.waiting, count * sizeof woken[0]);
        block.waiting_count = 0;
        shuffle(woken, count);
        for (unsigned i = 0; i < count; i++)
            enter(woken[i]);
    }
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
