/*
 * attention_ref.c: contract attention.h. Tiles of 128 queries by 64 keys, two matmuls each forward
 * and five backward (OpenBLAS, K = D), the scores on the stack (32 KiB a tile). On the diagonal the
 * queries that see no key of a tile are left out: half of them in every second tile.
 *
 * Forward: a task is one query tile of one head. Backward: a task is one document and one key head;
 * it walks the query heads of the group in order, so dk and dv need no second buffer.
 *
 * Shared   Tiles with an own row are computed whole, since their shape decides their bits; of other tiles what is asked of
 *          the pair of queries and keys: all five matmuls where both have own rows, all but that of dq where keys have, and
 *          where queries have three.
 */
#include "kernels/attention.h"

#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#include <math.h>

#define QUERIES 128
#define KEYS    64

#define MOST_GROUPS 4 /* of heads, where ranks share a micro-batch */

uint64_t tsr_attention_workspace_bytes(const tsr_attention_bounds *bounds)
{
    /* delta of the backward */
    return (uint64_t)bounds->tokens * (uint64_t)bounds->q_heads * sizeof(float);
}

/* A task of the backward is a key head of a document: some of them at a time, so that it has several. */
tsr_attention_sharing tsr_attention_sharing_of(const tsr_attention_bounds *bounds)
{
    int32_t ranks = tsr_spans_shared(&bounds->spans) ? bounds->spans.ranks : 1;
    bool by_heads = ranks > 1 && bounds->kv_heads % ranks == 0;
    int32_t all = by_heads ? bounds->kv_heads / ranks : bounds->kv_heads;
    int32_t heads = (all + MOST_GROUPS - 1) / MOST_GROUPS;
    while (all % heads)
        heads++;
    return (tsr_attention_sharing){.kv_heads = heads, .by_heads = by_heads};
}

float tsr_attention_scale(const tsr_attention_shape *shape)
{
    return shape->scale != 0 ? shape->scale : 1.0f / sqrtf((float)shape->head_dim);
}

typedef tsr_attention_shape shape;

static tsr_status check_shape(const char *op, const shape *s)
{
    TSR_TRY(tsr_expect_dtype(op, s->dtype));
    if (s->tokens < 0 || s->documents < 0 || s->q_heads < 1 || s->kv_heads < 1 ||
        s->q_heads % s->kv_heads || s->all_kv_heads % s->kv_heads || s->head_dim < 1 ||
        s->v_dim < 0 || s->window < 0)
        return tsr_fail(
            TSR_EINVAL,
            "%s: %lld tokens, %d documents, %d query and %d key heads of %d (values %d), "
            "window %d",
            op, (long long)s->tokens, s->documents, s->q_heads, s->kv_heads, s->head_dim, s->v_dim,
            s->window);
    TSR_EXPECT(s->documents == 0 || s->cu_seqlens, op, "cu_seqlens is NULL");
    TSR_EXPECT(tsr_frozen_valid(s->sinks), op, "the sinks are not F32 or BF16");
    return TSR_OK;
}

