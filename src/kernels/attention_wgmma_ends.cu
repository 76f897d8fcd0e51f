/*
 * attention_wgmma_ends.cu: contract attention_wgmma.h: before its kernel the order of its blocks, the units of dq's sums,
 * delta and zeros; after it dq of the sums.
 *
 * Cost     for a token and query head o, do and the sum, 1024 bytes, then the sum and dq, 768
 */
#include "kernels/attention_wgmma.cuh"
#include "kernels/mma.cuh"

#define THREADS   256
#define ROW_LANES (TSR_WGMMA_DIM / TSR_VECTOR) /* of a token and head: 8 columns each */
#define ROWS      (THREADS / ROW_LANES)
#define MARGIN    1.0625f /* what rounding of P, dS and o may add to a sum */

static __device__ __forceinline__ float row_sum(float value)
{
#pragma unroll
    for (int offset = ROW_LANES / 2; offset; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* Block (x, h): 16 tokens of the launch's query head h. */
static __global__ void __launch_bounds__(THREADS)
    begin_rows(attention_wgmma_work w, const void *o, const void *d_o, const float *given,
               const float *lse)
{
    tsr_kernel_begin();
    const attention_call *c = &w.call;
    int lane = threadIdx.x % ROW_LANES, group = c->q_heads / c->kv_heads;
    int head = w.first_kv * group + blockIdx.y, token = blockIdx.x * ROWS + threadIdx.x / ROW_LANES;
    bool valid = token < used_tokens(c);
    float left[TSR_VECTOR] = {}, right[TSR_VECTOR] = {}, product = 0, square = 0;
    if (valid && lane * TSR_VECTOR < c->v_dim) {
        int64_t at = ((int64_t)token * c->q_heads + head) * c->v_dim + lane * TSR_VECTOR;
        if (!given)
            tsr_load8(left, o, at, TSR_BF16);
        tsr_load8(right, d_o, at, TSR_BF16);
    }
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++) {
        product += left[i] * right[i];
        square += right[i] * right[i];
    }
    product = !given ? row_sum(product) : valid ? given[(int64_t)token * c->q_heads + head] : 0;
    square = row_sum(square);
    int64_t sums = ((int64_t)blockIdx.y * w.padded + token) * TSR_WGMMA_DIM + lane * TSR_VECTOR;
    *(uint4 *)(w.sum + sums) = *(uint4 *)(w.sum + sums + 4) = make_uint4(0, 0, 0, 0);
    if (lane)
        return;
    int64_t row = (int64_t)head * w.padded + token;
    int64_t at =
        w.by_token ? (int64_t)token * c->q_heads + head : (int64_t)head * c->tokens + token;
    float bound =
        sqrtf(square) * sqrtf(__uint_as_float(attention_wgmma_most(&w, head / group)[c->dim])) +
        fabsf(product);
    w.lse[row] = valid ? lse[at] * LOG2_E : INFINITY;
    w.delta[row] = product;
    w.row_unit[row] = attention_wgmma_unit(bound * MARGIN, 31);
}

/* A thread finds the place of one block of keys among all: behind those with more tiles, and those before it with as many. Every
 * block of threads counts all tiles, some at a time. */
static __global__ void __launch_bounds__(THREADS) order_keys(attention_wgmma_work w)
{
    tsr_kernel_begin();
    __shared__ int tiles[THREADS];
    int count = w.padded / TSR_WGMMA_KEYS, own = (int)(blockIdx.x * THREADS + threadIdx.x);
    int mine = attention_wgmma_keys_at(&w.call, min(own, count) * TSR_WGMMA_KEYS).tiles, place = 0;
    for (int first = 0; first < count; first += THREADS) {
        int other = first + (int)threadIdx.x;
        __syncthreads();
        tiles[threadIdx.x] =
            other < count ? attention_wgmma_keys_at(&w.call, other * TSR_WGMMA_KEYS).tiles : -1;
        __syncthreads();
        for (int i = 0; i < THREADS; i++)
            place += tiles[i] > mine || (tiles[i] == mine && first + i < own);
    }
    if (own < count)
        w.order[place] = own;
}

tsr_status attention_wgmma_order(tsr_stream *stream, const attention_wgmma_work *w)
{
    unsigned blocks = tsr_blocks(w->padded / TSR_WGMMA_KEYS, THREADS);
    TSR_LAUNCH(order_keys, blocks, THREADS, stream, *w);
    return tsr_launched("attention_backward");
}

tsr_status attention_wgmma_begin(tsr_stream *stream, const attention_wgmma_work *w,
                                 const tsr_attention_backward_args *args)
{
    dim3 blocks((unsigned)(w->padded / ROWS),
                (unsigned)(w->kv_count * (w->call.q_heads / w->call.kv_heads)));
    TSR_LAUNCH(begin_rows, blocks, THREADS, stream, *w, args->o, args->d_o, args->delta, args->lse);
    return tsr_launched("attention_backward");
}

/* Block (x, h): a tile of the launch's query head h, 16 rows and half of the columns a warp. */
static __global__ void __launch_bounds__(THREADS) end_rows(attention_wgmma_work w, void *dq)
{
    tsr_kernel_begin();
    const attention_call *c = &w.call;
    int warp = threadIdx.x / TSR_WARP, lane = threadIdx.x % TSR_WARP;
    int group = c->q_heads / c->kv_heads, head = w.first_kv * group + blockIdx.y;
    int token = blockIdx.x * TSR_WGMMA_QUERIES + warp % 4 * 16 + lane / 4, column = warp / 4 * 64;
    int64_t tile = (int64_t)blockIdx.y * (w.padded / TSR_WGMMA_QUERIES) + blockIdx.x;
    const int4 *sum = (const int4 *)(w.sum + tile * TSR_WGMMA_TILE) + warp * 8 * TSR_WARP + lane;
    const float *row_unit = w.row_unit + (int64_t)head * w.padded + token;
    if (!is_own(c, blockIdx.x * TSR_WGMMA_QUERIES))
        return;
    float factor[2] = {c->scale / row_unit[0], c->scale / row_unit[8]};
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint32_t word[2][4]; /* of both rows: 8 columns a lane, once they are exchanged */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int n = part * 4 + i, x = column + n * 8 + lane % 4 * 2;
            int4 s = sum[n * TSR_WARP];
            float low = attention_wgmma_column_unit(&w, head / group, x);
            float high = attention_wgmma_column_unit(&w, head / group, x + 1);
            word[0][i] = tsr_pack_bf16(s.x * factor[0] / low, s.y * factor[0] / high);
            word[1][i] = tsr_pack_bf16(s.z * factor[1] / low, s.w * factor[1] / high);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            tsr_quad_words(word[half]);
            int64_t at = ((int64_t)(token + 8 * half) * c->q_heads + head) * c->dim;
            int first = column + (part * 4 + lane % 4) * 8;
            if (token + 8 * half < c->tokens && first < c->dim)
                *(uint4 *)((uint16_t *)dq + at + first) =
                    make_uint4(word[half][0], word[half][1], word[half][2], word[half][3]);
        }
    }
}

tsr_status attention_wgmma_end(tsr_stream *stream, const attention_wgmma_work *w, void *dq)
{
    dim3 blocks((unsigned)(w->padded / TSR_WGMMA_QUERIES),
                (unsigned)(w->kv_count * (w->call.q_heads / w->call.kv_heads)));
    TSR_LAUNCH(end_rows, blocks, THREADS, stream, *w, dq);
    return tsr_launched("attention_backward");
}
