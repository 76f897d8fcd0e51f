/*
 * kernels/low_rank_backward.h: what the gradient of y += scale low B^T gives to its factors.
 *
 * db[j, k] = scale sum_t dy[t, j] low[t, k] in fp32, d_low[t, k] = RN_dtype(scale sum_j dy[t, j] b[j, k]),
 * sums in fp32. Zero tokens give a db of zero.
 *
 * Two matmuls that read the same dy, and for small ranks cost what reading it costs. With scratch, where
 * one kernel does it (below), dy is read once: a block multiplies each piece of dy that it holds with low
 * and with b. The sums over other blocks' tokens (db) and columns (d_low) pass through the scratch and are
 * added in a fixed order.
 *
 * Cost     4 tokens out r FLOPs; tokens out elements of dy, once or twice, and (tokens + out) r of the
 *          rest, twice. One kernel: also 8 r (splits out + strips tokens) bytes of partial sums, 12 % of dy
 *          for 8192 x 14336 at r 16, mostly in L2. On an H200 8192 tokens at r 16 take 81 us for out
 *          14336 (the floor at 4.2 TB/s is 56; two matmuls 123), 29 for 4096 (16; 46), 15.5 for 1024 (4.3; 20);
 *          at r 32 92, 35 and 17 (two matmuls 123, 44 and 21). The kernel of mma.sync: 90, 37 and 20 at r 16.
 */
#ifndef TSR_KERNELS_LOW_RANK_BACKWARD_H
#define TSR_KERNELS_LOW_RANK_BACKWARD_H

#include "kernels/gemm.h"

typedef struct {
    const void *dy;  /* [tokens, out] */
    const void *low; /* [tokens, r] */
    const void *b;   /* [out, r] */
    float *db;       /* [out, r] */
    void *d_low;     /* [tokens, r] */
    void *scratch;   /* for one kernel; may be NULL */
    uint64_t scratch_bytes;
    int64_t tokens, out, r;
    float scale;
    tsr_dtype dtype;
} tsr_low_rank_backward_args;

tsr_status tsr_low_rank_backward_check(const tsr_low_rank_backward_args *args);
tsr_status tsr_low_rank_backward_ref(const tsr_low_rank_backward_args *args, tsr_pool *pool);

/* How that is two matmuls: db, then d_low. */
void tsr_low_rank_backward_products(tsr_gemm_args product[2],
                                    const tsr_low_rank_backward_args *args);

/* ---- one kernel ---- */

#define TSR_LOW_RANK_MOST 32 /* the largest rank of one kernel on cards of sm_90a */
#define TSR_LOW_RANK_MMA  16 /* and on others: with 32 it took longer than the two matmuls */

/* A block has a strip of columns and a chunk of tokens, by the shape alone: about one block for each
 * multiprocessor of an H200, and few partial sums. */
typedef struct {
    int64_t columns; /* of a strip */
    int64_t strips;  /* partial sums of d_low */
    int64_t chunk;   /* tokens */
    int64_t splits;  /* partial sums of db */
} tsr_low_rank_tiling;

/* low_rank_backward.cu: 8 warps, some beside each other, each with 128 columns, and the others on other
 * tokens. */
#define TSR_LOW_RANK_WARPS 8
#define TSR_LOW_RANK_STRIP 128 /* columns of a warp */
#define TSR_LOW_RANK_TILE  16  /* tokens of a warp at a time */
tsr_low_rank_tiling tsr_low_rank_tiling_make(int64_t tokens, int64_t out, int64_t r);

/* low_rank_backward_wgmma.cu: one, two or four pieces of columns. */
#define TSR_LOW_RANK_PIECE 256 /* columns */
#define TSR_LOW_RANK_TURN  128 /* tokens at a time */
tsr_low_rank_tiling tsr_low_rank_boxes_make(int64_t tokens, int64_t out, int64_t r);

/* The scratch with which one kernel does it on a GPU, whichever of the two; 0: neither does. */
uint64_t tsr_low_rank_backward_bytes(tsr_dtype dtype, int64_t tokens, int64_t out, int64_t r);

/* Whether one kernel does it there, as far as shapes say: buffers must lie on 16 bytes, and a block
 * must get the shared memory. */
bool tsr_low_rank_backward_fused(const tsr_low_rank_backward_args *args);

#endif
