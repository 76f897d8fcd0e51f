/*
 * kernels/fp8.cuh: what the CUDA kernels of e4m3 share; the rule and the scalar conversion are fp8.h's.
 */
#ifndef TSR_KERNELS_FP8_CUH
#define TSR_KERNELS_FP8_CUH

#include "kernels/cuda.cuh"
#include "kernels/fp8.h"

#define TSR_E4M3_NANS 0x7f7f7f7fu

/* Four codes, the first lowest. The instruction needs sm_90 (sm_89 has it too, from a newer PTX on than
 * CUDA 12.4's oldest front end writes); elsewhere the same bytes but for a NaN's sign. */
static __device__ __forceinline__ uint32_t tsr_e4m3x4(float v0, float v1, float v2, float v3)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v1), "f"(v0));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v3), "f"(v2));
    return low | (uint32_t)high << 16;
#else
    return tsr_f32_to_e4m3(v0) | (uint32_t)tsr_f32_to_e4m3(v1) << 8 |
           (uint32_t)tsr_f32_to_e4m3(v2) << 16 | (uint32_t)tsr_f32_to_e4m3(v3) << 24;
#endif
}

/* What an amax is compared by: of two magnitudes the larger, a NaN above all. */
static __device__ __forceinline__ uint32_t tsr_magnitude(float value)
{
    return __float_as_uint(value) & 0x7fffffffu;
}

static __device__ __forceinline__ uint32_t tsr_warp_max(uint32_t value)
{
    return __reduce_max_sync(0xffffffffu, value);
}

#endif
