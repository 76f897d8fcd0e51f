#include "io/fp8_blocks.h"

#include "base/checked.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

tsr_status tsr_fp8_view(tsr_tensor *out, const tsr_tensor *codes, const tsr_tensor *scales)
{
    char found[TSR_SHAPE_TEXT_BYTES];
    if (codes->ndim != 2)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is F8_E4M3 with scales in '%s' and has the shape %s, "
                        "expected [out, in]",
                        tsr_safetensors_path(codes->file), codes->name, scales->name,
                        tsr_shape_text(found, codes->shape, codes->ndim));
    uint64_t down = tsr_ceil_div(codes->shape[0], TSR_FP8_BLOCK);
    uint64_t across = tsr_ceil_div(codes->shape[1], TSR_FP8_BLOCK);
    if ((scales->dtype != TSR_F32 && scales->dtype != TSR_BF16) || scales->ndim != 2 ||
        scales->shape[0] != down || scales->shape[1] != across)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' is %s %s, expected F32 [%" PRIu64 ", %" PRIu64
                        "]: a scale for each block of %d x %d of '%s'",
                        tsr_safetensors_path(scales->file), scales->name,
                        tsr_dtype_name(scales->dtype),
                        tsr_shape_text(found, scales->shape, scales->ndim), down, across,
                        TSR_FP8_BLOCK, TSR_FP8_BLOCK, codes->name);
    *out = *codes;
    out->dtype = TSR_BF16;
    out->bytes = codes->element_count * tsr_dtype_bytes(TSR_BF16);
    out->codes = codes;
    out->scales = scales;
    return TSR_OK;
}

/* 1 sign, 4 exponent (bias 7), 3 mantissa; no infinity. */
static float value_of(unsigned code)
{
    unsigned exponent = code >> 3 & 15, mantissa = code & 7;
    float size = exponent ? ldexpf(1 + (float)mantissa / 8, (int)exponent - 7)
                          : ldexpf((float)mantissa / 8, -6);
    if ((code & 0x7f) == 0x7f)
        size = NAN;
    return code & 0x80 ? -size : size;
}

/* Elements of one row in one block: `count` codes to bf16. out may begin at or before codes, and then ends before what is
 * not read yet. */
static void decode(uint8_t *out, const uint8_t *codes, uint64_t count, const float value[256],
                   float scale)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t bits = tsr_f32_to_bf16(value[codes[i]] * scale);
        memcpy(out + 2 * i, &bits, sizeof bits);
    }
}

/* The codes lie in the upper half of `out`, which becomes their values from its beginning on: element i is read at count +
 * i and written at 2 i. */
static tsr_status decode_all(uint8_t *out, const tsr_tensor *view, uint64_t first, uint64_t count,
                             float *scales)
{
    uint64_t columns = view->shape[1], across = view->scales->shape[1], loaded = UINT64_MAX;
    float value[256];
    for (unsigned i = 0; i < 256; i++)
        value[i] = value_of(i);
    for (uint64_t done = 0, some; done < count; done += some) {
        uint64_t row = (first + done) / columns, column = (first + done) % columns;
        uint64_t block = column / TSR_FP8_BLOCK, end = (block + 1) * TSR_FP8_BLOCK;
        if (row / TSR_FP8_BLOCK != loaded)
            TSR_TRY(tsr_safetensors_read_f32(scales, view->scales, row / TSR_FP8_BLOCK * across,
                                             across));
        loaded = row / TSR_FP8_BLOCK;
        some = (end < columns ? end : columns) - column;
        some = some < count - done ? some : count - done;
        decode(out + 2 * done, out + count + done, some, value, scales[block]);
    }
    return TSR_OK;
}

tsr_status tsr_fp8_view_read(void *dst, const tsr_tensor *view, uint64_t byte_offset,
                             uint64_t bytes)
{
    uint64_t first = byte_offset / 2, count = bytes / 2;
    if (byte_offset % 2 || bytes % 2)
        return tsr_fail(TSR_EINVAL, "%s: tensor '%s' is read in parts of elements",
                        tsr_safetensors_path(view->file), view->name);
    if (count == 0)
        return TSR_OK;
    float *scales = malloc(view->scales->shape[1] * sizeof *scales);
    if (!scales)
        return tsr_fail(TSR_ENOMEM, "out of memory while reading %s", view->name);
    tsr_status status = tsr_safetensors_read((uint8_t *)dst + count, view->codes, first, count);
    if (status == TSR_OK)
        status = decode_all(dst, view, first, count, scales);
    free(scales);
    return status;
}

tsr_status tsr_fp8_check_scales(const float *values, uint64_t count, const tsr_tensor *scales)
{
    for (uint64_t i = 0; i < count; i++)
        if (!(fabsf(values[i]) <= 0x1.fcp127f / 448))
            return tsr_fail(TSR_EDATA,
                            "%s: tensor '%s' has the scale %g; expected a finite one with which "
                            "every weight is finite in bf16; is the file damaged?",
                            tsr_safetensors_path(scales->file), scales->name, (double)values[i]);
    return TSR_OK;
}