tsr_status tsr_attention_check(const tsr_attention_args *args)
{
    TSR_TRY(check_shape("attention", &args->shape));
    TSR_EXPECT(args->shape.tokens == 0 || (args->q && args->k && args->v && args->o && args->lse),
               "attention", "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_attention_backward_check(const tsr_attention_backward_args *args)
{
    TSR_TRY(check_shape("attention_backward", &args->shape));
    TSR_EXPECT(args->shape.tokens == 0 ||
                   (args->q && args->k && args->v && (args->o || args->delta) && args->d_o &&
                    args->lse && args->dq && args->dk && args->dv),
               "attention_backward", "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_attention_delta_check(const tsr_attention_delta_args *args)
{
    static const char op[] = "attention_delta";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->q_heads >= 1 && args->v_dim >= 1, op,
               "tokens, heads or their size are negative or 0");
    TSR_EXPECT(args->tokens == 0 || (args->out && args->o && args->d_o), op, "a pointer is NULL");
    return TSR_OK;
}

/* What only this backend needs, and that the documents lie one after the other inside the tokens. */
static tsr_status check_host(const char *op, const shape *s)
{
    uint64_t need = tsr_attention_workspace_bytes(
        &(tsr_attention_bounds){.tokens = s->tokens, .q_heads = s->q_heads});
    TSR_TRY(tsr_expect_f32(op, s->dtype));
    if (need && (!s->workspace || s->workspace_bytes < need))
        return tsr_fail(TSR_EINVAL, "%s: a workspace of %llu bytes, %llu are needed", op,
                        (unsigned long long)s->workspace_bytes, (unsigned long long)need);
    if (s->documents == 0)
        return TSR_OK;
    bool good = s->cu_seqlens[0] == 0 && s->cu_seqlens[s->documents] <= s->tokens;
    for (int32_t i = 0; i < s->documents; i++)
        good = good && s->cu_seqlens[i] <= s->cu_seqlens[i + 1];
    if (!good)
        return tsr_fail(TSR_EINTERNAL,
                        "%s: cu_seqlens does not rise from 0 to at most %lld in %d documents", op,
                        (long long)s->tokens, s->documents);
    return TSR_OK;
}

/* Columns of a head of v and o, and of their rows. */
TSR_INLINE int64_t v_dim(const shape *s)
{
    return tsr_attention_v_dim(s->v_dim, s->head_dim);
}

TSR_INLINE int64_t o_width(const shape *s)
{
    return s->q_heads * v_dim(s);
}

TSR_INLINE int64_t v_width(const shape *s)
{
    return s->kv_heads * v_dim(s);
}

/* Tokens that are in a document. */
static int64_t used_tokens(const shape *s)
{
    return s->documents ? s->cu_seqlens[s->documents] : 0;
}

/* The first key that a query of the document sees. */
TSR_INLINE int64_t first_key(const shape *s, int64_t query)
{
    return s->window && query >= s->window ? query - s->window + 1 : 0;
}

/* Masks a tile of scores: queries from `query`, keys from `key`, both counted in the document. */
TSR_INLINE void mask_tile(float *scores, const shape *s, int64_t query, int64_t queries,
                          int64_t key, int64_t keys, float value)
{
    for (int64_t i = 0; i < queries; i++) {
        int64_t first = tsr_min(keys, first_key(s, query + i) - key);
        int64_t last = query + i - key; /* the last visible */
        for (int64_t j = 0; j < first; j++)
            scores[i * KEYS + j] = value;
        for (int64_t j = last < 0 ? 0 : last + 1; j < keys; j++)
            scores[i * KEYS + j] = value;
    }
}

/* score -> c tanh(score / c) */
TSR_INLINE float capped(float score, float cap)
{
    return cap * (1.0f - 2.0f / (1.0f + tsr_expf(2.0f * score / cap)));
}

TSR_CLONES static void cap_tile(float *scores, int64_t queries, int64_t keys, float cap)
{
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++)
            scores[i * KEYS + j] = capped(scores[i * KEYS + j], cap);
}

/* ---- forward ---- */

/* Scores to weights of a tile; max, sum and the rows of o follow. Columns from `keys` on are
 * masked, so that rows have one length. */
TSR_CLONES static void softmax_tile(float *scores, const shape *s, int64_t query, int64_t queries,
                                    int64_t key, int64_t keys, float *max, float *sum, float *o)
{
    int64_t stride = o_width(s), dim = v_dim(s);
    mask_tile(scores, s, query, queries, key, keys, -INFINITY);
    for (int64_t i = 0; i < queries; i++) {
        float *row = scores + i * KEYS;
        for (int64_t j = keys; j < KEYS; j++)
            row[j] = -INFINITY;
        float most = tsr_row_max(row, KEYS), old = max[i];
        max[i] = most > old ? most : old;
        if (max[i] == -INFINITY) { /* no key of this tile is in the row's window, or all are NaN */
            for (int64_t j = 0; j < KEYS; j++)
                sum[i] += row[j] != row[j] ? row[j] : 0;
            memset(row, 0, KEYS * sizeof(float));
            continue;
        }
        if (max[i] > old) {
            float shrink = tsr_expf(old - max[i]);
            sum[i] *= shrink;
            for (int64_t j = 0; j < dim; j++)
                o[i * stride + j] *= shrink;
        }
        sum[i] += tsr_row_exp(row, KEYS, max[i]);
    }
}

TSR_CLONES static void finish_tile(float *o, float *lse, const shape *s, int64_t queries,
                                   const float *max, const float *sum)
{
    int64_t stride = o_width(s), dim = v_dim(s);
    for (int64_t i = 0; i < queries; i++) {
        float inverse = 1.0f / sum[i];
        for (int64_t j = 0; j < dim; j++)
            o[i * stride + j] *= inverse;
        lse[i] = (float)((double)max[i] + log((double)sum[i]));
    }
}

/* Queries [query, query + queries) of the document that starts at token `start`. */
static void forward_tile(const tsr_attention_args *args, int64_t start, int64_t query,
                         int64_t queries, int32_t head)
{
    const shape *s = &args->shape;
    int64_t dim = s->head_dim, q_stride = s->q_heads * dim, k_stride = s->kv_heads * dim;
    int64_t wide = v_dim(s), o_stride = o_width(s), v_stride = v_width(s);
    int64_t kv_head = head / (s->q_heads / s->kv_heads);
    const float *q = (const float *)args->q + (start + query) * q_stride + head * dim;
    const float *k = (const float *)args->k + start * k_stride + kv_head * dim;
    const float *v = (const float *)args->v + start * v_stride + kv_head * wide;
    float *o = (float *)args->o + (start + query) * o_stride + head * wide;
    _Alignas(64) float scores[QUERIES * KEYS];
    float max[QUERIES], sum[QUERIES], buffer;
    float sink = *tsr_frozen_load(&buffer, s->sinks, head, 1, -INFINITY);
    for (int64_t i = 0; i < queries; i++) {
        max[i] = sink;
        sum[i] = sink == -INFINITY ? 0 : sink == sink ? 1 : sink; /* exp(sink - max) */
        memset(o + i * o_stride, 0, (size_t)wide * sizeof(float));
    }
    int64_t end = query + queries;
    for (int64_t key = first_key(s, query) / KEYS * KEYS; key < end; key += KEYS) {
        int64_t keys = tsr_min(KEYS, end - key), skip = key > query ? key - query : 0;
        int64_t rows = queries - skip;
        float *o_rows = o + skip * o_stride;
        tsr_gemm_block(&(tsr_gemm_block_args){rows, keys, dim, false, true, q + skip * q_stride,
                                              q_stride, k + key * k_stride, k_stride, scores, KEYS,
                                              tsr_attention_scale(s), 0});
        if (s->softcap > 0)
            cap_tile(scores, rows, keys, s->softcap);
        softmax_tile(scores, s, query + skip, rows, key, keys, max + skip, sum + skip, o_rows);
        tsr_gemm_block(&(tsr_gemm_block_args){rows, wide, keys, false, false, scores, KEYS,
                                              v + key * v_stride, v_stride, o_rows, o_stride, 1,
                                              1});
    }
    finish_tile(o, args->lse + head * s->tokens + start + query, s, queries, max, sum);
}

static void forward_task(void *opaque, int index)
{
    const tsr_attention_args *args = opaque;
    const shape *s = &args->shape;
    int32_t head = index % s->q_heads;
    int64_t tile = index / s->q_heads;
    for (int32_t document = 0; document < s->documents; document++) {
        int64_t start = s->cu_seqlens[document];
        int64_t length = s->cu_seqlens[document + 1] - start;
        int64_t tiles = (length + QUERIES - 1) / QUERIES;
        if (tile < tiles) {
            int64_t query = (tiles - 1 - tile) * QUERIES; /* the longest rows first */
            int64_t queries = tsr_min(QUERIES, length - query);
            if (tsr_spans_touch(&s->spans, start + query, start + query + queries))
                forward_tile(args, start, query, queries, head);
            return;
        }
        tile -= tiles;
    }
}

tsr_status tsr_attention_ref(const tsr_attention_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_attention_check(args));
    const shape *s = &args->shape;
    TSR_TRY(check_host("attention", s));
    int64_t tiles = 0, used = used_tokens(s), width = o_width(s);
    for (int32_t i = 0; i < s->documents; i++)
        tiles += tsr_block_count(s->cu_seqlens[i + 1] - s->cu_seqlens[i], QUERIES);
    tsr_pool_run(pool, (int)(tiles * s->q_heads), forward_task, (void *)args);
    if (used < s->tokens) {
        memset((float *)args->o + used * width, 0,
               (size_t)((s->tokens - used) * width) * sizeof(float));
        for (int64_t h = 0; h < s->q_heads; h++)
            memset(args->lse + h * s->tokens + used, 0, (size_t)(s->tokens - used) * sizeof(float));
    }
    return TSR_OK;
}

/* ---- backward ---- */

/* scores -> weights P = exp(scores - lse); masked ones become 0. */
TSR_CLONES static void weights_tile(float *scores, const shape *s, int64_t query, int64_t queries,
                                    int64_t key, int64_t keys, const float *lse)
{
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++)
            scores[i * KEYS + j] = tsr_expf(scores[i * KEYS + j] - lse[i]);
    mask_tile(scores, s, query, queries, key, keys, 0.0f);
}

