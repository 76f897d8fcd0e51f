/*
 * grouped_plain.cu: grouped_gemm and grouped_fp8 of any dtype and shape; contracts grouped_gemm.h, grouped_fp8.h.
 *
 * Split    A block has a tile of 64 rows of an expert and 64 columns, a thread 4 x 4 of it. 16 summands at a
 *          time pass through shared memory, in fp32. There are blocks for any counts; those without a tile
 *          end at once.
 */
#include "kernels/fp8.h"
#include "kernels/grouped_gemm.cuh"

#define THREADS 256
#define TILE    64
#define CHUNK   16
#define EACH    4
#define SIDE    (TILE / EACH) /* threads */

typedef struct {
    float x[CHUNK][TILE + 1], w[CHUNK][TILE + 1];
} plain_chunk;

/* Whose products are summed: x and W, then low and the factor. */
typedef struct {
    const void *x, *w;
    const int32_t *slot;
    int64_t matrix; /* the expert's first element in w */
    int64_t inner, outer;
    bool turned; /* w is [inner, outer] */
    bool codes;  /* in e4m3 */
} plain_operands;

static __device__ __forceinline__ plain_operands operands_of(const tsr_grouped_gemm_args *a,
                                                             const tsr_expert_tile *tile, bool low,
                                                             bool codes)
{
    plain_operands p = {a->x, a->w, a->rows.slot};
    p.inner = a->backward ? a->out : a->in, p.outer = a->backward ? a->in : a->out;
    p.matrix = (int64_t)tile->expert * a->out * a->in;
    p.codes = codes && !low, p.turned = a->backward && !p.codes;
    if (low) {
        p.x = a->low, p.w = a->factor, p.slot = NULL;
        p.inner = a->r;
        p.matrix = (a->first + tile->expert) * p.outer * a->r;
    }
    return p;
}

static __device__ __forceinline__ float load_one(const plain_operands *p, const void *from,
                                                 int64_t i, tsr_dtype dtype)
{
    return p->codes ? tsr_e4m3_to_f32(((const uint8_t *)from)[i]) : tsr_load(from, i, dtype);
}

/* Summands from `first` on; zeros for what does not exist. */
static __device__ __forceinline__ void load_chunk(plain_chunk *chunk,
                                                  const tsr_grouped_gemm_args *a,
                                                  const plain_operands *p,
                                                  const tsr_expert_tile *tile, int64_t first)
{
    for (int i = (int)threadIdx.x; i < TILE * CHUNK; i += THREADS) {
        int row = tile->row + i / CHUNK;
        int64_t k = first + i % CHUNK;
        bool there = row < tile->row_end && k < p->inner;
        int64_t from = there && p->slot ? p->slot[row] / (int32_t)a->rows.k : row;
        chunk->x[i % CHUNK][i / CHUNK] =
            there ? load_one(p, p->x, from * p->inner + k, a->dtype) : 0;
        /* Neighbours in memory are neighbours among the threads. */
        int at = p->turned ? i % TILE : i / CHUNK, step = p->turned ? i / TILE : i % CHUNK;
        int64_t column = tile->column + at;
        k = first + step;
        there = column < p->outer && k < p->inner;
        int64_t place = p->matrix + (p->turned ? k * p->outer + column : column * p->inner + k);
        chunk->w[step][at] = there ? load_one(p, p->w, place, a->dtype) : 0;
    }
}

static __device__ __forceinline__ void
store_tile(const tsr_grouped_gemm_args *a, const tsr_expert_tile *tile, const float sum[EACH][EACH])
{
    int64_t outer = a->backward ? a->in : a->out;
    int64_t bias = (a->first + tile->expert) * a->out;
    int first = tile->row + threadIdx.x / SIDE, left = tile->column + threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int64_t row = first + i * SIDE, column = left + j * SIDE;
            if (row >= tile->row_end || column >= outer)
                continue;
            float value = sum[i][j];
            if (a->bias.data)
                value += tsr_load(a->bias.data, bias + column, a->bias.dtype);
            tsr_store(a->z, row * outer + column, value, a->dtype);
        }
}

static __device__ __forceinline__ void add_products(float sum[EACH][EACH], plain_chunk *chunk,
                                                    const tsr_grouped_gemm_args *a,
                                                    const tsr_expert_tile *tile, bool low,
                                                    bool codes)
{
    const plain_operands p = operands_of(a, tile, low, codes);
    for (int64_t first = 0; first < p.inner; first += CHUNK) {
        __syncthreads();
        load_chunk(chunk, a, &p, tile, first);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < CHUNK; k++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(chunk->x[k][threadIdx.x / SIDE + i * SIDE],
                                     chunk->w[k][threadIdx.x % SIDE + j * SIDE], sum[i][j]);
    }
}

/* What e4m3 was multiplied without. */
static __device__ __forceinline__ void
scale_sums(float sum[EACH][EACH], const tsr_grouped_fp8_args *f, const tsr_expert_tile *tile)
{
    const tsr_expert_rows *rows = &f->gemm.rows;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = tile->row + threadIdx.x / SIDE + i * SIDE;
        if (row >= tile->row_end)
            continue;
        float scale = f->x_scale[rows->slot ? rows->slot[row] / (int32_t)rows->k : row] *
                      f->w_scale[tile->expert];
#pragma unroll
        for (int j = 0; j < EACH; j++)
            sum[i][j] *= scale;
    }
}

static __global__ void __launch_bounds__(THREADS)
    multiply(const __grid_constant__ tsr_grouped_fp8_args f)
{
    tsr_kernel_begin();
    __shared__ tsr_expert_starts starts;
    __shared__ plain_chunk chunk;
    const tsr_grouped_gemm_args *a = &f.gemm;
    int64_t outer = a->backward ? a->in : a->out;
    int across = (int)((outer + TILE - 1) / TILE);
    bool codes = f.x_scale != NULL;
    tsr_expert_tile tile;
    float sum[EACH][EACH] = {};
    tsr_expert_count(&starts, &a->rows, a->first, (int)a->count, TILE);
    if (!tsr_expert_tile_at(&tile, &starts, (int)a->count, TILE, across, TILE, (int)blockIdx.x))
        return;
    add_products(sum, &chunk, a, &tile, false, codes);
    if (codes)
        scale_sums(sum, &f, &tile);
    add_products(sum, &chunk, a, &tile, true, codes);
    store_tile(a, &tile, sum);
}

tsr_status tsr_grouped_plain(tsr_stream *stream, const tsr_grouped_fp8_args *args)
{
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    int64_t outer = gemm->backward ? gemm->in : gemm->out;
    int64_t blocks =
        tsr_expert_most_blocks(gemm->rows.most, gemm->count, TILE) * tsr_blocks(outer, TILE);
    TSR_LAUNCH(multiply, (unsigned)blocks, THREADS, stream, *args);
    return tsr_launched("grouped_gemm");
}
