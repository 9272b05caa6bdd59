#include "counted.h"

/* Names that the linker gives. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);

size_t counted_bytes;

void *__wrap_malloc(size_t size)
{
    counted_bytes += size;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    counted_bytes += count * size;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    counted_bytes += size;
    return __real_realloc(pointer, size);
}
