/*
 * attention_wgmma.cu: contract attention_wgmma.h: the products, and the launches of a call.
 *
 * Split    A block has 128 keys of one key head, and goes through tiles of 64 queries of all heads of its group that see one
 *          of them, head after head. Two groups of four warps have 64 keys each: their dk and dv in 128 registers, scores and
 *          their gradients transposed, keys by queries, so that P is the left operand of dv as it lies in registers. dS goes
 *          through shared memory: both groups need it whole for dq, 64 columns each. One thread of a third group fetches.
 *          Where there are few blocks, those with most tiles go first, so that multiprocessors end together: 4 documents of 2048
 *          with 4 key heads take 0.98 ms, in the order of the tokens 1.14. With 32 key heads it is 1.21, in order 0.93: what blocks of a
 *          document read and add to is in L2 then.
 * Overlap  While P is made of the scores of a tile, dP is multiplied, while dS is made dv, and while the share of dq becomes
 *          integers and leaves, dk. One barrier of both groups a tile: dS is written.
 * Shares   A warp adds its 16 x 64 part of a tile to memory by one copy of 4 KB from shared memory.
 * Shared   A block whose keys are another rank's (spans.h) goes through the own queries that see them, for dq, or through
 *          none where sums of dq are added up over the ranks. Units are those of all keys, and so the bits.
 * Padding  May be anything. Scores of pairs that do not see each other become weights of 0; rows of no document become 0 in
 *          shared memory, where they would meet such weights.
 * Cost     10 D FLOPs a visible pair and query head; for 64 x 128 pairs 64 KB from L2 and to it. On an H200 (32 query heads,
 *          8 key heads), with what comes before and after: 0.74 ms for 4096 tokens (463 TFLOP/s), 11.2 for 16384 (490), 171
 *          for 65536 (515). This kernel is 10.6 of the 11.2 ms; without shares of dq it would be 7.6, with shares in fp32 10.1.
 */
#include "kernels/attention_wgmma.cuh"
#include "kernels/boxes.cuh"

extern "C" {
#include "base/checked.h"
}

#define GROUPS    TSR_WGMMA_GROUPS
#define THREADS   ((GROUPS + 1) * TSR_WARPGROUP)
#define DIM       TSR_WGMMA_DIM
#define LEAST_DIM 64 /* up to which attention_mma_backward.cu is as fast */
#define KEYS      TSR_WGMMA_KEYS
#define QUERIES   TSR_WGMMA_QUERIES
#define STAGES    2 /* of queries */
/* From so many blocks on in turn: multiprocessors end together all the same, and neighbours share what they read. */
#define MANY_BLOCKS (2 * TSR_WGMMA_BLOCKS)

/* Shared memory. A matrix is two strips of 64 columns, 128 bytes a row. */
#define KEY_STRIP   (KEYS * 128)
#define QUERY_STRIP (QUERIES * 128)
#define QUERY_BYTES (2 * QUERY_STRIP)
#define STATS       (QUERIES * (int)sizeof(float)) /* lse, delta or units of a tile */
#define PART_BYTES  (16 * 64 * 4)                  /* of a share of dq, a warp's */
#define AT_K        0
#define AT_V        (AT_K + 2 * KEY_STRIP)
#define AT_Q        (AT_V + 2 * KEY_STRIP)
#define AT_D_O      (AT_Q + STAGES * QUERY_BYTES)
#define AT_DS                                                                                      \
    (AT_D_O + STAGES * QUERY_BYTES) /* two of [keys, queries]: one is written while one is read */
#define AT_PARTS  (AT_DS + 2 * KEY_STRIP)
#define AT_STATS  (AT_PARTS + GROUPS * 4 * PART_BYTES)
#define AT_UNITS  (AT_STATS + STAGES * 3 * STATS)
#define ALIGNMENT 1024
#define BYTES     (AT_UNITS + DIM * (int)sizeof(float) + ALIGNMENT)

typedef struct {
    CUtensorMap q, d_o, k, v;
} attention_maps;

