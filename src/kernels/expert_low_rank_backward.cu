/*
 * expert_low_rank_backward.cu: contract expert_low_rank_backward.h; reference expert_low_rank_backward_ref.c.
 * Which way is taken; and the kernels of any dtype and shape.
 *
 * Split    First a warp has a row, and makes its low and d_low; then a thread has an element of db or da, and
 *          adds up the rows of its expert in order.
 */
#include "kernels/expert_low_rank.cuh"
#include "kernels/expert_tiles.cuh"

#define THREADS 256

/* The expert of a row that belongs to one. */
static __device__ __forceinline__ int64_t expert_of(const tsr_expert_rows *rows, int row)
{
    int64_t low = 0, high = rows->experts;
    while (high - low > 1) { /* the last that does not begin behind it */
        int64_t middle = (low + high) / 2;
        if (rows->offset[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static __device__ __forceinline__ int64_t row_from(const tsr_expert_rows *rows, int row)
{
    return rows->slot ? rows->slot[row] / (int32_t)rows->k : row;
}

/* Of a warp: sum_j left[j] right[step j]. */
static __device__ __forceinline__ float dot(const void *left, int64_t left_at, const void *right,
                                            int64_t right_at, int64_t step, int64_t count,
                                            tsr_dtype dtype)
{
    float sum = 0;
    for (int64_t j = threadIdx.x % TSR_WARP; j < count; j += TSR_WARP)
        sum = fmaf(tsr_load(left, left_at + j, dtype), tsr_load(right, right_at + step * j, dtype),
                   sum);
    return tsr_warp_sum(sum);
}

static __global__ void __launch_bounds__(THREADS)
    low_rows(const __grid_constant__ tsr_expert_low_rank_backward_args a)
{
    tsr_kernel_begin();
    int row = (int)(blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP);
    if (row < a.rows.offset[0] || row >= a.rows.offset[a.rows.experts])
        return;
    int64_t e = expert_of(&a.rows, row), from = row_from(&a.rows, row);
    int64_t x_row = a.spread ? row : from, dz_row = a.spread ? from : row;
    float p = a.p ? a.p[a.rows.slot[row]] : 1;
    for (int64_t k = 0; k < a.r; k++) {
        float low = dot(a.x, x_row * a.in, a.a, (e * a.r + k) * a.in, 1, a.in, a.dtype);
        float d_low = dot(a.dz, dz_row * a.out, a.b, e * a.out * a.r + k, a.r, a.out, a.dtype);
        if (threadIdx.x % TSR_WARP == 0) {
            tsr_store(tsr_expert_low(&a), row * a.r + k, p * low, a.dtype);
            tsr_store(tsr_expert_d_low(&a), row * a.r + k, a.scale * p * d_low, a.dtype);
        }
    }
}

static __global__ void __launch_bounds__(THREADS)
    add_rows(const __grid_constant__ tsr_expert_low_rank_backward_args a)
{
    tsr_kernel_begin();
    int64_t each = (a.out + a.in) * a.r, at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= a.rows.experts * each)
        return;
    int64_t e = at / each, db_at = at % each, da_at = db_at - a.out * a.r;
    float sum = 0;
    for (int row = a.rows.offset[e]; row < a.rows.offset[e + 1]; row++) {
        int64_t from = a.spread == (da_at < 0) ? row_from(&a.rows, row) : row;
        if (da_at < 0)
            sum = fmaf(tsr_load(a.dz, from * a.out + db_at / a.r, a.dtype),
                       tsr_load(tsr_expert_low(&a), row * a.r + db_at % a.r, a.dtype), sum);
        else
            sum = fmaf(tsr_load(a.x, from * a.in + da_at % a.in, a.dtype),
                       tsr_load(tsr_expert_d_low(&a), row * a.r + da_at / a.in, a.dtype), sum);
    }
    if (da_at < 0)
        a.db[e * a.out * a.r + db_at] = a.scale * sum;
    else
        a.da[e * a.r * a.in + da_at] = sum;
}

static tsr_status run_plainly(tsr_stream *stream, const tsr_expert_low_rank_backward_args *args)
{
    if (args->rows.most)
        TSR_LAUNCH(low_rows, tsr_blocks(args->rows.most, THREADS / TSR_WARP), THREADS, stream,
                   *args);
    TSR_LAUNCH(add_rows, tsr_blocks(args->rows.experts * (args->out + args->in) * args->r, THREADS),
               THREADS, stream, *args);
    return tsr_launched("expert_low_rank_backward");
}

static bool in_vectors(const tsr_expert_low_rank_backward_args *args)
{
    return args->dtype == TSR_BF16 && args->in % TSR_VECTOR == 0 && args->out % TSR_VECTOR == 0 &&
           args->rows.experts <= TSR_EXPERTS_MOST && (uintptr_t)args->db % 8 == 0 &&
           tsr_vectors(args->r, args->x, args->dz, args->a, args->b);
}

extern "C" tsr_status
tsr_expert_low_rank_backward_cuda(tsr_stream *stream, const tsr_expert_low_rank_backward_args *args)
{
    TSR_TRY(tsr_expert_low_rank_backward_check(args));
    if (args->rows.most && in_vectors(args))
        return tsr_expert_low_rank_mma(stream, args);
    return run_plainly(stream, args);
}
