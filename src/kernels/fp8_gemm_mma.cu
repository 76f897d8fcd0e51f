/*
 * fp8_gemm_mma.cu: fp8_gemm by mma.sync, for cards that have e4m3 and whose cuBLASLt takes no scale for each row: 8.9, and 10.0
 * and later. Contract fp8_gemm.h; reference fp8_gemm_ref.c.
 *
 * Split    Tiles of mma_ring.cuh, in swaths of 16 blocks of rows.
 * Sums     As grouped_fp8 by mma.sync: 64 products in the tensor cores, the rest in fp32; `fast` all of them there.
 */
#include "kernels/mma_ring.cuh"

#define SWATH 16 /* blocks of rows */

template <bool FAST>
static __device__ __forceinline__ __attribute__((unused)) void
sum_tile(float c[4][4][4], const tsr_fp8_gemm_args *a, ring_place *place, int row, int column)
{
    extern __shared__ __align__(16) char memory[];
    ring_stage *stage = (ring_stage *)memory;
    const ring_operands o = {(const __nv_bfloat16 *)a->a, (const __nv_bfloat16 *)a->b,
                             (int)(a->k / 2), (int)a->n};
    int chunks = (o.inner + CHUNK - 1) / CHUNK, at = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        place->from[i] = place->row + ring_row(i) < a->m ? place->row + ring_row(i) : -1;
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < chunks)
            ring_fetch(stage + i, o, place, i * CHUNK, false, false);
        tsr_copy_commit();
    }
    for (int chunk = 0; chunk < chunks; chunk++, at = ring_after(at)) {
        tsr_copy_wait_but_one();
        __syncthreads(); /* this chunk is here, and nobody reads the one before it */
        if (chunk + STAGES - 1 < chunks)
            ring_fetch(stage + ring_before(at), o, place, (chunk + STAGES - 1) * CHUNK, false,
                       false);
        tsr_copy_commit();
        ring_multiply_codes<FAST>(c, stage + at, row, column);
    }
}

/* What the lane's results are made with: its rows' and columns' scales, and what C had. Read before anything is written. */
typedef struct {
    float row[8], column[4][2];
    float2 c[8][4];
} tile_factors;

static __device__ __forceinline__ __attribute__((unused)) float2
load_pair(const tsr_fp8_gemm_args *a, int64_t at)
{
    if (a->c_dtype == TSR_F32)
        return *(const float2 *)((const float *)a->c + at);
    uint32_t word = *(const uint32_t *)((const uint16_t *)a->c + at);
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

static __device__ __forceinline__ __attribute__((unused)) void
find_factors(tile_factors *f, const tsr_fp8_gemm_args *a, int row, int column)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int at = column + j / 2 * 8 + j % 2;
        f->column[j / 2][j % 2] = a->scale_b && at < a->n ? a->scale_b[at] : 1;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bool there = row + 8 * i < a->m;
        f->row[i] = there ? a->alpha * a->scale_a[row + 8 * i] : 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            f->c[i][j] = make_float2(0, 0);
            if (a->beta != 0 && there && column + 8 * j < a->n)
                f->c[i][j] = load_pair(a, (int64_t)(row + 8 * i) * a->n + column + 8 * j);
        }
    }
}

/* From the lane's first row and column on; n is even. */
static __device__ __forceinline__ __attribute__((unused)) void
write(const float c[4][4][4], const tsr_fp8_gemm_args *a, int row, int column)
{
    tile_factors f;
    find_factors(&f, a, row, column);
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t at = (int64_t)(row + 8 * i) * a->n + column + 8 * j;
            const float *pair = &c[i / 2][j][i % 2 * 2];
            float first = pair[0] * (f.row[i] * f.column[j][0]) + f.c[i][j].x;
            float second = pair[1] * (f.row[i] * f.column[j][1]) + f.c[i][j].y;
            if (row + 8 * i >= a->m || column + 8 * j >= a->n)
                continue;
            if (a->c_dtype == TSR_F32)
                *(float2 *)((float *)a->c + at) = make_float2(first, second);
            else
                *(uint32_t *)((uint16_t *)a->c + at) = tsr_pack_bf16(first, second);
        }
}

/* Swaths of rows go through all columns, so that what blocks read at the same time comes from L2. */
static __device__ __forceinline__ __attribute__((unused)) ring_place
place_of(const tsr_fp8_gemm_args *a)
{
    int down = (int)((a->m + TILE - 1) / TILE), across = (int)((a->n + TILE - 1) / TILE);
    int index = (int)blockIdx.x, swath = index / (SWATH * across) * SWATH;
    int tall = min(SWATH, down - swath);
    index -= swath * across;
    ring_place place = {(swath + index % tall) * TILE, index / tall * TILE};
    return place;
}

template <bool FAST>
static __global__ void __launch_bounds__(THREADS)
    multiply(const __grid_constant__ tsr_fp8_gemm_args a)
{
    tsr_kernel_begin();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    int warp = threadIdx.x / TSR_WARP, lane = threadIdx.x % TSR_WARP;
    int row = warp / 4 * ROWS, column = warp % 4 * STRIP;
    ring_place place = place_of(&a);
    float c[4][4][4] = {};
    sum_tile<FAST>(c, &a, &place, row, column);
    write(c, &a, place.row + row + lane / 4, place.column + column + lane % 4 * 2);
#endif
}

extern "C" tsr_status tsr_fp8_gemm_mma(tsr_stream *stream, const tsr_fp8_gemm_args *args)
{
    const size_t bytes = STAGES * sizeof(ring_stage);
    void (*kernel)(const tsr_fp8_gemm_args) = args->fast ? multiply<true> : multiply<false>;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, bytes, "fp8_gemm"));
    TSR_LAUNCH_SHARED(kernel, (unsigned)(tsr_blocks(args->m, TILE) * tsr_blocks(args->n, TILE)),
                      THREADS, bytes, stream, *args);
    return tsr_launched("fp8_gemm");
}
