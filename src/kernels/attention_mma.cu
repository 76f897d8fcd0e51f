/*
 * attention_mma.cu: contract attention.h, reference attention_ref.c: the own kernel's BF16 on tensor
 * cores (mma.sync), for cards, windows and batches that cuDNN does not take. Heads up to 128, of q and
 * k up to 192 where those of v are not wider than 128; multiples of 8; scores are scaled by more than 0.
 *
 * As in attention_own.cu a tile of rows is cut from the tokens and each row knows what it sees. A
 * block is 4 warps of 16 rows; scores, weights and sums stay in registers, whose fragments as a product
 * are the next product's operand. Copies of the next tile run under the products of this one.
 *
 *     forward      64 queries of one head, over tiles of 64 keys
 *     dq           64 queries of one head, over tiles of 32 keys
 *     dk, dv       64 keys of one key head, over the heads of its group in order, 32 queries at a time
 *
 * Weights and score gradients are rounded to bf16 before they are multiplied; all sums are fp32. No
 * atomics, the same bits on every run. 2 (D + Dv) FLOPs a visible pair and head forward, 8 D + 6 Dv
 * backward.
 */
#include "kernels/attention_own.cuh"
#include "kernels/mma.cuh"

#define ROWS    64 /* of a block */
#define WARPS   4
#define THREADS (WARPS * TSR_WARP)
#define KEYS    64  /* of a tile, forward */
#define INNER   32  /* keys or queries of a tile, backward */
#define WIDEST  192 /* columns of a head */
#define PAD     8   /* elements after a row: 8 rows read at once lie in different banks */
#define LOG2_E  1.4426950408889634f
#define LN_2    0.6931471805599453f

typedef __nv_bfloat16 bf16;

/* Rows of one head in global memory. */
typedef struct {
    const bf16 *data;
    int64_t offset, stride; /* elements; of row 0, and from row to row */
    int dim;
} rows;

static __device__ __forceinline__ rows rows_of(const void *data, int head, int heads, int dim)
{
    rows r = {(const bf16 *)data, (int64_t)head * dim, (int64_t)heads * dim, dim};
    return r;
}

/* Copies rows [first, first + count) to a tile; zeros from row `end` and column dim on. */
static __device__ __forceinline__ void load_tile(bf16 *tile, const int width, const rows *r,
                                                 int first, const int count, int end)
{
    const int parts = width / 8;
#pragma unroll
    for (int i = 0; i < count * parts / THREADS; i++) {
        int part = threadIdx.x + i * THREADS, row = part / parts, x = part % parts * 8;
        bool valid = first + row < end && x < r->dim;
        const bf16 *from = valid ? r->data + r->offset + (first + row) * r->stride + x : r->data;
        tsr_copy16(tile + row * (width + PAD) + x, from, valid);
    }
}

/* The fragment of rows [row, row + 16), columns [x, x + 16) as left operand. */
static __device__ __forceinline__ void left(uint32_t a[4], const bf16 *tile, const int width,
                                            int row, int x)
{
    int lane = threadIdx.x % TSR_WARP;
    tsr_ldmatrix(a, tile + (row + lane % 16) * (width + PAD) + x + lane / 16 * 8);
}

/* Right operands whose columns are the rows [row, row + 16): b[0], b[1] of the first 8, then the rest. */
static __device__ __forceinline__ void right(uint32_t b[4], const bf16 *tile, const int width,
                                             int row, int x)
{
    int lane = threadIdx.x % TSR_WARP;
    tsr_ldmatrix(b, tile + (row + lane / 16 * 8 + lane % 8) * (width + PAD) + x + lane / 8 % 2 * 8);
}

/* Right operands whose columns are the columns [x, x + 16), and products over rows [row, row + 16). */
static __device__ __forceinline__ void right_t(uint32_t b[4], const bf16 *tile, const int width,
                                               int row, int x)
{
    int lane = threadIdx.x % TSR_WARP;
    tsr_ldmatrix_t(b, tile + (row + lane % 16) * (width + PAD) + x + lane / 16 * 8);
}

