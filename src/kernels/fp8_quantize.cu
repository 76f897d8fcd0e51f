/*
 * fp8_quantize.cu: contract fp8_quantize.h; reference fp8_quantize_ref.c, the same bytes.
 *
 * Split    A block has ROWS rows and keeps all of them in registers, CHUNKS chunks of 16 elements of each
 *          row to a thread: everything is read once, before the first of it is used. One barrier for the
 *          maxima of all rows, two 16-byte loads and one 16-byte store a chunk.
 * Factors  Read for each row they would be 4 bytes of each element from L2, beside 3 from memory. So blocks
 *          stay, one row after the other, with a chunk a thread and its factors in registers, and the next
 *          row is under way. Wider than a block: as without, the factors once for codes and maximum.
 * Cost     bf16: 2 bytes read and 1 written an element, 4 a row; bandwidth bound.
 *
 * F32, and what is not on vectors of 16 elements or wider than a block can hold: a block a row, read twice.
 */
#include "kernels/fp8.cuh"

#define CHUNK        16
#define MOST_THREADS 512
#define HELD         4 /* chunks of a thread, of all its rows */
#define EACH_THREADS 256
#define STAY_THREADS 1024 /* at most, and on a multiprocessor: 64 registers */

/* 16 bf16 as they lie. */
typedef struct {
    uint32_t word[CHUNK / 2];
} raw_chunk;

static __device__ __forceinline__ raw_chunk load_chunk(const void *x, int64_t i, bool there)
{
    raw_chunk raw = {};
    if (there) {
        uint4 low = __ldcs((const uint4 *)((const uint16_t *)x + i));
        uint4 high = __ldcs((const uint4 *)((const uint16_t *)x + i) + 1);
        raw.word[0] = low.x, raw.word[1] = low.y, raw.word[2] = low.z, raw.word[3] = low.w;
        raw.word[4] = high.x, raw.word[5] = high.y, raw.word[6] = high.z, raw.word[7] = high.w;
    }
    return raw;
}

static __device__ __forceinline__ void load_factors(float *out, const float *factor, int64_t column,
                                                    bool there)
{
#pragma unroll
    for (int i = 0; i < CHUNK / 4; i++) {
        uint4 quad = make_uint4(0, 0, 0, 0);
        if (there)
            quad = tsr_load_common((const uint4 *)(factor + column) + i);
        out[4 * i] = __uint_as_float(quad.x), out[4 * i + 1] = __uint_as_float(quad.y);
        out[4 * i + 2] = __uint_as_float(quad.z), out[4 * i + 3] = __uint_as_float(quad.w);
    }
}

static __device__ __forceinline__ float element(const raw_chunk *raw, int i, const float *factor,
                                                bool factors)
{
    uint32_t word = raw->word[i / 2];
    float value = __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
    return factors ? __fmul_rn(value, factor[i]) : value;
}

static __device__ __forceinline__ uint32_t chunk_max(const raw_chunk *raw, const float *factor,
                                                     bool factors)
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        most = max(most, tsr_magnitude(element(raw, i, factor, factors)));
    return most;
}

static __device__ __forceinline__ uint4 chunk_codes(const raw_chunk *raw, const float *factor,
                                                    bool factors, float inverse)
{
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = __fmul_rn(element(raw, 4 * i + j, factor, factors), inverse);
        word[i] = isnan(inverse) ? TSR_E4M3_NANS : tsr_e4m3x4(v[0], v[1], v[2], v[3]);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

template <int ROWS, int CHUNKS, bool FACTORS>
static __device__ __forceinline__ void quantize_rows(const tsr_fp8_quantize_args *a)
{
    __shared__ uint32_t warp_max[ROWS][TSR_WARP];
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    int64_t row = (int64_t)blockIdx.x * ROWS;
    raw_chunk raw[ROWS][CHUNKS];
    float factor[CHUNKS][CHUNK];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            int64_t column = ((int64_t)c * blockDim.x + threadIdx.x) * CHUNK;
            raw[r][c] =
                load_chunk(a->x, (row + r) * a->d + column, row + r < a->tokens && column < a->d);
        }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int64_t column = ((int64_t)c * blockDim.x + threadIdx.x) * CHUNK;
        if (FACTORS)
            load_factors(factor[c], a->column_factor, column, column < a->d);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        uint32_t most = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            most = max(most, chunk_max(&raw[r][c], factor[c], FACTORS));
        most = tsr_warp_max(most);
        if (lane == 0)
            warp_max[r][warp] = most;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        uint32_t most = tsr_warp_max(lane < (int)blockDim.x / TSR_WARP ? warp_max[r][lane] : 0);
        float scale = tsr_e4m3_scale(__uint_as_float(most)), inverse = __frcp_rn(scale);
        if (row + r >= a->tokens)
            break;
        if (threadIdx.x == 0)
            a->scale[row + r] = scale;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            int64_t column = ((int64_t)c * blockDim.x + threadIdx.x) * CHUNK;
            if (column < a->d)
                *(uint4 *)(a->out + (row + r) * a->d + column) =
                    chunk_codes(&raw[r][c], factor[c], FACTORS, inverse);
        }
    }
}

#define QUANTIZE_KERNEL(name, rows, chunks, factors)                                               \
    static __global__ void __launch_bounds__(MOST_THREADS)                                         \
        name(const __grid_constant__ tsr_fp8_quantize_args a)                                      \
    {                                                                                              \
        tsr_kernel_begin();                                                                        \
        quantize_rows<rows, chunks, factors>(&a);                                                  \
    }

