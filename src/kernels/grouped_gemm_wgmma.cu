/*
 * grouped_gemm_wgmma.cu: grouped_gemm in bf16 on sm_90a, of rows that are gathered, or with weights that are decoded on the way.
 *
 * Split    A block stays, and takes tiles of 128 rows of an expert and 256 columns, every so many. Chunks of
 *          64 summands of both operands go through a ring of four stages, ahead through all its tiles; two
 *          groups of four warps multiply, 64 x 256 each, with the sums in 128 registers, and write. Nothing
 *          but the ring holds the groups together, and the second starts some chunks later: one writes while
 *          the other multiplies. Of a tile with at most 64 rows the second group has nothing to do.
 * Copies   One thread fetches boxes. Rows that are gathered are fetched by a group of four warps, 16 bytes a
 *          thread, to where a box would have them; nobody waits for these copies but who multiplies.
 * Codes    Stored weights in NF4 are decoded by two more groups, chunk by chunk in turn (grouped_codes.cuh), which also
 *          fetch the rows. What they do for a tile grows with its columns: tiles are 256 rows and 128 columns,
 *          128 x 128 a group that multiplies. It costs power: 8192 tokens take 0.78 ms for 1536 x 2048 (0.95 gathered),
 *          0.35 + 0.63 decoded first; in a step that is no gain where rows are gathered. 1024 tokens: 0.32, not
 *          0.35 + 0.29.
 * Adapters Low and the factor are more chunks, behind those of x and W; of their last 64 summands only those there are,
 *          16 at a time, are multiplied. On an H200 r 16 makes a matmul 1 to 2 % longer.
 * Order    Tiles that run at the same time share rows and columns of a few experts (expert_tiles.cuh), so that
 *          what they read comes from L2.
 * Sums     64 summands after the other from the first on, by the lengths alone.
 * Cost     A chunk of a tile takes 48 KB from L2 for 4.2 MFLOP; W is read from memory once, where L2 holds an
 *          expert. On an H100 8192 tokens times 8 of 128 experts take 0.63 ms for 1536 x 2048 (650 TFLOP/s), 0.67
 *          gathered and 0.65 backward; 0.39 for 2048 x 768 and 0.33 backward; one matmul 0.53 and 0.30.
 */
#include "kernels/grouped_codes.cuh"
#include "kernels/grouped_gather.cuh"

#define GROUPS      2 /* that multiply */
#define DECODERS    2 /* groups that take chunks in turn */
#define STAGES      4
#define LEAD        2  /* chunks that the first group begins with alone */
#define BLOCK_ROWS  64 /* of a product */
#define BLOCK_BYTES (BLOCK_ROWS * CHUNK * 2)

/* Where weights are decoded, or not. */
#define THREADS(codes)     ((GROUPS + ((codes) ? DECODERS : 1)) * TSR_WARPGROUP)
#define GROUP_ROWS(codes)  ((codes) ? 128 : 64)
#define ROWS(codes)        (GROUPS * GROUP_ROWS(codes))
#define ACROSS(codes)      ((codes) ? 128 : 256) /* columns */
#define GROUP_BYTES(codes) (GROUP_ROWS(codes) * CHUNK * 2)
#define X_BYTES(codes)     (GROUPS * GROUP_BYTES(codes))
#define W_BYTES(codes)     (ACROSS(codes) * CHUNK * 2)
#define STAGE_BYTES        (X_BYTES(false) + W_BYTES(false))
#define BYTES              (STAGES * STAGE_BYTES + ALIGNMENT)
#define CODE_SLOTS         2 /* of a decoder */
#define CODE_BYTES         (BYTES + DECODERS * CODE_SLOTS * TSR_CODES_BYTES)

static_assert(STAGES % DECODERS == 0, "a decoder's stages are always the same");
static_assert(X_BYTES(true) + W_BYTES(true) == STAGE_BYTES, "stages of both are as large");

#define CODES_EACH (ROWS(true) / GATHERED)

static_assert(ROWS(false) == GATHERED_EACH * GATHERED, "all rows of a tile are gathered");

/* What a block goes through. */
typedef struct {
    const tsr_grouped_gemm_args *args;
    const tsr_expert_starts *starts;
    int inner, outer, across;
    int base, chunks; /* of x and W; and those of low and the factor behind them */
} grouped_work;

