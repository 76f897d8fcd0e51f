/*
 * kernels/fp8_decode.cuh: the bodies of fp8_decode's kernels, which expert_fp8's share: NF4 to e4m3 of one matrix.
 *
 * Lookups  A block of 64 has 16 values, so 16 codes, which its elements look up (fp8_table.cuh).
 * As it    A warp has 4096 elements of a row, 16 to a lane and turn: 8 bytes of codes, one 16-byte store. It
 * lies     looks through the absmax of all of the row for the row's scale, if it has none: 1/64 of the elements.
 * Trans-   A block has 128 x 128 elements, a thread 4 rows of 32 columns: 16 bytes of codes of each. It
 * posed    transposes 4 x 4 bytes in registers; shared memory has the tile by columns, 128 bytes each, whose
 *          words are permuted so that neither writing words nor reading 16 bytes meets a bank twice, and
 *          whole lines go out. The rows' scales come from a kernel before it.
 *
 * Both need rows of whole blocks, codes and out on 16 bytes; transposed also rows and `leading` in multiples of 16.
 */
#ifndef TSR_KERNELS_FP8_DECODE_CUH
#define TSR_KERNELS_FP8_DECODE_CUH

#include "kernels/fp8_table.cuh"
#include "kernels/nf4_scale.cuh"

#define TSR_FP8_TURNS       8
#define TSR_FP8_LANE_CODES  16 /* elements of a lane in a turn */
#define TSR_FP8_WARP_CODES  (TSR_FP8_TURNS * TSR_WARP * TSR_FP8_LANE_CODES)
#define TSR_FP8_WARP_BLOCKS (TSR_FP8_WARP_CODES / TSR_NF4_BLOCK)
#define TSR_FP8_LANE_BLOCKS (TSR_FP8_WARP_BLOCKS / TSR_WARP) /* whose scale a lane has */
#define TSR_FP8_TILE        128 /* rows and columns of a transposed block */
#define TSR_FP8_TILE_WARPS  4   /* of 32 rows */
#define TSR_FP8_LANE_ROWS   4
#define TSR_FP8_LANE_COLUMN 32 /* columns of a lane */
#define TSR_FP8_TILE_WORDS  (TSR_FP8_TILE / 4)

/* A scale from the largest absmax of each lane. */
static __device__ __forceinline__ float tsr_fp8_warp_scale(const float *levels, int lane,
                                                           uint32_t lane_most)
{
    uint32_t most = tsr_warp_max(lane_most);
    uint32_t level = tsr_warp_max(tsr_magnitude(levels[lane % 16]));
    return tsr_e4m3_scale(__fmul_rn(__uint_as_float(most), __uint_as_float(level)));
}

/* Of a row that is so many whole blocks. */
static __device__ __forceinline__ float tsr_fp8_row_scale(const tsr_nf4_dequant_args *w,
                                                          int64_t row, int blocks, int lane)
{
    uint32_t most = 0;
#pragma unroll 4
    for (int block = lane; block < blocks; block += TSR_WARP)
        most = max(most, tsr_magnitude(tsr_nf4_scale(w, row * blocks + block)));
    return tsr_fp8_warp_scale(w->level, lane, most);
}

/* ---- as it lies ---- */

