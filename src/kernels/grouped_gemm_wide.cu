/*
 * grouped_gemm_wide.cu: grouped_gemm in bf16 on sm_90a, of rows that lie in order.
 *
 * Split    A block stays, and takes tiles of up to 192 rows of an expert and 256 columns in turn. Chunks of 64 summands
 *          of both operands go through a ring of three stages, ahead through all its tiles. Two groups of four warps
 *          multiply: each has 128 columns of W, which are the rows of its products, and all rows of the tile, with the
 *          sums in 192 registers. So a tile costs what rows it has, in steps of 16. Nothing but the ring holds the
 *          groups together, and the second starts a chunk later: one writes while the other multiplies.
 * Copies   One thread fetches boxes.
 * Results  Turned over on their way to shared memory, 64 rows at a time, and copied from there row by row.
 * Adapters Low and the factor are more chunks, behind those of x and W; of their last 64 summands only those there are,
 *          16 at a time, are multiplied.
 * Order    Experts with high tiles first (expert_cuts.cuh). Tiles that run at the same time share rows and columns of
 *          a few experts, so that what they read comes from L2.
 * Sums     64 summands after the other from the first on, by the lengths alone: the bits of grouped_gemm_wgmma.cu.
 * Cost     A chunk of a tile takes 56 KB from L2 for 6.3 MFLOP; W is read from memory once, where L2 holds an expert. On
 *          an H200 8192 tokens times 8 of 128 experts, 63 to 1573 rows each, take 0.38 ms for 2048 x 768 forward and
 *          0.68 for 1536 x 2048 backward (docs/performance.md, "What was tried").
 */
#include "kernels/expert_cuts.cuh"
#include "kernels/grouped_parts.cuh"

#define GROUPS       2 /* that multiply */
#define THREADS      ((GROUPS + 1) * TSR_WARPGROUP)
#define STAGES       3
#define LEAD         1           /* chunks that the first group begins with alone */
#define ROW          (CHUNK * 2) /* bytes */
#define ROWS         TSR_CUT_MOST
#define STEP         TSR_CUT_STEP /* rows that come in a product or do not */
#define BOX_ROWS     32
#define ACROSS       256 /* columns of a tile */
#define GROUP_ACROSS 128
#define W_BYTES      (ACROSS * ROW)
#define STAGE_BYTES  (W_BYTES + ROWS * ROW)

/* Results of a group on their way out. Rows begin on other banks than the ones beside them. */
#define OUT_ROWS  64
#define OUT_PITCH (GROUP_ACROSS * 2 + 16)
#define OUT_BYTES (OUT_ROWS * OUT_PITCH)
#define BYTES     (STAGES * STAGE_BYTES + GROUPS * OUT_BYTES + ALIGNMENT)

static_assert(ROWS % OUT_ROWS == 0 && ROWS % BOX_ROWS == 0, "rows of all steps");

/* What a block goes through. */
typedef struct {
    const tsr_grouped_gemm_args *args;
    const tsr_expert_cuts *cuts;
    int inner, outer, across;
    int base, chunks; /* of x and W; and those of low and the factor behind them */
} grouped_work;

/* The block's tile in turn `turn`. False: there are no more. */
static __device__ __forceinline__ __attribute__((unused)) bool
tile_at(tsr_expert_tile *tile, const grouped_work *work, int turn)
{
    int blocks = (int)gridDim.x, block = (int)blockIdx.x;
    return tsr_expert_cut_at(tile, work->cuts, (int)work->args->count, work->across, ACROSS,
                             turn * blocks + (turn % 2 ? blocks - 1 - block : block));
}

/* ---- copies ---- */

/* One thread: the rows of a chunk, where they lie in order; W's come too. */
static __device__ __forceinline__ __attribute__((unused)) void
fetch_x(const CUtensorMap *x, const tsr_expert_tile *tile, int chunk, uint32_t to, uint32_t full)
{
    int boxes = (tile->row_end - tile->row + BOX_ROWS - 1) / BOX_ROWS;
    tsr_barrier_expect(full, (unsigned)(boxes * BOX_ROWS * ROW + W_BYTES));
    for (int i = 0; i < boxes; i++)
        tsr_box_copy_of(to + W_BYTES + i * BOX_ROWS * ROW, x, chunk * CHUNK,
                        tile->row + i * BOX_ROWS, 0, full);
}

