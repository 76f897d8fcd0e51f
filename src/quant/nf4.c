#include "quant/nf4.h"

#include "base/clones.h"
#include "base/exact_sum.h"

#include <math.h>
#include <string.h>

#define ZERO_CODE 7           /* the level 0 */
#define INF_BITS  0x7f800000u /* |x| at or above it, as bits, is an infinity or a NaN */

/* The largest |x| of a block as bits, which are ordered as the values are. */
TSR_CLONES static uint32_t largest_bits(const float x[TSR_NF4_BLOCK])
{
    uint32_t largest = 0;
    for (int i = 0; i < TSR_NF4_BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* code = thresholds below x * reciprocal; a NaN (0 times an infinite reciprocal) is below none. */
TSR_CLONES static void block_codes(int32_t code[TSR_NF4_BLOCK], const float x[TSR_NF4_BLOCK],
                                   float reciprocal)
{
    float scaled[TSR_NF4_BLOCK];
    for (int i = 0; i < TSR_NF4_BLOCK; i++) {
        scaled[i] = x[i] * reciprocal;
        code[i] = 0;
    }
    for (int t = 0; t < 15; t++)
        for (int i = 0; i < TSR_NF4_BLOCK; i++)
            code[i] += scaled[i] > tsr_nf4_threshold[t];
}

static void pack(uint8_t *codes, int32_t code[TSR_NF4_BLOCK], uint64_t count)
{
    if (count % 2)
        code[count] = ZERO_CODE;
    for (uint64_t i = 0; i < count; i += 2)
        codes[i / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
}

tsr_status tsr_nf4_quantize(uint8_t *codes, float *absmax, const void *values, tsr_dtype dtype,
                            uint64_t count)
{
    if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16)
        return tsr_fail(TSR_EINVAL, "cannot quantize %s values to NF4: give F32, BF16 or F16",
                        tsr_dtype_name(dtype));
    uint64_t element_bytes = tsr_dtype_bytes(dtype);
    for (uint64_t first = 0; first < count; first += TSR_NF4_BLOCK) {
        uint64_t n = count - first < TSR_NF4_BLOCK ? count - first : TSR_NF4_BLOCK;
        float x[TSR_NF4_BLOCK] = {0};
        int32_t code[TSR_NF4_BLOCK];
        tsr_widen_f32(x, (const char *)values + first * element_bytes, dtype, n);
        uint32_t bits = largest_bits(x);
        if (bits >= INF_BITS) {
            uint64_t i = 0;
            while (isfinite(x[i]))
                i++;
            return tsr_fail(TSR_EDATA, "element %llu is %f and cannot be quantized",
                            (unsigned long long)(first + i), (double)x[i]);
        }
        float scale;
        memcpy(&scale, &bits, sizeof scale);
        absmax[first / TSR_NF4_BLOCK] = scale;
        if (bits)
            block_codes(code, x, 1.0f / scale);
        else
            for (int i = 0; i < TSR_NF4_BLOCK; i++)
                code[i] = ZERO_CODE;
        pack(codes + first / 2, code, n);
    }
    return TSR_OK;
}

/* The number of midpoints of the nested map below v: the nearest value's code; 0 for a NaN. */
static uint8_t nearest(float v, const float midpoint[255])
{
    unsigned low = 0; /* midpoints below `low` are below v */
    for (unsigned step = 128; step; step /= 2)
        if (v > midpoint[low + step - 1])
            low += step;
    return (uint8_t)low;
}

void tsr_nf4_nest_absmax(uint8_t *q, float *nested_absmax, const float *absmax, uint64_t blocks,
                         uint64_t first, uint64_t count, float offset)
{
    float midpoint[255];
    for (int i = 0; i < 255; i++)
        midpoint[i] = (tsr_nf4_nested_map[i] + tsr_nf4_nested_map[i + 1]) / 2;
    for (uint64_t begin = 0; begin < blocks; begin += TSR_NF4_NESTED_BLOCK) {
        uint64_t end =
            blocks - begin < TSR_NF4_NESTED_BLOCK ? blocks : begin + TSR_NF4_NESTED_BLOCK;
        float largest = 0;
        for (uint64_t i = begin; i < end; i++)
            largest = fmaxf(largest, fabsf(absmax[i] - offset));
        nested_absmax[begin / TSR_NF4_NESTED_BLOCK] = largest;
        float reciprocal = 1.0f / largest;
        uint64_t from = begin > first ? begin : first,
                 to = end < first + count ? end : first + count;
        for (uint64_t i = from; i < to; i++)
            q[i - first] = nearest((absmax[i] - offset) * reciprocal, midpoint);
    }
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
