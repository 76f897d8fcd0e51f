/*
 * grouped_gemm_mma.cu: grouped_gemm in bf16 on any card, and grouped_fp8 with z in bf16 where mma.sync multiplies e4m3 (8.9 and
 * later).
 *
 * Split    Tiles of mma_ring.cuh, of an expert's rows, with one barrier a chunk. There are blocks for any counts; those
 *          without a tile end at once. In e4m3 both operands lie along the summands, the adapter's as in bf16.
 * Sums     16 summands after the other from the first on, those of an adapter last, by the lengths alone. Of e4m3 32, and 64 of
 *          them at a time in the tensor cores.
 */
#include "kernels/grouped_gemm.cuh"
#include "kernels/mma_ring.cuh"

typedef struct {
    const tsr_grouped_gemm_args *args;
    const float *x_scale, *w_scale;
    tsr_expert_tile tile;
    ring_place place;
    ring_operands base_of, low_of;
    int base, chunks; /* of x and W; and those of low and the factor behind them */
} grouped_work;

/* A chunk of both operands, a group of copies. */
template <bool BACKWARD, bool CODES>
static __device__ __forceinline__ void fetch(ring_stage *stage, const grouped_work *w, int chunk)
{
    bool low = chunk >= w->base;
    ring_operands o;
    o.x = low ? w->low_of.x : w->base_of.x, o.w = low ? w->low_of.w : w->base_of.w;
    o.inner = low ? w->low_of.inner : w->base_of.inner, o.outer = w->base_of.outer;
    if (chunk < w->chunks)
        ring_fetch(stage, o, &w->place, (low ? chunk - w->base : chunk) * CHUNK,
                   BACKWARD && (!CODES || low), low);
    tsr_copy_commit();
}

static __device__ __forceinline__ int row_of(const tsr_expert_rows *rows, int row)
{
    return rows->slot ? rows->slot[row] / (int32_t)rows->k : row;
}

static __device__ __forceinline__ void find_rows(grouped_work *w)
{
    w->place.row = w->tile.row, w->place.column = w->tile.column;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = w->tile.row + ring_row(i);
        w->place.from[i] = row < w->tile.row_end ? row_of(&w->args->rows, row) : -1;
    }
}

template <bool BACKWARD, bool CODES>
static __device__ __forceinline__ void find_operands(grouped_work *w)
{
    const tsr_grouped_gemm_args *a = w->args;
    int inner = (int)(BACKWARD ? a->out : a->in) / (CODES ? 2 : 1);
    int outer = (int)(BACKWARD ? a->in : a->out);
    int64_t expert = a->first + w->tile.expert;
    w->base_of.x = (const __nv_bfloat16 *)a->x;
    w->base_of.w = (const __nv_bfloat16 *)a->w + (int64_t)w->tile.expert * inner * outer;
    w->base_of.inner = inner, w->base_of.outer = outer;
    w->low_of.x = (const __nv_bfloat16 *)a->low;
    w->low_of.w = (const __nv_bfloat16 *)a->factor + expert * a->r * outer;
    w->low_of.inner = (int)a->r, w->low_of.outer = outer;
}

/* What e4m3 was multiplied without; `row` is the warp's first. */
static __device__ __forceinline__ __attribute__((unused)) void
scale_sums(float c[4][4][4], const grouped_work *w, int row)
{
    float of_w = w->w_scale[w->tile.expert];
    row += w->tile.row + threadIdx.x % TSR_WARP / 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            int own = row + 16 * i + 8 * upper;
            float scale =
                own < w->tile.row_end ? w->x_scale[row_of(&w->args->rows, own)] * of_w : 0;
#pragma unroll
            for (int j = 0; j < 4; j++)
                c[i][j][2 * upper] *= scale, c[i][j][2 * upper + 1] *= scale;
        }
}

