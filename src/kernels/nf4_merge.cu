/*
 * nf4_merge.cu: contract nf4_merge.h; reference nf4_merge_ref.c. Which way is taken; and the kernel of
 * larger ranks.
 *
 * Split    A block of 8 warps has a tile of 128 rows and 128 columns; a warp has 64 x 32 of B A, in
 *          registers. Ranks go by in chunks of 32 through two buffers in shared memory, filled by
 *          asynchronous copies. Then the sums pass through the same shared memory, 64 rows at a time,
 *          so that a thread gets 8 elements side by side: a word of codes, one 16-byte store.
 *          Codes and scales are asked for first.
 * Cost     nf4_dequant's bytes, 40 KB for a tile; A and B from L2, 512 bytes a rank for a tile.
 */
#include "kernels/mma.cuh"
#include "kernels/nf4_merge.cuh"

#define THREADS 256
#define TILE    128 /* rows, and columns, of a block */
#define HALF    64  /* rows of a warp, and of a pass of the sums through shared memory */
#define ACROSS  32  /* columns of a warp */
#define CHUNK   32  /* ranks of a buffer */
#define STAGES  2
#define B_PITCH (CHUNK + 8) /* elements: rows lie 16 bytes further modulo 128, so no two collide */
#define A_PITCH (TILE + 8)
#define SUMS    (TILE + 4)
#define WORDS   (HALF * TILE / TSR_VECTOR / THREADS) /* of codes, of a thread, for one half */

typedef struct {
    __nv_bfloat16 b[TILE * B_PITCH];
    __nv_bfloat16 a[CHUNK * A_PITCH];
} merge_stage;

typedef union {
    merge_stage stage[STAGES];
    float sums[HALF * SUMS];
} merge_shared;

/* A block's place. */
typedef struct {
    const tsr_nf4_merge_args *args;
    int64_t rows, columns, row, column;
} merge_place;

static __device__ __forceinline__ merge_place place_of(const tsr_nf4_merge_args *a)
{
    merge_place p;
    p.args = a;
    p.columns = a->weight.columns;
    p.rows = a->weight.count / p.columns;
    unsigned across = (unsigned)((p.columns + TILE - 1) / TILE);
    p.row = (int64_t)(blockIdx.x / across) * TILE;
    p.column = (int64_t)(blockIdx.x % across) * TILE;
    return p;
}

/* Ranks from `first` on of both; what does not exist is zero. */
static __device__ __forceinline__ void fetch(merge_stage *stage, const merge_place *p,
                                             int64_t first)
{
    const __nv_bfloat16 *a = (const __nv_bfloat16 *)p->args->a;
    const __nv_bfloat16 *b = (const __nv_bfloat16 *)p->args->b;
    int64_t r = p->args->r;
#pragma unroll
    for (int i = 0; i < TILE * CHUNK / TSR_VECTOR / THREADS; i++) {
        int at = (int)threadIdx.x + i * THREADS;
        int row = at / (CHUNK / TSR_VECTOR), k = at % (CHUNK / TSR_VECTOR) * TSR_VECTOR;
        bool there = p->row + row < p->rows && first + k < r;
        tsr_copy16(stage->b + row * B_PITCH + k, b + (there ? (p->row + row) * r + first + k : 0),
                   there);
        int rank = at / (TILE / TSR_VECTOR), column = at % (TILE / TSR_VECTOR) * TSR_VECTOR;
        there = first + rank < r && p->column + column < p->columns;
        tsr_copy16(stage->a + rank * A_PITCH + column,
                   a + (there ? (first + rank) * p->columns + p->column + column : 0), there);
    }
    tsr_copy_commit();
}

/* c += B A of a stage, for a warp: c[i][j] is row group i of 16, column group j of 8. */
static __device__ __forceinline__ void multiply(float c[4][4][4], const merge_stage *stage, int row,
                                                int column)
{
    int lane = threadIdx.x % TSR_WARP;
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
        uint32_t b[4][4], a[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            tsr_ldmatrix(b[i], stage->b + (row + 16 * i + lane % 16) * B_PITCH + k + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < 2; j++)
            tsr_ldmatrix_t(a[j],
                           stage->a + (k + lane % 16) * A_PITCH + column + 16 * j + lane / 16 * 8);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                tsr_mma(c[i][j], b[i], a[j / 2][j % 2 * 2], a[j / 2][j % 2 * 2 + 1]);
    }
}

/* All of B A of the tile. */
static __device__ __forceinline__ void product(float c[4][4][4], merge_shared *shared,
                                               const merge_place *p, int row, int column)
{
    int64_t chunks = (p->args->r + CHUNK - 1) / CHUNK;
    fetch(&shared->stage[0], p, 0);
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        if (chunk + 1 < chunks) {
            fetch(&shared->stage[(chunk + 1) % STAGES], p, (chunk + 1) * CHUNK);
            tsr_copy_wait_but_one();
        } else {
            tsr_copy_wait();
        }
        __syncthreads();
        multiply(c, &shared->stage[chunk % STAGES], row, column);
        __syncthreads();
    }
}

