#include "quant/nf4.h"

#include "base/exact_sum.h"

#include <math.h>

tsr_status tsr_nf4_quantize(uint8_t *codes, float *absmax, const void *values, tsr_dtype dtype,
                            uint64_t count)
{
    if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16)
        return tsr_fail(TSR_EINVAL, "cannot quantize %s values to NF4: give F32, BF16 or F16",
                        tsr_dtype_name(dtype));
    uint64_t good = tsr_nf4_quantize_values(codes, absmax, values, dtype, count);
    if (good == count)
        return TSR_OK;
    float value = 0;
    tsr_widen_f32(&value, (const char *)values + good * tsr_dtype_bytes(dtype), dtype, 1);
    return tsr_fail(TSR_EDATA, "element %llu is %f and cannot be quantized",
                    (unsigned long long)good, (double)value);
}

void tsr_nf4_nest_absmax(uint8_t *q, float *nested_absmax, const float *absmax, uint64_t blocks,
                         uint64_t first, uint64_t count, float offset)
{
    tsr_nf4_nest_values(q, nested_absmax, absmax, tsr_nf4_nested_map, blocks, first, count, offset);
}

tsr_status tsr_nf4_quantize_absmax(uint8_t *q, float *nested_absmax, float *offset,
                                   const float *absmax, uint64_t blocks, uint64_t first,
                                   uint64_t count)
{
    if (blocks == 0 || blocks > 1ull << 29 || first > blocks || count > blocks - first)
        return tsr_fail(TSR_EINVAL, "blocks %llu + %llu of a tensor of %llu",
                        (unsigned long long)first, (unsigned long long)count,
                        (unsigned long long)blocks);
    tsr_exact_sum sum;
    tsr_exact_clear(&sum);
    for (uint64_t i = 0; i < blocks; i++) {
        if (!isfinite(absmax[i]))
            return tsr_fail(TSR_EDATA, "the scale of elements %llu to %llu is %f",
                            (unsigned long long)(i * TSR_NF4_BLOCK),
                            (unsigned long long)(i * TSR_NF4_BLOCK + TSR_NF4_BLOCK - 1),
                            (double)absmax[i]);
        tsr_exact_add(&sum, absmax[i]);
    }
    *offset = tsr_exact_mean_f32(&sum, blocks);
    tsr_nf4_nest_absmax(q, nested_absmax, absmax, blocks, first, count, *offset);
    return TSR_OK;
}

/* The build contracts nothing, so the product is rounded before the sum. */
static float decode(const tsr_nf4_scales *scales, const float *map, uint8_t q, uint64_t block)
{
    float product = map[q] * scales->nested_absmax[block / TSR_NF4_NESTED_BLOCK];
    return product + scales->offset;
}

static const float *map_of(const tsr_nf4_scales *scales)
{
    return scales->nested_map ? scales->nested_map : tsr_nf4_nested_map;
}

void tsr_nf4_decode_absmax(float *out, const uint8_t *q, uint64_t first, uint64_t count,
                           const tsr_nf4_scales *scales)
{
    const float *map = map_of(scales);
    for (uint64_t i = 0; i < count; i++)
        out[i] = decode(scales, map, q[i], first + i);
}

static float view_scale(const tsr_nf4_view *view, const float *map, uint64_t block)
{
    if (!view->scales->nested)
        return ((const float *)view->absmax)[block];
    return decode(view->scales, map, ((const uint8_t *)view->absmax)[block], block);
}

static void store(void *out, tsr_dtype dtype, uint64_t i, float value)
{
    if (dtype == TSR_F32)
        ((float *)out)[i] = value;
    else if (dtype == TSR_BF16)
        ((uint16_t *)out)[i] = tsr_f32_to_bf16(value);
    else
        ((uint16_t *)out)[i] = tsr_f32_to_f16(value);
}

tsr_status tsr_nf4_dequantize(void *out, tsr_dtype dtype, const tsr_nf4_view *view, uint64_t first,
                              uint64_t count, const float *row_factor, uint64_t columns)
{
    if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16)
        return tsr_fail(TSR_EINVAL, "NF4 dequantizes to F32, BF16 or F16, not to %s",
                        tsr_dtype_name(dtype));
    if (row_factor && columns == 0)
        return tsr_fail(TSR_EINVAL, "a factor for each row of 0 columns");
    const float *map = map_of(view->scales);
    float scale = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t e = first + i;
        if (i == 0 || e % TSR_NF4_BLOCK == 0)
            scale = view_scale(view, map, e / TSR_NF4_BLOCK);
        uint8_t byte = view->codes[e / 2];
        float value = tsr_nf4_level[e % 2 ? byte & 15 : byte >> 4] * scale;
        store(out, dtype, i, row_factor ? value * row_factor[e / columns] : value);
    }
    return TSR_OK;
}
