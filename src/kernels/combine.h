/*
 * kernels/combine.h: the outputs of a token's experts summed, and what biases add to the backward of that.
 *
 *     combine            y[t, :] = sum over j of p[t, j] z[row[t, j], :]      in the order of j, in fp32,
 *                        rounded once. A slot that was left out (row -1) adds nothing
 *     combine_backward   what the gradient of p has of the experts' biases, z = act W_down^T + bias:
 *                            dp[t, j] = <bias[e, :], dy[t, :]>
 *                        and 0 of a slot that was left out. routed_glu_backward has the rest
 *
 * Cost     combine T (k + 1) h elements, one T h more with add; combine_backward T k h, which L2 has.
 */
#ifndef TSR_KERNELS_COMBINE_H
#define TSR_KERNELS_COMBINE_H

#include "kernels/routes.h"

typedef struct {
    void *y;            /* [T, h] of dtype */
    const void *z;      /* [T k, h] rows */
    const float *p;     /* [T, k]; NULL: 1 */
    const int32_t *row; /* [T, k] */
    int64_t tokens, k, h;
    bool add; /* y is added to, before the rounding */
    tsr_dtype dtype;
} tsr_combine_args;

typedef struct {
    float *dp;               /* [T, k] */
    const int32_t *id, *row; /* [T, k] */
    tsr_frozen bias;         /* [E, h] */
    const void *dy;          /* [T, h] */
    int64_t tokens, k, h;
    tsr_dtype dtype;
} tsr_combine_backward_args;

tsr_status tsr_combine_check(const tsr_combine_args *args);
tsr_status tsr_combine_ref(const tsr_combine_args *args, tsr_pool *pool);
tsr_status tsr_combine_backward_check(const tsr_combine_backward_args *args);
tsr_status tsr_combine_backward_ref(const tsr_combine_backward_args *args, tsr_pool *pool);

#endif
