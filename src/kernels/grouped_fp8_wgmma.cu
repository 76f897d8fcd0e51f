/*
 * grouped_fp8_wgmma.cu: grouped_fp8 with z in bf16 on sm_90a.
 *
 * Split    As grouped_gemm_wgmma.cu, whose ring this has: a block stays and takes tiles of 128 rows of an expert and 192
 *          columns; two groups of four warps multiply, 64 x 192 each. A stage has 128 bytes of each row of both operands: 128
 *          summands in e4m3, or 64 of the adapter in bf16. To a copy e4m3 is pairs of two bytes.
 * Sums     Tensor cores add the 128 products of a chunk, which are then added up in fp32: 96 registers for the one, 96 for
 *          the other, so that a tile is no wider than 192 columns. While one group adds, the other multiplies. `fast` leaves
 *          all sums to the tensor cores.
 * Adapters Sums are scaled, and low and the factor are more chunks behind those of x and W, as in grouped_gemm.
 * Order    128 summands after the other from the first on, by the lengths alone.
 * Cost     A chunk of a tile takes 40 KB from L2 for 6.3 MFLOP.
 */
#include "kernels/grouped_gather.cuh"

#define GROUPS      2 /* that multiply */
#define THREADS     ((GROUPS + 1) * TSR_WARPGROUP)
#define STAGES      5
#define LEAD        2 /* chunks that the first group begins with alone */
#define GROUP_ROWS  64
#define ROWS        (GROUPS * GROUP_ROWS)
#define ACROSS      192 /* columns */
#define GROUPS_OF_8 (ACROSS / 8)
#define GROUP_BYTES (GROUP_ROWS * CHUNK * 2)
#define X_BYTES     (GROUPS * GROUP_BYTES)
#define W_BYTES     (ACROSS * CHUNK * 2)
#define STAGE_BYTES (X_BYTES + W_BYTES)
#define BYTES       (STAGES * STAGE_BYTES + ALIGNMENT)

static_assert(ROWS == GATHERED_EACH * GATHERED, "all rows of a tile are gathered");
static_assert(STAGES > LEAD, "the ring holds what the first group begins with");

/* What a block goes through. */
typedef struct {
    const tsr_grouped_gemm_args *args;
    const float *x_scale, *w_scale;
    const tsr_expert_starts *starts;
    int outer, across;
    int parts;        /* of 16 bytes, of a row of x */
    int base, chunks; /* of x and W; and those of low and the factor behind them */
} fp8_work;

static __device__ __forceinline__ __attribute__((unused)) bool
tile_at(tsr_expert_tile *tile, const fp8_work *work, int index)
{
    return tsr_expert_tile_at(tile, work->starts, (int)work->args->count, ROWS, work->across,
                              ACROSS, index);
}

/* ---- copies ---- */

/* One thread: the rows of a chunk of x or low, where they lie in order. */
static __device__ __forceinline__ __attribute__((unused)) void
fetch_x(const CUtensorMap *x, const tsr_expert_tile *tile, int chunk, uint32_t to, uint32_t full)
{
    int groups = tile->row_end - tile->row > GROUP_ROWS ? GROUPS : 1;
    tsr_barrier_expect(full, (unsigned)groups * GROUP_BYTES + W_BYTES);
    for (int group = 0; group < groups; group++)
        tsr_box_copy_of(to + group * GROUP_BYTES, x, chunk * CHUNK, tile->row + group * GROUP_ROWS,
                        0, full);
}

/* One thread: what boxes bring of a chunk. */
template <bool BACKWARD, bool GATHER>
static __device__ __forceinline__ void fetch_boxes(const fp8_work *work, const grouped_maps *maps,
                                                   const tsr_expert_tile *tile, int chunk,
                                                   uint32_t to, uint32_t full)
{
    if (chunk >= work->base) {
        fetch_x(&maps->low, tile, chunk - work->base, to, full);
        fetch_w<BACKWARD, ACROSS>(&maps->factor, to + X_BYTES, tile, chunk - work->base, full);
        return;
    }
    if (GATHER)
        tsr_barrier_expect(full, W_BYTES);
    else
        fetch_x(&maps->x, tile, chunk, to, full);
    fetch_w<false, ACROSS>(&maps->w, to + X_BYTES, tile, chunk, full);
}

