/*
 * kernels/grouped_gather.cuh: rows of grouped matmuls on sm_90a that are gathered: fetched by a group of four warps, 16
 * bytes a thread, to where a box would have them (wgmma.cuh).
 */
#ifndef TSR_KERNELS_GROUPED_GATHER_CUH
#define TSR_KERNELS_GROUPED_GATHER_CUH

#include "kernels/grouped_parts.cuh"

#define ROW_PARTS (CHUNK * 2 / 16)            /* 16 bytes each, a thread */
#define GATHERED  (TSR_WARPGROUP / ROW_PARTS) /* rows at a time */
#define NO_ROW    (~0u)

#define GATHERED_EACH 8 /* of a thread, of tiles of 128 rows */

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

/* Where the row of a slot begins, in 16 bytes; `parts`: of a row of x. -1 is no slot. */
static __device__ __forceinline__ __attribute__((unused)) uint32_t
row_from(const tsr_expert_rows *rows, int slot, int parts)
{
    return slot < 0 ? NO_ROW : (uint32_t)slot / (uint32_t)rows->k * (uint32_t)parts;
}

/* EACH rows' part of a chunk, and the arrival of it: thread i of a group takes part i % 8 of every 16th row.
 * `second`: the other group has rows. */
template <int EACH>
static __device__ __forceinline__ __attribute__((unused)) void
gather_chunk(const void *x, int parts, const uint32_t from[EACH], bool second, int chunk,
             uint32_t to, uint32_t full)
{
    int thread = threadIdx.x % TSR_WARPGROUP, part = thread % ROW_PARTS, own = thread / ROW_PARTS;
    uint32_t place = (uint32_t)(own * CHUNK * 2 + (part ^ own % 8) * 16);
    int column = chunk * ROW_PARTS + part;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        bool valid = from[j] != NO_ROW && column < parts;
        uint32_t at = valid ? from[j] + (uint32_t)column : 0;
        if (j < EACH / 2 || second)
            tsr_copy16_at(to + place + j * GATHERED * CHUNK * 2,
                          (const char *)x + (uint64_t)at * 16, valid);
    }
    tsr_barrier_arrive_copied(full);
}

#endif
