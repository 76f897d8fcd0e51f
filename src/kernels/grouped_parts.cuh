/*
 * kernels/grouped_parts.cuh: what the kernels of grouped_gemm on sm_90a share: the boxes of their operands, and the ring that
 * chunks of these go through.
 */
#ifndef TSR_KERNELS_GROUPED_PARTS_CUH
#define TSR_KERNELS_GROUPED_PARTS_CUH

#include "kernels/boxes.cuh"
#include "kernels/grouped_gemm.cuh"
#include "kernels/wgmma.cuh"

#define CHUNK       64 /* summands: 128 bytes */
#define STRIP       64 /* columns of a box of W, where it is multiplied with as it lies */
#define STRIP_BYTES (CHUNK * STRIP * 2)
#define ALIGNMENT   1024

typedef struct {
    CUtensorMap x, w, low, factor;
} grouped_maps;

/* The ring: its parts' shared addresses; and where a thread is in it. */
typedef struct {
    uint32_t data, full, empty, lead;
    uint32_t stage, parity;
} grouped_ring;

template <int STAGES>
static __device__ __forceinline__ __attribute__((unused)) void next_stage(grouped_ring *ring)
{
    if (++ring->stage == STAGES)
        ring->stage = 0, ring->parity ^= 1;
}

/* By a warp: it has read a stage. */
static __device__ __forceinline__ __attribute__((unused)) void leave_stage(uint32_t empty)
{
    if (threadIdx.x % TSR_WARP == 0)
        tsr_barrier_arrive(empty);
}

/* One thread makes the barriers [2 STAGES + 1] of a ring in `memory`: `arrivals` fill a stage, and the warps of `groups` that
 * multiply leave it. All threads call, and go on after a barrier of the block. */
template <int STAGES>
static __device__ __forceinline__ __attribute__((unused)) grouped_ring
ring_begin(const void *memory, const uint64_t *barriers, unsigned arrivals, unsigned groups)
{
    grouped_ring ring = {};
    ring.data = (tsr_shared_address(memory) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    ring.full = tsr_shared_address(barriers);
    ring.empty = ring.full + 8 * STAGES;
    ring.lead = ring.empty + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            tsr_barrier_init(ring.full + 8 * i, arrivals);
            tsr_barrier_init(ring.empty + 8 * i, groups * TSR_WARPGROUP / TSR_WARP);
        }
        tsr_barrier_init(ring.lead, TSR_WARPGROUP / TSR_WARP);
        tsr_barrier_made();
    }
    return ring;
}

/* By a group that has no rows of a tile: its chunks. */
template <int STAGES>
static __device__ __forceinline__ __attribute__((unused)) void pass_stages(grouped_ring *ring,
                                                                           int chunks)
{
    for (int chunk = 0; chunk < chunks; chunk++) {
        tsr_barrier_wait(ring->full + 8 * ring->stage, ring->parity);
        __syncwarp(); /* no lane still waits for a stage that the first has left */
        leave_stage(ring->empty + 8 * ring->stage);
        next_stage<STAGES>(ring);
    }
}

/* Of a stage. */
typedef struct {
    uint64_t left, right;
} grouped_operands;

/* One thread: ACROSS columns of W, or of the factor, for a chunk. */
template <bool BACKWARD, int ACROSS>
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

static inline bool map_w(grouped_maps *maps, void *boxes, const tsr_grouped_gemm_args *args,
                         int across)
{
    return tsr_map_boxes(&maps->w, boxes, args->w, args->count, args->out, args->in,
                         args->backward ? CHUNK : across);
}

/* Low in boxes of `rows`, and the factor. */
static inline bool map_low(grouped_maps *maps, void *boxes, const tsr_grouped_gemm_args *args,
                           int rows, int across)
{
    int64_t outer = args->backward ? args->in : args->out, r = args->r;
    const uint16_t *factor = (const uint16_t *)args->factor + args->first * outer * r;
    if (!r)
        return true;
    return tsr_map_boxes(&maps->low, boxes, args->low, 1, args->rows.most, r, rows) &&
           tsr_map_boxes(&maps->factor, boxes, factor, args->count, args->backward ? r : outer,
                         args->backward ? outer : r, args->backward ? CHUNK : across);
}

#endif
