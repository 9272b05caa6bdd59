#include "files/output.h"

#include "base/text.h"
#include "files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Small writes are gathered up to this; larger ones go straight to the file. */
enum { BUFFER_BYTES = 256 * 1024 };

struct fuse_output {
    char *path;
    char *temporary;
    char *folder;
    int descriptor;
    size_t used; /* bytes waiting in the buffer */
    unsigned char buffer[BUFFER_BYTES];
};

/* Of the file's name in the temporary one: NAME_MAX is 255, and the rest needs room too. */
enum { NAME_BYTES = 180, ATTEMPTS = 1000 };

/* The folder of a path, "." if it names none; *name: what stands behind it. */
static char *folder_of(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash == NULL ? path : slash + 1;
    if (slash == NULL)
        return fuse_strdup(".");
    return slash == path ? fuse_strdup("/") : fuse_strndup(path, (size_t)(slash - path));
}

/* A name in the folder that no other call of this process gives, nor another process. */
static char *temporary_name(const char *folder, const char *name)
{
    static atomic_uint counter;
    return fuse_format("%s/.%.*s.%ld-%u.tmp", folder, NAME_BYTES, name, (long)getpid(), atomic_fetch_add(&counter, 1));
}

bool fuse_output_is_leftover(const char *candidate, const char *name)
{
    const size_t length = strlen(name) < NAME_BYTES ? strlen(name) : NAME_BYTES;
    if (candidate[0] != '.' || strncmp(candidate + 1, name, length) != 0 || candidate[1 + length] != '.')
        return false;
    const char *process = candidate + length + 2;
    const size_t process_length = strspn(process, "0123456789");
    const char *count = process + process_length + (process[process_length] == '-');
    const size_t count_length = strspn(count, "0123456789");
    return process_length > 0 && count_length > 0 && count > process + process_length &&
           strcmp(count + count_length, ".tmp") == 0;
}