typedef struct {
    void *dk, *dv;
} attention_key_gradients;

/* Where a block's things are, and what it goes through. */
typedef struct {
    const attention_wgmma_work *w;
    uint32_t memory, full_k, full_q, full_o, empty_q, empty_o; /* shared */
    int used, kv_head, first, end, start, last; /* keys [first, end), queries [start, last) */
    int tiles, count;                           /* of a query head; of all */
} attention_block;

/* Where a group is: tile `index` of the block's, in a stage. */
typedef struct {
    int index, query, stage, parity;
} attention_at;

/* SHARED: a block may leave queries out. */
template <bool SHARED>
static __device__ __forceinline__ attention_at after(const attention_block *b, attention_at at)
{
    bool wraps = at.stage == STAGES - 1;
    int query = at.query + QUERIES;
    if (SHARED)
        query = needed_query(&b->w->call, b->first, query, b->last);
    attention_at next = {at.index + 1, query < b->last ? query : b->start, wraps ? 0 : at.stage + 1,
                         wraps ? at.parity ^ 1 : at.parity};
    return next;
}

static __device__ __forceinline__ uint32_t stats_of(const attention_block *b, int stage)
{
    return b->memory + AT_STATS + (uint32_t)stage * 3 * STATS;
}

/* ---- copies: one thread ---- */

/* Both strips of rows from `row` on. */
static __device__ __forceinline__ void
fetch_rows(uint32_t to, uint32_t strip, const CUtensorMap *map, int head, int row, uint32_t barrier)
{
    for (int i = 0; i < 2; i++)
        tsr_box_copy_of(to + i * strip, map, i * 64, row, head, barrier);
}

static __device__ __forceinline__ void
fetch_tile(const attention_block *b, const attention_maps *maps, int head, const attention_at *at)
{
    const attention_wgmma_work *w = b->w;
    uint32_t stats = stats_of(b, at->stage), place = (uint32_t)at->stage * QUERY_BYTES;
    uint32_t full_q = b->full_q + 8 * at->stage, full_o = b->full_o + 8 * at->stage;
    int64_t row = (int64_t)head * w->padded + at->query;
    tsr_barrier_wait(b->empty_q + 8 * at->stage, at->parity ^ 1);
    tsr_barrier_expect(full_q, QUERY_BYTES + STATS);
    fetch_rows(b->memory + AT_Q + place, QUERY_STRIP, &maps->q, head, at->query, full_q);
    tsr_bulk_fetch(stats, w->lse + row, STATS, full_q);
    tsr_barrier_wait(b->empty_o + 8 * at->stage, at->parity ^ 1);
    tsr_barrier_expect(full_o, QUERY_BYTES + 2 * STATS);
    fetch_rows(b->memory + AT_D_O + place, QUERY_STRIP, &maps->d_o, head, at->query, full_o);
    tsr_bulk_fetch(stats + STATS, w->delta + row, STATS, full_o);
    tsr_bulk_fetch(stats + 2 * STATS, w->row_unit + row, STATS, full_o);
}

template <bool SHARED>
static __device__ __forceinline__ void fetch(const attention_block *b, const attention_maps *maps)
{
    int head = b->kv_head * (b->w->call.q_heads / b->w->call.kv_heads);
    attention_at at = {0, b->start, 0, 0};
    if (b->count == 0)
        return;
    tsr_barrier_expect(b->full_k, 4 * KEY_STRIP);
    fetch_rows(b->memory + AT_K, KEY_STRIP, &maps->k, b->kv_head, b->first, b->full_k);
    fetch_rows(b->memory + AT_V, KEY_STRIP, &maps->v, b->kv_head, b->first, b->full_k);
    for (int end = b->tiles; at.index < b->count; head++, end += b->tiles)
        for (; at.index < end; at = after<SHARED>(b, at))
            fetch_tile(b, maps, head, &at);
}

/* ---- products ---- */

