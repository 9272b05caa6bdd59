#include "bfloat16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool fuse_is_bfloat16_test(void)
{
    const char *const precision = getenv("FUSE_TEST_PRECISION");
    return precision != NULL && strcmp(precision, "bf16") == 0;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static float nearest(float value)
{
    const uint32_t bits = bits_of(value), low = bits & 0xffffu, cut = bits & 0xffff0000u;
    if (isnan(value))
        return from_bits(cut | 0x400000u);
    const bool is_up = low > 0x8000u || (low == 0x8000u && (cut & 0x10000u) != 0);
    return from_bits(is_up ? cut + 0x10000u : cut);
}

float fuse_activation(float value)
{
    return fuse_is_bfloat16_test() ? nearest(value) : value;
}

double fuse_bound_of(float got, double value, double bound)
{
    if (!fuse_is_bfloat16_test() || bound == 0.0 || (bits_of(got) & 0xffffu) != 0)
        return bound;
    return bound + FUSE_EPS_BFLOAT16 * (fabs(value) + bound) + 0x1p-134;
}

/* All but parameters, their gradients, a norm's and an attention's statistics, and what the loss works on. */
static bool is_activation(const struct fuse_op *op, bool is_output, uint32_t index)
{
    switch (op->kind) {
    case FUSERUN_OP_LINEAR:
    case FUSERUN_OP_LINEAR_DX:
    case FUSERUN_OP_LAYER_NORM:
    case FUSERUN_OP_PREPEND:
    case FUSERUN_OP_ADD_BATCH:
    case FUSERUN_OP_ATTENTION:
        return index == 0;
    case FUSERUN_OP_LINEAR_DW:
    case FUSERUN_OP_LINEAR_DB:
    case FUSERUN_OP_LINEAR_DW_NORM:
    case FUSERUN_OP_LINEAR_DW_SUM:
    case FUSERUN_OP_LINEAR_DW_SUM_NORM:
    case FUSERUN_OP_PREPEND_DW:
    case FUSERUN_OP_ADD_BATCH_DW:
        return !is_output;
    case FUSERUN_OP_LAYER_NORM_DX:
        return is_output || index < 2;
    case FUSERUN_OP_LAYER_NORM_DW:
        return !is_output && index < 2;
    case FUSERUN_OP_ATTENTION_DX:
        return is_output || index < 3;
    case FUSERUN_OP_CROSS_ENTROPY:
    case FUSERUN_OP_MSE:
    case FUSERUN_OP_SUM_LOSS:
    case FUSERUN_OP_SUM_SQUARES:
        return false;
    default:
        return true;
    }
}

/* Every fourth op gets all that it can in bfloat16, the others leave some operands. */
static bool is_chosen(const struct fuse_op *op, bool is_output, uint32_t index, bool is_in_place)
{
    uint64_t mixture = op->kind;
    for (uint32_t i = 0; i < op->inputs[0].rank; i++)
        mixture = mixture * 31 + (uint64_t)op->inputs[0].shape[i];
    if (op->kind == FUSERUN_OP_LINEAR_DW_SUM || op->kind == FUSERUN_OP_LINEAR_DW_SUM_NORM)
        index %= 2; /* earlier operands are of the present ones' types */
    const uint32_t place = is_output && !(is_in_place && index == 0) ? 5 + index : index;
    return is_activation(op, is_output, index) && (mixture % 4 == 0 || (mixture >> place & 1u) != 0);
}

static size_t bytes_of(const struct fuse_operand *operand)
{
    return (size_t)fuse_operand_elements(operand) * sizeof(uint16_t);
}

static uint16_t *narrow_all(const float *values, const struct fuse_operand *operand)
{
    uint16_t *const narrow = fuse_guarded_new(bytes_of(operand));
    for (int64_t i = 0; i < fuse_operand_elements(operand); i++)
        narrow[i] = (uint16_t)(bits_of(nearest(values[i])) >> 16);
    return narrow;
}

void fuse_narrowed_begin(struct fuse_narrowed *narrowed, const struct fuse_op *op, const void *const *inputs,
                         void *const *outputs)
{
    const bool is_in_place = op->input_count > 0 && inputs[0] == outputs[0];
    *narrowed = (struct fuse_narrowed){.op = *op};
    for (uint32_t i = 0; i < op->input_count; i++) {
        narrowed->inputs[i] = inputs[i];
        if (inputs[i] == NULL || op->inputs[i].dtype != FUSERUN_FLOAT32 || !is_chosen(op, false, i, is_in_place))
            continue;
        narrowed->op.inputs[i].dtype = FUSERUN_BFLOAT16;
        narrowed->inputs[i] = narrowed->new_inputs[i] = narrow_all(inputs[i], &op->inputs[i]);
    }
    for (uint32_t i = 0; i < op->output_count; i++) {
        narrowed->outputs[i] = outputs[i];
        if (outputs[i] == NULL || op->outputs[i].dtype != FUSERUN_FLOAT32 || !is_chosen(op, true, i, is_in_place))
            continue;
        narrowed->op.outputs[i].dtype = FUSERUN_BFLOAT16;
        narrowed->new_outputs[i] =
            is_in_place && i == 0 ? narrowed->new_inputs[0] : narrow_all(outputs[i], &op->outputs[i]);
        narrowed->outputs[i] = narrowed->new_outputs[i];
    }
    if (is_in_place)
        narrowed->inputs[0] = narrowed->outputs[0];
}

void fuse_narrowed_finish(struct fuse_narrowed *narrowed, void *const *outputs)
{
    for (uint32_t i = 0; i < narrowed->op.output_count; i++) {
        const uint16_t *const from = narrowed->new_outputs[i];
        float *const to = outputs[i];
        if (from == NULL)
            continue;
        for (int64_t j = 0; j < fuse_operand_elements(&narrowed->op.outputs[i]); j++)
            to[j] = from_bits((uint32_t)from[j] << 16);
        if (from != narrowed->new_inputs[0])
            fuse_guarded_free(narrowed->new_outputs[i], bytes_of(&narrowed->op.outputs[i]));
    }
    for (uint32_t i = 0; i < narrowed->op.input_count; i++)
        if (narrowed->new_inputs[i] != NULL)
            fuse_guarded_free(narrowed->new_inputs[i], bytes_of(&narrowed->op.inputs[i]));
}
