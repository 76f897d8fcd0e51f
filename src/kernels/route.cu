/*
 * route.cu: contract route.h, the forward; reference route_ref.c.
 *
 * Split    A block has 64 tokens and all experts: their logits, then the choice, while the logits are still
 *          in shared memory (up to 128 experts) or L2. One launch.
 * Logits   bf16 x and W on tensor cores (mma.m16n8k16), 64 tokens x 128 experts at a time, 64 products a
 *          stage, four stages in flight. Two halves of a block have every other 32 products, so that a
 *          warp's tile is 32 x 64 and shared memory keeps up; their sums are added at the end. Anything
 *          else (F32, F16, rows that are not on 16 bytes) in fp32 on the other cores, in order.
 *          Neither depends on the number of tokens.
 * Choice   A warp has up to four tokens under way, lane l experts l, l + 32, ...: k times the largest of
 *          integers in the order of the values (redux), of equals the lowest index.
 * Cost     as in route.h; W is read from L2 by every block: T / 64 E h elements.
 */
#include "kernels/mma.cuh"
#include "kernels/route_parts.cuh"

#define TOKENS 64
#define DEPTH  64 /* products of a stage: 128 bytes of a row */
#define STAGES 4
#define TAKEN  INT_MIN /* below all values */

/* ---- the choice ---- */

/* As order_of in route_ref.c, and back. */
static __device__ __forceinline__ int order_of(float value)
{
    if (value != value)
        return INT_MAX;
    int bits = __float_as_int(value + 0.0f);
    return bits < 0 ? ~bits ^ INT_MIN : bits;
}

static __device__ __forceinline__ float value_of(int order)
{
    return __int_as_float(order < 0 ? ~(order ^ INT_MIN) : order);
}

/* The largest of a group's experts (but not `without`), and in *at which: of equals the lowest. */
template <int PER>
static __device__ __forceinline__ int group_largest(int *at, const int *order, int first, int width,
                                                    int without)
{
    int lane = threadIdx.x % TSR_WARP, best = TAKEN, expert = INT_MAX;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int e = lane + TSR_WARP * i;
        if (e >= first && e < first + width && e != without && order[i] > best)
            best = order[i], expert = e;
    }
    int most = __reduce_max_sync(ROUTE_ALL, best);
    *at = __reduce_min_sync(ROUTE_ALL, best == most ? expert : INT_MAX);
    return most;
}

/* Experts outside of the best groups become TAKEN. Lane g has group g. */
template <int PER>
static __device__ __forceinline__ void keep_groups(int *order, const tsr_routing *how)
{
    int lane = threadIdx.x % TSR_WARP, width = (int)how->experts / how->n_group;
    int group = TAKEN;
    unsigned stays = 0;
    for (int g = 0; g < how->n_group; g++) {
        int at, second;
        float largest = value_of(group_largest<PER>(&at, order, g * width, width, -1));
        float next = value_of(group_largest<PER>(&second, order, g * width, width, at));
        if (lane == g)
            group = order_of(largest + next);
    }
    for (int g = 0; g < how->topk_group; g++) {
        int most = __reduce_max_sync(ROUTE_ALL, group);
        int best = __ffs(__ballot_sync(ROUTE_ALL, group == most)) - 1;
        stays |= 1u << best;
        if (lane == best)
            group = TAKEN;
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int e = lane + TSR_WARP * i;
        if (e < how->experts && !(stays >> (e / width) & 1))
            order[i] = TAKEN;
    }
}

/* What the experts of a token are chosen by. Softmax over all, where it is needed, is
 * expf(s - *most) *inverse. */
template <int PER>
static __device__ __forceinline__ void choose_by(int *order, float *most, float *inverse,
                                                 const float *s, const tsr_routing *how)
{
    int lane = threadIdx.x % TSR_WARP, experts = (int)how->experts;
    bool by_score = how->correction || how->n_group > 1;
    bool softmax = how->scoring == TSR_ROUTE_SOFTMAX && (by_score || !how->normalise);
    *most = 0, *inverse = 1;
    if (softmax)
        route_softmax(most, inverse, s, experts);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int e = lane + TSR_WARP * i;
        order[i] = TAKEN;
        if (e >= experts)
            continue;
        float c = s[e];
        if (how->scoring == TSR_ROUTE_SIGMOID)
            c = route_sigmoid(c);
        else if (softmax && by_score)
            c = expf(c - *most) * *inverse;
        order[i] = order_of(how->correction ? c + how->correction[e] : c);
    }
    if (how->n_group > 1)
        keep_groups<PER>(order, how);
}

