/*
 * kernels/attention_own.cuh: what the own kernels of attention share: a call, and what a token sees.
 */
#ifndef TSR_KERNELS_ATTENTION_OWN_CUH
#define TSR_KERNELS_ATTENTION_OWN_CUH

#include "kernels/cuda.cuh" /* first: it says that the C headers are C */

#include "kernels/attention_cudnn.h"

#define LOG2_E 1.4426950408889634f

/* What both directions know of a call. */
typedef struct {
    const int32_t *cu_seqlens;
    int tokens, documents, q_heads, kv_heads, dim, v_dim, window; /* v_dim: of v and o */
    float scale, softcap;
    tsr_dtype dtype;
    bool vectors; /* every row begins on 16 bytes */
    tsr_frozen sinks;
    int all_kv_heads;      /* of which these are a group */
    int span, ranks, rank; /* spans.h; span 0: not shared */
    bool summed;           /* dq is added up over the ranks: from own keys alone */
    float share_factor;    /* of share_of_cap */
} attention_call;

/* attention_own.cu; `vectors` as above. */
attention_call attention_call_of(const tsr_attention_shape *shape, bool vectors);

/* Adds up sums of dq over the ranks, where the call asks for it. *rest: where this launch goes on; only after the call's
 * last one another stream than `stream`. */
tsr_status attention_add_up(tsr_stream **rest, tsr_stream *stream, const tsr_attention_shape *shape,
                            int32_t *sum, uint64_t count, bool last);

/* What both kernels of the backward read. */
typedef struct {
    const void *q, *k, *v, *d_o;
    const float *lse, *delta; /* [Hq, tokens] */
} attention_inputs;

/* attention_mma.cu, attention_mma_backward.cu: BF16 on tensor cores, head sizes a multiple of 8 up to 256; vectors. */
bool attention_mma_takes(const attention_call *c);
tsr_status attention_mma_forward(tsr_stream *stream, const attention_call *c,
                                 const tsr_attention_args *args, const tsr_attention_card *card);
bool attention_mma_takes_backward(const attention_call *c, const tsr_attention_card *card);
tsr_status attention_mma_backward(tsr_stream *stream, const attention_call *c,
                                  const tsr_attention_backward_args *args,
                                  const tsr_attention_card *card);

/* Of the backward; 0 where it takes no such bounds. */
uint64_t attention_mma_workspace_bytes(const tsr_attention_bounds *bounds);

/* attention_bounds.cu: into most[Hkv][dim + 1] the bits of the largest |k| of each column, then of the largest <v, v>; the
 * rest of the bytes is scratch. BF16, vectors, heads of at most 256. */
uint64_t attention_bounds_bytes(int kv_heads, int dim);
tsr_status attention_bound_keys(tsr_stream *stream, const attention_call *c, const void *k,
                                const void *v, unsigned *most);

/* The score of a head's sink; -inf without one. */
static __device__ __forceinline__ float sink_of(const attention_call *c, int head)
{
    return c->sinks.data ? tsr_load(c->sinks.data, head, c->sinks.dtype) : -INFINITY;
}

/* exp(sink - max) while the sink alone was seen. */
static __device__ __forceinline__ float sink_total(float sink)
{
    return sink == -INFINITY ? 0 : sink == sink ? 1 : sink;
}

/* ---- soft caps, on tensor cores ---- */

/* A score's share of its cap, tanh(score scale / cap), off by 3e-7 at most and by 1e-7 where it is near 0: of a cap of 50 that
 * is 5e-6 of a score, where tanh.approx would be off by 0.02. factor: 2 scale log2(e) / cap. */
static __device__ __forceinline__ float share_of_cap(float score, float factor)
{
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-fabsf(score * factor)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + power));
    return copysignf((1 - power) * inverse, score);
}

/* By what products, or shares of their cap, become scores. */
template <bool CAPPED> static __device__ __forceinline__ float scale_of(const attention_call *c)
{
    return CAPPED ? c->softcap : c->scale;
}

/* What a backward takes as the share of a score that is not seen: its weight is 0, and its square is finite. */
#define HIDDEN_SHARE (-1e18f)

/* The largest cap: of it a share is off by so much of a score, here by 3e-5 near 0. */
#define MOST_CAP 256

static inline bool attention_takes_cap(float softcap)
{
    return softcap >= 0 && softcap <= MOST_CAP;
}

/* ---- what a token sees ---- */

static __device__ __forceinline__ int used_tokens(const attention_call *c)
{
    return c->documents ? c->cu_seqlens[c->documents] : 0;
}

/* The document of a token that is in one; empty documents have none. */
static __device__ __forceinline__ int document_of(const attention_call *c, int token)
{
    int low = 0, high = c->documents;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (c->cu_seqlens[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The first key that a query sees, the last being itself. */
static __device__ __forceinline__ int first_key(const attention_call *c, int query)
{
    int start = c->cu_seqlens[document_of(c, query)];
    return c->window ? max(start, query - c->window + 1) : start;
}

/* The first query after those that see a key, the first being itself. */
static __device__ __forceinline__ int end_query(const attention_call *c, int key)
{
    int end = c->cu_seqlens[document_of(c, key) + 1];
    return c->window && key < end - c->window ? key + c->window : end;
}

/* ---- whose rows: blocks of rows lie in one span ---- */

static __device__ __forceinline__ bool is_own(const attention_call *c, int row)
{
    return !c->span || tsr_turn_owner(row / c->span % (2 * c->ranks), c->ranks) == c->rank;
}

/* Where the span of a row ends, at most at `last`. */
static __device__ __forceinline__ int span_end(const attention_call *c, int row, int last)
{
    int rest = c->span - row % c->span;
    return rest < last - row ? row + rest : last;
}

/* The first query from `query` on, not below `last` if there is none, that a block of keys needs. From `key` on they are own
 * and need all of them; or others', and need own ones, for their share of dq, or none. */
static __device__ __forceinline__ int needed_query(const attention_call *c, int key, int query,
                                                   int last)
{
    if (is_own(c, key))
        return query;
    if (c->summed)
        return last;
    while (query < last && !is_own(c, query))
        query = span_end(c, query, last);
    return query;
}

#endif