template <bool CODES>
static __device__ __forceinline__ __attribute__((unused)) bool
tile_at(tsr_expert_tile *tile, const grouped_work *work, int index)
{
    return tsr_expert_tile_at(tile, work->starts, (int)work->args->count, ROWS(CODES), work->across,
                              ACROSS(CODES), index);
}

/* ---- copies ---- */

/* One thread: the rows of a chunk, where they lie in order; `more` bytes come too. */
template <bool CODES>
static __device__ __forceinline__ __attribute__((unused)) void
fetch_x(const CUtensorMap *x, const tsr_expert_tile *tile, int chunk, uint32_t to, uint32_t full,
        unsigned more)
{
    int groups = tile->row_end - tile->row > GROUP_ROWS(CODES) ? GROUPS : 1;
    tsr_barrier_expect(full, (unsigned)groups * GROUP_BYTES(CODES) + more);
    for (int group = 0; group < groups; group++)
        tsr_box_copy_of(to + group * GROUP_BYTES(CODES), x, chunk * CHUNK,
                        tile->row + group * GROUP_ROWS(CODES), 0, full);
}

/* One thread: a chunk of low and the factor. */
template <bool BACKWARD, bool CODES>
static __device__ __forceinline__ __attribute__((unused)) void
fetch_low(const grouped_maps *maps, const tsr_expert_tile *tile, int chunk, uint32_t to,
          uint32_t full)
{
    fetch_x<CODES>(&maps->low, tile, chunk, to, full, W_BYTES(CODES));
    fetch_w<BACKWARD, ACROSS(CODES)>(&maps->factor, to + X_BYTES(CODES), tile, chunk, full);
}

/* A group: the same as fetch, of rows that are gathered. */
template <bool BACKWARD>
static __device__ __forceinline__ void gather(const grouped_work *work, grouped_ring ring,
                                              const grouped_maps *maps)
{
    int i = (int)blockIdx.x;
    tsr_expert_tile tile, next;
    gathered_slots slots = {};
    bool more = tile_at<false>(&tile, work, i), again;
    if (more)
        slots = find_slots(&work->args->rows, &tile);
    for (; more; more = again, tile = next) {
        uint32_t from[GATHERED_EACH];
        bool second = tile.row_end - tile.row > GROUP_ROWS(false);
#pragma unroll
        for (int j = 0; j < GATHERED_EACH; j++)
            from[j] = row_from(&work->args->rows, slots.of[j], work->inner / TSR_VECTOR);
        again = false;
        for (int chunk = 0; chunk < work->chunks; chunk++) {
            uint32_t to = ring.data + ring.stage * STAGE_BYTES, full = ring.full + 8 * ring.stage;
            tsr_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            bool low = chunk >= work->base, one = threadIdx.x % TSR_WARPGROUP == 0;
            if (one && low) {
                fetch_low<BACKWARD, false>(maps, &tile, chunk - work->base, to, full);
            } else if (one) {
                tsr_barrier_expect(full, W_BYTES(false));
                fetch_w<BACKWARD, ACROSS(false)>(&maps->w, to + X_BYTES(false), &tile, chunk, full);
            }
            if (low)
                tsr_barrier_arrive(full);
            else
                gather_chunk<GATHERED_EACH>(work->args->x, work->inner / TSR_VECTOR, from, second,
                                            chunk, to, full);
            next_stage<STAGES>(&ring);
            if (chunk == 0) {
                i += (int)gridDim.x;
                again = tile_at<false>(&next, work, i);
                if (again)
                    slots = find_slots(&work->args->rows, &next);
            }
        }
    }
    tsr_copy_wait();
}

/* ---- weights that are decoded as they are multiplied with ---- */

static __device__ __forceinline__ __attribute__((unused)) void
find_rows(uint32_t from[CODES_EACH], const grouped_work *work, const tsr_expert_tile *tile)
{
    int own = tile->row + threadIdx.x % TSR_WARPGROUP / ROW_PARTS;
#pragma unroll
    for (int j = 0; j < CODES_EACH; j++) {
        int row = own + j * GATHERED;
        from[j] = row_from(&work->args->rows, row < tile->row_end ? work->args->rows.slot[row] : -1,
                           work->inner / TSR_VECTOR);
    }
}

/* What the decoders share. `memory` is what ring.data is the shared address of. */
typedef struct {
    const tsr_grouped_codes *codes;
    const tsr_codes_tables *tables;
    char *memory;
} grouped_decoding;

