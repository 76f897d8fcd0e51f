/*
 * nf4_merge.cu: contract nf4_merge.h; reference nf4_merge_ref.c.
 *
 * Split    A warp has 64 columns, one block of codes in each row, and 64 rows, in 4 tiles of 16; a
 *          block has 4 such strips side by side. B A of a tile is 8 mma.m16n8k16 for every 16 ranks,
 *          whose fragments of A stay in registers for all rows. All codes are asked for first.
 * Columns  mma leaves a lane two columns of each group of 8. Which column of the strip a group's
 *          column stands for is free, as long as A is read the same way: column n of group j is
 *          16 (n / 2) + 2 j + n % 2. So lane 4 g + t has the 16 columns from 16 t on: 8 bytes of
 *          codes, two 16-byte stores.
 * Cost     nf4_dequant's bytes, B from L1 and A from L2: 10 KB of them for a warp's 10 KB (r = 16).
 */
#include "kernels/mma.cuh"
#include "kernels/nf4_scale.cuh"

#define WARPS  4
#define TILE   16 /* rows of an mma */
#define TILES  4
#define ROWS   (TILE * TILES)
#define GROUPS 8  /* of 8 columns: a strip */
#define STEP   16 /* ranks of an mma */

/* A warp's place. */
typedef struct {
    const tsr_nf4_merge_args *args;
    int64_t rows, columns;
    int64_t row, column; /* its first */
    int g, t;
} merge_place;

/* The fragments of A for one step: b0 and b1 of each group. Ranks that do not exist are zero. */
static __device__ __forceinline__ void load_a(uint32_t fragment[GROUPS][2], const merge_place *p,
                                              int step)
{
    uint32_t word[4][GROUPS]; /* of ranks 2t, 2t + 1, 2t + 8, 2t + 9: 16 columns each */
#pragma unroll
    for (int q = 0; q < 4; q++) {
        int64_t k = step * STEP + 2 * p->t + q % 2 + q / 2 * 8;
        uint4 low = {}, high = {};
        if (k < p->args->r) {
            const uint4 *from = (const uint4 *)((const uint16_t *)p->args->a + k * p->columns +
                                                p->column + p->g / 2 * 16);
            low = __ldg(from), high = __ldg(from + 1);
        }
        word[q][0] = low.x, word[q][1] = low.y, word[q][2] = low.z, word[q][3] = low.w;
        word[q][4] = high.x, word[q][5] = high.y, word[q][6] = high.z, word[q][7] = high.w;
    }
    uint32_t pick = p->g % 2 ? 0x7632 : 0x5410; /* the column of a pair */
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        fragment[j][0] = __byte_perm(word[0][j], word[1][j], pick);
        fragment[j][1] = __byte_perm(word[2][j], word[3][j], pick);
    }
}

/* Two ranks of a row of B. */
static __device__ __forceinline__ uint32_t pair_of_b(const merge_place *p, int64_t row, int64_t k)
{
    if (row >= p->rows || k >= p->args->r)
        return 0;
    return __ldg((const uint32_t *)((const uint16_t *)p->args->b + row * p->args->r + k));
}

/* c += B A of a tile, one step. */
static __device__ __forceinline__ void multiply(float c[GROUPS][4], const merge_place *p,
                                                int64_t row, int step,
                                                const uint32_t fragment[GROUPS][2])
{
    int64_t k = step * STEP + 2 * p->t;
    uint32_t b[4] = {pair_of_b(p, row + p->g, k), pair_of_b(p, row + p->g + 8, k),
                     pair_of_b(p, row + p->g, k + 8), pair_of_b(p, row + p->g + 8, k + 8)};
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
        tsr_mma(c[j], b, fragment[j][0], fragment[j][1]);
}

/* Sixteen columns of a row: half 0 has c[][0] and c[][1], half 1 the other two. All lanes call. */
static __device__ __forceinline__ void write_row(const merge_place *p, int64_t row, uint2 codes,
                                                 float level, float scale, const float c[GROUPS][4],
                                                 int half)
{
    uint32_t word[GROUPS];
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        uint32_t byte = (j < 4 ? codes.x : codes.y) >> (8 * (j % 4));
        float first = __fmul_rn(__shfl_sync(0xffffffffu, level, (int)(byte >> 4)), scale);
        float second = __fmul_rn(__shfl_sync(0xffffffffu, level, (int)byte), scale);
        word[j] = tsr_pack_bf16(fmaf(p->args->scale, c[j][2 * half], first),
                                fmaf(p->args->scale, c[j][2 * half + 1], second));
    }
    if (row >= p->rows)
        return;
    uint4 *out =
        (uint4 *)((uint16_t *)p->args->weight.out + row * p->columns + p->column + 16 * p->t);
    out[0] = make_uint4(word[0], word[1], word[2], word[3]);
    out[1] = make_uint4(word[4], word[5], word[6], word[7]);
}

