/*
 * kernels/attention.h: causal attention inside packed documents, forward and backward, by tiles
 * that never hold a whole row of scores (Dao et al. 2022; lse as in FlashAttention-2).
 *
 * Document i is the tokens [cu_seqlens[i], cu_seqlens[i + 1]); it may be empty. Token i of a
 * document sees tokens j <= i of it, with a window only those with i - j < window (Hugging Face's
 * sliding_window). Query head h reads key head h / (Hq / Hkv). Tokens from cu_seqlens[documents]
 * up to `tokens` are padding: o, lse and all gradients are 0 there.
 *
 * lse is the natural logarithm of the sum of exp of the scaled scores. dk and dv are summed over
 * the query heads of a group in the order of heads. Heads of v, and so of o, may have another size Dv than
 * those of q and k (latent attention).
 *
 * A sink is one more score of every query of its head, neither scaled nor capped nor hidden, whose
 * value is 0: a query's weights then sum to less than 1 (gpt-oss; Xiao et al. 2023). lse contains it,
 * which is all that the backward needs of it. Sinks are frozen.
 *
 * A micro-batch may be shared by several ranks (spans.h). Where each takes heads of its own (tsr_attention_sharing), kernels
 * see nothing of that. Else each gives all rows of q, k, v, d_o, lse and of o or delta, in
 * the usual layout, and gets results for its own rows alone: o and lse of its queries, dq of its queries, dk and dv of its
 * keys, with the bits of the call that is not shared. Other rows of the results may be written or not. cuDNN's backward and
 * its tiles (attention_cudnn.h) compute all rows on each rank. All other backwards take delta = <d_o, o> instead of o, which
 * each rank makes of its own rows (attention_delta) and sends: 4 bytes a token and head. What is sent, and how many heads go
 * at once, follows from the bounds alone, on every card.
 *
 * Cost     forward 2 (D + Dv) FLOPs for each visible pair and query head, backward 6 D + 4 Dv; q, k, v, o once.
 */
#ifndef TSR_KERNELS_ATTENTION_H
#define TSR_KERNELS_ATTENTION_H

#include "kernels/spans.h"
#include "kernels/types.h"

/* Adds an int32 array up over the ranks that share a micro-batch, in place: exactly, and so in any order. It comes after what
 * `stream` has. With `rest`, *rest is where the call goes on: `stream`, or another one, so that `stream` is free for other
 * calls; dq is then complete there, and the workspace in use until then. Without, `stream` waits. */
typedef struct {
    tsr_status (*add)(void *user, tsr_stream *stream, int32_t *values, uint64_t count,
                      tsr_stream **rest);
    void *user;
} tsr_attention_sum;

/* What both directions are told. */
typedef struct {
    const int32_t *cu_seqlens; /* [documents + 1], from 0, not decreasing, the last <= tokens */
    void *workspace;           /* as the table's attention_workspace_bytes says */
    uint64_t workspace_bytes;
    int64_t tokens;
    int32_t documents, q_heads, kv_heads, head_dim;
    /* Key heads of the layer, of which the call has a group with their query heads; 0: the call has all. By it kernels are
     * chosen, so that a group has the bits that it has among all. */
    int32_t all_kv_heads;
    int32_t v_dim;    /* Dv; 0: head_dim */
    int32_t window;   /* 0: none */
    float scale;      /* of the scores; 0: 1 / sqrt(D) */
    tsr_frozen sinks; /* [Hq], optional; told both directions alike */
    float
        softcap; /* c: scaled scores become c tanh(score / c) before the mask (Gemma 2); 0: they stay */
    tsr_spans spans; /* zero: not shared; the same on all ranks but for `rank` */
    /* Of a shared backward, optional; all ranks have it or none. With it GPUs compute dq from own keys and add it up over the
     * ranks, without it from all keys: the same bits, and up to 7/5 of the products. */
    tsr_attention_sum sum;
    tsr_dtype dtype;
} tsr_attention_shape;

typedef struct {
    const void *q; /* [tokens, Hq, D] */
    const void *k; /* [tokens, Hkv, D] */
    const void *v; /* [tokens, Hkv, Dv] */
    void *o;       /* [tokens, Hq, Dv] */
    float *lse;    /* [Hq, tokens] */
    tsr_attention_shape shape;
} tsr_attention_args;

typedef struct {
    const void *q, *k, *v, *o, *d_o; /* o: NULL with delta */
    const float *lse;
    const float *delta; /* [tokens, Hq], as attention_delta gives it; NULL: it is made of o */
    void *dq, *dk, *dv; /* written; none may alias an input */
    tsr_attention_shape shape;
} tsr_attention_backward_args;

