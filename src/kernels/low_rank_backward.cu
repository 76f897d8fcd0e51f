/*
 * low_rank_backward.cu: contract low_rank_backward.h; reference low_rank_backward_ref.c. One pass over dy.
 *
 * Split    A block has a strip of columns and a chunk of tokens. dy passes through a ring of buffers in
 *          shared memory, 32 KB each, filled by asynchronous copies; three are on their way while one is
 *          used. Of a buffer a warp has 16 tokens and 128 columns: ldmatrix gives it their fragments as
 *          they lie, which times b is a part of d_low, and transposed, which times low is a part of db.
 *          b's fragments stay in registers, as do the sums of db; d_low of a buffer's tokens is added over
 *          the block's column_warps through shared memory, one barrier later, in their order.
 * Sums     At a block's end its warps' db are added in their order. Partial sums of both lie in the
 *          scratch, db's [splits, out, r], then d_low's [strips, tokens, r]; a second kernel adds them in
 *          their order, scales and rounds.
 * Cost     Of shared memory's bandwidth dy takes 3 passes (written, read, read transposed), low and the sums
 *          of d_low a half of one each at r 16: 60 to 70 % of it at 4.2 TB/s.
 */
#include "kernels/low_rank_parts.cuh"
#include "kernels/mma.cuh"

#define THREADS      (TSR_LOW_RANK_WARPS * TSR_WARP)
#define TILE         TSR_LOW_RANK_TILE
#define STRIP        TSR_LOW_RANK_STRIP
#define STEPS        (STRIP / 16) /* of an mma each: 16 columns */
#define RANKS        TSR_LOW_RANK_MMA
#define GROUPS       (RANKS / 8) /* of 8 ranks */
#define STAGES       4
#define LEAST        2 /* column_warps */
#define MARGIN       8 /* elements that keep rows in different banks */
#define COPIES       (TSR_LOW_RANK_WARPS * TILE * STRIP / TSR_VECTOR / THREADS)
#define ROWS         (TSR_LOW_RANK_WARPS / LEAST * TILE) /* most tokens of a buffer */
#define DY_ROOM      (TSR_LOW_RANK_WARPS * TILE * STRIP + ROWS * MARGIN)
#define PITCH        (RANKS + MARGIN)         /* of low in a buffer */
#define STAGE        (DY_ROOM + ROWS * PITCH) /* elements of a buffer */
#define SUMS         (TSR_LOW_RANK_WARPS * TILE * RANKS)
#define SHARED_BYTES (STAGES * STAGE * 2 + 2 * SUMS * 4)

/* A block's place, and a thread's copies of dy: rows `row`, `row` + `step`, ... of a buffer. */
typedef struct {
    const low_rank_call *call;
    int split, strip, token, end, column;
    int tokens, columns, pitch; /* of a buffer */
    int row, step, at;
} low_rank_place;

static __device__ __forceinline__ int column_warps(const low_rank_call *call)
{
    return (int)call->tiling.columns / TSR_LOW_RANK_STRIP;
}

static __device__ __forceinline__ low_rank_place place_of(const low_rank_call *call)
{
    low_rank_place p;
    const tsr_low_rank_tiling *tiling = &call->tiling;
    int strips = (int)tiling->strips, chunk = (int)tiling->chunk;
    p.call = call;
    p.strip = (int)blockIdx.x % strips;
    p.split = (int)blockIdx.x / strips;
    p.token = p.split * chunk;
    p.end = min((int)call->args.tokens, p.token + chunk);
    p.tokens = TSR_LOW_RANK_WARPS / column_warps(call) * TILE;
    p.columns = (int)tiling->columns;
    p.pitch = p.columns + MARGIN;
    p.column = p.strip * p.columns;
    int across = p.columns / TSR_VECTOR;
    p.row = (int)threadIdx.x / across;
    p.at = (int)threadIdx.x % across * TSR_VECTOR;
    p.step = THREADS / across;
    return p;
}

