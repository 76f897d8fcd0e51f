/*
 * kernels/fp8.h: e4m3, the 8-bit floating point of matmuls, and the rule by which a row is scaled to it.
 *
 * Format   "FP8 Formats for Deep Learning" (Micikevicius et al., 2022) and OCP 8-bit Floating Point 1.0,
 *          e4m3 (torch.float8_e4m3fn): sign, 4 bits of exponent (bias 7), 3 of mantissa; 448 is the
 *          largest, 2^-6 the least normal, 2^-9 the least of all; no infinity; 0x7f and 0xff are NaN.
 * Rows     A row of values x becomes codes and one fp32 scale, x about code * scale:
 *              scale = RN(amax / 448), amax the largest |x|;  code = e4m3(RN(x * RN(1 / scale))).
 *          A row of zeros has scale 1. An amax below 2^-116 counts as that, so that neither scale nor
 *          its reciprocal leaves the normal numbers of fp32. A row that has a NaN or an infinity has
 *          scale NaN and codes TSR_E4M3_NAN throughout: whatever it is multiplied by shows it.
 */
#ifndef TSR_KERNELS_FP8_H
#define TSR_KERNELS_FP8_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TSR_E4M3_MAX   448.0f
#define TSR_E4M3_NAN   0x7fu
#define TSR_E4M3_LEAST 0x1p-116f /* amax of a row, where it is not zero */

#ifdef __CUDACC__
#define TSR_FP8_INLINE static __host__ __device__ __forceinline__
#else
#define TSR_FP8_INLINE static inline
#endif

/* Round to nearest, ties to even; beyond 448, infinity included, 448; NaN stays NaN. */
TSR_FP8_INLINE uint8_t tsr_f32_to_e4m3(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x43e00000u) /* 448 */
        return (uint8_t)(sign | (magnitude > 0x7f800000u ? TSR_E4M3_NAN : 0x7eu));
    if (magnitude < 0x3c800000u) { /* subnormal: let the adder round at 2^-9 */
        float shifted = fabsf(value) + 0x1p14f;
        memcpy(&magnitude, &shifted, sizeof magnitude);
        return (uint8_t)(sign | (magnitude - 0x46800000u));
    }
    magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | (magnitude - 0x3c000000u) >> 20);
}

/* Exact. */
TSR_FP8_INLINE float tsr_e4m3_to_f32(uint8_t code)
{
    uint32_t bits = (code & 0x7fu) << 20;
    float value;
    if (bits == TSR_E4M3_NAN << 20)
        return NAN;
    memcpy(&value, &bits, sizeof value); /* of 8 bits of exponent: 2^-120 of it */
    value *= 0x1p120f;
    return code & 0x80u ? -value : value;
}

/* The scale of a row of largest magnitude `amax`, which is not finite where one of them is not. */
TSR_FP8_INLINE float tsr_e4m3_scale(float amax)
{
    if (!(amax < INFINITY))
        return NAN;
    if (amax == 0)
        return 1;
    return (amax < TSR_E4M3_LEAST ? TSR_E4M3_LEAST : amax) / TSR_E4M3_MAX;
}

#endif
