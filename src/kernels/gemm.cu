/*
 * gemm.cu: what gemm_cublaslt.c needs beside the library: C = beta C for k = 0, which cuBLASLt does
 * not take, and the random operands that candidates are timed on.
 *
 * One element a thread: neither runs inside a step.
 */
#include "kernels/cuda.cuh"
#include "kernels/fp8.h"

#define THREADS 256

static __global__ void scale_matrix(void *c, int64_t m, int64_t n, int64_t ldc, float beta,
                                    tsr_dtype dtype)
{
    tsr_kernel_begin();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= m * n)
        return;
    int64_t at = i / n * ldc + i % n;
    tsr_store(c, at, beta == 0 ? 0 : beta * tsr_load(c, at, dtype), dtype);
}

extern "C" tsr_status tsr_gemm_scale(tsr_stream *stream, const tsr_gemm_args *args)
{
    int64_t ldc = args->ldc ? args->ldc : args->n;
    TSR_LAUNCH(scale_matrix, tsr_blocks(args->m * args->n, THREADS), THREADS, stream, args->c,
               args->m, args->n, ldc, args->beta, args->c_dtype);
    return tsr_launched("gemm");
}

/* Uniform in [-1, 1), of e4m3 in all of its range, by seed and index (the finalizer of MurmurHash3). */
static __global__ void randomize(void *out, int64_t count, tsr_dtype dtype, uint32_t seed)
{
    tsr_kernel_begin();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    uint32_t bits = (uint32_t)i * 0x9e3779b9u + seed;
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    bits ^= bits >> 16;
    float value = (float)(int32_t)bits * 0x1p-31f;
    if (dtype == TSR_F8_E4M3)
        ((uint8_t *)out)[i] = tsr_f32_to_e4m3(value * TSR_E4M3_MAX);
    else
        tsr_store(out, i, value, dtype);
}

extern "C" tsr_status tsr_gemm_randomize(tsr_stream *stream, void *out, int64_t count,
                                         tsr_dtype dtype, uint32_t seed)
{
    if (count == 0)
        return TSR_OK;
    TSR_LAUNCH(randomize, tsr_blocks(count, THREADS), THREADS, stream, out, count, dtype, seed);
    return tsr_launched("gemm");
}
