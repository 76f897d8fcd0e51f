/*
 * kernels/row_dot.h: the row sums of DoRA's factored norm (docs: FORMATS 3).
 *
 *     row_dot            out[j] = RN_fp32(sum over k of a[j, k] b[j, k])
 *                        cross: B and U = W A^T; ba: B G and B, G = A A^T
 *     row_square_norm    out[j] = RN_fp32(sum over k of w[j, k]^2)
 *
 * Sums in fp64 in a fixed order that depends on the row's length only, rounded once.
 *
 * Cost     row_dot 2 rows columns elements read, row_square_norm 1.
 */
#ifndef TSR_KERNELS_ROW_DOT_H
#define TSR_KERNELS_ROW_DOT_H

#include "kernels/types.h"

typedef struct {
    float *out;        /* [rows] */
    const void *a, *b; /* [rows, columns] */
    int64_t rows, columns;
    int64_t lda, ldb; /* 0: columns */
    tsr_dtype a_dtype, b_dtype;
} tsr_row_dot_args;

typedef struct {
    float *out;    /* [rows] */
    const void *w; /* [rows, columns] */
    int64_t rows, columns;
    tsr_dtype dtype; /* of w */
} tsr_row_square_norm_args;

tsr_status tsr_row_dot_check(const tsr_row_dot_args *args);
tsr_status tsr_row_dot_ref(const tsr_row_dot_args *args, tsr_pool *pool);
tsr_status tsr_row_square_norm_check(const tsr_row_square_norm_args *args);
tsr_status tsr_row_square_norm_ref(const tsr_row_square_norm_args *args, tsr_pool *pool);

#endif
