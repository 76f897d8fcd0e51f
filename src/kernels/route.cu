/*
 * route.cu: contract route.h, the forward; reference route_ref.c.
 *
 * Split    A block has 64 tokens and all experts: their logits, then the choice, while the logits are still
 *          in shared memory (up to 128 experts) or L2. One launch.
 * Logits   bf16 x and W on tensor cores (mma.m16n8k16), 64 tokens x 128 experts at a time, 64 products a stage,
 *          four stages in flight (up to 64 experts: 128 in three; rows lie apart, and are read faster the more of each
 *          is asked for). Two halves of a block have every other 32 products, a warp up to 32 x 32 sums of them; they
 *          are added at the end. What a thread fetches are the next 16 bytes of a few rows, so that pointers only move
 *          on. Anything else (F32, F16, rows that are not on 16 bytes) in fp32 on the other cores, in order. Neither
 *          depends on the number of tokens.
 * Choice   A warp has up to four tokens under way, lane l experts l, l + 32, ...: k times the largest of
 *          integers in the order of the values (redux), of equals the lowest index. A branch for each expert would make
 *          it as long as the products.
 * Cost     as in route.h; W is read from L2 by every block: T / 64 E h elements.
 */
#include "kernels/mma.cuh"
#include "kernels/route_parts.cuh"

#define TOKENS 64
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

/* Softmax over a token's experts, of which a lane has c, is expf(c - *most) *inverse; the same in all lanes. */
template <int PER>
static __device__ __forceinline__ void softmax_over(float *most, float *inverse, const float *c)
{
    float largest = c[0], total = 0;
#pragma unroll
    for (int i = 1; i < PER; i++)
        largest = fmaxf(largest, c[i]);
    *most = route_warp_max(largest);
#pragma unroll
    for (int i = 0; i < PER; i++)
        total += expf(c[i] - *most);
    *inverse = 1.0f / tsr_warp_sum(total);
}

/* What the experts of a token are chosen by, whose logits are c (-inf of those that do not exist). Softmax over all,
 * where it is needed, is expf(s - *most) *inverse. */
template <int PER>
static __device__ __forceinline__ void choose_by(int *order, float *most, float *inverse, float *c,
                                                 const tsr_routing *how)
{
    int lane = threadIdx.x % TSR_WARP, experts = (int)how->experts;
    bool by_score = how->correction || how->n_group > 1;
    bool softmax = how->scoring == TSR_ROUTE_SOFTMAX && (by_score || !how->normalise);
    *most = 0, *inverse = 1;
    if (softmax)
        softmax_over<PER>(most, inverse, c);
    if (how->scoring == TSR_ROUTE_SIGMOID || (softmax && by_score))
#pragma unroll
        for (int i = 0; i < PER; i++)
            c[i] = softmax ? expf(c[i] - *most) * *inverse : route_sigmoid(c[i]);
    if (how->correction)
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (lane + TSR_WARP * i < experts)
                c[i] += how->correction[lane + TSR_WARP * i];
#pragma unroll
    for (int i = 0; i < PER; i++)
        order[i] = lane + TSR_WARP * i < experts ? order_of(c[i]) : TAKEN;
    if (how->n_group > 1)
        keep_groups<PER>(order, how);
}

/* Lane j has slot j of each token: its p, of the chosen logit s. */
template <int TURNS>
static __device__ __forceinline__ void weigh(float *q, const float *s, const int *id,
                                             const float *most, const float *inverse,
                                             const tsr_routing *how)
{
    bool mine = threadIdx.x % TSR_WARP < how->k;
    float total[TURNS];
#pragma unroll
    for (int t = 0; t < TURNS; t++)
        total[t] = 1;
    if (route_over_chosen(how)) {
#pragma unroll
        for (int t = 0; t < TURNS; t++)
            q[t] = route_warp_max(mine ? s[t] : -INFINITY);
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            q[t] = mine ? expf(s[t] - q[t]) : 0;
            total[t] = tsr_warp_sum(q[t]);
        }
    } else if (how->scoring == TSR_ROUTE_SOFTMAX) {
#pragma unroll
        for (int t = 0; t < TURNS; t++)
            q[t] = expf(s[t] - most[t]) * inverse[t];
    } else {
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            q[t] = mine ? route_sigmoid(s[t]) : 0;
            if (how->normalise)
                total[t] = tsr_warp_sum(q[t]) + 1e-20f;
        }
    }
#pragma unroll
    for (int t = 0; t < TURNS; t++)
        q[t] = mine ? q[t] / total[t] * route_factor(how, id[t]) : 0;
}

/* The k largest of each token: lane j gets the j-th. */
template <int PER, int TURNS>
static __device__ __forceinline__ void take_largest(int *id, int (*order)[PER], int k)
{
    int lane = threadIdx.x % TSR_WARP;
#pragma unroll 1
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
}

/* TURNS tokens of a warp from token `first` on, of which `count` exist. Row i of their logits is at
 * s + i stride. Out of line: each kernel would have it several times. */
