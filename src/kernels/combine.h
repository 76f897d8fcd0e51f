/*
 * kernels/combine.h: the outputs of a token's experts summed, and the backward through that sum.
 *
 *     combine            y[t, :] = sum over j of p[t, j] z[row[t, j], :]      in the order of j, in fp32,
 *                        rounded once. A slot that was left out (row -1) adds nothing
 *     combine_backward   with z = act W_down^T + bias and dz = p dy of the row's token. Given
 *                        dact = dy W_down (not scaled by p), so that z need not be kept:
 *                            dp[t, j] = <act[r, :], dact[r, :]> + <bias[e, :], dy[t, :]>,  r = row[t, j]
 *                            dact[r, :] = p[t, j] dact[r, :]
 *                        dp of a slot that was left out is 0; rows without a slot are not touched
 *
 * Cost     combine T (k + 1) h elements, one T h more with add; combine_backward 3 T k inner elements,
 *          with bias T k h more, which L2 has.
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
    float *dp;               /* [T, k]; NULL: not wanted */
    void *dact_out;          /* [T k, inner] rows; may be dact */
    const void *act, *dact;  /* [T k, inner] rows; act with dp */
    const float *p;          /* [T, k]; NULL: 1 */
    const int32_t *id, *row; /* [T, k]; id with bias */
    tsr_frozen bias;         /* [E, h], optional */
    const void *dy;          /* [T, h], with bias */
    int64_t tokens, k, inner, h;
    tsr_dtype dtype;
} tsr_combine_backward_args;

tsr_status tsr_combine_check(const tsr_combine_args *args);
tsr_status tsr_combine_ref(const tsr_combine_args *args, tsr_pool *pool);
tsr_status tsr_combine_backward_check(const tsr_combine_backward_args *args);
tsr_status tsr_combine_backward_ref(const tsr_combine_backward_args *args, tsr_pool *pool);

#endif