/* A thread of the groups. Its keys are two rows of scores, key and key + 8; [key, high) are the queries that see one. */
typedef struct {
    int group, warp, lane, key, high[2];
    int whole_from, whole_to; /* tiles of [whole_from, whole_to) see all keys of its group */
    float scale;              /* of scores, in base 2 */
} attention_thread;

/* 64 x 64 products over 128 columns of both: `left` from its first strip on, `right`. */
static __device__ __forceinline__ void multiply_rows(float c[8][4], uint32_t left, uint32_t right)
{
    const uint64_t a = tsr_wgmma_rows(left), b = tsr_wgmma_rows(right);
    tsr_wgmma_begin();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        tsr_wgmma_64<0, 0>(c, a + (i / 4 * KEY_STRIP + i % 4 * 32) / 16,
                           b + (i / 4 * QUERY_STRIP + i % 4 * 32) / 16, i);
    tsr_wgmma_commit();
}

/* K Q^T of a tile, once that has come. */
static __device__ __forceinline__ void ask_scores(float s[8][4], const attention_block *b,
                                                  const attention_thread *t, const attention_at *at)
{
    uint32_t q = b->memory + AT_Q + (uint32_t)at->stage * QUERY_BYTES;
    tsr_barrier_wait(b->full_q + 8 * at->stage, at->parity);
    attention_clear_rows<2>(q, QUERY_STRIP, b->used - at->query, QUERIES);
    multiply_rows(s, b->memory + AT_K + t->group * 64 * 128, q);
}

/* V dO^T. */
static __device__ __forceinline__ void ask_gradients(float dp[8][4], const attention_block *b,
                                                     const attention_thread *t,
                                                     const attention_at *at)
{
    uint32_t d_o = b->memory + AT_D_O + (uint32_t)at->stage * QUERY_BYTES;
    tsr_barrier_wait(b->full_o + 8 * at->stage, at->parity);
    attention_clear_rows<2>(d_o, QUERY_STRIP, b->used - at->query, QUERIES);
    multiply_rows(dp, b->memory + AT_V + t->group * 64 * 128, d_o);
}

static __device__ __forceinline__ float2 load_pair(uint32_t from)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from));
    return v;
}

static __device__ __forceinline__ float load_one(uint32_t from)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from));
    return v;
}

static __device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Scores become weights, and these a left operand of 64 products: p. A capped score's weight is left times the slope of its cap,
 * 1 - share^2: so its gradient is made of it. */
template <bool CAPPED>
static __device__ __forceinline__ void weigh(float s[8][4], uint32_t p[4][4],
                                             const attention_block *b, const attention_thread *t,
                                             const attention_at *at)
{
    const int column = t->lane % 4 * 2;
    if (CAPPED)
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i / 4][i % 4] = share_of_cap(s[i / 4][i % 4], b->w->call.share_factor);
    if (at->query < t->whole_from || at->query + QUERIES > t->whole_to)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int query = at->query + n * 8 + column + j % 2;
                bool seen = query >= t->key + j / 2 * 8 && query < t->high[j / 2];
                s[n][j] = seen ? s[n][j] : CAPPED ? HIDDEN_SHARE : -INFINITY;
            }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 lse = load_pair(stats_of(b, at->stage) + (n * 8 + column) * 4);
        float slope[4];
#pragma unroll
        for (int j = 0; CAPPED && j < 4; j++)
            slope[j] = 1 - s[n][j] * s[n][j];
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[n][j] = power_of_2(s[n][j] * t->scale - (j % 2 ? lse.y : lse.x));
        p[n / 2][n % 2 * 2] = tsr_pack_bf16(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = tsr_pack_bf16(s[n][2], s[n][3]);
#pragma unroll
        for (int j = 0; CAPPED && j < 4; j++)
            s[n][j] *= slope[j];
    }
}

