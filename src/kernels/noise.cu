/*
 * noise.cu: contract noise.h; reference noise_ref.c, the same fp32 values, rounded once to dtype.
 *
 * A thread has four columns of a row, one call of Philox, in no vectors: it runs once a micro-batch, on rows that were
 * just written.
 */
#include "kernels/cuda.cuh"

#define THREADS 256
#define COLUMNS 4 /* of a call of Philox */
#define ROUNDS  10

/* Philox4x32-10 of base/philox.h, in place, with counter words column / 4, position, sample. */
static __device__ __forceinline__ void philox(uint32_t *word, uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t even = (uint64_t)0xD2511F53u * word[0], odd = (uint64_t)0xCD9E8D57u * word[2];
        word[0] = (uint32_t)(odd >> 32) ^ word[1] ^ k0;
        word[2] = (uint32_t)(even >> 32) ^ word[3] ^ k1;
        word[1] = (uint32_t)odd;
        word[3] = (uint32_t)even;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

static __global__ void __launch_bounds__(THREADS) add_noise(tsr_noise_args a, int64_t groups)
{
    tsr_kernel_begin();
    int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t row = index / groups, group = index % groups, column = group * COLUMNS;
    if (row >= a.tokens)
        return;
    uint64_t sample = (uint64_t)a.samples[row];
    uint32_t word[COLUMNS] = {(uint32_t)group, (uint32_t)a.positions[row], (uint32_t)sample,
                              (uint32_t)(sample >> 32)};
    philox(word, a.key);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        if (column + i >= a.columns)
            break;
        int64_t at = row * a.columns + column + i;
        float u = (float)((int32_t)word[i] >> 8) * 0x1p-23f; /* exact */
        tsr_store(a.x, at, __fadd_rn(tsr_load(a.x, at, a.dtype), __fmul_rn(a.size, u)), a.dtype);
    }
}

extern "C" tsr_status tsr_noise_cuda(tsr_stream *stream, const tsr_noise_args *args)
{
    TSR_TRY(tsr_noise_check(args));
    if (args->tokens == 0 || args->columns == 0)
        return TSR_OK;
    int64_t groups = (args->columns + COLUMNS - 1) / COLUMNS;
    TSR_LAUNCH(add_noise, tsr_blocks(args->tokens * groups, THREADS), THREADS, stream, *args,
               groups);
    return tsr_launched("noise");
}
