/* Device memory, and copies between it and the host. Ordinary host memory goes through one pinned block, a piece at a
 * time, so that every copy is of pinned memory and the driver stages nothing by itself. */
#include "cuda.h"

#include <string.h>

int fuse_cuda_pin(struct fuse_cuda *cuda, uint64_t bytes, void **memory, struct fuse_error *error)
{
    *memory = NULL;
    return fuse_cuda_check(cuda, cuda->driver->cuMemHostAlloc(memory, bytes > 0 ? bytes : 1, 0),
                           "getting host memory for copies", error);
}

void fuse_cuda_unpin(struct fuse_cuda *cuda, void *memory)
{
    fuse_cuda_settle(cuda);
    fuse_cuda_note(cuda, cuda->driver->cuMemFreeHost(memory), "freeing host memory");
}

int fuse_cuda_clear(struct fuse_cuda *cuda, void *memory, uint64_t bytes, struct fuse_error *error)
{
    FUSE_TRY(fuse_cuda_begin(cuda, error));
    if (bytes == 0)
        return FUSERUN_OK;
    return fuse_cuda_check(cuda, cuda->driver->cuMemsetD8Async(fuse_address(memory), 0, bytes, cuda->stream),
                           "clearing memory", error);
}

int fuse_cuda_allocate(struct fuse_cuda *cuda, uint64_t bytes, void **memory, struct fuse_error *error)
{
    fuse_device_address address = 0;
    size_t free_bytes = 0, total_bytes = 0;
    *memory = NULL;
    const int result = cuda->driver->cuMemAlloc_v2(&address, bytes > 0 ? bytes : 1);
    cuda->is_full = cuda->is_full || result == FUSE_CU_OUT_OF_MEMORY;
    if (result == FUSE_CU_OUT_OF_MEMORY && cuda->driver->cuMemGetInfo_v2(&free_bytes, &total_bytes) == FUSE_CU_SUCCESS)
        return cuda->host->fail(error, FUSERUN_ERROR_MEMORY, NULL,
                                "out of memory: CUDA device %d cannot give %llu bytes, it has %zu free of %zu",
                                cuda->ordinal, (unsigned long long)bytes, free_bytes, total_bytes);
    FUSE_TRY(fuse_cuda_check(cuda, result, "getting memory", error));
    *memory = (void *)(uintptr_t)address;
    const int status = fuse_cuda_clear(cuda, *memory, bytes, error);
    if (status != FUSERUN_OK) {
        fuse_cuda_release(cuda, *memory);
        *memory = NULL;
    }
    return status;
}

void fuse_cuda_measure(const struct fuse_cuda *cuda, uint64_t *free_bytes, uint64_t *total_bytes)
{
    size_t left = 0, all = 0;
    const bool is_told = cuda->driver->cuMemGetInfo_v2(&left, &all) == FUSE_CU_SUCCESS;
    *free_bytes = is_told ? left : 0;
    *total_bytes = is_told ? all : 0;
}

/* Nothing may still use it. */
void fuse_cuda_release(struct fuse_cuda *cuda, void *memory)
{
    fuse_cuda_settle(cuda);
    fuse_cuda_note(cuda, cuda->driver->cuMemFree_v2(fuse_address(memory)), "freeing memory");
}

int fuse_cuda_synchronize(struct fuse_cuda *cuda, struct fuse_error *error)
{
    FUSE_TRY(fuse_cuda_begin(cuda, error));
    FUSE_TRY(fuse_cuda_check(cuda, cuda->driver->cuStreamSynchronize(cuda->stream), "computing", error));
    cuda->is_busy = cuda->is_computing = false; /* the stream has waited for the other one's copies */
    return FUSERUN_OK;
}

static uint64_t piece_bytes(uint64_t bytes, uint64_t at)
{
    return bytes - at < FUSE_BOUNCE_BYTES ? bytes - at : FUSE_BOUNCE_BYTES;
}

int fuse_cuda_upload(struct fuse_cuda *cuda, void *device, const void *host, uint64_t bytes, struct fuse_error *error)
{
    FUSE_TRY(fuse_cuda_begin(cuda, error));
    for (uint64_t at = 0; at < bytes; at += FUSE_BOUNCE_BYTES) {
        const uint64_t count = piece_bytes(bytes, at);
        memcpy(cuda->bounce, (const char *)host + at, count);
        FUSE_TRY(fuse_cuda_check(
            cuda,
            cuda->driver->cuMemcpyHtoDAsync_v2(fuse_address((char *)device + at), cuda->bounce, count, cuda->stream),
            "copying to the device", error));
        FUSE_TRY(fuse_cuda_synchronize(cuda, error));
    }
    return FUSERUN_OK;
}

int fuse_cuda_download(struct fuse_cuda *cuda, void *host, const void *device, uint64_t bytes, struct fuse_error *error)
{
    FUSE_TRY(fuse_cuda_begin(cuda, error));
    for (uint64_t at = 0; at < bytes; at += FUSE_BOUNCE_BYTES) {
        const uint64_t count = piece_bytes(bytes, at);
        FUSE_TRY(fuse_cuda_check(cuda,
                                 cuda->driver->cuMemcpyDtoHAsync_v2(
                                     cuda->bounce, fuse_address((const char *)device + at), count, cuda->stream),
                                 "copying from the device", error));
        FUSE_TRY(fuse_cuda_synchronize(cuda, error));
        memcpy((char *)host + at, cuda->bounce, count);
    }
    return FUSERUN_OK;
}

/* The copy waits until nothing reads the last batch any more, unless the host has waited for that, and computing waits
 * for the copy. */
int fuse_cuda_upload_staged(struct fuse_cuda *cuda, void *device, const void *staging, uint64_t bytes,
                            struct fuse_error *error)
{
    const struct fuse_driver *const driver = cuda->driver;
    const char *const what = "copying a batch to the device";
    FUSE_TRY(fuse_cuda_failed(cuda, error));
    cuda->is_busy = true;
    if (cuda->is_computing) {
        FUSE_TRY(fuse_cuda_check(cuda, driver->cuEventRecord(cuda->computed, cuda->stream), what, error));
        FUSE_TRY(fuse_cuda_check(cuda, driver->cuStreamWaitEvent(cuda->copy_stream, cuda->computed, 0), what, error));
    }
    FUSE_TRY(fuse_cuda_check(
        cuda, driver->cuMemcpyHtoDAsync_v2(fuse_address(device), staging, bytes, cuda->copy_stream), what, error));
    FUSE_TRY(fuse_cuda_check(cuda, driver->cuEventRecord(cuda->copied, cuda->copy_stream), what, error));
    return fuse_cuda_check(cuda, driver->cuStreamWaitEvent(cuda->stream, cuda->copied, 0), what, error);
}
