/*
 * kernels/vector_math.h: exp, and sums in a fixed order, written so that the compiler vectorizes
 * them. Inside the CPU kernels only.
 *
 * No contraction, no fast-math: every clone of a function (base/clones.h) gives the same bits, since
 * lanes and order are in the source.
 */
#ifndef TSR_KERNELS_VECTOR_MATH_H
#define TSR_KERNELS_VECTOR_MATH_H

#include "base/clones.h"

#include <stdint.h>
#include <string.h>

/* Helpers must become part of the clone that calls them. */
#define TSR_INLINE static inline __attribute__((always_inline))

#define TSR_LANES 16 /* of every fixed-order sum: one AVX-512 register */

/* e^x within 2 ulp. Below -86 the result is 0 (no subnormals); above 88.72 infinity; NaN stays.
 * Cody and Waite's reduction by ln 2 in two parts, then Cephes' polynomial on [-ln2/2, ln2/2]. */
TSR_INLINE float tsr_expf(float x)
{
    float t = x < -86.0f ? -86.0f : x;
    t = t > 89.0f ? 89.0f : t;
    float shifted = t * 1.44269504088896341f + 12582912.0f; /* 1.5 2^23: rounds to an integer */
    float n = shifted - 12582912.0f;
    float r = t - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 126u) << 23; /* 2^(n - 1): n = 128 has no fp32 power of its own */
    float power;
    memcpy(&power, &bits, sizeof power);
    float result = p * power * 2.0f;
    return x < -86.0f ? 0.0f : result;
}

/* The lanes of a sum, pairwise. */
TSR_INLINE float tsr_lanes_sum(const float *lane)
{
    float a[8], b[4];
    for (int i = 0; i < 8; i++)
        a[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; i++)
        b[i] = a[i] + a[i + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

typedef float tsr_lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t tsr_lane_mask __attribute__((vector_size(64)));

/* Lane l: lane index[l] of a and b one behind the other, modulo their number. GCC has one
 * instruction for it; Clang, which has no shuffle by a variable, takes a loop. */
#ifdef __clang__
TSR_INLINE tsr_lanes tsr_shuffle2(tsr_lanes a, tsr_lanes b, tsr_lane_mask index)
{
    tsr_lanes out;
    for (int l = 0; l < TSR_LANES; l++)
        out[l] =
            index[l] & TSR_LANES ? b[index[l] & (TSR_LANES - 1)] : a[index[l] & (TSR_LANES - 1)];
    return out;
}
#define TSR_SHUFFLE2(a, b, index) tsr_shuffle2(a, b, index)
#else
#define TSR_SHUFFLE2(a, b, index) __builtin_shuffle(a, b, index)
#endif

typedef float tsr_half_lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t tsr_half_mask __attribute__((vector_size(32)));

/* Eight values of a table of 16: value l by the nibble of `word` that begins at bit shift[l]. AVX2 has permutations of eight
 * lanes, but none of 16. */
TSR_INLINE void tsr_look_up_8(float out[8], const float table[16], uint32_t word,
                              tsr_half_mask shift)
{
    const tsr_half_mask index = (word + (tsr_half_mask){0}) >> shift;
#ifdef __clang__
    for (int l = 0; l < 8; l++)
        out[l] = table[index[l] & 15];
#else
    const tsr_half_lanes low = *(const tsr_half_lanes *)table;
    const tsr_half_lanes high = *(const tsr_half_lanes *)(table + 8);
    *(tsr_half_lanes *)out = __builtin_shuffle(low, high, index);
#endif
}

/* The largest of `count` values. GCC makes scalars of a selection in lanes, so it is spelt out. */
TSR_INLINE float tsr_row_max(const float *row, int64_t count)
{
    float most = -__builtin_inff();
    int64_t i = 0;
    if (count >= TSR_LANES) {
        tsr_lanes best = *(const tsr_lanes *)row;
        for (i = TSR_LANES; i + TSR_LANES <= count; i += TSR_LANES) {
            tsr_lanes next = *(const tsr_lanes *)(row + i);
            tsr_lane_mask above = next > best;
            best = (tsr_lanes)(((tsr_lane_mask)next & above) | ((tsr_lane_mask)best & ~above));
        }
        for (int l = 0; l < TSR_LANES; l++)
            most = best[l] > most ? best[l] : most;
    }
    for (; i < count; i++)
        most = row[i] > most ? row[i] : most;
    return most;
}

/* row = exp(row - max); returns the sum. */
TSR_INLINE float tsr_row_exp(float *row, int64_t count, float max)
{
    float lane[TSR_LANES] = {0};
    int64_t i = 0;
    for (int64_t j = 0; j < count; j++)
        row[j] = tsr_expf(row[j] - max);
    for (; i + TSR_LANES <= count; i += TSR_LANES)
        for (int l = 0; l < TSR_LANES; l++)
            lane[l] += row[i + l];
    float sum = tsr_lanes_sum(lane);
    for (; i < count; i++)
        sum += row[i];
    return sum;
}

#endif