/* 16 keys by 16 queries; lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t r[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* dS = P (dP - delta) goes to `ds`. */
static __device__ __forceinline__ void store_score_gradients(uint32_t ds, const float p[8][4],
                                                             const float dp[8][4],
                                                             const attention_block *b,
                                                             const attention_thread *t, int stage)
{
    const int row = t->group * 64 + t->warp * 16 + t->lane % 16;
    const uint32_t to = ds + row * 128 + (t->lane / 16 ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t word[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int n = 2 * i + half;
            float2 delta = load_pair(stats_of(b, stage) + STATS + (n * 8 + t->lane % 4 * 2) * 4);
            word[2 * half] =
                tsr_pack_bf16(p[n][0] * (dp[n][0] - delta.x), p[n][1] * (dp[n][1] - delta.y));
            word[2 * half + 1] =
                tsr_pack_bf16(p[n][2] * (dp[n][2] - delta.x), p[n][3] * (dp[n][3] - delta.y));
        }
        store_matrices(to ^ i * 32, word);
    }
}

/* dq of the tile, the group's columns: dS K; and the group's dk += dS^T Q. */
static __device__ __forceinline__ void ask_dq_dk(float dq[8][4], float dk[16][4],
                                                 const attention_block *b,
                                                 const attention_thread *t, uint32_t ds, uint32_t q)
{
    const uint64_t left = tsr_wgmma_columns(ds, 0);
    const uint64_t keys = tsr_wgmma_columns(b->memory + AT_K + t->group * KEY_STRIP, 0);
    const uint64_t own = tsr_wgmma_rows(ds + t->group * 64 * 128);
    const uint64_t queries = tsr_wgmma_columns(q, QUERY_STRIP);
    tsr_wgmma_begin();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        tsr_wgmma_64<1, 1>(dq, left + i * 2048 / 16, keys + i * 2048 / 16, i);
    tsr_wgmma_commit();
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++)
        tsr_wgmma_128<1>(dk, own + i * 32 / 16, queries + i * 2048 / 16, true);
    tsr_wgmma_commit();
}

/* dv += P^T dO */
static __device__ __forceinline__ void ask_dv(float dv[16][4], const uint32_t p[4][4], uint32_t d_o)
{
    const uint64_t gradients = tsr_wgmma_columns(d_o, QUERY_STRIP);
    tsr_wgmma_begin();
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++)
        tsr_wgmma_128_of<1>(dv, p[i], gradients + i * 2048 / 16);
    tsr_wgmma_commit();
}

/* A warp's part of a share of dq in units of its sums. */
static __device__ __forceinline__ void add_share(const float dq[8][4], const attention_block *b,
                                                 const attention_thread *t, const float unit[2],
                                                 int32_t *sum)
{
    const int part = t->group * 4 + t->warp, column = t->group * 64 + t->lane % 4 * 2;
    const uint32_t place = b->memory + AT_PARTS + part * PART_BYTES;
    if (t->lane == 0)
        tsr_bulk_read();
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 across = load_pair(b->memory + AT_UNITS + (column + n * 8) * 4);
        asm volatile(
            "st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(place + n * 512 + t->lane * 16),
            "r"(__float2int_rn(dq[n][0] * unit[0] * across.x)),
            "r"(__float2int_rn(dq[n][1] * unit[0] * across.y)),
            "r"(__float2int_rn(dq[n][2] * unit[1] * across.x)),
            "r"(__float2int_rn(dq[n][3] * unit[1] * across.y))
            : "memory");
    }
    tsr_bulk_written();
    __syncwarp();
    if (t->lane == 0)
        tsr_bulk_add(sum + part * (PART_BYTES / 4), place, PART_BYTES);
}

/* Where the sums of the block's first tile of query head `head` of its group are. */
static __device__ __forceinline__ int32_t *sums_of(const attention_block *b, int head)
{
    const attention_wgmma_work *w = b->w;
    int64_t tiles = w->padded / QUERIES, group = w->call.q_heads / w->call.kv_heads;
    int64_t row = (b->kv_head - w->first_kv) * group + head;
    return w->sum + (row * tiles + b->start / QUERIES) * TSR_WGMMA_TILE;
}

