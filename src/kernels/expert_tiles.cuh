/*
 * kernels/expert_tiles.cuh: tiles of rows and columns of all experts, found from counts of rows that lie on
 * the device. A launch has blocks for any counts, or blocks that stay and take tiles in turn.
 */
#ifndef TSR_KERNELS_EXPERT_TILES_CUH
#define TSR_KERNELS_EXPERT_TILES_CUH

#include "kernels/cuda.cuh"
#include "kernels/expert_rows.h"

#define TSR_EXPERTS_MOST 1024 /* experts of a call: their blocks' counts lie in shared memory */
#define TSR_EXPERT_SWATH 16   /* blocks of rows that are gone through with one block of columns */

/* In shared memory. */
typedef struct {
    /* Of each expert of the range, and behind the last: the blocks of rows before it, and the rows. */
    int start[TSR_EXPERTS_MOST + 1], row[TSR_EXPERTS_MOST + 1];
} tsr_expert_starts;

/* A tile: blocks of an expert's rows begin with its first. */
typedef struct {
    int expert; /* of the range */
    int row, row_end, column;
} tsr_expert_tile;

/* All threads of the block; ends with a barrier. Experts [first, first + count), blocks of `height`. */
static __device__ __forceinline__ void tsr_expert_count(tsr_expert_starts *starts,
                                                        const tsr_expert_rows *rows, int64_t first,
                                                        int count, int height)
{
    const int32_t *offset = rows->offset + first;
    for (int i = (int)threadIdx.x; i <= count; i += (int)blockDim.x)
        starts->row[i] = offset[i];
    __syncthreads();
    if (threadIdx.x < TSR_WARP) {
        int lane = (int)threadIdx.x, before = 0;
        for (int i = lane; i - lane < count; i += TSR_WARP) {
            int there = i < count ? starts->row[i + 1] - starts->row[i] : 0;
            int own = (there + height - 1) / height, sum = own;
#pragma unroll
            for (int step = 1; step < TSR_WARP; step *= 2) {
                int other = __shfl_up_sync(0xffffffffu, sum, step);
                sum += lane >= step ? other : 0;
            }
            if (i < count)
                starts->start[i] = before + sum - own;
            before += __shfl_sync(0xffffffffu, sum, TSR_WARP - 1);
        }
        if (lane == 0)
            starts->start[count] = before;
    }
    __syncthreads();
}

/* Tile `index` where each block of rows has `across` of `width` columns. Those that run at the same time
 * share rows and columns: a swath of blocks of rows goes through all columns. False: there are fewer. */
static __device__ __forceinline__ bool tsr_expert_tile_at(tsr_expert_tile *tile,
                                                          const tsr_expert_starts *starts,
                                                          int count, int height, int across,
                                                          int width, int index)
{
    int low = 0, high = count;
    if (count == 0 || index >= starts->start[count] * across)
        return false;
    while (high - low > 1) { /* the last expert that does not begin behind it */
        int middle = (low + high) / 2;
        if (starts->start[middle] * across <= index)
            low = middle;
        else
            high = middle;
    }
    int blocks = starts->start[low + 1] - starts->start[low];
    index -= starts->start[low] * across;
    int swath = index / (TSR_EXPERT_SWATH * across) * TSR_EXPERT_SWATH;
    int tall = min(TSR_EXPERT_SWATH, blocks - swath);
    index -= swath * across;
    tile->expert = low;
    tile->row = starts->row[low] + (swath + index % tall) * height;
    tile->row_end = min(starts->row[low + 1], tile->row + height);
    tile->column = index / tall * width;
    return true;
}

/* The most blocks of rows of `height` that so many rows of `count` experts can make. */
static inline int64_t tsr_expert_most_blocks(int64_t rows, int64_t count, int64_t height)
{
    int64_t all = rows / height + count;
    return all < rows ? all : rows;
}

static inline tsr_status tsr_expert_limit(const char *op, int64_t count)
{
    if (count <= TSR_EXPERTS_MOST)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED, "%s: %lld experts; a GPU takes at most %d at a time", op,
                    (long long)count, TSR_EXPERTS_MOST);
}

#endif
