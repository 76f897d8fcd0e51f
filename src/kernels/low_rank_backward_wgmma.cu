/*
 * low_rank_backward_wgmma.cu: low_rank_backward in one pass over dy on sm_90a.
 *
 * Split    A block has a strip of columns, PIECES of 256, and a chunk of tokens. One thread fetches dy in
 *          boxes into a ring of stages of 64 tokens and 256 columns, with low of these tokens; two groups
 *          of four warps take them in turn. dy is a left operand as it lies, times b a part of d_low, and
 *          transposed, times low a part of db: the matrix units read it from shared memory both times,
 *          and no thread does. All sums are in registers: d_low of a group's 64 tokens over the strip, db
 *          of the whole strip over all the group's tokens.
 * Sums     At the end the second group's db is added to the first's. Partial sums go where
 *          low_rank_backward.cu has them: db's [splits, out, r], d_low's [strips, tokens, r].
 * Cost     Of shared memory's bandwidth dy takes 3 passes, 40 % of it at 4.2 TB/s; 128 to 192 KB of dy are
 *          in the ring.
 */
#include "kernels/low_rank_parts.cuh"
#include "kernels/wgmma.cuh"

#include <cudaTypedefs.h>
#include <string.h>

#define GROUPS      2
#define THREADS     ((GROUPS + 1) * TSR_WARPGROUP)
#define TOKENS      (TSR_LOW_RANK_TURN / GROUPS) /* of a stage */
#define COLUMNS     TSR_LOW_RANK_PIECE           /* of a stage */
#define BOX         64                           /* columns: 128 bytes */
#define BOXES       (COLUMNS / BOX)
#define BOX_BYTES   (TOKENS * BOX * 2)
#define DY_BYTES    (BOXES * BOX_BYTES)
#define STAGES      (RANKS == 16 && PIECES <= 2 ? 6 : 4)
#define ALIGNMENT   1024
#define ROW_BYTES   (RANKS * 2) /* of low and b */
#define LOW_BYTES   (TOKENS * ROW_BYTES)
#define B_BYTES     (COLUMNS * ROW_BYTES) /* of a piece */
#define STAGE_BYTES (DY_BYTES + LOW_BYTES)
#define SUMS        (PIECES * BOXES * RANKS / 8) /* of db, groups of 8 ranks */

typedef struct {
    CUtensorMap dy, low, b;
} low_rank_maps;

/* A block's place, and the ring's shared addresses. */
typedef struct {
    const low_rank_call *call;
    int split, strip, token, column, turns;
    uint32_t ring, b, full, empty, b_full;
} low_rank_block;

/* ---- products ---- */

/* low or b as a right operand: rows of RANKS columns, swapped as the copies swap them; from row 16 n on:
 * + 16 n ROW_BYTES. */
template <int RANKS> static __device__ __forceinline__ uint64_t narrow(uint32_t tile)
{
    const uint64_t swizzled = RANKS == 16 ? 3 : 2, eight_rows = 8 * ROW_BYTES / 16;
    return swizzled << 62 | eight_rows << 32 | (tile & 0x3ffff) >> 4;
}

/* c += left right, or c = left right: 64 rows, RANKS columns, 16 products. */
template <int RANKS, int TRANSPOSED>
static __device__ __forceinline__ void multiply(float c[][4], uint64_t left, uint64_t right,
                                                bool add)
{
    if (RANKS == 16)
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "setp.ne.b32 p, %10, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, %11, 1;\n"
                     "}"
                     : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]),
                       "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3])
                     : "l"(left), "l"(right), "r"((int)add), "n"(TRANSPOSED));
    else
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "setp.ne.b32 p, %18, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "%16, %17, p, 1, 1, %19, 1;\n"
                     "}"
                     : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]),
                       "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]),
                       "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]),
                       "+f"(c[3][3])
                     : "l"(left), "l"(right), "r"((int)add), "n"(TRANSPOSED));
}

/* All products have ended, and these sums may be read. */
template <int COUNT> static __device__ __forceinline__ void finish(float c[COUNT][4])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}

/* ---- the ring ---- */

/* One thread: b of the strip, then the chunk's tokens, a stage for each group in turn. */
template <int PIECES, int RANKS>
static __device__ __forceinline__ void fetch(const low_rank_block *p, const low_rank_maps *maps)
{
    uint32_t stage = 0, parity = 1;
    tsr_barrier_expect(p->b_full, PIECES * B_BYTES);
    for (int i = 0; i < PIECES; i++)
        tsr_box_copy(p->b + i * B_BYTES, &maps->b, 0, p->column + i * COLUMNS, p->b_full);
    for (int i = 0; i < p->turns * PIECES * GROUPS; i++) {
        int token = p->token + (i / (PIECES * GROUPS) * GROUPS + i % GROUPS) * TOKENS;
        int column = p->column + i / GROUPS % PIECES * COLUMNS;
        uint32_t to = p->ring + stage * STAGE_BYTES, full = p->full + 8 * stage;
        tsr_barrier_wait(p->empty + 8 * stage, parity);
        tsr_barrier_expect(full, STAGE_BYTES);
#pragma unroll
        for (int k = 0; k < BOXES; k++)
            tsr_box_copy(to + k * BOX_BYTES, &maps->dy, column + k * BOX, token, full);
        tsr_box_copy(to + DY_BYTES, &maps->low, 0, token, full);
        if (++stage == STAGES)
            stage = 0, parity ^= 1;
    }
}