/* Of a row the part `chunk`, by a warp. `scaled`, a constant: the row has its scale, which is only read. */
static __device__ __forceinline__ void tsr_fp8_decode_chunk(const tsr_fp8_decode_args *a,
                                                            int64_t row, int64_t chunk, bool scaled)
{
    const tsr_nf4_dequant_args *w = &a->weight;
    int lane = threadIdx.x % TSR_WARP;
    int64_t column = chunk * TSR_FP8_WARP_CODES + lane * TSR_FP8_LANE_CODES;
    const uint2 *codes = (const uint2 *)(w->codes + (row * w->columns + column) / 2);
    uint2 word[TSR_FP8_TURNS];
#pragma unroll
    for (int turn = 0; turn < TSR_FP8_TURNS; turn++)
        word[turn] = column + turn * TSR_WARP * TSR_FP8_LANE_CODES < w->columns
                         ? __ldcs(codes + turn * TSR_WARP)
                         : make_uint2(0, 0);
    int blocks = (int)(w->columns / TSR_NF4_BLOCK), own = (int)chunk * TSR_FP8_WARP_BLOCKS + lane;
    float level[4], absmax[TSR_FP8_LANE_BLOCKS];
#pragma unroll
    for (int i = 0; i < TSR_FP8_LANE_BLOCKS; i++)
        absmax[i] =
            own + i * TSR_WARP < blocks ? tsr_nf4_scale(w, row * blocks + own + i * TSR_WARP) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        level[i] = w->level[lane % 4 * 4 + i];
    float scale = scaled ? a->scale[row] : tsr_fp8_row_scale(w, row, blocks, lane);
    float inverse = __frcp_rn(scale);
    if (!scaled && chunk == 0 && lane == 0)
        a->scale[row] = scale;
#pragma unroll
    for (int turn = 0; turn < TSR_FP8_TURNS; turn++) {
        int block = turn * (TSR_FP8_WARP_BLOCKS / TSR_FP8_TURNS) + lane / 4; /* of the warp's */
        tsr_e4m3_table table = tsr_e4m3_quad_table(
            level,
            __shfl_sync(0xffffffffu, absmax[turn / (TSR_FP8_TURNS / TSR_FP8_LANE_BLOCKS)],
                        block % TSR_WARP),
            inverse);
        uint2 low = tsr_e4m3_look_up8(&table, word[turn].x),
              high = tsr_e4m3_look_up8(&table, word[turn].y);
        int64_t at = column + turn * TSR_WARP * TSR_FP8_LANE_CODES;
        if (at < w->columns)
            *(uint4 *)((uint8_t *)w->out + row * w->columns + at) =
                make_uint4(low.x, low.y, high.x, high.y);
    }
}

/* ---- transposed ---- */

/* in[i]: four columns of row i; out[j]: four rows of column j. */
static __device__ __forceinline__ void tsr_transpose4(uint32_t *out, const uint32_t *in)
{
    uint32_t low0 = __byte_perm(in[0], in[1], 0x5140), low1 = __byte_perm(in[2], in[3], 0x5140);
    uint32_t high0 = __byte_perm(in[0], in[1], 0x7362), high1 = __byte_perm(in[2], in[3], 0x7362);
    out[0] = __byte_perm(low0, low1, 0x5410);
    out[1] = __byte_perm(low0, low1, 0x7632);
    out[2] = __byte_perm(high0, high1, 0x5410);
    out[3] = __byte_perm(high0, high1, 0x7632);
}

/* Where the tile has the four rows `word` of a column. The lanes of a warp that write at once are in four
 * groups of columns and eight groups of rows. */
static __device__ __forceinline__ int tsr_fp8_tile_word(int column, int word)
{
    return column * TSR_FP8_TILE_WORDS + (word ^ column / TSR_FP8_LANE_COLUMN * 8);
}

/* The tables of a lane's rows; two lanes share a block and make half of each. */
static __device__ __forceinline__ void tsr_fp8_tile_tables(tsr_e4m3_table *table,
                                                           const tsr_fp8_decode_args *a,
                                                           int64_t row, int64_t rows,
                                                           int64_t column, int64_t step)
{
    const tsr_nf4_dequant_args *w = &a->weight;
    int half = threadIdx.x % 2;
    float level[8], absmax[TSR_FP8_LANE_ROWS], inverse[TSR_FP8_LANE_ROWS];
#pragma unroll
    for (int i = 0; i < 8; i++)
        level[i] = w->level[half * 8 + i];
#pragma unroll
    for (int i = 0; i < TSR_FP8_LANE_ROWS; i++) {
        bool there = row + i < rows && column < w->columns;
        absmax[i] = there ? tsr_nf4_scale(w, ((row + i) * w->columns + column) / TSR_NF4_BLOCK) : 0;
        inverse[i] = there ? __frcp_rn(a->scale[(row + i) * step]) : 1;
    }
#pragma unroll
    for (int i = 0; i < TSR_FP8_LANE_ROWS; i++) {
        uint32_t own0 = tsr_e4m3_table_word(level, absmax[i], inverse[i]);
        uint32_t own1 = tsr_e4m3_table_word(level + 4, absmax[i], inverse[i]);
        uint32_t other0 = __shfl_xor_sync(0xffffffffu, own0, 1);
        uint32_t other1 = __shfl_xor_sync(0xffffffffu, own1, 1);
        table[i].word[0] = half ? other0 : own0, table[i].word[1] = half ? other1 : own1;
        table[i].word[2] = half ? own0 : other0, table[i].word[3] = half ? own1 : other1;
    }
}