/* Lane j has slot j: its p, of the chosen logit. */
static __device__ __forceinline__ float weigh(float s, int id, float most, float inverse,
                                              const tsr_routing *how)
{
    bool mine = threadIdx.x % TSR_WARP < how->k;
    float q;
    if (route_over_chosen(how)) {
        float largest = route_warp_max(mine ? s : -INFINITY);
        q = mine ? expf(s - largest) : 0;
        q /= tsr_warp_sum(q);
    } else if (how->scoring == TSR_ROUTE_SOFTMAX) {
        q = expf(s - most) * inverse;
    } else {
        q = mine ? route_sigmoid(s) : 0;
        if (how->normalise)
            q /= tsr_warp_sum(q) + 1e-20f;
    }
    return mine ? q * route_factor(how, id) : 0;
}

/* TURNS tokens of a warp from token `first` on, of which `count` exist. Row i of their logits is at
 * s + i stride. */
template <int PER, int TURNS>
static __device__ __forceinline__ void choose(const tsr_route_args *a, const float *s,
                                              int64_t stride, int64_t first, int count)
{
    int lane = threadIdx.x % TSR_WARP, k = (int)a->how.k;
    int order[TURNS][PER], id[TURNS];
    float most[TURNS], inverse[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        id[turn] = 0;
        choose_by<PER>(order[turn], &most[turn], &inverse[turn],
                       s + (turn < count ? turn : 0) * stride, &a->how);
    }
    for (int j = 0; j < k; j++) {
        int best[TURNS], at[TURNS];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            best[turn] = order[turn][0], at[turn] = lane;
#pragma unroll
            for (int i = 1; i < PER; i++)
                if (order[turn][i] > best[turn])
                    best[turn] = order[turn][i], at[turn] = lane + TSR_WARP * i;
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            if (__reduce_max_sync(ROUTE_ALL, best[turn]) != best[turn])
                at[turn] = INT_MAX;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            at[turn] = __reduce_min_sync(ROUTE_ALL, at[turn]);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            if (lane == j)
                id[turn] = at[turn];
#pragma unroll
            for (int i = 0; i < PER; i++)
                if (at[turn] == lane + TSR_WARP * i)
                    order[turn][i] = TAKEN;
        }
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        if (turn >= count)
            break;
        float chosen = s[turn * stride + id[turn]];
        float p = weigh(chosen, id[turn], most[turn], inverse[turn], &a->how);
        if (lane < k) {
            a->p[(first + turn) * k + lane] = p;
            a->id[(first + turn) * k + lane] = id[turn];
        }
    }
}

/* All tokens of a block, whose logits' rows are at s. */
template <int PER>
static __device__ __forceinline__ void choose_all(const tsr_route_args *a, const float *s,
                                                  int64_t stride, int64_t first, int count)
{
    constexpr int turns = PER <= 4 ? 4 : PER <= 8 ? 2 : 1;
    int each = TOKENS / ROUTE_WARPS, from = (int)threadIdx.x / TSR_WARP * each;
    int end = min(count, from + each);
    for (int i = from; i < end; i += turns)
        choose<PER, turns>(a, s + i * stride, stride, first + i, end - i);
}

/* ---- logits on tensor cores ---- */

/* Experts of a tile, and what shared memory holds: the stages, or at the end both halves' sums. */
#define TILE_EXPERTS(per) ((per) <= 2 ? 64 : 128)
#define STAGE(per)        ((TOKENS + TILE_EXPERTS(per)) * DEPTH) /* bf16 */
#define STRIDE(per)       (TILE_EXPERTS(per) + 8)                /* floats of a row of sums */
#define SHARED_BYTES(per) (STAGES * STAGE(per) * 2)

/* Part c (8 elements) of a row of 64 lies at c ^ row % 8, so that eight rows' are in different banks. */
static __device__ __forceinline__ int part_at(int row, int part)
{
    return row * DEPTH + (part ^ row % 8) * 8;
}

/* `rows` rows from `first` on of a matrix [all, h], products [k, k + 64). */
static __device__ __forceinline__ void fetch_rows(__nv_bfloat16 *to, const void *matrix, int rows,
                                                  int64_t first, int64_t all, int64_t k, int64_t h)
{
    for (int i = threadIdx.x; i < rows * 8; i += ROUTE_THREADS) {
        int row = i / 8, part = i % 8;
        int64_t from = k + 8 * part;
        bool there = first + row < all && from < h;
        tsr_copy16(to + part_at(row, part),
                   (const __nv_bfloat16 *)matrix + (there ? (first + row) * h + from : 0), there);
    }
}