/* ---- shared memory: the buffers, then two times the warps' sums of d_low ---- */

extern __shared__ __align__(16) char memory[];

static __device__ __forceinline__ __nv_bfloat16 *buffer(int stage)
{
    return (__nv_bfloat16 *)memory + stage % STAGES * STAGE;
}

static __device__ __forceinline__ float *sums_of(int stage)
{
    return (float *)((__nv_bfloat16 *)memory + STAGES * STAGE) + stage % 2 * SUMS;
}

/* Of one stage both dy and low; what does not exist is zero. One group of copies, also of nothing. */
static __device__ __forceinline__ void fetch(const low_rank_place *p, int stage)
{
    const tsr_low_rank_backward_args *a = &p->call->args;
    const __nv_bfloat16 *dy = (const __nv_bfloat16 *)a->dy, *low = (const __nv_bfloat16 *)a->low;
    __nv_bfloat16 *to = buffer(stage);
    int first = p->token + stage * p->tokens;
    if (first < p->end) {
        const __nv_bfloat16 *from = dy + (int64_t)(first + p->row) * a->out + p->column + p->at;
        __nv_bfloat16 *into = to + p->row * p->pitch + p->at;
        int rows = p->column + p->at < a->out ? p->end - first - p->row : 0;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            bool there = i * p->step < rows;
            tsr_copy16(into, there ? from : dy, there);
            from += p->step * a->out;
            into += p->step * p->pitch;
        }
        int row = (int)threadIdx.x / GROUPS, rank = (int)threadIdx.x % GROUPS * 8;
        bool there = rank < a->r && first + row < p->end;
        if (row < p->tokens)
            tsr_copy16(to + DY_ROOM + row * PITCH + rank,
                       low + (there ? (int64_t)(first + row) * a->r + rank : 0), there);
    }
    tsr_copy_commit();
}

/* b's fragments for the columns from `column` on: two ranks of a column at a time, transposed. */
static __device__ __forceinline__ void load_b(uint32_t b[STEPS][GROUPS][2], const low_rank_place *p,
                                              int column)
{
    const tsr_low_rank_backward_args *a = &p->call->args;
    int lane = threadIdx.x % TSR_WARP, rank = lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int at = column + 16 * k + 8 * half + lane / 4;
                bool there = at < a->out && 8 * j < a->r;
                const uint16_t *from = (const uint16_t *)a->b + (int64_t)at * a->r + 8 * j + rank;
                b[k][j][half] = there ? tsr_load_common_word(from) : 0;
            }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                b[k][j][half] = tsr_transpose(b[k][j][half]);
}

/* A warp's tile: db += dy^T low, d_low = dy b. */
static __device__ __forceinline__ void multiply(float db[STEPS][GROUPS][4], float d_low[GROUPS][4],
                                                const uint32_t b[STEPS][GROUPS][2],
                                                const __nv_bfloat16 *dy, int pitch,
                                                const __nv_bfloat16 *low)
{
    int lane = threadIdx.x % TSR_WARP, row = lane % 16, column = lane / 16 * 8;
    uint32_t l[GROUPS / 2][4];
    dy += row * pitch + column;
#pragma unroll
    for (int j = 0; j < GROUPS / 2; j++)
        tsr_ldmatrix_t(l[j], low + row * PITCH + column + 16 * j);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint32_t x[4], t[4];
        tsr_ldmatrix(x, dy + 16 * k);
        tsr_ldmatrix_t(t, dy + 16 * k);
        const uint32_t across[4] = {t[0], t[2], t[1], t[3]};
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            tsr_mma(d_low[j], x, b[k][j][0], b[k][j][1]);
            tsr_mma(db[k][j], across, l[j / 2][j % 2 * 2], l[j / 2][j % 2 * 2 + 1]);
        }
    }
}