static __device__ __forceinline__ uint2 load_codes(const merge_place *p, int64_t row)
{
    if (row >= p->rows)
        return make_uint2(0, 0);
    return __ldcs((const uint2 *)(p->args->weight.codes + (row * p->columns + p->column) / 2) +
                  p->t);
}

static __device__ __forceinline__ float load_scale(const merge_place *p, int64_t row)
{
    if (row >= p->rows)
        return 0;
    return tsr_nf4_scale(&p->args->weight, (row * p->columns + p->column) / TSR_NF4_BLOCK);
}

static __device__ __forceinline__ merge_place place_of(const tsr_nf4_merge_args *a)
{
    merge_place p;
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    unsigned across =
        (unsigned)((a->weight.columns + TSR_NF4_BLOCK * WARPS - 1) / (TSR_NF4_BLOCK * WARPS));
    p.args = a;
    p.columns = a->weight.columns;
    p.rows = a->weight.count / p.columns;
    p.row = (int64_t)(blockIdx.x / across) * ROWS;
    p.column = ((int64_t)(blockIdx.x % across) * WARPS + warp) * TSR_NF4_BLOCK;
    p.g = lane / 4;
    p.t = lane % 4;
    return p;
}

static __device__ __forceinline__ void merge(const tsr_nf4_merge_args *a, int steps)
{
    merge_place p = place_of(a);
    int lane = threadIdx.x % TSR_WARP;
    uint2 codes[TILES][2];
    uint32_t fragment[TSR_NF4_MERGE_RANK / STEP][GROUPS][2];
    if (p.column >= p.columns)
        return;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        codes[i][0] = load_codes(&p, p.row + i * TILE + p.g);
        codes[i][1] = load_codes(&p, p.row + i * TILE + p.g + 8);
    }
    /* Of row i of the first half of the rows, and of the second. */
    float scale[2] = {load_scale(&p, p.row + lane), load_scale(&p, p.row + lane + TSR_WARP)};
    float level = a->weight.level[lane % 16];
#pragma unroll
    for (int step = 0; step < steps; step++)
        load_a(fragment[step], &p, step);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        float c[GROUPS][4] = {};
        int64_t row = p.row + i * TILE;
#pragma unroll
        for (int step = 0; step < steps; step++)
            multiply(c, &p, row, step, fragment[step]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int holder = i % 2 * TILE + half * 8 + p.g;
            write_row(&p, row + half * 8 + p.g, codes[i][half], level,
                      __shfl_sync(0xffffffffu, scale[i / 2], holder), c, half);
        }
    }
}

/* One for each number of steps, with registers of its own; `blocks` are at least on a
 * multiprocessor. */
#define MERGE_OF(steps, blocks)                                                                    \
    static __global__ void __launch_bounds__(WARPS *TSR_WARP, blocks)                              \
        merge_##steps(const __grid_constant__ tsr_nf4_merge_args a)                                \
    {                                                                                              \
        merge(&a, steps);                                                                          \
    }

MERGE_OF(1, 6)
MERGE_OF(2, 5)
MERGE_OF(3, 4)
MERGE_OF(4, 3)

static bool fits(const tsr_nf4_merge_args *args)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    return tsr_nf4_merge_pays(w->dtype, w->columns, args->r) && (uintptr_t)w->codes % 8 == 0 &&
           (uintptr_t)w->out % 16 == 0 && (uintptr_t)args->a % 16 == 0 &&
           (uintptr_t)args->b % 4 == 0;
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
    unsigned blocks = (unsigned)(tsr_blocks(w->columns, TSR_NF4_BLOCK * WARPS) *
                                 tsr_blocks(w->count / w->columns, ROWS));
    cudaStream_t s = tsr_stream_cuda(stream);
    switch ((args->r + STEP - 1) / STEP) {
    case 1:
        merge_1<<<blocks, WARPS * TSR_WARP, 0, s>>>(*args);
        break;
    case 2:
        merge_2<<<blocks, WARPS * TSR_WARP, 0, s>>>(*args);
        break;
    case 3:
        merge_3<<<blocks, WARPS * TSR_WARP, 0, s>>>(*args);
        break;
    default:
        merge_4<<<blocks, WARPS * TSR_WARP, 0, s>>>(*args);
        break;
    }
    return tsr_launched("nf4_merge");
}
