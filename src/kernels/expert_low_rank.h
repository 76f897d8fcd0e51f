/*
 * kernels/expert_low_rank.h: each row times a low-rank factor of its expert: what grouped_gemm takes of an adapter, and what
 * expert_low_rank_backward sums.
 *
 * For row i of expert e, and x_i the row of x that it takes (expert_rows.h), F_e [r, width]:
 *   low[i] = RN_dtype(scale F_e x_i)      weighted[i] = RN_dtype(p_i scale F_e x_i)
 * p_i is p[slot[i]]. By column, the factor lies as [width, r]. With x, A and s: s x A^T; with dz, B and s: s dz B.
 * Sums in fp32, in an order that the width alone decides. Rows of none are not touched.
 *
 * Cost     2 rows r width FLOPs; x once, the factors once for 128 rows.
 */
#ifndef TSR_KERNELS_EXPERT_LOW_RANK_H
#define TSR_KERNELS_EXPERT_LOW_RANK_H

#include "kernels/expert_rows.h"

typedef struct {
    void *low;          /* [rows, r]; NULL: not wanted */
    void *weighted;     /* [rows, r]; NULL: not wanted */
    const void *x;      /* [tokens or rows, width] */
    const void *factor; /* [experts, r, width]; by_column [experts, width, r] */
    const float *p;     /* [rows.most], by slot, for weighted */
    tsr_expert_rows rows;
    int64_t width, r;
    float scale;
    bool in_order; /* x has the rows, whatever their slots */
    bool by_column;
    tsr_dtype dtype; /* of x, the factor and the results */
} tsr_expert_low_rank_args;

tsr_status tsr_expert_low_rank_check(const tsr_expert_low_rank_args *args);
tsr_status tsr_expert_low_rank_ref(const tsr_expert_low_rank_args *args, tsr_pool *pool);

#endif
