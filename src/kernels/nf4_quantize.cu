/*
 * nf4_quantize.cu: values to NF4 codes and scales, and the scales to 8-bit codes. Contract
 * nf4_quantize.h; reference nf4_quantize_ref.c, matched bit for bit: every operation is rounded by
 * itself, reciprocals are correctly rounded, subnormal numbers count.
 *
 * quantize  8 threads have a block of 64: each takes 8 elements in one vector, the largest goes round
 *           by three shuffles, and 8 codes leave as one word. A code is found by bisection: four
 *           comparisons with thresholds in shared memory, whose 15 words lie in 15 banks, so that any
 *           lanes read at once. A thread has TURNS vectors on their way.
 *           Cost: an element read, 1/2 + 1/16 bytes written; 20 instructions an element.
 * nest      Three launches. The sum of absmax is made of integers, limbs of 32 bits, which threads
 *           keep in registers while the magnitude stays in two of them, blocks in shared memory: exact,
 *           whatever the order. One thread divides and rounds. Then a warp has 256 scales.
 *           Cost: 8 bytes read and 1 + 1/64 written for each scale, 1/64 of the elements.
 */
#include "kernels/cuda.cuh"

#define THREADS   256
#define TURNS     2
#define MEMBERS   (TSR_NF4_BLOCK / TSR_VECTOR) /* threads of a block of elements */
#define ZERO_CODE 7
#define INF_BITS  0x7f800000u /* |x| at or above it, as bits, is an infinity or a NaN */
#define ALL       0xffffffffu

/* ---- quantize ---- */

typedef struct {
    float at[16]; /* 15, and one that nothing is compared with */
} nf4_thresholds;

/* Vector number `vector`; what lies beyond the end is 0. */
static __device__ __forceinline__ void load_values(float *x, const tsr_nf4_quantize_args *a,
                                                   int64_t vector, bool vectors)
{
    int64_t e = vector * TSR_VECTOR;
    if (vectors && e + TSR_VECTOR <= a->count) {
        tsr_load8(x, a->values, e, a->dtype);
        return;
    }
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        x[i] = e + i < a->count ? tsr_load(a->values, e + i, a->dtype) : 0;
}

/* The largest |x| of 8 elements as bits, which are ordered as the values are. */
static __device__ __forceinline__ uint32_t largest_bits(const float *x)
{
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
    return largest;
}

static __device__ void report_bad(const tsr_nf4_quantize_args *a, const float *x, int64_t e)
{
    int bad = 0;
#pragma unroll
    for (int i = TSR_VECTOR - 1; i >= 0; i--)
        bad = (__float_as_uint(x[i]) & 0x7fffffffu) >= INF_BITS ? i : bad;
    atomicMin((unsigned long long *)a->bad, (unsigned long long)(a->first + (uint64_t)(e + bad)));
}

/* Thresholds below x: they increase. A NaN is below none. */
static __device__ __forceinline__ uint32_t code_of(float x, const float *threshold)
{
    uint32_t low = 0;
#pragma unroll
    for (uint32_t step = 8; step; step /= 2)
        if (x > threshold[low + step - 1])
            low += step;
    return low;
}

/* A byte's first element is its high nibble, bytes are in memory order from the lowest. */
static __device__ __forceinline__ uint32_t encode(const float *x, uint32_t largest,
                                                  const float *threshold)
{
    float reciprocal = __frcp_rn(__uint_as_float(largest));
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        word |= code_of(__fmul_rn(x[i], reciprocal), threshold) << (4 * (i ^ 1));
    return largest ? word : 0x11111111u * ZERO_CODE;
}

/* The codes of the last, short vector: bytes, and code 7 where an element is missing. */
static __device__ void store_short(const tsr_nf4_quantize_args *a, uint32_t word, int64_t e)
{
    for (int64_t byte = e / 2; byte < (e + TSR_VECTOR) / 2 && 2 * byte < a->count; byte++) {
        uint32_t two = word >> (8 * (byte - e / 2)) & 0xffu;
        a->codes[byte] = (uint8_t)(2 * byte + 1 < a->count ? two : (two & 0xf0u) | ZERO_CODE);
    }
}