template <bool CAPPED>
static __device__ __forceinline__ attention_thread thread_of(const attention_block *b)
{
    const attention_call *c = &b->w->call;
    attention_thread t = {};
    t.group = __shfl_sync(0xffffffffu, (int)threadIdx.x / TSR_WARPGROUP, 0);
    t.warp = (int)threadIdx.x % TSR_WARPGROUP / TSR_WARP;
    t.lane = (int)threadIdx.x % TSR_WARP;
    t.key = b->first + t.group * 64 + t.warp * 16 + t.lane / 4;
    for (int half = 0; half < 2; half++)
        t.high[half] = t.key + 8 * half < b->end ? end_query(c, t.key + 8 * half) : 0;
    t.whole_from = b->first + t.group * 64 + 63;
    t.whole_to = b->end == b->first + KEYS ? end_query(c, b->first) : 0;
    t.scale = scale_of<CAPPED>(c) * LOG2_E;
    return t;
}

/* A tile: its share of dq, of dk and of dv. */
template <bool CAPPED>
static __device__ __forceinline__ void
multiply_tile(float dk[16][4], float dv[16][4], const attention_block *b, const attention_thread *t,
              const attention_at *at, int32_t *sum)
{
    const uint32_t place = (uint32_t)at->stage * QUERY_BYTES;
    const uint32_t ds = b->memory + AT_DS + (uint32_t)(at->index % 2) * KEY_STRIP;
    float s[8][4], dp[8][4], dq[8][4];
    uint32_t p[4][4];
    ask_scores(s, b, t, at);
    ask_gradients(dp, b, t, at);
    tsr_wgmma_wait_but<1>();
    tsr_wgmma_sums<8>(s);
    weigh<CAPPED>(s, p, b, t, at);
    ask_dv(dv, p, b->memory + AT_D_O + place);
    tsr_wgmma_wait_but<1>();
    tsr_wgmma_sums<8>(dp);
    store_score_gradients(ds, s, dp, b, t, at->stage);
    tsr_bulk_written();
    attention_both_groups();
    ask_dq_dk(dq, dk, b, t, ds, b->memory + AT_Q + place);
    const uint32_t units = stats_of(b, at->stage) + 2 * STATS + (t->warp * 16 + t->lane / 4) * 4;
    const float unit[2] = {load_one(units), load_one(units + 8 * 4)};
    tsr_wgmma_wait_but<1>();
    tsr_wgmma_sums<8>(dq);
    attention_release(b->empty_o + 8 * at->stage);
    add_share(dq, b, t, unit, sum);
    tsr_wgmma_wait_but<0>();
    attention_release(b->empty_q + 8 * at->stage);
}

/* All tiles of a block that has some. */
template <bool SHARED, bool CAPPED>
static __device__ __forceinline__ void multiply(float dk[16][4], float dv[16][4],
                                                const attention_block *b, const attention_thread *t)
{
    attention_at at = {0, b->start, 0, 0}, next;
    int head = 0;
    int32_t *sum = sums_of(b, 0);
    tsr_barrier_wait(b->full_k, 0);
    attention_clear_rows<2>(b->memory + AT_K, KEY_STRIP, b->end - b->first, KEYS);
    attention_clear_rows<2>(b->memory + AT_V, KEY_STRIP, b->end - b->first, KEYS);
    for (; at.index < b->count; at = next) {
        multiply_tile<CAPPED>(dk, dv, b, t, &at, sum);
        next = after<SHARED>(b, at);
        if (next.query > at.query)
            sum += (next.query - at.query) * DIM;
        else
            sum = sums_of(b, ++head);
    }
    tsr_wgmma_sums<16>(dk);
    tsr_wgmma_sums<16>(dv);
}

