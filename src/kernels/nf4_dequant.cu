/*
 * nf4_dequant.cu: NF4 codes to values. Contract nf4_dequant.h; reference nf4_dequant_ref.c, matched
 * bit for bit: every product and sum is rounded by itself.
 *
 * decode_ahead   What a step decodes: to bf16, in code for sm_90. A lane has a block: it rounds the sixteen values
 *                that a code can name there once, and four codes at a time select their low bytes and their high
 *                bytes by byte permutations, in registers: some 3 instructions an element. Codes and values change lanes
 *                through shared memory, and a warp's 4 KB leave it in one bulk copy. Only that waits for the
 *                kernel before this one: codes are settled (cuda.cuh).
 * dequantize     Any dtype, with a row factor, and on older cards. A warp has 2048 elements, 32 blocks of 64, and no
 *                barrier: lane i decodes the scale of block i, and in each of 8 turns a lane takes 8 elements: a
 *                word of codes, one 16-byte store of a 16-bit dtype. All of a warp's codes are asked for before any
 *                is used. A lane holds level[lane % 16]; a shuffle reads the lane that a code names. Its index
 *                counts modulo 32 and the levels are there twice, so that the bits above a code need no masking.
 * dequantize_each   What does not fit these (pointers off their vectors, rows that a word of codes crosses, the
 *                last count % 8 elements), element by element.
 *
 * Cost           per element 1/2 + 1/64 bytes read (1/2 + 1/16 with fp32 scales), one element written: bandwidth
 *                bound; beside it a launch costs some 0.6 us, 5 % of a 4096 x 4096 weight.
 */
#include "kernels/nf4_results.cuh"
#include "kernels/nf4_stack.cuh"

#define THREADS      256
#define TURNS        8
#define WORD         TSR_VECTOR /* elements of 32 bits of codes */
#define WARP_WORDS   (TURNS * TSR_WARP)
#define TAIL_THREADS 256

#define AHEAD_WARPS   4 /* and 12 blocks of them on a multiprocessor; of 8 warps, 6 were slower */
#define AHEAD_BLOCKS  12
#define AHEAD_THREADS (AHEAD_WARPS * TSR_WARP)
#define TILE_BYTES    (WARP_WORDS * WORD * 2) /* of a warp's values in bf16 */
#define BLOCK_BYTES   (TSR_NF4_BLOCK * 2)

static_assert(WARP_WORDS * WORD == TSR_WARP * TSR_NF4_BLOCK, "a block's scale for each lane");

/* Of block `block`; stack NULL: of one matrix, else its rows are blocks. */
static __device__ __forceinline__ float scale_at(const tsr_nf4_dequant_args *a,
                                                 const tsr_nf4_stack *stack, int64_t block)
{
    if (!stack)
        return tsr_nf4_scale(a, block);
    return tsr_nf4_scale_from(a, tsr_nf4_find_scale(a, block),
                              tsr_nf4_stack_offset(stack, a, block));
}

/* ---- any dtype ---- */

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

/* row_words: words of a row; 0: no row factor. */
static __device__ __forceinline__ void dequantize_words(const tsr_nf4_dequant_args *args,
                                                        const tsr_nf4_stack *stack, int64_t words,
                                                        uint32_t row_words)
{
    const tsr_nf4_dequant_args &a = *args;
    int lane = threadIdx.x % TSR_WARP;
    int64_t warp = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    int64_t first = warp * WARP_WORDS, block = first / (TSR_NF4_BLOCK / WORD) + lane;
    uint32_t codes[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t word = first + turn * TSR_WARP + lane;
        codes[turn] = word < words ? __ldcs((const uint32_t *)a.codes + word) : 0;
    }
    float level = a.level[lane % 16];
    float own = block * (TSR_NF4_BLOCK / WORD) < words ? scale_at(&a, stack, block) : 0;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t word = first + turn * TSR_WARP + lane;
        int holder = (turn * TSR_WARP + lane) / (TSR_NF4_BLOCK / WORD);
        float value[WORD], scale = __shfl_sync(0xffffffffu, own, holder);
        decode_word(value, codes[turn], level, scale);
        if (word >= words)
            continue;
        if (row_words) {
            float factor = a.row_factor[(uint32_t)word / row_words];
#pragma unroll
            for (int i = 0; i < WORD; i++)
                value[i] = __fmul_rn(value[i], factor);
        }
        tsr_store8(a.out, word * WORD, value, a.dtype);
    }
}

static __global__ void __launch_bounds__(THREADS)
    dequantize(const tsr_nf4_dequant_args a, int64_t words, uint32_t row_words)
{
    tsr_kernel_begin();
    dequantize_words(&a, NULL, words, row_words);
}

static __global__ void __launch_bounds__(THREADS)
    dequantize_stack(const tsr_nf4_dequant_args a, const tsr_nf4_stack stack, int64_t words)
{
    tsr_kernel_begin();
    dequantize_words(&a, &stack, words, 0);
}

/* ---- to bf16, by whole tiles ---- */

/* A warp's words from `first` on. Until that is stored all is this kernel's own: it does not wait for the one
 * before. */