/* The rows of a decoder's chunk; of one of low and the factor both. */
template <bool BACKWARD, bool GATHER>
static __device__ __forceinline__ void
fetch_rows(const grouped_work *work, const grouped_maps *maps, const uint32_t from[CODES_EACH],
           const tsr_expert_tile *tile, int chunk, uint32_t to, uint32_t full)
{
    bool low = chunk >= work->base, one = threadIdx.x % TSR_WARPGROUP == 0;
    if (low && one)
        fetch_low<BACKWARD, true>(maps, tile, chunk - work->base, to, full);
    else if (low && GATHER)
        tsr_barrier_arrive(full);
    else if (!low && GATHER)
        gather_chunk<CODES_EACH>(work->args->x, work->inner / TSR_VECTOR, from,
                                 tile->row_end - tile->row > GROUP_ROWS(true), chunk, to, full);
    else if (one)
        fetch_x<true>(&maps->x, tile, chunk, to, full, 0);
}

/* A decoder: every other chunk of all the block's tiles. Codes and what their scales are made of are asked for
 * a turn ahead, so that a tile has at least as many chunks as there are decoders; also ahead of chunks of low and the
 * factor, which have none: nobody reads those. */
template <bool BACKWARD, bool GATHER>
static __device__ __forceinline__ void fetch_decoded(const grouped_work *work, grouped_ring ring,
                                                     const grouped_maps *maps,
                                                     const grouped_decoding *d)
{
    const int decoder = (int)threadIdx.x / TSR_WARPGROUP - GROUPS;
    const tsr_codes_thread own = {(int)threadIdx.x % TSR_WARP,
                                  (int)threadIdx.x % TSR_WARPGROUP / TSR_WARP};
    const uint32_t slots = STAGES * STAGE_BYTES + decoder * CODE_SLOTS * TSR_CODES_BYTES;
    int i = (int)blockIdx.x, slot = 0, chunk = decoder;
    tsr_expert_tile tile, next;
    tsr_codes_found found = {};
    bool more = tile_at<true>(&tile, work, i), again;
    ring.stage = (uint32_t)decoder;
    if (more) {
        const tsr_codes_chunk first = {tile.expert, tile.column, chunk};
        tsr_codes_ask<BACKWARD>(ring.data + slots, d->codes, first, &own);
        tsr_codes_find<BACKWARD>(&found, d->codes, first, &own);
    }
    tsr_copy_commit();
    for (; more; more = again, tile = next, chunk -= work->chunks) {
        uint32_t from[CODES_EACH];
        if (GATHER)
            find_rows(from, work, &tile);
        i += (int)gridDim.x;
        again = tile_at<true>(&next, work, i);
        for (; chunk < work->chunks; chunk += DECODERS) {
            uint32_t stage = ring.stage * STAGE_BYTES, full = ring.full + 8 * ring.stage;
            bool last = chunk + DECODERS >= work->chunks;
            const tsr_codes_chunk after = {
                last ? next.expert : tile.expert, last ? next.column : tile.column,
                last ? chunk + DECODERS - work->chunks : chunk + DECODERS};
            float scale = tsr_codes_scale(&found, d->tables, d->codes->nested);
            tsr_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            fetch_rows<BACKWARD, GATHER>(work, maps, from, &tile, chunk, ring.data + stage, full);
            if (!last || again) {
                tsr_codes_ask<BACKWARD>(ring.data + slots + (slot ^ 1) * TSR_CODES_BYTES, d->codes,
                                        after, &own);
                tsr_codes_find<BACKWARD>(&found, d->codes, after, &own);
            }
            tsr_copy_commit();
            tsr_copy_wait_but_one();
            __syncwarp();
            if (chunk < work->base)
                tsr_codes_decode<BACKWARD>(d->memory + stage + X_BYTES(true), STRIP_BYTES,
                                           d->memory + slots + slot * TSR_CODES_BYTES, d->tables,
                                           scale, &own);
            tsr_bulk_written();
            __syncwarp();
            if (own.lane == 0)
                tsr_barrier_arrive(full);
            slot ^= 1;
            ring.stage += DECODERS;
            if (ring.stage >= STAGES)
                ring.stage -= STAGES, ring.parity ^= 1;
        }
    }
    tsr_copy_wait();
}

/* ---- products ---- */

/* Where a group is. The other may start after chunk `lead`; -1: it has. The tile after this one is found
 * while the first products run. */
typedef struct {
    tsr_expert_tile tile, next;
    int index, lead;
    bool more;
} grouped_place;