/* Gradients of capped scores become those of the scores: the slope is 1 - (capped / c)^2. */
TSR_CLONES static void uncap_gradient(float *gradient, const float *slopes, int64_t queries,
                                      int64_t keys)
{
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++)
            gradient[i * KEYS + j] *= slopes[i * KEYS + j];
}

/* Scores become capped ones; slopes: their derivative. */
TSR_CLONES static void cap_with_slopes(float *scores, float *slopes, int64_t queries, int64_t keys,
                                       float cap)
{
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++) {
            float value = capped(scores[i * KEYS + j], cap), share = value / cap;
            scores[i * KEYS + j] = value;
            slopes[i * KEYS + j] = 1.0f - share * share;
        }
}

/* dP -> dS = P (dP - delta) scale. */
TSR_CLONES static void scores_gradient(float *gradient, const float *weights, int64_t queries,
                                       int64_t keys, const float *delta, float scale)
{
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++)
            gradient[i * KEYS + j] =
                weights[i * KEYS + j] * (gradient[i * KEYS + j] - delta[i]) * scale;
}

/* delta[i] = <do_i, o_i> */
TSR_CLONES static void delta_rows(float *delta, const float *d_o, const float *o, int64_t rows,
                                  int64_t dim, int64_t stride)
{
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t j = 0; j < dim; j++)
            sum += (double)(d_o[i * stride + j] * o[i * stride + j]);
        delta[i] = (float)sum;
    }
}

