/* How one weight of a checkpoint is stored; bitsandbytes' keys are those of FORMATS 1. */
#include "base/auto.h"
#include "io/checkpoint.h"

#include "base/checked.h"
#include "io/fp8_blocks.h"
#include "io/json.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FP4_STATE_SUFFIX   ".quant_state.bitsandbytes__fp4"
#define MOST_STATE_BYTES   65536 /* of the state's JSON: about 250 in practice */
#define QUANT_MAP_COUNT    16
#define NESTED_MAP_COUNT   256
#define MOST_BLOCK_ELEMENT 4096 /* bitsandbytes' largest block size */

/* The tensor "<name><suffix>", or NULL. */
static const tsr_tensor *find_part(const tsr_checkpoint *checkpoint, const char *name,
                                   const char *suffix)
{
    TSR_AUTO_FREE char *full = NULL;
    if (asprintf(&full, "%s%s", name, suffix) < 0)
        return NULL;
    return tsr_checkpoint_find(checkpoint, full);
}

/* A part that must be there, with this dtype and number of elements. */
static tsr_status need_part(const tsr_tensor **out, const tsr_checkpoint *checkpoint,
                            const tsr_tensor *weight, const char *suffix, tsr_dtype dtype,
                            uint64_t element_count)
{
    const tsr_tensor *part = find_part(checkpoint, weight->name, suffix);
    char shown[TSR_SHAPE_TEXT_BYTES];
    if (!part)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is 4-bit, but '%s%s' is missing in the checkpoint",
                        tsr_safetensors_path(weight->file), weight->name, weight->name, suffix);
    if (part->dtype != dtype || part->element_count != element_count)
        return tsr_fail(
            TSR_EDATA, "%s: tensor '%s' is %s %s, expected %s with %" PRIu64 " elements",
            tsr_safetensors_path(part->file), part->name, tsr_dtype_name(part->dtype),
            tsr_shape_text(shown, part->shape, part->ndim), tsr_dtype_name(dtype), element_count);
    *out = part;
    return TSR_OK;
}

/* torch's name of a floating dtype. */
static tsr_status read_dtype(tsr_dtype *out, const json_t *state, const char *key,
                             const char *place)
{
    const char *name;
    TSR_TRY(tsr_json_string(&name, state, key, place));
    if (!strcmp(name, "bfloat16"))
        *out = TSR_BF16;
    else if (!strcmp(name, "float16"))
        *out = TSR_F16;
    else if (!strcmp(name, "float32"))
        *out = TSR_F32;
    else
        return tsr_fail(TSR_EDATA, "%s: key '%s' is '%s', expected bfloat16, float16 or float32",
                        place, key, name);
    return TSR_OK;
}

static tsr_status read_logical_shape(tsr_weight *out, const json_t *state, const char *place)
{
    json_t *shape;
    TSR_TRY(tsr_json_array(&shape, state, "shape", place));
    size_t ndim = json_array_size(shape);
    if (ndim < 1 || ndim > TSR_TENSOR_MAX_DIMS)
        return tsr_fail(TSR_EDATA, "%s: key 'shape' has %zu dimensions, expected 1 to %d", place,
                        ndim, TSR_TENSOR_MAX_DIMS);
    out->ndim = (int)ndim;
    out->element_count = 1;
    for (size_t i = 0; i < ndim; i++) {
        const json_t *value = json_array_get(shape, i);
        char found[TSR_JSON_SHOW_BYTES];
        json_int_t length = json_integer_value(value);
        if (!json_is_integer(value) || length < 1 ||
            !tsr_mul_u64(&out->element_count, out->element_count, (uint64_t)length) ||
            out->element_count > (1ull << 56))
            return tsr_fail(
                TSR_EDATA,
                "%s: key 'shape' is %s, expected positive integers with a product of at "
                "most 2^56",
                place, tsr_json_show(found, shape));
        out->shape[i] = (uint64_t)length;
    }
    return TSR_OK;
}

