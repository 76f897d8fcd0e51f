/*
 * fp8_decode.cu: contract fp8_decode.h; reference fp8_decode_ref.c, the same bytes.
 *
 * Lookups  A block of 64 has 16 values, so 16 codes, which its elements look up (fp8_table.cuh).
 * As it    A warp has 4096 elements of a row, 16 to a lane and turn: 8 bytes of codes, one 16-byte store. It
 * lies     looks through the absmax of all of the row for the row's scale: 1/64 of the elements.
 * Trans-   A block has 128 x 128 elements, a thread 4 rows of 32 columns: 16 bytes of codes of each. It
 * posed    transposes 4 x 4 bytes in registers; shared memory has the tile by columns, 128 bytes each, whose
 *          words are permuted so that neither writing words nor reading 16 bytes meets a bank twice, and
 *          whole lines go out. The rows' scales come from a kernel before it.
 * Cost     1/2 + 1/64 bytes read and 1 written an element; bandwidth bound.
 *
 * Rows that blocks of 64 cross, and pointers off their vectors: element by element.
 */
#include "kernels/fp8_table.cuh"
#include "kernels/nf4_scale.cuh"

#define THREADS     256
#define TURNS       8
#define LANE_CODES  16 /* elements of a lane in a turn */
#define WARP_CODES  (TURNS * TSR_WARP * LANE_CODES)
#define WARP_BLOCKS (WARP_CODES / TSR_NF4_BLOCK)
#define LANE_BLOCKS (WARP_BLOCKS / TSR_WARP) /* whose scale a lane has */
#define TILE        128                      /* rows and columns of a transposed block */
#define TILE_WARPS  4                        /* of 32 rows */
#define LANE_ROWS   4
#define LANE_COLUMN 32 /* columns of a lane */
#define TILE_WORDS  (TILE / 4)

/* The scale of a row from its lanes' largest absmax. */
static __device__ __forceinline__ float row_scale(const tsr_nf4_dequant_args *w, int lane,
                                                  uint32_t lane_most)
{
    uint32_t most = tsr_warp_max(lane_most);
    uint32_t level = tsr_warp_max(tsr_magnitude(w->level[lane % 16]));
    return tsr_e4m3_scale(__fmul_rn(__uint_as_float(most), __uint_as_float(level)));
}

/* ---- as it lies ---- */

/* `chunks` warps a row. */
static __global__ void __launch_bounds__(THREADS)
    decode_rows(const __grid_constant__ tsr_fp8_decode_args a, int64_t warps, uint32_t chunks)
{
    tsr_kernel_begin();
    const tsr_nf4_dequant_args *w = &a.weight;
    int lane = threadIdx.x % TSR_WARP;
    int64_t warp = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    if (warp >= warps)
        return;
    int64_t row = (uint32_t)warp / chunks, chunk = (uint32_t)warp % chunks;
    int64_t column = chunk * WARP_CODES + lane * LANE_CODES;
    const uint2 *codes = (const uint2 *)(w->codes + (row * w->columns + column) / 2);
    uint2 word[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        word[turn] = column + turn * TSR_WARP * LANE_CODES < w->columns
                         ? __ldcs(codes + turn * TSR_WARP)
                         : make_uint2(0, 0);
    int blocks = (int)(w->columns / TSR_NF4_BLOCK), own = (int)chunk * WARP_BLOCKS + lane;
    float level[4], absmax[LANE_BLOCKS];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < LANE_BLOCKS; i++)
        absmax[i] =
            own + i * TSR_WARP < blocks ? tsr_nf4_scale(w, row * blocks + own + i * TSR_WARP) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        level[i] = w->level[lane % 4 * 4 + i];
#pragma unroll 4
    for (int block = lane; block < blocks; block += TSR_WARP)
        most = max(most, tsr_magnitude(tsr_nf4_scale(w, row * blocks + block)));
    float scale = row_scale(w, lane, most), inverse = __frcp_rn(scale);
    if (chunk == 0 && lane == 0)
        a.scale[row] = scale;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int block = turn * (WARP_BLOCKS / TURNS) + lane / 4; /* of the warp's */
        tsr_e4m3_table table = tsr_e4m3_quad_table(
            level, __shfl_sync(0xffffffffu, absmax[turn / (TURNS / LANE_BLOCKS)], block % TSR_WARP),
            inverse);
        uint2 low = tsr_e4m3_look_up8(&table, word[turn].x),
              high = tsr_e4m3_look_up8(&table, word[turn].y);
        int64_t at = column + turn * TSR_WARP * LANE_CODES;
        if (at < w->columns)
            *(uint4 *)((uint8_t *)w->out + row * w->columns + at) =
                make_uint4(low.x, low.y, high.x, high.y);
    }
}