template <int PER, int TURNS>
static __device__ __noinline__ void choose(const tsr_route_args *a, const float *s, int64_t stride,
                                           int64_t first, int count)
{
    int lane = threadIdx.x % TSR_WARP, k = (int)a->how.k;
    int order[TURNS][PER], id[TURNS];
    float c[TURNS][PER], most[TURNS], inverse[TURNS], p[TURNS], chosen[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (int i = 0; i < PER; i++)
            c[turn][i] = lane + TSR_WARP * i < a->how.experts
                             ? s[(turn < count ? turn : 0) * stride + lane + TSR_WARP * i]
                             : -INFINITY;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        id[turn] = 0;
        choose_by<PER>(order[turn], &most[turn], &inverse[turn], c[turn], &a->how);
    }
    take_largest<PER, TURNS>(id, order, k);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        chosen[turn] = s[(turn < count ? turn : 0) * stride + id[turn]];
    weigh<TURNS>(p, chosen, id, most, inverse, &a->how);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (turn < count && lane < k) {
            a->p[(first + turn) * k + lane] = p[turn];
            a->id[(first + turn) * k + lane] = id[turn];
        }
}

/* All tokens of a block, whose logits' rows are at s. */
template <int PER, int WARPS>
static __device__ __forceinline__ void choose_all(const tsr_route_args *a, const float *s,
                                                  int64_t stride, int64_t first, int count)
{
    constexpr int turns = PER <= 4 ? 4 : PER <= 8 ? 2 : 1;
    int each = TOKENS / WARPS, from = (int)threadIdx.x / TSR_WARP * each;
    int end = min(count, from + each);
#pragma unroll 1
    for (int i = from; i < end; i += turns)
        choose<PER, turns>(a, s + i * stride, stride, first + i, end - i);
}

/* ---- logits on tensor cores ---- */

#define MMA_THREADS 512
#define GROUPS      4 /* of a tile's experts, each of warps of its own */

/* Experts of a tile; what a stage has, and shared memory: the stages, or at the end both halves' sums. */
#define TILE_EXPERTS(per) ((per) <= 2 ? 64 : 128)
#define PANEL(per)        ((TOKENS + TILE_EXPERTS(per)) * 64) /* bf16: 64 products of all rows */
#define PANELS(per)       ((per) <= 2 ? 2 : 1)
#define STAGES(per)       ((per) <= 2 ? 3 : 4)
#define SHARED_BYTES(per) (STAGES(per) * PANELS(per) * PANEL(per) * 2)
#define STRIDE(per)       (TILE_EXPERTS(per) + 8) /* floats of a row of sums */

/* Part c (8 elements) of a row of 64 lies at c ^ row % 8, so that eight rows' are in different banks. */
static __device__ __forceinline__ int part_at(int row, int part)
{
    return row * 64 + (part ^ row % 8) * 8;
}

/* What a thread fetches: a part of every THREADS / 8th row. In the place of rows that do not exist the last one is read, whose
 * sums nobody looks at. */
template <int PER> struct mma_rows {
    static constexpr int step = MMA_THREADS / 8;
    static constexpr int tokens = TOKENS / step, experts = TILE_EXPERTS(PER) / step;
    const __nv_bfloat16 *x[tokens], *w[experts];
    int to; /* in a panel */
};

template <int PER>
static __device__ __forceinline__ mma_rows<PER> rows_of(const tsr_route_args *a, int64_t first,
                                                        int64_t expert)
{
    mma_rows<PER> r;
    int row = (int)threadIdx.x / 8, part = (int)threadIdx.x % 8;
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)a->x + 8 * part;
    const __nv_bfloat16 *w = (const __nv_bfloat16 *)a->weight.data + 8 * part;
#pragma unroll
    for (int i = 0; i < r.tokens; i++)
        r.x[i] = x + min(first + row + r.step * i, a->tokens - 1) * a->h;
#pragma unroll
    for (int i = 0; i < r.experts; i++)
        r.w[i] = w + min(expert + row + r.step * i, a->how.experts - 1) * a->h;
    r.to = part_at(row, part);
    return r;
}

/* Products [k, k + 64 PANELS) of all rows. */
template <int PER>
static __device__ __forceinline__ void fetch_stage(__nv_bfloat16 *stage, mma_rows<PER> *r, int k,
                                                   int h)
{
#pragma unroll
    for (int panel = 0; panel < PANELS(PER); panel++) {
        bool there = k + 64 * panel + (int)threadIdx.x % 8 * 8 < h;
        uint32_t to = tsr_shared_address(stage + panel * PANEL(PER) + r->to);
#pragma unroll
        for (int i = 0; i < r->tokens; i++)
            tsr_copy16_at(to + i * r->step * 128, r->x[i] + 64 * panel, there);
#pragma unroll
        for (int i = 0; i < r->experts; i++)
            tsr_copy16_at(to + (TOKENS + i * r->step) * 128, r->w[i] + 64 * panel, there);
    }
#pragma unroll
    for (int i = 0; i < r->tokens; i++)
        r->x[i] += 64 * PANELS(PER);
#pragma unroll
    for (int i = 0; i < r->experts; i++)
        r->w[i] += 64 * PANELS(PER);
}

