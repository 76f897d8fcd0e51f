/*
 * grouped_gemm_wgmma.cu: grouped_gemm in bf16 on sm_90a, of rows that are gathered.
 *
 * Split    A block stays, and takes tiles of 128 rows of an expert and 256 columns, every so many. Chunks of
 *          64 summands of both operands go through a ring of four stages, ahead through all its tiles; two
 *          groups of four warps multiply, 64 x 256 each, with the sums in 128 registers, and write. Nothing
 *          but the ring holds the groups together, and the second starts some chunks later: one writes while
 *          the other multiplies. Of a tile with at most 64 rows the second group has nothing to do.
 * Copies   A group of four warps fetches rows, 16 bytes a thread, to where a box would have them, and one of its threads
 *          boxes of W; nobody waits for these copies but who multiplies.
 * Adapters Low and the factor are more chunks, behind those of x and W; of their last 64 summands only those there are,
 *          16 at a time, are multiplied. On an H200 r 16 makes a matmul 1 to 2 % longer.
 * Order    Tiles that run at the same time share rows and columns of a few experts (expert_tiles.cuh), so that
 *          what they read comes from L2.
 * Sums     64 summands after the other from the first on, by the lengths alone.
 * Cost     A chunk of a tile takes 48 KB from L2 for 4.2 MFLOP; W is read from memory once, where L2 holds an
 *          expert. On an H100 8192 tokens times 8 of 128 experts take 0.67 ms for 1536 x 2048 and 0.33 for 2048 x 768
 *          backward; one matmul 0.53 and 0.30.
 */
#include "kernels/boxes.cuh"
#include "kernels/grouped_gemm.cuh"
#include "kernels/wgmma.cuh"

#define GROUPS      2  /* that multiply */
#define CHUNK       64 /* summands: 128 bytes */
#define STAGES      4
#define LEAD        2  /* chunks that the first group begins with alone */
#define STRIP       64 /* columns of a box of W, where it is multiplied with as it lies */
#define STRIP_BYTES (CHUNK * STRIP * 2)

#define THREADS     ((GROUPS + 1) * TSR_WARPGROUP)
#define GROUP_ROWS  64
#define ROWS        (GROUPS * GROUP_ROWS)
#define ACROSS      256 /* columns */
#define GROUP_BYTES (GROUP_ROWS * CHUNK * 2)
#define X_BYTES     (GROUPS * GROUP_BYTES)
#define W_BYTES     (ACROSS * CHUNK * 2)
#define STAGE_BYTES (X_BYTES + W_BYTES)
#define ALIGNMENT   1024
#define BYTES       (STAGES * STAGE_BYTES + ALIGNMENT)

#define ROW_PARTS     (CHUNK * 2 / 16)            /* 16 bytes each, a thread */
#define GATHERED      (TSR_WARPGROUP / ROW_PARTS) /* rows at a time */
#define GATHERED_EACH (ROWS / GATHERED)

typedef struct {
    CUtensorMap w, low, factor;
} grouped_maps;

/* What a block goes through. */
typedef struct {
    const tsr_grouped_gemm_args *args;
    const tsr_expert_starts *starts;
    int inner, outer, across;
    int base, chunks; /* of x and W; and those of low and the factor behind them */
} grouped_work;

/* The ring: its parts' shared addresses; and where a thread is in it. */
typedef struct {
    uint32_t data, full, empty, lead;
    uint32_t stage, parity;
} grouped_ring;

static __device__ __forceinline__ void next_stage(grouped_ring *ring)
{
    if (++ring->stage == STAGES)
        ring->stage = 0, ring->parity ^= 1;
}

static __device__ __forceinline__ __attribute__((unused)) bool
tile_at(tsr_expert_tile *tile, const grouped_work *work, int index)
{
    return tsr_expert_tile_at(tile, work->starts, (int)work->args->count, ROWS, work->across,
                              ACROSS, index);
}

/* ---- copies ---- */

/* One thread: columns of W, or of the factor, for a chunk. */
template <bool BACKWARD>
static __device__ __forceinline__ void
fetch_w(const CUtensorMap *w, uint32_t to, const tsr_expert_tile *tile, int chunk, uint32_t full)
{
    const int boxes = BACKWARD ? ACROSS / STRIP : 1;
#pragma unroll
    for (int i = 0; i < boxes; i++)
        tsr_box_copy_of(to + i * STRIP_BYTES, w,
                        BACKWARD ? tile->column + i * STRIP : chunk * CHUNK,
                        BACKWARD ? chunk * CHUNK : tile->column, tile->expert, full);
}

