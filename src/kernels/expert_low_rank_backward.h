/*
 * kernels/expert_low_rank_backward.h: the gradient of the low-rank factors of all experts, whose rows z_i are
 * W_e x_i + B_e (s A_e x_i) (grouped_gemm.h).
 *
 * With x_i and dz_i the rows of x and dz that row i takes (expert_rows.h), low_i = s A_e x_i and d_low_i = s B_e^T dz_i
 * (expert_low_rank.h), sums over the rows of expert e:
 *   db[e] = sum_i dz_i low_i^T      da[e] = sum_i d_low_i x_i^T
 * Slots are for x, whose rows are tokens then; with `spread` they are for dz, the gradient of each token: of a row that
 * has p_i times that, low and d_low are given p_i times (`weighted`).
 * Sums in fp32, in an order that the number of an expert's rows alone decides. An expert without rows
 * gets zeros.
 *
 * Cost     2 rows r (in + out) FLOPs; rows (in + out) elements read, 4 bytes for each element of da and db written.
 */
#ifndef TSR_KERNELS_EXPERT_LOW_RANK_BACKWARD_H
#define TSR_KERNELS_EXPERT_LOW_RANK_BACKWARD_H

#include "kernels/expert_rows.h"

typedef struct {
    const void *x;     /* [tokens or rows, in] */
    const void *dz;    /* [rows, out]; with spread [tokens, out] */
    const void *low;   /* [rows, r] */
    const void *d_low; /* [rows, r] */
    float *da;         /* [experts, r, in] */
    float *db;         /* [experts, out, r] */
    tsr_expert_rows rows;
    int64_t out, in, r;
    bool spread;
    tsr_dtype dtype; /* of x, dz, low and d_low */
} tsr_expert_low_rank_backward_args;

tsr_status tsr_expert_low_rank_backward_check(const tsr_expert_low_rank_backward_args *args);
tsr_status tsr_expert_low_rank_backward_ref(const tsr_expert_low_rank_backward_args *args,
                                            tsr_pool *pool);

#endif
