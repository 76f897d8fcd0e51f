/*
 * base/dtype.h: element types of tensors, in files and in memory, and the conversions between them.
 * Round to nearest, ties to even; a NaN stays a NaN (quiet).
 */
#ifndef TSR_BASE_DTYPE_H
#define TSR_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef enum {
    TSR_F32,
    TSR_BF16,
    TSR_F16,
    TSR_F64,
    TSR_U8,
    TSR_I8,
    TSR_I16,
    TSR_U16,
    TSR_I32,
    TSR_U32,
    TSR_I64,
    TSR_U64,
    TSR_BOOL,
    TSR_F8_E4M3,
    TSR_F8_E5M2,
    TSR_DTYPE_COUNT
} tsr_dtype;

/* Bytes of one element. */
uint32_t tsr_dtype_bytes(tsr_dtype dtype);

/* The name safetensors uses: "F32", "BF16", ... */
const char *tsr_dtype_name(tsr_dtype dtype);

/* The dtype of a safetensors name; false if there is none. */
bool tsr_dtype_parse(tsr_dtype *out, const char *name);

static inline float tsr_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline uint16_t tsr_f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float tsr_f16_to_f32(uint16_t bits);
uint16_t tsr_f32_to_f16(float value);

/* out[i] = the value of element i of `in`, which is F32, BF16 or F16; any other dtype gives false.
 */
bool tsr_widen_f32(float *out, const void *in, tsr_dtype dtype, uint64_t count);

/* The index of the first of `count` elements that is NaN or infinite; `count` if all are finite, or
 * `dtype` is none of F32, BF16, F16 and F8_E4M3. */
uint64_t tsr_first_not_finite(const void *in, tsr_dtype dtype, uint64_t count);

#endif