/* A group, or where nothing is gathered one thread: all chunks of all the block's tiles. */
template <bool BACKWARD, bool GATHER>
static __device__ __forceinline__ void fetch(const fp8_work *work, grouped_ring ring,
                                             const grouped_maps *maps)
{
    const tsr_expert_rows *rows = &work->args->rows;
    const bool one = threadIdx.x % TSR_WARPGROUP == 0;
    int i = (int)blockIdx.x;
    tsr_expert_tile tile, next;
    gathered_slots slots = {};
    bool more = tile_at(&tile, work, i), again;
    if (GATHER && more)
        slots = find_slots(rows, &tile);
    for (; more; more = again, tile = next) {
        uint32_t from[GATHERED_EACH];
        bool second = tile.row_end - tile.row > GROUP_ROWS;
#pragma unroll
        for (int j = 0; GATHER && j < GATHERED_EACH; j++)
            from[j] = row_from(rows, slots.of[j], work->parts);
        again = false;
        for (int chunk = 0; chunk < work->chunks; chunk++) {
            uint32_t to = ring.data + ring.stage * STAGE_BYTES, full = ring.full + 8 * ring.stage;
            tsr_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            if (one)
                fetch_boxes<BACKWARD, GATHER>(work, maps, &tile, chunk, to, full);
            if (GATHER && chunk < work->base)
                gather_chunk<GATHERED_EACH>(work->args->x, work->parts, from, second, chunk, to,
                                            full);
            else if (GATHER)
                tsr_barrier_arrive(full);
            next_stage<STAGES>(&ring);
            if (chunk == 0) {
                i += (int)gridDim.x;
                again = tile_at(&next, work, i);
                if (GATHER && again)
                    slots = find_slots(rows, &next);
            }
        }
    }
    if (GATHER)
        tsr_copy_wait();
}

/* ---- products ---- */

/* Where a group is. The other may start after chunk `lead`; -1: it has. The tile after this one is found
 * while the first products run. */
typedef struct {
    tsr_expert_tile tile, next;
    int index, lead;
    bool more;
} fp8_place;

static __device__ __forceinline__ __attribute__((unused)) void find_next(fp8_place *place,
                                                                         const fp8_work *work)
{
    place->index += (int)gridDim.x;
    place->more = tile_at(&place->next, work, place->index);
}

template <bool COLUMNS, bool GATHER>
static __device__ __forceinline__ __attribute__((unused)) grouped_operands
wait_stage(const grouped_ring *ring, int group)
{
    uint32_t stage = ring->data + ring->stage * STAGE_BYTES;
    grouped_operands o;
    o.left = tsr_wgmma_rows(stage + (uint32_t)group * GROUP_BYTES);
    o.right =
        COLUMNS ? tsr_wgmma_columns(stage + X_BYTES, STRIP_BYTES) : tsr_wgmma_rows(stage + X_BYTES);
    tsr_barrier_wait(ring->full + 8 * ring->stage, ring->parity);
    if (GATHER)
        tsr_bulk_written(); /* by the copies of other threads */
    return o;
}

/* The products of a chunk; `add`: to what is there. */
static __device__ __forceinline__ __attribute__((unused)) void
multiply_chunk(float c[GROUPS_OF_8][4], const grouped_operands *o, bool add)
{
    tsr_wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++)
        tsr_wgmma_e4m3(c, o->left + i * 32 / 16, o->right + i * 32 / 16, add || i);
    tsr_wgmma_commit();
}

/* After the first products of a tile: the other group may start; and the next tile. */
static __device__ __forceinline__ __attribute__((unused)) void
look_ahead(const fp8_work *work, const grouped_ring *ring, int chunk, fp8_place *place)
{
    if (chunk == place->lead && threadIdx.x % TSR_WARP == 0)
        tsr_barrier_arrive(ring->lead);
    if (chunk == 0)
        find_next(place, work);
}

/* The group's rows of a tile in e4m3, without their scales, added to c: all sums in the tensor cores. */
template <bool GATHER>
static __device__ __forceinline__ void product_fast(float c[GROUPS_OF_8][4], const fp8_work *work,
                                                    grouped_ring *ring, int group, fp8_place *place)
{
    uint32_t before = 0;
    for (int chunk = 0; chunk < work->base; chunk++) {
        const grouped_operands o = wait_stage<false, GATHER>(ring, group);
        multiply_chunk(c, &o, true);
        look_ahead(work, ring, chunk, place);
        tsr_wgmma_wait_but_one();
        if (chunk)
            leave_stage(before);
        before = ring->empty + 8 * ring->stage;
        next_stage<STAGES>(ring);
    }
    tsr_wgmma_wait_but<0>();
    tsr_wgmma_sums<GROUPS_OF_8>(c);
    leave_stage(before);
}

