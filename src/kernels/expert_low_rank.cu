/*
 * expert_low_rank.cu: contracts expert_low_rank.h and expert_low_rank_backward.h; references expert_low_rank_ref.c and
 * expert_low_rank_backward_ref.c. Which way is taken; and the kernels of any dtype and shape.
 *
 * Split    Of low a warp has a row; of db and da a thread has an element, and adds up the rows of its expert in order.
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

static __global__ void __launch_bounds__(THREADS)
    low_rows(const __grid_constant__ tsr_expert_low_rank_args a)
{
    tsr_kernel_begin();
    int row = (int)(blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP);
    if (row < a.rows.offset[0] || row >= a.rows.offset[a.rows.experts])
        return;
    int64_t from = a.in_order ? row : row_from(&a.rows, row);
    int64_t factor = expert_of(&a.rows, row) * a.r * a.width, step = a.by_column ? a.r : 1;
    float p = a.weighted ? a.p[a.rows.slot[row]] : 1;
    for (int64_t k = 0; k < a.r; k++) {
        int64_t first = factor + k * (a.by_column ? 1 : a.width), at = row * a.r + k;
        float sum = 0;
        for (int64_t j = threadIdx.x % TSR_WARP; j < a.width; j += TSR_WARP)
            sum = fmaf(tsr_load(a.x, from * a.width + j, a.dtype),
                       tsr_load(a.factor, first + step * j, a.dtype), sum);
        sum = a.scale * tsr_warp_sum(sum);
        if (threadIdx.x % TSR_WARP == 0 && a.low)
            tsr_store(a.low, at, sum, a.dtype);
        if (threadIdx.x % TSR_WARP == 0 && a.weighted)
            tsr_store(a.weighted, at, p * sum, a.dtype);
    }
}

static tsr_status low_plainly(tsr_stream *stream, const tsr_expert_low_rank_args *args)
{
    TSR_LAUNCH(low_rows, tsr_blocks(args->rows.most, THREADS / TSR_WARP), THREADS, stream, *args);
    return tsr_launched("expert_low_rank");
}

extern "C" tsr_status tsr_expert_low_rank_cuda(tsr_stream *stream,
                                               const tsr_expert_low_rank_args *args)
{
    TSR_TRY(tsr_expert_low_rank_check(args));
    if (args->rows.most == 0)
        return TSR_OK;
    bool in_vectors = args->dtype == TSR_BF16 && args->width % TSR_VECTOR == 0 &&
                      args->rows.experts <= TSR_EXPERTS_MOST && (uintptr_t)args->low % 4 == 0 &&
                      (uintptr_t)args->weighted % 4 == 0 &&
                      tsr_vectors(args->r, args->x, args->factor);
    return in_vectors ? tsr_expert_low_rank_mma(stream, args) : low_plainly(stream, args);
}

/* ---- backward ---- */

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
                       tsr_load(a.low, row * a.r + db_at % a.r, a.dtype), sum);
        else
            sum = fmaf(tsr_load(a.x, from * a.in + da_at % a.in, a.dtype),
                       tsr_load(a.d_low, row * a.r + da_at / a.in, a.dtype), sum);
    }
    if (da_at < 0)
        a.db[e * a.out * a.r + db_at] = sum;
    else
        a.da[e * a.r * a.in + da_at] = sum;
}

static tsr_status add_plainly(tsr_stream *stream, const tsr_expert_low_rank_backward_args *args)
{
    TSR_LAUNCH(add_rows, tsr_blocks(args->rows.experts * (args->out + args->in) * args->r, THREADS),
               THREADS, stream, *args);
    return tsr_launched("expert_low_rank_backward");
}

extern "C" tsr_status
tsr_expert_low_rank_backward_cuda(tsr_stream *stream, const tsr_expert_low_rank_backward_args *args)
{
    TSR_TRY(tsr_expert_low_rank_backward_check(args));
    bool in_vectors = args->dtype == TSR_BF16 && args->in % TSR_VECTOR == 0 &&
                      args->out % TSR_VECTOR == 0 && (uintptr_t)args->db % 8 == 0 &&
                      args->rows.experts <= TSR_EXPERTS_MOST &&
                      tsr_vectors(args->r, args->x, args->dz, args->low, args->d_low);
    return args->rows.most && in_vectors ? tsr_expert_low_rank_backward_mma(stream, args)
                                         : add_plainly(stream, args);
}
