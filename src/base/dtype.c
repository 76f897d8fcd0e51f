#include "base/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[TSR_DTYPE_COUNT] = {
    [TSR_F32] = {"F32", 4},   [TSR_BF16] = {"BF16", 2},       [TSR_F16] = {"F16", 2},
    [TSR_F64] = {"F64", 8},   [TSR_U8] = {"U8", 1},           [TSR_I8] = {"I8", 1},
    [TSR_I16] = {"I16", 2},   [TSR_U16] = {"U16", 2},         [TSR_I32] = {"I32", 4},
    [TSR_U32] = {"U32", 4},   [TSR_I64] = {"I64", 8},         [TSR_U64] = {"U64", 8},
    [TSR_BOOL] = {"BOOL", 1}, [TSR_F8_E4M3] = {"F8_E4M3", 1}, [TSR_F8_E5M2] = {"F8_E5M2", 1},
};

uint32_t tsr_dtype_bytes(tsr_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *tsr_dtype_name(tsr_dtype dtype)
{
    return dtypes[dtype].name;
}

bool tsr_dtype_parse(tsr_dtype *out, const char *name)
{
    for (int i = 0; i < TSR_DTYPE_COUNT; i++)
        if (!strcmp(dtypes[i].name, name)) {
            *out = (tsr_dtype)i;
            return true;
        }
    return false;
}

float tsr_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u;
    uint32_t mantissa = bits & 0x3ffu, wide;
    float value;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 is exact */
        value = (float)mantissa * 0x1p-24f;
        memcpy(&wide, &value, sizeof wide);
        wide |= sign;
    } else if (exponent == 31) {
        wide = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0);
    } else {
        wide = sign | ((exponent + 112u) << 23) | (mantissa << 13);
    }
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t tsr_f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* subnormal: let the adder round at 2^-24 */
        float shifted;
        memcpy(&shifted, &magnitude, sizeof shifted);
        shifted += 0.5f;
        memcpy(&magnitude, &shifted, sizeof magnitude);
        return (uint16_t)(sign | (magnitude - 0x3f000000u));
    }
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

bool tsr_widen_f32(float *out, const void *in, tsr_dtype dtype, uint64_t count)
{
    const uint16_t *half = in;
    switch (dtype) {
    case TSR_F32:
        memmove(out, in, count * sizeof *out);
        return true;
    case TSR_BF16:
        for (uint64_t i = 0; i < count; i++)
            out[i] = tsr_bf16_to_f32(half[i]);
        return true;
    case TSR_F16:
        for (uint64_t i = 0; i < count; i++)
            out[i] = tsr_f16_to_f32(half[i]);
        return true;
    default:
        return false;
    }
}

#define SCANNED 512 /* elements at a time, without a branch */

static uint64_t first_of_16_bits(const uint16_t *in, uint16_t exponent, uint64_t count)
{
    for (uint64_t first = 0; first < count; first += SCANNED) {
        uint64_t end = count - first < SCANNED ? count : first + SCANNED;
        uint16_t found = 0;
        for (uint64_t i = first; i < end; i++)
            found |= (uint16_t) - ((in[i] & exponent) == exponent);
        for (uint64_t i = first; found && i < end; i++)
            if ((in[i] & exponent) == exponent)
                return i;
    }
    return count;
}

static uint64_t first_of_floats(const float *in, uint64_t count)
{
    for (uint64_t first = 0; first < count; first += SCANNED) {
        uint64_t end = count - first < SCANNED ? count : first + SCANNED;
        int found = 0;
        for (uint64_t i = first; i < end; i++)
            found |= !isfinite(in[i]);
        for (uint64_t i = first; found && i < end; i++)
            if (!isfinite(in[i]))
                return i;
    }
    return count;
}

static uint64_t first_of_e4m3(const uint8_t *in, uint64_t count)
{
    for (uint64_t first = 0; first < count; first += SCANNED) {
        uint64_t end = count - first < SCANNED ? count : first + SCANNED;
        uint8_t found = 0;
        for (uint64_t i = first; i < end; i++)
            found |= (uint8_t) - ((in[i] & 0x7f) == 0x7f);
        for (uint64_t i = first; found && i < end; i++)
            if ((in[i] & 0x7f) == 0x7f)
                return i;
    }
    return count;
}

uint64_t tsr_first_not_finite(const void *in, tsr_dtype dtype, uint64_t count)
{
    switch (dtype) {
    case TSR_F32:
        return first_of_floats(in, count);
    case TSR_BF16:
        return first_of_16_bits(in, 0x7f80u, count);
    case TSR_F16:
        return first_of_16_bits(in, 0x7c00u, count);
    case TSR_F8_E4M3:
        return first_of_e4m3(in, count);
    default:
        return count;
    }
}