/* c += a warp's 32 tokens x 32 or 64 experts of half of a stage. */
template <int PER>
static __device__ __forceinline__ void multiply_stage(float (*c)[TILE_EXPERTS(PER) / 16][4],
                                                      const __nv_bfloat16 *stage)
{
    constexpr int pairs = TILE_EXPERTS(PER) / 32;
    int lane = threadIdx.x % TSR_WARP, warp = (int)threadIdx.x / TSR_WARP;
    const __nv_bfloat16 *x = stage, *w = stage + TOKENS * DEPTH;
    int token = warp % 2 * 32, expert = warp / 2 % 2 * (TILE_EXPERTS(PER) / 2), half = warp / 4;
#pragma unroll
    for (int step = 0; step < 2; step++) {
        int part = (half * 2 + step) * 2;
        uint32_t left[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            tsr_ldmatrix(left[i], x + part_at(token + 16 * i + lane % 16, part + lane / 16));
#pragma unroll
        for (int j = 0; j < pairs; j++) {
            uint32_t right[4];
            tsr_ldmatrix(right, w + part_at(expert + 16 * j + lane % 8 + lane / 16 * 8,
                                            part + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                tsr_mma(c[i][2 * j], left[i], right[0], right[1]);
                tsr_mma(c[i][2 * j + 1], left[i], right[2], right[3]);
            }
        }
    }
}

/* Both halves' sums to shared memory, one behind the other. */
template <int PER>
static __device__ __forceinline__ void spread_sums(float *sums,
                                                   float (*c)[TILE_EXPERTS(PER) / 16][4])
{
    constexpr int stride = STRIDE(PER);
    int lane = threadIdx.x % TSR_WARP, warp = (int)threadIdx.x / TSR_WARP;
    int row = warp % 2 * 32 + lane / 4, half = warp / 4;
    int column = warp / 2 % 2 * (TILE_EXPERTS(PER) / 2) + lane % 4 * 2;
    sums += half * TOKENS * stride;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < TILE_EXPERTS(PER) / 16; j++) {
            float *at = sums + (row + 16 * i) * stride + column + 8 * j;
            *(float2 *)at = make_float2(c[i][j][0], c[i][j][1]);
            *(float2 *)(at + 8 * stride) = make_float2(c[i][j][2], c[i][j][3]);
        }
}

/* The logits of a block's tokens and a tile's experts: to memory, and in the first half's sums. */
template <int PER>
static __device__ __forceinline__ void finish_logits(const tsr_route_args *a, float *sums,
                                                     int64_t first, int count, int64_t expert)
{
    constexpr int width = TILE_EXPERTS(PER), stride = STRIDE(PER);
    int column = threadIdx.x % width;
    if (expert + column >= a->how.experts)
        return;
    float bias = a->bias.data ? tsr_load(a->bias.data, expert + column, a->bias.dtype) : 0;
    for (int row = (int)threadIdx.x / width; row < count; row += ROUTE_THREADS / width) {
        float *at = sums + row * stride + column;
        float logit = at[0] + at[TOKENS * stride] + bias;
        *at = logit;
        a->logits[(first + row) * a->how.experts + expert + column] = logit;
    }
}

template <int PER>
static __device__ __forceinline__ void tile_logits(const tsr_route_args *a, __nv_bfloat16 *shared,
                                                   int64_t first, int64_t expert)
{
    constexpr int experts = TILE_EXPERTS(PER), stage = STAGE(PER);
    float c[2][experts / 16][4] = {};
    int stages = (int)((a->h + DEPTH - 1) / DEPTH);
    for (int i = 0; i < stages + STAGES - 1; i++) {
        int done = i - (STAGES - 1);
        if (done >= 0) {
            tsr_copy_wait_but_two();
            __syncthreads();
        }
        if (i < stages) {
            __nv_bfloat16 *to = shared + i % STAGES * stage;
            fetch_rows(to, a->x, TOKENS, first, a->tokens, (int64_t)i * DEPTH, a->h);
            fetch_rows(to + TOKENS * DEPTH, a->weight.data, experts, expert, a->how.experts,
                       (int64_t)i * DEPTH, a->h);
        }
        tsr_copy_commit();
        if (done >= 0)
            multiply_stage<PER>(c, shared + done % STAGES * stage);
    }
    __syncthreads();
    spread_sums<PER>((float *)shared, c);
    __syncthreads();
}

template <int PER>
static __global__ void __launch_bounds__(ROUTE_THREADS, 2)
    route_mma(const __grid_constant__ tsr_route_args a)
{
    tsr_kernel_begin();
    extern __shared__ __align__(128) __nv_bfloat16 shared[];
    constexpr int experts = TILE_EXPERTS(PER);
    int64_t first = (int64_t)blockIdx.x * TOKENS;
    int count = (int)min((int64_t)TOKENS, a.tokens - first);
    for (int64_t expert = 0; expert < a.how.experts; expert += experts) {
        tile_logits<PER>(&a, shared, first, expert);
        finish_logits<PER>(&a, (float *)shared, first, count, expert);
        __syncthreads();
    }
    if (a.how.experts <= experts)
        choose_all<PER>(&a, (const float *)shared, STRIDE(PER), first, count);
    else
        choose_all<PER>(&a, a.logits + first * a.how.experts, a.how.experts, first, count);
}

/* ---- logits in fp32 ---- */

template <int PER>
static __global__ void __launch_bounds__(ROUTE_THREADS)
    route_plain(const __grid_constant__ tsr_route_args a)
{
    tsr_kernel_begin();
    int64_t first = (int64_t)blockIdx.x * TOKENS, experts = a.how.experts;
    int count = (int)min((int64_t)TOKENS, a.tokens - first);
    route_matrix x = {a.x, a.dtype, a.tokens, a.h, 1};
    route_matrix w = {a.weight.data, a.weight.dtype, experts, a.h, 1};
    for (int64_t expert = 0; expert < experts; expert += ROUTE_TILE) {
        float sum[4][4];
        route_multiply(sum, &x, first, &w, expert, a.h);
        for (int i = 0; i < 16; i++) {
            int row = (int)threadIdx.x / 16 * 4 + i / 4;
            int64_t e = expert + threadIdx.x % 16 * 4 + i % 4;
            if (row < count && e < experts)
                a.logits[(first + row) * experts + e] =
                    sum[i / 4][i % 4] + (a.bias.data ? tsr_load(a.bias.data, e, a.bias.dtype) : 0);
        }
    }
    __syncthreads();
    choose_all<PER>(&a, a.logits + first * experts, experts, first, count);
}

/* ---- logits that are given ---- */

template <int PER>
static __global__ void __launch_bounds__(ROUTE_THREADS)
    route_given(const __grid_constant__ tsr_route_args a)
{
    tsr_kernel_begin();
    int64_t first = (int64_t)blockIdx.x * TOKENS, experts = a.how.experts;
    int count = (int)min((int64_t)TOKENS, a.tokens - first);
    for (int64_t i = threadIdx.x; i < count * experts; i += ROUTE_THREADS) {
        int64_t at = first * experts + i, e = i % experts;
        a.logits[at] =
            tsr_load(a.x, at, a.dtype) + (a.bias.data ? tsr_load(a.bias.data, e, a.bias.dtype) : 0);
    }
    __syncthreads();
    choose_all<PER>(&a, a.logits + first * experts, experts, first, count);
}

template <int PER> static tsr_status launch(tsr_stream *stream, const tsr_route_args *args)
{
    unsigned blocks = tsr_blocks(args->tokens, TOKENS);
    bool mma = args->dtype == TSR_BF16 && args->weight.dtype == TSR_BF16 &&
               tsr_vectors(args->h, args->x, args->weight.data);
    if (!args->weight.data) {
        TSR_LAUNCH(route_given<PER>, blocks, ROUTE_THREADS, stream, *args);
    } else if (mma) {
        TSR_TRY(tsr_allow_shared(stream, (const void *)route_mma<PER>, SHARED_BYTES(PER), "route"));
        TSR_LAUNCH_SHARED(route_mma<PER>, blocks, ROUTE_THREADS, SHARED_BYTES(PER), stream, *args);
    } else {
        TSR_LAUNCH(route_plain<PER>, blocks, ROUTE_THREADS, stream, *args);
    }
    return tsr_launched("route");
}

extern "C" tsr_status tsr_route_cuda(tsr_stream *stream, const tsr_route_args *args)
{
    TSR_TRY(tsr_route_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    int64_t each = (args->how.experts + TSR_WARP - 1) / TSR_WARP; /* experts of a lane */
    return each <= 2    ? launch<2>(stream, args)
           : each <= 4  ? launch<4>(stream, args)
           : each <= 8  ? launch<8>(stream, args)
           : each <= 16 ? launch<16>(stream, args)
                        : launch<32>(stream, args);
}
