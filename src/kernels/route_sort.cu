/*
 * route_sort.cu: contract route_sort.h; reference route_sort_ref.c, the same integers.
 *
 * Split    At most TSR_ROUTE_PARTS parts of consecutive slots, a block each. Launch one counts each
 *          part's slots by expert. In launch two every block adds the counts of all parts, which gives
 *          offsets and where its own part begins within each expert, and then places its slots: warp by
 *          warp, 32 at a time, in their order. All sums are of integers, so their order does not matter.
 * Cost     as in route_sort.h; the counts, 4 parts E bytes, once for each part, from L2.
 *
 * An id that is no expert's stops the kernel (and so the device), before anything is written by it.
 */
#include "kernels/cuda.cuh"
#include "kernels/route.h"

#define THREADS 256
#define ADDERS  1024 /* threads of launch two, which all add; the first eight warps place */
#define WARPS   (THREADS / TSR_WARP)
#define ALL     0xffffffffu
#define MOST    TSR_ROUTE_MOST_EXPERTS

typedef struct {
    tsr_routes r;
    int slots, each, experts; /* each: slots of a part, a multiple of THREADS */
    int64_t capacity;
} sorting;

static __device__ __forceinline__ int expert_of(const sorting *s, int slot)
{
    int e = s->r.id[slot];
    if (e < 0 || e >= s->experts)
        __trap();
    return e;
}

static __global__ void __launch_bounds__(THREADS) count_parts(const __grid_constant__ sorting s)
{
    tsr_kernel_begin();
    __shared__ int count[MOST];
    int first = (int)blockIdx.x * s.each, end = min(s.slots, first + s.each);
    for (int e = threadIdx.x; e < s.experts; e += THREADS)
        count[e] = 0;
    __syncthreads();
    for (int slot = first + (int)threadIdx.x; slot < end; slot += THREADS)
        atomicAdd(&count[expert_of(&s, slot)], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < s.experts; e += THREADS)
        s.r.parts[(int64_t)blockIdx.x * s.experts + e] = count[e];
}

/* Of all parts by expert: *before: those before this block's. */
static __device__ __forceinline__ void add_parts(int *before, int *total, const sorting *s)
{
    int mine = (int)blockIdx.x * s->experts, all = (int)gridDim.x * s->experts;
    for (int e = threadIdx.x; e < s->experts; e += ADDERS)
        before[e] = total[e] = 0;
    __syncthreads();
    int step = ADDERS % s->experts, e = (int)threadIdx.x % s->experts;
#pragma unroll 8
    for (int i = threadIdx.x; i < all; i += ADDERS) {
        int count = s->r.parts[i];
        atomicAdd(&total[e], count);
        if (i < mine)
            atomicAdd(&before[e], count);
        e += step;
        e -= e >= s->experts ? s->experts : 0;
    }
    __syncthreads();
}

/* The first warp: offset[e] from the counts that stay; offset[E] is their sum. */
static __device__ __forceinline__ void sum_offsets(int *offset, const int *total, const sorting *s)
{
    int lane = threadIdx.x % TSR_WARP, sum = 0;
    for (int first = 0; first <= s->experts; first += TSR_WARP) {
        int e = first + lane, count = e < s->experts ? total[e] : 0;
        if (s->capacity && count > s->capacity)
            count = (int)s->capacity;
        int upto = count;
        for (int step = 1; step < TSR_WARP; step *= 2) {
            int other = __shfl_up_sync(ALL, upto, step);
            upto += lane >= step ? other : 0;
        }
        if (e <= s->experts)
            offset[e] = sum + upto - count;
        sum += __shfl_sync(ALL, upto, TSR_WARP - 1);
    }
}

/* next[e] slots of the expert come before this warp's 32: the row of each, and `next` moves on. */
static __device__ __forceinline__ void place(const sorting *s, int *next, const int *offset,
                                             int slot, int end)
{
    int lane = threadIdx.x % TSR_WARP;
    int e = slot < end ? s->r.id[slot] : -1;
    unsigned same = __match_any_sync(ALL, e);
    int before = __popc(same & ((1u << lane) - 1)), rank = e < 0 ? 0 : next[e] + before;
    __syncwarp();
    if (e >= 0 && before == 0)
        next[e] += __popc(same);
    __syncwarp();
    if (e < 0)
        return;
    int row = offset[e] + rank;
    row = row < offset[e + 1] ? row : -1;
    s->r.row[slot] = row;
    if (row >= 0)
        s->r.slot[row] = slot;
}

static __global__ void __launch_bounds__(ADDERS) place_slots(const __grid_constant__ sorting s)
{
    tsr_kernel_begin();
    __shared__ int before[MOST], offset[MOST + 1], next[WARPS * MOST];
    int lane = threadIdx.x % TSR_WARP, warp = (int)threadIdx.x / TSR_WARP;
    int of_warp = s.each / WARPS, first = (int)blockIdx.x * s.each + warp * of_warp;
    int end = warp < WARPS ? min(s.slots, first + of_warp) : first; /* the others place none */
    add_parts(before, next, &s);
    if (warp == 0)
        sum_offsets(offset, next, &s);
    __syncthreads();

    /* How many slots of each expert a warp has, and then how many come before its own. */
    for (int i = threadIdx.x; i < WARPS * s.experts; i += ADDERS)
        next[i] = 0;
    __syncthreads();
    for (int slot = first + lane; slot < end; slot += TSR_WARP)
        atomicAdd(&next[warp * s.experts + s.r.id[slot]], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < s.experts; e += ADDERS) {
        int sum = before[e];
        for (int w = 0; w < WARPS; w++) {
            int count = next[w * s.experts + e];
            next[w * s.experts + e] = sum;
            sum += count;
        }
    }
    __syncthreads();

    for (int slot = first + lane; slot - lane < end; slot += TSR_WARP)
        place(&s, next + warp * s.experts, offset, slot, end);
    int kept = offset[s.experts], all = (int)gridDim.x * ADDERS;
    for (int row = kept + (int)(blockIdx.x * ADDERS + threadIdx.x); row < s.slots; row += all)
        s.r.slot[row] = -1;
    if (blockIdx.x == 0)
        for (int e = threadIdx.x; e <= s.experts; e += ADDERS)
            s.r.offset[e] = offset[e];
}

extern "C" tsr_status tsr_route_sort_cuda(tsr_stream *stream, const tsr_route_sort_args *args)
{
    TSR_TRY(tsr_route_sort_check(args));
    sorting s = {};
    s.r = args->routes;
    s.slots = (int)(args->tokens * args->k);
    s.experts = (int)args->experts;
    s.capacity = args->capacity;
    s.each = (int)tsr_blocks(tsr_blocks(s.slots, TSR_ROUTE_PARTS), THREADS) * THREADS;
    if (s.slots == 0) /* one part without slots: offsets are 0 */
        s.each = THREADS;
    unsigned parts = s.slots ? tsr_blocks(s.slots, s.each) : 1;
    TSR_LAUNCH(count_parts, parts, THREADS, stream, s);
    TSR_LAUNCH(place_slots, parts, ADDERS, stream, s);
    return tsr_launched("route_sort");
}
