/*
 * fp8_gemm_mma.cu: fp8_gemm by mma.sync, for cards that have e4m3 and whose cuBLASLt takes no scale for each row: 8.9, and 10.0
 * and later. Contract fp8_gemm.h; reference fp8_gemm_ref.c.
 *
 * Split    Tiles of mma_ring.cuh. Blocks that run at the same time have the same columns of B, and rows one after the other.
 * Sums     As grouped_fp8 by mma.sync: 64 products in the tensor cores, the rest in fp32; `fast` all of them there.
 */
#include "kernels/mma_ring.cuh"

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

/* The lane's two columns of a row; n is even. */
static __device__ __forceinline__ __attribute__((unused)) void
write_pair(const tsr_fp8_gemm_args *a, int64_t row, int64_t column, float first, float second)
{
    float scale = a->alpha * a->scale_a[row];
    int64_t at = row * a->n + column;
    first *= scale * (a->scale_b ? a->scale_b[column] : 1);
    second *= scale * (a->scale_b ? a->scale_b[column + 1] : 1);
    if (a->c_dtype == TSR_F32) {
        float2 *c = (float2 *)((float *)a->c + at), had = {};
        if (a->beta != 0)
            had = *c;
        *c = make_float2(first + had.x, second + had.y);
    } else {
        uint32_t *c = (uint32_t *)((uint16_t *)a->c + at), had = a->beta != 0 ? *c : 0;
        *c = tsr_pack_bf16(first + __uint_as_float(had << 16),
                           second + __uint_as_float(had & 0xffff0000u));
    }
}

template <bool FAST>
static __global__ void __launch_bounds__(THREADS, FAST ? 2 : 1)
    multiply(const __grid_constant__ tsr_fp8_gemm_args a)
{
    tsr_kernel_begin();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    int warp = threadIdx.x / TSR_WARP, lane = threadIdx.x % TSR_WARP;
    int row = warp / 4 * ROWS, column = warp % 4 * STRIP;
    ring_place place = {(int)blockIdx.x * TILE, (int)blockIdx.y * TILE};
    float c[4][4][4] = {};
    sum_tile<FAST>(c, &a, &place, row, column);
    row += place.row + lane / 4, column += place.column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (row + 8 * i < a.m && column + 8 * j < a.n)
                write_pair(&a, row + 8 * i, column + 8 * j, c[i / 2][j][i % 2 * 2],
                           c[i / 2][j][i % 2 * 2 + 1]);
#endif
}

extern "C" tsr_status tsr_fp8_gemm_mma(tsr_stream *stream, const tsr_fp8_gemm_args *args)
{
    const size_t bytes = STAGES * sizeof(ring_stage);
    void (*kernel)(const tsr_fp8_gemm_args) = args->fast ? multiply<true> : multiply<false>;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, bytes, "fp8_gemm"));
    TSR_LAUNCH_SHARED(kernel, dim3(tsr_blocks(args->m, TILE), tsr_blocks(args->n, TILE)), THREADS,
                      bytes, stream, *args);
    return tsr_launched("fp8_gemm");
}