static tsr_status read_block_size(uint64_t *out, const json_t *state, const char *key,
                                  const char *place)
{
    int64_t value;
    TSR_TRY(tsr_json_int(&value, state, key, 2, MOST_BLOCK_ELEMENT, place));
    if (value & (value - 1))
        return tsr_fail(TSR_EDATA, "%s: key '%s' is %" PRId64 ", expected a power of two", place,
                        key, value);
    *out = (uint64_t)value;
    return TSR_OK;
}

static tsr_status read_nested(tsr_weight *out, const json_t *state, const char *place)
{
    tsr_dtype dtype;
    out->nested = tsr_json_has(state, "nested_offset") || tsr_json_has(state, "nested_blocksize");
    if (!out->nested)
        return TSR_OK;
    TSR_TRY(read_block_size(&out->nested_blocksize, state, "nested_blocksize", place));
    TSR_TRY(tsr_json_number(&out->nested_offset, state, "nested_offset", -FLT_MAX, FLT_MAX, place));
    TSR_TRY(read_dtype(&dtype, state, "nested_dtype", place));
    if (dtype != TSR_F32)
        return tsr_fail(TSR_EDATA, "%s: key 'nested_dtype' is not float32", place);
    return TSR_OK;
}

static tsr_status read_state(tsr_weight *out, const json_t *state, const char *place)
{
    static const char *const known[] = {"quant_type",       "blocksize",    "dtype",        "shape",
                                        "nested_blocksize", "nested_dtype", "nested_offset"};
    const char *key, *quant_type;
    json_t *value;
    json_object_foreach((json_t *)state, key, value)
    {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(key, known[i]))
            i++;
        if (i == sizeof known / sizeof *known)
            return tsr_fail(TSR_EDATA, "%s: unknown key '%s'", place, key);
    }
    TSR_TRY(tsr_json_string(&quant_type, state, "quant_type", place));
    if (strcmp(quant_type, "nf4"))
        return tsr_fail(
            TSR_EDATA,
            "%s: quant_type is '%s', only nf4 is supported: quantize the original model "
            "with bnb_4bit_quant_type nf4",
            place, quant_type);
    TSR_TRY(read_block_size(&out->blocksize, state, "blocksize", place));
    TSR_TRY(read_dtype(&out->dtype, state, "dtype", place));
    TSR_TRY(read_logical_shape(out, state, place));
    return read_nested(out, state, place);
}

tsr_status tsr_weight_state_format(char **out, const tsr_weight *weight)
{
    static const char *const names[] = {
        [TSR_F32] = "float32", [TSR_BF16] = "bfloat16", [TSR_F16] = "float16"};
    json_t *shape = json_array(), *state = NULL;
    bool failed = !shape;
    for (int i = 0; i < weight->ndim; i++)
        failed |= json_array_append_new(shape, json_integer((json_int_t)weight->shape[i])) != 0;
    state = json_pack("{ss sI ss so}", "quant_type", "nf4", "blocksize",
                      (json_int_t)weight->blocksize, "dtype", names[weight->dtype], "shape", shape);
    failed |= !state;
    if (state && weight->nested) {
        json_t *nested =
            json_pack("{sI ss sf}", "nested_blocksize", (json_int_t)weight->nested_blocksize,
                      "nested_dtype", "float32", "nested_offset", weight->nested_offset);
        failed |= !nested || json_object_update(state, nested) != 0;
        json_decref(nested);
    }
    tsr_status status = failed ? tsr_fail(TSR_ENOMEM, "no memory for the state of a 4-bit weight")
                               : tsr_json_format(out, state, 0);
    json_decref(state);
    return status;
}

