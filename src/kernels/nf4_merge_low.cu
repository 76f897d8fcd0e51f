/*
 * nf4_merge_low.cu: nf4_merge for small ranks, where it should cost little more than nf4_dequant.
 *
 * Split    A warp has 64 columns, one block of codes in each row, and 64 rows, in 4 tiles of 16; a
 *          block has 4 such strips side by side. B A of a tile is 8 mma.m16n8k16 for every 16 ranks,
 *          whose fragments of A stay in registers for all rows. Codes, scales and B are asked for
 *          first; no barrier.
 * Columns  mma leaves a lane two columns of each group of 8. Which column of the strip a group's
 *          column stands for is free, as long as A is read the same way: column n of group j is
 *          32 (j / 4) + 8 (n / 2) + 2 (j % 4) + n % 2. So lane 4 g + t has the 8 columns from 8 t on
 *          of each half: a word of codes, and one 16-byte store, beside its neighbours'.
 * Cost     nf4_dequant's bytes, A and B from L2: 10 KB of them for a warp's 10 KB (r = 16).
 */
#include "kernels/mma.cuh"
#include "kernels/nf4_merge.cuh"

#define WARPS  4
#define TILE   16 /* rows of an mma */
#define TILES  4
#define ROWS   (TILE * TILES)
#define GROUPS 8  /* of 8 columns: a strip */
#define STEP   16 /* ranks of an mma */
#define STEPS  (TSR_NF4_MERGE_LOW / STEP)

/* A warp's place. */
typedef struct {
    const tsr_nf4_merge_args *args;
    int64_t rows, columns;
    int64_t row, column; /* its first */
    int g, t;
} low_place;

static __device__ __forceinline__ low_place place_of(const tsr_nf4_merge_args *a)
{
    low_place p;
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

/* The fragments of A for one step: b0 and b1 of each group. Ranks that do not exist are zero. */
static __device__ __forceinline__ void load_a(uint32_t fragment[GROUPS][2], const low_place *p,
                                              int step)
{
    uint32_t word[4][GROUPS]; /* of ranks 2t, 2t + 1, 2t + 8, 2t + 9: 8 columns of each half */
#pragma unroll
    for (int q = 0; q < 4; q++) {
        int64_t k = step * STEP + 2 * p->t + q % 2 + q / 2 * 8;
        uint4 low = {}, high = {};
        if (k < p->args->r) {
            const uint4 *from = (const uint4 *)((const uint16_t *)p->args->a + k * p->columns +
                                                p->column + p->g / 2 * TSR_VECTOR);
            low = tsr_load_common(from), high = tsr_load_common(from + 32 / TSR_VECTOR);
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
static __device__ __forceinline__ uint32_t pair_of_b(const low_place *p, int64_t row, int64_t k)
{
    if (row >= p->rows || k >= p->args->r)
        return 0;
    return tsr_load_common_word((const uint16_t *)p->args->b + row * p->args->r + k);
}

/* The fragment of B of a tile for one step. */
static __device__ __forceinline__ void load_b(uint32_t fragment[4], const low_place *p, int64_t row,
                                              int step)
{
    int64_t k = step * STEP + 2 * p->t;
    fragment[0] = pair_of_b(p, row + p->g, k);
    fragment[1] = pair_of_b(p, row + p->g + 8, k);
    fragment[2] = pair_of_b(p, row + p->g, k + 8);
    fragment[3] = pair_of_b(p, row + p->g + 8, k + 8);
}

/* Of a row: the lane's words of both halves. */
static __device__ __forceinline__ void load_codes(uint32_t codes[2], const low_place *p,
                                                  int64_t row)
{
    codes[0] = codes[1] = 0;
    if (row >= p->rows)
        return;
    const uint32_t *from =
        (const uint32_t *)(p->args->weight.codes + (row * p->columns + p->column) / 2) + p->t;
    codes[0] = __ldcs(from);
    codes[1] = __ldcs(from + 4);
}

static __device__ __forceinline__ float load_scale(const low_place *p, int64_t row)
{
    if (row >= p->rows)
        return 0;
    const tsr_nf4_dequant_args *w = &p->args->weight;
    int64_t block = (row * p->columns + p->column) / TSR_NF4_BLOCK;
    return tsr_nf4_scale(w, block);
}

/* Norms alone: arguments as write_row's. */
static __device__ __forceinline__ float square_row(const low_place *p, const uint32_t codes[2],
                                                   tsr_merge_levels levels, tsr_merge_scales scales,
                                                   const float c[GROUPS][4], int upper)
{
    float squares = 0;
    tsr_e4m3_table table = tsr_e4m3_quad_table(levels.of, scales.absmax, scales.inverse);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint2 four = tsr_e4m3_look_up8(&table, codes[half]);
        const uint32_t pairs[4] = {four.x, four.x >> 16, four.y, four.y >> 16};
#pragma unroll
        for (int j = 0; j < 4; j++)
            tsr_merge_square(p->args, c[4 * half + j] + 2 * upper, pairs[j], scales.e4m3, &squares);
    }
    return squares;
}

/* The lane's 16 columns of a row: upper 0 has c[][0] and c[][1], upper 1 the other two. All lanes
 * call. With norms, the sum of their squares. */
static __device__ __forceinline__ float write_row(const low_place *p, int64_t row,
                                                  const uint32_t codes[2], tsr_merge_levels levels,
                                                  tsr_merge_scales scales, const float c[GROUPS][4],
                                                  int upper, const int kind)
{
    uint32_t word[GROUPS];
    float squares = 0, level = levels.of[0], scale = scales.absmax;
    if (kind == TSR_MERGE_ALONE)
        return square_row(p, codes, levels, scales, c, upper);
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        uint32_t byte = codes[j / 4] >> (8 * (j % 4)); /* its first element is its high nibble */
        float first = __fmul_rn(__shfl_sync(0xffffffffu, level, (int)(byte >> 4)), scale);
        float second = __fmul_rn(__shfl_sync(0xffffffffu, level, (int)byte), scale);
        word[j] = tsr_merge_pair(p->args, c[j] + 2 * upper, first, second, kind, &squares);
    }
    if (row >= p->rows)
        return squares;
    uint4 *out = (uint4 *)((uint16_t *)p->args->weight.out + row * p->columns + p->column) + p->t;
    out[0] = make_uint4(word[0], word[1], word[2], word[3]);
    out[32 / TSR_VECTOR] = make_uint4(word[4], word[5], word[6], word[7]);
    return squares;
}

static __device__ __forceinline__ void merge(const tsr_nf4_merge_args *a, int steps, const int kind)
{
    low_place p = place_of(a);
    int lane = threadIdx.x % TSR_WARP;
    uint32_t codes[TILES][2][2], fragment_a[STEPS][GROUPS][2], fragment_b[TILES][STEPS][4];
    if (p.column >= p.columns)
        return;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        load_codes(codes[i][0], &p, p.row + i * TILE + p.g);
        load_codes(codes[i][1], &p, p.row + i * TILE + p.g + 8);
#pragma unroll
        for (int step = 0; step < steps; step++)
            load_b(fragment_b[i][step], &p, p.row + i * TILE, step);
    }
    /* Of row `lane` of the first half of the rows, and of the second. */
    tsr_merge_scales scales[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        scales[i] = tsr_merge_make_scales(
            load_scale(&p, p.row + lane + i * TSR_WARP),
            tsr_merge_find_row(a, p.rows, p.row + lane + i * TSR_WARP, kind), kind);
    tsr_merge_levels levels = tsr_merge_find_levels(a, kind);
#pragma unroll
    for (int step = 0; step < steps; step++)
        load_a(fragment_a[step], &p, step);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        float c[GROUPS][4] = {}, squares[2];
#pragma unroll
        for (int step = 0; step < steps; step++)
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
                tsr_mma(c[j], fragment_b[i][step], fragment_a[step][j][0], fragment_a[step][j][1]);
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            int holder = i % 2 * TILE + upper * 8 + p.g;
            squares[upper] =
                write_row(&p, p.row + i * TILE + upper * 8 + p.g, codes[i][upper], levels,
                          tsr_merge_scales_of(scales[i / 2], holder, kind), c, upper, kind);
        }
        if (kind != TSR_MERGE_PLAIN)
            tsr_merge_partials(a, p.rows, p.row + i * TILE, p.column / TSR_NF4_BLOCK, squares);
    }
}