static void delta_block(void *opaque, int index)
{
    const tsr_attention_delta_args *a = opaque;
    int64_t heads = a->q_heads, dim = a->v_dim, rows = tsr_block_rows(heads * dim);
    int64_t last = tsr_min(a->tokens, (index + 1) * rows);
    for (int64_t token = index * rows; token < last; token++)
        delta_rows(a->out + token * heads, (const float *)a->d_o + token * heads * dim,
                   (const float *)a->o + token * heads * dim, heads, dim, dim);
}

tsr_status tsr_attention_delta_ref(const tsr_attention_delta_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_attention_delta_check(args));
    int64_t rows = tsr_block_rows((int64_t)args->q_heads * args->v_dim);
    return tsr_run_f32("attention_delta", args->dtype, pool, tsr_block_count(args->tokens, rows),
                       delta_block, args);
}

/* delta of a document and head: as it is given, or of o. */
static void take_delta(float *delta, const tsr_attention_backward_args *args, const float *d_o,
                       int64_t o, int64_t start, int64_t length, int32_t head)
{
    const shape *s = &args->shape;
    if (!args->delta) {
        delta_rows(delta, d_o, (const float *)args->o + o, length, v_dim(s), o_width(s));
        return;
    }
    for (int64_t i = 0; i < length; i++)
        delta[i] = args->delta[(start + i) * s->q_heads + head];
}

/* Some columns of rows become 0. */
static void clear_rows(float *x, int64_t rows, int64_t dim, int64_t stride)
{
    for (int64_t i = 0; i < rows; i++)
        memset(x + i * stride, 0, (size_t)dim * sizeof(float));
}

/* Where the pieces of one document and head begin. */
typedef struct {
    const float *q, *k, *v, *d_o, *lse, *delta;
    float *dq, *dk, *dv;
    int64_t length, q_stride, k_stride, v_stride, o_stride;
} pieces;

