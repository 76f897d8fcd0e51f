/*
 * kernels/attention_wgmma.cuh: what the files of attention_wgmma.h share: the backward's workspace, and how sums of dq lie in
 * it; and what groups of four warps that multiply do in both directions.
 */
#ifndef TSR_KERNELS_ATTENTION_WGMMA_CUH
#define TSR_KERNELS_ATTENTION_WGMMA_CUH

#include "kernels/attention_own.cuh"
#include "kernels/attention_wgmma.h"
#include "kernels/wgmma.cuh"

#define TSR_WGMMA_QUERIES 64 /* of a tile */
#define TSR_WGMMA_TILE    (TSR_WGMMA_QUERIES * TSR_WGMMA_DIM)

/*
 * A tile of sums is [half of the columns][16 queries][8 columns][lane][4]: as the fragments of a product have it, lane 4 g + t
 * has columns 2t and 2t + 1 of query g, then of query g + 8.
 */
typedef struct {
    attention_call call;
    int padded;             /* tokens, up to whole blocks of keys */
    int first_kv, kv_count; /* key heads of this launch */
    bool by_token;          /* lse is [tokens, Hq] */
    float *lse, *delta,
        *row_unit;  /* [Hq, padded]; lse in base 2, of no document inf; row_unit: of dq's sums */
    unsigned *most; /* [Hkv, dim + 1], as attention_bound_keys leaves it */
    int *order;     /* [padded / TSR_WGMMA_KEYS]: blocks of keys, most tiles first; NULL: in turn */
    int32_t *sum;   /* [heads of a launch, padded / 64, tile] */
} attention_wgmma_work;

/* Of a key head. */
static __device__ __forceinline__ const unsigned *
attention_wgmma_most(const attention_wgmma_work *w, int kv_head)
{
    return w->most + kv_head * (w->call.dim + 1);
}

#define TSR_WGMMA_SMALLEST (-60) /* exponent of a bound: units stay far from infinity */

/* 2^top over the power of two above a bound; NaN, so that dq is, where the bound is not finite or next to it. */
static __device__ __forceinline__ float attention_wgmma_unit(float bound, int top)
{
    int exponent = (int)(__float_as_uint(bound) >> 23 & 0xff) - 126;
    if (exponent > 126)
        return NAN;
    return __uint_as_float((uint32_t)(top - max(exponent, TSR_WGMMA_SMALLEST) + 127) << 23);
}

/* 1 for columns that heads do not have. */
static __device__ __forceinline__ float attention_wgmma_column_unit(const attention_wgmma_work *w,
                                                                    int kv_head, int column)
{
    if (column >= w->call.dim)
        return 1;
    return attention_wgmma_unit(__uint_as_float(attention_wgmma_most(w, kv_head)[column]), 0);
}

/* A block of keys, and the queries [start, last) that see one of them, in so many tiles. */
typedef struct {
    int first, end, start, last, tiles; /* keys [first, end) */
} attention_wgmma_keys;

static __device__ __forceinline__ attention_wgmma_keys
attention_wgmma_keys_at(const attention_call *c, int first)
{
    attention_wgmma_keys keys = {first, min(first + TSR_WGMMA_KEYS, used_tokens(c))};
    keys.last = first < keys.end ? end_query(c, keys.end - 1) : first;
    keys.start = needed_query(c, first, first, keys.last);
    for (int query = keys.start, end; query < keys.last;
         query = needed_query(c, first, end, keys.last)) {
        end = is_own(c, first) ? keys.last : span_end(c, query, keys.last);
        keys.tiles += (end - query + TSR_WGMMA_QUERIES - 1) / TSR_WGMMA_QUERIES;
    }
    return keys;
}

/* ---- the groups that multiply: the first of a block ---- */

#define TSR_WGMMA_GROUPS 2

static __device__ __forceinline__ void attention_both_groups(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"(TSR_WGMMA_GROUPS * TSR_WARPGROUP) : "memory");
}

/* Rows from `valid` on become 0, of a matrix of `rows` in STRIPS of 64 columns that has come. All threads of both groups. */
template <int STRIPS>
static __device__ __forceinline__ void attention_clear_rows(uint32_t matrix, uint32_t strip,
                                                            int valid, int rows)
{
    if (valid >= rows)
        return;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < (rows - valid) * 8; i += TSR_WGMMA_GROUPS * TSR_WARPGROUP)
        for (int s = 0; s < STRIPS; s++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(matrix + s * strip +
                                                                          valid * 128 + i * 16),
                         "r"(0)
                         : "memory");
    tsr_bulk_written();
    attention_both_groups();
}

/* A warp has read what may be overwritten then. */
static __device__ __forceinline__ void attention_release(uint32_t barrier)
{
    __syncwarp();
    if (threadIdx.x % TSR_WARP == 0)
        tsr_barrier_arrive(barrier);
}

/* attention_wgmma_ends.cu: once a call, the order; and before and after each launch. */
tsr_status attention_wgmma_order(tsr_stream *stream, const attention_wgmma_work *w);
tsr_status attention_wgmma_begin(tsr_stream *stream, const attention_wgmma_work *w,
                                 const tsr_attention_backward_args *args);
tsr_status attention_wgmma_end(tsr_stream *stream, const attention_wgmma_work *w, void *dq);

#endif
