/*
 * int8_decode.cu: contract int8_decode.h; reference int8_decode_ref.c, the same bits.
 *
 * Split    A thread takes 16 codes at a time, so that it reads 16 bytes; a block's threads are along a row, and rows are
 *          gridDim.y apart. Rows whose length or place is no multiple of 16 bytes go code by code.
 * Cost     1 byte read and 2 (bf16) written an element: a weight of 4096 x 14336 in 58 us at 3 TB/s.
 */
#include "kernels/cuda.cuh"

#include "kernels/int8_decode.h"

#define THREADS 256
#define CODES   16 /* of a thread in a turn */

static __device__ __forceinline__ float decode(int8_t code, float scale)
{
    return __fdiv_rn(__fmul_rn((float)code, scale), TSR_INT8_MOST);
}

static __device__ __forceinline__ void decode_row(const tsr_int8_decode_args *a, int64_t row)
{
    float scale = a->scale[row];
    const int4 *in = (const int4 *)(a->code + row * a->columns);
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a->columns / CODES)
        return;
    int4 raw = __ldcs(in + i);
    int32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float value[TSR_VECTOR];
#pragma unroll
        for (int j = 0; j < TSR_VECTOR; j++)
            value[j] = decode((int8_t)(word[half * 2 + j / 4] >> 8 * (j % 4)), scale);
        tsr_store8(a->out, row * a->columns + i * CODES + half * TSR_VECTOR, value, a->dtype);
    }
}

static __global__ void __launch_bounds__(THREADS)
    decode_rows(const __grid_constant__ tsr_int8_decode_args a)
{
    tsr_kernel_begin();
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y)
        decode_row(&a, row);
}

static __global__ void __launch_bounds__(THREADS)
    decode_each(const __grid_constant__ tsr_int8_decode_args a)
{
    tsr_kernel_begin();
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t row = blockIdx.y; row < a.rows && column < a.columns; row += gridDim.y)
        tsr_store(a.out, row * a.columns + column,
                  decode(a.code[row * a.columns + column], a.scale[row]), a.dtype);
}

extern "C" tsr_status tsr_int8_decode_cuda(tsr_stream *stream, const tsr_int8_decode_args *args)
{
    TSR_TRY(tsr_int8_decode_check(args));
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
    return tsr_launched("int8_decode");
}
