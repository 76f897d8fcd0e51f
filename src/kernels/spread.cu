/*
 * spread.cu: contract spread.h; reference spread_ref.c, the same bits in fp32.
 *
 * Split    A block a row; vectors of 8 where rows are on 16 bytes.
 */
#include "kernels/cuda.cuh"

#define THREADS 256

static __global__ void __launch_bounds__(THREADS)
    spread_rows(const __grid_constant__ tsr_spread_args a, bool vectors)
{
    tsr_kernel_begin();
    int64_t slot = a.slot[blockIdx.x];
    if (slot < 0)
        return;
    float p = a.p[slot];
    int64_t out = (int64_t)blockIdx.x * a.h, in = slot / a.k * a.h;
    int64_t done = vectors ? a.h / TSR_VECTOR * TSR_VECTOR : 0;
    for (int64_t j = (int64_t)threadIdx.x * TSR_VECTOR; j < done; j += THREADS * TSR_VECTOR) {
        float value[TSR_VECTOR];
        tsr_load8(value, a.x, in + j, a.dtype);
#pragma unroll
        for (int i = 0; i < TSR_VECTOR; i++)
            value[i] *= p;
        tsr_store8(a.z, out + j, value, a.dtype);
    }
    for (int64_t j = done + threadIdx.x; j < a.h; j += THREADS)
        tsr_store(a.z, out + j, p * tsr_load(a.x, in + j, a.dtype), a.dtype);
}

extern "C" tsr_status tsr_spread_cuda(tsr_stream *stream, const tsr_spread_args *args)
{
    TSR_TRY(tsr_spread_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    bool vectors = tsr_vectors(args->h, args->z) && tsr_vectors(args->h, args->x);
    TSR_LAUNCH(spread_rows, (unsigned)(args->tokens * args->k), THREADS, stream, *args, vectors);
    return tsr_launched("spread");
}
