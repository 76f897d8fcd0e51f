/*
 * kernels/grouped_codes.cuh: chunks of the weights of grouped_gemm_wgmma.cu from NF4 codes: four warps decode to shared
 * memory what a box would have brought there.
 *
 * A chunk has 128 blocks of 64 elements, a thread one: forward a block of each of 128 rows of an expert, backward two of
 * each of 64 rows. The codes of a warp's blocks are copied by all its lanes, 16 bytes each, one turn ahead; what lies
 * beyond an expert is its last row or block again, and its products are not written.
 */
#ifndef TSR_KERNELS_GROUPED_CODES_CUH
#define TSR_KERNELS_GROUPED_CODES_CUH

#include "kernels/cuda.cuh"
#include "kernels/expert_weight.h"
#include "kernels/nf4_results.cuh"

#define TSR_CODES_THREADS 128
#define TSR_CODES_BYTES   (TSR_CODES_THREADS * 32)

/* The stack of expert_weight.h, without gaps. */
typedef struct {
    const uint8_t *codes;
    const void *absmax;
    const float *nested_absmax, *nested_map, *offset, *level;
    int rows, parts, matrix_rows, blocks; /* of an expert; blocks of a row */
    int first;
    bool nested;
} tsr_grouped_codes;

/* In shared memory: what is read for every block. */
typedef struct {
    float4 level[4];
    float map[256];
} tsr_codes_tables;

/* All threads of the kernel; a barrier follows. */
static __device__ __forceinline__ __attribute__((unused)) void
tsr_codes_begin(tsr_codes_tables *tables, const tsr_grouped_codes *c)
{
    if (threadIdx.x < 256)
        tables->map[threadIdx.x] = c->nested ? c->nested_map[threadIdx.x] : 0;
    if (threadIdx.x < 4)
        tables->level[threadIdx.x] = ((const float4 *)c->level)[threadIdx.x];
}

/* Where a thread is among the 128. */
typedef struct {
    int lane, warp;
} tsr_codes_thread;

/* Where a chunk lies. */
typedef struct {
    int expert, column, chunk;
} tsr_codes_chunk;

/* Row of the expert of block `unit` of a chunk, and in *block which of the row. */
template <bool BACKWARD>
static __device__ __forceinline__ int unit_at(int *block, const tsr_grouped_codes *c,
                                              tsr_codes_chunk chunk, int unit)
{
    int row = BACKWARD ? chunk.chunk * 64 + unit % 64 : chunk.column + unit;
    *block = min(BACKWARD ? chunk.column / TSR_NF4_BLOCK + unit / 64 : chunk.chunk, c->blocks - 1);
    return min(row, c->rows - 1);
}

/* Asks for the codes of the warp's blocks: each block's two halves by two lanes. `slot`: a shared address. */
template <bool BACKWARD>
static __device__ __forceinline__ void tsr_codes_ask(uint32_t slot, const tsr_grouped_codes *c,
                                                     tsr_codes_chunk chunk,
                                                     const tsr_codes_thread *own)
{
    slot += (uint32_t)(own->warp * TSR_WARP * 32 + own->lane * 16);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int unit = own->warp * TSR_WARP + i * (TSR_WARP / 2) + own->lane / 2;
        int block, row = unit_at<BACKWARD>(&block, c, chunk, unit);
        int64_t at = (int64_t)((c->first + chunk.expert) * c->rows + row) * c->blocks + block;
        tsr_copy16_at(slot + (uint32_t)i * 512, c->codes + at * 32 + own->lane % 2 * 16, true);
    }
}

/* What lies in memory of the scale of a thread's block. */
typedef struct {
    float value, offset;
    int place;
} tsr_codes_found;

template <bool BACKWARD>
static __device__ __forceinline__ void
tsr_codes_find(tsr_codes_found *found, const tsr_grouped_codes *c, tsr_codes_chunk chunk,
               const tsr_codes_thread *own)
{
    int unit = own->warp * TSR_WARP + own->lane, expert = c->first + chunk.expert;
    int block, row = unit_at<BACKWARD>(&block, c, chunk, unit);
    int at = (expert * c->rows + row) * c->blocks + block, matrix = expert * c->parts;
    if (!c->nested) {
        found->value = ((const float *)c->absmax)[at];
        return;
    }
    for (; row >= c->matrix_rows; row -= c->matrix_rows)
        matrix++;
    found->value = c->nested_absmax[at / TSR_NF4_NESTED_BLOCK];
    found->place = ((const uint8_t *)c->absmax)[at];
    found->offset = c->offset[matrix];
}

static __device__ __forceinline__ float tsr_codes_scale(const tsr_codes_found *found,
                                                        const tsr_codes_tables *tables, bool nested)
{
    if (!nested)
        return found->value;
    return __fadd_rn(__fmul_rn(tables->map[found->place], found->value), found->offset);
}

/* A thread's block to `to`, where the chunk begins: rows of 128 bytes whose 16-byte parts are swapped as
 * wgmma.cuh says; 64 columns more lie `strip` bytes further (backward). */
template <bool BACKWARD>
static __device__ __forceinline__ void tsr_codes_decode(char *to, uint32_t strip, const char *slot,
                                                        const tsr_codes_tables *tables, float scale,
                                                        const tsr_codes_thread *own)
{
    int unit = own->warp * TSR_WARP + own->lane, row = BACKWARD ? unit % 64 : unit;
    int turned = own->lane / 4 % 2; /* a bank for each lane of a quarter */
    const uint4 *codes = (const uint4 *)(slot + unit * 32);
    uint4 words[2];
    words[0] = codes[turned];
    words[1] = codes[turned ^ 1];
    tsr_nf4_results results = tsr_nf4_results_of(tables->level, scale);
    char *out = to + (BACKWARD ? unit / 64 * (int)strip : 0) + row * 128;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t word[4] = {words[half].x, words[half].y, words[half].z, words[half].w};
        int part = (half ^ turned) * 4;
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(uint4 *)(out + ((part + j) ^ row % 8) * 16) = tsr_nf4_word(&results, word[j]);
    }
}

#endif
