/*
 * kernels/low_rank_stack.h: several adapters, each on tokens of its own, in matmuls of all tokens.
 *
 * Stacked, A [R, in] has the rows of all adapters one below the other, B [out, R] their columns beside each other, R being
 * the sum of their ranks. Of x A^T a token keeps the columns of its own adapter, times the scale (low_rank_mask): then
 *
 *     z = low B^T,  dB = dz^T low,  d_low = dz B, masked alike,  dA = d_low^T x,  dx = d_low A
 *
 * are what every adapter gives its own tokens, and the gradients of all of them: the rest is added as zeros. Where dz or x of a
 * token is not finite, though, it is so in the gradients of all of them.
 *
 *     low_rank_stack   the adapters' A and B into the stacked ones; apart: the other way, for gradients
 *     low_rank_mask    low[t, j] = RN_dtype(scale low[t, j]) where column j is of the adapter that has token t, else 0
 *
 * Cost     stack: R (in + out) elements read and written; mask: tokens R elements.
 */
#ifndef TSR_KERNELS_LOW_RANK_STACK_H
#define TSR_KERNELS_LOW_RANK_STACK_H

#include "kernels/types.h"

#define TSR_LOW_RANK_STACK 16 /* adapters at most */

/* One adapter; of a stack that is taken apart both are written. */
typedef struct {
    void *a, *b; /* [r, in], [out, r] */
    int64_t r;
} tsr_low_rank_part;

typedef struct {
    void *a, *b; /* [R, in], [out, R] */
    tsr_low_rank_part part[TSR_LOW_RANK_STACK];
    int32_t count;
    bool apart;
    int64_t in, out;
    tsr_dtype dtype;
} tsr_low_rank_stack_args;

tsr_status tsr_low_rank_stack_check(const tsr_low_rank_stack_args *args);
tsr_status tsr_low_rank_stack_ref(const tsr_low_rank_stack_args *args, tsr_pool *pool);

/* Tokens [first, end) have columns [column, column + columns). */
typedef struct {
    int32_t first, end, column, columns;
    float scale;
} tsr_low_rank_owner;

typedef struct {
    void *low; /* [tokens, columns] */
    int64_t tokens, columns;
    tsr_low_rank_owner
        owner[TSR_LOW_RANK_STACK]; /* their tokens do not overlap; a token may be of none */
    int32_t count;
    tsr_dtype dtype;
} tsr_low_rank_mask_args;

tsr_status tsr_low_rank_mask_check(const tsr_low_rank_mask_args *args);
tsr_status tsr_low_rank_mask_ref(const tsr_low_rank_mask_args *args, tsr_pool *pool);

#endif
