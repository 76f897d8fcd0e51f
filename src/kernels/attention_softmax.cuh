/*
 * kernels/attention_softmax.cuh: the online softmax of both forwards on tensor cores, attention_mma.cu and
 * attention_wgmma_forward.cu. Scores lie as products leave them: four lanes share a row of 16 or 64 queries, a thread has
 * columns 2 (lane % 4) and the next of every eight, of a row and of the one 8 below.
 */
#ifndef TSR_KERNELS_ATTENTION_SOFTMAX_CUH
#define TSR_KERNELS_ATTENTION_SOFTMAX_CUH

#include "kernels/attention_mma.cuh"

/* The softmax of a query so far, in base 2. */
typedef struct {
    float most, total; /* total: of this thread's columns */
} query_state;

/* While the sink alone was seen, which one thread of the four that share a row counts. */
static __device__ __forceinline__ query_state before_keys(const attention_call *c, int head)
{
    const float sink = sink_of(c, head);
    query_state state = {sink * LOG2_E, threadIdx.x % 4 == 0 ? sink_total(sink) : 0};
    return state;
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

/* Scores of keys that a query does not see become -inf; row: this thread's first of two, 8 apart, which see from `low` and
 * `low_8` on. */
template <int KEYS>
static __device__ __forceinline__ void hide(float (*score)[4], int low, int low_8, int row, int key)
{
    key += (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int from = (half ? low_8 : low) - key, to = row + half * 8 - key;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (n * 8 + j < from || n * 8 + j > to)
                    score[n][2 * half + j] = -INFINITY;
    }
}

/* Scores of a tile to shares of their cap. */
template <int KEYS>
static __device__ __forceinline__ void cap_scores(float (*score)[4], float factor)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            score[n][j] = share_of_cap(score[n][j], factor);
}

/* Scores of a tile, or shares of their cap, to weights, of the thread's row `half` of two. scale: of
 * scores, in base 2. Returns what its output so far shrinks by. */
template <int KEYS>
static __device__ __forceinline__ float softmax_row(float (*score)[4], query_state *q,
                                                    const int half, float scale)
{
    float largest = -INFINITY, added = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        largest = fmaxf(largest, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
    largest = fmaxf(q->most, quad_max(largest) * scale);
    float shrink = largest > q->most ? power_of_2(q->most - largest) : 1;
    float base = largest == -INFINITY ? 0 : largest; /* no key seen yet: all weights are 0 */
    q->most = largest;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; j++) {
            score[n][j] = power_of_2(score[n][j] * scale - base);
            added += score[n][j];
        }
    q->total = q->total * shrink + added;
    return shrink;
}

/* o and lse of BLOCKS x 16 queries; row: this lane's first, end: where there are no more. */
template <int V_WIDTH, int BLOCKS>
static __device__ __forceinline__ void
store_outputs(const attention_call *c, void *o, float *lse, const float (*sum)[V_WIDTH / 8][4],
              const query_state (*state)[2], int head, int row, int end)
{
    int lane = threadIdx.x % TSR_WARP;
    rows output = rows_of(o, head, c->q_heads, c->v_dim);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int token = row + b * 16 + half * 8;
            float total = quad_sum(state[b][half].total);
            factor[half] = token < end ? 1 / total : 0;
            if (lane % 4 == 0 && token < c->tokens)
                lse[(int64_t)head * c->tokens + token] =
                    token < end ? state[b][half].most * LN_2 + logf(total) : 0;
        }
        store_rows<V_WIDTH / 8>(&output, sum[b], row - lane / 4 + b * 16, 0, c->tokens, factor);
    }
}

#endif
