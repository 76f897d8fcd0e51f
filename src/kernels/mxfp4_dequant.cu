/*
 * mxfp4_dequant.cu: matrices in MXFP4 to values. Contract mxfp4_dequant.h; reference mxfp4_dequant_ref.c, matched bit
 * for bit.
 *
 * A thread takes words of 8 codes, a block's threads one behind the other: 4 bytes read and 16 written at a time (of a
 * 16-bit dtype). A byte permutation looks four magnitudes up in a register pair: the eight of E2M1 as bf16, low bytes
 * and high bytes. They are widened, multiplied by the power of two in fp32, which is exact, and narrowed.
 *
 * Cost     per element 17/32 bytes read, one element written; some 5 instructions: bandwidth bound.
 */
#include "kernels/cuda.cuh"

#include "kernels/kernels_cuda.h"

#define THREADS 256
#define TURNS   4 /* words of a thread, whose codes are all asked for first */
#define WORD    TSR_VECTOR
#define WORDS   (TSR_MXFP4_BLOCK / WORD) /* of a block */

/* 0, 0.5, 1, 1.5, 2, 3, 4, 6 in bf16. */
#define LOW_BYTES_LOWER  0xc0800000u
#define LOW_BYTES_UPPER  0xc0804000u
#define HIGH_BYTES_LOWER 0x3f3f3f00u
#define HIGH_BYTES_UPPER 0x40404040u
#define MAGNITUDES       0x7777u
#define GRANULE_WORDS    (TSR_MXFP4_GRANULE / WORD)
#define MOST_MATRICES    65535 /* a grid's y */

/* What is launched: words of a matrix and of a row, where the matrices lie. */
typedef struct {
    tsr_mxfp4_dequant_args a;
    int64_t words, stride; /* of a matrix, without and with what pads it */
    int64_t row_words;
} mxfp4_call;

static __device__ __forceinline__ uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t select)
{
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(select));
    return out;
}

/* Of four codes, element 0 lowest. */
static __device__ __forceinline__ void decode_four(float *out, uint32_t codes, float power)
{
    uint32_t among = codes & MAGNITUDES;
    uint32_t low = bytes_of(LOW_BYTES_LOWER, LOW_BYTES_UPPER, among);
    uint32_t high = bytes_of(HIGH_BYTES_LOWER, HIGH_BYTES_UPPER, among);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t magnitude = bytes_of(low, high, 0x4000u + 0x1100u * i) & 0xffff0000u;
        uint32_t sign = codes << (28 - 4 * i) & 0x80000000u;
        out[i] = __fmul_rn(__uint_as_float(magnitude | sign), power);
    }
}

/* 2^(scale - 127); of 0 a subnormal number. */
static __device__ __forceinline__ float power_of(uint8_t scale)
{
    return __uint_as_float(scale ? (uint32_t)scale << 23 : 1u << 22);
}

static __global__ void __launch_bounds__(THREADS) dequantize(const __grid_constant__ mxfp4_call c)
{
    tsr_kernel_begin();
    int64_t matrix = blockIdx.y, first = (int64_t)blockIdx.x * THREADS * TURNS + threadIdx.x;
    int64_t begin = (c.a.first + matrix) * c.stride;
    const uint32_t *codes = (const uint32_t *)c.a.codes + begin;
    const uint8_t *scales = c.a.scales + begin / WORDS;
    uint32_t word[TURNS];
    uint8_t scale[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t at = first + turn * THREADS;
        word[turn] = at < c.words ? __ldcs(codes + at) : 0;
        scale[turn] = at < c.words ? scales[at / WORDS] : 0;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t at = first + turn * THREADS, to = at;
        float value[WORD], power = power_of(scale[turn]);
        if (at >= c.words)
            return;
        if (c.a.by_turns) {
            int64_t row = at / c.row_words;
            to = (row % 2 * (c.a.rows / 2) + row / 2) * c.row_words + at % c.row_words;
        }
        decode_four(value, word[turn] & 0xffffu, power);
        decode_four(value + 4, word[turn] >> 16, power);
        tsr_store8(c.a.out, (matrix * c.words + to) * WORD, value, c.a.dtype);
    }
}

extern "C" tsr_status tsr_mxfp4_dequant_cuda(tsr_stream *stream, const tsr_mxfp4_dequant_args *args)
{
    TSR_TRY(tsr_mxfp4_dequant_check(args));
    mxfp4_call call = {*args, args->rows * args->columns / WORD,
                       tsr_mxfp4_granules(args->rows, args->columns) * GRANULE_WORDS,
                       args->columns / WORD};
    if (args->count == 0 || call.words == 0)
        return TSR_OK;
    if ((uintptr_t)args->out % 16 || (uintptr_t)args->codes % 4)
        return tsr_fail(TSR_EINVAL, "mxfp4_dequant: out is not on 16 bytes, or codes are not on 4");
    if (args->count > MOST_MATRICES)
        return tsr_fail(TSR_EUNSUPPORTED, "mxfp4_dequant: %lld matrices at once",
                        (long long)args->count);
    dim3 grid(tsr_blocks(call.words, THREADS * TURNS), (unsigned)args->count);
    TSR_LAUNCH(dequantize, grid, THREADS, stream, call);
    return tsr_launched("mxfp4_dequant");
}