/* Where a warp works: 32 tokens, a group's experts, half of the products. */
template <int PER> struct mma_place {
    static constexpr int experts = TILE_EXPERTS(PER) / GROUPS;
    int token, expert, half;
    int x[2], w[2]; /* what this lane loads of the two steps of a panel */
};

template <int PER> static __device__ __forceinline__ mma_place<PER> mma_at(void)
{
    mma_place<PER> p;
    int lane = threadIdx.x % TSR_WARP, warp = (int)threadIdx.x / TSR_WARP;
    p.token = warp % 2 * 32;
    p.expert = warp / 2 % GROUPS * p.experts;
    p.half = warp / (2 * GROUPS);
#pragma unroll
    for (int step = 0; step < 2; step++) {
        int part = (p.half * 2 + step) * 2;
        p.x[step] = part_at(p.token + lane % 16, part + lane / 16);
        p.w[step] = TOKENS * 64 + part_at(p.expert + lane % 8 + lane / 16 * 8, part + lane / 8 % 2);
    }
    return p;
}

/* c += a warp's products of a panel. */
template <int PER>
static __device__ __forceinline__ void multiply_panel(float (*c)[mma_place<PER>::experts / 8][4],
                                                      const __nv_bfloat16 *panel,
                                                      const mma_place<PER> *p)
{
#pragma unroll
    for (int step = 0; step < 2; step++) {
        uint32_t left[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            tsr_ldmatrix(left[i], panel + p->x[step] + 16 * 64 * i);
#pragma unroll
        for (int j = 0; j < p->experts / 16; j++) {
            uint32_t right[4];
            tsr_ldmatrix(right, panel + p->w[step] + 16 * 64 * j);
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
static __device__ __forceinline__ void
spread_sums(float *sums, float (*c)[mma_place<PER>::experts / 8][4], const mma_place<PER> *p)
{
    constexpr int stride = STRIDE(PER);
    int lane = threadIdx.x % TSR_WARP;
    sums += (p->half * TOKENS + p->token + lane / 4) * stride + p->expert + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < p->experts / 8; j++) {
            float *at = sums + 16 * i * stride + 8 * j;
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
#pragma unroll 4
    for (int row = (int)threadIdx.x / width; row < count; row += MMA_THREADS / width) {
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
    constexpr int depth = 64 * PANELS(PER), stage = PANELS(PER) * PANEL(PER);
    mma_rows<PER> rows = rows_of<PER>(a, first, expert);
    mma_place<PER> place = mma_at<PER>();
    float c[2][mma_place<PER>::experts / 8][4] = {};
    int h = (int)a->h, stages = (h + depth - 1) / depth;
#pragma unroll 1
    for (int i = 0; i < STAGES(PER) - 1; i++) {
        if (i < stages)
            fetch_stage<PER>(shared + i * stage, &rows, i * depth, h);
        tsr_copy_commit();
    }
    int now = 0, next = STAGES(PER) - 1;
#pragma unroll 1
    for (int i = 0; i < stages; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES(PER) - 2) : "memory");
        __syncthreads(); /* the stage is there, and the one before it has been read */
        if (i + STAGES(PER) - 1 < stages)
            fetch_stage<PER>(shared + next * stage, &rows, (i + STAGES(PER) - 1) * depth, h);
        tsr_copy_commit();
#pragma unroll
        for (int panel = 0; panel < PANELS(PER); panel++)
            multiply_panel<PER>(c, shared + now * stage + panel * PANEL(PER), &place);
        now = now + 1 == STAGES(PER) ? 0 : now + 1;
        next = next + 1 == STAGES(PER) ? 0 : next + 1;
    }
    __syncthreads();
    spread_sums<PER>((float *)shared, c, &place);
    __syncthreads();
}

template <int PER>
static __global__ void __launch_bounds__(MMA_THREADS, 1)
    route_mma(const __grid_constant__ tsr_route_args a)
{
    tsr_kernel_begin();
    extern __shared__ __align__(128) __nv_bfloat16 shared[];
    constexpr int experts = TILE_EXPERTS(PER);
    int64_t first = (int64_t)blockIdx.x * TOKENS, stride = a.how.experts;
    int count = (int)min((int64_t)TOKENS, a.tokens - first);
    const float *logits = a.logits + first * a.how.experts;
    for (int64_t expert = 0; expert < a.how.experts; expert += experts) {
        tile_logits<PER>(&a, shared, first, expert);
        finish_logits<PER>(&a, (float *)shared, first, count, expert);
        __syncthreads();
    }
    if (a.how.experts <= experts)
        logits = (const float *)shared, stride = STRIDE(PER);
    choose_all<PER, MMA_THREADS / TSR_WARP>(&a, logits, stride, first, count);
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
    choose_all<PER, ROUTE_WARPS>(&a, a.logits + first * experts, experts, first, count);
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
    choose_all<PER, ROUTE_WARPS>(&a, a.logits + first * experts, experts, first, count);
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
        TSR_LAUNCH_SHARED(route_mma<PER>, blocks, MMA_THREADS, SHARED_BYTES(PER), stream, *args);
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
