/*
 * kernels/expert_cuts.cuh: tiles of all experts whose heights are about the same, for blocks that stay.
 *
 * An expert's rows are cut into as few cuts as there can be, as high as each other, in steps of 16. Experts with high
 * cuts come first: blocks that take every so many tiles, in turn from both ends, end at about the same time.
 */
#ifndef TSR_KERNELS_EXPERT_CUTS_CUH
#define TSR_KERNELS_EXPERT_CUTS_CUH

#include "kernels/expert_tiles.cuh"

#define TSR_CUT_MOST  192 /* rows */
#define TSR_CUT_STEP  16
#define TSR_CUT_SWATH 12 /* cuts that are gone through with one block of columns */

/* In shared memory. Places are those in the order. */
typedef struct {
    int row[TSR_EXPERTS_MOST + 1];     /* of each expert of the range, and behind the last */
    int start[TSR_EXPERTS_MOST + 1];   /* cuts before each place, and in all */
    uint16_t expert[TSR_EXPERTS_MOST]; /* at each place */
} tsr_expert_cuts;

static __device__ __forceinline__ int cut_height(int rows)
{
    int cuts = (rows + TSR_CUT_MOST - 1) / TSR_CUT_MOST;
    if (!cuts)
        return 0;
    int each = (rows + cuts - 1) / cuts;
    return (each + TSR_CUT_STEP - 1) / TSR_CUT_STEP * TSR_CUT_STEP;
}

/* Of an expert: what orders it, and its cuts below. */
static __device__ __forceinline__ uint32_t cut_key(int rows)
{
    int height = cut_height(rows);
    return height
               ? (uint32_t)(height / TSR_CUT_STEP) << 28 | (uint32_t)((rows + height - 1) / height)
               : 0;
}

/* Expert i's place, and the cuts before it. */
static __device__ __forceinline__ void place_expert(tsr_expert_cuts *cuts, const uint32_t *key,
                                                    int count, int i)
{
    const uint32_t below = (1u << 28) - 1, own = key[i];
    int place = 0, before = 0;
#pragma unroll 4
    for (int j = 0; j < count; j++) {
        uint32_t other = key[j];
        bool first = other >> 28 > own >> 28 || (other >> 28 == own >> 28 && j < i);
        place += first;
        before += first ? (int)(other & below) : 0;
    }
    cuts->expert[place] = (uint16_t)i;
    cuts->start[place] = before;
    if (place == count - 1)
        cuts->start[count] = before + (int)(own & below);
}

/* All threads of the block; ends with a barrier. Experts [first, first + count); `key`: shared, of as many. */
static __device__ __forceinline__ __attribute__((unused)) void
tsr_expert_cut_all(tsr_expert_cuts *cuts, uint32_t *key, const tsr_expert_rows *rows, int64_t first,
                   int count)
{
    const int32_t *offset = rows->offset + first;
    for (int i = (int)threadIdx.x; i <= count; i += (int)blockDim.x)
        cuts->row[i] = offset[i];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x)
        key[i] = cut_key(cuts->row[i + 1] - cuts->row[i]);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x)
        place_expert(cuts, key, count, i);
    __syncthreads();
}

/* Tile `index`, of a cut and `width` columns. Those that run at the same time share rows and columns: a swath of
 * cuts goes through all columns. False: there are fewer. */
static __device__ __forceinline__ __attribute__((unused)) bool
tsr_expert_cut_at(tsr_expert_tile *tile, const tsr_expert_cuts *cuts, int count, int across,
                  int width, int index)
{
    int low = 0, high = count;
    if (count == 0 || index >= cuts->start[count] * across)
        return false;
    while (high - low > 1) { /* the last place that does not begin behind it */
        int middle = (low + high) / 2;
        if (cuts->start[middle] * across <= index)
            low = middle;
        else
            high = middle;
    }
    int expert = cuts->expert[low], row = cuts->row[expert], end = cuts->row[expert + 1];
    int height = cut_height(end - row), all = cuts->start[low + 1] - cuts->start[low];
    index -= cuts->start[low] * across;
    int swath = index / (TSR_CUT_SWATH * across) * TSR_CUT_SWATH;
    int tall = min(TSR_CUT_SWATH, all - swath);
    index -= swath * across;
    tile->expert = expert;
    tile->row = row + (swath + index % tall) * height;
    tile->row_end = min(end, tile->row + height);
    tile->column = index / tall * width;
    return true;
}

#endif
