/* The backend's threads. The only file that calls OpenMP; without it everything runs on the calling thread. */
#ifndef FUSE_CPU_THREADS_H
#define FUSE_CPU_THREADS_H

#include <stdint.h>

/* Below this many elements (or so many floating-point operations' worth) waking threads costs more than it saves. */
#define FUSE_SERIAL_ELEMENTS 32768

/* `wanted`, or for 0: OMP_NUM_THREADS, else the cores this process may use. */
int fuse_threads_choose(uint32_t wanted);

/* body(context, begin, end) over [0, count): at once if count <= serial_count, else one contiguous range a thread, cut
 * at multiples of `align`. */
typedef void fuse_range_body(const void *context, int64_t begin, int64_t end);
void fuse_threads_split(int thread_count, int64_t count, int64_t align, int64_t serial_count, fuse_range_body *body,
                        const void *context);

/* body(context, task, worker) for each task, on as many threads, in any order; worker is below fuse_threads_workers. */
typedef void fuse_task_body(const void *context, int64_t task, int worker);
int fuse_threads_workers(int thread_count, int64_t task_count);
void fuse_threads_tasks(int thread_count, int64_t task_count, fuse_task_body *body, const void *context);

/* How many threads a library's own parallel regions get from here on, on this thread; returns what it was. */
int fuse_threads_set_inner(int thread_count);

#endif