template <bool BACKWARD, bool CODES, bool FAST>
static __device__ __forceinline__ void multiply(grouped_work *w)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ tsr_expert_starts starts;
    ring_stage *stage = (ring_stage *)memory;
    const tsr_grouped_gemm_args *a = w->args;
    int warp = threadIdx.x / TSR_WARP, row = warp / 4 * ROWS, column = warp % 4 * STRIP, at = 0;
    int outer = (int)(BACKWARD ? a->in : a->out);
    float c[4][4][4] = {};
    tsr_expert_count(&starts, &a->rows, a->first, (int)a->count, TILE);
    if (!tsr_expert_tile_at(&w->tile, &starts, (int)a->count, TILE, (outer + TILE - 1) / TILE, TILE,
                            (int)blockIdx.x))
        return;
    find_operands<BACKWARD, CODES>(w);
    find_rows(w);
    w->base = (w->base_of.inner + CHUNK - 1) / CHUNK;
    w->chunks = w->base + ((int)a->r + CHUNK - 1) / CHUNK;
    for (int i = 0; i < STAGES - 1; i++)
        fetch<BACKWARD, CODES>(stage + i, w, i);
    for (int chunk = 0; chunk < w->chunks; chunk++, at = ring_after(at)) {
        tsr_copy_wait_but_one();
        __syncthreads(); /* this chunk is here, and nobody reads the one before it */
        fetch<BACKWARD, CODES>(stage + ring_before(at), w, chunk + STAGES - 1);
        if (CODES && chunk < w->base)
            ring_multiply_codes<FAST>(c, stage + at, row, column);
        else
            ring_multiply<false>(c, stage + at, row, column, BACKWARD);
        if (CODES && chunk == w->base - 1)
            scale_sums(c, w, row);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        tsr_grouped_write(a, outer, &w->tile, w->tile.row + row + 16 * i, w->tile.column + column,
                          c[i]);
}

template <bool BACKWARD>
static __global__ void __launch_bounds__(THREADS, 2)
    grouped_blocks(const __grid_constant__ tsr_grouped_gemm_args args)
{
    tsr_kernel_begin();
    grouped_work work = {&args};
    multiply<BACKWARD, false, false>(&work);
}

template <bool BACKWARD, bool FAST>
static __global__ void __launch_bounds__(THREADS, FAST ? 2 : 1)
    codes_blocks(const __grid_constant__ tsr_grouped_fp8_args args)
{
    tsr_kernel_begin();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    grouped_work work = {&args.gemm, args.x_scale, args.w_scale};
    multiply<BACKWARD, true, FAST>(&work);
#endif
}

/* ---- launching ---- */

#define BYTES (STAGES * sizeof(ring_stage))

static unsigned blocks_of(const tsr_grouped_gemm_args *args)
{
    int64_t outer = args->backward ? args->in : args->out;
    return (unsigned)(tsr_expert_most_blocks(args->rows.most, args->count, TILE) *
                      tsr_blocks(outer, TILE));
}

tsr_status tsr_grouped_gemm_mma(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    void (*kernel)(const tsr_grouped_gemm_args) =
        args->backward ? grouped_blocks<true> : grouped_blocks<false>;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, BYTES, "grouped_gemm"));
    TSR_LAUNCH_SHARED(kernel, blocks_of(args), THREADS, BYTES, stream, *args);
    return tsr_launched("grouped_gemm");
}

tsr_status tsr_grouped_fp8_mma(tsr_stream *stream, const tsr_grouped_fp8_args *args)
{
    static void (*const kernels[2][2])(const tsr_grouped_fp8_args) = {
        {codes_blocks<false, false>, codes_blocks<false, true>},
        {codes_blocks<true, false>, codes_blocks<true, true>}};
    void (*kernel)(const tsr_grouped_fp8_args) = kernels[args->gemm.backward][args->fast];
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, BYTES, "grouped_fp8"));
    TSR_LAUNCH_SHARED(kernel, blocks_of(&args->gemm), THREADS, BYTES, stream, *args);
    return tsr_launched("grouped_fp8");
}