/* Reads and parses the state's JSON, which is stored as the bytes of a U8 tensor. */
static tsr_status load_state(tsr_weight *out, const tsr_tensor *tensor)
{
    TSR_AUTO_FREE char *place = NULL, *text = NULL;
    json_auto_t *state = NULL;
    if (tensor->dtype != TSR_U8 || tensor->bytes > MOST_STATE_BYTES)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is %s with %" PRIu64 " bytes, expected U8 with at most %d",
                        tsr_safetensors_path(tensor->file), tensor->name,
                        tsr_dtype_name(tensor->dtype), tensor->bytes, MOST_STATE_BYTES);
    text = malloc(tensor->bytes + 1);
    if (!text ||
        asprintf(&place, "%s: '%s'", tsr_safetensors_path(tensor->file), tensor->name) < 0) {
        place = NULL;
        return tsr_fail(TSR_ENOMEM, "%s: no memory for '%s'", tsr_safetensors_path(tensor->file),
                        tensor->name);
    }
    TSR_TRY(tsr_safetensors_read(text, tensor, 0, tensor->bytes));
    TSR_TRY(tsr_json_parse(&state, text, tensor->bytes, place));
    if (!json_is_object(state))
        return tsr_fail(TSR_EDATA, "%s: it holds %s, expected an object", place,
                        tsr_json_kind(state));
    return read_state(out, state, place);
}

static tsr_status describe_nf4(tsr_weight *out, const tsr_checkpoint *checkpoint,
                               const tsr_tensor *state)
{
    const tsr_tensor *weight = out->weight;
    char shown[TSR_SHAPE_TEXT_BYTES];
    TSR_TRY(load_state(out, state));
    out->prequantized = true;
    out->code_bytes = tsr_ceil_div(out->element_count, 2);
    out->block_count = tsr_ceil_div(out->element_count, out->blocksize);
    /* quant_storage may view the same bytes as a wider dtype. */
    uint64_t storage_bytes = tsr_align_up(out->code_bytes, tsr_dtype_bytes(weight->dtype));
    if (weight->bytes != storage_bytes)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' has %" PRIu64
                        " bytes of 4-bit codes, but its quant_state's "
                        "shape %s needs %" PRIu64,
                        tsr_safetensors_path(weight->file), weight->name, weight->bytes,
                        tsr_shape_text(shown, out->shape, out->ndim), storage_bytes);
    TSR_TRY(need_part(&out->absmax, checkpoint, weight, TSR_WEIGHT_ABSMAX,
                      out->nested ? TSR_U8 : TSR_F32, out->block_count));
    TSR_TRY(need_part(&out->quant_map, checkpoint, weight, TSR_WEIGHT_QUANT_MAP, TSR_F32,
                      QUANT_MAP_COUNT));
    if (!out->nested)
        return TSR_OK;
    out->nested_count = tsr_ceil_div(out->block_count, out->nested_blocksize);
    TSR_TRY(need_part(&out->nested_absmax, checkpoint, weight, TSR_WEIGHT_NESTED_ABSMAX, TSR_F32,
                      out->nested_count));
    return need_part(&out->nested_quant_map, checkpoint, weight, TSR_WEIGHT_NESTED_MAP, TSR_F32,
                     NESTED_MAP_COUNT);
}

/* What bitsandbytes keeps beside an int8 weight, as "<module>.SCB"; NULL: nothing. */
static const tsr_tensor *find_beside(const tsr_checkpoint *checkpoint, const char *name,
                                     const char *what)
{
    size_t length = strlen(name), suffix = strlen("weight");
    if (length < suffix || strcmp(name + length - suffix, "weight"))
        return NULL;
    TSR_AUTO_FREE char *module = strndup(name, length - suffix);
    return module ? find_part(checkpoint, module, what) : NULL;
}

/* Codes lie row by row but in files of old versions for Turing and Ampere. */
static tsr_status check_int8_format(const tsr_checkpoint *checkpoint, const tsr_tensor *weight)
{
    const tsr_tensor *format = find_beside(checkpoint, weight->name, TSR_WEIGHT_INT8_FORMAT);
    uint8_t value = 0;
    if (!format)
        return TSR_OK;
    if (format->bytes == 1)
        TSR_TRY(tsr_safetensors_read(&value, format, 0, 1));
    if (format->bytes == 1 && value == 0)
        return TSR_OK;
    return tsr_fail(TSR_EDATA,
                    "%s: tensor '%s' is %d, only int8 weights that lie row by row (0) are read: "
                    "save the model again with a newer bitsandbytes",
                    tsr_safetensors_path(format->file), format->name, value);
}

