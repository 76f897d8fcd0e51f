/*
 * route_backward.cu: contract route.h, the gradient and the statistics; reference route_backward_ref.c.
 *
 * dlogits  A warp has a token. All lanes write what every expert has, then lane j adds slot j's.
 * dx       dlogits W with bf16 W and dx on tensor cores. dlogits is fp32 and taken as a sum of two bf16, its upper
 *          and lower half (16 bits of it). Up to 128 experts: a block has 64 tokens, keeps their dlogits in registers
 *          and goes through its columns, 128 at a time, of which the next are under way. More: 64 tokens x 128 columns
 *          a block, 32 experts a stage, two stages. Anything else in fp32 on the other cores, in order. None depends
 *          on the number of tokens, and the first two add up alike.
 * stats    A block has 32 tokens: the largest logit and the sum of each by warps, then a column of them a
 *          thread. Sums are of integers, so atomics give the same numbers in any order.
 * Cost     as in route.h; W is read from L2 by T / 64 blocks, dlogits by h / 128, of up to 128 experts by two where
 *          tokens are many.
 */
#include "kernels/mma.cuh"
#include "kernels/route_parts.cuh"

#define TOKENS  64
#define COLUMNS 128
#define DEPTH   32 /* experts of a stage */

/* ---- dlogits ---- */

/* Lane j: the gradient of slot j's logit s through softmax or sigmoid of the chosen; dq is p's, times its
 * factor. */
static __device__ __forceinline__ float chosen_gradient(float dq, float s, const tsr_routing *how)
{
    bool mine = threadIdx.x % TSR_WARP < how->k;
    if (route_over_chosen(how)) {
        float largest = route_warp_max(mine ? s : -INFINITY);
        float q = mine ? expf(s - largest) : 0;
        q /= tsr_warp_sum(q);
        return q * (dq - tsr_warp_sum(mine ? dq * q : 0));
    }
    float q = mine ? route_sigmoid(s) : 0, total = 1, dot = 0;
    if (how->normalise) {
        total = tsr_warp_sum(q) + 1e-20f;
        dot = tsr_warp_sum(mine ? dq * (q / total) : 0);
    }
    return (dq - dot) / total * q * (1.0f - q);
}

static __global__ void __launch_bounds__(ROUTE_THREADS)
    write_dlogits(const __grid_constant__ tsr_route_backward_args a)
{
    tsr_kernel_begin();
    const tsr_routing *how = &a.how;
    int lane = threadIdx.x % TSR_WARP, experts = (int)how->experts, k = (int)how->k;
    int64_t t = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / TSR_WARP;
    if (t >= a.tokens)
        return;
    const float *s = a.logits + t * experts;
    float *ds = a.dlogits + t * experts;
    bool over_all = how->scoring == TSR_ROUTE_SOFTMAX && !how->normalise;
    int id = lane < k ? a.id[t * k + lane] : 0;
    float chosen = s[id], dq = lane < k ? a.dp[t * k + lane] * route_factor(how, id) : 0;
    if (over_all || a.aux) {
        float most, inverse, dot = 0;
        route_softmax(&most, &inverse, s, experts);
        float of_chosen = expf(chosen - most) * inverse;
        for (int e = lane; e < experts && a.aux; e += TSR_WARP)
            dot += expf(s[e] - most) * inverse * a.aux[e];
        dot = tsr_warp_sum(dot + (over_all && lane < k ? of_chosen * dq : 0));
        dq = over_all ? of_chosen * dq : chosen_gradient(dq, chosen, how);
        __syncwarp(); /* ds may be s, whose chosen have been read */
        for (int e = lane; e < experts; e += TSR_WARP)
            ds[e] = expf(s[e] - most) * inverse * ((a.aux ? a.aux[e] : 0) - dot);
    } else {
        dq = chosen_gradient(dq, chosen, how);
        __syncwarp();
        for (int e = lane; e < experts; e += TSR_WARP)
            ds[e] = 0;
    }
    __syncwarp();
    if (lane < k)
        ds[id] += dq;
}

