/*
 * expert_fp8.cu: contract expert_fp8.h; reference expert_fp8_ref.c, the same bytes. fp8_decode.cuh has how one matrix is
 * decoded; the last dimension of a grid is the matrix.
 *
 * Scales   Threads read the absmax of an expert, four at a time. Where experts are few, several blocks share one: each
 *          leaves its largest in `out`, which is decoded to later, and a second kernel makes the scales of them.
 * As it    With one scale an expert its rows do not matter: a matrix is decoded as one row, in chunks of 4096 elements, also
 * lies     where blocks cross its rows.
 * Cost     1/2 + 2/64 bytes read and 1 written an element; bandwidth bound.
 *
 * Matrices that are not whole blocks, transposed rows that blocks cross, and pointers off their vectors: element by element.
 */
#include "kernels/fp8_decode.cuh"

#define THREADS       256
#define SCALE_THREADS 1024
#define TURNS         4    /* whose reading overlaps */
#define SHARE_BLOCKS  8192 /* of NF4, at least, of a block of SCALE_THREADS */
#define SCALE_SHARES  128  /* about a block for each processor of a large card */
#define MOST_MATRICES 65535

/* Matrix i of the range. */
static __device__ __forceinline__ tsr_fp8_decode_args matrix_of(const tsr_expert_fp8_args *a,
                                                                int64_t i, int64_t rows)
{
    const tsr_expert_weight_args *w = &a->weight;
    uint32_t expert = (uint32_t)i / (uint32_t)w->parts, part = (uint32_t)i % (uint32_t)w->parts;
    tsr_fp8_decode_args m = {};
    m.weight = tsr_expert_weight_matrix(w, w->first * w->parts + i, rows);
    m.weight.out = (uint8_t *)w->out + (a->transposed ? expert * w->rows * w->columns + part * rows
                                                      : i * m.weight.count);
    m.scale = a->scale + expert;
    m.transposed = a->transposed;
    return m;
}

/* ---- scales ---- */

/* Of four blocks of scales on their vectors. */
static __device__ __forceinline__ uint32_t most_of_four(const tsr_nf4_dequant_args *w, int64_t quad)
{
    float found[4];
    if (w->nested) {
        uint32_t places = ((const uint32_t *)w->absmax)[quad];
        float value = w->nested_absmax[quad / (TSR_NF4_NESTED_BLOCK / 4)];
#pragma unroll
        for (int i = 0; i < 4; i++)
            found[i] = tsr_nf4_scale_of(w, {value, places >> 8 * i & 255});
    } else {
        float4 four = ((const float4 *)w->absmax)[quad];
        found[0] = four.x, found[1] = four.y, found[2] = four.z, found[3] = four.w;
    }
    return max(max(tsr_magnitude(found[0]), tsr_magnitude(found[1])),
               max(tsr_magnitude(found[2]), tsr_magnitude(found[3])));
}

/* Expert blockIdx.y, the share blockIdx.x of each of its matrices; `rows` of a matrix. */
static __global__ void __launch_bounds__(SCALE_THREADS)
    find_most(const __grid_constant__ tsr_expert_fp8_args a, int64_t rows, bool vectors)
{
    tsr_kernel_begin();
    __shared__ float map[256]; /* is looked up at random */
    if (a.weight.nested && threadIdx.x < 256)
        map[threadIdx.x] = a.weight.nested_map[threadIdx.x];
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * SCALE_THREADS + threadIdx.x;
    int64_t step = (int64_t)gridDim.x * SCALE_THREADS;
    uint32_t most = 0;
    for (int64_t part = 0; part < a.weight.parts; part++) {
        int64_t matrix = (a.weight.first + blockIdx.y) * a.weight.parts + part;
        tsr_nf4_dequant_args w = tsr_expert_weight_matrix(&a.weight, matrix, rows);
        w.nested_map = map;
        int64_t blocks = (w.count + TSR_NF4_BLOCK - 1) / TSR_NF4_BLOCK;
        int64_t quads = vectors ? blocks / 4 : 0;
        for (int64_t quad = first; quad < quads; quad += TURNS * step)
#pragma unroll
            for (int i = 0; i < TURNS; i++) /* beyond the end the last again */
                most = max(most, most_of_four(&w, min(quad + i * step, quads - 1)));
        for (int64_t block = 4 * quads + first; block < blocks; block += step)
            most = max(most, tsr_magnitude(tsr_nf4_scale(&w, block)));
    }
    most = tsr_block_max(most);
    if (threadIdx.x >= TSR_WARP)
        return;
    float scale = tsr_fp8_warp_scale(a.weight.level, (int)threadIdx.x, most);
    if (threadIdx.x == 0 && gridDim.x == 1)
        a.scale[blockIdx.y] = scale;
    else if (threadIdx.x == 0)
        ((uint32_t *)a.weight.out)[blockIdx.y * gridDim.x + blockIdx.x] = most;
}

