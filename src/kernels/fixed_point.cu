/*
 * fixed_point.cu: gradients to fixed point and their sums. Contract fixed_point.h; reference
 * fixed_point_ref.c, the same integers.
 *
 * Split    A thread takes 2 elements at a time, a 16-byte access of int64, 4 turns, all loads first.
 *          fixed_sum: a block has a tile of one part; parts, and so tiles, begin on 64 elements.
 * Cost     fixed_sum 16 + 4 ranks bytes an element (16 + 8 ranks of wide gradients), fixed_accumulate
 *          20; 8 less where they store, 12 where sums are rounded. fixed_add 24 (16 where it stores: a copy).
 */
#include "kernels/cuda.cuh"

#define THREADS 256
#define TURNS   4
#define TILE    (THREADS * TURNS) /* pairs of a block */

/* ---- fixed_sum ---- */

/* What a launch passes by value: the parts, and the tile that each begins with. */
typedef struct {
    tsr_fixed_part part[TSR_FIXED_PARTS];
    unsigned tile[TSR_FIXED_PARTS];
} part_table;

/* The product is exact but for an underflow, which rounds to 0 as it should; the comparison is false
 * for a NaN. */
static __device__ __forceinline__ int64_t convert(float g, float scale, float limit, bool *refused)
{
    if (fabsf(g) <= limit)
        return __float2ll_rn(__fmul_rn(g, scale));
    *refused = true;
    return 0;
}

/* A wide one. */
static __device__ __forceinline__ int64_t convert(long long g, float, float, bool *refused)
{
    if (g != TSR_FIXED_LOST)
        return g;
    *refused = true;
    return 0;
}

/* The smallest mark stays; 0 is none. */
static __device__ void put_mark(int64_t *overflow, int64_t mark)
{
    unsigned long long *word = (unsigned long long *)overflow, put = (unsigned long long)mark;
    unsigned long long seen = *(volatile unsigned long long *)word;
    while (seen == 0 || seen > put) {
        unsigned long long before = atomicCAS(word, seen, put);
        if (before == seen)
            return;
        seen = before;
    }
}

/* Two elements from `g` on, of which `left` are real. */
static __device__ __forceinline__ float2 load_pair(const float *g, uint64_t left)
{
    if (left >= 2)
        return __ldcs((const float2 *)g);
    return make_float2(left ? *g : 0, 0);
}

static __device__ __forceinline__ longlong2 load_pair(const int64_t *g, uint64_t left)
{
    if (left >= 2)
        return __ldcs((const longlong2 *)g);
    return make_longlong2(left ? *g : 0, 0);
}

/* Of fixed_point.h's tsr_fixed_to_f32; the product is exact. */
static __device__ __forceinline__ float2 round_pair(longlong2 sum, float unit)
{
    return make_float2(__fmul_rn(__ll2float_rn(sum.x), unit),
                       __fmul_rn(__ll2float_rn(sum.y), unit));
}

template <typename ELEMENT, typename PAIR, bool ROUNDED>
static __global__ void __launch_bounds__(THREADS)
    sum_parts(const tsr_fixed_sum_args a, const __grid_constant__ part_table table, float scale)
{
    tsr_kernel_begin();
    int index = 0;
    while (index + 1 < a.part_count && blockIdx.x >= table.tile[index + 1])
        index++;
    const tsr_fixed_part &part = table.part[index];
    uint64_t base = ((uint64_t)(blockIdx.x - table.tile[index]) * TILE + threadIdx.x) * 2;
    longlong2 *out = (longlong2 *)(a.accumulator + part.offset);
    const ELEMENT *own = (const ELEMENT *)a.gradient + a.ranks * part.offset + a.rank * part.count;
    const ELEMENT *others = (const ELEMENT *)a.received + (a.ranks - 1) * part.offset;
    longlong2 sum[TURNS];
    bool refused = false;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t i = base + (uint64_t)(turn * THREADS * 2);
        sum[turn] = make_longlong2(0, 0);
        if (!ROUNDED && !a.store && i < part.count)
            sum[turn] = out[i / 2];
    }
    for (uint64_t k = 0; k < a.ranks; k++) {
        const ELEMENT *from = k ? others + (k - 1) * part.count : own;
        PAIR g[TURNS];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            uint64_t i = base + (uint64_t)(turn * THREADS * 2);
            g[turn] = load_pair(from + i, i < part.real ? part.real - i : 0);
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            sum[turn].x += convert(g[turn].x, scale, a.limit, &refused);
            sum[turn].y += convert(g[turn].y, scale, a.limit, &refused);
        }
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t i = base + (uint64_t)(turn * THREADS * 2);
        if (ROUNDED && i < part.count)
            ((float2 *)(a.rounded + part.offset))[i / 2] = round_pair(sum[turn], 1 / scale);
        else if (i < part.count)
            out[i / 2] = sum[turn];
    }
    if (refused)
        put_mark(a.overflow, part.mark);
}

/* Parts are whole granules, so only the caller's bases can be off. */
static tsr_status check_aligned(const tsr_fixed_sum_args *args)
{
    uintptr_t pair = args->wide ? sizeof(longlong2) : sizeof(float2);
    uintptr_t sums = (uintptr_t)(args->rounded ? (void *)args->rounded : args->accumulator);
    bool good = sums % 16 == 0 && (uintptr_t)args->gradient % pair == 0 &&
                (uintptr_t)args->received % pair == 0;
    for (int i = 0; i < args->part_count; i++)
        good = good && args->part[i].offset % TSR_GRANULE == 0 &&
               args->part[i].count % TSR_GRANULE == 0;
    return good ? TSR_OK
                : tsr_fail(TSR_EUNSUPPORTED,
                           "fixed_sum: sums that are not on 16 bytes, gradients not on two "
                           "elements, or parts of no whole granules on CUDA");
}

