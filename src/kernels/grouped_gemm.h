/*
 * kernels/grouped_gemm.h: each row times the matrix of its expert.
 *
 * For row i of expert e in [first, first + count), and x_i the row of x that it takes (expert_rows.h):
 * forward z[i, :] = x_i W_e^T + low_i F_e^T + bias_e, backward z[i, :] = x_i W_e + low_i F_e. low and the factors F are an
 * adapter's (expert_low_rank.h): more summands of the same sums. Sums in fp32, rounded once. Rows of other experts, and rows of none, are not touched. Counts of rows are
 * read from `offset` when it runs: no launch depends on them.
 *
 * With w NULL W is what expert_weight makes of `stored` (its out, first and count do not count): the
 * same bits as of both ops, one after the other, for `held` experts at a time in `scratch`. On sm_90a NF4 codes whose
 * matrices leave no gaps and have rows in multiples of 64 are decoded as they are multiplied with where experts have few
 * rows, and are never written.
 *
 * On a GPU the order of a sum depends on its lengths alone, so a row's bits depend neither on where it lies
 * nor on how many others there are. On the CPU they may depend on how many rows its expert has.
 *
 * Cost     2 rows (out in + r outer) FLOPs; x, z, W, low and F once each, at best.
 */
#ifndef TSR_KERNELS_GROUPED_GEMM_H
#define TSR_KERNELS_GROUPED_GEMM_H

#include "kernels/expert_rows.h"
#include "kernels/expert_weight.h"

typedef struct {
    void *z;       /* [rows, out]; backward [rows, in] */
    const void *x; /* [tokens or rows, in]; backward [tokens or rows, out] */
    const void *w; /* [count, out, in], of the experts from `first` on; or NULL, and */
    tsr_expert_weight_args stored;
    void *scratch; /* [held, out, in] */
    int64_t held;
    const void *low;    /* [rows, r], in the order of the rows */
    const void *factor; /* [experts, out, r]; backward [experts, r, in] */
    int64_t r;          /* 0: no adapter */
    tsr_frozen bias;    /* [experts, out], forward only; may be NULL */
    tsr_expert_rows rows;
    int64_t first, count; /* of the experts */
    int64_t out, in;
    bool backward;
    tsr_dtype dtype; /* of z, x, w, low and factor */
} tsr_grouped_gemm_args;

tsr_status tsr_grouped_gemm_check(const tsr_grouped_gemm_args *args);
tsr_status tsr_grouped_gemm_ref(const tsr_grouped_gemm_args *args, tsr_pool *pool);

/* Of a call with w NULL: that of the experts from `first` on that scratch holds, and in *weight how they are
 * made. */
tsr_grouped_gemm_args tsr_grouped_gemm_part(tsr_expert_weight_args *weight,
                                            const tsr_grouped_gemm_args *args, int64_t first);

#endif