template <bool CODES>
static __device__ __forceinline__ __attribute__((unused)) void find_next(grouped_place *place,
                                                                         const grouped_work *work)
{
    place->index += (int)gridDim.x;
    place->more = tile_at<CODES>(&place->next, work, place->index);
}

/* The products of 16 summands of a chunk: of 64 rows and 256 columns, or one or two of 64 rows and 128 columns. */
template <bool BACKWARD, bool CODES, int BLOCKS>
static __device__ __forceinline__ __attribute__((unused)) void
multiply_step(float c[32][4], uint64_t left, uint64_t right, int i, bool add)
{
    const int step = BACKWARD ? 2048 / 16 : 32 / 16;
    if (!CODES)
        tsr_wgmma<BACKWARD>(c, left + i * 32 / 16, right + i * step, add);
    else
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
            tsr_wgmma_128<BACKWARD>(c + 16 * block, left + (block * BLOCK_BYTES + i * 32) / 16,
                                    right + i * step, add);
}

template <bool BACKWARD, bool GATHER, bool CODES>
static __device__ __forceinline__ __attribute__((unused)) grouped_operands
wait_stage(const grouped_ring *ring, int group)
{
    uint32_t stage = ring->data + ring->stage * STAGE_BYTES;
    grouped_operands o;
    o.left = tsr_wgmma_rows(stage + (uint32_t)group * GROUP_BYTES(CODES));
    o.right = BACKWARD ? tsr_wgmma_columns(stage + X_BYTES(CODES), STRIP_BYTES)
                       : tsr_wgmma_rows(stage + X_BYTES(CODES));
    tsr_barrier_wait(ring->full + 8 * ring->stage, ring->parity);
    if (GATHER)
        tsr_bulk_written(); /* by the copies of other threads */
    return o;
}

/* A group's rows of a tile. */
template <bool BACKWARD, bool GATHER, bool CODES, int BLOCKS>
static __device__ __forceinline__ void product(float c[32][4], const grouped_work *work,
                                               grouped_ring *ring, int group, grouped_place *place)
{
    uint32_t before = 0;
    for (int chunk = 0; chunk < work->base; chunk++) {
        grouped_operands o = wait_stage<BACKWARD, GATHER, CODES>(ring, group);
        tsr_wgmma_begin();
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++)
            multiply_step<BACKWARD, CODES, BLOCKS>(c, o.left, o.right, i, chunk || i);
        tsr_wgmma_commit();
        if (chunk == place->lead && threadIdx.x % TSR_WARP == 0)
            tsr_barrier_arrive(ring->lead);
        if (chunk == 0)
            find_next<CODES>(place, work);
        tsr_wgmma_wait_but_one();
        if (chunk)
            leave_stage(before);
        before = ring->empty + 8 * ring->stage;
        next_stage<STAGES>(ring);
    }
    for (int r = (int)work->args->r; r > 0; r -= CHUNK) {
        grouped_operands o = wait_stage<BACKWARD, GATHER, CODES>(ring, group);
        for (int i = 0; i < CHUNK / 16 && i * 16 < r; i++) {
            tsr_wgmma_begin();
            multiply_step<BACKWARD, CODES, BLOCKS>(c, o.left, o.right, i, true);
            tsr_wgmma_commit();
        }
        tsr_wgmma_wait_but_one();
        leave_stage(before);
        before = ring->empty + 8 * ring->stage;
        next_stage<STAGES>(ring);
    }
    tsr_wgmma_wait(c);
    leave_stage(before);
}

/* A warp's rows of a tile: 16, or of each block 16. */
template <bool CODES, int BLOCKS>
static __device__ __forceinline__ __attribute__((unused)) void
write(const float c[32][4], const grouped_work *work, const tsr_expert_tile *tile, int group)
{
    const int strips = ACROSS(CODES) / TSR_GROUPED_STRIP;
    int warp = threadIdx.x % TSR_WARPGROUP / TSR_WARP;
    int row = tile->row + group * GROUP_ROWS(CODES) + warp * 16;
#pragma unroll
    for (int q = 0; q < BLOCKS * strips; q++)
        tsr_grouped_write(work->args, work->outer, tile, row + q / strips * BLOCK_ROWS,
                          tile->column + q % strips * TSR_GROUPED_STRIP, c + 4 * q);
}

/* ---- the kernel ---- */

