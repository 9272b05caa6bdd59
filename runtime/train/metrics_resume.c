#include "train/metrics.h"

#include "base/json.h"
#include "base/regular.h"
#include "files/output.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_BYTES (1 << 20) /* of a line that can be one of ours */

/* One line of the file at a time. */
struct reader {
    FILE *stream;
    char *line; /* its first LONGEST_BYTES, terminated */
    size_t length;
    off_t begin, end;
    bool has_nul, is_long, has_end;
};

struct parsing {
    const char *line;
    size_t length;
    bool is_object;
};

static void parse(void *user)
{
    struct parsing *parsing = user;
    json_error_t ignored;
    json_t *value = json_loadb(parsing->line, parsing->length, 0, &ignored);
    parsing->is_object = json_is_object(value);
    json_decref(value);
}

/* False: the file is at its end. */
static bool next_line(struct reader *reader)
{
    reader->begin = reader->end;
    reader->length = 0;
    reader->has_nul = reader->is_long = reader->has_end = false;
    while (!reader->has_end) {
        char *piece = reader->line + (reader->is_long ? 0 : reader->length);
        const int room = (int)(LONGEST_BYTES - (piece - reader->line));
        if (fgets(piece, room, reader->stream) == NULL)
            break;
        /* A NUL hides from strlen() what stands behind it; the stream knows how far it came. */
        const off_t at = ftello(reader->stream);
        const size_t count = at > reader->end ? (size_t)(at - reader->end) : 0;
        reader->end = at;
        reader->has_nul = reader->has_nul || strlen(piece) != count;
        reader->has_end = count > 0 && count < (size_t)room && piece[count - 1] == '\n';
        reader->length = (size_t)(piece - reader->line) + count;
        reader->is_long = reader->is_long || (!reader->has_end && reader->length + 1 >= LONGEST_BYTES);
    }
    return reader->end > reader->begin;
}

/* A line that the disk or another program spoilt: no report could read the file with it. */
static int judge_damage(const struct reader *reader, bool *is_damaged, struct fuse_error *error)
{
    struct parsing parsing = {reader->line, reader->length, false};
    *is_damaged = true;
    if (reader->has_nul || reader->is_long)
        return FUSERUN_OK;
    if (!fuse_json_try(parse, &parsing))
        return fuse_fail_memory(error, "a line of the metrics", reader->length);
    *is_damaged = !parsing.is_object;
    return FUSERUN_OK;
}

/* Whether a line was there when the checkpoint was made. Of its step there are, in this order, the update's line, that
 * of an evaluation, and those of attempts that were skipped after it. What is no line of ours stays. */
static bool belongs(const char *line, const struct fuse_checkpoint_record *resumed, int64_t *skips)
{
    static const char start[] = "{\"step\":";
    if (strncmp(line, start, strlen(start)) != 0)
        return true;
    const int64_t step = strtoll(line + strlen(start), NULL, 10);
    if (step != resumed->step)
        return step < resumed->step;
    if (strstr(line, ",\"skipped\":true,") != NULL)
        return (*skips)++ < resumed->skips;
    return strstr(line, "\"eval_loss\":") == NULL || !resumed->is_evaluation_due;
}

/* From the start up to the first line that does not belong or has no end: *cut is where the file would have to end,
 * *damaged the lines before that which cannot be read. copy: the others go there, too; may be NULL. */
static int read_kept(struct reader *reader, const struct fuse_checkpoint_record *resumed, struct fuse_output *copy,
                     off_t *cut, uint64_t *damaged, struct fuse_error *error)
{
    int64_t skips = 0;
    *cut = 0;
    *damaged = 0;
    reader->end = 0;
    rewind(reader->stream);
    while (next_line(reader)) {
        bool is_damaged = false;
        if (!reader->has_end)
            break;
        FUSE_TRY(judge_damage(reader, &is_damaged, error));
        if (!is_damaged && !belongs(reader->line, resumed, &skips))
            break;
        if (!is_damaged && copy != NULL)
            FUSE_TRY(fuse_output_write(copy, reader->line, reader->length, error));
        *damaged += is_damaged;
        *cut = reader->end;
    }
    return ferror(reader->stream) ? FUSERUN_ERROR_IO : FUSERUN_OK;
}

int fuse_metrics_cut_back(const char *path, const struct fuse_checkpoint_record *resumed, uint64_t *damaged,
                          struct fuse_error *error)
{
    int status = FUSERUN_OK;
    off_t cut = 0;
    struct fuse_output *copy = NULL;
    struct reader reader = {.stream = fuse_stream_regular(path, "r+")};
    *damaged = 0;
    if (reader.stream == NULL && errno == ENOENT)
        return FUSERUN_OK;
    reader.line = malloc(LONGEST_BYTES);
    if (reader.line == NULL) {
        status = fuse_fail_memory(error, "the metrics", LONGEST_BYTES);
        goto out;
    }
    if (reader.stream != NULL)
        FUSE_TRY_OUT(read_kept(&reader, resumed, NULL, &cut, damaged, error));
    if (reader.stream != NULL && *damaged > 0) {
        FUSE_TRY_OUT(fuse_output_open(path, &copy, error));
        FUSE_TRY_OUT(read_kept(&reader, resumed, copy, &cut, damaged, error));
        FUSE_TRY_OUT(fuse_output_commit(&copy, error));
    } else if (reader.stream == NULL || ftruncate(fileno(reader.stream), cut) != 0)
        status = FUSERUN_ERROR_IO;
out:
    if (status == FUSERUN_ERROR_IO && error->text[0] == '\0')
        status = fuse_fail(error, FUSERUN_ERROR_IO, NULL, "cannot go on in '%s': %s", path, fuse_regular_reason(errno));
    fuse_output_abandon(&copy);
    free(reader.line);
    if (reader.stream != NULL)
        (void)fclose(reader.stream);
    return status;
}
