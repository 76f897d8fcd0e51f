/*
 * combine.cu: contract combine.h; reference combine_ref.c.
 *
 * Split    combine: a thread has 8 columns of a token and asks for them of up to 8 experts' rows before it
 *          adds the first. combine_backward: a warp has a slot.
 * Sums     combine in the order of j; dp by lanes, then over the warp, as the width alone says.
 * Cost     as in combine.h. Rows of a token lie apart, each in one piece.
 */
#include "kernels/vectors.cuh"

#define THREADS 256
#define WARPS   (THREADS / TSR_WARP)
#define BLOCKS  3 /* on a multiprocessor */
#define AHEAD   8 /* experts' rows under way */

/* Elements of a row from vector `unit` on, at most eight, at least none. */
static __device__ __forceinline__ int left_of(int64_t width, int64_t unit)
{
    return (int)max((int64_t)0, min((int64_t)TSR_VECTOR, width - unit * TSR_VECTOR));
}

static __device__ __forceinline__ tsr_raw8 no_vector(void)
{
    tsr_raw8 raw;
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        raw.word[i] = 0;
    return raw;
}

/* ---- the sum over a token's experts ---- */

static __device__ __forceinline__ void combine_body(const tsr_combine_args *a, const int64_t *units,
                                                    tsr_dtype dtype, bool whole)
{
    int64_t t = blockIdx.x, unit = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (unit >= *units)
        return;
    int count = left_of(a->h, unit);
    int64_t column = unit * TSR_VECTOR;
    float sum[TSR_VECTOR] = {}, value[TSR_VECTOR];
    tsr_raw8 old =
        a->add ? tsr_raw_load(a->y, t * a->h + column, count, dtype, whole) : no_vector();
    for (int64_t first = 0; first < a->k; first += AHEAD) {
        tsr_raw8 z[AHEAD];
        float p[AHEAD];
        int row[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            bool there = first + j < a->k;
            row[j] = there ? a->row[t * a->k + first + j] : -1;
            p[j] = there && a->p ? a->p[t * a->k + first + j] : 1;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            z[j] = row[j] < 0 ? no_vector()
                              : tsr_raw_load(a->z, row[j] * a->h + column, count, dtype, whole);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (row[j] < 0) /* p may be anything */
                continue;
            tsr_raw_widen(value, z[j], dtype);
#pragma unroll
            for (int i = 0; i < TSR_VECTOR; i++)
                sum[i] = fmaf(p[j], value[i], sum[i]);
        }
    }
    if (a->add) {
        tsr_raw_widen(value, old, dtype);
#pragma unroll
        for (int i = 0; i < TSR_VECTOR; i++)
            sum[i] = value[i] + sum[i];
    }
    tsr_raw_store(a->y, t * a->h + column, count, sum, dtype, whole);
}

TSR_KERNELS_OF(combine, combine_body, tsr_combine_args, int64_t, THREADS, BLOCKS)

extern "C" tsr_status tsr_combine_cuda(tsr_stream *stream, const tsr_combine_args *args)
{
    TSR_TRY(tsr_combine_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    bool whole = tsr_vectors(args->h, args->y, args->z);
    int64_t units = (args->h + TSR_VECTOR - 1) / TSR_VECTOR;
    unsigned across = tsr_blocks(units, THREADS); /* even blocks of whole warps */
    unsigned threads = tsr_blocks(tsr_blocks(units, across), TSR_WARP) * TSR_WARP;
    dim3 blocks((unsigned)args->tokens, across);
    TSR_LAUNCH_OF(combine, whole, args->dtype, blocks, threads, stream, *args, units);
    return tsr_launched("combine");
}

/* ---- its backward ---- */

/* A lane's part of <bias, dy>. */
static __device__ __forceinline__ float bias_product(const tsr_combine_backward_args *a,
                                                     int64_t slot, tsr_dtype dtype, bool whole)
{
    int64_t bias = a->id[slot] * a->h, dy = slot / a->k * a->h;
    int64_t units = (a->h + TSR_VECTOR - 1) / TSR_VECTOR;
    float sum = 0, x[TSR_VECTOR], y[TSR_VECTOR];
    for (int64_t unit = threadIdx.x % TSR_WARP; unit < units; unit += TSR_WARP) {
        int count = left_of(a->h, unit);
        tsr_frozen8(x, a->bias, bias + unit * TSR_VECTOR, count, 0, whole);
        tsr_raw_widen(y, tsr_raw_load(a->dy, dy + unit * TSR_VECTOR, count, dtype, whole), dtype);
#pragma unroll
        for (int j = 0; j < TSR_VECTOR; j++)
            sum = fmaf(x[j], y[j], sum);
    }
    return sum;
}

static __device__ __forceinline__ void
backward_body(const tsr_combine_backward_args *a, const int64_t *slots, tsr_dtype dtype, bool whole)
{
    int64_t slot = (int64_t)blockIdx.x * WARPS + threadIdx.x / TSR_WARP;
    if (slot >= *slots)
        return;
    float sum = a->row[slot] < 0 ? 0 : bias_product(a, slot, dtype, whole);
    sum = tsr_warp_sum(sum);
    if (threadIdx.x % TSR_WARP == 0)
        a->dp[slot] = sum;
}

TSR_KERNELS_OF(combine_backward, backward_body, tsr_combine_backward_args, int64_t, THREADS, BLOCKS)

extern "C" tsr_status tsr_combine_backward_cuda(tsr_stream *stream,
                                                const tsr_combine_backward_args *args)
{
    TSR_TRY(tsr_combine_backward_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    bool whole = tsr_vectors(args->h, args->bias.data, args->dy);
    int64_t slots = args->tokens * args->k;
    TSR_LAUNCH_OF(combine_backward, whole, args->dtype, tsr_blocks(slots, WARPS), THREADS, stream,
                  *args, slots);
    return tsr_launched("combine_backward");
}
