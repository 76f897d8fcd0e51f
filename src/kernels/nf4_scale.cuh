/*
 * kernels/nf4_scale.cuh: the scale of a block of NF4 codes, plain or nested (nf4_dequant.h).
 */
#ifndef TSR_KERNELS_NF4_SCALE_CUH
#define TSR_KERNELS_NF4_SCALE_CUH

#include "kernels/cuda.cuh"

/* What of it lies in memory by block: of nested scales their scale and the place in the map. */
typedef struct {
    float value;
    uint32_t place;
} tsr_nf4_found;

static __device__ __forceinline__ tsr_nf4_found tsr_nf4_find_scale(const tsr_nf4_dequant_args *a,
                                                                   int64_t block)
{
    tsr_nf4_found found = {};
    if (a->nested) {
        found.value = a->nested_absmax[block / TSR_NF4_NESTED_BLOCK];
        found.place = ((const uint8_t *)a->absmax)[block];
    } else {
        found.value = ((const float *)a->absmax)[block];
    }
    return found;
}

/* The products and the sum are rounded each by itself. */
static __device__ __forceinline__ float tsr_nf4_scale_from(const tsr_nf4_dequant_args *a,
                                                           tsr_nf4_found found, float offset)
{
    if (!a->nested)
        return found.value;
    return __fadd_rn(__fmul_rn(a->nested_map[found.place], found.value), offset);
}

static __device__ __forceinline__ float tsr_nf4_scale_of(const tsr_nf4_dequant_args *a,
                                                         tsr_nf4_found found)
{
    return tsr_nf4_scale_from(a, found, a->offset);
}

/* One branch for both halves: with two, nf4_merge_low.cu spills. */
static __device__ __forceinline__ float tsr_nf4_scale(const tsr_nf4_dequant_args *a, int64_t block)
{
    if (!a->nested)
        return ((const float *)a->absmax)[block];
    return tsr_nf4_scale_of(a, tsr_nf4_find_scale(a, block));
}

#endif