/* One thread: a chunk of low and the factor. */
template <bool BACKWARD>
static __device__ __forceinline__ __attribute__((unused)) void
fetch_low(const grouped_maps *maps, const tsr_expert_tile *tile, int chunk, uint32_t to,
          uint32_t full)
{
    fetch_x(&maps->low, tile, chunk, to, full);
    fetch_w<BACKWARD, ACROSS>(&maps->factor, to, tile, chunk, full);
}

/* One thread: all chunks of all the block's tiles. */
template <bool BACKWARD>
static __device__ __forceinline__ void fetch(const grouped_work *work, grouped_ring ring,
                                             const grouped_maps *maps)
{
    tsr_expert_tile tile;
    for (int turn = 0; tile_at(&tile, work, turn); turn++) {
        for (int chunk = 0; chunk < work->chunks; chunk++) {
            uint32_t to = ring.data + ring.stage * STAGE_BYTES, full = ring.full + 8 * ring.stage;
            tsr_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            if (chunk < work->base) {
                fetch_x(&maps->x, &tile, chunk, to, full);
                fetch_w<BACKWARD, ACROSS>(&maps->w, to, &tile, chunk, full);
            } else {
                fetch_low<BACKWARD>(maps, &tile, chunk - work->base, to, full);
            }
            next_stage<STAGES>(&ring);
        }
    }
}

/* ---- products ---- */

/* A group's sums: of its two strips of columns, as rows, and the tile's rows in groups of 8. */
typedef struct {
    float of[2][ROWS / 8][4];
} grouped_sums;

/* Where a group is. The other may start after chunk `lead`; -1: it has. */
typedef struct {
    tsr_expert_tile tile;
    int turn, lead;
    bool more;
} grouped_place;

template <bool BACKWARD>
static __device__ __forceinline__ __attribute__((unused)) grouped_operands
wait_stage(const grouped_ring *ring, int group)
{
    uint32_t stage = ring->data + ring->stage * STAGE_BYTES;
    uint32_t own = stage + (uint32_t)group * GROUP_ACROSS * ROW;
    grouped_operands o;
    o.left = BACKWARD ? tsr_wgmma_columns(own, STRIP_BYTES) : tsr_wgmma_rows(own);
    o.right = tsr_wgmma_rows(stage + W_BYTES);
    tsr_barrier_wait(ring->full + 8 * ring->stage, ring->parity);
    return o;
}

/* The products of 16 summands of a chunk. */
template <bool BACKWARD, int N>
static __device__ __forceinline__ __attribute__((unused)) void
multiply_step(grouped_sums *sums, const grouped_operands *o, int i, bool add)
{
#pragma unroll
    for (int strip = 0; strip < 2; strip++)
        tsr_wgmma_n<N, BACKWARD>(
            sums->of[strip], o->left + (strip * STRIP_BYTES + i * (BACKWARD ? 16 * ROW : 32)) / 16,
            o->right + i * 32 / 16, add);
}

/* A group's sums of a tile of at most N rows. */
template <bool BACKWARD, int N>
static __device__ __forceinline__ void product(grouped_sums *sums, const grouped_work *work,
                                               grouped_ring *ring, int group, grouped_place *place)
{
    uint32_t before = 0;
    for (int chunk = 0; chunk < work->base; chunk++) {
        const grouped_operands o = wait_stage<BACKWARD>(ring, group);
        tsr_wgmma_begin();
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++)
            multiply_step<BACKWARD, N>(sums, &o, i, chunk || i);
        tsr_wgmma_commit();
        if (chunk == place->lead && threadIdx.x % TSR_WARP == 0)
            tsr_barrier_arrive(ring->lead);
        tsr_wgmma_wait_but_one();
        if (chunk)
            leave_stage(before);
        before = ring->empty + 8 * ring->stage;
        next_stage<STAGES>(ring);
    }
    for (int r = (int)work->args->r; r > 0; r -= CHUNK) {
        const grouped_operands o = wait_stage<BACKWARD>(ring, group);
        for (int i = 0; i < CHUNK / 16 && i * 16 < r; i++) {
            tsr_wgmma_begin();
            multiply_step<BACKWARD, N>(sums, &o, i, true);
            tsr_wgmma_commit();
        }
        tsr_wgmma_wait_but_one();
        leave_stage(before);
        before = ring->empty + 8 * ring->stage;
        next_stage<STAGES>(ring);
    }
    tsr_wgmma_wait_but<0>();
    tsr_wgmma_sums<ROWS / 8>(sums->of[0]);
    tsr_wgmma_sums<ROWS / 8>(sums->of[1]);
    leave_stage(before);
}

