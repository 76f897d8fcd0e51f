/*
 * kernels/fp8_table.cuh: NF4 to e4m3 by a block's 16 codes: what fp8_decode writes, and what DoRA's norms
 * are of where W is multiplied with as that (nf4_merge.h).
 *
 * The lanes that share a block make its codes, a part each, and hand them round. An element is then a
 * lookup by its nibble in four registers, three byte permutations for four elements; nothing is multiplied
 * or converted an element at a time.
 */
#ifndef TSR_KERNELS_FP8_TABLE_CUH
#define TSR_KERNELS_FP8_TABLE_CUH

#include "kernels/fp8.cuh"

/* The 16 codes of a block, in order. */
typedef struct {
    uint32_t word[4];
} tsr_e4m3_table;

/* Codes of four levels of a block; `inverse` is that of the row's scale. */
static __device__ __forceinline__ uint32_t tsr_e4m3_table_word(const float *level, float absmax,
                                                               float inverse)
{
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __fmul_rn(__fmul_rn(level[i], absmax), inverse);
    return isnan(inverse) ? TSR_E4M3_NANS : tsr_e4m3x4(v[0], v[1], v[2], v[3]);
}

/* Of a quad of lanes that share a block, each with its four levels. All lanes call. */
static __device__ __forceinline__ tsr_e4m3_table tsr_e4m3_quad_table(const float *level,
                                                                     float absmax, float inverse)
{
    tsr_e4m3_table table;
    uint32_t part = tsr_e4m3_table_word(level, absmax, inverse);
#pragma unroll
    for (int i = 0; i < 4; i++)
        table.word[i] = __shfl_sync(0xffffffffu, part, (int)(threadIdx.x & 28) + i);
    return table;
}

/* Eight elements: a word of codes in memory order, a byte's first element its high nibble. */
static __device__ __forceinline__ uint2 tsr_e4m3_look_up8(const tsr_e4m3_table *t, uint32_t codes)
{
    uint32_t nibbles = (codes >> 4 & 0x0f0f0f0fu) | (codes << 4 & 0xf0f0f0f0u), out[2];
#pragma unroll
    for (int i = 0; i < 2; i++, nibbles >>= 16) {
        uint32_t low = __byte_perm(t->word[0], t->word[1], nibbles & 0x7777u);
        uint32_t high = __byte_perm(t->word[2], t->word[3], nibbles & 0x7777u);
        out[i] = __byte_perm(low, high, 0x3210u | (nibbles & 0x8888u) >> 1);
    }
    return make_uint2(out[0], out[1]);
}

/* The values of the two codes in the low half of a word, exact. */
static __device__ __forceinline__ float2 tsr_e4m3_pair(uint32_t codes)
{
#ifdef TSR_E4M3_CODE
    uint32_t word;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"((uint16_t)codes));
    return __half22float2(*(const __half2 *)&word);
#else
    return make_float2(tsr_e4m3_to_f32((uint8_t)codes), tsr_e4m3_to_f32((uint8_t)(codes >> 8)));
#endif
}

#endif