template <bool BACKWARD, bool GATHER, bool CODES>
static __device__ __forceinline__ void multiply(const grouped_work *work, grouped_ring ring)
{
    int group = threadIdx.x / TSR_WARPGROUP;
    grouped_place place = {};
    place.index = (int)blockIdx.x;
    place.lead = group ? -1 : (work->base < LEAD ? work->base : LEAD) - 1;
    place.more = tile_at<CODES>(&place.tile, work, place.index);
    if (group && place.more)
        tsr_barrier_wait(ring.lead, 0);
    while (place.more) {
        float c[32][4];
        int rows = place.tile.row_end - place.tile.row - group * GROUP_ROWS(CODES);
        if (rows <= 0) {
            pass_stages<STAGES>(&ring, work->chunks);
            find_next<CODES>(&place, work);
        } else if (CODES && rows > BLOCK_ROWS) {
            product<BACKWARD, GATHER, CODES, 2>(c, work, &ring, group, &place);
            write<CODES, 2>(c, work, &place.tile, group);
        } else {
            product<BACKWARD, GATHER, CODES, 1>(c, work, &ring, group, &place);
            write<CODES, 1>(c, work, &place.tile, group);
        }
        place.lead = -1;
        place.tile = place.next;
    }
}

/* Arrivals that fill a stage, also with low and the factor: of who fetches boxes, of each thread that gathers, of each warp that decodes. */
template <bool GATHER, bool CODES> static __device__ __forceinline__ unsigned arrivals(void)
{
    unsigned decoded = TSR_WARPGROUP / TSR_WARP;
    if (CODES)
        return (GATHER ? TSR_WARPGROUP : 1) + decoded;
    return GATHER ? TSR_WARPGROUP + 1 : 1;
}

template <bool BACKWARD, bool CODES>
static __device__ __forceinline__ grouped_work work_of(const tsr_grouped_gemm_args *args,
                                                       const tsr_expert_starts *starts)
{
    grouped_work work = {args, starts};
    work.inner = (int)(BACKWARD ? args->out : args->in);
    work.outer = (int)(BACKWARD ? args->in : args->out);
    work.across = (work.outer + ACROSS(CODES) - 1) / ACROSS(CODES);
    work.base = (work.inner + CHUNK - 1) / CHUNK;
    work.chunks = work.base + ((int)args->r + CHUNK - 1) / CHUNK;
    return work;
}

/* Unused in code for other cards. */
template <bool BACKWARD, bool GATHER, bool CODES>
static __device__ __forceinline__ __attribute__((unused)) void
grouped(const tsr_grouped_gemm_args *args, const grouped_maps *maps, const tsr_grouped_codes *codes)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES + 1];
    __shared__ tsr_expert_starts starts;
    __shared__ tsr_codes_tables tables;
    grouped_work work = work_of<BACKWARD, CODES>(args, &starts);
    grouped_ring ring = ring_begin<STAGES>(memory, barriers, arrivals<GATHER, CODES>(), GROUPS);
    if (CODES)
        tsr_codes_begin(&tables, codes);
    tsr_expert_count(&starts, &args->rows, args->first, (int)args->count, ROWS(CODES));
    if (threadIdx.x < GROUPS * TSR_WARPGROUP) {
        if (CODES)
            TSR_REGISTERS_UP(184);
        else
            TSR_REGISTERS_UP(216);
        multiply<BACKWARD, GATHER, CODES>(&work, ring);
    } else {
        if (CODES)
            TSR_REGISTERS_DOWN(72);
        else
            TSR_REGISTERS_DOWN(72);
        if (CODES) {
            const grouped_decoding d = {codes, &tables,
                                        memory + (ring.data - tsr_shared_address(memory))};
            fetch_decoded<BACKWARD, GATHER>(&work, ring, maps, &d);
        } else {
            gather<BACKWARD>(&work, ring, maps);
        }
    }
}

template <bool BACKWARD, bool GATHER, bool CODES>
static __global__ void TSR_SM90_BOUNDS(THREADS(CODES))
    grouped_tiles(const __grid_constant__ tsr_grouped_gemm_args args,
                  const __grid_constant__ grouped_maps maps,
                  const __grid_constant__ tsr_grouped_codes codes)
{
    tsr_kernel_begin();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    grouped<BACKWARD, GATHER, CODES>(&args, &maps, &codes);
#endif
}

/* ---- launching ---- */

typedef void grouped_kernel(const tsr_grouped_gemm_args, const grouped_maps,
                            const tsr_grouped_codes);