/* score += rows [row, row + 16) of a times the rows of b, transposed. */
static __device__ __forceinline__ void multiply(float (*score)[4], const bf16 *a, int row,
                                                const bf16 *b, const int count, const int width)
{
#pragma unroll
    for (int x = 0; x < width; x += 16) {
        uint32_t fragment[4];
        left(fragment, a, width, row, x);
#pragma unroll
        for (int n = 0; n < count / 16; n++) {
            uint32_t columns[4];
            right(columns, b, width, n * 16, x);
            tsr_mma(score[2 * n], fragment, columns[0], columns[1]);
            tsr_mma(score[2 * n + 1], fragment, columns[2], columns[3]);
        }
    }
}

/* sum += weight (16 rows, `count` columns, rounded to bf16) times the rows of b. */
static __device__ __forceinline__ void accumulate(float (*sum)[4], float (*weight)[4],
                                                  const bf16 *b, const int count, const int width)
{
#pragma unroll
    for (int n = 0; n < count / 16; n++) {
        const float *low = weight[2 * n], *high = weight[2 * n + 1];
        uint32_t fragment[4] = {tsr_pack_bf16(low[0], low[1]), tsr_pack_bf16(low[2], low[3]),
                                tsr_pack_bf16(high[0], high[1]), tsr_pack_bf16(high[2], high[3])};
#pragma unroll
        for (int x = 0; x < width / 16; x++) {
            uint32_t columns[4];
            right_t(columns, b, width, n * 16, x * 16);
            tsr_mma(sum[2 * x], fragment, columns[0], columns[1]);
            tsr_mma(sum[2 * x + 1], fragment, columns[2], columns[3]);
        }
    }
}

/* Rows `row` and row + 8 of 16, times their factors. */
static __device__ __forceinline__ void store_rows(void *out, const rows *r, float (*sum)[4],
                                                  const int width, int row, int end,
                                                  const float factor[2])
{
    bf16 *to = (bf16 *)out + r->offset + row * r->stride + threadIdx.x % 4 * 2;
#pragma unroll
    for (int x = 0; x < width / 8; x++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row + 8 * half < end && x * 8 < r->dim)
                *(uint32_t *)(to + 8 * half * r->stride + x * 8) = tsr_pack_bf16(
                    sum[x][2 * half] * factor[half], sum[x][2 * half + 1] * factor[half]);
}

static __device__ __forceinline__ float quad_max(float value)
{
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

static __device__ __forceinline__ float quad_sum(float value)
{
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/* ---- forward ---- */

/* A query of this thread: where it sees from, and its softmax so far, in base 2. */
typedef struct {
    int row, low;
    float most, total; /* total: of this thread's columns */
} query_state;

/* Scores of keys that a query does not see become -inf. */
static __device__ __forceinline__ void hide(float (*score)[4], const query_state state[2], int key)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = key + n * 8 + (int)threadIdx.x % 4 * 2 + j % 2;
            if (at < state[j / 2].low || at > state[j / 2].row)
                score[n][j] = -INFINITY;
        }
}

/* Scores of a tile to weights, of the thread's row `half`; its output so far shrinks. */
static __device__ __forceinline__ void softmax_row(float (*score)[4], float (*sum)[4],
                                                   query_state *q, const int half, float scale,
                                                   const int width)
{
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        largest = fmaxf(largest, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
    largest = fmaxf(q->most, quad_max(largest) * scale);
    float shrink = largest > q->most ? exp2f(q->most - largest) : 1;
    float base = largest == -INFINITY ? 0 : largest; /* no key seen yet: all weights are 0 */
    q->most = largest;
    q->total *= shrink;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; j++) {
            score[n][j] = exp2f(score[n][j] * scale - base);
            q->total += score[n][j];
        }
#pragma unroll
    for (int x = 0; x < width / 8; x++)
        sum[x][2 * half] *= shrink, sum[x][2 * half + 1] *= shrink;
}