/* ---- results ---- */

/* bias[strip][upper]: of the lane's columns, which are rows of its products. */
static __device__ __forceinline__ __attribute__((unused)) void
find_bias(float bias[2][2], const grouped_work *work, const tsr_expert_tile *tile, int column)
{
    const tsr_frozen *from = &work->args->bias;
    int64_t row = (work->args->first + tile->expert) * work->outer;
    column += threadIdx.x % TSR_WARPGROUP / TSR_WARP * 16 + threadIdx.x % TSR_WARP / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = column + i / 2 * STRIP + i % 2 * 8;
        bias[i / 2][i % 2] =
            from->data && at < work->outer ? tsr_load(from->data, row + at, from->dtype) : 0;
    }
}

/* A warp's 16 columns of a strip, of 16 rows, to where they begin in shared memory. */
static __device__ __forceinline__ __attribute__((unused)) void
turn_over(uint32_t to, const float c[2][4], const float bias[2])
{
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] =
            tsr_pack_bf16(c[i / 2][i % 2 * 2] + bias[i % 2], c[i / 2][i % 2 * 2 + 1] + bias[i % 2]);
    tsr_store_turned(to, word);
}

/* A group's columns of a tile. */
static __device__ __forceinline__ __attribute__((unused)) void write(const grouped_sums *sums,
                                                                     const grouped_work *work,
                                                                     const tsr_expert_tile *tile,
                                                                     int group, uint32_t out)
{
    int thread = threadIdx.x % TSR_WARPGROUP, lane = threadIdx.x % TSR_WARP;
    int column = tile->column + group * GROUP_ACROSS, rows = tile->row_end - tile->row;
    int bytes = min(GROUP_ACROSS, work->outer - column) * 2;
    uint32_t own = out + (uint32_t)((lane % 8 + lane / 16 * 8) * OUT_PITCH +
                                    thread / TSR_WARP * 32 + lane / 8 % 2 * 16);
    float bias[2][2];
    find_bias(bias, work, tile, column);
#pragma unroll
    for (int first = 0; first < ROWS; first += OUT_ROWS) {
        if (first >= rows)
            break;
        tsr_bulk_read();
        tsr_group_barrier(1 + group);
#pragma unroll
        for (int i = 0; i < 2 * (OUT_ROWS / 16); i++)
            turn_over(own + i / 2 * 16 * OUT_PITCH + i % 2 * STRIP * 2,
                      &sums->of[i % 2][first / 8 + i / 2 * 2], bias[i % 2]);
        tsr_bulk_written();
        tsr_group_barrier(1 + group);
        if (thread < OUT_ROWS && first + thread < rows && bytes > 0)
            tsr_bulk_store_at((uint16_t *)work->args->z +
                                  (int64_t)(tile->row + first + thread) * work->outer + column,
                              out + thread * OUT_PITCH, (unsigned)bytes);
    }
}

/* ---- the kernel ---- */

template <bool BACKWARD>
static __device__ __forceinline__ void one_tile(const grouped_work *work, grouped_ring *ring,
                                                grouped_place *place, int group, uint32_t out)
{
    grouped_sums sums;
    int rows = place->tile.row_end - place->tile.row;
#define TSR_ROWS(n)                                                                                \
    case (n) / STEP:                                                                               \
        product<BACKWARD, n>(&sums, work, ring, group, place);                                     \
        break
    switch ((rows + STEP - 1) / STEP) {
        TSR_ROWS(16);
        TSR_ROWS(32);
        TSR_ROWS(48);
        TSR_ROWS(64);
        TSR_ROWS(80);
        TSR_ROWS(96);
        TSR_ROWS(112);
        TSR_ROWS(128);
        TSR_ROWS(144);
        TSR_ROWS(160);
        TSR_ROWS(176);
        TSR_ROWS(192);
    }
#undef TSR_ROWS
    write(&sums, work, &place->tile, group, out);
}

