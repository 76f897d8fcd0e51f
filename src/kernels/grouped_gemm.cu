/*
 * grouped_gemm.cu: contract grouped_gemm.h; reference grouped_gemm_ref.c. Which way is taken; and the kernel
 * of any dtype and shape.
 *
 * Split    A block has a tile of 64 rows of an expert and 64 columns, a thread 4 x 4 of it. 16 summands at a
 *          time pass through shared memory, in fp32. There are blocks for any counts; those without a tile
 *          end at once.
 */
#include "kernels/grouped_gemm.cuh"
#include "kernels/kernels_cuda.h"

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
} plain_operands;

static __device__ __forceinline__ plain_operands operands_of(const tsr_grouped_gemm_args *a,
                                                             const tsr_expert_tile *tile, bool low)
{
    plain_operands p = {a->x, a->w, a->rows.slot};
    p.inner = a->backward ? a->out : a->in, p.outer = a->backward ? a->in : a->out;
    p.matrix = (int64_t)tile->expert * a->out * a->in;
    if (low) {
        p.x = a->low, p.w = a->factor, p.slot = NULL;
        p.inner = a->r;
        p.matrix = (a->first + tile->expert) * p.outer * a->r;
    }
    return p;
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
        chunk->x[i % CHUNK][i / CHUNK] = there ? tsr_load(p->x, from * p->inner + k, a->dtype) : 0;
        /* Neighbours in memory are neighbours among the threads. */
        int at = a->backward ? i % TILE : i / CHUNK, step = a->backward ? i / TILE : i % CHUNK;
        int64_t column = tile->column + at;
        k = first + step;
        there = column < p->outer && k < p->inner;
        int64_t place = p->matrix + (a->backward ? k * p->outer + column : column * p->inner + k);
        chunk->w[step][at] = there ? tsr_load(p->w, place, a->dtype) : 0;
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
                                                    const tsr_expert_tile *tile, bool low)
{
    const plain_operands p = operands_of(a, tile, low);
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

static __global__ void __launch_bounds__(THREADS)
    multiply(const __grid_constant__ tsr_grouped_gemm_args a)
{
    tsr_kernel_begin();
    __shared__ tsr_expert_starts starts;
    __shared__ plain_chunk chunk;
    int64_t outer = a.backward ? a.in : a.out;
    int across = (int)((outer + TILE - 1) / TILE);
    tsr_expert_tile tile;
    float sum[EACH][EACH] = {};
    tsr_expert_count(&starts, &a.rows, a.first, (int)a.count, TILE);
    if (!tsr_expert_tile_at(&tile, &starts, (int)a.count, TILE, across, TILE, (int)blockIdx.x))
        return;
    add_products(sum, &chunk, &a, &tile, false);
    add_products(sum, &chunk, &a, &tile, true);
    store_tile(&a, &tile, sum);
}

static tsr_status multiply_plainly(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    int64_t outer = args->backward ? args->in : args->out;
    int64_t blocks =
        tsr_expert_most_blocks(args->rows.most, args->count, TILE) * tsr_blocks(outer, TILE);
    TSR_LAUNCH(multiply, (unsigned)blocks, THREADS, stream, *args);
    return tsr_launched("grouped_gemm");
}

static bool in_vectors(const tsr_grouped_gemm_args *args)
{
    return args->dtype == TSR_BF16 && args->out % TSR_VECTOR == 0 &&
           tsr_vectors(args->in, args->z, args->x, args->w) &&
           tsr_vectors(args->r, args->low, args->factor);
}

static tsr_status multiply_stored(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    tsr_status status;
    if (in_vectors(args) && tsr_grouped_gemm_codes(stream, args, &status))
        return status;
    for (int64_t first = args->first; first < args->first + args->count; first += args->held) {
        tsr_expert_weight_args weight;
        tsr_grouped_gemm_args part = tsr_grouped_gemm_part(&weight, args, first);
        TSR_TRY(tsr_expert_weight_cuda(stream, &weight));
        TSR_TRY(tsr_grouped_gemm_cuda(stream, &part));
    }
    return TSR_OK;
}

extern "C" tsr_status tsr_grouped_gemm_cuda(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    tsr_status status;
    TSR_TRY(tsr_grouped_gemm_check(args));
    TSR_TRY(tsr_expert_limit("grouped_gemm", args->count));
    if (args->rows.most == 0 || args->count == 0)
        return TSR_OK;
    if (!args->w)
        return multiply_stored(stream, args);
    if (!in_vectors(args))
        return multiply_plainly(stream, args);
    if (tsr_grouped_gemm_wide(stream, args, &status) ||
        tsr_grouped_gemm_wgmma(stream, args, &status))
        return status;
    return tsr_grouped_gemm_mma(stream, args);
}
