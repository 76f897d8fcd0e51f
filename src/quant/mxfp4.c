#include "quant/mxfp4.h"

#include <math.h>

/* From this scale on 6 times its power is infinite, then 4; of 254 so is 2. */
#define LEAST_INFINITE 253

static float value_of(const uint8_t *codes, const uint8_t *scales, uint64_t element)
{
    static const float magnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    uint8_t byte = codes[element / 2], scale = scales[element / TSR_MXFP4_BLOCK];
    int code = element % 2 ? byte >> 4 : byte & 15;
    float value = code & 8 ? -magnitude[code & 7] : magnitude[code];
    return scale == TSR_MXFP4_NO_SCALE ? NAN : ldexpf(value, scale - 127);
}

tsr_status tsr_mxfp4_dequantize(void *out, tsr_dtype dtype, const uint8_t *codes,
                                const uint8_t *scales, uint64_t first, uint64_t count)
{
    if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16)
        return tsr_fail(TSR_EINVAL, "mxfp4: dtype %s is not F32, BF16 or F16",
                        tsr_dtype_name(dtype));
    for (uint64_t i = 0; i < count; i++) {
        float value = value_of(codes, scales, first + i);
        if (dtype == TSR_F32)
            ((float *)out)[i] = value;
        else
            ((uint16_t *)out)[i] =
                dtype == TSR_BF16 ? tsr_f32_to_bf16(value) : tsr_f32_to_f16(value);
    }
    return TSR_OK;
}

static bool is_finite(const uint8_t *codes, const uint8_t *scales, uint64_t block)
{
    bool finite = scales[block] != TSR_MXFP4_NO_SCALE;
    for (uint64_t i = 0; i < TSR_MXFP4_BLOCK && finite; i++)
        finite = isfinite(value_of(codes, scales, block * TSR_MXFP4_BLOCK + i));
    return finite;
}

uint64_t tsr_mxfp4_first_bad(const uint8_t *codes, const uint8_t *scales, uint64_t blocks)
{
    for (uint64_t i = 0; i < blocks; i++)
        if (scales[i] >= LEAST_INFINITE && !is_finite(codes, scales, i))
            return i;
    return blocks;
}
