/*
 * kernels/dora_norm.h: the row norms of W + s B A, factored, so that the dense B A never exists
 * (FORMATS 3):
 *     ||w_j + s b_j A||^2 = ||w_j||^2 + 2 s <b_j, (W A^T)_j> + s^2 <b_j, (B A A^T)_j>
 * The callers' matmuls give U = W A^T, G = A A^T and B G, of the very values that the forward uses.
 *
 * Cost     3 out r floats read, 2 out r multiply-adds; no memory of its own. Rows are independent:
 *          the bits of a row do not depend on the range that it is computed in.
 */
#ifndef TSR_KERNELS_DORA_NORM_H
#define TSR_KERNELS_DORA_NORM_H

#include "kernels/types.h"

/* n and g of all rows. */
typedef struct {
    float *n, *g;           /* [rows], written */
    const float *m;         /* [rows]; NULL: fresh, m is n and g is 1 */
    const float *squares;   /* [rows] */
    const float *u;         /* [rows, r] */
    const float *bg;        /* [rows, r]: B G */
    const float *row_scale; /* [rows], optional: squares and u are of W's rows divided by it */
    const void *b;          /* [rows, r] of dtype */
    int64_t rows, r;
    double scale;
    tsr_dtype dtype;
} tsr_dora_norm_args;

/* n[j] = sqrt(max(0, (w2 + 2s cross) + s^2 ba)) of rows [first, first + count); 2s and s^2 computed in
 * double, then rounded; a NaN stays. w2 = squares[j] and cross = <b_j, u_j>, or with row_scale
 * c (c squares[j]) and c <b_j, u_j>, c = row_scale[j]. Arguments of dtype F32. */
void tsr_dora_norm(const tsr_dora_norm_args *args, int64_t first, int64_t count);

/* g = m / n. A row of zeros (n = 0) gives what the division gives. */
void tsr_dora_gain(float *g, const float *m, const float *n, uint64_t rows);

tsr_status tsr_dora_norm_check(const tsr_dora_norm_args *args);
tsr_status tsr_dora_norm_ref(const tsr_dora_norm_args *args, tsr_pool *pool);

#endif
