/*
 * kernels/mma_ring.cuh: tiles of matmuls by mma.sync: chunks of both operands go through a ring of buffers, filled by
 * asynchronous copies that gather rows as they go.
 *
 * Split    A block of 8 warps has a tile of 128 rows and 128 columns, a warp 64 x 32 of it. Chunks have 64 bytes of each row: 32
 *          summands in bf16, or 64 in e4m3, which to copies and ldmatrix are pairs: fragments of mma.m16n8k32 on e4m3 have
 *          their bytes where those of mma.m16n8k16 on bf16 do.
 * Cost     A chunk of a tile takes 16 KB from L2 for 1.05 MFLOP, in e4m3 2.1.
 */
#ifndef TSR_KERNELS_MMA_RING_CUH
#define TSR_KERNELS_MMA_RING_CUH

#include "kernels/mma.cuh"

#define THREADS 256
#define TILE    128 /* rows, and columns, of a block */
#define ROWS    64  /* of a warp */
#define STRIP   32  /* columns of a warp */
#define CHUNK   32  /* summands of a buffer, or pairs */
#define STAGES  3
#define PITCH   (CHUNK + 8) /* elements: rows lie 16 bytes further modulo 128, so no two collide */
#define W_PITCH (TILE + 8)  /* of W as it lies, where its rows are summands */
#define EACH    (TILE * CHUNK / TSR_VECTOR / THREADS) /* copies of a thread */

typedef struct {
    __nv_bfloat16 x[TILE * PITCH];
    __nv_bfloat16 w[TILE * PITCH]; /* [TILE, PITCH]; turned [CHUNK, W_PITCH], which is less */
} ring_stage;

static_assert(CHUNK * W_PITCH <= TILE * PITCH, "W fits both ways");

/* c += a b, of e4m3, 32 products: their bytes lie where those of 16 in bf16 do. From 8.9 on, in PTX 8.4 of CUDA 12.4. */
static __device__ __forceinline__ __attribute__((unused)) void
tsr_mma_e4m3(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890 && __CUDACC_VER_MAJOR__ >= 12
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(__CUDA_ARCH__)
    (void)c, (void)a, (void)b0, (void)b1;
    __trap(); /* tsr_fp8_mma_here says no */
#endif
}

/* What is multiplied, in elements of two bytes. */
typedef struct {
    const __nv_bfloat16 *x, *w; /* [rows, inner], [outer, inner]; turned [inner, outer] */
    int inner, outer;
} ring_operands;

/* Where a block is; and the rows of x that the thread copies of: -1: none. */
typedef struct {
    int row, column;
    int from[EACH];
} ring_place;

/* The row of the tile whose part the thread's copy i is. */
static __device__ __forceinline__ int ring_row(int i)
{
    return ((int)threadIdx.x + i * THREADS) / (CHUNK / TSR_VECTOR);
}

/* Summands from `first` on of both operands; what does not exist is zero. in_order: x's rows are the tile's, whatever `from`
 * is. */
static __device__ __forceinline__ void ring_fetch(ring_stage *stage, ring_operands o,
                                                  const ring_place *p, int first, bool turned,
                                                  bool in_order)
{
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = (int)threadIdx.x + i * THREADS;
        int row = ring_row(i), k = at % (CHUNK / TSR_VECTOR) * TSR_VECTOR;
        int from = in_order ? p->row + row : p->from[i];
        bool there = p->from[i] >= 0 && first + k < o.inner;
        tsr_copy16(stage->x + row * PITCH + k,
                   o.x + (there ? (int64_t)from * o.inner + first + k : 0), there);
        int column = turned ? at % (TILE / TSR_VECTOR) * TSR_VECTOR : row;
        k = turned ? at / (TILE / TSR_VECTOR) : k;
        there = p->column + column < o.outer && first + k < o.inner;
        int64_t place = turned ? (int64_t)(first + k) * o.outer + p->column + column
                               : (int64_t)(p->column + column) * o.inner + first + k;
        tsr_copy16(stage->w + (turned ? k * W_PITCH + column : column * PITCH + k),
                   o.w + (there ? place : 0), there);
    }
}

/* c += x w of a stage, for a warp: c[i][j] is row group i of 16, column group j of 8. */
template <bool CODES>
static __device__ __forceinline__ void ring_multiply(float c[4][4][4], const ring_stage *stage,
                                                     int row, int column, bool turned)
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
            if (turned)
                tsr_ldmatrix_t(w[i], stage->w + (k + low) * W_PITCH + column + 16 * i + high);
            else
                tsr_ldmatrix(w[i], stage->w + (column + 16 * i + lane % 8 + high) * PITCH + k +
                                       lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (CODES)
                    tsr_mma_e4m3(c[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
                else
                    tsr_mma(c[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
}

/* The same of e4m3: not `fast`, tensor cores add the 64 products of a chunk, and the rest is added in fp32. */
template <bool FAST>
static __device__ __forceinline__ __attribute__((unused)) void
ring_multiply_codes(float c[4][4][4], const ring_stage *stage, int row, int column)
{
    if (FAST) {
        ring_multiply<true>(c, stage, row, column, false);
        return;
    }
    float part[4][4][4] = {};
    ring_multiply<true>(part, stage, row, column, false);
#pragma unroll
    for (int i = 0; i < 64; i++)
        c[i / 16][i / 4 % 4][i % 4] += part[i / 16][i / 4 % 4][i % 4];
}

/* The stage before one, which nobody reads any more; and the next. */
static __device__ __forceinline__ int ring_before(int at)
{
    return at ? at - 1 : STAGES - 1;
}

static __device__ __forceinline__ int ring_after(int at)
{
    return at + 1 < STAGES ? at + 1 : 0;
}

#endif
