/*
 * expert_low_rank_cluster.cu: expert_low_rank_backward in bf16 on sm_90a, in one pass over dz and one over x.
 *
 * Split    A cluster of 8 blocks has an expert and up to 64 ranks; experts with most rows go first. A block has an eighth of
 *          the columns of dz, then of x, and its share of B in shared memory. The expert's rows go by in order, 32 at a time,
 *          through a ring of buffers that asynchronous copies fill, gathering rows as they go; with the last rows of dz the
 *          first of x are on their way.
 * dz       A warp multiplies 16 rows with B, of every other or fourth 16 of the block's columns: a part of d_low. Then it
 *          has some columns, and adds these rows, transposed, times low to its part of db, which stays in registers.
 * d_low    Warps of the same rows add their parts, and send the sums of the block to the blocks of the cluster that own these
 *          rows, 4 of 32 each. An owner adds what 8 blocks sent, in their order, and writes: while the next rows are
 *          multiplied, so that nobody waits for the barrier between.
 * x        When the cluster has all of d_low, da as db. No other block has a part in it, so no order of blocks is needed.
 * Cost     x and dz once, from memory or L2. In shared memory dz is written once and read twice; at r 16 reading B is as much again,
 *          all else half. A block sends 4 r bytes for a row of which it reads an eighth of `out` elements.
 */
#include "kernels/cluster.cuh"
#include "kernels/expert_low_rank_parts.cuh"
#include "kernels/wgmma.cuh"

#define CLUSTER 8
#define CHUNK   32                /* rows of a buffer */
#define TILES   (CHUNK / 16)      /* rows of a warp's part of d_low */
#define OWN     (CHUNK / CLUSTER) /* of a buffer's rows, those whose d_low a block writes */

/* Two blocks fit a multiprocessor with up to 32 ranks and 256 columns each; otherwise one. */
#define RANKS      (8 * GROUPS)
#define WARPS      (THREADS / TSR_WARP)
#define SPLITS     (WARPS / TILES)          /* parts of a row's d_low in a block */
#define PIECES     (COLUMNS / (16 * WARPS)) /* groups of 16 columns of a warp */
#define EACH       (CHUNK / WARPS)          /* rows that a warp copies */
#define PITCH      (COLUMNS + LOW_PAD)
#define RANK_PITCH (RANKS + LOW_PAD)
#define STAGES     (GROUPS == 4 ? 4 : 5)

/* A block's. */
template <int GROUPS, int THREADS, int COLUMNS> struct cluster_memory {
    float sums[2][CLUSTER][OWN][RANKS]; /* what blocks sent, of one chunk and of the next */
    float4 parts[SPLITS - 1][TILES][GROUPS][TSR_WARP];
    __nv_bfloat16 factor[COLUMNS * RANK_PITCH];
    __nv_bfloat16 low[STAGES][CHUNK * RANK_PITCH];
    __nv_bfloat16 rows[STAGES][CHUNK * PITCH];
};

/* dz or x: the block's columns. */
typedef struct {
    const __nv_bfloat16 *rows;
    int width, column, wide;
    bool gather;
} cluster_side;

typedef struct {
    const tsr_expert_low_rank_backward_args *a;
    cluster_side dz, x;
    int64_t expert;
    int first, end, chunks; /* rows of the expert */
    int r, rank, block;     /* the first of the cluster's ranks; the place in the cluster */
} cluster_place;

/* Columns of a block, whole groups of 16. */
static __host__ __device__ __forceinline__ int64_t cluster_columns(int64_t width)
{
    return (width + 16 * CLUSTER - 1) / (16 * CLUSTER) * 16;
}

/* Buffers follow each other: the chunks of dz, then those of x. */
static __device__ __forceinline__ __attribute__((unused)) int row_of(const cluster_place *p,
                                                                     int item)
{
    return p->first + (item < p->chunks ? item : item - p->chunks) * CHUNK;
}