/* vectors: `values` lies on 16 bytes; words: `codes` on 4. */
static __global__ void __launch_bounds__(THREADS)
    quantize(const __grid_constant__ tsr_nf4_quantize_args a,
             const __grid_constant__ nf4_thresholds t, bool vectors, bool words)
{
    tsr_kernel_begin();
    __shared__ float threshold[16];
    if (threadIdx.x < 16)
        threshold[threadIdx.x] = t.at[threadIdx.x];
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * (THREADS * TURNS) + threadIdx.x;
    float x[TURNS][TSR_VECTOR];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        load_values(x[turn], &a, first + turn * THREADS, vectors);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t vector = first + turn * THREADS, e = vector * TSR_VECTOR;
        uint32_t largest = largest_bits(x[turn]);
        if (largest >= INF_BITS)
            report_bad(&a, x[turn], e);
#pragma unroll
        for (int lanes = 1; lanes < MEMBERS; lanes *= 2)
            largest = max(largest, __shfl_xor_sync(ALL, largest, lanes));
        uint32_t word = encode(x[turn], largest, threshold);
        if (e >= a.count)
            continue;
        if (words && e + TSR_VECTOR <= a.count)
            ((uint32_t *)a.codes)[vector] = word;
        else
            store_short(&a, word, e);
        if (vector % MEMBERS == 0)
            a.absmax[vector / MEMBERS] = __uint_as_float(largest);
    }
}

extern "C" tsr_status tsr_nf4_quantize_cuda(tsr_stream *stream, const tsr_nf4_quantize_args *args)
{
    TSR_TRY(tsr_nf4_quantize_check(args));
    if (args->count == 0)
        return TSR_OK;
    nf4_thresholds t = {};
    for (int i = 0; i < 15; i++)
        t.at[i] = tsr_nf4_threshold[i];
    bool vectors = (uintptr_t)args->values % 16 == 0, words = (uintptr_t)args->codes % 4 == 0;
    TSR_LAUNCH(quantize, tsr_blocks(args->count, (int64_t)THREADS * TURNS * TSR_VECTOR), THREADS,
               stream, *args, t, vectors, words);
    return tsr_launched("nf4_quantize");
}

/* ---- nest: the mean ---- */

#define UNIT_BIT                                                                                   \
    32 /* bit of limb 0 upwards that weighs 2^-149, fp32's last: below it is room to round */
#define LIMBS      11 /* 2^29 numbers below 2^128 end below bit 32 + 149 + 128 + 29 */
#define NONFINITE  LIMBS
#define SUM_WORDS  (LIMBS + 1)
#define SUM_TURNS  8 /* scales a thread adds, at least, before it hands over */
#define SUM_BLOCKS 4 /* of a multiprocessor */

#if SUM_WORDS > TSR_NF4_NEST_WORDS
#error "the scratch of nf4_nest has no room for the sum"
#endif

static __device__ __forceinline__ void add_word(int64_t *word, int64_t value)
{
    if (value)
        atomicAdd((unsigned long long *)word, (unsigned long long)value);
}

static __global__ void __launch_bounds__(THREADS)
    sum_scales(int64_t *sum, const float *absmax, int64_t blocks)
{
    tsr_kernel_begin();
    __shared__ int64_t shared[SUM_WORDS];
    if (threadIdx.x < SUM_WORDS)
        shared[threadIdx.x] = 0;
    __syncthreads();
    int64_t held[2] = {0, 0}; /* limbs `limb` and `limb` + 1 */
    int limb = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < blocks;
         i += (int64_t)gridDim.x * THREADS) {
        uint32_t bits = __float_as_uint(absmax[i]) & 0x7fffffffu, exponent = bits >> 23;
        if (bits >= INF_BITS) {
            add_word(shared + NONFINITE, 1);
            continue;
        }
        uint64_t mantissa = (bits & 0x7fffffu) | (exponent ? 0x800000u : 0u);
        int place = (int)(exponent ? exponent - 1 : 0) + UNIT_BIT;
        if (place >> 5 != limb) {
            add_word(shared + limb, held[0]);
            add_word(shared + limb + 1, held[1]);
            held[0] = held[1] = 0;
            limb = place >> 5;
        }
        uint64_t wide = mantissa << (place & 31);
        held[0] += (uint32_t)wide;
        held[1] += (int64_t)(wide >> 32);
    }
    add_word(shared + limb, held[0]);
    add_word(shared + limb + 1, held[1]);
    __syncthreads();
    if (threadIdx.x < SUM_WORDS)
        add_word(sum + threadIdx.x, shared[threadIdx.x]);
}

/* RN_fp32(digits / 2^(UNIT_BIT + 149)), plus `rest`, something below the last bit; ties to even. */
static __device__ float round_once(const uint32_t *digit, bool rest)
{
    int top = -1;
    for (int i = 0; i < LIMBS; i++)
        if (digit[i])
            top = 32 * i + 31 - __clz((int)digit[i]);
    int last = top - 23 > UNIT_BIT ? top - 23 : UNIT_BIT;
    uint64_t window = digit[last / 32] | (uint64_t)digit[last / 32 + 1] << 32;
    uint32_t mantissa =
        (uint32_t)(window >> (last % 32)); /* 24 bits at most: `top` is the highest */
    bool half = digit[(last - 1) / 32] >> ((last - 1) % 32) & 1u;
    for (int i = 0; i < last - 1 && !rest; i++)
        rest = digit[i / 32] >> (i % 32) & 1u;
    if (half && (rest || (mantissa & 1u)))
        mantissa++;
    /* A carry out of the mantissa is one more in the exponent, whose first step is no step. */
    return __uint_as_float(((uint32_t)(last - UNIT_BIT) << 23) + mantissa);
}