/* width, v_width: columns that heads of q and k, and of v and o, have in shared memory. */
static __device__ __forceinline__ void forward_body(const attention_call *c, const rows *q,
                                                    const rows *k, const rows *v, const rows *o,
                                                    float *lse, const int width, const int v_width)
{
    extern __shared__ __align__(16) char memory[];
    bf16 *q_tile = (bf16 *)memory, *k_tile = q_tile + ROWS * (width + PAD);
    bf16 *v_tile = k_tile + KEYS * (width + PAD);
    int first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS; /* the longest rows first */
    int end = min(first + ROWS, used_tokens(c)), own = (int)threadIdx.x / TSR_WARP * 16;
    float sum[WIDEST / 8][4] = {}, factor[2], sink = sink_of(c, (int)blockIdx.y);
    query_state state[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + own + (int)threadIdx.x % TSR_WARP / 4 + 8 * half;
        state[half].row = row;
        state[half].low = row < end ? first_key(c, row) : c->tokens;
        state[half].most = sink * LOG2_E; /* counted by one thread of the four that share a row */
        state[half].total = threadIdx.x % 4 == 0 ? sink_total(sink) : 0;
    }
    int key = first < end ? first_key(c, first) : end;
    /* From here on, up to its first row, every row of this warp sees every key. */
    int whole = first < end ? first_key(c, min(first + own + 15, end - 1)) : end;
    load_tile(q_tile, width, q, first, ROWS, end);
    load_tile(k_tile, width, k, key, KEYS, end);
    tsr_copy_commit();
    for (; key < end; key += KEYS) {
        float score[KEYS / 8][4] = {};
        bool seen = key <= first + own + 15; /* by some row of this warp */
        tsr_copy_wait();
        __syncthreads();
        load_tile(v_tile, v_width, v, key, KEYS, end);
        tsr_copy_commit();
        if (seen) {
            multiply(score, q_tile, own, k_tile, KEYS, width);
            if (key < whole || key + KEYS > first + own + 1)
                hide(score, state, key);
            softmax_row(score, sum, &state[0], 0, c->scale * LOG2_E, v_width);
            softmax_row(score, sum, &state[1], 1, c->scale * LOG2_E, v_width);
        }
        tsr_copy_wait();
        __syncthreads();
        load_tile(k_tile, width, k, key + KEYS, KEYS, end);
        tsr_copy_commit();
        if (seen)
            accumulate(sum, score, v_tile, KEYS, v_width);
    }
    tsr_copy_wait();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        query_state *s = &state[half];
        float total = quad_sum(s->total);
        factor[half] = s->row < end ? 1 / total : 0;
        if (threadIdx.x % 4 == 0 && s->row < c->tokens)
            lse[(int64_t)blockIdx.y * c->tokens + s->row] =
                s->row < end ? s->most * LN_2 + logf(total) : 0;
    }
    store_rows((void *)o->data, o, sum, v_width, state[0].row, c->tokens, factor);
}

/* ---- dq ---- */

/* A score becomes the gradient of the unscaled one: P (dP - delta). */
static __device__ __forceinline__ float score_gradient(float score, float gradient, float lse,
                                                       float delta, float scale, bool seen)
{
    return seen ? exp2f(score * scale - lse) * (gradient - delta) : 0;
}

