/*
 * kernels/routed_glu.h: the backward through the weights of a token's experts and their gated unit (swiglu.h), in one pass over
 * the experts' rows, so that the unit's output need not be kept: it is made again, and not rounded.
 *
 *     y[t, :] = sum over j of p[t, j] act[r, :] W_down^T,   act = f(z_gate) z_up,   r = row[t, j]
 *
 * Given dact = dy W_down (not scaled by p):
 *
 *     dp[t, j] = <act[r, :], dact[r, :]>, or added to what the experts' biases have left there (combine.h)
 *     dz[r, :] of the gradient p[t, j] dact[r, :], as in swiglu.h
 *
 * dp of a slot that was left out (row -1) is 0 or stays; rows without a slot are not touched.
 *
 * Cost     5 T k f elements.
 */
#ifndef TSR_KERNELS_ROUTED_GLU_H
#define TSR_KERNELS_ROUTED_GLU_H

#include "kernels/activation.h"
#include "kernels/types.h"

typedef struct {
    float *dp;          /* [T, k] */
    void *dz;           /* [T k, 2 f] rows: of gate, then of up; may be z */
    const void *z;      /* [T k, 2 f] rows */
    const void *dact;   /* [T k, f] rows */
    const float *p;     /* [T, k] */
    const int32_t *row; /* [T, k] */
    int64_t tokens, k, f;
    bool add; /* to dp */
    tsr_activation activation;
    tsr_dtype dtype;
} tsr_routed_glu_backward_args;

tsr_status tsr_routed_glu_backward_check(const tsr_routed_glu_backward_args *args);
tsr_status tsr_routed_glu_backward_ref(const tsr_routed_glu_backward_args *args, tsr_pool *pool);

#endif
