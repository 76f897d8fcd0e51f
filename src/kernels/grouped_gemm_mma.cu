/*
 * grouped_gemm_mma.cu: grouped_gemm in bf16 on any card.
 *
 * Split    A block of 8 warps has a tile of 128 rows of an expert and 128 columns, a warp 64 x 32 of it. Chunks
 *          of 32 summands of both operands go through a ring of three buffers, filled by asynchronous copies
 *          that gather rows as they go, with one barrier a chunk. There are blocks for any counts; those without
 *          a tile end at once.
 * Sums     16 summands after the other from the first on, those of an adapter last, by the lengths alone.
 * Cost     A tile takes 16 KB from L2 for 1.05 MFLOP.
 */
#include "kernels/grouped_gemm.cuh"

#define THREADS 256
#define TILE    128 /* rows, and columns, of a block */
#define ROWS    64  /* of a warp */
#define CHUNK   32  /* summands of a buffer */
#define STAGES  3
#define PITCH   (CHUNK + 8) /* elements: rows lie 16 bytes further modulo 128, so no two collide */
#define W_PITCH (TILE + 8)  /* of W as it lies, where its rows are summands */
#define EACH    (TILE * CHUNK / TSR_VECTOR / THREADS) /* copies of a thread */

typedef struct {
    __nv_bfloat16 x[TILE * PITCH];
    __nv_bfloat16 w[TILE * PITCH]; /* [TILE, PITCH]; backward [CHUNK, W_PITCH], which is less */
} grouped_stage;

static_assert(CHUNK * W_PITCH <= TILE * PITCH, "W fits both ways");

typedef struct {
    const tsr_grouped_gemm_args *args;
    tsr_expert_tile tile;
    int inner, outer;
    int base, chunks; /* of x and W; and those of low and the factor behind them */
    int from[EACH];   /* the rows of x that the thread copies of; -1: none */
} grouped_place;

/* A chunk of both operands, a group of copies; what does not exist is zero. */
template <bool BACKWARD>
static __device__ __forceinline__ void fetch(grouped_stage *stage, const grouped_place *p,
                                             int chunk)
{
    const tsr_grouped_gemm_args *a = p->args;
    bool low = chunk >= p->base;
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)(low ? a->low : a->x);
    const __nv_bfloat16 *w = (const __nv_bfloat16 *)(low ? a->factor : a->w);
    int inner = low ? (int)a->r : p->inner, first = (low ? chunk - p->base : chunk) * CHUNK;
    int64_t matrix = (p->tile.expert + (low ? a->first : 0)) * inner * p->outer;
    if (chunk < p->chunks)
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = (int)threadIdx.x + i * THREADS;
            int row = at / (CHUNK / TSR_VECTOR), k = at % (CHUNK / TSR_VECTOR) * TSR_VECTOR;
            int from = low ? p->tile.row + row : p->from[i];
            bool there = p->from[i] >= 0 && first + k < inner;
            tsr_copy16(stage->x + row * PITCH + k,
                       x + (there ? (int64_t)from * inner + first + k : 0), there);
            int column = BACKWARD ? at % (TILE / TSR_VECTOR) * TSR_VECTOR : row;
            k = BACKWARD ? at / (TILE / TSR_VECTOR) : k;
            there = p->tile.column + column < p->outer && first + k < inner;
            int64_t place = BACKWARD ? (int64_t)(first + k) * p->outer + p->tile.column + column
                                     : (int64_t)(p->tile.column + column) * inner + first + k;
            tsr_copy16(stage->w + (BACKWARD ? k * W_PITCH + column : column * PITCH + k),
                       w + (there ? matrix + place : 0), there);
        }
    tsr_copy_commit();
}

/* c += x w of a stage, for a warp: c[i][j] is row group i of 16, column group j of 8. */
template <bool BACKWARD>
static __device__ __forceinline__ void multiply(float c[4][4][4], const grouped_stage *stage,
                                                int row, int column)
{
    int lane = threadIdx.x % TSR_WARP, low = lane % 16, high = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
        uint32_t x[4][4], w[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            tsr_ldmatrix(x[i], stage->x + (row + 16 * i + low) * PITCH + k + high);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (BACKWARD)
                tsr_ldmatrix_t(w[i], stage->w + (k + low) * W_PITCH + column + 16 * i + high);
            else
                tsr_ldmatrix(w[i], stage->w + (column + 16 * i + lane % 8 + high) * PITCH + k +
                                       lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                tsr_mma(c[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
}

static __device__ __forceinline__ void find_rows(grouped_place *p)
{
    const tsr_expert_rows *rows = &p->args->rows;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = p->tile.row + ((int)threadIdx.x + i * THREADS) / (CHUNK / TSR_VECTOR);
        p->from[i] = row >= p->tile.row_end ? -1
                     : rows->slot           ? rows->slot[row] / (int32_t)rows->k
                                            : row;
    }
}

template <bool BACKWARD>
static __global__ void __launch_bounds__(THREADS, 2)
    grouped_blocks(const __grid_constant__ tsr_grouped_gemm_args args)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    __shared__ tsr_expert_starts starts;
    grouped_stage *stage = (grouped_stage *)memory;
    grouped_place p = {&args};
    int warp = threadIdx.x / TSR_WARP, row = warp / 4 * ROWS;
    int column = warp % 4 * TSR_GROUPED_STRIP, at = 0;
    float c[4][4][4] = {};
    p.inner = (int)(BACKWARD ? args.out : args.in);
    p.outer = (int)(BACKWARD ? args.in : args.out);
    p.base = (p.inner + CHUNK - 1) / CHUNK;
    p.chunks = p.base + ((int)args.r + CHUNK - 1) / CHUNK;
    tsr_expert_count(&starts, &args.rows, args.first, (int)args.count, TILE);
    if (!tsr_expert_tile_at(&p.tile, &starts, (int)args.count, TILE, (p.outer + TILE - 1) / TILE,
                            TILE, (int)blockIdx.x))
        return;
    find_rows(&p);
    for (int i = 0; i < STAGES - 1; i++)
        fetch<BACKWARD>(stage + i, &p, i);
    for (int chunk = 0; chunk < p.chunks; chunk++) {
        tsr_copy_wait_but_one();
        __syncthreads(); /* this chunk is here, and nobody reads the one before it */
        fetch<BACKWARD>(stage + (at ? at - 1 : STAGES - 1), &p, chunk + STAGES - 1);
        multiply<BACKWARD>(c, stage + at, row, column);
        at = at + 1 < STAGES ? at + 1 : 0;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        tsr_grouped_write(&args, p.outer, &p.tile, p.tile.row + row + 16 * i,
                          p.tile.column + column, c[i]);
}

tsr_status tsr_grouped_gemm_mma(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    void (*kernel)(const tsr_grouped_gemm_args) =
        args->backward ? grouped_blocks<true> : grouped_blocks<false>;
    int bytes = STAGES * (int)sizeof(grouped_stage);
    int64_t outer = args->backward ? args->in : args->out;
    int64_t blocks =
        tsr_expert_most_blocks(args->rows.most, args->count, TILE) * tsr_blocks(outer, TILE);
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, bytes, "grouped_gemm"));
    TSR_LAUNCH_SHARED(kernel, (unsigned)blocks, THREADS, (size_t)bytes, stream, *args);
    return tsr_launched("grouped_gemm");
}
