/*
 * kernels/column_sum.cuh: work over [tokens, columns] with vectors along the columns, and sums over
 * the tokens.
 *
 * Tiles    A block of 8 warps has one strip of columns (eight of them a lane) and one chunk of
 *          tokens; warp w takes tokens w, w + 8, ... of it. What belongs to the columns (g, bias, the
 *          sums) stays in registers for the whole chunk.
 * Sums     The tokens are cut into at most TSR_CUDA_PARTIAL_ROWS chunks, by their count alone. A
 *          thread adds its products in fp32, the block adds its 8 warps and writes a row of
 *          `partials`; tsr_column_sums_finish adds the rows in fp64, rounds, and divides by n. So every
 *          run gives the same bits, and each input is read once.
 * Cost     8 TSR_CUDA_PARTIAL_ROWS bytes per summed column (2 % of what 8192 tokens read in bf16),
 *          mostly in L2, and one launch.
 */
#ifndef TSR_KERNELS_COLUMN_SUM_CUH
#define TSR_KERNELS_COLUMN_SUM_CUH

#include "kernels/vectors.cuh"

#define TSR_TILE_WARPS   8
#define TSR_TILE_THREADS (TSR_TILE_WARPS * TSR_WARP)
#define TSR_TILE_COLUMNS (TSR_WARP * TSR_VECTOR)
#define TSR_TILE_TOKENS  32 /* of a chunk without sums: enough to pay for the columns' vectors */

typedef struct {
    int64_t tokens;
    int64_t chunk;  /* tokens of a block: a multiple of the warps */
    int64_t chunks; /* rows of partials */
    int64_t strips;
    bool whole; /* all rows can be read in vectors */
} tsr_tiling;

static inline tsr_tiling tsr_tiling_make(int64_t tokens, int64_t strips, bool sums, bool whole)
{
    tsr_tiling tiling = {};
    int64_t chunk = TSR_TILE_TOKENS;
    if (sums) {
        chunk = (tokens + TSR_CUDA_PARTIAL_ROWS - 1) / TSR_CUDA_PARTIAL_ROWS;
        chunk = (chunk + TSR_TILE_WARPS - 1) / TSR_TILE_WARPS * TSR_TILE_WARPS;
    }
    tiling.tokens = tokens;
    tiling.chunk = chunk;
    tiling.chunks = tokens ? (tokens + chunk - 1) / chunk : 0;
    tiling.strips = strips;
    tiling.whole = whole;
    return tiling;
}

static inline unsigned tsr_tiling_blocks(const tsr_tiling *tiling)
{
    return (unsigned)(tiling->strips * tiling->chunks);
}

/* TSR_KERNELS_OF and TSR_LAUNCH_OF of tiles. */
#define TSR_TILE_KERNELS(name, body, args_type, blocks)                                            \
    TSR_KERNELS_OF(name, body, args_type, tsr_tiling, TSR_TILE_THREADS, blocks)
#define TSR_TILE_LAUNCH(name, args, tiling, stream)                                                \
    TSR_LAUNCH_OF(name, (tiling).whole, (args)->dtype, tsr_tiling_blocks(&(tiling)),               \
                  TSR_TILE_THREADS, stream, *(args), tiling)

/* Where a thread works. */
typedef struct {
    int64_t strip, chunk;
    int64_t token, end; /* token, token + TSR_TILE_WARPS, ... below end */
} tsr_place;

static __device__ __forceinline__ tsr_place tsr_place_of(const tsr_tiling *tiling)
{
    tsr_place place;
    unsigned strips = (unsigned)tiling->strips;
    place.strip = blockIdx.x % strips;
    place.chunk = blockIdx.x / strips;
    int64_t first = place.chunk * tiling->chunk;
    place.token = first + threadIdx.x / TSR_WARP;
    place.end = min(tiling->tokens, first + tiling->chunk);
    return place;
}

/* The first of this lane's eight columns, where a strip is TSR_TILE_COLUMNS wide. */
static __device__ __forceinline__ int64_t tsr_place_column(const tsr_place *place)
{
    return place->strip * TSR_TILE_COLUMNS + threadIdx.x % TSR_WARP * TSR_VECTOR;
}

/* How many of the eight columns from `column` on there are. */
static __device__ __forceinline__ int tsr_column_count(int64_t column, int64_t columns)
{
    return (int)max((int64_t)0, min((int64_t)TSR_VECTOR, columns - column));
}

static inline int64_t tsr_tile_strips(int64_t columns)
{
    return (columns + TSR_TILE_COLUMNS - 1) / TSR_TILE_COLUMNS;
}

static __device__ __forceinline__ void tsr_zero8(float *values)
{
#pragma unroll
    for (int j = 0; j < TSR_VECTOR; j++)
        values[j] = 0;
}

/* Adds the warps' sums, in their order. Thread i gets that of element i % 8 of lane i / 8. All
 * threads call; begins with a barrier, so that it may be called again at once. */
static __device__ __forceinline__ float tsr_column_total(const float *sums)
{
    __shared__ float4 shared[TSR_TILE_WARPS][TSR_TILE_COLUMNS / 4];
    int warp = threadIdx.x / TSR_WARP, lane = threadIdx.x % TSR_WARP;
    __syncthreads();
    shared[warp][2 * lane] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    shared[warp][2 * lane + 1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int w = 0; w < TSR_TILE_WARPS; w++)
        total += ((const float *)shared[w])[threadIdx.x];
    return total;
}

/* The same for a strip of TSR_TILE_COLUMNS, into the chunk's row of partials: `columns` of them from
 * `row` on, of which this op has `width`. */
static __device__ __forceinline__ void tsr_column_partial(float *row, const float *sums,
                                                          const tsr_place *place, int64_t width)
{
    float total = tsr_column_total(sums);
    int64_t column = place->strip * TSR_TILE_COLUMNS + threadIdx.x;
    if (column < width)
        row[column] = total;
}

/* ---- the second step ---- */

#define TSR_SUM_PARTS 3

/* One dm: columns [first, first + width) of the partials; dm NULL: nothing. */
typedef struct {
    float *dm;
    const float *n;
    int64_t first, width;
} tsr_sum_part;

typedef struct {
    tsr_sum_part part[TSR_SUM_PARTS];
    const float *partials; /* [rows, columns] */
    int64_t rows, columns;
} tsr_column_sums;

/* Adds a dm of `width` columns behind those there are; returns its first column. */
static inline int64_t tsr_column_sums_add(tsr_column_sums *sums, int index, float *dm,
                                          const float *n, int64_t width)
{
    tsr_sum_part part = {dm, n, sums->columns, width};
    sums->part[index] = part;
    sums->columns += width;
    return part.first;
}

static inline bool tsr_column_sums_wanted(const tsr_column_sums *sums)
{
    return sums->part[0].dm || sums->part[1].dm || sums->part[2].dm;
}

/* After the kernel that wrote `rows` rows of partials; 0 rows give sums of zero. */
tsr_status tsr_column_sums_finish(tsr_column_sums *sums, const float *partials, int64_t rows,
                                  tsr_stream *stream);

static inline tsr_status tsr_column_sums_check(const tsr_column_sums *sums, const float *partials,
                                               const char *op)
{
    if (!tsr_column_sums_wanted(sums) || partials)
        return TSR_OK;
    return tsr_fail(TSR_EINVAL, "%s: dm needs partials", op);
}

#endif