/* ---- dx on tensor cores ---- */

#define ROW    (DEPTH + 8) /* floats of a row of dlogits, so that eight rows are in different banks */
#define SUMS   (COLUMNS + 8) /* of a row of dx */
#define PARTS  (COLUMNS / 8) /* of 16 bytes of a row of W */
#define STAGES 2

typedef struct {
    float ds[TOKENS][ROW];
    __nv_bfloat16 w[DEPTH * COLUMNS]; /* part c of row e lies at c ^ e % 8 */
} dx_stage;

typedef union {
    dx_stage stage[STAGES];
    float sums[TOKENS][SUMS];
} dx_shared;

static __device__ __forceinline__ void fetch_stage(dx_stage *to, const tsr_route_backward_args *a,
                                                   int64_t first, int64_t column, int64_t expert)
{
    int64_t experts = a->how.experts;
#pragma unroll 1
    for (int i = threadIdx.x; i < TOKENS * DEPTH / 4; i += ROUTE_THREADS) {
        int row = i / (DEPTH / 4), e = i % (DEPTH / 4) * 4;
        bool there = first + row < a->tokens && expert + e < experts;
        tsr_copy16(&to->ds[row][e], a->dlogits + (there ? (first + row) * experts + expert + e : 0),
                   there);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < DEPTH * PARTS; i += ROUTE_THREADS) {
        int e = i / PARTS, part = i % PARTS;
        int64_t at = column + part * 8;
        bool there = expert + e < experts && at < a->h;
        tsr_copy16(to->w + e * COLUMNS + (part ^ e % 8) * 8,
                   (const __nv_bfloat16 *)a->weight.data + (there ? (expert + e) * a->h + at : 0),
                   there);
    }
}

/* Two floats as bf16, and what that leaves of them. */
static __device__ __forceinline__ void split(uint32_t *high, uint32_t *low, float2 v)
{
    *high = tsr_pack_bf16(v.x, v.y);
    *low = tsr_pack_bf16(v.x - __uint_as_float(*high << 16),
                         v.y - __uint_as_float(*high & 0xffff0000u));
}

