/*
 * kernels/nf4_results.cuh: a block of NF4 codes to bf16 in registers. What the sixteen codes name is rounded once for a
 * block; then four codes at a time select their low bytes and their high bytes by byte permutations: some 3
 * instructions an element.
 */
#ifndef TSR_KERNELS_NF4_RESULTS_CUH
#define TSR_KERNELS_NF4_RESULTS_CUH

#include "kernels/mma.cuh"

/* Of the two words' bytes, from a's lowest on, those that the four lower nibbles of `select` name. */
static __device__ __forceinline__ uint32_t tsr_nf4_bytes(uint32_t a, uint32_t b, uint32_t select)
{
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(select));
    return out;
}

/* What the codes of a block name, in bf16: byte c % 4 of word c / 4 is of code c. `level` are all 16. */
typedef struct {
    uint32_t low[4], high[4];
} tsr_nf4_results;

static __device__ __forceinline__ tsr_nf4_results tsr_nf4_results_of(const float4 *level,
                                                                     float scale)
{
    tsr_nf4_results r;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 l = level[i];
        uint32_t p = tsr_pack_bf16(__fmul_rn(l.x, scale), __fmul_rn(l.y, scale));
        uint32_t q = tsr_pack_bf16(__fmul_rn(l.z, scale), __fmul_rn(l.w, scale));
        r.low[i] = tsr_nf4_bytes(p, q, 0x6420);
        r.high[i] = tsr_nf4_bytes(p, q, 0x7531);
    }
    return r;
}

/* A byte permutation chooses among eight: one of codes below 8, one of the others, and by a code's highest bit
 * one of the two. The first of a byte's two elements is the higher nibble. */
static __device__ __forceinline__ uint4 tsr_nf4_word(const tsr_nf4_results *r, uint32_t codes)
{
    uint32_t among = codes & 0x77777777u, which = (codes >> 1 & 0x44444444u) | 0x32103210u, w[4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t s = among >> (16 * half), m = which >> (16 * half);
        uint32_t low = tsr_nf4_bytes(tsr_nf4_bytes(r->low[0], r->low[1], s),
                                     tsr_nf4_bytes(r->low[2], r->low[3], s), m);
        uint32_t high = tsr_nf4_bytes(tsr_nf4_bytes(r->high[0], r->high[1], s),
                                      tsr_nf4_bytes(r->high[2], r->high[3], s), m);
        w[2 * half] = tsr_nf4_bytes(low, high, 0x4051);
        w[2 * half + 1] = tsr_nf4_bytes(low, high, 0x6273);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
