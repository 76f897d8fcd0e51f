/*
 * nf4_merge_wgmma.cu: nf4_merge for larger ranks on sm_90a.
 *
 * Split    A block stays, and takes tiles of 128 rows and 256 columns, every so many. One thread fetches
 *          chunks of 64 ranks of both operands into a ring of four stages, ahead through all its
 *          tiles; two groups of four warps multiply, 64 x 256 each, with the sums in 128 registers,
 *          and write (nf4_merge.cuh). Nothing but the ring holds the groups together, and the second
 *          starts some chunks later: one writes while the other multiplies. Codes and what scales
 *          need are asked for one tile ahead.
 * Cost     nf4_dequant's bytes, 80 KB for a tile; A and B from L2, 768 bytes a rank for a tile.
 */
#include "kernels/nf4_merge.cuh"
#include "kernels/wgmma.cuh"

#include <cudaTypedefs.h>
#include <string.h>

#define GROUPS      2
#define THREADS     ((GROUPS + 1) * TSR_WARPGROUP)
#define GROUP_ROWS  64
#define ROWS        (GROUPS * GROUP_ROWS)
#define ACROSS      256 /* columns */
#define STRIPS      (ACROSS / TSR_NF4_BLOCK)
#define CHUNK       64 /* ranks: a row of a tile in shared memory */
#define STAGES      4
#define LEAD        (STAGES - 1) /* chunks that the first group begins with alone */
#define B_BYTES     (ROWS * CHUNK * 2)
#define STRIP_BYTES (CHUNK * TSR_NF4_BLOCK * 2) /* of A: its part of a strip */
#define STAGE_BYTES (B_BYTES + STRIPS * STRIP_BYTES)
#define ALIGNMENT   1024
#define BYTES       (STAGES * STAGE_BYTES + ALIGNMENT)

typedef struct {
    CUtensorMap a, b; /* boxes of CHUNK ranks: of a strip; of ROWS rows */
} merge_maps;

/* What a block goes through. */
typedef struct {
    const tsr_nf4_merge_args *args;
    int64_t rows, columns;
    int tiles, across, chunks;
} merge_work;

/* The ring: its parts' shared addresses; and where a thread is in it. */
typedef struct {
    uint32_t data, full, empty, lead;
    uint32_t stage, parity;
} merge_ring;

static __device__ __forceinline__ void next_stage(merge_ring *ring)
{
    if (++ring->stage == STAGES)
        ring->stage = 0, ring->parity ^= 1;
}

/* One thread: all chunks of all the block's tiles. */
static __device__ __forceinline__ void fetch(const merge_work *work, merge_ring ring,
                                             const merge_maps *maps)
{
    for (int tile = (int)blockIdx.x; tile < work->tiles; tile += (int)gridDim.x)
        for (int chunk = 0; chunk < work->chunks; chunk++) {
            uint32_t to = ring.data + ring.stage * STAGE_BYTES, full = ring.full + 8 * ring.stage;
            tsr_barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            tsr_barrier_expect(full, STAGE_BYTES);
            tsr_box_copy(to, &maps->b, chunk * CHUNK, tile / work->across * ROWS, full);
#pragma unroll
            for (int i = 0; i < STRIPS; i++)
                tsr_box_copy(to + B_BYTES + (uint32_t)i * STRIP_BYTES, &maps->a,
                             tile % work->across * ACROSS + i * TSR_NF4_BLOCK, chunk * CHUNK, full);
            next_stage(&ring);
        }
}

/* B A of a tile, of a group's rows. The other group may start after chunk `lead`; -1: it has. */
static __device__ __forceinline__ void product(float c[32][4], const merge_work *work,
                                               merge_ring *ring, int group, int lead)
{
    uint32_t before = 0;
    bool one = threadIdx.x % TSR_WARP == 0;
    for (int chunk = 0; chunk < work->chunks; chunk++) {
        uint32_t stage = ring->data + ring->stage * STAGE_BYTES;
        uint64_t left = tsr_wgmma_rows(stage + (uint32_t)group * GROUP_ROWS * CHUNK * 2);
        uint64_t right = tsr_wgmma_columns(stage + B_BYTES, STRIP_BYTES);
        tsr_barrier_wait(ring->full + 8 * ring->stage, ring->parity);
        tsr_wgmma_begin();
#pragma unroll
        for (int i = 0; i < CHUNK / 16; i++)
            tsr_wgmma(c, left + i * 32 / 16, right + i * 2048 / 16, chunk || i);
        tsr_wgmma_commit();
        if (chunk == lead && one)
            tsr_barrier_arrive(ring->lead);
        tsr_wgmma_wait_but_one();
        if (chunk && one)
            tsr_barrier_arrive(before);
        before = ring->empty + 8 * ring->stage;
        next_stage(ring);
    }
    tsr_wgmma_wait(c);
    if (one)
        tsr_barrier_arrive(before);
}