/* Where a fragment's two sums of row lane / 4 and of eight rows on lie in [rows, RANKS]. */
static __device__ __forceinline__ void put(float *to, const float c[4], int row, int group)
{
    int lane = threadIdx.x % TSR_WARP;
    to += (row + lane / 4) * RANKS + 8 * group + lane % 4 * 2;
    *(float2 *)to = make_float2(c[0], c[1]);
    *(float2 *)(to + 8 * RANKS) = make_float2(c[2], c[3]);
}

/* ---- the block's sums, into the scratch ---- */

static __device__ __forceinline__ void write_d_low(const low_rank_place *p, int stage)
{
    const tsr_low_rank_backward_args *a = &p->call->args;
    int warps = column_warps(p->call), ranks = RANKS, each = TILE * ranks;
    int first = p->token + stage * p->tokens;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < p->tokens * ranks; i += THREADS) {
        int row = first + i / ranks, rank = i % ranks;
        const float *part = sums_of(stage) + i / each * warps * each + i % each;
        float value[TSR_LOW_RANK_WARPS], total = 0;
#pragma unroll
        for (int w = 0; w < TSR_LOW_RANK_WARPS; w++)
            value[w] = w < warps ? part[w * each] : 0;
#pragma unroll
        for (int w = 0; w < TSR_LOW_RANK_WARPS; w++)
            total += value[w];
        if (rank < a->r && row < p->end)
            p->call->d_low[(p->strip * a->tokens + row) * a->r + rank] = total;
    }
}

static __device__ __forceinline__ void write_db(const low_rank_place *p,
                                                const float db[STEPS][GROUPS][4])
{
    const tsr_low_rank_backward_args *a = &p->call->args;
    int warps = column_warps(p->call), ranks = RANKS, each = STRIP * ranks;
    int tiles = p->tokens / TILE;
    float *sums = (float *)memory; /* the buffers have been used */
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
            put(sums + (int)threadIdx.x / TSR_WARP * each, db[k][j], 16 * k, j);
    __syncthreads();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < p->columns * ranks; i += THREADS) {
        int column = p->column + i / ranks, rank = i % ranks;
        float total = 0;
        for (int t = 0; t < tiles; t++)
            total += sums[t * warps * each + i];
        if (rank < a->r && column < a->out)
            p->call->db[(p->split * a->out + column) * a->r + rank] = total;
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    one_pass(const __grid_constant__ low_rank_call call)
{
    tsr_kernel_begin();
    low_rank_place p = place_of(&call);
    int warp = (int)threadIdx.x / TSR_WARP;
    int row = warp / column_warps(&call) * TILE;
    int column = warp % column_warps(&call) * STRIP;
    int stages = (int)((p.end - p.token + p.tokens - 1) / p.tokens);
    uint32_t b[STEPS][GROUPS][2];
    float db[STEPS][GROUPS][4] = {};
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++)
        fetch(&p, stage);
    load_b(b, &p, p.column + column);
    for (int stage = 0; stage < stages; stage++) {
        float d_low[GROUPS][4] = {};
        tsr_copy_wait_but_two();
        __syncthreads(); /* the stage is here, and the one before it has been used */
        fetch(&p, stage + STAGES - 1);
        if (stage > 0)
            write_d_low(&p, stage - 1);
        const __nv_bfloat16 *from = buffer(stage);
        multiply(db, d_low, b, from + row * p.pitch + column, p.pitch,
                 from + DY_ROOM + row * PITCH);
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
            put(sums_of(stage) + warp * TILE * RANKS, d_low[j], 0, j);
    }
    tsr_copy_wait();
    __syncthreads();
    write_d_low(&p, stages - 1);
    write_db(&p, db);
}

/* ---- the sums of all blocks ---- */

#define FINISH_THREADS 256
#define AT_ONCE        8 /* loads on their way */