/* ---- copies ---- */

/* Which row the lane's copy of a buffer is of, for the warp. */
template <int WARP_ROWS>
static __device__ __forceinline__ int find_row(const cluster_place *p, int item)
{
    int own = threadIdx.x / TSR_WARP * WARP_ROWS + threadIdx.x % TSR_WARP % WARP_ROWS;
    return low_row_from(&p->a->rows, row_of(p, item) + own, p->end,
                        item < p->chunks ? p->dz.gather : p->x.gather);
}

template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void fetch_rows(__nv_bfloat16 *to, cluster_side side, int found)
{
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int from = __shfl_sync(0xffffffffu, found, i);
#pragma unroll
        for (int j = 0; j < COLUMNS / TSR_VECTOR; j += TSR_WARP) {
            int column = (j + lane) * TSR_VECTOR;
            bool there = from >= 0 && side.column + column < side.width;
            int64_t at = there ? (int64_t)from * side.width + side.column + column : 0;
            if (column < side.wide)
                tsr_copy16(to + (warp * EACH + i) * PITCH + column, side.rows + at, there);
        }
    }
}

/* The chunk's rows of low or d_low. */
template <int GROUPS, int THREADS>
static __device__ __forceinline__ void fetch_low(__nv_bfloat16 *to, const void *low,
                                                 const cluster_place *p, int first)
{
#pragma unroll
    for (int i = (int)threadIdx.x; i < CHUNK * GROUPS; i += THREADS) {
        int row = i / GROUPS, rank = i % GROUPS * 8;
        bool there = first + row < p->end && p->rank + rank < p->r;
        int64_t at = there ? (int64_t)(first + row) * p->r + p->rank + rank : 0;
        tsr_copy16(to + row * RANK_PITCH + rank, (const __nv_bfloat16 *)low + at, there);
    }
}

/* B of the block's columns. */
template <int GROUPS, int THREADS>
static __device__ __forceinline__ void fetch_factor(__nv_bfloat16 *to, const cluster_place *p)
{
    const __nv_bfloat16 *b = (const __nv_bfloat16 *)p->a->b + p->expert * p->dz.width * p->r;
    for (int i = (int)threadIdx.x; i < p->dz.wide * GROUPS; i += THREADS) {
        int column = i / GROUPS, rank = i % GROUPS * 8;
        bool there = p->dz.column + column < p->dz.width && p->rank + rank < p->r;
        int64_t at = there ? (int64_t)(p->dz.column + column) * p->r + p->rank + rank : 0;
        tsr_copy16(to + column * RANK_PITCH + rank, b + at, there);
    }
}

/* A group of copies: a buffer, if there is one, with its rows of `low`, unless these are yet to be made. */
template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void fetch(cluster_memory<GROUPS, THREADS, COLUMNS> *m,
                                             const cluster_place *p, int item, int stage, int found,
                                             const void *low)
{
    if (item < 2 * p->chunks) {
        fetch_rows<GROUPS, THREADS, COLUMNS>(m->rows[stage], item < p->chunks ? p->dz : p->x,
                                             found);
        if (low)
            fetch_low<GROUPS, THREADS>(m->low[stage], low, p, row_of(p, item));
    }
    tsr_copy_commit();
}

/* ---- d_low ---- */

/* The warp's part of d_low. */
template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void
multiply(float c[GROUPS][4], const cluster_memory<GROUPS, THREADS, COLUMNS> *m, int stage, int wide)
{
    int tile = threadIdx.x / TSR_WARP % TILES, split = threadIdx.x / TSR_WARP / TILES;
#pragma unroll 4
    for (int k = 16 * split; k < wide; k += 16 * SPLITS)
        low_multiply<GROUPS, true>(c, m->rows[stage] + tile * 16 * PITCH + k, PITCH,
                                   m->factor + k * RANK_PITCH, RANK_PITCH);
}