/* The same, a chunk there and all of them in fp32. */
template <bool GATHER>
static __device__ __forceinline__ void product(float c[GROUPS_OF_8][4], const fp8_work *work,
                                               grouped_ring *ring, int group, fp8_place *place)
{
    float part[GROUPS_OF_8][4];
    for (int chunk = 0; chunk < work->base; chunk++) {
        const grouped_operands o = wait_stage<false, GATHER>(ring, group);
        multiply_chunk(part, &o, false);
        look_ahead(work, ring, chunk, place);
        tsr_wgmma_wait_but<0>();
        tsr_wgmma_sums<GROUPS_OF_8>(part);
        leave_stage(ring->empty + 8 * ring->stage);
        next_stage<STAGES>(ring);
#pragma unroll
        for (int i = 0; i < GROUPS_OF_8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                c[i][j] += part[i][j];
    }
}

/* Scales of the lane's two rows. */
static __device__ __forceinline__ __attribute__((unused)) void
find_scales(float scale[2], const fp8_work *work, const tsr_expert_tile *tile, int row)
{
    const tsr_expert_rows *rows = &work->args->rows;
    float of_w = work->w_scale[tile->expert];
    row += threadIdx.x % TSR_WARP / 4;
#pragma unroll
    for (int i = 0; i < 2; i++, row += 8) {
        scale[i] = 0;
        if (row < tile->row_end)
            scale[i] = work->x_scale[rows->slot ? rows->slot[row] / (int32_t)rows->k : row] * of_w;
    }
}

/* What the adapter adds. */
template <bool BACKWARD>
static __device__ __forceinline__ void add_low(float c[GROUPS_OF_8][4], const fp8_work *work,
                                               grouped_ring *ring, int group)
{
    const int step = BACKWARD ? 2048 / 16 : 32 / 16;
    for (int r = (int)work->args->r; r > 0; r -= CHUNK) {
        const grouped_operands o = wait_stage<BACKWARD, false>(ring, group);
        for (int i = 0; i < CHUNK / 16 && i * 16 < r; i++) {
            tsr_wgmma_begin();
            tsr_wgmma_n<ACROSS, false, BACKWARD>(c, o.left + i * 32 / 16, o.right + i * step, true);
            tsr_wgmma_commit();
        }
        tsr_wgmma_wait_but<0>();
        tsr_wgmma_sums<GROUPS_OF_8>(c);
        leave_stage(ring->empty + 8 * ring->stage);
        next_stage<STAGES>(ring);
    }
}

template <bool BACKWARD, bool GATHER, bool FAST>
static __device__ __forceinline__ void one_tile(const fp8_work *work, grouped_ring *ring, int group,
                                                fp8_place *place)
{
    const tsr_expert_tile *tile = &place->tile;
    int row = tile->row + group * GROUP_ROWS + threadIdx.x % TSR_WARPGROUP / TSR_WARP * 16;
    float c[GROUPS_OF_8][4] = {}, scale[2];
    find_scales(scale, work, tile, row);
    if (FAST)
        product_fast<GATHER>(c, work, ring, group, place);
    else
        product<GATHER>(c, work, ring, group, place);
#pragma unroll
    for (int i = 0; i < GROUPS_OF_8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            c[i][j] *= scale[j / 2];
    add_low<BACKWARD>(c, work, ring, group);
#pragma unroll
    for (int i = 0; i < GROUPS_OF_8; i += 4)
        tsr_grouped_write(work->args, work->outer, tile, row, tile->column + i * 8, c + i);
}

template <bool BACKWARD, bool GATHER, bool FAST>
static __device__ __forceinline__ void multiply(const fp8_work *work, grouped_ring ring)
{
    int group = threadIdx.x / TSR_WARPGROUP;
    fp8_place place = {};
    place.index = (int)blockIdx.x;
    place.lead = group ? -1 : (work->base < LEAD ? work->base : LEAD) - 1;
    place.more = tile_at(&place.tile, work, place.index);
    if (group && place.more)
        tsr_barrier_wait(ring.lead, 0);
    while (place.more) {
        if (place.tile.row_end - place.tile.row > group * GROUP_ROWS) {
            one_tile<BACKWARD, GATHER, FAST>(work, &ring, group, &place);
        } else {
            pass_stages<STAGES>(&ring, work->chunks);
            find_next(&place, work);
        }
        place.lead = -1;
        place.tile = place.next;
    }
}

/* ---- the kernel ---- */

template <bool BACKWARD>
static __device__ __forceinline__ fp8_work work_of(const tsr_grouped_fp8_args *args,
                                                   const tsr_expert_starts *starts)
{
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    fp8_work work = {gemm, args->x_scale, args->w_scale, starts};
    int inner = (int)(BACKWARD ? gemm->out : gemm->in);
    work.outer = (int)(BACKWARD ? gemm->in : gemm->out);
    work.across = (work.outer + ACROSS - 1) / ACROSS;
    work.parts = inner / 16;
    work.base = (inner + 2 * CHUNK - 1) / (2 * CHUNK);
    work.chunks = work.base + ((int)gemm->r + CHUNK - 1) / CHUNK;
    return work;
}

/* Unused in code for other cards. */
template <bool BACKWARD, bool GATHER, bool FAST>
static __device__ __forceinline__ __attribute__((unused)) void
grouped(const tsr_grouped_fp8_args *args, const grouped_maps *maps)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES + 1];
    __shared__ tsr_expert_starts starts;
    fp8_work work = work_of<BACKWARD>(args, &starts);
    grouped_ring ring =
        ring_begin<STAGES>(memory, barriers, GATHER ? TSR_WARPGROUP + 1 : 1, GROUPS);
    tsr_expert_count(&starts, &args->gemm.rows, args->gemm.first, (int)args->gemm.count, ROWS);
    if (threadIdx.x < GROUPS * TSR_WARPGROUP) {
        TSR_REGISTERS_UP(224);
        multiply<BACKWARD, GATHER, FAST>(&work, ring);
    } else {
        TSR_REGISTERS_DOWN(56);
        if (GATHER || threadIdx.x == GROUPS * TSR_WARPGROUP)
            fetch<BACKWARD, GATHER>(&work, ring, maps);
    }
}