/* A thread's two rows of [tokens, Hkv, dim]. */
static __device__ __forceinline__ void store_keys(void *out, const float sum[16][4], int dim,
                                                  float factor, const attention_block *b,
                                                  const attention_thread *t)
{
    const attention_call *c = &b->w->call;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t key = t->key + 8 * half, at = (key * c->kv_heads + b->kv_head) * dim;
#pragma unroll
        for (int n = 0; n < 16; n += 4) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                word[i] =
                    tsr_pack_bf16(sum[n + i][2 * half] * factor, sum[n + i][2 * half + 1] * factor);
            tsr_quad_words(word);
            if (key < c->tokens && (n + t->lane % 4) * 8 < dim)
                *(uint4 *)((uint16_t *)out + at + (n + t->lane % 4) * 8) =
                    make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

/* ---- the kernel ---- */

static __device__ __forceinline__ attention_block block_of(const attention_wgmma_work *w,
                                                           uint32_t memory, uint32_t barriers)
{
    attention_block b = {w, (memory + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, barriers};
    b.full_q = b.full_k + 8;
    b.full_o = b.full_q + 8 * STAGES;
    b.empty_q = b.full_o + 8 * STAGES;
    b.empty_o = b.empty_q + 8 * STAGES;
    b.used = used_tokens(&w->call);
    b.kv_head = w->first_kv + (int)blockIdx.x % w->kv_count;
    int block = (int)blockIdx.x / w->kv_count;
    attention_wgmma_keys keys =
        attention_wgmma_keys_at(&w->call, (w->order ? w->order[block] : block) * KEYS);
    b.first = keys.first, b.end = keys.end, b.start = keys.start, b.last = keys.last;
    b.tiles = keys.tiles;
    b.count = b.tiles * (w->call.q_heads / w->call.kv_heads);
    return b;
}

static __device__ __forceinline__ void begin_block(const attention_block *b)
{
    if (threadIdx.x == 0) {
        tsr_barrier_init(b->full_k, 1);
        for (int i = 0; i < STAGES; i++) {
            tsr_barrier_init(b->full_q + 8 * i, 1);
            tsr_barrier_init(b->full_o + 8 * i, 1);
            tsr_barrier_init(b->empty_q + 8 * i, GROUPS * TSR_WARPGROUP / TSR_WARP);
            tsr_barrier_init(b->empty_o + 8 * i, GROUPS * TSR_WARPGROUP / TSR_WARP);
        }
        tsr_barrier_made();
    }
    if (threadIdx.x < DIM)
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(b->memory + AT_UNITS + threadIdx.x * 4),
                     "f"(attention_wgmma_column_unit(b->w, b->kv_head, (int)threadIdx.x))
                     : "memory");
    __syncthreads();
}

template <bool SHARED, bool CAPPED>
static __device__ __forceinline__ void backward(const attention_wgmma_work *w,
                                                const attention_maps *maps,
                                                const attention_key_gradients *g)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ __align__(8) uint64_t barriers[1 + 4 * STAGES];
    attention_block b = block_of(w, tsr_shared_address(memory), tsr_shared_address(barriers));
    begin_block(&b);
    if (threadIdx.x >= GROUPS * TSR_WARPGROUP) {
        TSR_REGISTERS_DOWN(24);
        if (threadIdx.x == GROUPS * TSR_WARPGROUP)
            fetch<SHARED>(&b, maps);
    } else {
        TSR_REGISTERS_UP(240);
        float dk[16][4] = {}, dv[16][4] = {};
        const attention_thread t = thread_of<CAPPED>(&b);
        if (b.count)
            multiply<SHARED, CAPPED>(dk, dv, &b, &t);
        if (!SHARED || is_own(&w->call, b.first)) {
            store_keys(g->dk, dk, w->call.dim, w->call.scale, &b, &t);
            store_keys(g->dv, dv, w->call.v_dim, 1, &b, &t);
        }
        if (t.lane == 0)
            tsr_bulk_finish();
    }
}

/* Never called: a template that has no instance on other cards would leave what it uses without a user there. */
static __device__ __forceinline__ __attribute__((unused)) void
use_both(const attention_wgmma_work *w, const attention_maps *maps,
         const attention_key_gradients *g)
{
    backward<false, false>(w, maps, g);
    backward<true, true>(w, maps, g);
}