/* ---- transposed ---- */

/* A warp a row; also of rows that blocks cross. */
static __global__ void __launch_bounds__(THREADS)
    scale_rows(const __grid_constant__ tsr_fp8_decode_args a, int64_t rows)
{
    tsr_kernel_begin();
    const tsr_nf4_dequant_args *w = &a.weight;
    int lane = threadIdx.x % TSR_WARP;
    int64_t row = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    if (row >= rows)
        return;
    int64_t first = row * w->columns / TSR_NF4_BLOCK;
    int64_t last = ((row + 1) * w->columns - 1) / TSR_NF4_BLOCK;
    uint32_t most = 0;
#pragma unroll 4
    for (int64_t block = first + lane; block <= last; block += TSR_WARP)
        most = max(most, tsr_magnitude(tsr_nf4_scale(w, block)));
    float scale = row_scale(w, lane, most);
    if (lane == 0)
        a.scale[row] = scale;
}

/* in[i]: four columns of row i; out[j]: four rows of column j. */
static __device__ __forceinline__ void transpose4(uint32_t *out, const uint32_t *in)
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
static __device__ __forceinline__ int tile_word(int column, int word)
{
    return column * TILE_WORDS + (word ^ column / LANE_COLUMN * 8);
}

/* The tables of a lane's rows; two lanes share a block and make half of each. */
static __device__ __forceinline__ void make_tables(tsr_e4m3_table *table,
                                                   const tsr_fp8_decode_args *a, int64_t row,
                                                   int64_t rows, int64_t column)
{
    const tsr_nf4_dequant_args *w = &a->weight;
    int half = threadIdx.x % 2;
    float level[8], absmax[LANE_ROWS], inverse[LANE_ROWS];
#pragma unroll
    for (int i = 0; i < 8; i++)
        level[i] = w->level[half * 8 + i];
#pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
        bool there = row + i < rows && column < w->columns;
        absmax[i] = there ? tsr_nf4_scale(w, ((row + i) * w->columns + column) / TSR_NF4_BLOCK) : 0;
        inverse[i] = there ? __frcp_rn(a->scale[row + i]) : 1;
    }
#pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
        uint32_t own0 = tsr_e4m3_table_word(level, absmax[i], inverse[i]);
        uint32_t own1 = tsr_e4m3_table_word(level + 4, absmax[i], inverse[i]);
        uint32_t other0 = __shfl_xor_sync(0xffffffffu, own0, 1);
        uint32_t other1 = __shfl_xor_sync(0xffffffffu, own1, 1);
        table[i].word[0] = half ? other0 : own0, table[i].word[1] = half ? other1 : own1;
        table[i].word[2] = half ? own0 : other0, table[i].word[3] = half ? own1 : other1;
    }
}

