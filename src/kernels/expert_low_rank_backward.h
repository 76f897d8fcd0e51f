/*
 * kernels/expert_low_rank_backward.h: the gradient of the low-rank factors of all experts, whose rows z_i are
 * W_e x_i + B_e (s A_e x_i) (grouped_gemm.h), and what the gradient of x_i takes of them.
 *
 * With x_i and dz_i the rows of x and dz that row i takes (expert_rows.h), and low_i = s A_e x_i (expert_low_rank.h):
 *   d_low_i = RN_dtype(s B_e^T dz_i)
 * and sums over the rows of expert e:
 *   db[e] = sum_i dz_i low_i^T      da[e] = sum_i d_low_i x_i^T
 * Slots are for x, whose rows are tokens then. With p they are for dz, the gradient of each token, of which a row has p_i
 * times: low is given p_i times, and of d_low da takes weighted_i = RN_dtype(p_i s B_e^T dz_i). p_i is p[slot[i]].
 * Sums in fp32, those of d_low in an order that `out` alone decides, the others in one that the number of an expert's rows
 * alone decides. An expert without rows gets zeros; rows of none are not touched.
 *
 * Cost     2 rows r (in + 2 out) FLOPs; rows (in + out) elements read, of dz twice where a card reads it for d_low and for db;
 *          4 bytes for each element of da and db written.
 */
#ifndef TSR_KERNELS_EXPERT_LOW_RANK_BACKWARD_H
#define TSR_KERNELS_EXPERT_LOW_RANK_BACKWARD_H

#include "kernels/expert_low_rank.h"

typedef struct {
    const void *x;   /* [tokens or rows, in] */
    const void *dz;  /* [rows, out]; with p [tokens, out] */
    const void *low; /* [rows, r] */
    const void *b;   /* [experts, out, r] */
    const float *p;  /* [rows.most], by slot; or NULL */
    void *d_low;     /* [rows, r] */
    void *weighted;  /* [rows, r]; with p */
    float *da;       /* [experts, r, in] */
    float *db;       /* [experts, out, r] */
    tsr_expert_rows rows;
    int64_t out, in, r;
    float scale;
    tsr_dtype dtype; /* of x, dz, low, b, d_low and weighted */
} tsr_expert_low_rank_backward_args;

/* The pass over dz that makes d_low and weighted, as an op of its own. */
static inline tsr_expert_low_rank_args
tsr_expert_low_rank_of_dz(const tsr_expert_low_rank_backward_args *args)
{
    return (tsr_expert_low_rank_args){.low = args->d_low,
                                      .weighted = args->p ? args->weighted : NULL,
                                      .x = args->dz,
                                      .factor = args->b,
                                      .p = args->p,
                                      .rows = args->rows,
                                      .width = args->out,
                                      .r = args->r,
                                      .scale = args->scale,
                                      .in_order = !args->p,
                                      .by_column = true,
                                      .dtype = args->dtype};
}

tsr_status tsr_expert_low_rank_backward_check(const tsr_expert_low_rank_backward_args *args);
tsr_status tsr_expert_low_rank_backward_ref(const tsr_expert_low_rank_backward_args *args,
                                            tsr_pool *pool);

#endif