template <bool SHARED, bool CAPPED>
static __global__ void TSR_SM90_BOUNDS(THREADS)
    backward_blocks(const __grid_constant__ attention_wgmma_work w,
                    const __grid_constant__ attention_maps maps,
                    const __grid_constant__ attention_key_gradients g)
{
    tsr_kernel_begin();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    backward<SHARED, CAPPED>(&w, &maps, &g);
#endif
}

/* ---- the workspace ---- */

typedef struct {
    char *memory; /* NULL: only counted */
    uint64_t bytes;
} attention_room;

static void *take(attention_room *room, int64_t count, uint64_t element)
{
    char *taken = room->memory ? room->memory + room->bytes : NULL;
    room->bytes += tsr_align_up((uint64_t)count * element, TSR_ALIGNMENT);
    return taken;
}

static int64_t padded_tokens(int64_t tokens)
{
    return (tokens + KEYS - 1) / KEYS * KEYS;
}

/* All but the sums, which come last. */
static void lay_out(attention_wgmma_work *w, attention_room *room, int64_t tokens, int64_t q_heads,
                    int64_t kv_heads)
{
    int64_t rows = q_heads * padded_tokens(tokens);
    w->lse = (float *)take(room, rows, sizeof(float));
    w->delta = (float *)take(room, rows, sizeof(float));
    w->row_unit = (float *)take(room, rows, sizeof(float));
    w->most = (unsigned *)take(room, (int64_t)attention_bounds_bytes((int)kv_heads, DIM), 1);
    w->order = (int *)take(room, padded_tokens(tokens) / KEYS, sizeof(int));
    w->sum = (int32_t *)take(room, 0, 0);
}

/* Sums of the query heads of one key head. */
static uint64_t group_bytes(int64_t tokens, int64_t q_heads, int64_t kv_heads)
{
    return (uint64_t)(q_heads / kv_heads * padded_tokens(tokens) * DIM) * sizeof(int32_t);
}

static bool fits(int32_t dim)
{
    return dim > LEAST_DIM && dim <= DIM && dim % TSR_VECTOR == 0;
}

bool tsr_attention_wgmma_fits(const tsr_attention_bounds *b)
{
    return b->train && b->dtype == TSR_BF16 && fits(b->head_dim) &&
           fits(tsr_attention_v_dim(b->v_dim, b->head_dim)) && attention_takes_cap(b->softcap) &&
           b->tokens > 0;
}

uint64_t tsr_attention_wgmma_workspace_bytes(const tsr_attention_bounds *b)
{
    attention_wgmma_work w;
    attention_room room = {};
    lay_out(&w, &room, b->tokens, b->q_heads, b->kv_heads);
    uint64_t group = group_bytes(b->tokens, b->q_heads, b->kv_heads);
    uint64_t all = (uint64_t)b->kv_heads * group;
    uint64_t most = group > TSR_WGMMA_SUM_BYTES ? group : TSR_WGMMA_SUM_BYTES;
    return room.bytes + (all < most ? all : most);
}

/* ---- launching ---- */

bool tsr_attention_wgmma_takes(const tsr_stream *stream, const tsr_attention_backward_args *a)
{
    const tsr_attention_shape *s = &a->shape;
    tsr_attention_bounds b = {};
    b.tokens = s->tokens, b.head_dim = s->head_dim, b.v_dim = s->v_dim;
    b.softcap = s->softcap, b.dtype = s->dtype, b.train = true;
    const tsr_kernels_context *context = tsr_kernels_kept(stream);
    return context && context->boxes && tsr_attention_wgmma_fits(&b) &&
           s->tokens <= INT32_MAX - 2 * KEYS && tsr_attention_scale(s) > 0 &&
           tsr_vectors(0, a->q, a->k, a->v, a->o, a->d_o, a->dq, a->dk, a->dv);
}