static __device__ __forceinline__ void dq_body(const attention_call *c, const rows *q,
                                               const rows *d_o, const rows *k, const rows *v,
                                               const attention_inputs *in, void *dq,
                                               const int width, const int v_width)
{
    extern __shared__ __align__(16) char memory[];
    const int tile = INNER * (width + PAD), pair = tile + INNER * (v_width + PAD);
    bf16 *q_tile = (bf16 *)memory, *d_o_tile = q_tile + ROWS * (width + PAD);
    bf16 *stage = d_o_tile + ROWS * (v_width + PAD); /* two of keys and values */
    int first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    int end = min(first + ROWS, used_tokens(c)), own = (int)threadIdx.x / TSR_WARP * 16;
    int row[2], low[2], t = threadIdx.x % 4;
    float sum[WIDEST / 8][4] = {}, lse[2], delta[2], factor[2] = {c->scale, c->scale};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        row[half] = first + own + (int)threadIdx.x % TSR_WARP / 4 + 8 * half;
        int64_t at = (int64_t)blockIdx.y * c->tokens + row[half];
        low[half] = row[half] < end ? first_key(c, row[half]) : c->tokens;
        lse[half] = row[half] < end ? in->lse[at] * LOG2_E : 0;
        delta[half] = row[half] < end ? in->delta[at] : 0;
    }
    int key = first < end ? first_key(c, first) : end, turn = 0;
    load_tile(q_tile, width, q, first, ROWS, end);
    load_tile(d_o_tile, v_width, d_o, first, ROWS, end);
    load_tile(stage, width, k, key, INNER, end);
    load_tile(stage + tile, v_width, v, key, INNER, end);
    tsr_copy_commit();
    for (; key < end; key += INNER, turn ^= 1) {
        bf16 *k_tile = stage + turn * pair, *next = stage + (turn ^ 1) * pair;
        load_tile(next, width, k, key + INNER, INNER, end);
        load_tile(next + tile, v_width, v, key + INNER, INNER, end);
        tsr_copy_commit();
        tsr_copy_wait_but_one();
        __syncthreads();
        if (key <= first + own + 15) {
            float score[INNER / 8][4] = {}, gradient[INNER / 8][4] = {};
            multiply(score, q_tile, own, k_tile, INNER, width);
            multiply(gradient, d_o_tile, own, k_tile + tile, INNER, v_width);
#pragma unroll
            for (int n = 0; n < INNER / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int at = key + n * 8 + 2 * t + j % 2;
                    bool seen = at >= low[j / 2] && at <= row[j / 2];
                    score[n][j] = score_gradient(score[n][j], gradient[n][j], lse[j / 2],
                                                 delta[j / 2], c->scale * LOG2_E, seen);
                }
            accumulate(sum, score, k_tile, INNER, width);
        }
        __syncthreads();
    }
    tsr_copy_wait();
    store_rows(dq, q, sum, width, row[0], c->tokens, factor);
}

/* ---- dk, dv ---- */

/* One tile of queries of one head, with their lse and delta. */
static __device__ __forceinline__ void load_queries(bf16 *stage, float *stats, const int width,
                                                    const int v_width, const attention_call *c,
                                                    const attention_inputs *in, int head, int query,
                                                    int end)
{
    rows q = rows_of(in->q, head, c->q_heads, c->dim);
    rows d_o = rows_of(in->d_o, head, c->q_heads, c->v_dim);
    load_tile(stage, width, &q, query, INNER, end);
    load_tile(stage + INNER * (width + PAD), v_width, &d_o, query, INNER, end);
    if (threadIdx.x < 2 * INNER) {
        const float *from = threadIdx.x < INNER ? in->lse : in->delta;
        int at = query + (int)threadIdx.x % INNER;
        bool valid = at < end;
        tsr_copy4(stats + threadIdx.x, valid ? from + (int64_t)head * c->tokens + at : in->lse,
                  valid);
    }
}