static __global__ void divide_sum(float *offset, const int64_t *sum, uint64_t count)
{
    tsr_kernel_begin();
    uint32_t digit[LIMBS + 1];
    uint64_t carry = 0, rest = 0;
    for (int i = 0; i < LIMBS; i++) {
        carry += (uint64_t)sum[i];
        digit[i] = (uint32_t)carry;
        carry >>= 32;
    }
    digit[LIMBS] = 0;
    for (int i = LIMBS - 1; i >= 0; i--) {
        uint64_t value = rest << 32 | digit[i];
        digit[i] = (uint32_t)(value / count);
        rest = value % count;
    }
    *offset = sum[NONFINITE] ? __uint_as_float(0x7fc00000u) : round_once(digit, rest != 0);
}

/* ---- nest: the codes ---- */

#define GROUPS (THREADS / TSR_WARP) /* of 256 scales in a block */
#define OWN    (TSR_NF4_NESTED_BLOCK / TSR_WARP)

/* Midpoints below v: the nearest value's code; 0 for a NaN. */
static __device__ __forceinline__ uint8_t nearest(float v, const float *midpoint)
{
    uint32_t low = 0;
#pragma unroll
    for (uint32_t step = 128; step; step /= 2)
        if (v > midpoint[low + step - 1])
            low += step;
    return (uint8_t)low;
}

static __global__ void __launch_bounds__(THREADS) nest(const __grid_constant__ tsr_nf4_nest_args a)
{
    tsr_kernel_begin();
    __shared__ float midpoint[256];
    int lane = threadIdx.x % TSR_WARP;
    if (threadIdx.x < 255)
        midpoint[threadIdx.x] =
            __fmul_rn(__fadd_rn(a.map[threadIdx.x], a.map[threadIdx.x + 1]), 0.5f);
    __syncthreads();
    int64_t group = (int64_t)blockIdx.x * GROUPS + threadIdx.x / TSR_WARP;
    int64_t begin = group * TSR_NF4_NESTED_BLOCK;
    if (begin >= a.blocks)
        return;
    float offset = *a.offset, difference[OWN], largest = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int64_t block = begin + i * TSR_WARP + lane;
        difference[i] = block < a.blocks ? __fsub_rn(a.absmax[block], offset) : 0;
    }
#pragma unroll
    for (int i = 0; i < OWN; i++)
        largest = fmaxf(largest, fabsf(difference[i])); /* a NaN is passed over */
#pragma unroll
    for (int lanes = 1; lanes < TSR_WARP; lanes *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, lanes));
    if (lane == 0)
        a.nested_absmax[group] = largest;
    float reciprocal = __frcp_rn(largest);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int64_t own = begin + i * TSR_WARP + lane - a.first;
        if (own >= 0 && own < a.count)
            a.q[own] = nearest(__fmul_rn(difference[i], reciprocal), midpoint);
    }
}

extern "C" tsr_status tsr_nf4_nest_cuda(tsr_stream *stream, const tsr_nf4_nest_args *args)
{
    TSR_TRY(tsr_nf4_nest_check(args));
    if (!args->scratch)
        return tsr_fail(TSR_EINVAL, "nf4_nest: scratch is NULL");
    const tsr_device *device = tsr_stream_device(stream);
    int64_t most = (int64_t)tsr_device_cuda_properties(device)->sm_count * SUM_BLOCKS;
    int64_t blocks = tsr_blocks(args->blocks, THREADS * SUM_TURNS);
    TSR_TRY(tsr_stream_fill(stream, args->scratch, 0, SUM_WORDS * sizeof(int64_t)));
    TSR_LAUNCH(sum_scales, (unsigned)(blocks < most ? blocks : most), THREADS, stream,
               args->scratch, args->absmax, args->blocks);
    TSR_LAUNCH(divide_sum, 1, 1, stream, args->offset, args->scratch, (uint64_t)args->blocks);
    TSR_LAUNCH(nest, tsr_blocks(args->blocks, (int64_t)GROUPS * TSR_NF4_NESTED_BLOCK), THREADS,
               stream, *args);
    return tsr_launched("nf4_nest");
}
