/*
 * attention_mma_backward.cu: contract attention.h, reference attention_ref.c: the own kernel's BF16 on tensor
 * cores (mma.sync), backward, in five products.
 *
 * A block has 64 or 128 keys of one key head and walks over the queries of its group's heads, 32 or 64 at a time; dk and dv
 * stay in registers. Two warps (four of the widest heads) share 32 keys: each computes the scores of its part of the
 * queries, passes weights and score gradients on through shared memory, rounded to bf16, and sums its part of the
 * columns of dk and dv. All warps then share the tile's part of dq. All these sums are fp32, in a fixed order.
 *
 * Blocks add their parts of dq in whatever order they come to them, so that is done in 32-bit fixed point, where any
 * order gives the same bits. The unit of row i and column x follows from what is known before: a row's weights sum to at
 * most 1, so
 *
 *     |dq_ix| / scale  <=  (|dO_i| max_j |v_j| + |delta_i|) max_j |k_jx|
 *
 * with maxima over the keys of the head; the slope of a soft cap is at most 1. That bound is LARGEST units, and each part is
 * rounded to half a unit. With n tiles of keys that adds sqrt(n / 12) / LARGEST of the bound to the error. By that estimate it
 * is 3e-5 of dq for random data over 32768 tokens, and 3e-3 where one key is 100 times as long as the others; rounding to bf16
 * makes 2.5e-3. An infinite bound gives NaN.
 *
 * Blocks of keys that are another rank's (spans.h) take part with the own queries that see them, for dq, or not at all
 * where sums of dq are added up over the ranks. Units are those of all keys, and so the bits.
 *
 * Cost     6 D + 4 Dv FLOPs a visible pair and head; 10 bytes an element of dq besides, for its sums. One H200, 32 query
 *          heads, 8 key heads, D 128, one document, TFLOP/s: 280 over 4096 tokens, 306 over 8192, 325 over 32768; as on
 *          a card with 99 KB of shared memory 237, 256, 266. Adding up dq takes 8 % of the time.
 */
#include "kernels/attention_mma.cuh"

#define LARGEST 2.08e9f /* 3 % below 2^31: weights and score gradients are rounded */
#define LEAST   1e-30f  /* dq of columns of smaller keys is 0 */
#define STATS   3       /* of a query: lse, delta, units of its row of dq */

/* ---- delta, units ---- */

#define ROW_THREADS 256

