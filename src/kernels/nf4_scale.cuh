/*
 * kernels/nf4_scale.cuh: the scale of a block of NF4 codes, plain or nested (nf4_dequant.h).
 */
#ifndef TSR_KERNELS_NF4_SCALE_CUH
#define TSR_KERNELS_NF4_SCALE_CUH

#include "kernels/cuda.cuh"

/* The products and the sum are rounded each by itself. */
static __device__ __forceinline__ float tsr_nf4_scale(const tsr_nf4_dequant_args *a, int64_t block)
{
    if (!a->nested)
        return ((const float *)a->absmax)[block];
    float nested = a->nested_absmax[block / TSR_NF4_NESTED_BLOCK];
    float residual = __fmul_rn(a->nested_map[((const uint8_t *)a->absmax)[block]], nested);
    return __fadd_rn(residual, a->offset);
}

#endif