static tsr_status launch(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                         const grouped_maps *maps, const tsr_grouped_codes *codes)
{
    static grouped_kernel *const gathered[2] = {grouped_tiles<false, true, false>,
                                                grouped_tiles<true, true, false>};
    static grouped_kernel *const decoding[2][2] = {
        {grouped_tiles<false, false, true>, grouped_tiles<false, true, true>},
        {grouped_tiles<true, false, true>, grouped_tiles<true, true, true>}};
    bool decoded = codes->codes != NULL;
    grouped_kernel *kernel =
        decoded ? decoding[args->backward][args->rows.slot != NULL] : gathered[args->backward];
    size_t bytes = decoded ? CODE_BYTES : BYTES;
    int64_t outer = args->backward ? args->in : args->out;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, bytes, "grouped_gemm"));
    int64_t tiles = tsr_expert_most_blocks(args->rows.most, args->count, ROWS(decoded)) *
                    tsr_blocks(outer, ACROSS(decoded));
    int64_t most = tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count;
    TSR_LAUNCH_SHARED(kernel, (unsigned)(tiles < most ? tiles : most), THREADS(decoded), bytes,
                      stream, *args, *maps, *codes);
    return tsr_launched("grouped_gemm");
}

/* The maps of rows that lie in order, and of the factor. Gathered rows are found in steps of 16 bytes. */
static bool map_rows(grouped_maps *maps, void *boxes, const tsr_grouped_gemm_args *args,
                     bool decoded)
{
    int64_t inner = args->backward ? args->out : args->in;
    if (!map_low(maps, boxes, args, GROUP_ROWS(decoded), ACROSS(decoded)))
        return false;
    if (args->rows.slot)
        return args->rows.most / args->rows.k * (inner / TSR_VECTOR) <= UINT32_MAX;
    return tsr_map_boxes(&maps->x, boxes, args->x, 1, args->rows.most, inner, GROUP_ROWS(decoded));
}

bool tsr_grouped_gemm_wgmma(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                            tsr_status *status)
{
    void *boxes = tsr_kernels_kept(stream)->boxes;
    const tsr_grouped_codes none = {};
    grouped_maps maps = {};
    if (!boxes || !args->rows.slot || !map_w(&maps, boxes, args, ACROSS(false)) ||
        !map_rows(&maps, boxes, args, false))
        return false;
    *status = launch(stream, args, &maps, &none);
    return true;
}

/* Of few rows an expert, for which decoding all weights first would take long beside the products; of more they
 * take longer so, since each 256 rows decode them again. Gathered rows leave less time for it. Measured on an
 * H100, in whole steps. */
static bool few_rows(const tsr_grouped_gemm_args *args)
{
    return args->rows.most <= args->count * (args->rows.slot ? 256 : 512);
}

static bool decodes(const tsr_grouped_gemm_args *args)
{
    const tsr_expert_weight_args *w = &args->stored;
    return few_rows(args) && tsr_expert_weight_whole(w) && args->out % CHUNK == 0 &&
           args->out >= DECODERS * CHUNK && args->in >= DECODERS * CHUNK &&
           (uintptr_t)w->codes % 16 == 0 && (uintptr_t)w->level % 16 == 0 &&
           args->rows.experts * args->out * args->in / TSR_NF4_BLOCK <= INT32_MAX;
}

static tsr_grouped_codes codes_of(const tsr_grouped_gemm_args *args)
{
    const tsr_expert_weight_args *w = &args->stored;
    tsr_grouped_codes codes = {};
    codes.codes = w->codes;
    codes.absmax = w->absmax;
    codes.nested_absmax = w->nested_absmax;
    codes.nested_map = w->nested_map;
    codes.offset = w->offset;
    codes.level = w->level;
    codes.rows = (int)w->rows;
    codes.parts = (int)w->parts;
    codes.matrix_rows = (int)(w->rows / w->parts);
    codes.blocks = (int)(w->columns / TSR_NF4_BLOCK);
    codes.first = (int)args->first;
    codes.nested = w->nested;
    return codes;
}

bool tsr_grouped_gemm_codes(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                            tsr_status *status)
{
    void *boxes = tsr_kernels_kept(stream)->boxes;
    grouped_maps maps = {};
    if (!boxes || !decodes(args) || !map_rows(&maps, boxes, args, true))
        return false;
    const tsr_grouped_codes codes = codes_of(args);
    *status = launch(stream, args, &maps, &codes);
    return true;
}