/* delta = <d_o, o>, or as given, [tokens, Hq], and the units of a row of dq for columns of keys up to 1; a warp each. */
static __global__ void __launch_bounds__(ROW_THREADS)
    find_units(attention_call c, const void *o, const void *d_o, const float *given,
               const unsigned *most, float *delta, float *units)
{
    tsr_kernel_begin();
    int64_t row = (int64_t)blockIdx.x * (ROW_THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    int token = (int)(row / c.q_heads), head = (int)(row % c.q_heads),
        lane = threadIdx.x % TSR_WARP;
    if (token >= used_tokens(&c))
        return;
    float product = 0, square = 0;
    for (int x = lane * TSR_VECTOR; x < c.v_dim; x += TSR_WARP * TSR_VECTOR) {
        float a[TSR_VECTOR] = {}, b[TSR_VECTOR];
        if (!given)
            tsr_load8(a, o, row * c.v_dim + x, TSR_BF16);
        tsr_load8(b, d_o, row * c.v_dim + x, TSR_BF16);
#pragma unroll
        for (int i = 0; i < TSR_VECTOR; i++)
            product += a[i] * b[i], square += b[i] * b[i];
    }
    product = given ? given[row] : tsr_warp_sum(product), square = tsr_warp_sum(square);
    if (lane == 0) {
        int kv_head = head / (c.q_heads / c.kv_heads);
        float v_most = __uint_as_float(most[kv_head * (c.dim + 1) + c.dim]);
        float bound = sqrtf(square) * sqrtf(v_most) + fabsf(product);
        delta[(int64_t)head * c.tokens + token] = product;
        units[(int64_t)head * c.tokens + token] = bound == 0         ? 0
                                                  : bound < INFINITY ? LARGEST / bound
                                                                     : NAN;
    }
}

/* ---- the five products ---- */

/* Sums of dq in fixed point, of the key heads from `first` on: tiles of QUERIES rows one after the other, each as the
 * threads of a block hold it. */
typedef struct {
    int32_t *sum;
    const float *units;   /* [Hq, tokens], for columns of keys up to 1 */
    const unsigned *most; /* [Hkv, dim + 1] */
    int first;
} fixed_dq;

static __device__ __forceinline__ void add_fixed(int32_t *to, float value)
{
    asm volatile("red.global.add.s32 [%0], %1;" ::"l"(to), "r"(__float2int_rn(value)) : "memory");
}

/* Rows of a tile of dq that a warp has. Warps with the same rows share the columns, 16 in turn. */
template <int WIDTH, int WARPS, int QUERIES>
static __device__ __forceinline__ constexpr int dq_rows(void)
{
    return WIDTH % (WARPS / (QUERIES / 32) * 16) == 0 ? 32 : 16;
}

/* Queries of a tile and what is known of each; zeros from `end` on. */
template <int WIDTH, int V_WIDTH, int THREADS, int QUERIES>
static __device__ __forceinline__ void
load_queries(uint32_t stage, float *stats, const attention_call *c, const attention_inputs *in,
             const float *units, int head, int query, int end)
{
    rows q = rows_of(in->q, head, c->q_heads, c->dim);
    rows d_o = rows_of(in->d_o, head, c->q_heads, c->v_dim);
    load_tile<WIDTH, QUERIES, THREADS>(stage, &q, query, end);
    load_tile<V_WIDTH, QUERIES, THREADS>(stage + QUERIES * WIDTH * 2, &d_o, query, end);
    for (int i = threadIdx.x; i < STATS * QUERIES; i += THREADS) {
        const float *from = i < QUERIES ? in->lse : i < 2 * QUERIES ? in->delta : units;
        int at = query + i % QUERIES;
        tsr_copy4(stats + i, from + (int64_t)head * c->tokens + at, at < end);
    }
}

/* A left operand of 16 keys and 16 queries to its place; at: this lane's. */
template <int QUERIES>
static __device__ __forceinline__ void put_left(uint32_t at, const uint32_t a[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(moved<QUERIES>(at, i % 2 * 8, i / 2 * 8)),
                     "r"(a[i])
                     : "memory");
}

/* Scores of 32 keys and COUNT queries to weights; lse: of this lane's first query. */
template <int COUNT>
static __device__ __forceinline__ void to_weights(float (*p)[COUNT / 8][4], const float *lse,
                                                  float scale)
{
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++) {
        float2 l = *(const float2 *)(lse + n * 8);
        l.x *= LOG2_E, l.y *= LOG2_E;
#pragma unroll
        for (int i = 0; i < 8; i++)
            p[i / 4][n][i % 4] = power_of_2(p[i / 4][n][i % 4] * scale - (i % 2 ? l.y : l.x));
    }
}

/* Scores of 32 keys and COUNT queries to shares of their cap. */
template <int COUNT>
static __device__ __forceinline__ void cap_scores(float (*p)[COUNT / 8][4], float factor)
{
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            p[i / 4][n][i % 4] = share_of_cap(p[i / 4][n][i % 4], factor);
}

/* Weights of keys that a query does not see become `value`. key: this lane's first, high: where the queries that see it
 * end, query: this lane's first. */
template <int COUNT>
static __device__ __forceinline__ void hide(float (*p)[COUNT / 8][4], int key, const int *high,
                                            int query, const float value)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int from = key + i * 8 - query, to = high[i * 8] - query;
#pragma unroll
        for (int n = 0; n < COUNT / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (n * 8 + j < from || n * 8 + j >= to)
                    p[i / 2][n][i % 2 * 2 + j] = value;
    }
}

