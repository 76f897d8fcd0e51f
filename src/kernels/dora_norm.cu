/*
 * dora_norm.cu: contract dora_norm.h; reference dora_norm_ref.c, which adds a row's products in fp32:
 * here they are added in fp64 and rounded once; what follows is the reference's arithmetic.
 *
 * Split    8 lanes a row, neighbouring lanes on neighbouring columns; 4 rows of a warp lie one after
 *          the other. A row's bits depend on r only.
 * Cost     3 rows r elements read, 2 rows r multiply-adds: microseconds, once a micro-batch.
 */
#include "kernels/cuda.cuh"

#define THREADS 256
#define LANES   8 /* of a row */

/* The sum over the lanes of a row, in all of them. */
static __device__ __forceinline__ double lanes_sum(double value)
{
#pragma unroll
    for (int offset = LANES / 2; offset; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

static __global__ void __launch_bounds__(THREADS)
    dora_norms(const tsr_dora_norm_args a, float twice, float square)
{
    int lane = threadIdx.x % LANES;
    int64_t row = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    double cross = 0, ba = 0;
    for (int64_t k = lane; row < a.rows && k < a.r; k += LANES) {
        double b = (double)tsr_load(a.b, row * a.r + k, a.dtype);
        cross = fma(b, (double)a.u[row * a.r + k], cross);
        ba = fma(b, (double)a.bg[row * a.r + k], ba);
    }
    float rounded_cross = (float)lanes_sum(cross), rounded_ba = (float)lanes_sum(ba);
    if (row >= a.rows || lane != 0)
        return;
    float value = __fadd_rn(__fadd_rn(a.squares[row], __fmul_rn(twice, rounded_cross)),
                            __fmul_rn(square, rounded_ba));
    float n = __fsqrt_rn(value < 0 ? 0 : value); /* a NaN is not below 0 and stays */
    a.n[row] = n;
    a.g[row] = a.m ? __fdiv_rn(a.m[row], n) : 1;
}

extern "C" tsr_status tsr_dora_norm_cuda(tsr_stream *stream, const tsr_dora_norm_args *args)
{
    TSR_TRY(tsr_dora_norm_check(args));
    if (args->rows == 0)
        return TSR_OK;
    dora_norms<<<tsr_blocks(args->rows, THREADS / LANES), THREADS, 0, tsr_stream_cuda(stream)>>>(
        *args, (float)(2 * args->scale), (float)(args->scale * args->scale));
    return tsr_launched("dora_norm");
}
