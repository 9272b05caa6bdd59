#include "optim/clip.h"

#include "optim/dict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double factor_of(double limit, double norm)
{
    const double factor = limit / (norm + 1e-6);
    return factor < 1.0 ? factor : 1.0;
}

static bool wants_program_norm(const struct fuse_dict *dict)
{
    const struct fuse_clip *clip = &dict->clip;
    if (dict->mode == FUSE_MODE_FUSED)
        return clip->max_norm > 0 || clip->skips_nonfinite;
    return clip->max_norm > 0 || clip->logs_norm;
}

size_t fuse_clip_norm_uses(const struct fuse_dict *dict, enum fuse_norm_use uses[2])
{
    if (!wants_program_norm(dict))
        return 0;
    uses[0] = FUSE_NORM_KEEP;
    if (dict->mode != FUSE_MODE_FUSED)
        return 1;
    switch (dict->clip.algorithm) {
    case FUSE_CLIP_KEEP:
        return 1;
    case FUSE_CLIP_TWO_PASS:
        uses[0] = FUSE_NORM_TWICE;
        return 1;
    case FUSE_CLIP_DEFERRED:
        uses[0] = FUSE_NORM_DEFER;
        return 1;
    case FUSE_CLIP_AUTO:
        break;
    }
    uses[0] = FUSE_NORM_DEFER;
    uses[1] = FUSE_NORM_KEEP;
    return 2;
}

int fuse_clip_on_norm(void *user, const double *sums, struct fuse_error *error)
{
    struct fuse_dict *dict = user;
    (void)error;
    double sum = 0;
    for (uint32_t p = dict->parameter_count; p-- > 0;) {
        sum += sums[p];
        if (!isfinite(sums[p]) && dict->nonfinite_parameter == UINT32_MAX)
            dict->nonfinite_parameter = p;
    }
    dict->clip.norm = sqrt(sum);
    dict->clip.is_measured = true;
    if (dict->clip.max_norm > 0)
        dict->clip.factor = (float)factor_of(dict->clip.max_norm, dict->clip.norm);
    return FUSERUN_OK;
}

/* Pieces come in any order from several threads: each has its own place, and the sum is made in one order. */
int fuse_clip_allocate(struct fuse_dict *dict, struct fuse_error *error)
{
    struct fuse_clip *clip = &dict->clip;
    if (!clip->logs_norm || wants_program_norm(dict))
        return FUSERUN_OK;
    const size_t bytes = (dict->entry_count + 1) * sizeof *clip->squares_begin;
    clip->squares_begin = malloc(bytes);
    if (clip->squares_begin == NULL)
        return fuse_fail_memory(error, "sums of squares", bytes);
    clip->squares_begin[0] = 0;
    for (uint32_t e = 0; e < dict->entry_count; e++)
        clip->squares_begin[e + 1] = clip->squares_begin[e] + dict->entries[e].row_count;
    const size_t count = (size_t)clip->squares_begin[dict->entry_count];
    clip->squares = calloc(count + 1, sizeof *clip->squares);
    return clip->squares == NULL ? fuse_fail_memory(error, "sums of squares", count * sizeof *clip->squares)
                                 : FUSERUN_OK;
}

void fuse_clip_free(struct fuse_dict *dict)
{
    free(dict->clip.squares);
    free(dict->clip.squares_begin);
}

void fuse_clip_begin(struct fuse_dict *dict)
{
    struct fuse_clip *clip = &dict->clip;
    clip->norm = NAN;
    clip->is_measured = false;
    clip->factor = 1.0f;
    if (clip->squares != NULL)
        memset(clip->squares, 0, (size_t)clip->squares_begin[dict->entry_count] * sizeof *clip->squares);
}

void fuse_clip_end(struct fuse_dict *dict)
{
    struct fuse_clip *clip = &dict->clip;
    if (clip->squares == NULL)
        return;
    double sum = 0;
    for (int64_t i = 0; i < clip->squares_begin[dict->entry_count]; i++)
        sum += clip->squares[i];
    clip->norm = sqrt(sum);
}

void fuse_clip_note(struct fuse_dict *dict, uint32_t entry, const struct fuse_gradient *gradient)
{
    struct fuse_clip *clip = &dict->clip;
    if (clip->squares == NULL)
        return;
    const int64_t columns = dict->entries[entry].element_count / dict->entries[entry].row_count;
    clip->squares[clip->squares_begin[entry] + gradient->first / columns] =
        dict->backend->sum_squares(dict->device, gradient->values, gradient->count);
}

void fuse_clip_apply(struct fuse_dict *dict, float *values, int64_t count, bool is_panel)
{
    const struct fuse_clip *clip = &dict->clip;
    if (clip->factor < 1.0f)
        dict->backend->scale(dict->device, values, count, clip->factor, is_panel);
    if (clip->max_value > 0)
        dict->backend->clamp(dict->device, values, count, (float)clip->max_value, is_panel);
    if (clip->max_parameter_norm > 0) { /* such gradients are always whole */
        const double norm = sqrt(dict->backend->sum_squares(dict->device, values, count));
        const float factor = (float)factor_of(clip->max_parameter_norm, norm);
        if (factor < 1.0f)
            dict->backend->scale(dict->device, values, count, factor, is_panel);
    }
}