/* Gradients of weights to those of unscaled scores; delta: of this lane's first query. */
template <int COUNT>
static __device__ __forceinline__ void
to_gradients(float (*dp)[COUNT / 8][4], const float (*p)[COUNT / 8][4], const float *delta)
{
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++) {
        float2 d = *(const float2 *)(delta + n * 8);
#pragma unroll
        for (int i = 0; i < 8; i++)
            dp[i / 4][n][i % 4] = p[i / 4][n][i % 4] * (dp[i / 4][n][i % 4] - (i % 2 ? d.y : d.x));
    }
}

/* Shares of caps to weights, and gradients of weights to those of unscaled scores, which a cap makes smaller: its slope is
 * 1 - share^2. lse, delta: of this lane's first query; scale: of shares. */
template <int COUNT>
static __device__ __forceinline__ void
to_capped_gradients(float (*dp)[COUNT / 8][4], float (*p)[COUNT / 8][4], const float *lse,
                    const float *delta, float scale)
{
#pragma unroll
    for (int n = 0; n < COUNT / 8; n++) {
        float2 l = *(const float2 *)(lse + n * 8), d = *(const float2 *)(delta + n * 8);
        l.x *= LOG2_E, l.y *= LOG2_E;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float share = p[i / 4][n][i % 4], *gradient = &dp[i / 4][n][i % 4];
            float weight = power_of_2(share * scale - (i % 2 ? l.y : l.x));
            *gradient = weight * (1 - share * share) * (*gradient - (i % 2 ? d.y : d.x));
            p[i / 4][n][i % 4] = weight;
        }
    }
}

/* This warp's part of a tile of dq = gradients times keys, to its sums; ds, k: tiles; units: of the tile's queries;
 * inverse: of the largest key of each column. */
template <int WIDTH, int KEYS, int WARPS, int QUERIES>
static __device__ __forceinline__ void add_dq(int32_t *sum, uint32_t ds, uint32_t k,
                                              const float *units, const float *inverse)
{
    const int count_rows = dq_rows<WIDTH, WARPS, QUERIES>(), groups = QUERIES / count_rows;
    const int columns = WARPS / groups, count = WIDTH / columns;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    int row = warp % groups * count_rows, x = warp / groups * 16;
    float dq[count_rows / 16][count / 8][4] = {};
    ds = moved<QUERIES>(along_rows<QUERIES>(ds), 0, row);
    k = moved<WIDTH>(down_rows<WIDTH>(k), 0, x);
#pragma unroll
    for (int s = 0; s < KEYS / 16; s++) {
        uint32_t left[count_rows / 16][4];
#pragma unroll
        for (int b = 0; b < count_rows / 16; b++)
            load_transposed(left[b], moved<QUERIES>(ds, s * 16, b * 16));
        accumulate<WIDTH, count_rows / 16, count, columns * 16>(dq, left,
                                                                moved<WIDTH>(k, s * 16, 0));
    }
    sum += warp * (count_rows * count) + lane;
#pragma unroll
    for (int i = 0; i < count_rows / 8; i++) {
        float unit = units[row + i * 8 + lane / 4];
#pragma unroll
        for (int n = 0; n < count / 8; n++) {
            const float *pair = dq[i / 2][n] + i % 2 * 2;
            float2 each =
                *(const float2 *)(inverse + n / 2 * (columns * 16) + x + n % 2 * 8 + lane % 4 * 2);
            int32_t *to = sum + (i * (count / 8) + n) * 2 * TSR_WARP;
            add_fixed(to, pair[0] * unit * each.x);
            add_fixed(to + TSR_WARP, pair[1] * unit * each.y);
        }
    }
}

/* Where tiles begin in shared memory. */
typedef struct {
    uint32_t k, v, q, d_o, p, ds; /* p, ds: weights and score gradients, [KEYS][QUERIES] */
} tiles;

/* A warp's keys and what sees them. */
typedef struct {
    int key, end;    /* the first of its 32; where the block's end */
    int own;         /* keys of the block before them */
    int none;        /* where the queries that see any of them end */
    const int *high; /* where those that see each key of the block end */
} warp_keys;

/* Weights and score gradients of a warp's 32 keys and COUNT queries, `mine` queries from the tile's begin and `at` from the
 * tokens': as operands, and in the tiles p and ds. stats: of the tile; factor: of share_of_cap, scale: of scores. */
