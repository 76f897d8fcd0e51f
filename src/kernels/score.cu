/*
 * score.cu: contract score.h; reference score_ref.c, with which it shares score_math.h. Only the order of the sums over a row
 * differs.
 *
 * score_rows     A block per row: its reward.
 * score_pairs    One thread: loss, slopes and words, in the order of the pairs.
 * score_columns  A thread per column: dw and dh, row after row, so that dh may be in the place of h.
 */
#include "kernels/cuda.cuh"

#include "kernels/score_math.h"

#define ROW_THREADS    256
#define COLUMN_THREADS 128

static __global__ void __launch_bounds__(ROW_THREADS)
    score_rows(const __grid_constant__ tsr_score_args a)
{
    tsr_kernel_begin();
    __shared__ double part[ROW_THREADS / TSR_WARP];
    int64_t base = (int64_t)blockIdx.x * a.d;
    double sum = 0;
    for (int64_t j = threadIdx.x; j < a.d; j += ROW_THREADS)
        sum += (double)tsr_load(a.h, base + j, a.dtype) * (double)tsr_load(a.w.data, j, a.w.dtype);
    sum = tsr_warp_sum_double(sum);
    if (threadIdx.x % TSR_WARP == 0)
        part[threadIdx.x / TSR_WARP] = sum;
    __syncthreads();
    if (threadIdx.x)
        return;
    sum = 0;
    for (int i = 0; i < ROW_THREADS / TSR_WARP; i++)
        sum += part[i];
    a.reward[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(1) score_pairs(const __grid_constant__ tsr_score_args a)
{
    tsr_kernel_begin();
    double word[TSR_SCORE_WORDS + 1];
    tsr_score_words(word, &a);
    tsr_score_add(&a, word);
}

static __global__ void __launch_bounds__(COLUMN_THREADS)
    score_columns(const __grid_constant__ tsr_score_args a)
{
    tsr_kernel_begin();
    int64_t j = (int64_t)blockIdx.x * COLUMN_THREADS + threadIdx.x;
    if (j >= a.d)
        return;
    float w = tsr_load(a.w.data, j, a.w.dtype);
    double sum = 0;
    for (int64_t i = 0; i < a.rows; i++) {
        double slope = a.slope[i];
        sum += slope * (double)tsr_load(a.h, i * a.d + j, a.dtype);
        tsr_store(a.dh, i * a.d + j, (float)slope * w, a.dtype);
    }
    a.dw[j] = (float)sum;
}

extern "C" tsr_status tsr_score_cuda(tsr_stream *stream, const tsr_score_args *args)
{
    TSR_TRY(tsr_score_check(args));
    if (args->rows) {
        TSR_LAUNCH(score_rows, (unsigned)args->rows, ROW_THREADS, stream, *args);
        TSR_LAUNCH(score_pairs, 1, 1, stream, *args);
    }
    if (args->dw)
        TSR_LAUNCH(score_columns, tsr_blocks(args->d, COLUMN_THREADS), COLUMN_THREADS, stream,
                   *args);
    return tsr_launched("score");
}
