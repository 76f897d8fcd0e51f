/*
 * kernels/nf4_merge.cuh: the kernels of nf4_merge, how those of larger ranks write what they have
 * summed, as mma's accumulators hold it, without shared memory and without a barrier, and what all of
 * them leave of the norms.
 */
#ifndef TSR_KERNELS_NF4_MERGE_CUH
#define TSR_KERNELS_NF4_MERGE_CUH

#include "kernels/fp8_table.cuh"
#include "kernels/mma.cuh"
#include "kernels/nf4_scale.cuh"

/* nf4_merge_low.cu: ranks up to this, whose part of A stays in registers. */
#define TSR_NF4_MERGE_LOW 32
void tsr_nf4_merge_low(tsr_stream *stream, const tsr_nf4_merge_args *args);

/* nf4_merge_wgmma.cu: ranks from this on. It takes them 64 at a time, 66 us for 14336 x 4096, where
 * nf4_merge_low takes 62 at 16 and 72 at 32. False: not on this card (tsr_kernels_context.boxes), and nothing was done. */
#define TSR_NF4_MERGE_WGMMA 17
bool tsr_nf4_merge_wgmma(tsr_stream *stream, const tsr_nf4_merge_args *args);

/* nf4_merge_norms.cu: what is left of the norms after one of these, which has put the sums of squares of
 * `across` columns of a row each into partials, [tiles, rows]. */
void tsr_nf4_merge_finish(tsr_stream *stream, const tsr_nf4_merge_args *args, int across);

/* ---- norms ---- */

/* What a kernel is made for, with registers and instructions of its own: norms or not; and with them, W
 * apart; or the norms alone, of W in e4m3. */
enum { TSR_MERGE_PLAIN, TSR_MERGE_NORMS, TSR_MERGE_APART, TSR_MERGE_ALONE, TSR_MERGE_KINDS };

static inline int tsr_merge_kind(const tsr_nf4_merge_args *args)
{
    if (args->e4m3_scale)
        return TSR_MERGE_ALONE;
    return !args->norms.n ? TSR_MERGE_PLAIN : args->apart ? TSR_MERGE_APART : TSR_MERGE_NORMS;
}

/* Two columns as they are stored: first and second are W's, `product` has those of B A. With norms, the
 * squares of what is merged are added to *sum. */
static __device__ __forceinline__ uint32_t tsr_merge_pair(const tsr_nf4_merge_args *a,
                                                          const float *product, float first,
                                                          float second, const int kind, float *sum)
{
    float x = fmaf(a->scale, product[0], first), y = fmaf(a->scale, product[1], second);
    if (kind != TSR_MERGE_PLAIN)
        *sum = fmaf(y, y, fmaf(x, x, *sum));
    /* Known, and asked all the same: the compiler would make W before B A is there, in registers that there
     * are not. */
    if (kind == TSR_MERGE_APART && a->apart)
        x = first, y = second;
    return tsr_pack_bf16(x, y);
}

/* The same of norms alone: W's are the two codes in the low half of a word, times the row's scale. */
static __device__ __forceinline__ void tsr_merge_square(const tsr_nf4_merge_args *a,
                                                        const float *product, uint32_t codes,
                                                        float scale, float *sum)
{
    float2 w = tsr_e4m3_pair(codes);
    float x = fmaf(a->scale, product[0], __fmul_rn(w.x, scale));
    float y = fmaf(a->scale, product[1], __fmul_rn(w.y, scale));
    *sum = fmaf(y, y, fmaf(x, x, *sum));
}

/* Of rows row + g and row + g + 8 each lane of a quad has a part of the sum over a tile of columns. All
 * lanes call. */