/* ---- sums: lane 4 g + t of warp w has rows 16 w + g and 8 further on, ranks 2 t and 2 t + 1 of 8 ---- */

/* Two sums of a row of [.., r]. */
static __device__ __forceinline__ __attribute__((unused)) void put(float *to, int64_t row, int rank,
                                                                   int64_t r, float low, float high)
{
    if (rank < r)
        *(float2 *)(to + row * r + rank) = make_float2(low, high);
}

template <int RANKS>
static __device__ __forceinline__ void write_d_low(const low_rank_block *p, int token,
                                                   const float c[][4])
{
    const tsr_low_rank_backward_args *a = &p->call->args;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x % TSR_WARPGROUP / TSR_WARP;
    int64_t row = token + warp * 16 + lane / 4;
    float *to = p->call->d_low + p->strip * a->tokens * a->r;
#pragma unroll
    for (int j = 0; j < RANKS / 8; j++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++)
            if (row + 8 * upper < a->tokens)
                put(to, row + 8 * upper, 8 * j + lane % 4 * 2, a->r, c[j][2 * upper],
                    c[j][2 * upper + 1]);
}

/* Of both groups, over the ring, which both have used. */
template <int PIECES, int RANKS>
static __device__ __forceinline__ void write_db(const low_rank_block *p, float4 *shared,
                                                const float db[SUMS][4])
{
    const tsr_low_rank_backward_args *a = &p->call->args;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x % TSR_WARPGROUP / TSR_WARP;
    float *to = p->call->db + p->split * a->out * a->r;
    asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * TSR_WARPGROUP) : "memory");
    if (threadIdx.x >= TSR_WARPGROUP)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            shared[i * TSR_WARPGROUP + threadIdx.x % TSR_WARPGROUP] =
                make_float4(db[i][0], db[i][1], db[i][2], db[i][3]);
    asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * TSR_WARPGROUP) : "memory");
    if (threadIdx.x >= TSR_WARPGROUP)
        return;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        float4 other = shared[i * TSR_WARPGROUP + threadIdx.x];
        int64_t column = p->column + i / (RANKS / 8) * BOX + warp * 16 + lane / 4;
        int rank = i % (RANKS / 8) * 8 + lane % 4 * 2;
        if (column < a->out)
            put(to, column, rank, a->r, db[i][0] + other.x, db[i][1] + other.y);
        if (column + 8 < a->out)
            put(to, column + 8, rank, a->r, db[i][2] + other.z, db[i][3] + other.w);
    }
}

/* A group's stages: the first group has the even ones. */
template <int PIECES, int RANKS>
static __device__ __forceinline__ void sum(const low_rank_block *p, float db[SUMS][4])
{
    int group = threadIdx.x / TSR_WARPGROUP, n = group;
    bool one = threadIdx.x % TSR_WARP == 0;
    uint32_t before = 0;
    /* A wait tells a phase from the next alone, so no group may skip one that the other waits for. */
    static_assert(STAGES % GROUPS == 0, "a stage belongs to one group");
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        db[i][0] = db[i][1] = db[i][2] = db[i][3] = 0;
    tsr_barrier_wait(p->b_full, 0);
    for (int turn = 0; turn < p->turns; turn++) {
        float d_low[RANKS / 8][4];
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++, n += GROUPS) {
            uint32_t stage = p->ring + (uint32_t)(n % STAGES) * STAGE_BYTES;
            uint64_t low = narrow<RANKS>(stage + DY_BYTES);
            uint64_t b = narrow<RANKS>(p->b + piece * B_BYTES);
            tsr_barrier_wait(p->full + 8 * (n % STAGES), n / STAGES % 2);
            tsr_wgmma_begin();
#pragma unroll
            for (int box = 0; box < BOXES; box++)
#pragma unroll
                for (int k = 0; k < BOX / 16; k++)
                    multiply<RANKS, 0>(d_low, tsr_wgmma_rows(stage + box * BOX_BYTES) + k * 32 / 16,
                                       b + (box * BOX + 16 * k) * ROW_BYTES / 16,
                                       piece || box || k);
#pragma unroll
            for (int k = 0; k < TOKENS / 16; k++)
#pragma unroll
                for (int box = 0; box < BOXES; box++)
                    multiply<RANKS, 1>(db + (piece * BOXES + box) * (RANKS / 8),
                                       tsr_wgmma_columns(stage + box * BOX_BYTES, 0) +
                                           k * 16 * BOX * 2 / 16,
                                       low + k * 16 * ROW_BYTES / 16, true);
            tsr_wgmma_commit();
            tsr_wgmma_wait_but_one();
            if (before && one)
                tsr_barrier_arrive(before);
            before = p->empty + 8 * (n % STAGES);
        }
        finish<RANKS / 8>(d_low);
        if (one)
            tsr_barrier_arrive(before);
        before = 0;
        write_d_low<RANKS>(p, p->token + (turn * GROUPS + group) * TOKENS, d_low);
    }
    finish<SUMS>(db);
}