int fuse_output_open(const char *path, struct fuse_output **output, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const char *name;
    *output = NULL;
    struct fuse_output *self = malloc(sizeof *self);
    if (self == NULL)
        return fuse_fail_memory(error, "an output file", sizeof *self);
    self->used = 0;
    self->descriptor = -1;
    self->temporary = NULL;
    self->path = fuse_strdup(path);
    self->folder = folder_of(path, &name);
    if (self->path == NULL || self->folder == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a file's name", strlen(path)));
    if (*name == '\0')
        FUSE_TRY_OUT(fuse_fail_errno(error, "write", path, *path == '\0' ? ENOENT : EISDIR));
    for (int attempt = 0; self->descriptor < 0; attempt++) {
        free(self->temporary);
        self->temporary = temporary_name(self->folder, name);
        if (self->temporary == NULL)
            FUSE_TRY_OUT(fuse_fail_memory(error, "a file's name", strlen(path)));
        self->descriptor = open(self->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        const int cause = errno;
        if (self->descriptor >= 0 || cause == EINTR || (cause == EEXIST && attempt < ATTEMPTS))
            continue;
        free(self->temporary); /* not ours to remove */
        self->temporary = NULL;
        FUSE_TRY_OUT(fuse_fail_errno(error, "write", path, cause));
    }
    *output = self;
out:
    if (status != FUSERUN_OK)
        fuse_output_abandon(&self);
    return status;
}

static int write_all(const struct fuse_output *output, const unsigned char *bytes, size_t count,
                     struct fuse_error *error)
{
    while (count > 0) {
        const ssize_t written = write(output->descriptor, bytes, count);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) /* a regular file takes at least a byte or says why not */
            return fuse_fail_errno(error, "write", output->path, written < 0 ? errno : EIO);
        bytes += written;
        count -= (size_t)written;
    }
    return FUSERUN_OK;
}

static int flush(struct fuse_output *output, struct fuse_error *error)
{
    const size_t count = output->used;
    output->used = 0;
    return write_all(output, output->buffer, count, error);
}

int fuse_output_write(struct fuse_output *output, const void *bytes, size_t count, struct fuse_error *error)
{
    if (count > BUFFER_BYTES - output->used)
        FUSE_TRY(flush(output, error));
    if (count >= BUFFER_BYTES)
        return write_all(output, bytes, count, error);
    if (count > 0)
        memcpy(output->buffer + output->used, bytes, count);
    output->used += count;
    return FUSERUN_OK;
}

int fuse_output_rewrite(struct fuse_output *output, uint64_t offset, const void *bytes, size_t count,
                        struct fuse_error *error)
{
    const unsigned char *from = bytes;
    FUSE_TRY(flush(output, error));
    while (count > 0) {
        const ssize_t written = pwrite(output->descriptor, from, count, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return fuse_fail_errno(error, "write", output->path, written < 0 ? errno : EIO);
        from += written;
        offset += (uint64_t)written;
        count -= (size_t)written;
    }
    return FUSERUN_OK;
}

int fuse_sync_descriptor(int descriptor)
{
    int result;
    do
        result = fsync(descriptor);
    while (result != 0 && errno == EINTR);
    return result == 0 || errno == EINVAL ? 0 : errno;
}

/* So that the new name survives a crash. */
static int sync_folder(const char *folder, const char *path, struct fuse_error *error)
{
    int descriptor;
    do
        descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0)
        return errno == EACCES ? FUSERUN_OK : fuse_fail_errno(error, "sync the folder of", path, errno);
    const int cause = fuse_sync_descriptor(descriptor);
    (void)close(descriptor);
    return cause == 0 ? FUSERUN_OK : fuse_fail_errno(error, "sync the folder of", path, cause);
}

/* 0 or an errno. Where a file system of the network can be interrupted (EINTR), what was asked for may have been done.
 */
static int rename_file(const char *from, const char *to)
{
    bool was_interrupted = false;
    while (rename(from, to) != 0) {
        if (errno != EINTR)
            return was_interrupted && errno == ENOENT ? 0 : errno;
        was_interrupted = true;
    }
    return 0;
}

/* 0 or an errno, as above. */
static int link_file(const char *target, const char *path)
{
    bool was_interrupted = false;
    while (symlink(target, path) != 0) {
        if (errno != EINTR)
            return was_interrupted && errno == EEXIST ? 0 : errno;
        was_interrupted = true;
    }
    return 0;
}

int fuse_refuse_folder(const char *path, struct fuse_error *error)
{
    struct stat found;
    if (lstat(path, &found) != 0 || !S_ISDIR(found.st_mode))
        return FUSERUN_OK;
    return fuse_fail(error, FUSERUN_ERROR_IO, NULL,
                     "'%s' is a directory, where a run has a file of its own; nothing was removed",
                     fuse_shown_path(path));
}

int fuse_remove_file(const char *path, struct fuse_error *error)
{
    int result;
    do
        result = unlink(path);
    while (result != 0 && errno == EINTR);
    return result == 0 || errno == ENOENT ? FUSERUN_OK : fuse_fail_errno(error, "remove", path, errno);
}

int fuse_output_commit(struct fuse_output **output, struct fuse_error *error)
{
    struct fuse_output *self = *output;
    int status;
    FUSE_TRY_OUT(flush(self, error));
    const int cause = fuse_sync_descriptor(self->descriptor);
    if (cause != 0)
        FUSE_TRY_OUT(fuse_fail_errno(error, "write", self->path, cause));
    /* Linux closes the descriptor even when close() reports an error, EINTR included. */
    const int closed = close(self->descriptor);
    self->descriptor = -1;
    if (closed != 0 && errno != EINTR)
        FUSE_TRY_OUT(fuse_fail_errno(error, "write", self->path, errno));
    const int renamed = rename_file(self->temporary, self->path);
    if (renamed != 0)
        FUSE_TRY_OUT(fuse_fail_errno(error, "write", self->path, renamed));
    free(self->temporary);
    self->temporary = NULL;
    FUSE_TRY_OUT(sync_folder(self->folder, self->path, error));
out:
    fuse_output_abandon(output);
    return status;
}

void fuse_output_abandon(struct fuse_output **output)
{
    struct fuse_output *self = *output;
    if (self == NULL)
        return;
    if (self->descriptor >= 0)
        (void)close(self->descriptor);
    if (self->temporary != NULL)
        (void)unlink(self->temporary);
    free(self->temporary);
    free(self->folder);
    free(self->path);
    free(self);
    *output = NULL;
}

int fuse_output_text(const char *path, const char *text, size_t length, struct fuse_error *error)
{
    struct fuse_output *output = NULL;
    int status;
    FUSE_TRY_OUT(fuse_output_open(path, &output, error));
    FUSE_TRY_OUT(fuse_output_write(output, text, length, error));
    FUSE_TRY_OUT(fuse_output_commit(&output, error));
out:
    fuse_output_abandon(&output);
    return status;
}

int fuse_output_link(const char *path, const char *target, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const char *name;
    char *folder = folder_of(path, &name);
    char *temporary = folder == NULL ? NULL : temporary_name(folder, name);
    if (temporary == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a link's name", strlen(path)));
    const int linked = link_file(target, temporary);
    if (linked == EPERM || linked == EOPNOTSUPP || linked == ENOSYS)
        goto out;
    if (linked != 0)
        FUSE_TRY_OUT(fuse_fail_errno(error, "write", path, linked));
    const int renamed = rename_file(temporary, path);
    if (renamed != 0) {
        (void)unlink(temporary);
        FUSE_TRY_OUT(fuse_fail_errno(error, "write", path, renamed));
    }
    FUSE_TRY_OUT(sync_folder(folder, path, error));
out:
    free(temporary);
    free(folder);
    return status;
}

int fuse_make_folders(const char *path, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    char *prefix = fuse_strdup(path);
    if (prefix == NULL)
        return fuse_fail_memory(error, "a folder's name", strlen(path));
    for (char *end = prefix;;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        const char kept = *end;
        *end = '\0';
        struct stat found;
        /* Whatever mkdir says (EROFS, EACCES above a folder that is there), a folder that exists is fine. */
        int made;
        do
            made = mkdir(prefix, 0755);
        while (made != 0 && errno == EINTR);
        if (made != 0) {
            const int cause = errno;
            if (stat(prefix, &found) != 0)
                FUSE_TRY_OUT(fuse_fail_errno(error, "make the folder", prefix, cause));
            if (!S_ISDIR(found.st_mode))
                FUSE_TRY_OUT(fuse_fail_errno(error, "make the folder", prefix, ENOTDIR));
        }
        *end = kept;
        if (kept == '\0')
            break;
    }
out:
    free(prefix);
    return status;
}
