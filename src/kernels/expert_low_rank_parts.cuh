/*
 * kernels/expert_low_rank_parts.cuh: what the kernels of expert_low_rank.cuh in tensor cores share: an expert's place, the two
 * products of a tile, and how their results are written.
 *
 * Rows in shared memory lie LOW_PAD elements further apart than a multiple of 16.
 */
#ifndef TSR_KERNELS_EXPERT_LOW_RANK_PARTS_CUH
#define TSR_KERNELS_EXPERT_LOW_RANK_PARTS_CUH

#include "kernels/expert_low_rank.cuh"
#include "kernels/expert_tiles.cuh"
#include "kernels/mma.cuh"

#define LOW_PAD 8 /* elements: rows lie 16 bytes further modulo 32, so no two of 8 collide */

/* -1: none. */
static __device__ __forceinline__ int low_row_from(const tsr_expert_rows *rows, int row,
                                                   int row_end, bool gather)
{
    if (row >= row_end)
        return -1;
    return gather ? rows->slot[row] / (int32_t)rows->k : row;
}

/* c[j] += 16 rows times 16 columns and group j of 8 ranks; of a factor that has a row for each column, or for each rank. */
template <int GROUPS, bool BY_COLUMN>
static __device__ __forceinline__ void low_multiply(float c[GROUPS][4], const __nv_bfloat16 *rows,
                                                    int pitch, const __nv_bfloat16 *factor,
                                                    int factor_pitch)
{
    int lane = threadIdx.x % TSR_WARP, low = lane % 16, high = lane / 16 * 8;
    uint32_t left[4];
    tsr_ldmatrix(left, rows + low * pitch + high);
#pragma unroll
    for (int j = 0; j < GROUPS; j += 2) {
        uint32_t right[4];
        if (BY_COLUMN)
            tsr_ldmatrix_t(right, factor + low * factor_pitch + 8 * j + high);
        else
            tsr_ldmatrix(right,
                         factor + (8 * j + lane % 8 + high) * factor_pitch + lane / 8 % 2 * 8);
        tsr_mma(c[j], left, right[0], right[1]);
        tsr_mma(c[j + 1], left, right[2], right[3]);
    }
}

/* c[i][j] += ROWS rows' columns from `first` + i `step` on, 16 of them, each times group j of 8 ranks of low; of columns before
 * `wide`. */
template <int GROUPS, int PIECES, int ROWS>
static __device__ __forceinline__ void
low_add_rows(float c[PIECES][GROUPS][4], const __nv_bfloat16 *rows, int pitch,
             const __nv_bfloat16 *low, int first, int step, int wide)
{
    int lane = threadIdx.x % TSR_WARP, own = lane % 16, high = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < ROWS; k += 16) {
        uint32_t right[GROUPS / 2][4];
#pragma unroll
        for (int j = 0; j < GROUPS / 2; j++)
            tsr_ldmatrix_t(right[j], low + (k + own) * (8 * GROUPS + LOW_PAD) + 16 * j + high);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            uint32_t left[4];
            if (first + i * step >= wide)
                break;
            tsr_ldmatrix_t(left, rows + (k + lane % 8 + high) * pitch + first + i * step +
                                     lane / 8 % 2 * 8);
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
                tsr_mma(c[i][j], left, right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
    }
}

/* Two ranks of a row at element `at` of [rows, r], as they are and p times; NULL: not wanted. */
static __device__ __forceinline__ void low_write(void *low, void *weighted, int64_t at, float first,
                                                 float second, float p)
{
    if (low)
        *(uint32_t *)((uint16_t *)low + at) = tsr_pack_bf16(first, second);
    if (weighted)
        *(uint32_t *)((uint16_t *)weighted + at) = tsr_pack_bf16(p * first, p * second);
}

/* 16 columns from `column` on, of an expert's db, which has a row for each column of `width`, or of da, BY_RANK. */
template <int GROUPS>
static __device__ __forceinline__ void low_write_sums(float *to, int width, int r, int column,
                                                      int rank, bool by_rank,
                                                      const float c[GROUPS][4])
{
    int lane = threadIdx.x % TSR_WARP;
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            int k = rank + 8 * j + lane % 4 * 2, own = column + lane / 4 + 8 * upper;
            float first = c[j][2 * upper], second = c[j][2 * upper + 1];
            if (own >= width || k >= r)
                continue;
            if (by_rank) {
                to[(int64_t)k * width + own] = first;
                to[(int64_t)(k + 1) * width + own] = second;
            } else {
                *(float2 *)(to + (int64_t)own * r + k) = make_float2(first, second);
            }
        }
}

#define LOW_COUNT_BITS 21 /* beyond which experts count as equal */

/* The expert that `place` others are before, those with most rows first, and where its rows begin. Every thread of a block asks. */
template <int THREADS>
static __device__ __forceinline__ int low_expert_at(int *first, int *end,
                                                    const tsr_expert_rows *rows, int place)
{
    __shared__ __align__(16) unsigned key[TSR_EXPERTS_MOST]; /* as the order, no two alike */
    __shared__ int found[3];
    int experts = (int)rows->experts, padded = (experts + 3) / 4 * 4;
    int own_first[TSR_EXPERTS_MOST / THREADS], own_end[TSR_EXPERTS_MOST / THREADS];
#pragma unroll
    for (int i = 0; i < TSR_EXPERTS_MOST / THREADS; i++) {
        int e = (int)threadIdx.x + i * THREADS;
        if (e >= padded)
            break;
        own_first[i] = e < experts ? rows->offset[e] : 0;
        own_end[i] = e < experts ? rows->offset[e + 1] : 0;
        unsigned count = (unsigned)min(own_end[i] - own_first[i], (1 << LOW_COUNT_BITS) - 1);
        key[e] = e < experts ? count * TSR_EXPERTS_MOST + (unsigned)(TSR_EXPERTS_MOST - e) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TSR_EXPERTS_MOST / THREADS; i++) {
        int e = (int)threadIdx.x + i * THREADS, before = 0;
        if (e >= experts)
            break;
        unsigned own = key[e];
        for (int other = 0; other < padded; other += 4) {
            uint4 four = *(const uint4 *)(key + other);
            before += (four.x > own) + (four.y > own) + (four.z > own) + (four.w > own);
        }
        if (before == place)
            found[0] = e, found[1] = own_first[i], found[2] = own_end[i];
    }
    __syncthreads();
    *first = found[1], *end = found[2];
    return found[0];
}

#endif
