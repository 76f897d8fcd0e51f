/*
 * attention_own.cu: contract attention.h, reference attention_ref.c: the kernel for whatever cuDNN does
 * not take: fp32, old cards, windows, any head_dim up to 512, a build without it. BF16 that tensor
 * cores take goes on to attention_mma.cu.
 *
 * Tiles of 64 x 64 scores in fp32 by 256 threads, each 4 x 4 of them; the head dimension passes
 * through shared memory in chunks, so that one kernel serves every head_dim in 35 KiB (sm_86 has 99).
 * A tile of rows is cut from the tokens, not from a document: every row knows the keys (or queries) it
 * sees, from one search in cu_seqlens, and so any number of documents, empty ones too, is one launch.
 *
 *     forward      a block is 64 queries of one head; online softmax over tiles of keys
 *     delta        a warp is one token and head: <do, o>, in the order that all backwards add it up in
 *     dq           a block is 64 queries of one head; the loop is over keys
 *     dk, dv       a block is 64 keys of one key head; the loop is over the heads of its group, then
 *                  queries, in order: no atomics, the same bits on every run
 *
 * Blocks of rows that are another rank's (spans.h) do nothing.
 *
 * Heads wider than 128 are given in blocks of 128 columns, each with all scores of its own. The scores
 * are computed twice in the backward: 14 D FLOPs a visible pair and head instead of 10 D, in exchange
 * for a fixed order of sums and a workspace of one float a token and head.
 */
#include "kernels/attention_own.cuh"

#define TILE         64
#define SIDE         16 /* threads along a side of a tile */
#define PART         4  /* rows, and columns, of a tile that a thread has: SIDE apart */
#define THREADS      (SIDE * SIDE)
#define COLUMNS      128 /* of the head that one block gives */
#define PARTS        (COLUMNS / TILE)
#define CHUNK        32          /* of the head dimension, multiplied at a time */
#define CHUNK_STRIDE (CHUNK + 4) /* 16 bytes more: 8 rows read at once lie in different banks */
#define STRIDE       (TILE + 4)
#define MAX_HEAD_DIM 512

/* Rows of one head. */
typedef struct {
    const void *data;
    int64_t offset, stride; /* elements; of row 0, and from row to row */
    int dim;
    tsr_dtype dtype;
    bool vectors;
} matrix;

static __device__ __forceinline__ matrix rows_of(const void *data, int head, int heads, int dim,
                                                 tsr_dtype dtype, bool vectors)
{
    matrix m = {data, (int64_t)head * dim, (int64_t)heads * dim, dim, dtype, vectors};
    return m;
}

/* Columns [column, column + 8) of a row; 0 from row `end` and column dim on. */
static __device__ __forceinline__ void load_part(float *out, const matrix *m, int row, int end,
                                                 int column)
{
    int64_t at = m->offset + row * m->stride + column;
    if (row < end && m->vectors && column < m->dim) {
        tsr_load8(out, m->data, at, m->dtype);
        return;
    }
#pragma unroll
    for (int j = 0; j < TSR_VECTOR; j++)
        out[j] = row < end && column + j < m->dim ? tsr_load(m->data, at + j, m->dtype) : 0;
}

static __device__ __forceinline__ void put_part(float *shared, const float *in)
{
    *(float4 *)shared = make_float4(in[0], in[1], in[2], in[3]);
    *(float4 *)(shared + 4) = make_float4(in[4], in[5], in[6], in[7]);
}

/* score[i][j] += <a[row i], b[row j]>: this thread's part of a tile of 64 rows of each. Begins and ends
 * with shared memory free. */