template <int WIDTH, int V_WIDTH, int QUERIES, int COUNT, bool CAPPED>
static __device__ __forceinline__ void
find_gradients(uint32_t (*weight)[2][4], uint32_t (*gradient)[2][4], const tiles *tile,
               const warp_keys *w, const float *stats, int at, int mine, float factor, float scale)
{
    int lane = threadIdx.x % TSR_WARP, query = lane % 4 * 2, key = lane / 4, own = w->own;
    float p[2][COUNT / 8][4] = {}, dp[2][COUNT / 8][4] = {};
    if (at + COUNT > w->key && at < w->none) {
        multiply<WIDTH, 2, COUNT>(p, moved<WIDTH>(down_rows<WIDTH>(tile->k), own, 0),
                                  moved<WIDTH>(along_rows<WIDTH>(tile->q), mine, 0));
        if (CAPPED)
            cap_scores<COUNT>(p, factor);
        else
            to_weights<COUNT>(p, stats + mine + query, scale * LOG2_E);
        if (at < w->key + 31 || at + COUNT > w->high[own] || w->key + 31 >= w->end)
            hide<COUNT>(p, w->key + key, w->high + own + key, at + query,
                        CAPPED ? HIDDEN_SHARE : 0);
        multiply<V_WIDTH, 2, COUNT>(dp, moved<V_WIDTH>(down_rows<V_WIDTH>(tile->v), own, 0),
                                    moved<V_WIDTH>(along_rows<V_WIDTH>(tile->d_o), mine, 0));
        if (CAPPED)
            to_capped_gradients<COUNT>(dp, p, stats + mine + query, stats + QUERIES + mine + query,
                                       scale * LOG2_E);
    }
    if (!CAPPED)
        to_gradients<COUNT>(dp, p, stats + QUERIES + mine + query);
    uint32_t to = moved<QUERIES>(part_at<QUERIES>(key, 0) + query * 2, own, mine);
#pragma unroll
    for (int s = 0; s < COUNT / 16; s++)
#pragma unroll
        for (int b = 0; b < 2; b++) {
            as_left(weight[s][b], p[b][2 * s], p[b][2 * s + 1]);
            as_left(gradient[s][b], dp[b][2 * s], dp[b][2 * s + 1]);
            put_left<QUERIES>(tile->p + moved<QUERIES>(to, b * 16, s * 16), weight[s][b]);
            put_left<QUERIES>(tile->ds + moved<QUERIES>(to, b * 16, s * 16), gradient[s][b]);
        }
}

/* Both left operands of a warp's 32 keys and 16 queries from the tiles p and ds. */
template <int QUERIES>
static __device__ __forceinline__ void get_left(uint32_t (*weight)[4], uint32_t (*gradient)[4],
                                                const tiles *tile, int own, int query)
{
#pragma unroll
    for (int b = 0; b < 2; b++) {
        load_matrices(weight[b], moved<QUERIES>(down_rows<QUERIES>(tile->p), own + b * 16, query));
        load_matrices(gradient[b],
                      moved<QUERIES>(down_rows<QUERIES>(tile->ds), own + b * 16, query));
    }
}

/* A warp's rows and columns of dk or dv. */
template <int WIDTH, int PARTS>
static __device__ __forceinline__ void
store_sum(const rows *r, const float (*sum)[WIDTH / PARTS / 8][4], int row, int end, float scale)
{
    int part = threadIdx.x / TSR_WARP % PARTS;
    const float factor[2] = {scale, scale};
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (int x = 0; x < WIDTH / PARTS / 16; x++)
            store_rows<2>(r, sum[b] + 2 * x, row + b * 16, (x * PARTS + part) * 16, end, factor);
}

