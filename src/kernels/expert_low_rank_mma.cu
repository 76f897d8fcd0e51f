/*
 * expert_low_rank_mma.cu: expert_low_rank and expert_low_rank_backward in bf16, in tensor cores.
 *
 * make_low   low. A block of 8 warps has 128 rows of an expert, a warp 16, and up to 64 ranks; chunks of 64
 *            summands go through a ring of four buffers, filled by asynchronous copies that gather rows as they go.
 * add_rows   db = dz^T low and da = d_low^T x. A block has a strip of 128 columns of dz or x of an expert, a
 *            warp 16, and up to 64 ranks, in registers; the expert's rows go by in order, 64 at a time. So a sum
 *            is one block's: no partial sums, and no order but that of the rows. Experts with most rows go first, as their
 *            blocks take longest.
 * Cost       x and dz once each, from memory or L2; the factors once for 128 rows. Both wait for memory. On an H200
 *            8192 tokens times 8 of 128 experts at r 16 take for 1536 x 2048 (2048 x 768) 0.064 (0.036) ms for low of x,
 *            0.065 (0.069) for that of dz, and 0.160 (0.135) for db and da; 0.41 (0.43) where the largest expert has 18 % of
 *            the rows, which its few blocks go through.
 */
#include "kernels/expert_low_rank.cuh"
#include "kernels/expert_tiles.cuh"
#include "kernels/mma.cuh"

#define THREADS    256
#define WARPS      (THREADS / TSR_WARP)
#define SIDE       (16 * WARPS) /* rows of a block that makes low; columns of one that adds rows */
#define CHUNK      64
#define LOW_STAGES 4 /* 0.064 ms for 65536 rows of 2048; with 3 0.076 */
#define ADD_STAGES 3
#define PAD        8 /* elements: rows lie 16 bytes further modulo 128, so no two collide */
#define EACH       (SIDE * CHUNK / TSR_VECTOR / THREADS) /* copies of a thread */

#define RANKS       (8 * GROUPS) /* of a block */
#define ROW_PITCH   (CHUNK + PAD)
#define RANK_PITCH  (RANKS + PAD)
#define STRIP_PITCH (SIDE + PAD)

/* The rows of x; of a factor. The rows of x or dz; of low or d_low. */
template <int GROUPS> struct low_stage {
    __nv_bfloat16 rows[SIDE * ROW_PITCH];
    __nv_bfloat16
        factor[CHUNK * RANK_PITCH > RANKS *ROW_PITCH ? CHUNK *RANK_PITCH : RANKS *ROW_PITCH];
};
template <int GROUPS> struct add_stage {
    __nv_bfloat16 rows[CHUNK * STRIP_PITCH];
    __nv_bfloat16 low[CHUNK * RANK_PITCH];
};

static __device__ __forceinline__ int row_from(const tsr_expert_rows *rows, int row, int row_end,
                                               bool gather)
{
    if (row >= row_end)
        return -1;
    return gather ? rows->slot[row] / (int32_t)rows->k : row;
}

/* ---- low ---- */

/* What a block multiplies: `rows` of `width` elements, the factor of its expert. */
typedef struct {
    const __nv_bfloat16 *rows, *factor;
    int width, r, rank; /* the first */
    int from[EACH];     /* the rows that the thread copies of; -1: none */
} low_place;

/* Summands from `first` on of both, a group of copies; what does not exist is zero. A factor has a row for
 * each rank, or BY_COLUMN for each summand. */
template <int GROUPS, bool BY_COLUMN>
static __device__ __forceinline__ void fetch_low(low_stage<GROUPS> *stage, const low_place *p,
                                                 int first)
{
    if (first < p->width) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = (int)threadIdx.x + i * THREADS;
            int row = at / (CHUNK / TSR_VECTOR), k = at % (CHUNK / TSR_VECTOR) * TSR_VECTOR;
            bool there = p->from[i] >= 0 && first + k < p->width;
            tsr_copy16(stage->rows + row * ROW_PITCH + k,
                       p->rows + (there ? (int64_t)p->from[i] * p->width + first + k : 0), there);
        }
        for (int at = (int)threadIdx.x; at < RANKS * CHUNK / TSR_VECTOR; at += THREADS) {
            const int across = BY_COLUMN ? RANKS / TSR_VECTOR : CHUNK / TSR_VECTOR;
            int row = at / across, column = at % across * TSR_VECTOR;
            int rank = p->rank + (BY_COLUMN ? column : row);
            int k = first + (BY_COLUMN ? row : column);
            bool there = rank < p->r && k < p->width;
            int64_t from = BY_COLUMN ? (int64_t)k * p->r + rank : (int64_t)rank * p->width + k;
            tsr_copy16(stage->factor + row * (BY_COLUMN ? RANK_PITCH : ROW_PITCH) + column,
                       p->factor + (there ? from : 0), there);
        }
    }
    tsr_copy_commit();
}

