/*
 * kernels/fp8.cuh: what the CUDA kernels of e4m3 share; the rule and the scalar conversion are fp8.h's.
 */
#ifndef TSR_KERNELS_FP8_CUH
#define TSR_KERNELS_FP8_CUH

#include "kernels/cuda.cuh"
#include "kernels/fp8.h"

#define TSR_E4M3_NANS 0x7f7f7f7fu

/* Whether there are instructions to and from e4m3: on sm_89 in the PTX of CUDA 12 (tools/check_cuda_floor has an older front end). */
#if defined(__CUDA_ARCH__) &&                                                                      \
    (__CUDA_ARCH__ >= 900 || (__CUDA_ARCH__ >= 890 && __CUDACC_VER_MAJOR__ >= 12))
#define TSR_E4M3_CODE
#endif

/* Four codes, the first lowest. Without the instruction the same bytes but for a NaN's sign. */
static __device__ __forceinline__ uint32_t tsr_e4m3x4(float v0, float v1, float v2, float v3)
{
#ifdef TSR_E4M3_CODE
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

/* The largest of a block's values, in all threads; blockDim.x is a multiple of 32. Once in a kernel. */
static __device__ __forceinline__ uint32_t tsr_block_max(uint32_t value)
{
    __shared__ uint32_t shared[TSR_WARP];
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    value = tsr_warp_max(value);
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    return tsr_warp_max(lane < (int)blockDim.x / TSR_WARP ? shared[lane] : 0);
}

/* ---- eight elements, for kernels that make rows of bf16 (fp8_quantize.h, tsr_fp8_rows) ---- */

/* As they were stored, times the factors of their columns. */
static __device__ __forceinline__ void tsr_fp8_values(float *out, uint4 stored, const float *factor,
                                                      int64_t column)
{
    uint32_t word[4] = {stored.x, stored.y, stored.z, stored.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        out[2 * j] = __uint_as_float(word[j] << 16);
        out[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
    }
    if (!factor)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 quad = tsr_load_common((const uint4 *)(factor + column) + i);
        out[4 * i] = __fmul_rn(out[4 * i], __uint_as_float(quad.x));
        out[4 * i + 1] = __fmul_rn(out[4 * i + 1], __uint_as_float(quad.y));
        out[4 * i + 2] = __fmul_rn(out[4 * i + 2], __uint_as_float(quad.z));
        out[4 * i + 3] = __fmul_rn(out[4 * i + 3], __uint_as_float(quad.w));
    }
}

static __device__ __forceinline__ uint32_t tsr_magnitude8(const float *value)
{
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        most = max(most, tsr_magnitude(value[j]));
    return most;
}

static __device__ __forceinline__ uint2 tsr_e4m3x8(const float *value, float inverse)
{
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = __fmul_rn(value[j], inverse);
    if (isnan(inverse))
        return make_uint2(TSR_E4M3_NANS, TSR_E4M3_NANS);
    return make_uint2(tsr_e4m3x4(v[0], v[1], v[2], v[3]), tsr_e4m3x4(v[4], v[5], v[6], v[7]));
}

/* Whether such a kernel can write them beside rows of d: eight codes, and eight factors, on vectors. */
static inline bool tsr_fp8_rows_fit(tsr_fp8_rows rows, int64_t d, tsr_dtype dtype)
{
    return rows.out && dtype == TSR_BF16 && d % TSR_VECTOR == 0 && (uintptr_t)rows.out % 8 == 0 &&
           (uintptr_t)rows.column_factor % 16 == 0;
}

/* The second pass, where the first has not written them. */
static inline tsr_status tsr_fp8_rows_cuda(tsr_stream *stream, tsr_fp8_rows rows, const void *x,
                                           int64_t tokens, int64_t d, tsr_dtype dtype)
{
    tsr_fp8_quantize_args args = tsr_fp8_rows_pass(rows, x, tokens, d, dtype);
    return rows.out ? tsr_fp8_quantize_cuda(stream, &args) : TSR_OK;
}

#endif