/* Where queries see each key no longer, and the inverse of each column's largest key. */
template <int WIDTH, int KEYS>
static __device__ __forceinline__ void set_up(int *high, float *inverse, const attention_call *c,
                                              const unsigned *most, int first, int end)
{
    for (int i = threadIdx.x; i < KEYS; i += blockDim.x)
        high[i] = first + i < end ? end_query(c, first + i) : 0;
    for (int i = threadIdx.x; i < WIDTH; i += blockDim.x) {
        float largest = i < c->dim ? __uint_as_float(most[i]) : 0;
        inverse[i] = largest < LEAST ? 0 : 1 / largest;
    }
}

/* KEYS of one key head, PARTS warps for each 32; QUERIES at a time. SHARED: a block may leave queries out. */
template <int WIDTH, int V_WIDTH, int KEYS, int PARTS, int QUERIES, bool SHARED, bool CAPPED>
static __global__ void __launch_bounds__(KEYS *PARTS, 1)
    gradients(attention_call c, attention_inputs in, fixed_dq fixed, void *dk, void *dv)
{
    tsr_kernel_begin();
    extern __shared__ __align__(128) char memory[];
    const int threads = KEYS * PARTS, count = QUERIES / PARTS, steps = count / 16;
    const int stage_bytes = QUERIES * (WIDTH + V_WIDTH) * 2, p_bytes = KEYS * QUERIES * 2;
    tiles tile = {.k = tsr_shared_address(memory)};
    tile.v = tile.k + KEYS * WIDTH * 2;
    uint32_t stage = tile.v + KEYS * V_WIDTH * 2; /* two */
    tile.p = stage + 2 * stage_bytes, tile.ds = tile.p + p_bytes;
    float *stats = (float *)(memory + (tile.ds + p_bytes - tile.k)); /* two */
    float *inverse = stats + 2 * STATS * QUERIES;                    /* [WIDTH] */
    int *high = (int *)(inverse + WIDTH);                            /* [KEYS] */
    int group = c.q_heads / c.kv_heads, kv_head = fixed.first + blockIdx.x;
    int head = kv_head * group, last_head = head + group, turn = 0;
    int first = (int)blockIdx.y * KEYS, end = min(first + KEYS, used_tokens(&c));
    int last = first < end ? end_query(&c, end - 1) : first;
    const int start = SHARED ? needed_query(&c, first, first, last) : first;
    int query = start;
    int part = threadIdx.x / TSR_WARP % PARTS, own = (int)threadIdx.x / (TSR_WARP * PARTS) * 32;
    warp_keys w = {first + own, end, own, 0, high};
    w.none = w.key < end ? end_query(&c, min(w.key + 32, end) - 1) : 0;
    float dk_sum[2][WIDTH / PARTS / 8][4] = {}, dv_sum[2][V_WIDTH / PARTS / 8][4] = {};
    rows key = rows_of(in.k, kv_head, c.kv_heads, c.dim);
    rows value = rows_of(in.v, kv_head, c.kv_heads, c.v_dim);
    set_up<WIDTH, KEYS>(high, inverse, &c, fixed.most + kv_head * (c.dim + 1), first, end);
    load_tile<WIDTH, KEYS, threads>(tile.k, &key, first, end);
    load_tile<V_WIDTH, KEYS, threads>(tile.v, &value, first, end);
    if (start < last)
        load_queries<WIDTH, V_WIDTH, threads, QUERIES>(stage, stats, &c, &in, fixed.units, head,
                                                       query, last);
    tsr_copy_commit();
    while (start < last && head < last_head) {
        const float *now = stats + turn * STATS * QUERIES;
        tile.q = stage + turn * stage_bytes, tile.d_o = tile.q + QUERIES * WIDTH * 2;
        int at = query + part * count; /* this warp's first query */
        int index =
            (head - fixed.first * group) * ((c.tokens + QUERIES - 1) / QUERIES) + query / QUERIES;
        tsr_copy_wait();
        __syncthreads();
        query += QUERIES;
        if (SHARED)
            query = needed_query(&c, first, query, last);
        if (query >= last)
            query = start, head++;
        turn ^= 1;
        if (head < last_head)
            load_queries<WIDTH, V_WIDTH, threads, QUERIES>(stage + turn * stage_bytes,
                                                           stats + turn * STATS * QUERIES, &c, &in,
                                                           fixed.units, head, query, last);
        tsr_copy_commit();

        uint32_t weight[steps][2][4], gradient[steps][2][4];
        find_gradients<WIDTH, V_WIDTH, QUERIES, count, CAPPED>(weight, gradient, &tile, &w, now, at,
                                                               part * count, c.share_factor,
                                                               scale_of<CAPPED>(&c));
        uint32_t q_at = moved<WIDTH>(down_rows<WIDTH>(tile.q), 0, part * 16);
        uint32_t d_o_at = moved<V_WIDTH>(down_rows<V_WIDTH>(tile.d_o), 0, part * 16);
#pragma unroll
        for (int s = 0; s < steps; s++)
            accumulate<WIDTH, 2, WIDTH / PARTS, 16 * PARTS>(
                dk_sum, gradient[s], moved<WIDTH>(q_at, part * count + s * 16, 0));
        __syncthreads();
        /* This warp's queries, then those of the others with its keys. */
#pragma unroll
        for (int s = 0; s < PARTS * steps; s++) {
            int from = (part + s / steps) % PARTS * count + s % steps * 16;
            if (s >= steps)
                get_left<QUERIES>(weight[s % steps], gradient[s % steps], &tile, own, from);
            accumulate<V_WIDTH, 2, V_WIDTH / PARTS, 16 * PARTS>(dv_sum, weight[s % steps],
                                                                moved<V_WIDTH>(d_o_at, from, 0));
            if (s >= steps)
                accumulate<WIDTH, 2, WIDTH / PARTS, 16 * PARTS>(dk_sum, gradient[s % steps],
                                                                moved<WIDTH>(q_at, from, 0));
        }
        add_dq<WIDTH, KEYS, threads / TSR_WARP, QUERIES>(
            fixed.sum + (int64_t)index * (QUERIES * WIDTH), tile.ds, tile.k, now + 2 * QUERIES,
            inverse);
    }
    tsr_copy_wait();
    if (SHARED && !is_own(&c, first))
        return;
    rows dk_rows = rows_of(dk, kv_head, c.kv_heads, c.dim);
    rows dv_rows = rows_of(dv, kv_head, c.kv_heads, c.v_dim);
    store_sum<WIDTH, PARTS>(&dk_rows, dk_sum, w.key, c.tokens, c.scale);
    store_sum<V_WIDTH, PARTS>(&dv_rows, dv_sum, w.key, c.tokens, 1);
}