/* ---- the kernel ---- */

/* Unused in code for other cards. */
template <int PIECES, int RANKS>
static __device__ __forceinline__ __attribute__((unused)) void one_pass(const low_rank_call *call,
                                                                        const low_rank_maps *maps)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES + 1];
    low_rank_block p = {call};
    int64_t strips = call->tiling.strips, chunk = call->tiling.chunk;
    uint32_t start = tsr_shared_address(memory);
    p.strip = (int)(blockIdx.x % strips);
    p.split = (int)(blockIdx.x / strips);
    p.token = (int)(p.split * chunk);
    p.column = p.strip * PIECES * COLUMNS;
    p.turns = (int)((min(chunk, call->args.tokens - p.token) + TSR_LOW_RANK_TURN - 1) /
                    TSR_LOW_RANK_TURN);
    p.ring = (start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    p.b = p.ring + STAGES * STAGE_BYTES;
    p.full = tsr_shared_address(barriers);
    p.empty = p.full + 8 * STAGES;
    p.b_full = p.empty + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            tsr_barrier_init(p.full + 8 * i, 1);
            tsr_barrier_init(p.empty + 8 * i, TSR_WARPGROUP / TSR_WARP);
        }
        tsr_barrier_init(p.b_full, 1);
        tsr_barrier_made();
    }
    __syncthreads();
    if (threadIdx.x < GROUPS * TSR_WARPGROUP) {
        float db[SUMS][4];
        TSR_REGISTERS_UP(232);
        sum<PIECES, RANKS>(&p, db);
        write_db<PIECES, RANKS>(&p, (float4 *)(memory + (p.ring - start)), db);
    } else {
        TSR_REGISTERS_DOWN(40);
        if (threadIdx.x == GROUPS * TSR_WARPGROUP)
            fetch<PIECES, RANKS>(&p, maps);
    }
}

template <int PIECES, int RANKS>
static __global__ void TSR_SM90_BOUNDS(THREADS)
    one_pass_boxes(const __grid_constant__ low_rank_call call,
                   const __grid_constant__ low_rank_maps maps)
{
    tsr_kernel_begin();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    one_pass<PIECES, RANKS>(&call, &maps);
#endif
}

/* ---- launching ---- */

typedef PFN_cuTensorMapEncodeTiled_v12000 map_boxes;

/* Boxes of `box` rows and `across` columns, of [rows, columns]. */
static bool map(CUtensorMap *out, void *boxes, const void *data, int64_t rows, int64_t columns,
                unsigned box, unsigned across)
{
    map_boxes make;
    const cuuint64_t extent[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)columns * 2};
    const cuuint32_t boxes_extent[2] = {across, box}, step[2] = {1, 1};
    CUtensorMapSwizzle swizzle = across == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : across == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                : CU_TENSOR_MAP_SWIZZLE_32B;
    memcpy(&make, &boxes, sizeof make);
    return make(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)data, extent, pitch, boxes_extent,
                step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int PIECES, int RANKS>
static tsr_status launch(tsr_stream *stream, const low_rank_call *call, const low_rank_maps *maps)
{
    void (*kernel)(const low_rank_call, const low_rank_maps) = one_pass_boxes<PIECES, RANKS>;
    int bytes = STAGES * STAGE_BYTES + PIECES * B_BYTES + ALIGNMENT;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, bytes, "low_rank_backward"));
    TSR_LAUNCH_SHARED(kernel, (unsigned)(call->tiling.strips * call->tiling.splits), THREADS,
                      (size_t)bytes, stream, *call, *maps);
    return tsr_launched("low_rank_backward");
}

bool tsr_low_rank_backward_boxes(const tsr_stream *stream)
{
    return tsr_kernels_kept(stream)->boxes != NULL;
}

tsr_status tsr_low_rank_backward_wgmma(tsr_stream *stream, const low_rank_call *call)
{
    const tsr_low_rank_backward_args *a = &call->args;
    void *boxes = tsr_kernels_kept(stream)->boxes;
    unsigned ranks = a->r <= 16 ? 16 : 32;
    int64_t pieces = call->tiling.columns / COLUMNS;
    low_rank_maps maps;
    if (!map(&maps.dy, boxes, a->dy, a->tokens, a->out, TOKENS, BOX) ||
        !map(&maps.low, boxes, a->low, a->tokens, a->r, TOKENS, ranks) ||
        !map(&maps.b, boxes, a->b, a->out, a->r, COLUMNS, ranks))
        return tsr_fail(TSR_EDEVICE, "low_rank_backward: the driver maps no boxes");
    if (ranks == 16)
        return pieces == 4   ? launch<4, 16>(stream, call, &maps)
               : pieces == 2 ? launch<2, 16>(stream, call, &maps)
                             : launch<1, 16>(stream, call, &maps);
    return pieces == 2 ? launch<2, 32>(stream, call, &maps) : launch<1, 32>(stream, call, &maps);
}
