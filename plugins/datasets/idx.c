/* idx - images and labels as MNIST has them: IDX files, plain or gzip-compressed (told by their first bytes, not by
 * name).
 *
 * IDX (http://yann.lecun.com/exdb/mnist): 0, 0, element type, number of dimensions, each dimension as big-endian u32,
 * then the elements. Here the type is 0x08, unsigned byte; labels have 1 dimension (magic 0x00000801), images 1 to 4
 * (MNIST's 3: 0x00000803). A pixel v becomes v / 255 in float and an image (H, W) a sample (1, H, W), as torchvision's
 * ToTensor has it.
 *
 * The files are read once, as bytes, into the memory that the host provides. */
#include <fuserun/dataset.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef IDX_ZLIB
#include <zlib.h>
#endif

enum { UNSIGNED_BYTE = 0x08, MOST_DIMENSIONS = 4, HEADER_BYTES = 4 + 4 * MOST_DIMENSIONS, INPUT_BYTES = 64 * 1024 };

/* No deflate stream unpacks to more than 1032 times its size (zlib's own figure): what a compressed file's header
 * promises can be judged before it is unpacked. */
#define DEFLATE_RATIO 1032

struct part {
    const char *key; /* the option that names the file */
    int descriptor;
    int is_gzip;
    uint64_t file_bytes;
    uint32_t rank;
    uint64_t header_bytes;
    uint64_t element_bytes;
    uint32_t dimensions[MOST_DIMENSIONS];
};

struct idx {
    const struct fuse_host *host;
    struct part images, labels;
    size_t pixels; /* of one image */
    uint32_t target_kind;
    const uint8_t *image_cache, *label_cache; /* the host's, from load() on */
};

/* ---- bytes of a file ------------------------------------------------------------------------------------------- */