static tsr_status describe_int8(tsr_weight *out, const tsr_checkpoint *checkpoint,
                                const tsr_tensor *scale)
{
    const tsr_tensor *weight = out->weight;
    const char *path = tsr_safetensors_path(weight->file);
    char shown[TSR_SHAPE_TEXT_BYTES];
    if (weight->dtype != TSR_I8 || weight->ndim != 2)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is %s %s beside '%s', expected I8 [rows, columns]", path,
                        weight->name, tsr_dtype_name(weight->dtype),
                        tsr_shape_text(shown, weight->shape, weight->ndim), scale->name);
    if (scale->dtype != TSR_F32 || scale->element_count != weight->shape[0])
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is %s with %" PRIu64
                        " elements, expected F32 with %" PRIu64 ", one for each row of '%s'",
                        tsr_safetensors_path(scale->file), scale->name,
                        tsr_dtype_name(scale->dtype), scale->element_count, weight->shape[0],
                        weight->name);
    TSR_TRY(check_int8_format(checkpoint, weight));
    out->int8_scale = scale;
    out->dtype = TSR_F16;
    out->ndim = weight->ndim;
    memcpy(out->shape, weight->shape, sizeof out->shape);
    out->element_count = weight->element_count;
    return TSR_OK;
}

static tsr_status describe_plain(tsr_weight *out, const tsr_checkpoint *checkpoint)
{
    const tsr_tensor *weight = out->weight;
    const char *path =
        weight->file ? tsr_safetensors_path(weight->file) : tsr_checkpoint_directory(checkpoint);
    if (find_part(checkpoint, weight->name, FP4_STATE_SUFFIX))
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is stored as bitsandbytes fp4, only nf4 is supported: "
                        "quantize the original model with bnb_4bit_quant_type nf4",
                        path, weight->name);
    if (find_part(checkpoint, weight->name, TSR_WEIGHT_ABSMAX))
        return tsr_fail(TSR_EDATA, "%s: tensor '%s' has '%s.absmax', but '%s%s' is missing", path,
                        weight->name, weight->name, weight->name, TSR_WEIGHT_STATE);
    if (weight->dtype == TSR_F8_E4M3)
        return tsr_fail(
            TSR_EDATA,
            "%s: tensor '%s' is F8_E4M3, but '%s%s', the scales of its blocks of %d x %d, "
            "is missing in the checkpoint",
            path, weight->name, weight->name, TSR_FP8_SCALE_SUFFIX, TSR_FP8_BLOCK, TSR_FP8_BLOCK);
    if (weight->dtype != TSR_F32 && weight->dtype != TSR_BF16 && weight->dtype != TSR_F16)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is %s, expected F32, BF16, F16 or bitsandbytes' nf4 with "
                        "its '%s%s'",
                        path, weight->name, tsr_dtype_name(weight->dtype), weight->name,
                        TSR_WEIGHT_STATE);
    out->dtype = weight->dtype;
    out->ndim = weight->ndim;
    memcpy(out->shape, weight->shape, sizeof out->shape);
    out->element_count = weight->element_count;
    return TSR_OK;
}

tsr_status tsr_checkpoint_weight(tsr_weight *out, const tsr_checkpoint *checkpoint,
                                 const char *name)
{
    tsr_weight weight = {.weight = tsr_checkpoint_find(checkpoint, name)};
    if (!weight.weight)
        return tsr_fail(
            TSR_EDATA,
            "%s: tensor '%s' is missing: the checkpoint is incomplete, or is not of the "
            "model that config.json describes",
            tsr_checkpoint_directory(checkpoint), name);
    const tsr_tensor *state = find_part(checkpoint, name, TSR_WEIGHT_STATE);
    const tsr_tensor *scale = find_beside(checkpoint, name, TSR_WEIGHT_INT8_SCALE);
    if (state)
        TSR_TRY(describe_nf4(&weight, checkpoint, state));
    else if (scale)
        TSR_TRY(describe_int8(&weight, checkpoint, scale));
    else
        TSR_TRY(describe_plain(&weight, checkpoint));
    *out = weight;
    return TSR_OK;
}