/* Queries from `query` on, those that see a key of the tile; which results are asked. */
static void backward_tile(const shape *s, const pieces *p, int64_t query, int64_t key,
                          bool of_queries, bool of_keys)
{
    _Alignas(64) float weights[QUERIES * KEYS];
    _Alignas(64) float gradient[QUERIES * KEYS];
    _Alignas(64) float slopes[QUERIES * KEYS];
    int64_t dim = s->head_dim, wide = v_dim(s), qs = p->q_stride, ks = p->k_stride;
    int64_t vs = p->v_stride, os = p->o_stride;
    int64_t end = tsr_min(query + QUERIES, p->length), n = tsr_min(KEYS, p->length - key);
    if (key > query)
        query = key;
    int64_t m = end - query;
    const float scale = tsr_attention_scale(s), *q = p->q + query * qs, *d_o = p->d_o + query * os;
    const float *k = p->k + key * ks, *v = p->v + key * vs;
    tsr_gemm_block(
        &(tsr_gemm_block_args){m, n, dim, false, true, q, qs, k, ks, weights, KEYS, scale, 0});
    tsr_gemm_block(
        &(tsr_gemm_block_args){m, n, wide, false, true, d_o, os, v, vs, gradient, KEYS, 1, 0});
    if (s->softcap > 0)
        cap_with_slopes(weights, slopes, m, n, s->softcap);
    weights_tile(weights, s, query, m, key, n, p->lse + query);
    scores_gradient(gradient, weights, m, n, p->delta + query, scale);
    if (s->softcap > 0)
        uncap_gradient(gradient, slopes, m, n);
    if (of_keys) {
        tsr_gemm_block(&(tsr_gemm_block_args){n, wide, m, true, false, weights, KEYS, d_o, os,
                                              p->dv + key * vs, vs, 1, 1});
        tsr_gemm_block(&(tsr_gemm_block_args){n, dim, m, true, false, gradient, KEYS, q, qs,
                                              p->dk + key * ks, ks, 1, 1});
    }
    if (of_queries)
        tsr_gemm_block(&(tsr_gemm_block_args){m, dim, n, false, false, gradient, KEYS, k, ks,
                                              p->dq + query * qs, qs, 1, 1});
}

/* The tiles of a document and head, of queries and of keys in ascending order. */
static void backward_head(const shape *s, const pieces *p, int64_t start)
{
    for (int64_t query = 0; query < p->length; query += QUERIES) {
        int64_t end = tsr_min(query + QUERIES, p->length);
        bool of_queries = tsr_spans_touch(&s->spans, start + query, start + end);
        for (int64_t key = first_key(s, query) / KEYS * KEYS; key < end; key += KEYS) {
            bool of_keys =
                tsr_spans_touch(&s->spans, start + key, start + tsr_min(key + KEYS, p->length));
            if (of_queries || of_keys)
                backward_tile(s, p, query, key, of_queries, of_keys);
        }
    }
}

static void backward_task(void *opaque, int index)
{
    const tsr_attention_backward_args *args = opaque;
    const shape *s = &args->shape;
    int32_t document = index / s->kv_heads, kv_head = index % s->kv_heads;
    int64_t dim = s->head_dim, wide = v_dim(s), qs = s->q_heads * dim, ks = s->kv_heads * dim;
    int64_t vs = v_width(s), os = o_width(s), start = s->cu_seqlens[document];
    int64_t k = start * ks + kv_head * dim, v = start * vs + kv_head * wide;
    pieces p = {.k = (const float *)args->k + k,
                .v = (const float *)args->v + v,
                .dk = (float *)args->dk + k,
                .dv = (float *)args->dv + v,
                .length = s->cu_seqlens[document + 1] - start,
                .q_stride = qs,
                .k_stride = ks,
                .v_stride = vs,
                .o_stride = os};
    clear_rows(p.dk, p.length, dim, ks);
    clear_rows(p.dv, p.length, wide, vs);
    int32_t group = s->q_heads / s->kv_heads;
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        int64_t q = start * qs + head * dim, o = start * os + head * wide;
        float *delta = (float *)s->workspace + head * s->tokens + start;
        p.q = (const float *)args->q + q;
        p.d_o = (const float *)args->d_o + o;
        p.dq = (float *)args->dq + q;
        p.lse = args->lse + head * s->tokens + start;
        p.delta = delta;
        clear_rows(p.dq, p.length, dim, qs);
        take_delta(delta, args, p.d_o, o, start, p.length, head);
        backward_head(s, &p, start);
    }
}

tsr_status tsr_attention_backward_ref(const tsr_attention_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_attention_backward_check(args));
    const shape *s = &args->shape;
    TSR_TRY(check_host("attention_backward", s));
    tsr_pool_run(pool, s->documents * s->kv_heads, backward_task, (void *)args);
    int64_t used = used_tokens(s), qs = (int64_t)s->q_heads * s->head_dim;
    int64_t ks = (int64_t)s->kv_heads * s->head_dim, vs = v_width(s), rest = s->tokens - used;
    if (rest > 0) {
        memset((float *)args->dq + used * qs, 0, (size_t)(rest * qs) * sizeof(float));
        memset((float *)args->dk + used * ks, 0, (size_t)(rest * ks) * sizeof(float));
        memset((float *)args->dv + used * vs, 0, (size_t)(rest * vs) * sizeof(float));
    }
    return TSR_OK;
}