/* As many of count bytes as the file has, from `offset`: their number, or -1 with errno set. */
static int64_t read_some(const struct part *part, uint64_t offset, uint8_t *bytes, uint64_t count)
{
    uint64_t done = 0;
    while (done < count) {
        const size_t wanted = count - done < (1u << 30) ? (size_t)(count - done) : 1u << 30;
        const ssize_t got = pread(part->descriptor, bytes + done, wanted, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (uint64_t)got;
    }
    return (int64_t)done;
}

static int read_failed(const struct fuse_host *host, const struct part *part, int cause, struct fuse_error *error)
{
    return host->fail(error, FUSERUN_ERROR_IO, part->key, "cannot read the file: %s", strerror(cause));
}

static int truncated(const struct fuse_host *host, const struct part *part, struct fuse_error *error)
{
    return host->fail(error, FUSERUN_ERROR_FORMAT, part->key, "the file is truncated");
}

#ifdef IDX_ZLIB
struct unpacker {
    const struct fuse_host *host;
    const struct part *part;
    z_stream stream;
    uint64_t next; /* position in the file */
    int has_ended; /* a member is complete, and no other has begun */
    uint8_t input[INPUT_BYTES];
};

static int refill(struct unpacker *unpacker, struct fuse_error *error)
{
    const int64_t got = read_some(unpacker->part, unpacker->next, unpacker->input, INPUT_BYTES);
    if (got < 0)
        return read_failed(unpacker->host, unpacker->part, errno, error);
    unpacker->next += (uint64_t)got;
    unpacker->stream.next_in = unpacker->input;
    unpacker->stream.avail_in = (uInt)got;
    return FUSERUN_OK;
}

/* Unpacks up to count bytes; fewer only at the end of the last member. gzip allows several members in a row. */
static int unpack(struct unpacker *unpacker, uint8_t *bytes, uint64_t count, uint64_t *got, struct fuse_error *error)
{
    z_stream *stream = &unpacker->stream;
    *got = 0;
    while (*got < count) {
        if (stream->avail_in == 0) {
            const int status = refill(unpacker, error);
            if (status != FUSERUN_OK)
                return status;
            if (stream->avail_in == 0)
                return unpacker->has_ended ? FUSERUN_OK : truncated(unpacker->host, unpacker->part, error);
        }
        if (unpacker->has_ended && inflateReset(stream) != Z_OK)
            return unpacker->host->fail(error, FUSERUN_ERROR_INTERNAL, unpacker->part->key, "zlib does not reset");
        unpacker->has_ended = 0;
        const uint64_t left = count - *got;
        const uInt room = left < (1u << 30) ? (uInt)left : 1u << 30;
        stream->next_out = bytes + *got;
        stream->avail_out = room;
        const int result = inflate(stream, Z_NO_FLUSH);
        *got += room - stream->avail_out;
        if (result == Z_STREAM_END)
            unpacker->has_ended = 1;
        else if (result == Z_MEM_ERROR)
            return unpacker->host->fail(error, FUSERUN_ERROR_MEMORY, unpacker->part->key,
                                        "out of memory for unpacking");
        else if (result != Z_OK && result != Z_BUF_ERROR)
            return unpacker->host->fail(error, FUSERUN_ERROR_FORMAT, unpacker->part->key,
                                        "the file is not sound gzip: %s", stream->msg == NULL ? "?" : stream->msg);
    }
    return FUSERUN_OK;
}

/* Unpacks from the file's start: header, then elements (NULL: the header only). Whether as much came as should is told
 * by *got, of all; after the elements one byte more is asked for, which should not be there. */
static int unpack_file(const struct fuse_host *host, const struct part *part, uint8_t *header, uint64_t header_bytes,
                       uint8_t *elements, uint64_t *got, struct fuse_error *error)
{
    struct unpacker *unpacker = calloc(1, sizeof *unpacker);
    uint64_t count;
    uint8_t extra;
    *got = 0;
    if (unpacker == NULL || inflateInit2(&unpacker->stream, 16 + MAX_WBITS) != Z_OK) {
        free(unpacker);
        return host->fail(error, FUSERUN_ERROR_MEMORY, part->key, "out of memory for unpacking");
    }
    unpacker->host = host;
    unpacker->part = part;
    int status = unpack(unpacker, header, header_bytes, got, error);
    if (status == FUSERUN_OK && elements != NULL) {
        status = unpack(unpacker, elements, part->element_bytes, &count, error);
        *got += count;
        if (status == FUSERUN_OK)
            status = unpack(unpacker, &extra, 1, &count, error);
        *got += count;
    }
    (void)inflateEnd(&unpacker->stream);
    free(unpacker);
    return status;
}
#endif

/* ---- headers --------------------------------------------------------------------------------------------------- */

static int is_gzip(const uint8_t *bytes, int64_t count)
{
    return count >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B;
}

static int check_magic(const struct fuse_host *host, struct part *part, const uint8_t *header, uint64_t count,
                       uint32_t most_dimensions, struct fuse_error *error)
{
    if (count < 4)
        return truncated(host, part, error);
    if (header[0] != 0 || header[1] != 0)
        return host->fail(
            error, FUSERUN_ERROR_FORMAT, part->key,
            "not an IDX file: it begins with %02x %02x %02x %02x, where IDX has 00 00 08 and the number of "
            "dimensions",
            header[0], header[1], header[2], header[3]);
    if (header[2] != UNSIGNED_BYTE)
        return host->fail(error, FUSERUN_ERROR_FORMAT, part->key,
                          "the IDX file's element type is 0x%02x; only 0x08, unsigned byte, is read", header[2]);
    part->rank = header[3];
    if (part->rank < 1 || part->rank > most_dimensions)
        return host->fail(error, FUSERUN_ERROR_FORMAT, part->key,
                          most_dimensions == 1
                              ? "the IDX file has %u dimensions; labels have 1 (are images and labels swapped?)"
                              : "the IDX file has %u dimensions; images have 1 to 4",
                          part->rank);
    part->header_bytes = 4 + 4 * (uint64_t)part->rank;
    return count < part->header_bytes ? truncated(host, part, error) : FUSERUN_OK;
}

static int check_sizes(const struct fuse_host *host, struct part *part, const uint8_t *header, struct fuse_error *error)
{
    part->element_bytes = 1;
    for (uint32_t i = 0; i < part->rank; i++) {
        const uint8_t *at = header + 4 + 4 * i;
        const uint32_t dimension = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        part->dimensions[i] = dimension;
        if (dimension == 0)
            return host->fail(error, FUSERUN_ERROR_FORMAT, part->key, "the IDX file's dimension %u is 0", i);
        if (part->element_bytes > (uint64_t)INT64_MAX / dimension)
            return host->fail(error, FUSERUN_ERROR_FORMAT, part->key,
                              "the product of the IDX file's dimensions overflows");
        part->element_bytes *= dimension;
    }
    const uint64_t elements = part->element_bytes;
    if (part->is_gzip && elements / DEFLATE_RATIO > part->file_bytes)
        return host->fail(error, FUSERUN_ERROR_FORMAT, part->key,
                          "the IDX header promises %llu bytes, more than a .gz of %llu bytes can hold",
                          (unsigned long long)elements, (unsigned long long)part->file_bytes);
    if (!part->is_gzip && part->file_bytes != part->header_bytes + elements)
        return host->fail(error, FUSERUN_ERROR_FORMAT, part->key,
                          "the file %s: its IDX header promises %llu bytes of data, %llu follow it",
                          part->file_bytes < part->header_bytes + elements ? "is truncated" : "has trailing bytes",
                          (unsigned long long)elements, (unsigned long long)(part->file_bytes - part->header_bytes));
    return FUSERUN_OK;
}

static int open_part(const struct fuse_host *host, const char *path, uint32_t most_dimensions, struct part *part,
                     struct fuse_error *error)
{
    uint8_t header[HEADER_BYTES];
    struct stat found;
    do
        part->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    while (part->descriptor < 0 && errno == EINTR);
    if (part->descriptor < 0 || fstat(part->descriptor, &found) != 0)
        return host->fail(error, FUSERUN_ERROR_IO, part->key, "cannot open '%.320s': %s", path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return host->fail(error, FUSERUN_ERROR_IO, part->key, "'%.320s' is not a regular file", path);
    part->file_bytes = (uint64_t)found.st_size;
    const int64_t got = read_some(part, 0, header, sizeof header);
    if (got < 0)
        return read_failed(host, part, errno, error);
    uint64_t count = (uint64_t)got;
    part->is_gzip = is_gzip(header, got);
    if (part->is_gzip) {
#ifdef IDX_ZLIB
        const int unpacked = unpack_file(host, part, header, sizeof header, NULL, &count, error);
        if (unpacked != FUSERUN_OK)
            return unpacked;
#else
        return host->fail(error, FUSERUN_ERROR_UNSUPPORTED, part->key,
                          "the file is gzip-compressed, and this build has no zlib; unpack it with gunzip");
#endif
    }
    const int status = check_magic(host, part, header, count, most_dimensions, error);
    return status != FUSERUN_OK ? status : check_sizes(host, part, header, error);
}

/* ---- the dataset ----------------------------------------------------------------------------------------------- */

static void close_part(struct part *part)
{
    if (part->descriptor >= 0)
        (void)close(part->descriptor);
    part->descriptor = -1;
}

static void close_idx(void *instance)
{
    struct idx *self = instance;
    close_part(&self->images);
    close_part(&self->labels);
    free(self);
}

static int open_idx(const struct fuse_host *host, const struct fuse_options *options,
                    const struct fuse_dataset_context *context, void **instance, struct fuse_error *error)
{
    if (context->target_wanted == FUSERUN_TARGET_VALUES)
        return host->fail(
            error, FUSERUN_ERROR_UNSUPPORTED, "plugin",
            "idx has class numbers for targets, and this loss compares with values; data with values comes "
            "from 'tensors'");
    struct idx *self = calloc(1, sizeof *self);
    if (self == NULL)
        return host->fail(error, FUSERUN_ERROR_MEMORY, NULL, "out of memory for the dataset");
    self->host = host;
    self->target_kind = context->target_wanted;
    self->images.key = "images";
    self->labels.key = "labels";
    self->images.descriptor = self->labels.descriptor = -1;
    int status = open_part(host, host->option_text(options, "images"), MOST_DIMENSIONS, &self->images, error);
    if (status == FUSERUN_OK)
        status = open_part(host, host->option_text(options, "labels"), 1, &self->labels, error);
    if (status == FUSERUN_OK && self->images.dimensions[0] != self->labels.dimensions[0])
        status = host->fail(error, FUSERUN_ERROR_FORMAT, "labels", "%u labels for %u images",
                            self->labels.dimensions[0], self->images.dimensions[0]);
    if (status != FUSERUN_OK) {
        close_idx(self);
        return status;
    }
    self->pixels = (size_t)(self->images.element_bytes / self->images.dimensions[0]);
    *instance = self;
    return FUSERUN_OK;
}

static void describe(const void *instance, struct fuse_dataset_info *info)
{
    const struct idx *self = instance;
    info->target_kind = self->target_kind;
    info->sample_count = self->images.dimensions[0];
    info->class_count = 0;                       /* known only once all labels are read */
    const uint32_t rank = self->images.rank - 1; /* of a sample in the file */
    const uint32_t channel = rank == 2 || rank == 0 ? 1 : 0;
    info->input_rank = rank + channel;
    info->input_shape[0] = 1;
    for (uint32_t i = 0; i < rank; i++)
        info->input_shape[i + channel] = self->images.dimensions[i + 1];
    info->target_rank = 0;
    info->cache_bytes = self->images.element_bytes + self->labels.element_bytes;
}

static int load_part(const struct fuse_host *host, struct part *part, uint8_t *elements, struct fuse_error *error)
{
    uint64_t expected = part->element_bytes, got = 0;
    if (part->is_gzip) {
#ifdef IDX_ZLIB
        uint8_t header[HEADER_BYTES];
        const int status = unpack_file(host, part, header, part->header_bytes, elements, &got, error);
        if (status != FUSERUN_OK)
            return status;
        expected += part->header_bytes;
#endif
    } else {
        const int64_t count = read_some(part, part->header_bytes, elements, part->element_bytes);
        if (count < 0)
            return read_failed(host, part, errno, error);
        got = (uint64_t)count;
    }
    if (got != expected)
        return host->fail(
            error, FUSERUN_ERROR_FORMAT, part->key, "the file %s: its IDX header promises %llu bytes of data",
            got < expected ? "is truncated" : "has trailing bytes", (unsigned long long)part->element_bytes);
    close_part(part);
    return FUSERUN_OK;
}

static int load(void *instance, void *cache, struct fuse_error *error)
{
    struct idx *self = instance;
    uint8_t *images = cache, *labels = images + self->images.element_bytes;
    const int status = load_part(self->host, &self->images, images, error);
    if (status != FUSERUN_OK)
        return status;
    self->image_cache = images;
    self->label_cache = labels;
    return load_part(self->host, &self->labels, labels, error);
}

static void scale(const uint8_t *restrict from, float *restrict to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)from[i] / 255.0f;
}

static int read_batch(void *instance, const struct fuse_batch *batch, struct fuse_error *error)
{
    const struct idx *self = instance;
    (void)error;
    for (int64_t i = 0; i < batch->count; i++)
        scale(self->image_cache + (size_t)batch->indices[i] * self->pixels, batch->inputs + (size_t)i * self->pixels,
              self->pixels);
    if (self->target_kind == FUSERUN_TARGET_CLASS)
        for (int64_t i = 0; i < batch->count; i++)
            batch->classes[i] = self->label_cache[batch->indices[i]];
    return FUSERUN_OK;
}

static const struct fuse_option options[] = {
    FUSERUN_OPTION(.key = "images", .type = FUSERUN_OPTION_PATH, .flags = FUSERUN_OPTION_REQUIRED,
                   .help = "an IDX file of unsigned bytes [N, ...], plain or .gz; scaled to [0, 1]"),
    FUSERUN_OPTION(.key = "labels", .type = FUSERUN_OPTION_PATH, .flags = FUSERUN_OPTION_REQUIRED,
                   .help = "an IDX file of unsigned bytes [N], plain or .gz"),
};

static const struct fuse_dataset dataset = {
    FUSERUN_STRUCT_SIZE(fuse_dataset, read), open_idx, close_idx, describe, load, read_batch,
};

static const struct fuse_component components[] = {
    FUSERUN_COMPONENT(.kind = FUSERUN_KIND_DATASET, .name = "idx", .summary = "images and labels in MNIST's format",
                      FUSERUN_OPTIONS(options), .api = &dataset),
};

FUSERUN_PLUGIN("idx", "1.0.0", "MIT", components)
