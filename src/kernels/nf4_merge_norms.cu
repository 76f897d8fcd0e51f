/*
 * nf4_merge_norms.cu: the norms of nf4_merge from the sums of squares that its kernels leave.
 *
 * Split    A block has 32 rows; each of its 8 warps adds every eighth tile of them, BATCH under way, and
 *          the first adds the warps, all in fp64: 3.7 MB from L2 at most for a linear of an 8B model.
 */
#include "kernels/nf4_merge.cuh"

#define WARPS 8
#define BATCH 8

static __global__ void __launch_bounds__(WARPS *TSR_WARP)
    merge_norms(const tsr_nf4_merge_norms norms, int64_t rows, int tiles)
{
    tsr_kernel_begin();
    __shared__ double shared[WARPS][TSR_WARP];
    int warp = threadIdx.x / TSR_WARP, lane = threadIdx.x % TSR_WARP;
    int64_t row = (int64_t)blockIdx.x * TSR_WARP + lane;
    double total = 0;
    for (int first = warp; row < rows && first < tiles; first += WARPS * BATCH) {
        float value[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int tile = first + i * WARPS;
            value[i] = tile < tiles ? norms.partials[tile * rows + row] : 0;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            total += (double)value[i];
    }
    shared[warp][lane] = total;
    __syncthreads();
    if (warp || row >= rows)
        return;
    for (int i = 1; i < WARPS; i++)
        total += shared[i][lane];
    float n = __fsqrt_rn((float)total);
    norms.n[row] = n;
    norms.g[row] = norms.m ? __fdiv_rn(norms.m[row], n) : 1;
}

void tsr_nf4_merge_finish(tsr_stream *stream, const tsr_nf4_merge_args *args, int across)
{
    int64_t columns = args->weight.columns, rows = args->weight.count / columns;
    TSR_LAUNCH(merge_norms, tsr_blocks(rows, TSR_WARP), WARPS * TSR_WARP, stream, args->norms, rows,
               (int)tsr_blocks(columns, across));
}