/* A tile of dq from its sums: the threads of a block as above. */
template <int WIDTH, int WARPS, int QUERIES>
static __global__ void __launch_bounds__(WARPS *TSR_WARP)
    finish_dq(attention_call c, fixed_dq fixed, void *dq)
{
    tsr_kernel_begin();
    const int count_rows = dq_rows<WIDTH, WARPS, QUERIES>(), groups = QUERIES / count_rows;
    const int columns = WARPS / groups, count = WIDTH / columns;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP, used = used_tokens(&c);
    int group = c.q_heads / c.kv_heads, head = fixed.first * group + blockIdx.x;
    int first = blockIdx.y * QUERIES + warp % groups * count_rows + lane / 4;
    const unsigned *most = fixed.most + head / group * (c.dim + 1);
    const int32_t *sum = fixed.sum +
                         ((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * (QUERIES * WIDTH) +
                         warp * (count_rows * count) + lane;
    rows out = rows_of(dq, head, c.q_heads, c.dim);
    if (!is_own(&c, blockIdx.y * QUERIES))
        return;
#pragma unroll
    for (int i = 0; i < count_rows / 8; i++) {
        int row = first + i * 8;
        float units = row < used ? fixed.units[(int64_t)head * c.tokens + row] : 0;
        float factor = units == 0 ? 0 : c.scale / units;
#pragma unroll
        for (int n = 0; n < count / 8; n++) {
            int x = n / 2 * (columns * 16) + warp / groups * 16 + n % 2 * 8 + lane % 4 * 2;
            const int32_t *pair = sum + (i * (count / 8) + n) * 2 * TSR_WARP;
            if (row >= c.tokens || x >= c.dim)
                continue;
            *(uint32_t *)((bf16 *)out.data + (int64_t)row * out.stride + x) =
                tsr_pack_bf16((float)pair[0] * (factor * __uint_as_float(most[x])),
                              (float)pair[TSR_WARP] * (factor * __uint_as_float(most[x + 1])));
        }
    }
}

/* ---- host ---- */

typedef void gradients_kernel(attention_call, attention_inputs, fixed_dq, void *, void *);
typedef void finish_kernel(attention_call, fixed_dq, void *);

typedef struct {
    int width, v_width, keys, parts, queries;
    gradients_kernel *gradients, *shared,
        *capped; /* capped: shared or not, NULL as attention_mma.cu has it */
    finish_kernel *finish;
} backward_shape;

#define BACKWARD(width, v_width, keys, parts, queries)                                             \
    {                                                                                              \
        width, v_width, keys, parts, queries,                                                      \
            gradients<width, v_width, keys, parts, queries, false, false>,                         \
            gradients<width, v_width, keys, parts, queries, true, false>, NULL,                    \
            finish_dq<width, keys * parts / TSR_WARP, queries>                                     \
    }

#define BACKWARD_CAPPED(width, v_width, keys, parts, queries)                                      \
    {                                                                                              \
        width, v_width, keys, parts, queries,                                                      \
            gradients<width, v_width, keys, parts, queries, false, false>,                         \
            gradients<width, v_width, keys, parts, queries, true, false>,                          \
            gradients<width, v_width, keys, parts, queries, true, true>,                           \
            finish_dq<width, keys * parts / TSR_WARP, queries>                                     \
    }

/* By width, then the largest blocks first. */
static const backward_shape shapes[] = {
    BACKWARD(64, 64, 128, 2, 64),          BACKWARD(64, 64, 64, 2, 64),
    BACKWARD(96, 96, 128, 2, 64),          BACKWARD(96, 96, 64, 2, 32),
    BACKWARD_CAPPED(128, 128, 128, 2, 64), BACKWARD_CAPPED(128, 128, 64, 2, 64),
    BACKWARD_CAPPED(128, 128, 64, 2, 32),  BACKWARD(192, 128, 128, 2, 32),
    BACKWARD(192, 128, 64, 2, 32),         BACKWARD_CAPPED(256, 256, 64, 4, 64),
};

/* dq's sums: where documents are long, of fewer key heads at a time. */
#define SUM_BYTES ((uint64_t)256 << 20)
#define SUM_ROWS  64 /* a multiple of every shape's queries */

/* Columns of the sums; 0: no shape holds the heads. */
static int width_of(int dim, int v_dim, bool capped)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (dim <= shapes[i].width && v_dim <= shapes[i].v_width && (!capped || shapes[i].capped))
            return shapes[i].width;
    return 0;
}

/* Sums of one key head's group. */
static uint64_t group_bytes(int64_t tokens, int q_heads, int kv_heads, int width)
{
    uint64_t padded = (uint64_t)(tokens + SUM_ROWS - 1) / SUM_ROWS * SUM_ROWS;
    return padded * (uint64_t)(q_heads / kv_heads) * (uint64_t)width * sizeof(int32_t);
}

static uint64_t sum_bytes(int64_t tokens, int q_heads, int kv_heads, int width)
{
    uint64_t one = group_bytes(tokens, q_heads, kv_heads, width), all = one * (uint64_t)kv_heads;
    return all <= SUM_BYTES ? all : one > SUM_BYTES ? one : SUM_BYTES;
}

uint64_t attention_mma_workspace_bytes(const tsr_attention_bounds *b)
{
    int v_dim = tsr_attention_v_dim(b->v_dim, b->head_dim);
    int width = width_of(b->head_dim, v_dim, b->softcap > 0);
    uint64_t most = attention_bounds_bytes(b->kv_heads, b->head_dim);
    uint64_t rows = (uint64_t)b->tokens * (uint64_t)b->q_heads * sizeof(float);
    if (b->dtype != TSR_BF16 || !b->train || !width || b->kv_heads < 1)
        return 0;
    return sum_bytes(b->tokens, b->q_heads, b->kv_heads, width) + most + 2 * rows;
}

static int bytes_of(const backward_shape *s)
{
    int tiles = (s->keys + 2 * s->queries) * (s->width + s->v_width) + 2 * s->keys * s->queries;
    return tiles * (int)sizeof(bf16) +
           (2 * STATS * s->queries + s->width + s->keys) * (int)sizeof(float);
}

/* The largest blocks that fit; where those leave multiprocessors without work, the next smaller ones. */
static const backward_shape *shape_for(const attention_call *c, const tsr_attention_card *card)
{
    const backward_shape *found = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const backward_shape *s = &shapes[i];
        if (c->dim > s->width || c->v_dim > s->v_width || bytes_of(s) > card->shared_bytes ||
            (c->softcap > 0 && !s->capped))
            continue;
        if (found && (s->width != found->width || s->v_width != found->v_width))
            return found;
        found = s;
        if ((int64_t)tsr_blocks(c->tokens, s->keys) * c->all_kv_heads > card->sm_count)
            return found;
    }
    return found;
}