template <typename ELEMENT, typename PAIR>
static void launch_sums(tsr_stream *stream, unsigned tiles, const tsr_fixed_sum_args *args,
                        const part_table *table)
{
    float scale = (float)(1ull << args->shift);
    if (args->rounded)
        TSR_LAUNCH((sum_parts<ELEMENT, PAIR, true>), tiles, THREADS, stream, *args, *table, scale);
    else
        TSR_LAUNCH((sum_parts<ELEMENT, PAIR, false>), tiles, THREADS, stream, *args, *table, scale);
}

extern "C" tsr_status tsr_fixed_sum_cuda(tsr_stream *stream, const tsr_fixed_sum_args *args)
{
    part_table table = {};
    unsigned tiles = 0;
    TSR_TRY(tsr_fixed_sum_check(args));
    TSR_TRY(check_aligned(args));
    for (int i = 0; i < args->part_count; i++) {
        table.part[i] = args->part[i];
        table.tile[i] = tiles;
        tiles += tsr_blocks((int64_t)args->part[i].count, 2 * TILE);
    }
    if (tiles == 0)
        return TSR_OK;
    if (args->wide)
        launch_sums<int64_t, longlong2>(stream, tiles, args, &table);
    else
        launch_sums<float, float2>(stream, tiles, args, &table);
    return tsr_launched("fixed_sum");
}

/* ---- fixed_add, fixed_accumulate ---- */

static __device__ __forceinline__ int64_t plus(int64_t sum, float g, float scale, float limit)
{
    bool lost = sum == TSR_FIXED_LOST;
    int64_t more = convert(g, scale, limit, &lost);
    return lost ? TSR_FIXED_LOST : sum + more;
}

static __device__ __forceinline__ int64_t plus(int64_t sum, long long more, float, float)
{
    return sum + more;
}

/* `left` pairs from here on are real; with TURNS * THREADS of them all loads are asked for before any is
 * waited for, which the compiler does not do of loads that hang on a condition. */
template <bool STORE, typename PAIR>
static __device__ __forceinline__ void add_turns(longlong2 *accumulator, const PAIR *part,
                                                 uint64_t left, float scale, float limit)
{
    longlong2 sum[TURNS];
    PAIR more[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (turn * THREADS < left) {
            sum[turn] = STORE ? make_longlong2(0, 0) : accumulator[turn * THREADS];
            more[turn] = __ldcs(part + turn * THREADS);
        }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (turn * THREADS < left)
            accumulator[turn * THREADS] =
                make_longlong2(plus(sum[turn].x, more[turn].x, scale, limit),
                               plus(sum[turn].y, more[turn].y, scale, limit));
}

template <bool STORE, typename PAIR>
static __global__ void __launch_bounds__(THREADS)
    add_pairs(longlong2 *accumulator, const PAIR *part, uint64_t pairs, float scale, float limit)
{
    tsr_kernel_begin();
    uint64_t first = (uint64_t)blockIdx.x * TILE, at = first + threadIdx.x;
    if (pairs - first >= TILE)
        add_turns<STORE>(accumulator + at, part + at, TILE, scale, limit);
    else if (at < pairs)
        add_turns<STORE>(accumulator + at, part + at, pairs - at, scale, limit);
}

template <bool STORE, typename ELEMENT>
static __global__ void __launch_bounds__(THREADS)
    add_each(int64_t *accumulator, const ELEMENT *part, uint64_t first, uint64_t count, float scale,
             float limit)
{
    tsr_kernel_begin();
    uint64_t i = first + (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count)
        accumulator[i] = plus(STORE ? 0 : accumulator[i], part[i], scale, limit);
}

/* Pairs where both are aligned for them; what is left one by one. */
template <bool STORE, typename PAIR, typename ELEMENT>
static void add_all(tsr_stream *stream, int64_t *accumulator, const ELEMENT *part, uint64_t count,
                    float scale, float limit)
{
    bool aligned = (uintptr_t)accumulator % 16 == 0 && (uintptr_t)part % sizeof(PAIR) == 0;
    uint64_t pairs = aligned ? count / 2 : 0, left = count - 2 * pairs;
    if (pairs)
        TSR_LAUNCH((add_pairs<STORE, PAIR>), tsr_blocks((int64_t)pairs, TILE), THREADS, stream,
                   (longlong2 *)accumulator, (const PAIR *)part, pairs, scale, limit);
    if (left)
        TSR_LAUNCH((add_each<STORE, ELEMENT>), tsr_blocks((int64_t)left, THREADS), THREADS, stream,
                   accumulator, part, 2 * pairs, count, scale, limit);
}

extern "C" tsr_status tsr_fixed_add_cuda(tsr_stream *stream, const tsr_fixed_add_args *args)
{
    TSR_TRY(tsr_fixed_add_check(args));
    if (args->count == 0)
        return TSR_OK;
    if (args->store)
        return tsr_stream_copy(stream, args->accumulator, args->part,
                               args->count * sizeof *args->part);
    add_all<false, longlong2>(stream, args->accumulator, (const long long *)args->part, args->count,
                              0, 0);
    return tsr_launched("fixed_add");
}

extern "C" tsr_status tsr_fixed_accumulate_cuda(tsr_stream *stream,
                                                const tsr_fixed_accumulate_args *args)
{
    TSR_TRY(tsr_fixed_accumulate_check(args));
    float scale = (float)(1ull << args->shift);
    if (args->store)
        add_all<true, float2>(stream, args->sum, args->g, args->count, scale, args->limit);
    else
        add_all<false, float2>(stream, args->sum, args->g, args->count, scale, args->limit);
    return tsr_launched("fixed_accumulate");
}