/* What a warp needs of a tile's weight: its codes, of rows g and g + 8 of each strip; for the scales,
 * of row lane % 16 of strips lane / 16 and lane / 16 + 2; of norms alone, the scales of rows g and g + 8. */
typedef struct {
    int64_t row, column; /* of the warp */
    uint2 codes[STRIPS][2];
    tsr_nf4_found found[2];
    float of_row[2];
} merge_asked;

static __device__ __forceinline__ void ask(merge_asked *asked, const merge_work *work, int tile,
                                           const int kind)
{
    const tsr_nf4_dequant_args *w = &work->args->weight;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    if (tile >= work->tiles)
        return;
    asked->row = (int64_t)(tile / work->across) * ROWS + warp * 16;
    asked->column = (int64_t)(tile % work->across) * ACROSS;
#pragma unroll
    for (int i = 0; i < 2 * STRIPS; i++)
        asked->codes[i / 2][i % 2] =
            tsr_merge_codes(w, work->rows, asked->row + lane / 4 + i % 2 * 8,
                            asked->column + i / 2 * TSR_NF4_BLOCK);
#pragma unroll
    for (int i = 0; i < 2; i++)
        asked->found[i] = tsr_merge_find_scale(w, work->rows, asked->row + lane % 16,
                                               asked->column + (lane / 16 + 2 * i) * TSR_NF4_BLOCK);
#pragma unroll
    for (int i = 0; i < 2; i++)
        asked->of_row[i] =
            tsr_merge_find_row(work->args, work->rows, asked->row + lane / 4 + i * 8, kind);
}

static __device__ __forceinline__ void write(const float c[32][4], const merge_work *work,
                                             const merge_asked *asked, tsr_merge_levels levels,
                                             const int kind)
{
    int g = threadIdx.x % TSR_WARP / 4;
    const tsr_nf4_dequant_args *w = &work->args->weight;
    float scale[2] = {tsr_nf4_scale_from(w, asked->found[0], w->offset),
                      tsr_nf4_scale_from(w, asked->found[1], w->offset)};
    const tsr_merge_scales of_row[2] = {tsr_merge_make_scales(0, asked->of_row[0], kind),
                                        tsr_merge_make_scales(0, asked->of_row[1], kind)};
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < 2 * STRIPS; i++) {
        int strip = i / 2, upper = i % 2;
        tsr_merge_scales own = of_row[upper];
        own.absmax = __shfl_sync(0xffffffffu, scale[strip / 2], strip % 2 * 16 + upper * 8 + g);
        float sum = tsr_merge_write(work->args, work->rows, asked->row + upper * 8 + g,
                                    asked->column + strip * TSR_NF4_BLOCK, c + 8 * strip, upper,
                                    asked->codes[strip][upper], levels, own, kind);
        squares[upper] += asked->column + strip * TSR_NF4_BLOCK < work->columns ? sum : 0;
    }
    if (kind != TSR_MERGE_PLAIN)
        tsr_merge_partials(work->args, work->rows, asked->row, asked->column / ACROSS, squares);
}

static __device__ __forceinline__ void multiply(const merge_work *work, merge_ring ring,
                                                const int kind)
{
    int group = threadIdx.x / TSR_WARPGROUP;
    tsr_merge_levels levels = tsr_merge_find_levels(work->args, kind);
    int lead = group ? -1 : (work->chunks < LEAD ? work->chunks : LEAD) - 1;
    merge_asked now, next;
    ask(&next, work, (int)blockIdx.x, kind);
    if (group)
        tsr_barrier_wait(ring.lead, 0);
    for (int tile = (int)blockIdx.x; tile < work->tiles; tile += (int)gridDim.x) {
        float c[32][4];
        now = next;
        ask(&next, work, tile + (int)gridDim.x, kind);
        product(c, work, &ring, group, lead);
        lead = -1;
        write(c, work, &now, levels, kind);
    }
}