bool attention_mma_takes_backward(const attention_call *c, const tsr_attention_card *card)
{
    return attention_mma_takes(c) && shape_for(c, card);
}

tsr_status attention_mma_backward(tsr_stream *stream, const attention_call *c,
                                  const tsr_attention_backward_args *args,
                                  const tsr_attention_card *card)
{
    const backward_shape *shape = shape_for(c, card);
    int group = c->q_heads / c->kv_heads, bytes = bytes_of(shape);
    uint64_t one = group_bytes(c->tokens, c->q_heads, c->kv_heads, shape->width);
    uint64_t sums = sum_bytes(c->tokens, c->q_heads, c->kv_heads, shape->width);
    int64_t stats = (int64_t)c->tokens * c->q_heads;
    int32_t *sum = (int32_t *)args->shape.workspace;
    unsigned *most = (unsigned *)((char *)sum + sums);
    float *delta = (float *)((char *)most + attention_bounds_bytes(c->kv_heads, c->dim));
    float *units = delta + stats;
    attention_inputs in = {args->q, args->k, args->v, args->d_o, args->lse, delta};
    unsigned threads = (unsigned)(shape->keys * shape->parts);
    gradients_kernel *gradients = c->softcap > 0 ? shape->capped
                                  : c->span      ? shape->shared
                                                 : shape->gradients;
    finish_kernel *finish = shape->finish;
    TSR_TRY(tsr_allow_shared(stream, (const void *)gradients, bytes, "attention_backward"));
    TSR_TRY(attention_bound_keys(stream, c, args->k, args->v, most));
    TSR_LAUNCH(find_units, tsr_blocks(stats, ROW_THREADS / TSR_WARP), ROW_THREADS, stream, *c,
               args->o, args->d_o, args->delta, most, delta, units);
    int at_once = (int)(sums / one);
    for (int first = 0; first < c->kv_heads; first += at_once) {
        int heads = at_once < c->kv_heads - first ? at_once : c->kv_heads - first;
        fixed_dq fixed = {sum, units, most, first};
        TSR_TRY(tsr_stream_fill(stream, sum, 0, one * (uint64_t)heads));
        dim3 blocks((unsigned)heads, tsr_blocks(c->tokens, shape->keys));
        TSR_LAUNCH_SHARED(gradients, blocks, threads, bytes, stream, *c, in, fixed, args->dk,
                          args->dv);
        TSR_TRY(tsr_launched("attention_backward"));
        tsr_stream *rest;
        TSR_TRY(attention_add_up(&rest, stream, &args->shape, sum,
                                 one / sizeof *sum * (uint64_t)heads,
                                 first + heads == c->kv_heads));
        dim3 tiles((unsigned)(heads * group), tsr_blocks(c->tokens, shape->queries));
        TSR_LAUNCH(finish, tiles, threads, rest, *c, fixed, args->dq);
    }
    return tsr_launched("attention_backward");
}
