/*
 * kernels/low_rank_residual.h: W - scale B A, a range of a flat weight at a time, on the host: what the base
 * keeps of a weight whose principal part its adapter starts from.
 *
 * The bits of an element depend on neither the range nor the number of threads.
 */
#ifndef TSR_KERNELS_LOW_RANK_RESIDUAL_H
#define TSR_KERNELS_LOW_RANK_RESIDUAL_H

#include "kernels/types.h"

typedef struct {
    const float *a; /* [r, in] */
    const float *b; /* [out, r] */
    int64_t r, in;
    float scale;
} tsr_low_rank_residual_args;

/* values: elements [first, first + count) of W [out, in], in place. The sum of a product is fp32. */
void tsr_low_rank_residual(float *values, const tsr_low_rank_residual_args *args, int64_t first,
                           int64_t count, tsr_pool *pool);

#endif