/* Registers of their own for one step and for two. */
template <int KIND>
static __global__ void __launch_bounds__(WARPS *TSR_WARP, 5)
    merge_one(const __grid_constant__ tsr_nf4_merge_args a)
{
    tsr_kernel_begin();
    merge(&a, 1, KIND);
}

template <int KIND>
static __global__ void __launch_bounds__(WARPS *TSR_WARP, 4)
    merge_two(const __grid_constant__ tsr_nf4_merge_args a)
{
    tsr_kernel_begin();
    merge(&a, 2, KIND);
}

static unsigned blocks_of(const tsr_nf4_dequant_args *w)
{
    return (unsigned)(tsr_blocks(w->columns, TSR_NF4_BLOCK * WARPS) *
                      tsr_blocks(w->count / w->columns, ROWS));
}

void tsr_nf4_merge_low(tsr_stream *stream, const tsr_nf4_merge_args *args)
{
    void (*const one[TSR_MERGE_KINDS])(const tsr_nf4_merge_args) = {merge_one<0>, merge_one<1>,
                                                                    merge_one<2>, merge_one<3>};
    void (*const two[TSR_MERGE_KINDS])(const tsr_nf4_merge_args) = {merge_two<0>, merge_two<1>,
                                                                    merge_two<2>, merge_two<3>};
    int kind = tsr_merge_kind(args);
    TSR_LAUNCH((args->r <= STEP ? one : two)[kind], blocks_of(&args->weight), WARPS * TSR_WARP,
               stream, *args);
    if (kind != TSR_MERGE_PLAIN)
        tsr_nf4_merge_finish(stream, args, TSR_NF4_BLOCK);
}