/* A warp an expert, of so many shares. */
static __global__ void __launch_bounds__(TSR_WARP)
    end_scales(const __grid_constant__ tsr_expert_fp8_args a, unsigned shares)
{
    tsr_kernel_begin();
    const uint32_t *found = (const uint32_t *)a.weight.out + blockIdx.x * shares;
    uint32_t most = 0;
    for (unsigned i = threadIdx.x; i < shares; i += TSR_WARP)
        most = max(most, found[i]);
    float scale = tsr_fp8_warp_scale(a.weight.level, (int)threadIdx.x, most);
    if (threadIdx.x == 0)
        a.scale[blockIdx.x] = scale;
}

/* Blocks of threads for an expert. */
static unsigned shares_of(const tsr_expert_weight_args *w)
{
    int64_t each = w->rows * w->columns, most = each / (SHARE_BLOCKS * TSR_NF4_BLOCK);
    int64_t shares = most < SCALE_SHARES / w->count ? most : SCALE_SHARES / w->count;
    bool room = (uintptr_t)w->out % sizeof(uint32_t) == 0; /* of 4 bytes a share there is */
    return shares > 1 && room ? (unsigned)shares : 1;
}

static void make_scales(tsr_stream *stream, const tsr_expert_fp8_args *args, int64_t rows)
{
    const tsr_expert_weight_args *w = &args->weight;
    unsigned shares = shares_of(w), experts = (unsigned)w->count;
    bool vectors = (uintptr_t)w->absmax % (w->nested ? sizeof(uint32_t) : sizeof(float4)) == 0;
    TSR_LAUNCH(find_most, dim3(shares, experts), SCALE_THREADS, stream, *args, rows, vectors);
    if (shares > 1)
        TSR_LAUNCH(end_scales, experts, TSR_WARP, stream, *args, shares);
}

/* ---- codes ---- */

/* Matrix blockIdx.y as one row. */
static __global__ void __launch_bounds__(THREADS)
    decode_flat(const __grid_constant__ tsr_expert_fp8_args a, int64_t rows, int64_t chunks)
{
    tsr_kernel_begin();
    int64_t chunk = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    if (chunk >= chunks)
        return;
    tsr_fp8_decode_args m = matrix_of(&a, blockIdx.y, rows);
    m.weight.columns = m.weight.count;
    tsr_fp8_decode_chunk(&m, 0, chunk, true);
}

/* Matrix blockIdx.z. */
static __global__ void __launch_bounds__(TSR_FP8_TILE_WARPS *TSR_WARP)
    decode_columns(const __grid_constant__ tsr_expert_fp8_args a, int64_t rows)
{
    tsr_kernel_begin();
    tsr_fp8_decode_args m = matrix_of(&a, blockIdx.z, rows);
    tsr_fp8_decode_tile(&m, rows, a.weight.rows, 0);
}

/* Matrix blockIdx.y. */
static __global__ void __launch_bounds__(THREADS)
    decode_each(const __grid_constant__ tsr_expert_fp8_args a, int64_t rows)
{
    tsr_kernel_begin();
    tsr_fp8_decode_args m = matrix_of(&a, blockIdx.y, rows);
    int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e < m.weight.count)
        tsr_fp8_decode_element(&m, e, a.weight.rows, 0);
}

/* Whether matrices are whole blocks, transposed their rows too, on vectors. */
static bool is_fast(const tsr_expert_fp8_args *args, int64_t rows)
{
    const tsr_expert_weight_args *w = &args->weight;
    int64_t count = rows * w->columns;
    bool vectors = (uintptr_t)w->codes % 16 == 0 && (uintptr_t)w->out % 16 == 0;
    return vectors &&
           (args->transposed
                ? w->columns % TSR_NF4_BLOCK == 0 && rows % 16 == 0 && rows / TSR_FP8_TILE < 65535
                : count % TSR_NF4_BLOCK == 0 && count / TSR_NF4_BLOCK <= INT32_MAX);
}

extern "C" tsr_status tsr_expert_fp8_cuda(tsr_stream *stream, const tsr_expert_fp8_args *args)
{
    TSR_TRY(tsr_expert_fp8_check(args));
    const tsr_expert_weight_args *w = &args->weight;
    int64_t rows = w->rows / w->parts, count = rows * w->columns;
    int64_t chunks = (count + TSR_FP8_WARP_CODES - 1) / TSR_FP8_WARP_CODES;
    if (w->count == 0)
        return TSR_OK;
    if (w->count > MOST_MATRICES / w->parts)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "expert_fp8: %lld experts; a GPU takes at most %lld at a time",
                        (long long)w->count, (long long)(MOST_MATRICES / w->parts));
    unsigned matrices = (unsigned)(w->count * w->parts);
    make_scales(stream, args, rows);
    if (!is_fast(args, rows))
        TSR_LAUNCH(decode_each, dim3(tsr_blocks(count, THREADS), matrices), THREADS, stream, *args,
                   rows);
    else if (args->transposed)
        TSR_LAUNCH(
            decode_columns,
            dim3(tsr_blocks(w->columns, TSR_FP8_TILE), tsr_blocks(rows, TSR_FP8_TILE), matrices),
            TSR_FP8_TILE_WARPS * TSR_WARP, stream, *args, rows);
    else
        TSR_LAUNCH(decode_flat, dim3(tsr_blocks(chunks, THREADS / TSR_WARP), matrices), THREADS,
                   stream, *args, rows, chunks);
    return tsr_launched("expert_fp8");
}
