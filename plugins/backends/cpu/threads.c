#include "threads.h"
#include "cpu.h"

#include <sched.h>
#include <stdlib.h>

#ifdef _OPENMP
#include <omp.h>
#endif

int fuse_threads_choose(uint32_t wanted)
{
#ifdef _OPENMP
    if (wanted > 0)
        return wanted < 4096 ? (int)wanted : 4096;
    const char *const text = getenv("OMP_NUM_THREADS");
    const long chosen = text != NULL ? strtol(text, NULL, 10) : 0;
    if (chosen > 0)
        return chosen < 4096 ? (int)chosen : 4096;
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) > 0)
        return CPU_COUNT(&cores);
#else
    (void)wanted;
#endif
    return 1;
}

void fuse_threads_split(int thread_count, int64_t count, int64_t align, int64_t serial_count, fuse_range_body *body,
                        const void *context)
{
    if (thread_count <= 1 || count <= serial_count) {
        body(context, 0, count);
        return;
    }
#ifdef _OPENMP
    const int64_t blocks = (count + align - 1) / align;
#pragma omp parallel num_threads(thread_count)
    {
        const int64_t team = omp_get_num_threads(), self = omp_get_thread_num();
        const int64_t begin = blocks * self / team * align;
        int64_t end = blocks * (self + 1) / team * align;
        end = end < count ? end : count;
        if (begin < end)
            body(context, begin, end);
    }
#else
    (void)align;
#endif
}

int fuse_threads_workers(int thread_count, int64_t task_count)
{
    return task_count < thread_count ? (int)task_count : thread_count;
}

void fuse_threads_tasks(int thread_count, int64_t task_count, fuse_task_body *body, const void *context)
{
    if (thread_count <= 1 || task_count <= 1) {
        for (int64_t task = 0; task < task_count; task++)
            body(context, task, 0);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads(fuse_threads_workers(thread_count, task_count)) schedule(dynamic, 1)
    for (int64_t task = 0; task < task_count; task++)
        body(context, task, omp_get_thread_num());
#endif
}

int fuse_threads_set_inner(int thread_count)
{
#ifdef _OPENMP
    const int before = omp_get_max_threads();
    if (before != thread_count)
        omp_set_num_threads(thread_count);
    return before;
#else
    (void)thread_count;
    return 1;
#endif
}

void fuse_keep_failure(int *status, struct fuse_error *error, int new_status, const struct fuse_error *failure)
{
    int none = FUSERUN_OK;
    if (__atomic_compare_exchange_n(status, &none, new_status, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
        error != NULL)
        *error = *failure;
}