/* c[j] += of the warp's rows and group j of 8 ranks. */
template <int GROUPS, bool BY_COLUMN>
static __device__ __forceinline__ void multiply_low(float c[GROUPS][4],
                                                    const low_stage<GROUPS> *stage)
{
    int lane = threadIdx.x % TSR_WARP, low = lane % 16, high = lane / 16 * 8;
    int row = threadIdx.x / TSR_WARP * 16;
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
        uint32_t left[4];
        tsr_ldmatrix(left, stage->rows + (row + low) * ROW_PITCH + k + high);
#pragma unroll
        for (int j = 0; j < GROUPS; j += 2) {
            uint32_t right[4];
            if (BY_COLUMN)
                tsr_ldmatrix_t(right, stage->factor + (k + low) * RANK_PITCH + 8 * j + high);
            else
                tsr_ldmatrix(right, stage->factor + (8 * j + lane % 8 + high) * ROW_PITCH + k +
                                        lane / 8 % 2 * 8);
            tsr_mma(c[j], left, right[0], right[1]);
            tsr_mma(c[j + 1], left, right[2], right[3]);
        }
    }
}

/* A lane's two ranks of a row, p times and as they are. */
static __device__ __forceinline__ void write_low(const tsr_expert_low_rank_args *a, int row,
                                                 int rank, float first, float second)
{
    int64_t at = (int64_t)row * a->r + rank;
    first *= a->scale, second *= a->scale;
    if (a->low)
        *(uint32_t *)((uint16_t *)a->low + at) = tsr_pack_bf16(first, second);
    if (!a->weighted)
        return;
    float p = a->p[a->rows.slot[row]];
    *(uint32_t *)((uint16_t *)a->weighted + at) = tsr_pack_bf16(p * first, p * second);
}

template <int GROUPS, bool BY_COLUMN>
static __global__ void __launch_bounds__(THREADS, 2)
    make_low(const __grid_constant__ tsr_expert_low_rank_args a)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    __shared__ tsr_expert_starts starts;
    low_stage<GROUPS> *stage = (low_stage<GROUPS> *)memory;
    tsr_expert_tile tile;
    low_place p;
    float c[GROUPS][4] = {};
    int experts = (int)a.rows.experts, at = 0, lane = threadIdx.x % TSR_WARP;
    p.r = (int)a.r;
    tsr_expert_count(&starts, &a.rows, 0, experts, SIDE);
    if (!tsr_expert_tile_at(&tile, &starts, experts, SIDE, (p.r + RANKS - 1) / RANKS, RANKS,
                            (int)blockIdx.x))
        return;
    p.rank = tile.column;
    p.width = (int)a.width;
    p.rows = (const __nv_bfloat16 *)a.x;
    p.factor = (const __nv_bfloat16 *)a.factor + (int64_t)tile.expert * p.width * p.r;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        p.from[i] =
            row_from(&a.rows, tile.row + ((int)threadIdx.x + i * THREADS) / (CHUNK / TSR_VECTOR),
                     tile.row_end, a.rows.slot && !a.in_order);
    for (int i = 0; i < LOW_STAGES - 1; i++)
        fetch_low<GROUPS, BY_COLUMN>(stage + i, &p, i * CHUNK);
    for (int first = 0; first < p.width; first += CHUNK) {
        tsr_copy_wait_but_two();
        __syncthreads(); /* this chunk is here, and nobody reads the one before it */
        fetch_low<GROUPS, BY_COLUMN>(stage + (at ? at - 1 : LOW_STAGES - 1), &p,
                                     first + (LOW_STAGES - 1) * CHUNK);
        multiply_low<GROUPS, BY_COLUMN>(c, stage + at);
        at = at + 1 < LOW_STAGES ? at + 1 : 0;
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            int row = tile.row + threadIdx.x / TSR_WARP * 16 + lane / 4 + 8 * upper;
            int rank = p.rank + 8 * j + lane % 4 * 2;
            if (row < tile.row_end && rank < p.r)
                write_low(&a, row, rank, c[j][2 * upper], c[j][2 * upper + 1]);
        }
}

/* ---- db and da ---- */

typedef struct {
    const tsr_expert_rows *order;
    const __nv_bfloat16 *rows, *low;
    int width, column, r, rank; /* the first of each */
    int row_end;
    bool gather;
} add_place;

/* The rows of a thread's copies. */
typedef struct {
    int from[EACH];
} add_rows_from;

static __device__ __forceinline__ add_rows_from find_rows(const add_place *p, int first)
{
    add_rows_from found;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        found.from[i] =
            row_from(p->order, first + ((int)threadIdx.x + i * THREADS) / (SIDE / TSR_VECTOR),
                     p->row_end, p->gather);
    return found;
}