static __device__ __forceinline__ void multiply(float score[PART][PART], float *shared,
                                                const matrix *a, int a_first, int a_end,
                                                const matrix *b, int b_first, int b_end)
{
    int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    int row = threadIdx.x / 4, x = threadIdx.x % 4 * TSR_VECTOR;
    float *a_tile = shared, *b_tile = shared + TILE * CHUNK_STRIDE, part[2][TSR_VECTOR];
    for (int column = 0; column < a->dim; column += CHUNK) {
        load_part(part[0], a, a_first + row, a_end, column + x);
        load_part(part[1], b, b_first + row, b_end, column + x);
        put_part(a_tile + row * CHUNK_STRIDE + x, part[0]);
        put_part(b_tile + row * CHUNK_STRIDE + x, part[1]);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < CHUNK; k += 4) {
            float4 left[PART], right[PART];
#pragma unroll
            for (int i = 0; i < PART; i++) {
                left[i] = *(const float4 *)(a_tile + (ty + SIDE * i) * CHUNK_STRIDE + k);
                right[i] = *(const float4 *)(b_tile + (tx + SIDE * i) * CHUNK_STRIDE + k);
            }
#pragma unroll
            for (int i = 0; i < PART; i++)
#pragma unroll
                for (int j = 0; j < PART; j++) {
                    score[i][j] += left[i].x * right[j].x;
                    score[i][j] += left[i].y * right[j].y;
                    score[i][j] += left[i].z * right[j].z;
                    score[i][j] += left[i].w * right[j].w;
                }
        }
        __syncthreads();
    }
}

/* sum[part][i][j] += weight[row i] times the columns of 64 rows of b from `column` on: this thread has
 * columns 4 tx + j of each part. `weight` is [TILE][STRIDE], whole rows of it written by this warp. */
static __device__ __forceinline__ void accumulate(float sum[PARTS][PART][PART], const float *weight,
                                                  float *shared, const matrix *b, int first,
                                                  int end, int column)
{
    int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (column + part * TILE >= b->dim)
            break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float in[TSR_VECTOR];
            int row = threadIdx.x / 8 + half * 32, x = threadIdx.x % 8 * TSR_VECTOR;
            load_part(in, b, first + row, end, column + part * TILE + x);
            put_part(shared + row * STRIDE + x, in);
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < TILE; k += 4) {
            float4 left[PART];
#pragma unroll
            for (int i = 0; i < PART; i++)
                left[i] = *(const float4 *)(weight + (ty + SIDE * i) * STRIDE + k);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float4 right = *(const float4 *)(shared + (k + n) * STRIDE + 4 * tx);
#pragma unroll
                for (int i = 0; i < PART; i++) {
                    float w = n == 0   ? left[i].x
                              : n == 1 ? left[i].y
                              : n == 2 ? left[i].z
                                       : left[i].w;
                    sum[part][i][0] += w * right.x;
                    sum[part][i][1] += w * right.y;
                    sum[part][i][2] += w * right.z;
                    sum[part][i][3] += w * right.w;
                }
            }
        }
        __syncthreads();
    }
}

/* This thread's part of 64 rows from `first` on, below `end`: sum times factor[i]. */
static __device__ __forceinline__ void store_tile(void *out, const matrix *m,
                                                  const float sum[PARTS][PART][PART],
                                                  const float *factor, int first, int end,
                                                  int column)
{
    int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int i = 0; i < PART; i++)
#pragma unroll
            for (int j = 0; j < PART; j++) {
                int row = first + ty + SIDE * i, x = column + part * TILE + 4 * tx + j;
                if (row < end && x < m->dim)
                    tsr_store(out, m->offset + row * m->stride + x, sum[part][i][j] * factor[i],
                              m->dtype);
            }
}

/* ---- forward ---- */