/* All but the first of a tile's warps leave their parts, and the first adds them. */
template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void leave(cluster_memory<GROUPS, THREADS, COLUMNS> *m,
                                             const float c[GROUPS][4])
{
    int tile = threadIdx.x / TSR_WARP % TILES, split = threadIdx.x / TSR_WARP / TILES;
    if (split == 0)
        return;
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
        m->parts[split - 1][tile][j][threadIdx.x % TSR_WARP] =
            make_float4(c[j][0], c[j][1], c[j][2], c[j][3]);
}

template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void join(float c[GROUPS][4],
                                            const cluster_memory<GROUPS, THREADS, COLUMNS> *m)
{
    int tile = threadIdx.x / TSR_WARP % TILES, split = threadIdx.x / TSR_WARP / TILES;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + tile), "n"(SPLITS * TSR_WARP) : "memory");
    if (split)
        return;
#pragma unroll
    for (int i = 0; i < SPLITS - 1; i++)
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float4 part = m->parts[i][tile][j][threadIdx.x % TSR_WARP];
            c[j][0] += part.x, c[j][1] += part.y, c[j][2] += part.z, c[j][3] += part.w;
        }
}

/* The sums of the block to the owners of their rows. */
template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void
send(const float c[GROUPS][4], cluster_memory<GROUPS, THREADS, COLUMNS> *m, int turn, int block)
{
    int lane = threadIdx.x % TSR_WARP, tile = threadIdx.x / TSR_WARP;
    if (tile >= TILES)
        return;
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        int row = 16 * tile + lane / 4 + 8 * upper;
        uint32_t to = tsr_cluster_address(
            tsr_shared_address(&m->sums[turn][block][row % OWN][lane % 4 * 2]), row / OWN);
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
            tsr_cluster_store2(to + j * 8 * (uint32_t)sizeof(float), c[j][2 * upper],
                               c[j][2 * upper + 1]);
    }
}

/* A thread's row of a chunk, of those that the block owns; -1: none. */
template <int GROUPS> static __device__ __forceinline__ int own_row(const cluster_place *p, int i)
{
    int row = p->first + i * CHUNK + p->block * OWN + (int)threadIdx.x / (RANKS / 2);
    return threadIdx.x < OWN * RANKS / 2 && row < p->end ? row : -1;
}

/* Its slot, if that is asked for p. */
template <int GROUPS> static __device__ __forceinline__ int own_slot(const cluster_place *p, int i)
{
    int row = own_row<GROUPS>(p, i);
    return row >= 0 && p->a->p ? p->a->rows.slot[row] : -1;
}

/* What all blocks sent, of chunk i. */
template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void write_own(const cluster_memory<GROUPS, THREADS, COLUMNS> *m,
                                                 const cluster_place *p, int i, float weight)
{
    const tsr_expert_low_rank_backward_args *a = p->a;
    int row = own_row<GROUPS>(p, i), rank = (int)threadIdx.x % (RANKS / 2) * 2;
    float2 sum = make_float2(0, 0);
    if (row < 0 || p->rank + rank >= p->r)
        return;
#pragma unroll
    for (int from = 0; from < CLUSTER; from++) {
        float2 part = *(const float2 *)&m->sums[i % 2][from][(int)threadIdx.x / (RANKS / 2)][rank];
        sum.x += part.x, sum.y += part.y;
    }
    low_write(a->d_low, a->p ? a->weighted : NULL, (int64_t)row * p->r + p->rank + rank,
              a->scale * sum.x, a->scale * sum.y, weight);
}

/* ---- the kernel ---- */

static __device__ __forceinline__ __attribute__((unused)) cluster_side
side_of(const void *rows, int64_t width, int block, bool gather)
{
    int wide = (int)cluster_columns(width);
    return (cluster_side){(const __nv_bfloat16 *)rows, (int)width, block * wide, wide, gather};
}