/* One thread: the rows of a chunk, where they lie in order; `more` bytes come too. */
static __device__ __forceinline__ __attribute__((unused)) void fetch_x(const CUtensorMap *x,
                                                                       const tsr_expert_tile *tile,
                                                                       int chunk, uint32_t to,
                                                                       uint32_t full, unsigned more)
{
    int groups = tile->row_end - tile->row > GROUP_ROWS ? GROUPS : 1;
    tsr_barrier_expect(full, (unsigned)groups * GROUP_BYTES + more);
    for (int group = 0; group < groups; group++)
        tsr_box_copy_of(to + group * GROUP_BYTES, x, chunk * CHUNK, tile->row + group * GROUP_ROWS,
                        0, full);
}

/* One thread: a chunk of low and the factor. */
template <bool BACKWARD>
static __device__ __forceinline__ __attribute__((unused)) void
fetch_low(const grouped_maps *maps, const tsr_expert_tile *tile, int chunk, uint32_t to,
          uint32_t full)
{
    fetch_x(&maps->low, tile, chunk, to, full, W_BYTES);
    fetch_w<BACKWARD>(&maps->factor, to + X_BYTES, tile, chunk, full);
}

/* The slots of the rows that a thread gathers of a tile; -1: none. */
typedef struct {
    int of[GATHERED_EACH];
} gathered_slots;

static __device__ __forceinline__ __attribute__((unused)) gathered_slots
find_slots(const tsr_expert_rows *rows, const tsr_expert_tile *tile)
{
    gathered_slots slots;
    int own = tile->row + threadIdx.x % TSR_WARPGROUP / ROW_PARTS;
#pragma unroll
    for (int j = 0; j < GATHERED_EACH; j++)
        slots.of[j] = own + j * GATHERED < tile->row_end ? rows->slot[own + j * GATHERED] : -1;
    return slots;
}

#define NO_ROW (~0u)

/* Where the row of a slot begins, in 16 bytes. */
static __device__ __forceinline__ __attribute__((unused)) uint32_t
row_from(const grouped_work *work, int slot)
{
    return slot < 0 ? NO_ROW
                    : (uint32_t)slot / (uint32_t)work->args->rows.k *
                          (uint32_t)(work->inner / TSR_VECTOR);
}

/* The rows' part of a chunk, and the arrival of it: thread i of a group takes part i % 8 of every 16th row.
 * `second`: the other group has rows. */
static __device__ __forceinline__ __attribute__((unused)) void
gather_chunk(const grouped_work *work, const uint32_t from[GATHERED_EACH], bool second, int chunk,
             uint32_t to, uint32_t full)
{
    int thread = threadIdx.x % TSR_WARPGROUP, part = thread % ROW_PARTS, own = thread / ROW_PARTS;
    uint32_t place = (uint32_t)(own * CHUNK * 2 + (part ^ own % 8) * 16);
    int column = chunk * ROW_PARTS + part;
#pragma unroll
    for (int j = 0; j < GATHERED_EACH; j++) {
        bool valid = from[j] != NO_ROW && column * TSR_VECTOR < work->inner;
        uint32_t at = valid ? from[j] + (uint32_t)column : 0;
        if (j < GATHERED_EACH / 2 || second)
            tsr_copy16_at(to + place + j * GATHERED * CHUNK * 2,
                          (const char *)work->args->x + (uint64_t)at * 16, valid);
    }
    tsr_barrier_arrive_copied(full);
}