static __device__ __forceinline__ void tsr_merge_partials(const tsr_nf4_merge_args *a, int64_t rows,
                                                          int64_t row, int64_t tile,
                                                          const float part[2])
{
    bool odd = threadIdx.x & 1;
    float sum = odd ? part[1] : part[0];
    sum += __shfl_xor_sync(0xffffffffu, odd ? part[0] : part[1], 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    row += threadIdx.x % 2 * 8 + threadIdx.x % TSR_WARP / 4;
    if (row < rows && threadIdx.x % 4 < 2)
        a->norms.partials[tile * rows + row] = sum;
}

/* ---- what a code stands for ---- */

/* A lane's part of the levels: that of code lane % 16; of norms alone the four that it makes codes of. */
typedef struct {
    float of[4];
} tsr_merge_levels;

static __device__ __forceinline__ tsr_merge_levels
tsr_merge_find_levels(const tsr_nf4_merge_args *a, const int kind)
{
    tsr_merge_levels levels = {};
    if (kind != TSR_MERGE_ALONE)
        levels.of[0] = a->weight.level[threadIdx.x % 16];
    else
#pragma unroll
        for (int i = 0; i < 4; i++)
            levels.of[i] = a->weight.level[threadIdx.x % 4 * 4 + i];
    return levels;
}

/* Of a block in a row; the last two are the row's, of norms alone. */
typedef struct {
    float absmax, e4m3, inverse;
} tsr_merge_scales;

/* What of it lies in memory by row. */
static __device__ __forceinline__ float
tsr_merge_find_row(const tsr_nf4_merge_args *a, int64_t rows, int64_t row, const int kind)
{
    return kind == TSR_MERGE_ALONE && row < rows ? a->e4m3_scale[row] : 0;
}

static __device__ __forceinline__ tsr_merge_scales tsr_merge_make_scales(float absmax, float of_row,
                                                                         const int kind)
{
    tsr_merge_scales scales = {absmax, of_row, kind == TSR_MERGE_ALONE ? __frcp_rn(of_row) : 0};
    return scales;
}

/* Those that another lane has. All lanes call. */
static __device__ __forceinline__ tsr_merge_scales tsr_merge_scales_of(tsr_merge_scales scales,
                                                                       int lane, const int kind)
{
    scales.absmax = __shfl_sync(0xffffffffu, scales.absmax, lane);
    if (kind == TSR_MERGE_ALONE) {
        scales.e4m3 = __shfl_sync(0xffffffffu, scales.e4m3, lane);
        scales.inverse = __shfl_sync(0xffffffffu, scales.inverse, lane);
    }
    return scales;
}

/* ---- a strip: 64 columns, one block of codes in each row, of a warp ---- */

/* Lane 4 g + t is one of the quad of a row g. Its codes of the row: columns 16 t to 16 t + 15. */
static __device__ __forceinline__ uint2 tsr_merge_codes(const tsr_nf4_dequant_args *w, int64_t rows,
                                                        int64_t row, int64_t column)
{
    if (row >= rows || column >= w->columns)
        return make_uint2(0, 0);
    return __ldcs((const uint2 *)(w->codes + (row * w->columns + column) / 2) + threadIdx.x % 4);
}

static __device__ __forceinline__ tsr_nf4_found tsr_merge_find_scale(const tsr_nf4_dequant_args *w,
                                                                     int64_t rows, int64_t row,
                                                                     int64_t column)
{
    if (row >= rows || column >= w->columns) {
        tsr_nf4_found none = {};
        return none;
    }
    return tsr_nf4_find_scale(w, (row * w->columns + column) / TSR_NF4_BLOCK);
}

/* Byte m of lane t of a quad becomes byte t of lane m. */
static __device__ __forceinline__ uint32_t tsr_quad_bytes(uint32_t word)
{
    uint32_t odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t other = __shfl_xor_sync(0xffffffffu, word, 1);
    word = __byte_perm(word, other, odd ? 0x3715 : 0x6240);
    other = __shfl_xor_sync(0xffffffffu, word, 2);
    return __byte_perm(word, other, high ? 0x3276 : 0x5410);
}

/* Norms alone: the lane's part of a strip of a row, arguments as tsr_merge_write's. */
static __device__ __forceinline__ float
tsr_merge_squares(const tsr_nf4_merge_args *a, const float (*sum)[4], const int upper,
                  const uint32_t pairs[2], tsr_merge_levels levels, tsr_merge_scales scales)
{
    float squares = 0;
    tsr_e4m3_table table = tsr_e4m3_quad_table(levels.of, scales.absmax, scales.inverse);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint2 two = tsr_e4m3_look_up8(&table, pairs[i]); /* groups i and 2 + i; 4 + i and 6 + i */
        tsr_merge_square(a, sum[i] + 2 * upper, two.x, scales.e4m3, &squares);
        tsr_merge_square(a, sum[2 + i] + 2 * upper, two.x >> 16, scales.e4m3, &squares);
        tsr_merge_square(a, sum[4 + i] + 2 * upper, two.y, scales.e4m3, &squares);
        tsr_merge_square(a, sum[6 + i] + 2 * upper, two.y >> 16, scales.e4m3, &squares);
    }
    return squares;
}

/* The strip of a row: `sum` is c[] of mma.m16n8 for its eight groups of 8 columns, of which `upper`
 * chooses the pair for this row. With norms, the sum of the lane's squares. All lanes call. */
static __device__ __forceinline__ float tsr_merge_write(const tsr_nf4_merge_args *a, int64_t rows,
                                                        int64_t row, int64_t column,
                                                        const float (*sum)[4], const int upper,
                                                        uint2 codes, tsr_merge_levels levels,
                                                        tsr_merge_scales scales, const int kind)
{
    float squares = 0, level = levels.of[0], scale = scales.absmax;
    /* Byte j / 2 of word j % 2 has the lane's two codes of group j; the first is the high nibble. */
    const uint32_t pairs[2] = {tsr_quad_bytes(codes.x), tsr_quad_bytes(codes.y)};
    if (kind == TSR_MERGE_ALONE)
        return tsr_merge_squares(a, sum, upper, pairs, levels, scales);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t word[4];
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const float *s = sum[4 * half + m] + 2 * upper;
            uint32_t pair = pairs[m % 2] >> (8 * (2 * half + m / 2));
            float first = __fmul_rn(__shfl_sync(0xffffffffu, level, (int)(pair >> 4)), scale);
            float second = __fmul_rn(__shfl_sync(0xffffffffu, level, (int)pair), scale);
            word[m] = tsr_merge_pair(a, s, first, second, kind, &squares);
        }
        tsr_quad_words(word);
        int64_t at = row * a->weight.columns + column + 32 * half + threadIdx.x % 4 * TSR_VECTOR;
        if (row < rows && column < a->weight.columns)
            *(uint4 *)((uint16_t *)a->weight.out + at) =
                make_uint4(word[0], word[1], word[2], word[3]);
    }
    return squares;
}

#endif