QUANTIZE_KERNEL(narrow, 4, 1, false)
QUANTIZE_KERNEL(middle, 2, 2, false)
QUANTIZE_KERNEL(wide, 1, 4, false)
QUANTIZE_KERNEL(wide_with_factor, 1, 4, true)

typedef void quantize_kernel(const tsr_fp8_quantize_args a);

static quantize_kernel *kernel_of(int chunks, bool factors)
{
    if (factors)
        return wide_with_factor;
    return chunks == 1 ? narrow : chunks == 2 ? middle : wide;
}

/* Rows gridDim.x apart; the maxima of two in turn, so that one barrier is enough. */
static __global__ void __launch_bounds__(STAY_THREADS)
    stay_with_factor(const __grid_constant__ tsr_fp8_quantize_args a)
{
    tsr_kernel_begin();
    __shared__ uint32_t warp_max[2][TSR_WARP];
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP, parity = 0;
    int64_t column = threadIdx.x * CHUNK, row = blockIdx.x;
    float factor[CHUNK];
    load_factors(factor, a.column_factor, column, column < a.d);
    raw_chunk next = load_chunk(a.x, row * a.d + column, row < a.tokens && column < a.d);
    for (; row < a.tokens; row += gridDim.x, parity ^= 1) {
        raw_chunk raw = next;
        int64_t ahead = row + gridDim.x;
        next = load_chunk(a.x, ahead * a.d + column, ahead < a.tokens && column < a.d);
        uint32_t most = tsr_warp_max(chunk_max(&raw, factor, true));
        if (lane == 0)
            warp_max[parity][warp] = most;
        __syncthreads();
        most = tsr_warp_max(lane < (int)blockDim.x / TSR_WARP ? warp_max[parity][lane] : 0);
        float scale = tsr_e4m3_scale(__uint_as_float(most)), inverse = __frcp_rn(scale);
        if (threadIdx.x == 0)
            a.scale[row] = scale;
        if (column < a.d)
            *(uint4 *)(a.out + row * a.d + column) = chunk_codes(&raw, factor, true, inverse);
    }
}

static void launch_stay(tsr_stream *stream, const tsr_fp8_quantize_args *args)
{
    int64_t threads = tsr_blocks(args->d, CHUNK * TSR_WARP) * (int64_t)TSR_WARP;
    int64_t blocks =
        tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count * (STAY_THREADS / threads);
    blocks = blocks < args->tokens ? blocks : args->tokens;
    TSR_LAUNCH(stay_with_factor, (unsigned)blocks, (unsigned)threads, stream, *args);
}

/* Of a row a thread, 1, 2 or 4; 0: too wide. */
static int chunks_of(int64_t d)
{
    for (int chunks = 1; chunks <= HELD; chunks *= 2)
        if (d <= (int64_t)chunks * MOST_THREADS * CHUNK)
            return chunks;
    return 0;
}

static __device__ __forceinline__ float value_at(const tsr_fp8_quantize_args *a, int64_t t,
                                                 int64_t j)
{
    float value = tsr_load(a->x, t * a->d + j, a->dtype);
    return a->column_factor ? __fmul_rn(value, a->column_factor[j]) : value;
}

static __global__ void __launch_bounds__(EACH_THREADS)
    quantize_each(const __grid_constant__ tsr_fp8_quantize_args a)
{
    tsr_kernel_begin();
    int64_t t = blockIdx.x;
    uint32_t most = 0;
    for (int64_t j = threadIdx.x; j < a.d; j += EACH_THREADS)
        most = max(most, tsr_magnitude(value_at(&a, t, j)));
    most = tsr_block_max(most);
    float scale = tsr_e4m3_scale(__uint_as_float(most)), inverse = __frcp_rn(scale);
    if (threadIdx.x == 0)
        a.scale[t] = scale;
    for (int64_t j = threadIdx.x; j < a.d; j += EACH_THREADS)
        a.out[t * a.d + j] =
            isnan(scale) ? TSR_E4M3_NAN : tsr_f32_to_e4m3(__fmul_rn(value_at(&a, t, j), inverse));
}

extern "C" tsr_status tsr_fp8_quantize_cuda(tsr_stream *stream, const tsr_fp8_quantize_args *args)
{
    TSR_TRY(tsr_fp8_quantize_check(args));
    int chunks = chunks_of(args->d);
    bool aligned =
        ((uintptr_t)args->x | (uintptr_t)args->out | (uintptr_t)args->column_factor) % 16 == 0;
    if (args->tokens == 0)
        return TSR_OK;
    bool vectors = args->dtype == TSR_BF16 && aligned && args->d % CHUNK == 0;
    if (vectors && args->column_factor && args->d <= STAY_THREADS * CHUNK) {
        launch_stay(stream, args);
    } else if (vectors && chunks) {
        int threads = (int)tsr_blocks(args->d, (int64_t)CHUNK * chunks * TSR_WARP) * TSR_WARP;
        quantize_kernel *quantize = kernel_of(chunks, args->column_factor != NULL);
        TSR_LAUNCH(quantize, tsr_blocks(args->tokens, HELD / chunks), threads, stream, *args);
    } else {
        TSR_LAUNCH(quantize_each, (unsigned)args->tokens, EACH_THREADS, stream, *args);
    }
    return tsr_launched("fp8_quantize");
}