/* out[t, h] = <d_o, o>, with the bits that a backward without delta makes of them. */
typedef struct {
    float *out;          /* [tokens, Hq] */
    const void *o, *d_o; /* [tokens, Hq, Dv] */
    int64_t tokens;
    int32_t q_heads, v_dim;
    tsr_dtype dtype;
} tsr_attention_delta_args;

/* The largest micro-batch of a run. */
typedef struct {
    int64_t tokens, documents, longest; /* longest: tokens of one document */
    int64_t own_tokens;                 /* of them this rank's; 0: all */
    int32_t q_heads, kv_heads, head_dim;
    int32_t all_kv_heads; /* as in a shape */
    int32_t v_dim;        /* 0: head_dim */
    float softcap;
    tsr_spans spans; /* of the micro-batches that are shared; zero: none is */
    tsr_dtype dtype;
    bool train;
    /* dq may be added up by atomics, where a kernel is faster for it: its bits differ from run to run. */
    bool atomics;
    /* How often what one launch of the backward may keep in its workspace is doubled: fewer launches of the
     * same kernel, and the same bits, but for documents that fit in no other way (attention_cudnn.h). */
    int wider;
} tsr_attention_bounds;

/* How the ranks that share a micro-batch go about it, by its bounds alone. */
typedef struct {
    int32_t kv_heads; /* in one call, with their query heads: a divisor of all, or of each rank's */
    bool needs_o;     /* the backward takes no delta */
    /* Each rank computes all rows of its own heads, as many key heads on every rank, and calls are not shared; else own rows of
     * all heads. Not where o is needed. */
    bool by_heads;
} tsr_attention_sharing;

static inline int64_t tsr_attention_own_tokens(const tsr_attention_bounds *bounds)
{
    return bounds->own_tokens ? bounds->own_tokens : bounds->tokens;
}

/* Calls that each rank makes, one after the other. */
static inline int32_t tsr_attention_calls(const tsr_attention_bounds *bounds,
                                          const tsr_attention_sharing *sharing)
{
    return bounds->kv_heads / sharing->kv_heads / (sharing->by_heads ? bounds->spans.ranks : 1);
}

/* Those of a group of key heads, and of all that a group is of. */
static inline tsr_attention_bounds tsr_attention_group(tsr_attention_bounds bounds,
                                                       int32_t kv_heads)
{
    if (kv_heads < bounds.kv_heads)
        bounds.all_kv_heads = bounds.kv_heads;
    bounds.q_heads = bounds.q_heads / bounds.kv_heads * kv_heads;
    bounds.kv_heads = kv_heads;
    return bounds;
}

/* Of a call of ranks that share micro-batches. */
static inline tsr_attention_bounds tsr_attention_call(const tsr_attention_bounds *bounds,
                                                      const tsr_attention_sharing *sharing)
{
    tsr_attention_bounds call = tsr_attention_group(*bounds, sharing->kv_heads);
    if (sharing->by_heads) {
        call.spans = (tsr_spans){0, 0, 0};
        call.own_tokens = 0;
    }
    return call;
}

static inline tsr_attention_bounds tsr_attention_all_heads(tsr_attention_bounds bounds)
{
    int32_t all = bounds.all_kv_heads ? bounds.all_kv_heads : bounds.kv_heads;
    bounds.all_kv_heads = 0;
    bounds.q_heads = bounds.q_heads / bounds.kv_heads * all;
    bounds.kv_heads = all;
    return bounds;
}

/* Whether micro-batches of the run are shared: those of one span are not. */
static inline bool tsr_attention_is_shared(const tsr_attention_bounds *bounds)
{
    return tsr_spans_shared(&bounds->spans) && bounds->tokens > bounds->spans.rows;
}

/* Columns of a head of v and o. */
static inline int32_t tsr_attention_v_dim(int32_t v_dim, int32_t head_dim)
{
    return v_dim ? v_dim : head_dim;
}

/* What scores are multiplied by. */
float tsr_attention_scale(const tsr_attention_shape *shape);

/* What the CPU needs, for both directions. */
uint64_t tsr_attention_workspace_bytes(const tsr_attention_bounds *bounds);
tsr_attention_sharing tsr_attention_sharing_of(const tsr_attention_bounds *bounds);

tsr_status tsr_attention_check(const tsr_attention_args *args);
tsr_status tsr_attention_ref(const tsr_attention_args *args, tsr_pool *pool);
tsr_status tsr_attention_backward_check(const tsr_attention_backward_args *args);
tsr_status tsr_attention_backward_ref(const tsr_attention_backward_args *args, tsr_pool *pool);
tsr_status tsr_attention_delta_check(const tsr_attention_delta_args *args);
tsr_status tsr_attention_delta_ref(const tsr_attention_delta_args *args, tsr_pool *pool);

#endif
