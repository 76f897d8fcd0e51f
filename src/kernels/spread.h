/*
 * kernels/spread.h: rows of tokens as the rows of their experts (routes.h), with the weights:
 *     z[i, :] = p[slot[i]] x[slot[i] / k, :]      of rows that have a slot; others are not touched
 * It is the gradient of combine's rows.
 *
 * Cost     T h elements of x read, T k h written.
 */
#ifndef TSR_KERNELS_SPREAD_H
#define TSR_KERNELS_SPREAD_H

#include "kernels/types.h"

typedef struct {
    void *z;             /* [T k, h] rows, of dtype */
    const void *x;       /* [T, h] of dtype */
    const float *p;      /* [T, k] */
    const int32_t *slot; /* [T k]; -1: the row has none */
    int64_t tokens, k, h;
    tsr_dtype dtype;
} tsr_spread_args;

tsr_status tsr_spread_check(const tsr_spread_args *args);
tsr_status tsr_spread_ref(const tsr_spread_args *args, tsr_pool *pool);

#endif