/* A block's tile. Element (row, column) goes to out[column * leading + row]; the scale of a row is
 * scale[row * step]. Once in a kernel. */
static __device__ __forceinline__ void
tsr_fp8_decode_tile(const tsr_fp8_decode_args *a, int64_t rows, int64_t leading, int64_t step)
{
    __shared__ __align__(16) uint32_t tile[TSR_FP8_TILE * TSR_FP8_TILE_WORDS];
    const tsr_nf4_dequant_args *w = &a->weight;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    int64_t first_row = (int64_t)blockIdx.y * TSR_FP8_TILE,
            first_column = (int64_t)blockIdx.x * TSR_FP8_TILE;
    int row_word = warp * (TSR_WARP / TSR_FP8_LANE_ROWS) + lane / 4,
        within = lane % 4 * TSR_FP8_LANE_COLUMN;
    int64_t row = first_row + row_word * TSR_FP8_LANE_ROWS, column = first_column + within;
    uint32_t codes[TSR_FP8_LANE_ROWS][4];
#pragma unroll
    for (int i = 0; i < TSR_FP8_LANE_ROWS; i++) {
        uint4 quad = make_uint4(0, 0, 0, 0);
        if (row + i < rows && column < w->columns)
            quad = __ldcs((const uint4 *)(w->codes + ((row + i) * w->columns + column) / 2));
        codes[i][0] = quad.x, codes[i][1] = quad.y, codes[i][2] = quad.z, codes[i][3] = quad.w;
    }
    tsr_e4m3_table table[TSR_FP8_LANE_ROWS];
    tsr_fp8_tile_tables(table, a, row, rows, column, step);
#pragma unroll
    for (int v = 0; v < 4; v++) {
        uint32_t low[TSR_FP8_LANE_ROWS], high[TSR_FP8_LANE_ROWS], turned[8];
#pragma unroll
        for (int i = 0; i < TSR_FP8_LANE_ROWS; i++) {
            uint2 eight = tsr_e4m3_look_up8(&table[i], codes[i][v]);
            low[i] = eight.x, high[i] = eight.y;
        }
        tsr_transpose4(turned, low);
        tsr_transpose4(turned + 4, high);
#pragma unroll
        for (int j = 0; j < 8; j++)
            tile[tsr_fp8_tile_word(within + 8 * v + j, row_word)] = turned[j];
    }
    __syncthreads();
#pragma unroll
    for (int piece = (int)threadIdx.x; piece < TSR_FP8_TILE * TSR_FP8_TILE / 16;
         piece += TSR_FP8_TILE_WARPS * TSR_WARP) {
        int c = piece / (TSR_FP8_TILE / 16), r = piece % (TSR_FP8_TILE / 16) * 16;
        if (first_column + c < w->columns && first_row + r < rows)
            *(uint4 *)((uint8_t *)w->out + (first_column + c) * leading + first_row + r) =
                *(const uint4 *)&tile[tsr_fp8_tile_word(c, r / 4)];
    }
}

/* ---- element by element ---- */

/* Element e; the scale of a row is scale[row * step], and has been made. */
static __device__ __forceinline__ void
tsr_fp8_decode_element(const tsr_fp8_decode_args *a, int64_t e, int64_t leading, int64_t step)
{
    const tsr_nf4_dequant_args *w = &a->weight;
    int64_t row = e / w->columns, column = e % w->columns;
    uint8_t byte = w->codes[e / 2];
    float value =
        __fmul_rn(w->level[e % 2 ? byte & 15 : byte >> 4], tsr_nf4_scale(w, e / TSR_NF4_BLOCK));
    float inverse = __frcp_rn(a->scale[row * step]);
    ((uint8_t *)w->out)[a->transposed ? column * leading + row : e] =
        isnan(inverse) ? TSR_E4M3_NAN : tsr_f32_to_e4m3(__fmul_rn(value, inverse));
}

#endif