/* Rows from `first` on, a group of copies; what does not exist is zero. */
template <int GROUPS>
static __device__ __forceinline__ void fetch_rows(add_stage<GROUPS> *stage, const add_place *p,
                                                  const add_rows_from *found, int first)
{
    if (first < p->row_end) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = (int)threadIdx.x + i * THREADS;
            int row = at / (SIDE / TSR_VECTOR), column = at % (SIDE / TSR_VECTOR) * TSR_VECTOR;
            bool there = found->from[i] >= 0 && p->column + column < p->width;
            tsr_copy16(stage->rows + row * STRIP_PITCH + column,
                       p->rows +
                           (there ? (int64_t)found->from[i] * p->width + p->column + column : 0),
                       there);
        }
        for (int at = (int)threadIdx.x; at < RANKS * CHUNK / TSR_VECTOR; at += THREADS) {
            int row = at / (RANKS / TSR_VECTOR), rank = at % (RANKS / TSR_VECTOR) * TSR_VECTOR;
            bool there = first + row < p->row_end && p->rank + rank < p->r;
            tsr_copy16(stage->low + row * RANK_PITCH + rank,
                       p->low + (there ? (int64_t)(first + row) * p->r + p->rank + rank : 0),
                       there);
        }
    }
    tsr_copy_commit();
}

/* c[j] += of the warp's 16 columns and group j of 8 ranks. */
template <int GROUPS>
static __device__ __forceinline__ void multiply_rows(float c[GROUPS][4],
                                                     const add_stage<GROUPS> *stage)
{
    int lane = threadIdx.x % TSR_WARP, low = lane % 16, high = lane / 16 * 8;
    int column = threadIdx.x / TSR_WARP * 16;
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
        uint32_t left[4];
        tsr_ldmatrix_t(left, stage->rows + (k + lane % 8 + high) * STRIP_PITCH + column +
                                 lane / 8 % 2 * 8);
#pragma unroll
        for (int j = 0; j < GROUPS; j += 2) {
            uint32_t right[4];
            tsr_ldmatrix_t(right, stage->low + (k + low) * RANK_PITCH + 8 * j + high);
            tsr_mma(c[j], left, right[0], right[1]);
            tsr_mma(c[j + 1], left, right[2], right[3]);
        }
    }
}

/* db has a row for each column of dz, da for each rank. */
template <int GROUPS>
static __device__ __forceinline__ void write_sums(const add_place *p, float *to, bool by_rank,
                                                  const float c[GROUPS][4])
{
    int lane = threadIdx.x % TSR_WARP;
    int column = p->column + threadIdx.x / TSR_WARP * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            int rank = p->rank + 8 * j + lane % 4 * 2, own = column + 8 * upper;
            float first = c[j][2 * upper], second = c[j][2 * upper + 1];
            if (own >= p->width || rank >= p->r)
                continue;
            if (by_rank) {
                to[(int64_t)rank * p->width + own] = first;
                to[(int64_t)(rank + 1) * p->width + own] = second;
            } else {
                *(float2 *)(to + (int64_t)own * p->r + rank) = make_float2(first, second);
            }
        }
}

#define COUNT_BITS 21 /* beyond which experts count as equal */

/* The expert that `place` others are before, those with most rows first, and where its rows begin. Every thread of a block asks. */
static __device__ __forceinline__ int expert_at(int *first, int *end, const tsr_expert_rows *rows,
                                                int place)
{
    __shared__ __align__(16) unsigned key[TSR_EXPERTS_MOST]; /* as the order, no two alike */
    __shared__ int found[3];
    int experts = (int)rows->experts, padded = (experts + 3) / 4 * 4;
    int own_first[TSR_EXPERTS_MOST / THREADS], own_end[TSR_EXPERTS_MOST / THREADS];
#pragma unroll
    for (int i = 0; i < TSR_EXPERTS_MOST / THREADS; i++) {
        int e = (int)threadIdx.x + i * THREADS;
        if (e >= padded)
            break;
        own_first[i] = e < experts ? rows->offset[e] : 0;
        own_end[i] = e < experts ? rows->offset[e + 1] : 0;
        unsigned count = (unsigned)min(own_end[i] - own_first[i], (1 << COUNT_BITS) - 1);
        key[e] = e < experts ? count * TSR_EXPERTS_MOST + (unsigned)(TSR_EXPERTS_MOST - e) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TSR_EXPERTS_MOST / THREADS; i++) {
        int e = (int)threadIdx.x + i * THREADS, before = 0;
        if (e >= experts)
            break;
        unsigned own = key[e];
        for (int other = 0; other < padded; other += 4) {
            uint4 four = *(const uint4 *)(key + other);
            before += (four.x > own) + (four.y > own) + (four.z > own) + (four.w > own);
        }
        if (before == place)
            found[0] = e, found[1] = own_first[i], found[2] = own_end[i];
    }
    __syncthreads();
    *first = found[1], *end = found[2];
    return found[0];
}