template <bool BACKWARD, bool GATHER, bool FAST>
static __global__ void TSR_SM90_BOUNDS(THREADS)
    fp8_tiles(const __grid_constant__ tsr_grouped_fp8_args args,
              const __grid_constant__ grouped_maps maps)
{
    tsr_kernel_begin();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    grouped<BACKWARD, GATHER, FAST>(&args, &maps);
#endif
}

/* ---- launching ---- */

typedef void fp8_kernel(const tsr_grouped_fp8_args, const grouped_maps);

static tsr_status launch(tsr_stream *stream, const tsr_grouped_fp8_args *args,
                         const grouped_maps *maps)
{
    static fp8_kernel *const kernels[2][2][2] = {
        {{fp8_tiles<false, false, false>, fp8_tiles<false, false, true>},
         {fp8_tiles<false, true, false>, fp8_tiles<false, true, true>}},
        {{fp8_tiles<true, false, false>, fp8_tiles<true, false, true>},
         {fp8_tiles<true, true, false>, fp8_tiles<true, true, true>}}};
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    fp8_kernel *kernel = kernels[gemm->backward][gemm->rows.slot != NULL][args->fast];
    int64_t outer = gemm->backward ? gemm->in : gemm->out;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, BYTES, "grouped_fp8"));
    int64_t tiles =
        tsr_expert_most_blocks(gemm->rows.most, gemm->count, ROWS) * tsr_blocks(outer, ACROSS);
    int64_t most = tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count;
    TSR_LAUNCH_SHARED(kernel, (unsigned)(tiles < most ? tiles : most), THREADS, BYTES, stream,
                      *args, *maps);
    return tsr_launched("grouped_fp8");
}

/* Gathered rows are found in steps of 16 bytes. */
static bool map_all(grouped_maps *maps, void *boxes, const tsr_grouped_gemm_args *args)
{
    int64_t inner = args->backward ? args->out : args->in;
    int64_t outer = args->backward ? args->in : args->out;
    if (!map_low(maps, boxes, args, GROUP_ROWS, ACROSS) ||
        !tsr_map_boxes(&maps->w, boxes, args->w, args->count, outer, inner / 2, ACROSS))
        return false;
    if (args->rows.slot)
        return args->rows.most / args->rows.k * (inner / 16) <= UINT32_MAX;
    return tsr_map_boxes(&maps->x, boxes, args->x, 1, args->rows.most, inner / 2, GROUP_ROWS);
}

bool tsr_grouped_fp8_wgmma(tsr_stream *stream, const tsr_grouped_fp8_args *args, tsr_status *status)
{
    void *boxes = tsr_kernels_kept(stream)->boxes;
    grouped_maps maps = {};
    if (!boxes || !map_all(&maps, boxes, &args->gemm))
        return false;
    *status = launch(stream, args, &maps);
    return true;
}
