#include "counted.h"

#include <malloc.h>

/* Names that the linker gives. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void __real_free(void *pointer);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
void __wrap_free(void *pointer);

size_t counted_bytes, counted_live_bytes, counted_peak_bytes;

static void *hold(void *pointer, size_t asked)
{
    counted_bytes += asked;
    counted_live_bytes += malloc_usable_size(pointer);
    if (counted_live_bytes > counted_peak_bytes)
        counted_peak_bytes = counted_live_bytes;
    return pointer;
}

void *__wrap_malloc(size_t size)
{
    return hold(__real_malloc(size), size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return hold(__real_calloc(count, size), count * size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    counted_live_bytes -= malloc_usable_size(pointer);
    return hold(__real_realloc(pointer, size), size);
}

void __wrap_free(void *pointer)
{
    counted_live_bytes -= malloc_usable_size(pointer);
    __real_free(pointer);
}