/* With few ranks a third block fits: 0.160 ms, not 0.203. */
template <int GROUPS>
static __global__ void __launch_bounds__(THREADS, GROUPS == 2 ? 3 : 2)
    add_rows(const __grid_constant__ tsr_expert_low_rank_backward_args a)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    add_stage<GROUPS> *stage = (add_stage<GROUPS> *)memory;
    int dz_strips = (int)((a.out + SIDE - 1) / SIDE);
    int strips = dz_strips + (int)((a.in + SIDE - 1) / SIDE);
    int first, end;
    int64_t expert = expert_at(&first, &end, &a.rows, (int)(blockIdx.x / (unsigned)strips));
    int strip = (int)(blockIdx.x % (unsigned)strips), at = 0;
    bool of_dz = strip < dz_strips;
    float c[GROUPS][4] = {};
    add_place p;
    p.order = &a.rows;
    p.rows = (const __nv_bfloat16 *)(of_dz ? a.dz : a.x);
    p.low = (const __nv_bfloat16 *)(of_dz ? a.low : a.d_low);
    p.width = (int)(of_dz ? a.out : a.in);
    p.column = (of_dz ? strip : strip - dz_strips) * SIDE;
    p.r = (int)a.r;
    p.rank = (int)blockIdx.y * RANKS;
    p.row_end = end;
    p.gather = of_dz == a.spread && a.rows.slot;
    add_rows_from next = find_rows(&p, first);
    for (int i = 0; i < ADD_STAGES - 1; i++) {
        fetch_rows<GROUPS>(stage + i, &p, &next, first + i * CHUNK);
        next = find_rows(&p, first + (i + 1) * CHUNK);
    }
    for (; first < p.row_end; first += CHUNK) {
        tsr_copy_wait_but_one();
        __syncthreads(); /* these rows are here, and nobody reads those before them */
        fetch_rows<GROUPS>(stage + (at ? at - 1 : ADD_STAGES - 1), &p, &next,
                           first + (ADD_STAGES - 1) * CHUNK);
        next = find_rows(&p, first + ADD_STAGES * CHUNK);
        multiply_rows<GROUPS>(c, stage + at);
        at = at + 1 < ADD_STAGES ? at + 1 : 0;
    }
    write_sums<GROUPS>(&p, (of_dz ? a.db : a.da) + expert * p.width * p.r, !of_dz, c);
}

/* ---- launching ---- */

template <int GROUPS>
static tsr_status launch_low(tsr_stream *stream, const tsr_expert_low_rank_args *args)
{
    void (*kernel)(const tsr_expert_low_rank_args) =
        args->by_column ? make_low<GROUPS, true> : make_low<GROUPS, false>;
    int bytes = LOW_STAGES * (int)sizeof(low_stage<GROUPS>);
    int64_t blocks = tsr_expert_most_blocks(args->rows.most, args->rows.experts, SIDE) *
                     tsr_blocks(args->r, RANKS);
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, bytes, "expert_low_rank"));
    TSR_LAUNCH_SHARED(kernel, (unsigned)blocks, THREADS, (size_t)bytes, stream, *args);
    return tsr_launched("expert_low_rank");
}

tsr_status tsr_expert_low_rank_mma(tsr_stream *stream, const tsr_expert_low_rank_args *args)
{
    return args->r <= 16   ? launch_low<2>(stream, args)
           : args->r <= 32 ? launch_low<4>(stream, args)
                           : launch_low<8>(stream, args);
}

template <int GROUPS>
static tsr_status launch_add(tsr_stream *stream, const tsr_expert_low_rank_backward_args *args)
{
    const char *op = "expert_low_rank_backward";
    int bytes = ADD_STAGES * (int)sizeof(add_stage<GROUPS>);
    int64_t strips = tsr_blocks(args->out, SIDE) + tsr_blocks(args->in, SIDE);
    TSR_TRY(tsr_allow_shared(stream, (const void *)add_rows<GROUPS>, bytes, op));
    TSR_LAUNCH_SHARED(add_rows<GROUPS>,
                      dim3((unsigned)(strips * args->rows.experts), tsr_blocks(args->r, RANKS)),
                      THREADS, (size_t)bytes, stream, *args);
    return tsr_launched(op);
}

tsr_status tsr_expert_low_rank_backward_mma(tsr_stream *stream,
                                            const tsr_expert_low_rank_backward_args *args)
{
    return args->r <= 16   ? launch_add<2>(stream, args)
           : args->r <= 32 ? launch_add<4>(stream, args)
                           : launch_add<8>(stream, args);
}
