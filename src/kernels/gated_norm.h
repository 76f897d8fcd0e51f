/*
 * kernels/gated_norm.h: the RMSNorm of each head, gated: what linear attention ends with (Transformers'
 * Qwen3_5RMSNormGated), and its backward.
 *
 * Forward, for each row of `width` columns, y = g z (g NULL: 1):
 *     out = x rstd(x) w y sigmoid(y)             rstd(x) = 1 / sqrt(mean(x^2) + eps)
 * rows = tokens heads; g is over the heads.
 *
 * Backward: dout -> dx and dy, the gradient of g z. w is frozen.
 *
 * Cost     3 elements a column forward, 5 backward.
 */
#ifndef TSR_KERNELS_GATED_NORM_H
#define TSR_KERNELS_GATED_NORM_H

#include "kernels/types.h"

#define TSR_GATED_NORM_MOST 512 /* columns of a head */

typedef struct {
    const void *x, *z; /* [tokens, heads, width] */
    const float *g;    /* [heads, width], optional */
    tsr_frozen w;      /* [width] */
    void *out;         /* [tokens, heads, width]; may be x or z */
    int64_t tokens;
    int32_t heads, width;
    float eps;
    tsr_dtype dtype;
} tsr_gated_norm_args;

typedef struct {
    const void *dout;  /* [tokens, heads, width] */
    const void *x, *z; /* as in the forward */
    const float *g;
    tsr_frozen w;
    void *dx; /* [tokens, heads, width]; may be dout or x */
    void *dy; /* the same; may be z */
    int64_t tokens;
    int32_t heads, width;
    float eps;
    tsr_dtype dtype;
} tsr_gated_norm_backward_args;

tsr_status tsr_gated_norm_check(const tsr_gated_norm_args *args);
tsr_status tsr_gated_norm_ref(const tsr_gated_norm_args *args, tsr_pool *pool);
tsr_status tsr_gated_norm_backward_check(const tsr_gated_norm_backward_args *args);
tsr_status tsr_gated_norm_backward_ref(const tsr_gated_norm_backward_args *args, tsr_pool *pool);

#endif
