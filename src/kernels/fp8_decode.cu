/*
 * fp8_decode.cu: contract fp8_decode.h; reference fp8_decode_ref.c, the same bytes. fp8_decode.cuh has what the kernels do.
 *
 * Cost     1/2 + 1/64 bytes read and 1 written an element; bandwidth bound.
 *
 * Rows that blocks of 64 cross, and pointers off their vectors: element by element.
 */
#include "kernels/fp8_decode.cuh"

#define THREADS 256

/* `chunks` warps a row. */
static __global__ void __launch_bounds__(THREADS)
    decode_rows(const __grid_constant__ tsr_fp8_decode_args a, int64_t warps, uint32_t chunks)
{
    tsr_kernel_begin();
    int64_t warp = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    if (warp < warps)
        tsr_fp8_decode_chunk(&a, (uint32_t)warp / chunks, (uint32_t)warp % chunks, false);
}

/* A warp a row; also of rows that blocks cross. */
static __global__ void __launch_bounds__(THREADS)
    scale_rows(const __grid_constant__ tsr_fp8_decode_args a, int64_t rows)
{
    tsr_kernel_begin();
    const tsr_nf4_dequant_args *w = &a.weight;
    int lane = threadIdx.x % TSR_WARP;
    int64_t row = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    if (row >= rows)
        return;
    int64_t first = row * w->columns / TSR_NF4_BLOCK;
    int64_t last = ((row + 1) * w->columns - 1) / TSR_NF4_BLOCK;
    uint32_t most = 0;
#pragma unroll 4
    for (int64_t block = first + lane; block <= last; block += TSR_WARP)
        most = max(most, tsr_magnitude(tsr_nf4_scale(w, block)));
    float scale = tsr_fp8_warp_scale(w->level, lane, most);
    if (lane == 0)
        a.scale[row] = scale;
}

/* After scale_rows, as is the next. */
static __global__ void __launch_bounds__(TSR_FP8_TILE_WARPS *TSR_WARP)
    decode_columns(const __grid_constant__ tsr_fp8_decode_args a, int64_t rows)
{
    tsr_kernel_begin();
    tsr_fp8_decode_tile(&a, rows, rows, 1);
}

static __global__ void __launch_bounds__(THREADS)
    decode_each(const __grid_constant__ tsr_fp8_decode_args a, int64_t rows)
{
    tsr_kernel_begin();
    int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e < a.weight.count)
        tsr_fp8_decode_element(&a, e, rows, 1);
}

/* Whether rows begin with blocks and vectors, and fit 32-bit places of warps. */
static bool whole_blocks(const tsr_fp8_decode_args *args, int64_t rows, int64_t chunks)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    return w->columns % TSR_NF4_BLOCK == 0 && (uintptr_t)w->codes % 16 == 0 &&
           (uintptr_t)w->out % 16 == 0 && rows * chunks <= INT32_MAX &&
           (!args->transposed || (rows % 16 == 0 && rows / TSR_FP8_TILE < 65535));
}

extern "C" tsr_status tsr_fp8_decode_cuda(tsr_stream *stream, const tsr_fp8_decode_args *args)
{
    TSR_TRY(tsr_fp8_decode_check(args));
    int64_t columns = args->weight.columns, rows = args->weight.count / columns;
    int64_t chunks = (columns + TSR_FP8_WARP_CODES - 1) / TSR_FP8_WARP_CODES;
    bool fast = whole_blocks(args, rows, chunks);
    if (rows == 0)
        return TSR_OK;
    if (!args->scaled && (!fast || args->transposed || !args->weight.out))
        TSR_LAUNCH(scale_rows, tsr_blocks(rows, THREADS / TSR_WARP), THREADS, stream, *args, rows);
    if (!args->weight.out)
        return tsr_launched("fp8_decode: scales");
    if (!fast)
        TSR_LAUNCH(decode_each, tsr_blocks(args->weight.count, THREADS), THREADS, stream, *args,
                   rows);
    else if (args->transposed)
        TSR_LAUNCH(decode_columns,
                   dim3(tsr_blocks(columns, TSR_FP8_TILE), tsr_blocks(rows, TSR_FP8_TILE)),
                   TSR_FP8_TILE_WARPS * TSR_WARP, stream, *args, rows);
    else
        TSR_LAUNCH(decode_rows, tsr_blocks(rows * chunks, THREADS / TSR_WARP), THREADS, stream,
                   *args, rows * chunks, (uint32_t)chunks);
    return tsr_launched("fp8_decode");
}