static __device__ __forceinline__ void write_sums(float *sums, const float c[4][4][4], int column)
{
    int lane = threadIdx.x % TSR_WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float *at = sums + (16 * i + g) * SUMS + column + 8 * j + 2 * t;
            *(float2 *)at = make_float2(c[i][j][0], c[i][j][1]);
            *(float2 *)(at + 8 * SUMS) = make_float2(c[i][j][2], c[i][j][3]);
        }
}

static __device__ __forceinline__ bool exists(const merge_place *p, int row, int column)
{
    return p->row + row < p->rows && p->column + column < p->columns;
}

/* Eight elements: all lanes of the warp call. */
static __device__ __forceinline__ void write_word(const merge_place *p, int row, int column,
                                                  uint32_t codes, float level, float scale,
                                                  const float *sums)
{
    float value[TSR_VECTOR];
    float4 low = *(const float4 *)sums, high = *(const float4 *)(sums + 4);
    const float sum[TSR_VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++) {
        uint32_t code = codes >> (4 * (i ^ 1)); /* a byte's first element is its high nibble */
        float w = __fmul_rn(__shfl_sync(0xffffffffu, level, (int)code), scale);
        value[i] = fmaf(p->args->scale, sum[i], w);
    }
    if (exists(p, row, column))
        tsr_store8(p->args->weight.out, (p->row + row) * p->columns + p->column + column, value,
                   TSR_BF16);
}

static __global__ void __launch_bounds__(THREADS, 2)
    merge(const __grid_constant__ tsr_nf4_merge_args args)
{
    tsr_kernel_begin();
    __shared__ __align__(16) merge_shared shared;
    __shared__ float scales[TILE][TILE / TSR_NF4_BLOCK];
    merge_place p = place_of(&args);
    const tsr_nf4_dequant_args *w = &args.weight;
    int thread = (int)threadIdx.x, warp = thread / TSR_WARP;
    int half = warp / 4, across = warp % 4 * ACROSS;
    uint32_t codes[2][WORDS];
    float c[4][4][4] = {};
    float level = w->level[thread % 16];
#pragma unroll
    for (int i = 0; i < 2 * WORDS; i++) {
        int at = thread + i * THREADS;
        int row = at / (TILE / TSR_VECTOR), column = at % (TILE / TSR_VECTOR) * TSR_VECTOR;
        int64_t element = (p.row + row) * p.columns + p.column + column;
        codes[i / WORDS][i % WORDS] =
            exists(&p, row, column) ? __ldcs((const uint32_t *)(w->codes + element / 2)) : 0;
    }
    int row = thread / 2, column = thread % 2 * TSR_NF4_BLOCK;
    scales[row][thread % 2] =
        exists(&p, row, column)
            ? tsr_nf4_scale(w, ((p.row + row) * p.columns + p.column + column) / TSR_NF4_BLOCK)
            : 0;
    product(c, &shared, &p, half * HALF, across);
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
        if (half == pass)
            write_sums(shared.sums, c, across);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            int at = thread + i * THREADS;
            row = at / (TILE / TSR_VECTOR), column = at % (TILE / TSR_VECTOR) * TSR_VECTOR;
            write_word(&p, pass * HALF + row, column, codes[pass][i], level,
                       scales[pass * HALF + row][column / TSR_NF4_BLOCK],
                       shared.sums + row * SUMS + column);
        }
        __syncthreads();
    }
}

static bool fits(const tsr_nf4_merge_args *args)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    return tsr_nf4_merge_fused(w->dtype, w->columns, args->r) && (uintptr_t)w->codes % 4 == 0 &&
           (uintptr_t)w->out % 16 == 0 && (uintptr_t)args->a % 16 == 0 &&
           (uintptr_t)args->b % 16 == 0;
}

extern "C" tsr_status tsr_nf4_merge_cuda(tsr_stream *stream, const tsr_nf4_merge_args *args)
{
    TSR_TRY(tsr_nf4_merge_check(args));
    const tsr_nf4_dequant_args *w = &args->weight;
    if (w->count == 0)
        return TSR_OK;
    if (!fits(args)) {
        tsr_gemm_args product = tsr_nf4_merge_product(args);
        TSR_TRY(tsr_nf4_dequant_cuda(stream, w));
        return tsr_gemm_cuda(stream, &product);
    }
    unsigned blocks =
        (unsigned)(tsr_blocks(w->columns, TILE) * tsr_blocks(w->count / w->columns, TILE));
    if (args->r <= TSR_NF4_MERGE_LOW)
        tsr_nf4_merge_low(stream, args);
    else
        TSR_LAUNCH(merge, blocks, THREADS, stream, *args);
    return tsr_launched("nf4_merge");
}