static __device__ __forceinline__ void dkdv_body(const attention_call *c, const rows *k,
                                                 const rows *v, const attention_inputs *in,
                                                 void *dk, void *dv, const int width,
                                                 const int v_width)
{
    extern __shared__ __align__(16) char memory[];
    const int tile = INNER * (width + PAD), pair = tile + INNER * (v_width + PAD);
    bf16 *k_tile = (bf16 *)memory, *v_tile = k_tile + ROWS * (width + PAD);
    bf16 *stage = v_tile + ROWS * (v_width + PAD); /* two of q and d_o */
    float *stats = (float *)(stage + 2 * pair);    /* two of lse and delta */
    int first = (int)blockIdx.x * ROWS, end = min(first + ROWS, used_tokens(c));
    int own = (int)threadIdx.x / TSR_WARP * 16, group = c->q_heads / c->kv_heads;
    int head = (int)blockIdx.y * group, last_head = head + group, turn = 0, t = threadIdx.x % 4;
    int last = first < end ? end_query(c, end - 1) : first, query = first, row[2], high[2];
    float dk_sum[WIDEST / 8][4] = {}, dv_sum[WIDEST / 8][4] = {};
    float scale[2] = {c->scale, c->scale}, one[2] = {1, 1};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        row[half] = first + own + (int)threadIdx.x % TSR_WARP / 4 + 8 * half;
        high[half] = row[half] < end ? end_query(c, row[half]) : 0;
    }
    load_tile(k_tile, width, k, first, ROWS, end);
    load_tile(v_tile, v_width, v, first, ROWS, end);
    if (first < last)
        load_queries(stage, stats, width, v_width, c, in, head, query, last);
    tsr_copy_commit();
    while (first < last && head < last_head) {
        bf16 *q_tile = stage + turn * pair, *d_o_tile = q_tile + tile;
        const float *lse = stats + turn * 2 * INNER, *delta = lse + INNER;
        bool seen = query + INNER > first + own; /* by some row of this warp */
        int at = query;
        query += INNER;
        if (query >= last)
            query = first, head++;
        turn ^= 1;
        if (head < last_head)
            load_queries(stage + turn * pair, stats + turn * 2 * INNER, width, v_width, c, in, head,
                         query, last);
        tsr_copy_commit();
        tsr_copy_wait_but_one();
        __syncthreads();
        if (seen) {
            float score[INNER / 8][4] = {}, gradient[INNER / 8][4] = {};
            multiply(score, k_tile, own, q_tile, INNER, width);
#pragma unroll
            for (int n = 0; n < INNER / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int x = n * 8 + 2 * t + j % 2;
                    bool visible = at + x >= row[j / 2] && at + x < high[j / 2];
                    score[n][j] = visible ? exp2f((score[n][j] * c->scale - lse[x]) * LOG2_E) : 0;
                }
            accumulate(dv_sum, score, d_o_tile, INNER, v_width);
            multiply(gradient, v_tile, own, d_o_tile, INNER, v_width);
#pragma unroll
            for (int n = 0; n < INNER / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    score[n][j] *= gradient[n][j] - delta[n * 8 + 2 * t + j % 2];
            accumulate(dk_sum, score, q_tile, INNER, width);
        }
        __syncthreads();
    }
    tsr_copy_wait();
    store_rows(dk, k, dk_sum, width, row[0], c->tokens, scale);
    store_rows(dv, v, dv_sum, v_width, row[0], c->tokens, one);
}

/* ---- kernels: one of each width ---- */

/* blocks: of dq on a multiprocessor, whose sums are as wide as q. */
#define KERNELS(width, v_width, blocks)                                                            \
    static __global__ void __launch_bounds__(THREADS, 3) forward_##width(                          \
        attention_call c, const void *q, const void *k, const void *v, void *o, float *lse)        \
    {                                                                                              \
        tsr_kernel_begin();                                                                        \
        int head = blockIdx.y, kv_head = head / (c.q_heads / c.kv_heads);                          \
        rows query = rows_of(q, head, c.q_heads, c.dim);                                           \
        rows key = rows_of(k, kv_head, c.kv_heads, c.dim);                                         \
        rows value = rows_of(v, kv_head, c.kv_heads, c.v_dim);                                     \
        rows output = rows_of(o, head, c.q_heads, c.v_dim);                                        \
        forward_body(&c, &query, &key, &value, &output, lse, width, v_width);                      \
    }                                                                                              \
    static __global__ void __launch_bounds__(THREADS, blocks)                                      \
        dq_##width(attention_call c, attention_inputs in, void *dq)                                \
    {                                                                                              \
        tsr_kernel_begin();                                                                        \
        int head = blockIdx.y, kv_head = head / (c.q_heads / c.kv_heads);                          \
        rows query = rows_of(in.q, head, c.q_heads, c.dim);                                        \
        rows d_o = rows_of(in.d_o, head, c.q_heads, c.v_dim);                                      \
        rows key = rows_of(in.k, kv_head, c.kv_heads, c.dim);                                      \
        rows value = rows_of(in.v, kv_head, c.kv_heads, c.v_dim);                                  \
        dq_body(&c, &query, &d_o, &key, &value, &in, dq, width, v_width);                          \
    }                                                                                              \
    static __global__ void __launch_bounds__(THREADS, 2)                                           \
        dkdv_##width(attention_call c, attention_inputs in, void *dk, void *dv)                    \
    {                                                                                              \
        tsr_kernel_begin();                                                                        \
        rows key = rows_of(in.k, blockIdx.y, c.kv_heads, c.dim);                                   \
        rows value = rows_of(in.v, blockIdx.y, c.kv_heads, c.v_dim);                               \
        dkdv_body(&c, &key, &value, &in, dk, dv, width, v_width);                                  \
    }