static __device__ __forceinline__ float row_max(float value)
{
#pragma unroll
    for (int offset = SIDE / 2; offset; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

static __device__ __forceinline__ float row_sum(float value)
{
#pragma unroll
    for (int offset = SIDE / 2; offset; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* One row of a tile: masked scores to weights; the row's largest score, sum and output follow. */
static __device__ __forceinline__ void softmax_row(float score[PART], float *weight, float *most,
                                                   float *total, float sum[PARTS][PART][PART],
                                                   int i)
{
    float largest = *most, added = 0;
#pragma unroll
    for (int j = 0; j < PART; j++)
        largest = fmaxf(largest, score[j]);
    largest = row_max(largest);
    float shrink = largest > *most ? expf(*most - largest) : 1;
#pragma unroll
    for (int j = 0; j < PART; j++) {
        /* -inf - -inf is NaN where the row has seen no key yet. */
        float value = score[j] == -INFINITY ? 0 : expf(score[j] - largest);
        weight[SIDE * j] = value;
        added += value;
    }
    *most = largest;
    *total = *total * shrink + row_sum(added);
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int j = 0; j < PART; j++)
            sum[part][i][j] *= shrink;
}

/* A score as the softmax takes it. */
static __device__ __forceinline__ float score_of(const attention_call *c, float product)
{
    float score = product * c->scale;
    return c->softcap > 0 ? c->softcap * tanhf(score / c->softcap) : score;
}

static __global__ void __launch_bounds__(THREADS, 2)
    forward(attention_call c, const void *q, const void *k, const void *v, void *o, float *lse)
{
    tsr_kernel_begin();
    __shared__ __align__(16) float shared[2 * TILE * CHUNK_STRIDE], weight[TILE * STRIDE];
    int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE, head = blockIdx.y;
    /* The longest rows first. */
    int first = (int)(gridDim.x - 1 - blockIdx.x) * TILE, column = blockIdx.z * COLUMNS;
    int used = used_tokens(&c), end = min(first + TILE, used);
    int kv_head = head / (c.q_heads / c.kv_heads), low[PART];
    matrix queries = rows_of(q, head, c.q_heads, c.dim, c.dtype, c.vectors);
    matrix keys = rows_of(k, kv_head, c.kv_heads, c.dim, c.dtype, c.vectors);
    matrix values = rows_of(v, kv_head, c.kv_heads, c.v_dim, c.dtype, c.vectors);
    matrix outputs = rows_of(o, head, c.q_heads, c.v_dim, c.dtype, c.vectors);
    float sum[PARTS][PART][PART] = {}, most[PART], total[PART], factor[PART];
    float sink = sink_of(&c, head);
    if (!is_own(&c, first))
        return;
#pragma unroll
    for (int i = 0; i < PART; i++) {
        int row = first + ty + SIDE * i;
        low[i] = row < end ? first_key(&c, row) : c.tokens;
        most[i] = sink, total[i] = sink_total(sink);
    }
    for (int key = first < end ? first_key(&c, first) : end; key < end; key += TILE) {
        float score[PART][PART] = {};
        multiply(score, shared, &queries, first, end, &keys, key, end);
#pragma unroll
        for (int i = 0; i < PART; i++) {
            int row = first + ty + SIDE * i;
#pragma unroll
            for (int j = 0; j < PART; j++) {
                int at = key + tx + SIDE * j;
                score[i][j] = at >= low[i] && at <= row ? score_of(&c, score[i][j]) : -INFINITY;
            }
            softmax_row(score[i], weight + (ty + SIDE * i) * STRIDE + tx, &most[i], &total[i], sum,
                        i);
        }
        accumulate(sum, weight, shared, &values, key, end, column);
    }
#pragma unroll
    for (int i = 0; i < PART; i++) {
        int row = first + ty + SIDE * i;
        factor[i] = row < end ? 1 / total[i] : 0;
        if (tx == 0 && column == 0 && row < c.tokens)
            lse[(int64_t)head * c.tokens + row] = row < end ? most[i] + logf(total[i]) : 0;
    }
    store_tile(o, &outputs, sum, factor, first, c.tokens, column);
}

/* ---- backward ---- */

/* exp(score - lse), and into *slope that of a capped score. */
static __device__ __forceinline__ float weight_of(const attention_call *c, float product, float lse,
                                                  float *slope)
{
    *slope = 1;
    if (c->softcap == 0)
        return expf(product * c->scale - lse);
    float share = tanhf(product * c->scale / c->softcap);
    *slope = 1 - share * share;
    return expf(c->softcap * share - lse);
}

/* <d_o, o> of a token and head, by a warp. */
static __device__ __forceinline__ float delta_of(const attention_call *call, const void *o,
                                                 const void *d_o, int token, int head)
{
    const attention_call c = *call;
    matrix left = rows_of(o, head, c.q_heads, c.v_dim, c.dtype, c.vectors), right = left;
    right.data = d_o;
    float sum = 0;
    for (int x = threadIdx.x % TSR_WARP * TSR_VECTOR; x < c.v_dim; x += TSR_WARP * TSR_VECTOR) {
        float a[TSR_VECTOR], b[TSR_VECTOR];
        load_part(a, &left, token, c.tokens, x);
        load_part(b, &right, token, c.tokens, x);
#pragma unroll
        for (int j = 0; j < TSR_VECTOR; j++)
            sum += a[j] * b[j];
    }
    return tsr_warp_sum(sum);
}

/* delta[head][token], a warp each; given: [token][head], or NULL. */
static __global__ void __launch_bounds__(THREADS)
    delta_rows(attention_call c, const void *o, const void *d_o, const float *given, float *delta)
{
    tsr_kernel_begin();
    int64_t row = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    int token = (int)(row / c.q_heads), head = (int)(row % c.q_heads);
    if (token >= used_tokens(&c))
        return;
    float sum = given ? given[row] : delta_of(&c, o, d_o, token, head);
    if (threadIdx.x % TSR_WARP == 0)
        delta[(int64_t)head * c.tokens + token] = sum;
}

/* out[token][head], a warp each. */
static __global__ void __launch_bounds__(THREADS)
    delta_alone(attention_call c, const void *o, const void *d_o, float *out)
{
    tsr_kernel_begin();
    int64_t row = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    if (row >= (int64_t)c.tokens * c.q_heads)
        return;
    float sum = delta_of(&c, o, d_o, (int)(row / c.q_heads), (int)(row % c.q_heads));
    if (threadIdx.x % TSR_WARP == 0)
        out[row] = sum;
}

static __global__ void __launch_bounds__(THREADS, 2)
    query_gradient(attention_call c, attention_inputs in, void *dq)
{
    tsr_kernel_begin();
    __shared__ __align__(16) float shared[2 * TILE * CHUNK_STRIDE], weight[TILE * STRIDE];
    int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE, head = blockIdx.y;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * TILE, column = blockIdx.z * COLUMNS;
    int used = used_tokens(&c), end = min(first + TILE, used);
    int kv_head = head / (c.q_heads / c.kv_heads), low[PART];
    matrix queries = rows_of(in.q, head, c.q_heads, c.dim, c.dtype, c.vectors);
    matrix outputs = rows_of(in.d_o, head, c.q_heads, c.v_dim, c.dtype, c.vectors);
    matrix keys = rows_of(in.k, kv_head, c.kv_heads, c.dim, c.dtype, c.vectors);
    matrix values = rows_of(in.v, kv_head, c.kv_heads, c.v_dim, c.dtype, c.vectors);
    float sum[PARTS][PART][PART] = {}, lse[PART], delta[PART], factor[PART];
    if (!is_own(&c, first))
        return;
#pragma unroll
    for (int i = 0; i < PART; i++) {
        int row = first + ty + SIDE * i;
        int64_t at = (int64_t)head * c.tokens + row;
        low[i] = row < end ? first_key(&c, row) : c.tokens;
        lse[i] = row < end ? in.lse[at] : 0;
        delta[i] = row < end ? in.delta[at] : 0;
        factor[i] = c.scale;
    }
    for (int key = first < end ? first_key(&c, first) : end; key < end; key += TILE) {
        float score[PART][PART] = {}, gradient[PART][PART] = {};
        multiply(score, shared, &queries, first, end, &keys, key, end);
        multiply(gradient, shared, &outputs, first, end, &values, key, end);
#pragma unroll
        for (int i = 0; i < PART; i++)
#pragma unroll
            for (int j = 0; j < PART; j++) {
                int at = key + tx + SIDE * j;
                bool seen = at >= low[i] && at <= first + ty + SIDE * i;
                float slope, p = weight_of(&c, score[i][j], lse[i], &slope);
                weight[(ty + SIDE * i) * STRIDE + tx + SIDE * j] =
                    seen ? slope * p * (gradient[i][j] - delta[i]) : 0;
            }
        accumulate(sum, weight, shared, &keys, key, end, column);
    }
    store_tile(dq, &queries, sum, factor, first, c.tokens, column);
}

static __global__ void __launch_bounds__(THREADS)
    key_gradient(attention_call c, attention_inputs in, void *dk, void *dv)
{
    tsr_kernel_begin();
    __shared__ __align__(16) float shared[2 * TILE * CHUNK_STRIDE], weight[TILE * STRIDE];
    int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE, kv_head = blockIdx.y;
    int first = (int)blockIdx.x * TILE, column = blockIdx.z * COLUMNS;
    int used = used_tokens(&c), end = min(first + TILE, used), group = c.q_heads / c.kv_heads;
    int last = first < end ? end_query(&c, end - 1) : first, high[PART];
    matrix keys = rows_of(in.k, kv_head, c.kv_heads, c.dim, c.dtype, c.vectors);
    matrix values = rows_of(in.v, kv_head, c.kv_heads, c.v_dim, c.dtype, c.vectors);
    float dk_sum[PARTS][PART][PART] = {}, dv_sum[PARTS][PART][PART] = {};
    float scale[PART], one[PART];
    if (!is_own(&c, first))
        return;
#pragma unroll
    for (int i = 0; i < PART; i++) {
        int row = first + ty + SIDE * i;
        high[i] = row < end ? end_query(&c, row) : 0;
        scale[i] = c.scale, one[i] = 1;
    }
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        matrix queries = rows_of(in.q, head, c.q_heads, c.dim, c.dtype, c.vectors);
        matrix outputs = rows_of(in.d_o, head, c.q_heads, c.v_dim, c.dtype, c.vectors);
        for (int query = first; query < last; query += TILE) {
            float score[PART][PART] = {}, gradient[PART][PART] = {}, delta[PART];
            float slope[PART][PART];
            multiply(score, shared, &keys, first, end, &queries, query, last);
#pragma unroll
            for (int j = 0; j < PART; j++) {
                int at = query + tx + SIDE * j;
                int64_t row = (int64_t)head * c.tokens + at;
                float lse = at < last ? in.lse[row] : 0;
                delta[j] = at < last ? in.delta[row] : 0;
#pragma unroll
                for (int i = 0; i < PART; i++) {
                    bool seen = at >= first + ty + SIDE * i && at < high[i];
                    float p = weight_of(&c, score[i][j], lse, &slope[i][j]);
                    score[i][j] = seen ? p : 0;
                    weight[(ty + SIDE * i) * STRIDE + tx + SIDE * j] = score[i][j];
                }
            }
            accumulate(dv_sum, weight, shared, &outputs, query, last, column);
            multiply(gradient, shared, &values, first, end, &outputs, query, last);
#pragma unroll
            for (int i = 0; i < PART; i++)
#pragma unroll
                for (int j = 0; j < PART; j++)
                    weight[(ty + SIDE * i) * STRIDE + tx + SIDE * j] =
                        score[i][j] * slope[i][j] * (gradient[i][j] - delta[j]);
            accumulate(dk_sum, weight, shared, &queries, query, last, column);
        }
    }
    store_tile(dk, &keys, dk_sum, scale, first, c.tokens, column);
    store_tile(dv, &values, dv_sum, one, first, c.tokens, column);
}

/* ---- host ---- */

static bool adds_up(const tsr_attention_shape *s)
{
    return tsr_spans_shared(&s->spans) && s->sum.add;
}

attention_call attention_call_of(const tsr_attention_shape *s, bool vectors)
{
    attention_call c = {s->cu_seqlens,
                        (int)s->tokens,
                        s->documents,
                        s->q_heads,
                        s->kv_heads,
                        s->head_dim,
                        tsr_attention_v_dim(s->v_dim, s->head_dim),
                        s->window,
                        tsr_attention_scale(s),
                        s->softcap,
                        s->dtype,
                        vectors,
                        s->sinks,
                        s->all_kv_heads ? s->all_kv_heads : s->kv_heads};
    if (s->softcap > 0)
        c.share_factor = 2 * LOG2_E * c.scale / s->softcap;
    if (tsr_spans_shared(&s->spans)) {
        c.span = (int)(s->spans.rows < INT32_MAX ? s->spans.rows : INT32_MAX);
        c.ranks = s->spans.ranks;
        c.rank = s->spans.rank;
        c.summed = adds_up(s);
    }
    return c;
}

tsr_status attention_add_up(tsr_stream **rest, tsr_stream *stream, const tsr_attention_shape *s,
                            int32_t *sum, uint64_t count, bool last)
{
    *rest = stream;
    return adds_up(s) ? s->sum.add(s->sum.user, stream, sum, count, last ? rest : NULL) : TSR_OK;
}

/* The wider of a head's sizes. */
static int widest(const tsr_attention_shape *s)
{
    int v_dim = tsr_attention_v_dim(s->v_dim, s->head_dim);
    return v_dim > s->head_dim ? v_dim : s->head_dim;
}

/* Whether every row of q, k, v and o begins on 16 bytes, where the first ones do. */
static bool even_heads(const tsr_attention_shape *s)
{
    return s->head_dim % TSR_VECTOR == 0 && s->v_dim % TSR_VECTOR == 0;
}

static tsr_status own_limits(const char *op, const tsr_attention_shape *s)
{
    if (widest(s) > MAX_HEAD_DIM)
        return tsr_fail(TSR_EUNSUPPORTED, "%s: head_dim %d; the CUDA backend takes at most %d", op,
                        widest(s), MAX_HEAD_DIM);
    if (s->tokens > INT32_MAX - TILE)
        return tsr_fail(TSR_EUNSUPPORTED, "%s: %lld tokens in one micro-batch", op,
                        (long long)s->tokens);
    return TSR_OK;
}

static uint64_t delta_bytes(int64_t tokens, int32_t q_heads)
{
    return (uint64_t)tokens * (uint64_t)q_heads * sizeof(float);
}

uint64_t tsr_attention_own_workspace_bytes(const tsr_attention_bounds *bounds)
{
    /* Which kernel runs depends on where rows begin too, so there is room for both. */
    uint64_t mma = attention_mma_workspace_bytes(bounds);
    uint64_t delta = bounds->train ? delta_bytes(bounds->tokens, bounds->q_heads) : 0;
    return mma > delta ? mma : delta;
}

tsr_status tsr_attention_own_as(tsr_stream *stream, const tsr_attention_args *args,
                                const tsr_attention_card *card)
{
    const tsr_attention_shape *s = &args->shape;
    TSR_TRY(own_limits("attention", s));
    if (s->tokens == 0)
        return TSR_OK;
    attention_call c =
        attention_call_of(s, even_heads(s) && tsr_vectors(0, args->q, args->k, args->v, args->o));
    if (attention_mma_takes(&c))
        return attention_mma_forward(stream, &c, args, card);
    dim3 grid(tsr_blocks(c.tokens, TILE), (unsigned)c.q_heads, tsr_blocks(c.v_dim, COLUMNS));
    TSR_LAUNCH(forward, grid, THREADS, stream, c, args->q, args->k, args->v, args->o, args->lse);
    return tsr_launched("attention");
}

static tsr_status need_workspace(const char *op, const tsr_attention_shape *s, uint64_t need)
{
    if (!s->workspace || s->workspace_bytes < need)
        return tsr_fail(TSR_EINVAL, "%s: a workspace of %llu bytes, %llu are needed", op,
                        (unsigned long long)s->workspace_bytes, (unsigned long long)need);
    return TSR_OK;
}

tsr_status tsr_attention_backward_own_as(tsr_stream *stream,
                                         const tsr_attention_backward_args *args,
                                         const tsr_attention_card *card)
{
    const char *op = "attention_backward";
    const tsr_attention_shape *s = &args->shape;
    TSR_TRY(own_limits(op, s));
    if (s->tokens == 0)
        return TSR_OK;
    attention_call c =
        attention_call_of(s, even_heads(s) && tsr_vectors(0, args->q, args->k, args->v, args->o,
                                                          args->d_o, args->dq, args->dk, args->dv));
    if (attention_mma_takes_backward(&c, card)) {
        const tsr_attention_bounds bounds = {.tokens = s->tokens,
                                             .q_heads = s->q_heads,
                                             .kv_heads = s->kv_heads,
                                             .head_dim = s->head_dim,
                                             .v_dim = s->v_dim,
                                             .dtype = s->dtype,
                                             .train = true};
        TSR_TRY(need_workspace(op, s, attention_mma_workspace_bytes(&bounds)));
        return attention_mma_backward(stream, &c, args, card);
    }
    TSR_TRY(need_workspace(op, s, delta_bytes(s->tokens, s->q_heads)));
    float *delta = (float *)s->workspace;
    attention_inputs in = {args->q, args->k, args->v, args->d_o, args->lse, delta};
    unsigned tiles = tsr_blocks(c.tokens, TILE);
    TSR_LAUNCH(delta_rows, tsr_blocks(s->tokens * s->q_heads, THREADS / TSR_WARP), THREADS, stream,
               c, args->o, args->d_o, args->delta, delta);
    dim3 queries(tiles, (unsigned)c.q_heads, tsr_blocks(c.dim, COLUMNS));
    dim3 keys(tiles, (unsigned)c.kv_heads, tsr_blocks(widest(s), COLUMNS));
    TSR_LAUNCH(query_gradient, queries, THREADS, stream, c, in, args->dq);
    TSR_LAUNCH(key_gradient, keys, THREADS, stream, c, in, args->dk, args->dv);
    return tsr_launched(op);
}

tsr_status tsr_attention_delta_cuda(tsr_stream *stream, const tsr_attention_delta_args *args)
{
    TSR_TRY(tsr_attention_delta_check(args));
    int64_t rows = args->tokens * args->q_heads;
    if (args->tokens > INT32_MAX)
        return tsr_fail(TSR_EUNSUPPORTED, "attention_delta: %lld tokens in one micro-batch",
                        (long long)args->tokens);
    if (rows == 0)
        return TSR_OK;
    attention_call c = {};
    c.tokens = (int)args->tokens, c.q_heads = args->q_heads, c.v_dim = args->v_dim;
    c.dtype = args->dtype;
    c.vectors = args->v_dim % TSR_VECTOR == 0 && tsr_vectors(0, args->o, args->d_o);
    TSR_LAUNCH(delta_alone, tsr_blocks(rows, THREADS / TSR_WARP), THREADS, stream, c, args->o,
               args->d_o, args->out);
    return tsr_launched("attention_delta");
}

static tsr_attention_card card_of(tsr_stream *stream)
{
    const tsr_cuda_properties *p = tsr_device_cuda_properties(tsr_stream_device(stream));
    return (tsr_attention_card){(int64_t)p->shared_bytes, p->sm_count};
}

tsr_status tsr_attention_own(tsr_stream *stream, const tsr_attention_args *args)
{
    tsr_attention_card card = card_of(stream);
    return tsr_attention_own_as(stream, args, &card);
}

tsr_status tsr_attention_backward_own(tsr_stream *stream, const tsr_attention_backward_args *args)
{
    tsr_attention_card card = card_of(stream);
    return tsr_attention_backward_own_as(stream, args, &card);
}
