/*
 * fp8_blocks.cu: contract fp8_blocks.h; reference fp8_blocks_ref.c, the same bits.
 *
 * Split    As int8_decode.cu: a thread takes 16 codes at a time, which lie in one block's row; a block's threads are along a
 *          row, and rows are gridDim.y apart. Rows whose length or place is no multiple of 16 bytes go code by code.
 */
#include "kernels/cuda.cuh"

#include "kernels/fp8_blocks.h"

#define THREADS 256
#define CODES   16 /* of a thread in a turn */

static __device__ __forceinline__ float decode(uint32_t code, float scale)
{
    float value = __fmul_rn(tsr_e4m3_to_f32((uint8_t)code), scale);
    return __bfloat162float(__float2bfloat16_rn(value));
}

static __device__ __forceinline__ float scale_at(const tsr_fp8_blocks_args *a, int64_t row,
                                                 int64_t column)
{
    int64_t across = tsr_fp8_blocks_across(a->columns);
    return a->scale[row / TSR_FP8_BLOCK_SIZE * across + column / TSR_FP8_BLOCK_SIZE];
}

static __device__ __forceinline__ void decode_row(const tsr_fp8_blocks_args *a, int64_t row)
{
    const uint4 *in = (const uint4 *)(a->code + row * a->columns);
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a->columns / CODES)
        return;
    float scale = scale_at(a, row, i * CODES);
    uint4 raw = __ldcs(in + i);
    uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float value[TSR_VECTOR];
#pragma unroll
        for (int j = 0; j < TSR_VECTOR; j++)
            value[j] = decode(word[half * 2 + j / 4] >> 8 * (j % 4) & 0xffu, scale);
        tsr_store8(a->out, row * a->columns + i * CODES + half * TSR_VECTOR, value, a->dtype);
    }
}

static __global__ void __launch_bounds__(THREADS)
    decode_rows(const __grid_constant__ tsr_fp8_blocks_args a)
{
    tsr_kernel_begin();
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y)
        decode_row(&a, row);
}

static __global__ void __launch_bounds__(THREADS)
    decode_each(const __grid_constant__ tsr_fp8_blocks_args a)
{
    tsr_kernel_begin();
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t row = blockIdx.y; row < a.rows && column < a.columns; row += gridDim.y)
        tsr_store(a.out, row * a.columns + column,
                  decode(a.code[row * a.columns + column], scale_at(&a, row, column)), a.dtype);
}

extern "C" tsr_status tsr_fp8_blocks_cuda(tsr_stream *stream, const tsr_fp8_blocks_args *args)
{
    TSR_TRY(tsr_fp8_blocks_check(args));
    if (args->rows == 0 || args->columns == 0)
        return TSR_OK;
    unsigned rows = (unsigned)(args->rows < 65535 ? args->rows : 65535);
    bool vectors = args->columns % CODES == 0 && (uintptr_t)args->code % 16 == 0 &&
                   (uintptr_t)args->out % 16 == 0;
    if (vectors) {
        dim3 grid(tsr_blocks(args->columns / CODES, THREADS), rows);
        TSR_LAUNCH(decode_rows, grid, THREADS, stream, *args);
    } else {
        dim3 grid(tsr_blocks(args->columns, THREADS), rows);
        TSR_LAUNCH(decode_each, grid, THREADS, stream, *args);
    }
    return tsr_launched("fp8_blocks");
}
