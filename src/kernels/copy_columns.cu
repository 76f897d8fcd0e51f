/*
 * copy_columns.cu: contract copy_columns.h; reference copy_columns_ref.c, the same bits in fp32.
 *
 * Split    As many threads a row as have something to do, at most a block; vectors of 8 where both rows are on 16 bytes.
 */
#include "kernels/cuda.cuh"

#define THREADS     256
#define LEAST_LANES 4 /* of a row */

/* scale (g in + bias) of column j. */
static __device__ __forceinline__ float settled(const tsr_copy_columns_args *a, int64_t j,
                                                float value)
{
    if (a->g)
        value *= a->g[j];
    if (a->bias.data)
        value += tsr_load(a->bias.data, j, a->bias.dtype);
    return a->scale * value;
}

static __global__ void __launch_bounds__(THREADS)
    copy_rows(const __grid_constant__ tsr_copy_columns_args a, int lanes, bool vectors)
{
    tsr_kernel_begin();
    int64_t row = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    int64_t out = row * a.out_stride, in = row * a.in_stride;
    int64_t done = vectors ? a.columns / TSR_VECTOR * TSR_VECTOR : 0;
    int lane = threadIdx.x % lanes;
    if (row >= a.rows)
        return;
    for (int64_t j = (int64_t)lane * TSR_VECTOR; j < done; j += lanes * TSR_VECTOR) {
        float value[TSR_VECTOR];
        tsr_load8(value, a.in, in + j, a.in_dtype);
#pragma unroll
        for (int k = 0; k < TSR_VECTOR; k++)
            value[k] = settled(&a, j + k, value[k]);
        tsr_store8(a.out, out + j, value, a.dtype);
    }
    for (int64_t j = done + lane; j < a.columns; j += lanes)
        tsr_store(a.out, out + j, settled(&a, j, tsr_load(a.in, in + j, a.in_dtype)), a.dtype);
}

extern "C" tsr_status tsr_copy_columns_cuda(tsr_stream *stream, const tsr_copy_columns_args *args)
{
    TSR_TRY(tsr_copy_columns_check(args));
    if (args->rows == 0 || args->columns == 0)
        return TSR_OK;
    bool vectors =
        tsr_vectors(args->out_stride, args->out) && tsr_vectors(args->in_stride, args->in);
    int lanes = LEAST_LANES;
    while (lanes < THREADS && lanes * (vectors ? TSR_VECTOR : 1) < args->columns)
        lanes *= 2;
    TSR_LAUNCH(copy_rows, tsr_blocks(args->rows, THREADS / lanes), THREADS, stream, *args, lanes,
               vectors);
    return tsr_launched("copy_columns");
}
