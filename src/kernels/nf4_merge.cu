/*
 * nf4_merge.cu: contract nf4_merge.h; reference nf4_merge_ref.c. Which way is taken; and the kernel of
 * larger ranks for any card.
 *
 * Split    A block of 4 warps has a tile of 128 rows and 128 columns; a warp has 64 x 64 of B A, in 128
 *          registers, so that it reads 4 bytes of shared memory for 64 products. Ranks go by in chunks
 *          of 32 through a ring of three buffers, filled by asynchronous copies, with one barrier a
 *          chunk. Then each warp writes its part by itself (nf4_merge.cuh). Codes and scales are asked
 *          for after the first copies. Two blocks share a multiprocessor: one writes while the other
 *          multiplies.
 * Cost     nf4_dequant's bytes, 40 KB for a tile; A and B from L2, 512 bytes a rank for a tile.
 */
#include "kernels/nf4_merge.cuh"

#define THREADS 128
#define TILE    128 /* rows, and columns, of a block */
#define SIDE    64  /* rows, and columns, of a warp */
#define CHUNK   32  /* ranks of a buffer */
#define STAGES  3
#define B_PITCH (CHUNK + 8) /* elements: rows lie 16 bytes further modulo 128, so no two collide */
#define A_PITCH (TILE + 8)

typedef struct {
    __nv_bfloat16 b[TILE * B_PITCH];
    __nv_bfloat16 a[CHUNK * A_PITCH];
} merge_stage;

/* A block's place. */
typedef struct {
    const tsr_nf4_merge_args *args;
    const __nv_bfloat16 *a;
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
    p.a = (const __nv_bfloat16 *)a->a;
    return p;
}

/* Ranks from `first` on of both, a group of copies; what does not exist is zero. */
static __device__ __forceinline__ void fetch(merge_stage *stage, const merge_place *p,
                                             int64_t first)
{
    const __nv_bfloat16 *a = p->a;
    const __nv_bfloat16 *b = (const __nv_bfloat16 *)p->args->b;
    int64_t r = p->args->r;
    if (first < r)
#pragma unroll
        for (int i = 0; i < TILE * CHUNK / TSR_VECTOR / THREADS; i++) {
            int at = (int)threadIdx.x + i * THREADS;
            int row = at / (CHUNK / TSR_VECTOR), k = at % (CHUNK / TSR_VECTOR) * TSR_VECTOR;
            bool there = p->row + row < p->rows && first + k < r;
            tsr_copy16(stage->b + row * B_PITCH + k,
                       b + (there ? (p->row + row) * r + first + k : 0), there);
            int rank = at / (TILE / TSR_VECTOR), column = at % (TILE / TSR_VECTOR) * TSR_VECTOR;
            there = first + rank < r && p->column + column < p->columns;
            tsr_copy16(stage->a + rank * A_PITCH + column,
                       a + (there ? (first + rank) * p->columns + p->column + column : 0), there);
        }
    tsr_copy_commit();
}

/* Of 16 ranks from k on: rows 16 i to 16 i + 15 of B, columns 16 i to 16 i + 15 of A. */
typedef struct {
    uint32_t b[4][4], a[4][4];
} fragments;

static __device__ __forceinline__ void load(fragments *f, const merge_stage *stage, int row,
                                            int column, int k)
{
    int low = threadIdx.x % 16, high = threadIdx.x % TSR_WARP / 16 * 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        tsr_ldmatrix(f->b[i], stage->b + (row + 16 * i + low) * B_PITCH + k + high);
        tsr_ldmatrix_t(f->a[i], stage->a + (k + low) * A_PITCH + column + 16 * i + high);
    }
}

/* c += B A of a stage, for a warp: c[i][j] is row group i of 16, column group j of 8. Fragments are
 * loaded one step ahead. */