KERNELS(64, 64, 3)
KERNELS(96, 96, 3)
KERNELS(128, 128, 3)
KERNELS(192, 128, 2)

/* ---- host ---- */

typedef void forward_kernel(attention_call, const void *, const void *, const void *, void *,
                            float *);
typedef void dq_kernel(attention_call, attention_inputs, void *);
typedef void dkdv_kernel(attention_call, attention_inputs, void *, void *);

typedef struct {
    int width, v_width;
    forward_kernel *forward;
    dq_kernel *dq;
    dkdv_kernel *dkdv;
} kernel_set;

static const kernel_set sets[] = {{64, 64, forward_64, dq_64, dkdv_64},
                                  {96, 96, forward_96, dq_96, dkdv_96},
                                  {128, 128, forward_128, dq_128, dkdv_128},
                                  {192, 128, forward_192, dq_192, dkdv_192}};

enum { SETS = sizeof sets / sizeof *sets };

/* The narrowest kernels that hold the heads; NULL: none do. */
static const kernel_set *set_for(const attention_call *c)
{
    for (int i = 0; i < SETS; i++)
        if (c->dim <= sets[i].width && c->v_dim <= sets[i].v_width)
            return &sets[i];
    return NULL;
}

/* Elements of a row of q or k and of one of v or o, in shared memory. */
static int row_elements(const kernel_set *set)
{
    return set->width + PAD + set->v_width + PAD;
}

bool attention_mma_takes(const attention_call *c)
{
    return c->dtype == TSR_BF16 && c->vectors && set_for(c) && c->scale > 0 && c->softcap == 0;
}

tsr_status attention_mma_forward(tsr_stream *stream, const attention_call *c,
                                 const tsr_attention_args *args)
{
    const kernel_set *set = set_for(c);
    int bytes = (ROWS * (set->width + PAD) + KEYS * row_elements(set)) * (int)sizeof(bf16);
    forward_kernel *forward = set->forward;
    TSR_TRY(tsr_allow_shared(stream, (const void *)forward, bytes, "attention"));
    dim3 grid(tsr_blocks(c->tokens, ROWS), (unsigned)c->q_heads);
    TSR_LAUNCH_SHARED(forward, grid, THREADS, bytes, stream, *c, args->q, args->k, args->v, args->o,
                      args->lse);
    return tsr_launched("attention");
}

tsr_status attention_mma_backward(tsr_stream *stream, const attention_call *c,
                                  const attention_inputs *in,
                                  const tsr_attention_backward_args *args)
{
    const kernel_set *set = set_for(c);
    int bytes = (ROWS + 2 * INNER) * row_elements(set) * (int)sizeof(bf16);
    int stats = 4 * INNER * (int)sizeof(float);
    dq_kernel *dq = set->dq;
    dkdv_kernel *dkdv = set->dkdv;
    TSR_TRY(tsr_allow_shared(stream, (const void *)dq, bytes, "attention"));
    TSR_TRY(tsr_allow_shared(stream, (const void *)dkdv, bytes + stats, "attention"));
    dim3 queries(tsr_blocks(c->tokens, ROWS), (unsigned)c->q_heads);
    dim3 keys(tsr_blocks(c->tokens, ROWS), (unsigned)c->kv_heads);
    TSR_LAUNCH_SHARED(dq, queries, THREADS, bytes, stream, *c, *in, args->dq);
    TSR_LAUNCH_SHARED(dkdv, keys, THREADS, bytes + stats, stream, *c, *in, args->dk, args->dv);
    return tsr_launched("attention_backward");
}
