/*
 * kernels/row_square_norm.h: ||w_j||^2 of DoRA's factored norm (docs: FORMATS 3).
 *
 *     out[j] = RN_fp32(sum over k of w[j, k]^2)
 *
 * Sums in fp64 in a fixed order that depends on the row's length only, rounded once.
 *
 * Cost     rows columns elements read.
 */
#ifndef TSR_KERNELS_ROW_SQUARE_NORM_H
#define TSR_KERNELS_ROW_SQUARE_NORM_H

#include "kernels/types.h"

typedef struct {
    float *out;    /* [rows] */
    const void *w; /* [rows, columns] */
    int64_t rows, columns;
    tsr_dtype dtype; /* of w */
} tsr_row_square_norm_args;

tsr_status tsr_row_square_norm_check(const tsr_row_square_norm_args *args);
tsr_status tsr_row_square_norm_ref(const tsr_row_square_norm_args *args, tsr_pool *pool);

#endif
