/*
 * kernels/expert_low_rank_backward.h: the gradient of the low-rank factors of all experts, whose weights
 * W_e + s B_e A_e were multiplied with merged (expert_weight.h).
 *
 * With x_i and dz_i the rows of x and dz that row i takes (expert_rows.h), sums over the rows of expert e:
 *   low[i] = RN_dtype(p_i A_e x_i)      db[e] = scale sum_i dz_i low_i^T
 *   d_low[i] = RN_dtype(scale p_i B_e^T dz_i)      da[e] = sum_i d_low_i x_i^T
 * Slots are for x, whose rows are tokens then; with `spread` they are for dz, the gradient of each token, of
 * which row i has p_i times. p_i is p[slot[i]], or 1 without p.
 * Sums in fp32, in an order that the number of an expert's rows alone decides. An expert without rows
 * gets zeros.
 *
 * Cost     4 rows r (in + out) FLOPs; rows (in + out) elements read twice, 4 bytes for each element of da and
 *          db written.
 */
#ifndef TSR_KERNELS_EXPERT_LOW_RANK_BACKWARD_H
#define TSR_KERNELS_EXPERT_LOW_RANK_BACKWARD_H

#include "kernels/expert_rows.h"

typedef struct {
    const void *x;  /* [tokens or rows, in] */
    const void *dz; /* [rows, out]; with spread [tokens, out] */
    const void *a;  /* [experts, r, in] */
    const void *b;  /* [experts, out, r] */
    float *da;      /* [experts, r, in] */
    float *db;      /* [experts, out, r] */
    void *scratch;  /* of tsr_expert_low_rank_backward_bytes at least, on 16 bytes */
    uint64_t scratch_bytes;
    const float *p; /* [rows.most], by slot, with spread; may be NULL */
    tsr_expert_rows rows;
    int64_t out, in, r;
    float scale;
    bool spread;
    tsr_dtype dtype; /* of x, dz, a and b */
} tsr_expert_low_rank_backward_args;

/* For at most so many rows, on every backend: low and d_low. */
uint64_t tsr_expert_low_rank_backward_bytes(tsr_dtype dtype, int64_t rows, int64_t r);

tsr_status tsr_expert_low_rank_backward_check(const tsr_expert_low_rank_backward_args *args);
tsr_status tsr_expert_low_rank_backward_ref(const tsr_expert_low_rank_backward_args *args,
                                            tsr_pool *pool);

#endif