static __device__ __forceinline__ void decode(char *tile, const tsr_nf4_dequant_args *a,
                                              const tsr_nf4_stack *stack, int64_t first)
{
    tsr_kernel_next();
    int lane = threadIdx.x % TSR_WARP;
    int turned = (lane + lane / TURNS) % TURNS; /* a bank for each lane of a quarter */
    uint32_t codes[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        codes[turn] = __ldcs((const uint32_t *)a->codes + first + turn * TSR_WARP + lane);
    tsr_nf4_results results = tsr_nf4_results_of(
        (const float4 *)a->level, scale_at(a, stack, first / (TSR_NF4_BLOCK / WORD) + lane));
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        ((uint32_t *)tile)[turn * TSR_WARP + lane] = codes[turn];
    __syncwarp();
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        codes[turn] = ((uint32_t *)tile)[lane * TURNS + (turn + turned) % TURNS];
    __syncwarp();
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        *(uint4 *)(tile + lane * BLOCK_BYTES + (turn + turned) % TURNS * 16) =
            tsr_nf4_word(&results, codes[turn]);
    tsr_bulk_written();
    __syncwarp();
}

static __device__ __forceinline__ int64_t warp_first(void)
{
    return ((int64_t)blockIdx.x * AHEAD_WARPS + threadIdx.x / TSR_WARP) * WARP_WORDS;
}

static __device__ __forceinline__ void store(const tsr_nf4_dequant_args *a, const char *tile)
{
    if (threadIdx.x % TSR_WARP == 0)
        tsr_bulk_store((uint4 *)a->out + warp_first(), tile, TILE_BYTES);
}

static __global__ void __launch_bounds__(AHEAD_THREADS, AHEAD_BLOCKS)
    decode_ahead(const tsr_nf4_dequant_args a)
{
    __shared__ __align__(128) char tiles[AHEAD_WARPS][TILE_BYTES];
    char *tile = tiles[threadIdx.x / TSR_WARP];
    decode(tile, &a, NULL, warp_first());
    tsr_kernel_begin();
    store(&a, tile);
}

static __global__ void __launch_bounds__(AHEAD_THREADS, AHEAD_BLOCKS)
    decode_stack_ahead(const tsr_nf4_dequant_args a, const tsr_nf4_stack stack)
{
    __shared__ __align__(128) char tiles[AHEAD_WARPS][TILE_BYTES];
    char *tile = tiles[threadIdx.x / TSR_WARP];
    decode(tile, &a, &stack, warp_first());
    tsr_kernel_begin();
    store(&a, tile);
}

/* ---- element by element ---- */

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

/* ---- which ---- */

/* Whole words that `dequantize` may take. */
static int64_t whole_words(const tsr_nf4_dequant_args *args)
{
    int64_t words = args->count / WORD;
    bool aligned = (uintptr_t)args->codes % 4 == 0 && (uintptr_t)args->out % 16 == 0;
    bool rows = !args->row_factor || (args->columns % WORD == 0 &&
                                      args->columns / WORD <= INT32_MAX && words <= INT32_MAX);
    return aligned && rows ? words : 0;
}

static bool takes_ahead(tsr_stream *stream, const tsr_nf4_dequant_args *args, int64_t words)
{
    return args->settled && args->dtype == TSR_BF16 && !args->row_factor && words &&
           args->count % (AHEAD_WARPS * WARP_WORDS * WORD) == 0 &&
           (uintptr_t)args->level % 16 == 0 &&
           tsr_device_cuda_properties(tsr_stream_device(stream))->early_kernels;
}

extern "C" tsr_status tsr_nf4_dequant_cuda(tsr_stream *stream, const tsr_nf4_dequant_args *args)
{
    TSR_TRY(tsr_nf4_dequant_check(args));
    int64_t words = whole_words(args), left = args->count - words * WORD;
    uint32_t row_words = args->row_factor ? (uint32_t)(args->columns / WORD) : 0;
    if (takes_ahead(stream, args, words))
        TSR_LAUNCH(decode_ahead, tsr_blocks(words, AHEAD_WARPS * WARP_WORDS), AHEAD_THREADS, stream,
                   *args);
    else if (words)
        TSR_LAUNCH(dequantize, tsr_blocks(words, (int64_t)WARP_WORDS * (THREADS / TSR_WARP)),
                   THREADS, stream, *args, words, row_words);
    if (left)
        TSR_LAUNCH(dequantize_each, tsr_blocks(left, TAIL_THREADS), TAIL_THREADS, stream, *args,
                   words * WORD);
    return args->count ? tsr_launched("nf4_dequant") : TSR_OK;
}

void tsr_nf4_dequant_stack(tsr_stream *stream, const tsr_nf4_dequant_args *args,
                           const tsr_nf4_stack *stack)
{
    int64_t words = args->count / WORD;
    tsr_nf4_stack blocks = *stack;
    blocks.matrix_rows = (int)(stack->matrix_rows * args->columns / TSR_NF4_BLOCK);
    if (takes_ahead(stream, args, words))
        TSR_LAUNCH(decode_stack_ahead, tsr_blocks(words, AHEAD_WARPS * WARP_WORDS), AHEAD_THREADS,
                   stream, *args, blocks);
    else
        TSR_LAUNCH(dequantize_stack, tsr_blocks(words, (int64_t)WARP_WORDS * (THREADS / TSR_WARP)),
                   THREADS, stream, *args, blocks, words);
}