static __device__ __forceinline__ void multiply(float c[4][8][4], const merge_stage *stage, int row,
                                                int column)
{
    fragments f[2];
    load(&f[0], stage, row, column, 0);
#pragma unroll
    for (int step = 0; step < CHUNK / 16; step++) {
        const fragments *now = &f[step % 2];
        if (step + 1 < CHUNK / 16)
            load(&f[(step + 1) % 2], stage, row, column, (step + 1) * 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                tsr_mma(c[i][j], now->b[i], now->a[j / 2][j % 2 * 2], now->a[j / 2][j % 2 * 2 + 1]);
    }
}

/* All of B A of the tile; the first STAGES - 1 chunks have been asked for. */
static __device__ __forceinline__ void product(float c[4][8][4], merge_stage *stage,
                                               const merge_place *p, int row, int column)
{
    int at = 0;
    for (int64_t first = 0; first < p->args->r; first += CHUNK) {
        tsr_copy_wait_but_one();
        __syncthreads(); /* this chunk is here, and nobody reads the one before it */
        fetch(stage + (at ? at - 1 : STAGES - 1), p, first + (STAGES - 1) * CHUNK);
        multiply(c, stage + at, row, column);
        at = at + 1 < STAGES ? at + 1 : 0;
    }
}

template <int KIND>
static __device__ __forceinline__ void merge_tile(const tsr_nf4_merge_args *args)
{
    extern __shared__ __align__(16) char memory[];
    merge_stage *stage = (merge_stage *)memory;
    merge_place p = place_of(args);
    const tsr_nf4_dequant_args *w = &args->weight;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    int row = warp / 2 * SIDE, column = warp % 2 * SIDE;
    int64_t first = p.row + row, strip = p.column + column;
    uint2 codes[4][2];
    float c[4][8][4] = {};
    for (int i = 0; i < STAGES - 1; i++)
        fetch(stage + i, &p, i * CHUNK);
#pragma unroll
    for (int i = 0; i < 8; i++)
        codes[i / 2][i % 2] = tsr_merge_codes(w, p.rows, first + 8 * i + lane / 4, strip);
    /* Of the lane's row of the first 32, and of the others. */
    tsr_nf4_found found[2] = {tsr_merge_find_scale(w, p.rows, first + lane, strip),
                              tsr_merge_find_scale(w, p.rows, first + lane + TSR_WARP, strip)};
    float of_row[2] = {tsr_merge_find_row(args, p.rows, first + lane, KIND),
                       tsr_merge_find_row(args, p.rows, first + lane + TSR_WARP, KIND)};
    tsr_merge_levels levels = tsr_merge_find_levels(args, KIND);
    product(c, stage, &p, row, column);
    tsr_merge_scales scales[2];
    float squares[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        scales[i] =
            tsr_merge_make_scales(tsr_nf4_scale_from(w, found[i], w->offset), of_row[i], KIND);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        tsr_merge_scales own = tsr_merge_scales_of(scales[i / 4], i % 4 * 8 + lane / 4, KIND);
        squares[i % 2] = tsr_merge_write(args, p.rows, first + 8 * i + lane / 4, strip, c[i / 2],
                                         i % 2, codes[i / 2][i % 2], levels, own, KIND);
        if (KIND != TSR_MERGE_PLAIN && i % 2 && strip < p.columns)
            tsr_merge_partials(args, p.rows, first + i / 2 * 16, strip / TSR_NF4_BLOCK, squares);
    }
}

template <int KIND>
static __global__ void __launch_bounds__(THREADS, 2)
    merge(const __grid_constant__ tsr_nf4_merge_args args)
{
    tsr_kernel_begin();
    merge_tile<KIND>(&args);
}

static unsigned blocks_of(const tsr_nf4_dequant_args *w)
{
    return (unsigned)(tsr_blocks(w->columns, TILE) * tsr_blocks(w->count / w->columns, TILE));
}

static tsr_status merge_tiles(tsr_stream *stream, const tsr_nf4_merge_args *args)
{
    int bytes = STAGES * (int)sizeof(merge_stage);
    void (*const kernels[TSR_MERGE_KINDS])(const tsr_nf4_merge_args) = {merge<0>, merge<1>,
                                                                        merge<2>, merge<3>};
    int kind = tsr_merge_kind(args);
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernels[kind], bytes, "nf4_merge"));
    TSR_LAUNCH_SHARED(kernels[kind], blocks_of(&args->weight), THREADS, (size_t)bytes, stream,
                      *args);
    if (kind != TSR_MERGE_PLAIN)
        tsr_nf4_merge_finish(stream, args, TSR_NF4_BLOCK);
    return TSR_OK;
}

static bool fits(const tsr_nf4_merge_args *args)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    return tsr_nf4_merge_fused(w->dtype, w->columns, args->r) && (uintptr_t)w->codes % 8 == 0 &&
           (uintptr_t)w->out % 16 == 0 && (uintptr_t)args->a % 16 == 0 &&
           (uintptr_t)args->b % 16 == 0;
}

extern "C" tsr_status tsr_nf4_merge_cuda(tsr_stream *stream, const tsr_nf4_merge_args *args)
{
    TSR_TRY(tsr_nf4_merge_check(args));
    const tsr_nf4_dequant_args *w = &args->weight;
    if (w->count == 0)
        return TSR_OK;
    if (args->norms.n && !(fits(args) && args->norms.partials))
        return tsr_fail(TSR_EUNSUPPORTED, "nf4_merge: norms without partials, or of a weight that "
                                          "one kernel does not merge");
    if (!fits(args)) {
        tsr_gemm_args product = tsr_nf4_merge_product(args);
        TSR_TRY(tsr_nf4_dequant_cuda(stream, w));
        return tsr_gemm_cuda(stream, &product);
    }
    if (args->r >= TSR_NF4_MERGE_WGMMA && tsr_nf4_merge_wgmma(stream, args))
        return tsr_launched("nf4_merge");
    if (args->r <= TSR_NF4_MERGE_LOW)
        tsr_nf4_merge_low(stream, args);
    else
        TSR_TRY(merge_tiles(stream, args));
    return tsr_launched("nf4_merge");
}