/* A group: all chunks of all the block's tiles. */
template <bool BACKWARD>
static __device__ __forceinline__ void gather(const grouped_work *work, grouped_ring ring,
                                              const grouped_maps *maps)
{
    int i = (int)blockIdx.x;
    tsr_expert_tile tile, next;
    gathered_slots slots = {};
    bool more = tile_at(&tile, work, i), again;
    if (more)
        slots = find_slots(&work->args->rows, &tile);
    for (; more; more = again, tile = next) {
        uint32_t from[GATHERED_EACH];
        bool second = tile.row_end - tile.row > GROUP_ROWS;
#pragma unroll
        for (int j = 0; j < GATHERED_EACH; j++)
            from[j] = row_from(work, slots.of[j]);
        again = false;
        for (int chunk = 0; chunk < work->chunks; chunk++) {
            uint32_t to = ring.data + ring.stage * STAGE_BYTES, full = ring.full + 8 * ring.stage;
            tsr_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            bool low = chunk >= work->base, one = threadIdx.x % TSR_WARPGROUP == 0;
            if (one && low) {
                fetch_low<BACKWARD>(maps, &tile, chunk - work->base, to, full);
            } else if (one) {
                tsr_barrier_expect(full, W_BYTES);
                fetch_w<BACKWARD>(&maps->w, to + X_BYTES, &tile, chunk, full);
            }
            if (low)
                tsr_barrier_arrive(full);
            else
                gather_chunk(work, from, second, chunk, to, full);
            next_stage(&ring);
            if (chunk == 0) {
                i += (int)gridDim.x;
                again = tile_at(&next, work, i);
                if (again)
                    slots = find_slots(&work->args->rows, &next);
            }
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

static __device__ __forceinline__ __attribute__((unused)) void find_next(grouped_place *place,
                                                                         const grouped_work *work)
{
    place->index += (int)gridDim.x;
    place->more = tile_at(&place->next, work, place->index);
}

/* The products of 16 summands of a chunk. */
template <bool BACKWARD>
static __device__ __forceinline__ __attribute__((unused)) void
multiply_step(float c[32][4], uint64_t left, uint64_t right, int i, bool add)
{
    const int step = BACKWARD ? 2048 / 16 : 32 / 16;
    tsr_wgmma<BACKWARD>(c, left + i * 32 / 16, right + i * step, add);
}

/* Of a stage. */
typedef struct {
    uint64_t left, right;
} grouped_operands;

template <bool BACKWARD>
static __device__ __forceinline__ __attribute__((unused)) grouped_operands
wait_stage(const grouped_ring *ring, int group)
{
    uint32_t stage = ring->data + ring->stage * STAGE_BYTES;
    grouped_operands o;
    o.left = tsr_wgmma_rows(stage + (uint32_t)group * GROUP_BYTES);
    o.right = BACKWARD ? tsr_wgmma_columns(stage + X_BYTES, STRIP_BYTES)
                       : tsr_wgmma_rows(stage + X_BYTES);
    tsr_barrier_wait(ring->full + 8 * ring->stage, ring->parity);
    tsr_bulk_written(); /* by the copies of other threads */
    return o;
}

/* A group's rows of a tile. */
template <bool BACKWARD>
static __device__ __forceinline__ void product(float c[32][4], const grouped_work *work,
                                               grouped_ring *ring, int group, grouped_place *place)
{
    uint32_t before = 0;
    bool one = threadIdx.x % TSR_WARP == 0;
    for (int chunk = 0; chunk < work->base; chunk++) {
        grouped_operands o = wait_stage<BACKWARD>(ring, group);
        tsr_wgmma_begin();
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++)
            multiply_step<BACKWARD>(c, o.left, o.right, i, chunk || i);
        tsr_wgmma_commit();
        if (chunk == place->lead && one)
            tsr_barrier_arrive(ring->lead);
        if (chunk == 0)
            find_next(place, work);
        tsr_wgmma_wait_but_one();
        if (chunk && one)
            tsr_barrier_arrive(before);
        before = ring->empty + 8 * ring->stage;
        next_stage(ring);
    }
    for (int r = (int)work->args->r; r > 0; r -= CHUNK) {
        grouped_operands o = wait_stage<BACKWARD>(ring, group);
        for (int i = 0; i < CHUNK / 16 && i * 16 < r; i++) {
            tsr_wgmma_begin();
            multiply_step<BACKWARD>(c, o.left, o.right, i, true);
            tsr_wgmma_commit();
        }
        tsr_wgmma_wait_but_one();
        if (one)
            tsr_barrier_arrive(before);
        before = ring->empty + 8 * ring->stage;
        next_stage(ring);
    }
    tsr_wgmma_wait(c);
    if (one)
        tsr_barrier_arrive(before);
}

/* Of a tile in which the group has no rows. */
static __device__ __forceinline__ __attribute__((unused)) void pass(const grouped_work *work,
                                                                    grouped_ring *ring)
{
    for (int chunk = 0; chunk < work->chunks; chunk++) {
        tsr_barrier_wait(ring->full + 8 * ring->stage, ring->parity);
        if (threadIdx.x % TSR_WARP == 0)
            tsr_barrier_arrive(ring->empty + 8 * ring->stage);
        next_stage(ring);
    }
}

/* A warp's rows of a tile: 16. */
static __device__ __forceinline__ __attribute__((unused)) void
write(const float c[32][4], const grouped_work *work, const tsr_expert_tile *tile, int group)
{
    const int strips = ACROSS / TSR_GROUPED_STRIP;
    int warp = threadIdx.x % TSR_WARPGROUP / TSR_WARP;
    int row = tile->row + group * GROUP_ROWS + warp * 16;
#pragma unroll
    for (int q = 0; q < strips; q++)
        tsr_grouped_write(work->args, work->outer, tile, row, tile->column + q * TSR_GROUPED_STRIP,
                          c + 4 * q);
}

/* ---- the kernel ---- */

template <bool BACKWARD>
static __device__ __forceinline__ void multiply(const grouped_work *work, grouped_ring ring)
{
    int group = threadIdx.x / TSR_WARPGROUP;
    grouped_place place = {};
    place.index = (int)blockIdx.x;
    place.lead = group ? -1 : (work->base < LEAD ? work->base : LEAD) - 1;
    place.more = tile_at(&place.tile, work, place.index);
    if (group && place.more)
        tsr_barrier_wait(ring.lead, 0);
    while (place.more) {
        float c[32][4];
        int rows = place.tile.row_end - place.tile.row - group * GROUP_ROWS;
        if (rows <= 0) {
            pass(work, &ring);
            find_next(&place, work);
        } else {
            product<BACKWARD>(c, work, &ring, group, &place);
            write(c, work, &place.tile, group);
        }
        place.lead = -1;
        place.tile = place.next;
    }
}

/* Arrivals that fill a stage, also with low and the factor: of who fetches boxes, of each thread that gathers. */
#define ARRIVALS (TSR_WARPGROUP + 1)

template <bool BACKWARD>
static __device__ __forceinline__ grouped_work work_of(const tsr_grouped_gemm_args *args,
                                                       const tsr_expert_starts *starts)
{
    grouped_work work = {args, starts};
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
    __shared__ tsr_expert_starts starts;
    grouped_ring ring = {};
    grouped_work work = work_of<BACKWARD>(args, &starts);
    ring.data = (tsr_shared_address(memory) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    ring.full = tsr_shared_address(barriers);
    ring.empty = ring.full + 8 * STAGES;
    ring.lead = ring.empty + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            tsr_barrier_init(ring.full + 8 * i, ARRIVALS);
            tsr_barrier_init(ring.empty + 8 * i, GROUPS * TSR_WARPGROUP / TSR_WARP);
        }
        tsr_barrier_init(ring.lead, TSR_WARPGROUP / TSR_WARP);
        tsr_barrier_made();
    }
    tsr_expert_count(&starts, &args->rows, args->first, (int)args->count, ROWS);
    if (threadIdx.x < GROUPS * TSR_WARPGROUP) {
        TSR_REGISTERS_UP(216);
        multiply<BACKWARD>(&work, ring);
    } else {
        TSR_REGISTERS_DOWN(72);
        gather<BACKWARD>(&work, ring, maps);
    }
}

/* Code for other cards has no body, and does not let so many threads in. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SHAPE __launch_bounds__(THREADS, 1)
#else
#define SHAPE __launch_bounds__(TSR_WARP)
#endif

template <bool BACKWARD>
static __global__ void SHAPE grouped_tiles(const __grid_constant__ tsr_grouped_gemm_args args,
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
    int64_t tiles =
        tsr_expert_most_blocks(args->rows.most, args->count, ROWS) * tsr_blocks(outer, ACROSS);
    int64_t most = tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count;
    TSR_LAUNCH_SHARED(kernel, (unsigned)(tiles < most ? tiles : most), THREADS, BYTES, stream,
                      *args, *maps);
    return tsr_launched("grouped_gemm");
}

static bool map_low(grouped_maps *maps, void *boxes, const tsr_grouped_gemm_args *args)
{
    int64_t outer = args->backward ? args->in : args->out, r = args->r;
    const uint16_t *factor = (const uint16_t *)args->factor + args->first * outer * r;
    if (!r)
        return true;
    return tsr_map_boxes(&maps->low, boxes, args->low, 1, args->rows.most, r, GROUP_ROWS) &&
           tsr_map_boxes(&maps->factor, boxes, factor, args->count, args->backward ? r : outer,
                         args->backward ? outer : r, args->backward ? CHUNK : ACROSS);
}

/* Rows are found in steps of 16 bytes. */
static bool map_all(grouped_maps *maps, void *boxes, const tsr_grouped_gemm_args *args)
{
    int64_t inner = args->backward ? args->out : args->in;
    return args->rows.most / args->rows.k * (inner / TSR_VECTOR) <= UINT32_MAX &&
           map_low(maps, boxes, args) &&
           tsr_map_boxes(&maps->w, boxes, args->w, args->count, args->out, args->in,
                         args->backward ? CHUNK : ACROSS);
}

bool tsr_grouped_gemm_wgmma(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                            tsr_status *status)
{
    void *boxes = tsr_kernels_kept(stream)->boxes;
    grouped_maps maps = {};
    if (!boxes || !args->rows.slot || !map_all(&maps, boxes, args))
        return false;
    *status = launch(stream, args, &maps);
    return true;
}