static __device__ __forceinline__ float4 total_of(const float *part, int64_t parts, int64_t count,
                                                  float scale)
{
    float4 total = {};
    for (int64_t first = 0; first < parts; first += AT_ONCE) {
        float4 value[AT_ONCE] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i < parts)
                value[i] = __ldcg((const float4 *)(part + (first + i) * count));
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            total.x += value[i].x, total.y += value[i].y;
            total.z += value[i].z, total.w += value[i].w;
        }
    }
    return make_float4(scale * total.x, scale * total.y, scale * total.z, scale * total.w);
}

/* Four elements a thread: first db's, then d_low's. */
static __global__ void __launch_bounds__(FINISH_THREADS)
    add_parts(const __grid_constant__ low_rank_call call)
{
    tsr_kernel_begin();
    const tsr_low_rank_backward_args *a = &call.args;
    int64_t at = 4 * ((int64_t)blockIdx.x * FINISH_THREADS + threadIdx.x);
    int64_t weights = a->out * a->r, lows = a->tokens * a->r;
    if (at < weights) {
        *(float4 *)(a->db + at) = total_of(call.db + at, call.tiling.splits, weights, a->scale);
        return;
    }
    at -= weights;
    if (at >= lows)
        return;
    float4 total = total_of(call.d_low + at, call.tiling.strips, lows, a->scale);
    *(uint2 *)((uint16_t *)a->d_low + at) =
        make_uint2(tsr_pack_bf16(total.x, total.y), tsr_pack_bf16(total.z, total.w));
}

static bool on16(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

static bool fits(const tsr_low_rank_backward_args *a)
{
    return tsr_low_rank_backward_fused(a) && on16(a->dy) && on16(a->low) && on16(a->b) &&
           on16(a->db) && on16(a->d_low) && on16(a->scratch);
}

static void cut(low_rank_call *call, tsr_low_rank_tiling tiling)
{
    const tsr_low_rank_backward_args *a = &call->args;
    call->tiling = tiling;
    call->db = (float *)a->scratch;
    call->d_low = call->db + tiling.splits * a->out * a->r;
}

/* Cards with less shared memory than an A100's or an H100's block may have take the matmuls. */
static bool has_room(tsr_stream *stream)
{
    return tsr_device_cuda_properties(tsr_stream_device(stream))->shared_bytes >= SHARED_BYTES;
}

static tsr_status launch_one_pass(tsr_stream *stream, const low_rank_call *call)
{
    TSR_TRY(tsr_allow_shared(stream, (const void *)one_pass, SHARED_BYTES, "low_rank_backward"));
    TSR_LAUNCH_SHARED(one_pass, (unsigned)(call->tiling.strips * call->tiling.splits), THREADS,
                      SHARED_BYTES, stream, *call);
    return tsr_launched("low_rank_backward");
}

extern "C" tsr_status tsr_low_rank_backward_cuda(tsr_stream *stream,
                                                 const tsr_low_rank_backward_args *args)
{
    TSR_TRY(tsr_low_rank_backward_check(args));
    low_rank_call call = {*args};
    int64_t tokens = args->tokens, out = args->out, r = args->r;
    if (fits(args) && tsr_low_rank_backward_boxes(stream)) {
        cut(&call, tsr_low_rank_boxes_make(tokens, out, r));
        TSR_TRY(tsr_low_rank_backward_wgmma(stream, &call));
    } else if (fits(args) && r <= TSR_LOW_RANK_MMA && has_room(stream)) {
        cut(&call, tsr_low_rank_tiling_make(tokens, out, r));
        TSR_TRY(launch_one_pass(stream, &call));
    } else {
        tsr_gemm_args product[2];
        tsr_low_rank_backward_products(product, args);
        TSR_TRY(tsr_gemm_cuda(stream, &product[0]));
        return tsr_gemm_cuda(stream, &product[1]);
    }
    TSR_LAUNCH(add_parts, tsr_blocks((out + tokens) * r, 4 * FINISH_THREADS), FINISH_THREADS,
               stream, call);
    return tsr_launched("low_rank_backward: sums");
}
