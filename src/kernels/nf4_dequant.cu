/*
 * nf4_dequant.cu: NF4 codes to values. Contract nf4_dequant.h; reference nf4_dequant_ref.c, matched
 * bit for bit: every product and sum is rounded by itself.
 *
 * Split    A warp has 2048 elements, 32 blocks of 64, and no barrier: lane i decodes the scale
 *          of block i, and in each of 8 turns a lane takes 8 elements: a word of codes, one 16-byte
 *          store of a 16-bit dtype. All of a warp's codes are asked for before any is used, and where
 *          they are settled before the kernel before this one has ended: the blocks of a 4096 x 4096
 *          weight all fit on an H200 at once, so what follows does nothing but write.
 * Lookups  A lane holds level[lane % 16]; a shuffle reads the lane that a code names. Its index
 *          counts modulo 32 and the levels are there twice, so that the bits above a code need no
 *          masking; shared memory would cost the same cycles, a mask, a barrier and a start-up.
 * Cost     per element 1/2 + 1/64 bytes read (1/2 + 1/16 with fp32 scales), one element written;
 *          5 instructions, a fifth of which the shuffle unit takes: bandwidth bound.
 *
 * What does not fit this shape (pointers off their vectors, rows that a word of codes crosses, the
 * last count % 8 elements) is done element by element.
 */
#include "kernels/nf4_scale.cuh"

#define THREADS      256
#define TURNS        8
#define WORD         TSR_VECTOR /* elements of 32 bits of codes */
#define WARP_WORDS   (TURNS * TSR_WARP)
#define TAIL_THREADS 256

static_assert(WARP_WORDS * WORD == TSR_WARP * TSR_NF4_BLOCK, "a block's scale for each lane");

/* Bytes are in memory order from the lowest, and a byte's first element is its high nibble. */
static __device__ __forceinline__ void decode_word(float *out, uint32_t codes, float level,
                                                   float scale)
{
#pragma unroll
    for (int i = 0; i < WORD; i++) {
        uint32_t code = codes >> (4 * (i ^ 1));
        out[i] = __fmul_rn(__shfl_sync(0xffffffffu, level, (int)code), scale);
    }
}

/* A warp's part of what it reads: all codes, and of each lane the scale of a block and a level. */
typedef struct {
    uint32_t codes[TURNS];
    float level, scale;
} nf4_read;

static __device__ __forceinline__ int64_t first_word(void)
{
    return ((int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP) * WARP_WORDS;
}

static __device__ __forceinline__ nf4_read read_codes(const tsr_nf4_dequant_args *a, int64_t words)
{
    int lane = threadIdx.x % TSR_WARP;
    int64_t first = first_word(), block = first / (TSR_NF4_BLOCK / WORD) + lane;
    nf4_read read;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t word = first + turn * TSR_WARP + lane;
        read.codes[turn] = word < words ? __ldcs((const uint32_t *)a->codes + word) : 0;
    }
    read.level = a->level[lane % 16];
    read.scale = block * (TSR_NF4_BLOCK / WORD) < words ? tsr_nf4_scale(a, block) : 0;
    return read;
}

/* row_words: words of a row; 0: no row factor. */
static __device__ __forceinline__ void write_values(const tsr_nf4_dequant_args *a,
                                                    const nf4_read *read, int64_t words,
                                                    uint32_t row_words, const tsr_dtype dtype)
{
    int lane = threadIdx.x % TSR_WARP;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t word = first_word() + turn * TSR_WARP + lane;
        int holder = (turn * TSR_WARP + lane) / (TSR_NF4_BLOCK / WORD);
        float value[WORD], scale = __shfl_sync(0xffffffffu, read->scale, holder);
        decode_word(value, read->codes[turn], read->level, scale);
        if (word >= words)
            continue;
        if (row_words) {
            float factor = a->row_factor[(uint32_t)word / row_words];
#pragma unroll
            for (int i = 0; i < WORD; i++)
                value[i] = __fmul_rn(value[i], factor);
        }
        tsr_store8(a->out, word * WORD, value, dtype);
    }
}

static __global__ void __launch_bounds__(THREADS)
    dequantize(const tsr_nf4_dequant_args a, int64_t words, uint32_t row_words)
{
    tsr_kernel_begin();
    nf4_read read = read_codes(&a, words);
    write_values(&a, &read, words, row_words, a.dtype);
}

/* What a step decodes: to bf16, without a row factor. */
static __global__ void __launch_bounds__(THREADS)
    dequantize_ahead(const tsr_nf4_dequant_args a, int64_t words)
{
    nf4_read read = read_codes(&a, words);
    tsr_kernel_begin();
    write_values(&a, &read, words, 0, TSR_BF16);
}

static __global__ void __launch_bounds__(TAIL_THREADS)
    dequantize_each(const tsr_nf4_dequant_args a, int64_t first)
{
    tsr_kernel_begin();
    int64_t e = first + (int64_t)blockIdx.x * TAIL_THREADS + threadIdx.x;
    if (e >= a.count)
        return;
    uint8_t byte = a.codes[e / 2];
    float value =
        __fmul_rn(a.level[e % 2 ? byte & 15 : byte >> 4], tsr_nf4_scale(&a, e / TSR_NF4_BLOCK));
    if (a.row_factor)
        value = __fmul_rn(value, a.row_factor[e / a.columns]);
    tsr_store(a.out, e, value, a.dtype);
}

/* Whole words that the fast kernel may take. */
static int64_t whole_words(const tsr_nf4_dequant_args *args)
{
    int64_t words = args->count / WORD;
    bool aligned = (uintptr_t)args->codes % 4 == 0 && (uintptr_t)args->out % 16 == 0;
    bool rows = !args->row_factor || (args->columns % WORD == 0 &&
                                      args->columns / WORD <= INT32_MAX && words <= INT32_MAX);
    return aligned && rows ? words : 0;
}

extern "C" tsr_status tsr_nf4_dequant_cuda(tsr_stream *stream, const tsr_nf4_dequant_args *args)
{
    TSR_TRY(tsr_nf4_dequant_check(args));
    int64_t words = whole_words(args), left = args->count - words * WORD;
    uint32_t row_words = args->row_factor ? (uint32_t)(args->columns / WORD) : 0;
    unsigned blocks = tsr_blocks(words, (int64_t)WARP_WORDS * (THREADS / TSR_WARP));
    if (words && args->settled && args->dtype == TSR_BF16 && !args->row_factor)
        TSR_LAUNCH(dequantize_ahead, blocks, THREADS, stream, *args, words);
    else if (words)
        TSR_LAUNCH(dequantize, blocks, THREADS, stream, *args, words, row_words);
    if (left)
        TSR_LAUNCH(dequantize_each, tsr_blocks(left, TAIL_THREADS), TAIL_THREADS, stream, *args,
                   words * WORD);
    return args->count ? tsr_launched("nf4_dequant") : TSR_OK;
}