/* Unused in code for other cards. */
static __device__ __forceinline__ __attribute__((unused)) void
merge(const tsr_nf4_merge_args *args, const merge_maps *maps, const int kind)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ __align__(8) uint64_t barriers[2 * STAGES + 1];
    merge_ring ring = {};
    merge_work work;
    ring.data = (tsr_shared_address(memory) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    ring.full = tsr_shared_address(barriers);
    ring.empty = ring.full + 8 * STAGES;
    ring.lead = ring.empty + 8 * STAGES;
    work.args = args;
    work.columns = args->weight.columns;
    work.rows = args->weight.count / work.columns;
    work.across = (int)((work.columns + ACROSS - 1) / ACROSS);
    work.tiles = (int)((work.rows + ROWS - 1) / ROWS) * work.across;
    work.chunks = (int)((args->r + CHUNK - 1) / CHUNK);
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < STAGES; i++) {
            tsr_barrier_init(ring.full + 8 * i, 1);
            tsr_barrier_init(ring.empty + 8 * i, GROUPS * TSR_WARPGROUP / TSR_WARP);
        }
        tsr_barrier_init(ring.lead, TSR_WARPGROUP / TSR_WARP);
        tsr_barrier_made();
    }
    __syncthreads();
    if (threadIdx.x < GROUPS * TSR_WARPGROUP) {
        TSR_REGISTERS_UP(232);
        multiply(&work, ring, kind);
    } else {
        TSR_REGISTERS_DOWN(40);
        if (threadIdx.x == GROUPS * TSR_WARPGROUP)
            fetch(&work, ring, maps);
    }
}

template <int KIND>
static __global__ void TSR_SM90_BOUNDS(THREADS)
    merge_tiles(const __grid_constant__ tsr_nf4_merge_args args,
                const __grid_constant__ merge_maps maps)
{
    tsr_kernel_begin();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    merge(&args, &maps, KIND);
#endif
}

/* ---- launching ---- */

typedef PFN_cuTensorMapEncodeTiled_v12000 map_boxes;

typedef void merge_kernel(const tsr_nf4_merge_args, const merge_maps);
static merge_kernel *const kernels[TSR_MERGE_KINDS] = {merge_tiles<0>, merge_tiles<1>,
                                                       merge_tiles<2>, merge_tiles<3>};

extern "C" void *tsr_nf4_merge_boxes(tsr_device *device)
{
    const tsr_cuda_properties *p = tsr_device_cuda_properties(device);
    bool good = cudaSetDevice(p->index) == cudaSuccess && p->shared_bytes >= BYTES + 1024;
    for (int i = 0; good && i < TSR_MERGE_KINDS; i++) {
        cudaFuncAttributes found;
        good = cudaFuncGetAttributes(&found, kernels[i]) == cudaSuccess &&
               found.maxThreadsPerBlock >= THREADS &&
               cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    BYTES) == cudaSuccess;
    }
    cudaGetLastError(); /* the other kernel is there */
    return good ? tsr_cuda_driver("cuTensorMapEncodeTiled") : NULL;
}

/* Boxes of `box` rows of 64 elements, of [rows, columns]. */
static bool map(CUtensorMap *out, void *boxes, const void *data, int64_t rows, int64_t columns,
                unsigned box)
{
    map_boxes make;
    const cuuint64_t extent[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)columns * 2};
    const cuuint32_t boxes_extent[2] = {64, box}, step[2] = {1, 1};
    memcpy(&make, &boxes, sizeof make);
    return make(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)data, extent, pitch, boxes_extent,
                step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Blocks that stay. */
static unsigned blocks_of(tsr_stream *stream, const tsr_nf4_dequant_args *w)
{
    unsigned tiles = tsr_blocks(w->count / w->columns, ROWS) * tsr_blocks(w->columns, ACROSS);
    unsigned most = (unsigned)tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count;
    return tiles < most ? tiles : most;
}

bool tsr_nf4_merge_wgmma(tsr_stream *stream, const tsr_nf4_merge_args *args)
{
    void *boxes = tsr_kernels_kept(stream)->boxes;
    const tsr_nf4_dequant_args *w = &args->weight;
    int64_t rows = w->count / w->columns;
    merge_maps maps;
    if (!boxes || !map(&maps.a, boxes, args->a, args->r, w->columns, CHUNK) ||
        !map(&maps.b, boxes, args->b, rows, args->r, ROWS))
        return false;
    int kind = tsr_merge_kind(args);
    TSR_LAUNCH_SHARED(kernels[kind], blocks_of(stream, w), THREADS, BYTES, stream, *args, maps);
    if (kind != TSR_MERGE_PLAIN)
        tsr_nf4_merge_finish(stream, args, ACROSS);
    return true;
}
