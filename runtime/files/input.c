#include "files/input.h"

#include "base/regular.h"
#include "base/text.h"
#include "files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int fuse_input_open(const char *path, struct fuse_input *input, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct stat found;
    *input = (struct fuse_input){.descriptor = -1};
    input->path = fuse_strdup(path);
    if (input->path == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a file's name", strlen(path)));
    input->descriptor = fuse_open_regular(path, O_RDONLY);
    if (input->descriptor < 0 && errno == ENXIO)
        FUSE_TRY_OUT(fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot read '%s': %s", fuse_shown_path(path),
                               fuse_regular_reason(ENXIO)));
    if (input->descriptor < 0 || fstat(input->descriptor, &found) != 0)
        FUSE_TRY_OUT(fuse_fail_errno(error, "open", path, errno));
    input->byte_count = (uint64_t)found.st_size;
out:
    if (status != FUSERUN_OK)
        fuse_input_close(input);
    return status;
}

int fuse_input_read(const struct fuse_input *input, uint64_t offset, void *bytes, uint64_t byte_count,
                    struct fuse_error *error)
{
    enum { CALL_BYTES = 1 << 30 }; /* Linux reads no more than 2 GiB in one call */
    unsigned char *to = bytes;
    while (byte_count > 0) {
        const ssize_t got =
            pread(input->descriptor, to, byte_count < CALL_BYTES ? (size_t)byte_count : CALL_BYTES, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fuse_fail_errno(error, "read", input->path, errno);
        if (got == 0)
            return fuse_fail(error, FUSERUN_ERROR_IO, NULL,
                             "cannot read '%s': it has become shorter since it was opened",
                             fuse_shown_path(input->path));
        to += got;
        offset += (uint64_t)got;
        byte_count -= (uint64_t)got;
    }
    return FUSERUN_OK;
}

void fuse_input_close(struct fuse_input *input)
{
    if (input->path == NULL)
        return;
    if (input->descriptor >= 0)
        (void)close(input->descriptor);
    free(input->path);
    *input = (struct fuse_input){.descriptor = -1};
}
