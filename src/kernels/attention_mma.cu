/*
 * attention_mma.cu: contract attention.h, reference attention_ref.c: the own kernel's BF16 on tensor
 * cores (mma.sync, cp.async, ldmatrix: sm_80 and later), forward; backward: attention_mma_backward.cu. For cards, windows,
 * sinks, soft caps and head sizes that cuDNN does not take.
 *
 * A tile of rows is cut from the tokens and each row knows what it sees, as in attention_own.cu. A block has 64 or 128
 * queries of one head and walks over tiles of 64 keys; tiles that no query sees are left out, and only those at an edge are
 * masked. Scores, weights and sums stay in registers, whose fragments as a product are the next product's operand: with
 * 32 rows a warp, an operand from shared memory is multiplied twice. Weights are rounded to bf16 before they are
 * multiplied; all sums are fp32, in a fixed order.
 *
 * Cost     2 (D + Dv) FLOPs a visible pair and head. One H200, 32 query heads, 8 key heads, D 128, one document, TFLOP/s:
 *          343 over 4096 tokens, 383 over 8192, 409 over 32768; as on a card with 99 KB of shared memory 267, 285, 298.
 */
#include "kernels/attention_softmax.cuh"

#define KEYS 64 /* of a tile */

/* Scores of BLOCKS x 16 queries to weights; their outputs so far shrink. low: of this lane's first query, `row`; edge: there
 * are keys that some query does not see. */
template <int V_WIDTH, int BLOCKS, bool CAPPED>
static __device__ __forceinline__ void
softmax(float (*score)[KEYS / 8][4], float (*sum)[V_WIDTH / 8][4], query_state (*state)[2],
        const int *low, int row, int key, bool edge, float factor, float scale)
{
    float shrink[BLOCKS][2];
    bool shrinks = false;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        if (CAPPED)
            cap_scores<KEYS>(score[b], factor);
        if (edge)
            hide<KEYS>(score[b], low[b * 16], low[b * 16 + 8], row + b * 16, key);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            shrink[b][half] = softmax_row<KEYS>(score[b], &state[b][half], half, scale);
            shrinks |= shrink[b][half] != 1;
        }
    }
    if (__any_sync(0xffffffffu, shrinks))
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int x = 0; x < V_WIDTH / 8; x++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[b][x][j] *= shrink[b][j / 2];
}

/* sum += weights times a tile of values. */
template <int V_WIDTH, int BLOCKS>
static __device__ __forceinline__ void add_values(float (*sum)[V_WIDTH / 8][4],
                                                  const float (*weight)[KEYS / 8][4], uint32_t v)
{
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        uint32_t left[BLOCKS][4];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            as_left(left[b], weight[b][2 * n], weight[b][2 * n + 1]);
        accumulate<V_WIDTH, BLOCKS, V_WIDTH, 16>(sum, left,
                                                 moved<V_WIDTH>(down_rows<V_WIDTH>(v), n * 16, 0));
    }
}

/* WARPS of BLOCKS x 16 queries. STAGES of keys and values: with one, keys are copied under the products of values and
 * values under those of keys; with two, a whole tile under the tile before it. */
template <int WIDTH, int V_WIDTH, int WARPS, int BLOCKS, int STAGES, int RESIDENT, bool CAPPED>
static __global__ void __launch_bounds__(WARPS *TSR_WARP, RESIDENT)
    forward(attention_call c, const void *q, const void *k, const void *v, void *o, float *lse)
{
    tsr_kernel_begin();
    extern __shared__ __align__(128) char memory[];
    const int threads = WARPS * TSR_WARP, queries = WARPS * BLOCKS * 16;
    const uint32_t k_bytes = KEYS * WIDTH * 2, v_bytes = KEYS * V_WIDTH * 2;
    uint32_t q_tile = tsr_shared_address(memory), k_tile = q_tile + queries * WIDTH * 2;
    uint32_t v_tile = k_tile + STAGES * k_bytes, turn = 0;
    int *low = (int *)(memory + queries * WIDTH * 2 + STAGES * (k_bytes + v_bytes)); /* [queries] */
    int head = blockIdx.x, kv_head = head / (c.q_heads / c.kv_heads);
    int first = (int)(gridDim.y - 1 - blockIdx.y) * queries; /* the longest rows first */
    int end = min(first + queries, used_tokens(&c));
    int own =
        (int)threadIdx.x / TSR_WARP * BLOCKS * 16; /* this warp's queries, from the first on */
    int mine = own + (int)threadIdx.x % TSR_WARP / 4, last = own + BLOCKS * 16 - 1;
    rows query = rows_of(q, head, c.q_heads, c.dim), key = rows_of(k, kv_head, c.kv_heads, c.dim);
    rows value = rows_of(v, kv_head, c.kv_heads, c.v_dim);
    float sum[BLOCKS][V_WIDTH / 8][4] = {};
    query_state state[BLOCKS][2];
    if (!is_own(&c, first))
        return;
    for (int i = threadIdx.x; i < queries; i += threads)
        low[i] = first + i < end ? first_key(&c, first + i) : c.tokens;
    const query_state before = before_keys(&c, head);
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++)
        state[i / 2][i % 2] = before;
    int at = first < end ? first_key(&c, first) : end;
    load_tile<WIDTH, queries, threads>(q_tile, &query, first, end);
    load_tile<WIDTH, KEYS, threads>(k_tile, &key, at, end);
    if (STAGES == 2)
        load_tile<V_WIDTH, KEYS, threads>(v_tile, &value, at, end);
    tsr_copy_commit();
    for (; at < end; at += KEYS, turn ^= STAGES - 1) {
        float score[BLOCKS][KEYS / 8][4] = {};
        tsr_copy_wait();
        __syncthreads();
        bool seen = at <= first + last && at + KEYS > low[own]; /* by some query of this warp */
        if (STAGES == 2)
            load_tile<WIDTH, KEYS, threads>(k_tile + (turn ^ 1) * k_bytes, &key, at + KEYS, end);
        load_tile<V_WIDTH, KEYS, threads>(v_tile + (STAGES == 2 ? (turn ^ 1) * v_bytes : 0), &value,
                                          STAGES == 2 ? at + KEYS : at, end);
        tsr_copy_commit();
        if (seen) {
            bool edge = at < low[last] || at + KEYS > first + own + 1;
            multiply<WIDTH, BLOCKS, KEYS>(score, moved<WIDTH>(down_rows<WIDTH>(q_tile), own, 0),
                                          along_rows<WIDTH>(k_tile + turn * k_bytes));
            softmax<V_WIDTH, BLOCKS, CAPPED>(score, sum, state, low + mine, first + mine, at, edge,
                                             c.share_factor, scale_of<CAPPED>(&c) * LOG2_E);
        }
        if (STAGES == 1) {
            tsr_copy_wait();
            __syncthreads();
            load_tile<WIDTH, KEYS, threads>(k_tile, &key, at + KEYS, end);
            tsr_copy_commit();
        }
        if (seen)
            add_values<V_WIDTH, BLOCKS>(sum, score, v_tile + turn * v_bytes);
    }
    tsr_copy_wait();
    store_outputs<V_WIDTH, BLOCKS>(&c, o, lse, sum, state, head, first + mine, end);
}

