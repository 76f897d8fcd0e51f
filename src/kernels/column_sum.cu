/*
 * column_sum.cu: the second step of column_sum.cuh: rows of partials become sums.
 */
#include "kernels/column_sum.cuh"

#define WARPS 8 /* each adds every eighth row, then the first adds them */

static __global__ void __launch_bounds__(WARPS *TSR_WARP) finish_columns(const tsr_column_sums s)
{
    tsr_kernel_begin();
    __shared__ double shared[WARPS][TSR_WARP];
    int warp = threadIdx.x / TSR_WARP, lane = threadIdx.x % TSR_WARP;
    int64_t column = (int64_t)blockIdx.x * TSR_WARP + lane;
    tsr_sum_part part = s.part[0];
#pragma unroll
    for (int p = 1; p < TSR_SUM_PARTS; p++)
        if (column >= s.part[p].first && s.part[p].width)
            part = s.part[p];
    bool mine = part.dm && column < part.first + part.width;
    int64_t j = column - part.first;
    float n = mine && warp == 0 ? part.n[j] : 1;
    float value[TSR_CUDA_PARTIAL_ROWS / WARPS];
    double total = 0;
#pragma unroll
    for (int i = 0; i < TSR_CUDA_PARTIAL_ROWS / WARPS; i++) {
        int64_t row = warp + i * WARPS;
        value[i] = mine && row < s.rows ? s.partials[row * s.columns + column] : 0;
    }
#pragma unroll
    for (int i = 0; i < TSR_CUDA_PARTIAL_ROWS / WARPS; i++)
        total += (double)value[i];
    shared[warp][lane] = total;
    __syncthreads();
    if (warp != 0 || !mine)
        return;
    for (int w = 1; w < WARPS; w++)
        total += shared[w][lane];
    part.dm[j] = __fdiv_rn((float)total, n);
}

tsr_status tsr_column_sums_finish(tsr_column_sums *sums, const float *partials, int64_t rows,
                                  tsr_stream *stream)
{
    if (!tsr_column_sums_wanted(sums))
        return TSR_OK;
    sums->partials = partials;
    sums->rows = rows;
    TSR_LAUNCH(finish_columns, tsr_blocks(sums->columns, TSR_WARP), WARPS * TSR_WARP, stream,
               *sums);
    return tsr_launched("column sums");
}