template <int GROUPS, int THREADS>
static __device__ __forceinline__ cluster_place
find_place(const tsr_expert_low_rank_backward_args *a)
{
    cluster_place p;
    p.a = a;
    p.block = tsr_cluster_place();
    p.dz = side_of(a->dz, a->out, p.block, a->p != NULL);
    p.x = side_of(a->x, a->in, p.block, a->rows.slot && !a->p);
    p.expert =
        low_expert_at<THREADS>(&p.first, &p.end, &a->rows, (int)(blockIdx.x / (unsigned)CLUSTER));
    p.chunks = (p.end - p.first + CHUNK - 1) / CHUNK;
    p.r = (int)a->r;
    p.rank = (int)blockIdx.y * RANKS;
    return p;
}

/* The warp's columns, of db or da; and zeros for what comes next. */
template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void write_sums(float *to, const cluster_place *p,
                                                  cluster_side side, bool by_rank,
                                                  float sum[PIECES][GROUPS][4])
{
    int column = (int)threadIdx.x / TSR_WARP * 16;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int own = column + i * 16 * WARPS;
        if (own < side.wide)
            low_write_sums<GROUPS>(to + p->expert * side.width * p->r, side.width, p->r,
                                   side.column + own, p->rank, by_rank, sum[i]);
#pragma unroll
        for (int j = 0; j < 4 * GROUPS; j++)
            sum[i][j / 4][j % 4] = 0;
    }
}

/* d_low and db. Returns where the ring is; the thread's next row of x is `next`. */
template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ int pass_dz(cluster_memory<GROUPS, THREADS, COLUMNS> *m,
                                              const cluster_place *p, int *next)
{
    const tsr_expert_low_rank_backward_args *a = p->a;
    float sum[PIECES][GROUPS][4] = {}, weight = 1;
    int at = 0, slot = own_slot<GROUPS>(p, 0);
    for (int i = 0; i < p->chunks; i++) {
        float c[GROUPS][4] = {}, weight_here = slot >= 0 ? a->p[slot] : 1;
        slot = own_slot<GROUPS>(p, i + 1);
        tsr_copy_wait_but<STAGES - 2>();
        __syncthreads(); /* this chunk is here, and nobody reads the one before it */
        int item = i + STAGES - 1;
        fetch(m, p, item, at ? at - 1 : STAGES - 1, *next, item < p->chunks ? a->low : NULL);
        *next = find_row<EACH>(p, item + 1);
        multiply(c, m, at, p->dz.wide);
        leave(m, c);
        low_add_rows<GROUPS, PIECES, CHUNK>(sum, m->rows[at], PITCH, m->low[at],
                                            (int)threadIdx.x / TSR_WARP * 16, 16 * WARPS,
                                            p->dz.wide);
        join(c, m);
        tsr_cluster_wait(); /* all have sent the chunk before, and read the one before that */
        if (i > 0)
            write_own(m, p, i - 1, weight);
        send(c, m, i % 2, p->block);
        tsr_cluster_arrive();
        weight = weight_here;
        at = at + 1 < STAGES ? at + 1 : 0;
    }
    tsr_cluster_wait();
    if (p->chunks)
        write_own(m, p, p->chunks - 1, weight);
    tsr_cluster_arrive();
    write_sums<GROUPS, THREADS, COLUMNS>(a->db, p, p->dz, false, sum);
    tsr_cluster_wait(); /* d_low is there, and nobody sends any more */
    return at;
}