static bool map_all(attention_maps *maps, void *boxes, const tsr_attention_backward_args *a)
{
    const tsr_attention_shape *s = &a->shape;
    int64_t dim = s->head_dim, v_dim = tsr_attention_v_dim(s->v_dim, s->head_dim);
    return tsr_map_heads(&maps->q, boxes, a->q, s->q_heads, s->tokens, dim, QUERIES) &&
           tsr_map_heads(&maps->d_o, boxes, a->d_o, s->q_heads, s->tokens, v_dim, QUERIES) &&
           tsr_map_heads(&maps->k, boxes, a->k, s->kv_heads, s->tokens, dim, KEYS) &&
           tsr_map_heads(&maps->v, boxes, a->v, s->kv_heads, s->tokens, v_dim, KEYS);
}

static attention_wgmma_work work_of(const tsr_attention_shape *s)
{
    attention_wgmma_work w = {};
    w.call = attention_call_of(s, true);
    w.padded = (int)padded_tokens(s->tokens);
    return w;
}

/* As many key heads a launch as there is room for, in launches of one size. */
static tsr_status find_room(attention_wgmma_work *w, const tsr_attention_shape *s)
{
    attention_room room = {(char *)s->workspace, 0};
    lay_out(w, &room, s->tokens, s->q_heads, s->kv_heads);
    uint64_t group = group_bytes(s->tokens, s->q_heads, s->kv_heads), need = room.bytes + group;
    if (!s->workspace || s->workspace_bytes < need || (uintptr_t)s->workspace % TSR_ALIGNMENT)
        return tsr_fail(
            TSR_EINVAL, "attention_backward: a workspace of %llu bytes at %p, %llu are needed",
            (unsigned long long)s->workspace_bytes, s->workspace, (unsigned long long)need);
    uint64_t heads = (s->workspace_bytes - room.bytes) / group;
    int most = heads < (uint64_t)s->kv_heads ? (int)heads : s->kv_heads;
    int launches = (s->kv_heads + most - 1) / most;
    w->kv_count = (s->kv_heads + launches - 1) / launches;
    return TSR_OK;
}

typedef void backward_kernel(const attention_wgmma_work, const attention_maps,
                             const attention_key_gradients);

tsr_status tsr_attention_backward_wgmma(tsr_stream *stream, const tsr_attention_backward_args *a,
                                        bool by_token)
{
    const char *op = "attention_backward";
    const tsr_attention_shape *s = &a->shape;
    attention_maps maps = {};
    attention_key_gradients gradients = {a->dk, a->dv};
    attention_wgmma_work w = work_of(s);
    w.by_token = by_token;
    TSR_TRY(find_room(&w, s));
    if (!map_all(&maps, tsr_kernels_kept(stream)->boxes, a))
        return tsr_fail(TSR_EDEVICE, "%s: the driver maps no boxes of its operands", op);
    backward_kernel *kernel = s->softcap > 0 ? backward_blocks<true, true>
                              : w.call.span  ? backward_blocks<true, false>
                                             : backward_blocks<false, false>;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, BYTES, op));
    TSR_TRY(attention_bound_keys(stream, &w.call, a->k, a->v, w.most));
    if ((int64_t)(w.padded / KEYS) * w.kv_count >= MANY_BLOCKS)
        w.order = NULL;
    else
        TSR_TRY(attention_wgmma_order(stream, &w));
    for (int count = w.kv_count; w.first_kv < s->kv_heads; w.first_kv += count) {
        w.kv_count = s->kv_heads - w.first_kv < count ? s->kv_heads - w.first_kv : count;
        TSR_TRY(attention_wgmma_begin(stream, &w, a));
        TSR_LAUNCH_SHARED(kernel, (unsigned)(w.padded / KEYS * w.kv_count), THREADS, BYTES, stream,
                          w, maps, gradients);
        TSR_TRY(tsr_launched(op));
        tsr_stream *rest;
        TSR_TRY(attention_add_up(&rest, stream, s, w.sum,
                                 group_bytes(s->tokens, s->q_heads, s->kv_heads) / sizeof *w.sum *
                                     (uint64_t)w.kv_count,
                                 w.first_kv + w.kv_count == s->kv_heads));
        TSR_TRY(attention_wgmma_end(rest, &w, a->dq));
    }
    return TSR_OK;
}