template <bool BACKWARD>
static __device__ __forceinline__ void multiply(const grouped_work *work, grouped_ring ring)
{
    int group = threadIdx.x / TSR_WARPGROUP;
    uint32_t out = ring.data + STAGES * STAGE_BYTES + (uint32_t)group * OUT_BYTES;
    grouped_place place = {};
    place.lead = group ? -1 : LEAD - 1;
    place.more = tile_at(&place.tile, work, 0);
    if (group && place.more)
        tsr_barrier_wait(ring.lead, 0);
    while (place.more) {
        one_tile<BACKWARD>(work, &ring, &place, group, out);
        place.lead = -1;
        place.more = tile_at(&place.tile, work, ++place.turn);
    }
    tsr_bulk_finish();
}

template <bool BACKWARD>
static __device__ __forceinline__ grouped_work work_of(const tsr_grouped_gemm_args *args,
                                                       const tsr_expert_cuts *cuts)
{
    grouped_work work = {args, cuts};
    work.inner = (int)(BACKWARD ? args->out : args->in);
    work.outer = (int)(BACKWARD ? args->in : args->out);
    work.across = (work.outer + ACROSS - 1) / ACROSS;
    work.base = (work.inner + CHUNK - 1) / CHUNK;
    work.chunks = work.base + ((int)args->r + CHUNK - 1) / CHUNK;
    return work;
}

/* Unused in code for other cards. */
template <bool BACKWARD>
static __device__ __forceinline__ __attribute__((unused)) void
grouped(const tsr_grouped_gemm_args *args, const grouped_maps *maps)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES + 1];
    __shared__ tsr_expert_cuts cuts;
    grouped_work work = work_of<BACKWARD>(args, &cuts);
    grouped_ring ring = ring_begin<STAGES>(memory, barriers, 1, GROUPS);
    /* The keys lie where stages will. */
    tsr_expert_cut_all(&cuts, (uint32_t *)memory, &args->rows, args->first, (int)args->count);
    tsr_bulk_written();
    __syncthreads();
    if (threadIdx.x < GROUPS * TSR_WARPGROUP) {
        TSR_REGISTERS_UP(232);
        multiply<BACKWARD>(&work, ring);
    } else {
        TSR_REGISTERS_DOWN(40);
        if (threadIdx.x == GROUPS * TSR_WARPGROUP)
            fetch<BACKWARD>(&work, ring, maps);
    }
}

template <bool BACKWARD>
static __global__ void TSR_SM90_BOUNDS(THREADS)
    grouped_tiles(const __grid_constant__ tsr_grouped_gemm_args args,
                  const __grid_constant__ grouped_maps maps)
{
    tsr_kernel_begin();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    grouped<BACKWARD>(&args, &maps);
#endif
}

/* ---- launching ---- */

typedef void grouped_kernel(const tsr_grouped_gemm_args, const grouped_maps);

static tsr_status launch(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                         const grouped_maps *maps)
{
    grouped_kernel *kernel = args->backward ? grouped_tiles<true> : grouped_tiles<false>;
    int64_t outer = args->backward ? args->in : args->out;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, BYTES, "grouped_gemm"));
    int64_t tiles = tsr_expert_most_blocks(args->rows.most, args->count, TSR_CUT_MOST) *
                    tsr_blocks(outer, ACROSS);
    int64_t most = tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count;
    TSR_LAUNCH_SHARED(kernel, (unsigned)(tiles < most ? tiles : most), THREADS, BYTES, stream,
                      *args, *maps);
    return tsr_launched("grouped_gemm");
}

static bool map_all(grouped_maps *maps, void *boxes, const tsr_grouped_gemm_args *args)
{
    int64_t inner = args->backward ? args->out : args->in;
    return map_low(maps, boxes, args, BOX_ROWS, ACROSS) && map_w(maps, boxes, args, ACROSS) &&
           tsr_map_boxes(&maps->x, boxes, args->x, 1, args->rows.most, inner, BOX_ROWS);
}

bool tsr_grouped_gemm_wide(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                           tsr_status *status)
{
    void *boxes = tsr_kernels_kept(stream)->boxes;
    grouped_maps maps = {};
    if (!boxes || args->rows.slot || !map_all(&maps, boxes, args))
        return false;
    *status = launch(stream, args, &maps);
    return true;
}