/* da. The first rows of x are on their way. */
template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void pass_x(cluster_memory<GROUPS, THREADS, COLUMNS> *m,
                                              const cluster_place *p, int at, int next)
{
    const tsr_expert_low_rank_backward_args *a = p->a;
    const void *d_low = a->p ? a->weighted : a->d_low;
    float sum[PIECES][GROUPS][4] = {};
    for (int i = 0; i < STAGES - 1 && i < p->chunks; i++)
        fetch_low<GROUPS, THREADS>(m->low[(at + i) % STAGES], d_low, p, p->first + i * CHUNK);
    tsr_copy_commit();
    tsr_copy_wait();
    for (int i = 0; i < p->chunks; i++) {
        tsr_copy_wait_but<STAGES - 2>();
        __syncthreads(); /* as above */
        int item = p->chunks + i + STAGES - 1;
        fetch(m, p, item, at ? at - 1 : STAGES - 1, next, d_low);
        next = find_row<EACH>(p, item + 1);
        low_add_rows<GROUPS, PIECES, CHUNK>(sum, m->rows[at], PITCH, m->low[at],
                                            (int)threadIdx.x / TSR_WARP * 16, 16 * WARPS,
                                            p->x.wide);
        at = at + 1 < STAGES ? at + 1 : 0;
    }
    write_sums<GROUPS, THREADS, COLUMNS>(a->da, p, p->x, true, sum);
}

template <int GROUPS, int THREADS, int COLUMNS>
static __device__ __forceinline__ void run(const tsr_expert_low_rank_backward_args *a)
{
    extern __shared__ __align__(16) char memory[];
    cluster_memory<GROUPS, THREADS, COLUMNS> *m =
        (cluster_memory<GROUPS, THREADS, COLUMNS> *)memory;
    tsr_cluster_arrive(); /* before any block sends, all run */
    cluster_place p = find_place<GROUPS, THREADS>(a);
    int next = find_row<EACH>(&p, 0);
    fetch_factor<GROUPS, THREADS>(m->factor, &p);
    for (int i = 0; i < STAGES - 1; i++) {
        fetch(m, &p, i, i, next, i < p.chunks ? a->low : NULL);
        next = find_row<EACH>(&p, i + 1);
    }
    int at = pass_dz(m, &p, &next);
    pass_x(m, &p, at, next);
}

template <int GROUPS, int THREADS, int COLUMNS>
static __global__ void TSR_SM90_BOUNDS(THREADS)
    add_in_clusters(const __grid_constant__ tsr_expert_low_rank_backward_args a)
{
    tsr_kernel_begin();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    run<GROUPS, THREADS, COLUMNS>(&a);
#endif
}

/* ---- launching ---- */

template <int GROUPS, int THREADS, int COLUMNS>
static tsr_status launch(tsr_stream *stream, const tsr_expert_low_rank_backward_args *args)
{
    const char *op = "expert_low_rank_backward";
    void (*kernel)(const tsr_expert_low_rank_backward_args) =
        add_in_clusters<GROUPS, THREADS, COLUMNS>;
    int bytes = (int)sizeof(cluster_memory<GROUPS, THREADS, COLUMNS>);
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, bytes, op));
    TSR_LAUNCH_CLUSTERS(kernel, CLUSTER,
                        dim3((unsigned)(CLUSTER * args->rows.experts), tsr_blocks(args->r, RANKS)),
                        THREADS, (size_t)bytes, stream, *args);
    return tsr_launched(op);
}

bool tsr_expert_low_rank_in_clusters(const tsr_stream *stream,
                                     const tsr_expert_low_rank_backward_args *args)
{
    int64_t columns = cluster_columns(args->out > args->in ? args->out : args->in);
    return tsr_kernels_kept(stream)->boxes && columns <= (args->r <= 32 ? 512 : 256);
}

tsr_status tsr_expert_low_rank_backward_cluster(tsr_stream *stream,
                                                const tsr_expert_low_rank_backward_args *args)
{
    bool narrow = cluster_columns(args->out > args->in ? args->out : args->in) <= 256;
    if (args->r > 32)
        return launch<8, 256, 256>(stream, args);
    if (args->r > 16)
        return narrow ? launch<4, 128, 256>(stream, args) : launch<4, 256, 512>(stream, args);
    return narrow ? launch<2, 128, 256>(stream, args) : launch<2, 256, 512>(stream, args);
}