/* ---- host ---- */

typedef void forward_kernel(attention_call, const void *, const void *, const void *, void *,
                            float *);

typedef struct {
    int width, v_width, warps, blocks, stages, resident;
    forward_kernel *kernel,
        *capped; /* capped NULL: heads that no published model caps the scores of */
} forward_shape;

#define FORWARD(width, v_width, warps, blocks, stages, resident)                                   \
    {                                                                                              \
        width, v_width, warps, blocks, stages, resident,                                           \
            forward<width, v_width, warps, blocks, stages, resident, false>, NULL                  \
    }
#define FORWARD_CAPPED(width, v_width, warps, blocks, stages, resident)                            \
    {                                                                                              \
        width, v_width, warps, blocks, stages, resident,                                           \
            forward<width, v_width, warps, blocks, stages, resident, false>,                       \
            forward<width, v_width, warps, blocks, stages, resident, true>                         \
    }

/* By width, then the fastest first. */
static const forward_shape shapes[] = {
    FORWARD(64, 64, 4, 2, 2, 2),          FORWARD(64, 64, 4, 2, 1, 2),
    FORWARD(96, 96, 4, 2, 2, 2),          FORWARD(96, 96, 4, 2, 1, 2),
    FORWARD(96, 96, 4, 1, 1, 2),          FORWARD_CAPPED(128, 128, 4, 2, 2, 2),
    FORWARD_CAPPED(128, 128, 4, 2, 1, 2), FORWARD_CAPPED(128, 128, 4, 1, 1, 2),
    FORWARD(192, 128, 4, 2, 1, 2),        FORWARD(192, 128, 4, 1, 1, 1),
    FORWARD_CAPPED(256, 256, 4, 1, 1, 2), FORWARD_CAPPED(256, 256, 4, 1, 1, 1),
};

#define RESERVED    1024         /* bytes of shared memory that every block takes besides */
#define MOST_TOKENS (65535 * 32) /* of blocks of 32 and more, in the second dimension of a grid */

static int bytes_of(const forward_shape *s)
{
    int queries = s->warps * s->blocks * 16;
    int elements = queries * s->width + s->stages * KEYS * (s->width + s->v_width);
    return elements * (int)sizeof(bf16) + queries * (int)sizeof(int);
}

/* The first that holds a head and of which a multiprocessor's shared memory takes `resident` blocks. */
static const forward_shape *shape_for(const attention_call *c, const tsr_attention_card *card)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const forward_shape *s = &shapes[i];
        if (c->dim <= s->width && c->v_dim <= s->v_width && (c->softcap == 0 || s->capped) &&
            s->resident * (bytes_of(s) + RESERVED) <= card->shared_bytes + RESERVED)
            return s;
    }
    return NULL;
}

bool attention_mma_takes(const attention_call *c)
{
    return c->dtype == TSR_BF16 && c->vectors && c->tokens <= MOST_TOKENS && c->dim <= 256 &&
           c->v_dim <= 256 && c->scale > 0 && attention_takes_cap(c->softcap);
}

tsr_status attention_mma_forward(tsr_stream *stream, const attention_call *c,
                                 const tsr_attention_args *args, const tsr_attention_card *card)
{
    const forward_shape *shape = shape_for(c, card);
    forward_kernel *kernel = c->softcap > 0 ? shape->capped : shape->kernel;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, bytes_of(shape), "attention"));
    dim3 grid((unsigned)c->q_heads, tsr_blocks(c->tokens, shape->warps * shape->blocks * 16));
    TSR_LAUNCH_SHARED(kernel, grid, (unsigned)(shape->warps * TSR_WARP), bytes_of(shape), stream,
                      *c, args->q, args->k, args->v, args->o, args->lse);
    return tsr_launched("attention");
}