/* c += a warp's 32 tokens x 32 columns of a stage. */
static __device__ __forceinline__ void multiply_stage(float (*c)[4][4], const dx_stage *stage)
{
    int lane = threadIdx.x % TSR_WARP, warp = (int)threadIdx.x / TSR_WARP;
    int token = warp % 2 * 32 + lane / 4, part = warp / 2 * 4;
#pragma unroll 1 /* for three blocks on a multiprocessor */
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t w[2][4];
        const __nv_bfloat16 *of = stage->w + (k + lane % 16) * COLUMNS;
#pragma unroll
        for (int j = 0; j < 2; j++)
            tsr_ldmatrix_t(w[j], of + ((part + 2 * j + lane / 16) ^ lane % 8) * 8);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t high[4], low[4];
            const float *ds = &stage->ds[token + 16 * i][k + lane % 4 * 2];
#pragma unroll
            for (int j = 0; j < 4; j++)
                split(&high[j], &low[j], *(const float2 *)(ds + j % 2 * 8 * ROW + j / 2 * 8));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                tsr_mma(c[i][j], high, w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
                tsr_mma(c[i][j], low, w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
}

static __device__ __forceinline__ void store_dx(const tsr_route_backward_args *a, dx_shared *shared,
                                                float (*c)[4][4], int64_t first, int64_t column)
{
    int lane = threadIdx.x % TSR_WARP, warp = (int)threadIdx.x / TSR_WARP;
    int at = warp % 2 * 32 + lane / 4, to = warp / 2 * 32 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float *sum = &shared->sums[at + 16 * (i / 4)][to + 8 * (i % 4)];
        *(float2 *)sum = make_float2(c[i / 4][i % 4][0], c[i / 4][i % 4][1]);
        *(float2 *)(sum + 8 * SUMS) = make_float2(c[i / 4][i % 4][2], c[i / 4][i % 4][3]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * PARTS; i += ROUTE_THREADS) {
        int row = i / PARTS, part = i % PARTS * 8;
        if (first + row >= a->tokens || column + part >= a->h)
            continue;
        int64_t dx = (first + row) * a->h + column + part;
        float sum[8], old[8];
        tsr_load8(sum, shared->sums[row], part, TSR_F32);
        if (a->add) {
            tsr_load8(old, a->dx, dx, TSR_BF16);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[j] += old[j];
        }
        tsr_store8(a->dx, dx, sum, TSR_BF16);
    }
}

static __global__ void __launch_bounds__(ROUTE_THREADS, 3)
    dx_mma(const __grid_constant__ tsr_route_backward_args a)
{
    tsr_kernel_begin();
    __shared__ __align__(128) dx_shared shared;
    int64_t first = (int64_t)blockIdx.x * TOKENS, column = (int64_t)blockIdx.y * COLUMNS;
    float c[2][4][4] = {};
    int stages = (int)((a.how.experts + DEPTH - 1) / DEPTH);
    fetch_stage(&shared.stage[0], &a, first, column, 0);
    tsr_copy_commit();
    for (int i = 0; i < stages; i++) {
        if (i + 1 < stages)
            fetch_stage(&shared.stage[(i + 1) % STAGES], &a, first, column,
                        (int64_t)(i + 1) * DEPTH);
        tsr_copy_commit();
        tsr_copy_wait_but_one();
        __syncthreads();
        multiply_stage(c, &shared.stage[i % STAGES]);
        __syncthreads();
    }
    store_dx(&a, &shared, c, first, column);
}

/* ---- the same of few experts: dlogits stays in registers, and W goes by ---- */

#define FEW               128                    /* experts */
#define FEW_STEPS         16                     /* experts of a step */
#define FEW_BLOCKS(steps) ((steps) <= 2 ? 3 : 2) /* on a multiprocessor */

/* 128 columns: all of W, and dx as it is, then as it will be. Part c of row i lies at c ^ i % 8. */
template <int STEPS> struct few_stage {
    __nv_bfloat16 w[FEW_STEPS * STEPS * COLUMNS], dx[TOKENS * COLUMNS];
};

static __device__ __forceinline__ int few_at(int row, int part)
{
    return row * COLUMNS + (part ^ row % 8) * 8;
}

template <int STEPS>
static __device__ __forceinline__ void
few_fetch(few_stage<STEPS> *to, const tsr_route_backward_args *a, int64_t first, int64_t column)
{
    constexpr int step = ROUTE_THREADS / PARTS;
    int row = (int)threadIdx.x / PARTS, part = (int)threadIdx.x % PARTS, at = few_at(row, part);
    bool inside = column + part * 8 < a->h;
    int64_t from = row * a->h + column + part * 8;
    const __nv_bfloat16 *w = (const __nv_bfloat16 *)a->weight.data + from;
    const __nv_bfloat16 *dx = (const __nv_bfloat16 *)a->dx + first * a->h + from;
#pragma unroll
    for (int i = 0; i < FEW_STEPS * STEPS; i += step, w += step * a->h)
        tsr_copy16(to->w + at + i * COLUMNS, w, inside && row + i < a->how.experts);
    if (!a->add)
        return;
#pragma unroll
    for (int i = 0; i < TOKENS; i += step, dx += step * a->h)
        tsr_copy16(to->dx + at + i * COLUMNS, dx, inside && first + row + i < a->tokens);
}

/* A warp's 16 tokens. In the place of those that do not exist the last one is read. */
template <int STEPS>
static __device__ __forceinline__ void few_dlogits(uint32_t (*high)[4], uint32_t (*low)[4],
                                                   const tsr_route_backward_args *a, int64_t token)
{
    int lane = threadIdx.x % TSR_WARP, experts = (int)a->how.experts;
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t row = min(token + lane / 4 + j % 2 * 8, a->tokens - 1);
            int e = k * FEW_STEPS + lane % 4 * 2 + j / 2 * 8;
            float2 ds = make_float2(0, 0);
            if (e < experts)
                ds = *(const float2 *)(a->dlogits + row * experts + e);
            split(&high[k][j], &low[k][j], ds);
        }
}

/* 32 columns of a warp, from part `part` on: their dx in shared memory. */
template <int STEPS>
static __device__ __forceinline__ void few_columns(few_stage<STEPS> *stage, uint32_t (*high)[4],
                                                   uint32_t (*low)[4], int token, int part,
                                                   bool add)
{
    int lane = threadIdx.x % TSR_WARP;
    int at[2] = {few_at(lane % 16, part + lane / 16), few_at(lane % 16, part + 2 + lane / 16)};
    float c[4][4] = {};
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint32_t w[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++)
            tsr_ldmatrix_t(w[j], stage->w + at[j] + k * FEW_STEPS * COLUMNS);
#pragma unroll
        for (int j = 0; j < 4; j++)
            tsr_mma(c[j], high[k], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            tsr_mma(c[j], low[k], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int j = i / 2, half = i % 2 * 2;
        __nv_bfloat16 *at = stage->dx + few_at(token + lane / 4 + 8 * (i % 2), part + j);
        uint32_t *dx = (uint32_t *)at + lane % 4, old = add ? *dx : 0;
        float x = c[j][half], y = c[j][half + 1];
        if (add)
            x += __uint_as_float(old << 16), y += __uint_as_float(old & 0xffff0000u);
        *dx = tsr_pack_bf16(x, y);
    }
}

/* A warp's 16 tokens and 64 columns, from part `part` on, which it alone has written. */
template <int STEPS>
static __device__ __forceinline__ void few_store(const tsr_route_backward_args *a,
                                                 const few_stage<STEPS> *stage, int64_t first,
                                                 int64_t column, int token, int part)
{
    int lane = threadIdx.x % TSR_WARP;
    part += lane % 8;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
        int row = token + i + lane / 8;
        if (first + row < a->tokens && column + part * 8 < a->h)
            *(uint4 *)((__nv_bfloat16 *)a->dx + (first + row) * a->h + column + part * 8) =
                *(const uint4 *)(stage->dx + few_at(row, part));
    }
}

template <int STEPS>
static __global__ void __launch_bounds__(ROUTE_THREADS, FEW_BLOCKS(STEPS))
    dx_few(const __grid_constant__ tsr_route_backward_args a, int64_t columns)
{
    tsr_kernel_begin();
    extern __shared__ __align__(128) char memory[];
    few_stage<STEPS> *stage = (few_stage<STEPS> *)memory;
    int warp = (int)threadIdx.x / TSR_WARP, token = warp % 4 * 16, part = warp / 4 * 8;
    int64_t first = (int64_t)blockIdx.x * TOKENS, column = (int64_t)blockIdx.y * columns;
    int64_t end = min(a.h, column + columns);
    uint32_t high[STEPS][4], low[STEPS][4];
    few_fetch(stage, &a, first, column);
    tsr_copy_commit();
    few_dlogits<STEPS>(high, low, &a, first + token);
    for (int turn = 0; column < end; column += COLUMNS, turn ^= 1) {
        tsr_copy_wait();
        __syncthreads(); /* the stage is there, and the other one has been read */
        if (column + COLUMNS < end)
            few_fetch(stage + (turn ^ 1), &a, first, column + COLUMNS);
        tsr_copy_commit();
#pragma unroll 1
        for (int i = 0; i < 8; i += 4)
            few_columns(stage + turn, high, low, token, part + i, a.add);
        few_store(&a, stage + turn, first, column, token, part);
    }
}

/* The columns are split so that all blocks are there at once. */
template <int STEPS>
static tsr_status launch_few(tsr_stream *stream, const tsr_route_backward_args *args)
{
    int64_t slots =
        FEW_BLOCKS(STEPS) * tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count;
    int64_t tokens = tsr_blocks(args->tokens, TOKENS), strips = tsr_blocks(args->h, COLUMNS);
    int64_t parts = max((int64_t)1, min(strips, slots / tokens));
    int64_t columns = tsr_blocks(strips, parts) * (int64_t)COLUMNS;
    int bytes = 2 * (int)sizeof(few_stage<STEPS>);
    TSR_TRY(tsr_allow_shared(stream, (const void *)dx_few<STEPS>, bytes, "route_backward"));
    TSR_LAUNCH_SHARED(dx_few<STEPS>, dim3((unsigned)tokens, tsr_blocks(args->h, columns)),
                      ROUTE_THREADS, bytes, stream, *args, columns);
    return TSR_OK;
}

/* ---- dx in fp32 ---- */

static __global__ void __launch_bounds__(ROUTE_THREADS)
    dx_plain(const __grid_constant__ tsr_route_backward_args a)
{
    tsr_kernel_begin();
    int64_t first = (int64_t)blockIdx.x * ROUTE_TILE, column = (int64_t)blockIdx.y * ROUTE_TILE;
    route_matrix ds = {a.dlogits, TSR_F32, a.tokens, a.how.experts, 1};
    route_matrix w = {a.weight.data, a.weight.dtype, a.h, 1, a.h};
    float sum[4][4];
    route_multiply(sum, &ds, first, &w, column, a.how.experts);
    for (int i = 0; i < 16; i++) {
        int64_t t = first + threadIdx.x / 16 * 4 + i / 4;
        int64_t at = column + threadIdx.x % 16 * 4 + i % 4;
        if (t >= a.tokens || at >= a.h)
            continue;
        float old = a.add ? tsr_load(a.dx, t * a.h + at, a.dtype) : 0;
        tsr_store(a.dx, t * a.h + at, old + sum[i / 4][i % 4], a.dtype);
    }
}

/* ---- dx of given logits ---- */

static __global__ void __launch_bounds__(ROUTE_THREADS)
    dx_given(const __grid_constant__ tsr_route_backward_args a)
{
    tsr_kernel_begin();
    int64_t i = (int64_t)blockIdx.x * ROUTE_THREADS + threadIdx.x;
    if (i >= a.tokens * a.h)
        return;
    float old = a.add ? tsr_load(a.dx, i, a.dtype) : 0;
    tsr_store(a.dx, i, old + a.dlogits[i], a.dtype);
}

extern "C" tsr_status tsr_route_backward_cuda(tsr_stream *stream,
                                              const tsr_route_backward_args *args)
{
    TSR_TRY(tsr_route_backward_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    TSR_LAUNCH(write_dlogits, tsr_blocks(args->tokens, ROUTE_WARPS), ROUTE_THREADS, stream, *args);
    bool mma = args->dtype == TSR_BF16 && args->weight.dtype == TSR_BF16 &&
               args->how.experts % 4 == 0 && (uintptr_t)args->dlogits % 16 == 0 &&
               tsr_vectors(args->h, args->dx, args->weight.data);
    unsigned tokens = tsr_blocks(args->tokens, TOKENS);
    if (!args->weight.data)
        TSR_LAUNCH(dx_given, tsr_blocks(args->tokens * args->h, ROUTE_THREADS), ROUTE_THREADS,
                   stream, *args);
    else if (mma && args->how.experts <= FEW)
        TSR_TRY(args->how.experts <= 32   ? launch_few<2>(stream, args)
                : args->how.experts <= 64 ? launch_few<4>(stream, args)
                                          : launch_few<8>(stream, args));
    else if (mma)
        TSR_LAUNCH(dx_mma, dim3(tokens, tsr_blocks(args->h, COLUMNS)), ROUTE_THREADS, stream,
                   *args);
    else
        TSR_LAUNCH(dx_plain, dim3(tokens, tsr_blocks(args->h, ROUTE_TILE)), ROUTE_THREADS, stream,
                   *args);
    return tsr_launched("route_backward");
}

/* ---- statistics ---- */

#define GROUP 32 /* tokens of a block */

typedef unsigned long long counter; /* what atomicAdd takes of 64 bits */

static __global__ void __launch_bounds__(ROUTE_THREADS)
    begin_stats(const __grid_constant__ tsr_route_stats_args a)
{
    tsr_kernel_begin();
    for (int e = threadIdx.x; e < a.experts; e += ROUTE_THREADS) {
        a.count[e] = 0;
        if (a.prob)
            a.prob[e] = 0;
    }
    if (threadIdx.x == 0 && a.dropped)
        *a.dropped = 0;
}

/* The softmax of a block's tokens, a column of it a thread; several threads a column where experts are
 * few. */
static __device__ __forceinline__ void add_probabilities(const tsr_route_stats_args *a,
                                                         int64_t first, int count)
{
    __shared__ float most[GROUP], inverse[GROUP];
    int experts = (int)a->experts, width = min(experts, ROUTE_THREADS);
    int together = ROUTE_THREADS / width;
    for (int t = (int)threadIdx.x / TSR_WARP; t < count; t += ROUTE_WARPS)
        route_softmax(&most[t], &inverse[t], a->logits + (first + t) * experts, experts);
    __syncthreads();
    if ((int)threadIdx.x >= width * together)
        return;
    for (int e = (int)threadIdx.x % width; e < experts; e += width) {
        long long sum = 0;
        for (int t = (int)threadIdx.x / width; t < count; t += together) {
            float p = expf(a->logits[(first + t) * experts + e] - most[t]) * inverse[t];
            if (isfinite(p))
                sum += __float2ll_rn(p * (float)(1ll << TSR_ROUTE_PROB_SHIFT));
        }
        atomicAdd((counter *)a->prob + e, (counter)sum);
    }
}

static __global__ void __launch_bounds__(ROUTE_THREADS)
    add_stats(const __grid_constant__ tsr_route_stats_args a)
{
    tsr_kernel_begin();
    __shared__ int slots[TSR_ROUTE_MOST_EXPERTS], left_out;
    int64_t first = (int64_t)blockIdx.x * GROUP;
    int count = (int)min((int64_t)GROUP, a.tokens - first);
    for (int e = threadIdx.x; e < a.experts; e += ROUTE_THREADS)
        slots[e] = 0;
    if (threadIdx.x == 0)
        left_out = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count * (int)a.k; i += ROUTE_THREADS) {
        atomicAdd(&slots[a.id[first * a.k + i]], 1);
        if (a.dropped && a.row[first * a.k + i] < 0)
            atomicAdd(&left_out, 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < a.experts; e += ROUTE_THREADS)
        if (slots[e])
            atomicAdd((counter *)a.count + e, (counter)slots[e]);
    if (threadIdx.x == 0 && left_out)
        atomicAdd((counter *)a.dropped, (counter)left_out);
    if (a.prob)
        add_probabilities(&a, first, count);
}

extern "C" tsr_status tsr_route_stats_cuda(tsr_stream *stream, const tsr_route_stats_args *args)
{
    TSR_TRY(tsr_route_stats_check(args));
    if (args->begin)
        TSR_LAUNCH(begin_stats, 1, ROUTE_THREADS, stream, *args);
    if (args->tokens)
        TSR_LAUNCH(add_stats, tsr_blocks(args->tokens, GROUP), ROUTE_THREADS, stream, *args);
    return tsr_launched("route_stats");
}
