/*
 * fixed_point.cu: gradients to fixed point and their sums. Contract fixed_point.h; reference
 * fixed_point_ref.c, the same integers.
 *
 * Split    A thread takes 2 elements at a time, a 16-byte access of int64, 4 turns, all loads first.
 *          fixed_scatter: blockIdx.y is the rank whose part is written. Buffers that are not on 16
 *          bytes: the same kernel with one element at a time.
 * Cost     fixed_scatter 12 bytes an element, fixed_add 24 (16 where it stores: a copy).
 */
#include "kernels/cuda.cuh"

#define THREADS   256
#define TURNS     4
#define TILE      (THREADS * TURNS) /* pairs, or single elements, of a block */
#define MAX_RANKS 65535             /* of gridDim.y */

/* ---- fixed_scatter ---- */

/* The product is exact but for an underflow, which rounds to 0 as it should; the comparison is false
 * for a NaN. */
static __device__ __forceinline__ int64_t convert(float g, float scale, float limit, bool *refused)
{
    if (fabsf(g) <= limit)
        return __float2ll_rn(__fmul_rn(g, scale));
    *refused = true;
    return 0;
}

/* `part` elements of each rank. `width` is 2 (vectors) or 1. */
static __global__ void __launch_bounds__(THREADS)
    scatter(const tsr_fixed_scatter_args a, uint64_t part, float scale, int width)
{
    uint64_t rank = blockIdx.y, first = rank * part;
    uint64_t own = first < a.count ? min(part, a.count - first) : 0; /* the rest is padding */
    int64_t *out = a.buffer + rank * a.layout.rank_stride + a.offset;
    uint64_t base = ((uint64_t)blockIdx.x * TILE + threadIdx.x) * (uint64_t)width;
    float g[TURNS][2];
    bool refused = false;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t i = base + (uint64_t)(turn * THREADS * width);
        g[turn][0] = g[turn][1] = 0;
        if (width == 2 && i + 2 <= own) {
            float2 pair = __ldcs((const float2 *)(a.g + first + i));
            g[turn][0] = pair.x, g[turn][1] = pair.y;
        } else if (i < own) {
            g[turn][0] = a.g[first + i];
        }
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t i = base + (uint64_t)(turn * THREADS * width);
        int64_t low = convert(g[turn][0], scale, a.layout.limit, &refused);
        int64_t high = convert(g[turn][1], scale, a.layout.limit, &refused);
        if (i < part && width == 2)
            *(longlong2 *)(out + i) = make_longlong2(low, high);
        else if (i < part)
            out[i] = low;
    }
    int64_t mark = a.mark ? a.mark : 1;
    if (refused && (*a.overflow == 0 || *a.overflow > mark))
        *a.overflow = mark; /* whoever writes it writes the same */
}

extern "C" tsr_status tsr_fixed_scatter_cuda(tsr_stream *stream, const tsr_fixed_scatter_args *args)
{
    TSR_TRY(tsr_fixed_scatter_check(args));
    uint64_t ranks = args->layout.ranks, part = tsr_fixed_part_count(args->count, ranks);
    if (ranks > MAX_RANKS)
        return tsr_fail(TSR_EUNSUPPORTED, "fixed_scatter: %llu ranks; at most %d on CUDA",
                        (unsigned long long)ranks, MAX_RANKS);
    if (part == 0)
        return TSR_OK;
    bool pairs = (uintptr_t)(args->buffer + args->offset) % 16 == 0 &&
                 args->layout.rank_stride % 2 == 0 && (uintptr_t)args->g % 8 == 0;
    int width = pairs ? 2 : 1;
    dim3 grid(tsr_blocks((int64_t)part, (int64_t)TILE * width), (unsigned)ranks);
    float scale = (float)(1ull << args->layout.shift);
    scatter<<<grid, THREADS, 0, tsr_stream_cuda(stream)>>>(*args, part, scale, width);
    return tsr_launched("fixed_scatter");
}

/* ---- fixed_add ---- */

static __global__ void __launch_bounds__(THREADS)
    add_pairs(longlong2 *__restrict__ accumulator, const longlong2 *__restrict__ part,
              uint64_t pairs)
{
    uint64_t first = (uint64_t)blockIdx.x * TILE + threadIdx.x;
    longlong2 sum[TURNS], more[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (first + turn * THREADS < pairs) {
            sum[turn] = accumulator[first + turn * THREADS];
            more[turn] = __ldcs(part + first + turn * THREADS);
        }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (first + turn * THREADS < pairs)
            accumulator[first + turn * THREADS] =
                make_longlong2(sum[turn].x + more[turn].x, sum[turn].y + more[turn].y);
}

static __global__ void __launch_bounds__(THREADS)
    add_each(int64_t *__restrict__ accumulator, const int64_t *__restrict__ part, uint64_t first,
             uint64_t count)
{
    uint64_t i = first + (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count)
        accumulator[i] += part[i];
}

extern "C" tsr_status tsr_fixed_add_cuda(tsr_stream *stream, const tsr_fixed_add_args *args)
{
    TSR_TRY(tsr_fixed_add_check(args));
    if (args->count == 0)
        return TSR_OK;
    if (args->store)
        return tsr_stream_copy(stream, args->accumulator, args->part,
                               args->count * sizeof *args->part);
    bool aligned = (uintptr_t)args->accumulator % 16 == 0 && (uintptr_t)args->part % 16 == 0;
    uint64_t pairs = aligned ? args->count / 2 : 0, left = args->count - 2 * pairs;
    cudaStream_t s = tsr_stream_cuda(stream);
    if (pairs)
        add_pairs<<<tsr_blocks((int64_t)pairs, TILE), THREADS, 0, s>>>(
            (longlong2 *)args->accumulator, (const longlong2 *)args->part, pairs);
    if (left)
        add_each<<<tsr_blocks((int64_t)left, THREADS), THREADS, 0, s>>>(
            args->accumulator, args->part, 2 * pairs, args->count);
    return tsr_launched("fixed_add");
}
