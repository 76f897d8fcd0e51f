/*
 * kernels/scale_backward.h: the backward of y = g z + bias, for the linears whose consumer is the
 * residual (o_proj, down_proj): dz = g dy, and
 *     dm[j] = (sum over t of dy[t, j] z[t, j]) / n[j]: the sum rounded once, then divided in fp32.
 *
 * Cost     3 tokens d elements with dm, else 2.
 */
#ifndef TSR_KERNELS_SCALE_BACKWARD_H
#define TSR_KERNELS_SCALE_BACKWARD_H

#include "kernels/types.h"

typedef struct {
    const void *dy; /* [tokens, d] */
    const void *z;  /* [tokens, d], with dm */
    const float *g; /* [d]; NULL: 1 */
    const float *n; /* [d], with dm */
    void *dz;       /* [tokens, d]; may be dy or z; NULL: only dm */
    float *dm;      /* [d], written; NULL: only dz */
    int64_t tokens, d;
    tsr_dtype dtype;
    float *partials; /* scratch of dm (types.h) */
} tsr_scale_backward_args;

tsr_status tsr_scale_backward_check(const tsr_scale_backward_args *args);
tsr_status tsr_scale_backward_ref(const tsr_scale_backward_args *args, tsr_pool *pool);

#endif