static __global__ void __launch_bounds__(TILE_WARPS *TSR_WARP)
    decode_columns(const __grid_constant__ tsr_fp8_decode_args a, int64_t rows)
{
    tsr_kernel_begin();
    __shared__ __align__(16) uint32_t tile[TILE * TILE_WORDS];
    const tsr_nf4_dequant_args *w = &a.weight;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    int64_t first_row = (int64_t)blockIdx.y * TILE, first_column = (int64_t)blockIdx.x * TILE;
    int row_word = warp * (TSR_WARP / LANE_ROWS) + lane / 4, within = lane % 4 * LANE_COLUMN;
    int64_t row = first_row + row_word * LANE_ROWS, column = first_column + within;
    uint32_t codes[LANE_ROWS][4];
#pragma unroll
    for (int i = 0; i < LANE_ROWS; i++) {
        uint4 quad = make_uint4(0, 0, 0, 0);
        if (row + i < rows && column < w->columns)
            quad = __ldcs((const uint4 *)(w->codes + ((row + i) * w->columns + column) / 2));
        codes[i][0] = quad.x, codes[i][1] = quad.y, codes[i][2] = quad.z, codes[i][3] = quad.w;
    }
    tsr_e4m3_table table[LANE_ROWS];
    make_tables(table, &a, row, rows, column);
#pragma unroll
    for (int v = 0; v < 4; v++) {
        uint32_t low[LANE_ROWS], high[LANE_ROWS], turned[8];
#pragma unroll
        for (int i = 0; i < LANE_ROWS; i++) {
            uint2 eight = tsr_e4m3_look_up8(&table[i], codes[i][v]);
            low[i] = eight.x, high[i] = eight.y;
        }
        transpose4(turned, low);
        transpose4(turned + 4, high);
#pragma unroll
        for (int j = 0; j < 8; j++)
            tile[tile_word(within + 8 * v + j, row_word)] = turned[j];
    }
    __syncthreads();
#pragma unroll
    for (int piece = (int)threadIdx.x; piece < TILE * TILE / 16; piece += TILE_WARPS * TSR_WARP) {
        int c = piece / (TILE / 16), r = piece % (TILE / 16) * 16;
        if (first_column + c < w->columns && first_row + r < rows)
            *(uint4 *)((uint8_t *)w->out + (first_column + c) * rows + first_row + r) =
                *(const uint4 *)&tile[tile_word(c, r / 4)];
    }
}

/* ---- element by element, after scale_rows ---- */

static __global__ void __launch_bounds__(THREADS)
    decode_each(const __grid_constant__ tsr_fp8_decode_args a, int64_t rows)
{
    tsr_kernel_begin();
    const tsr_nf4_dequant_args *w = &a.weight;
    int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e >= w->count)
        return;
    int64_t row = e / w->columns, column = e % w->columns;
    uint8_t byte = w->codes[e / 2];
    float value =
        __fmul_rn(w->level[e % 2 ? byte & 15 : byte >> 4], tsr_nf4_scale(w, e / TSR_NF4_BLOCK));
    float inverse = __frcp_rn(a.scale[row]);
    ((uint8_t *)w->out)[a.transposed ? column * rows + row : e] =
        isnan(inverse) ? TSR_E4M3_NAN : tsr_f32_to_e4m3(__fmul_rn(value, inverse));
}

/* Whether rows begin with blocks and vectors, and fit 32-bit places of warps. */
static bool whole_blocks(const tsr_fp8_decode_args *args, int64_t rows, int64_t chunks)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    return w->columns % TSR_NF4_BLOCK == 0 && (uintptr_t)w->codes % 16 == 0 &&
           (uintptr_t)w->out % 16 == 0 && rows * chunks <= INT32_MAX &&
           (!args->transposed || (rows % 16 == 0 && rows / TILE < 65535));
}

extern "C" tsr_status tsr_fp8_decode_cuda(tsr_stream *stream, const tsr_fp8_decode_args *args)
{
    TSR_TRY(tsr_fp8_decode_check(args));
    int64_t columns = args->weight.columns, rows = args->weight.count / columns;
    int64_t chunks = (columns + WARP_CODES - 1) / WARP_CODES;
    bool fast = whole_blocks(args, rows, chunks);
    if (rows == 0)
        return TSR_OK;
    if (!args->scaled && (!fast || args->transposed || !args->weight.out))
        TSR_LAUNCH(scale_rows, tsr_blocks(rows, THREADS / TSR_WARP), THREADS, stream, *args, rows);
    if (!args->weight.out)
        return tsr_launched("fp8_decode: scales");
    if (!fast)
        TSR_LAUNCH(decode_each, tsr_blocks(args->weight.count, THREADS), THREADS, stream, *args,
                   rows);
    else if (args->transposed)
        TSR_LAUNCH(decode_columns, dim3(tsr_blocks(columns, TILE), tsr_blocks(rows, TILE)),
                   TILE_WARPS * TSR_WARP, stream, *args, rows);
    else
        TSR_LAUNCH(decode_rows, tsr_blocks(rows * chunks, THREADS / TSR_WARP), THREADS, stream,
                   *args, rows * chunks, (uint32_t)chunks);
    return tsr_launched("fp8_decode");
}
