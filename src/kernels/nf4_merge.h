/*
 * kernels/nf4_merge.h: a weight with its adapter: W + s B A, W from its NF4 codes.
 *
 * out[i, j] = RN_dtype(w[i, j] + scale sum_k b[i, k] a[k, j]), w as nf4_dequant.h has it before its
 * rounding, the sum in fp32. So the low-rank part is rounded with W, once, where W alone would have
 * been: x (W + s B A)^T is as exact as x W^T, and neither the product's output nor the gradient of x
 * is read and written again to add the low-rank part.
 *
 * DoRA's norms of these rows, n[i] = ||w_i + s b_i A||, are sums of squares of what is there before that
 * rounding, so they come with it: without a second decoding, and without W A^T. Where W itself is to be
 * multiplied with, `apart` writes that, bit for bit as nf4_dequant, and only the norms have s B A.
 *
 * Where what is multiplied with is W in e4m3, they come alone, without an output: with e4m3_scale, the
 * scales of fp8_decode.h for these codes, w[i, j] is what the code that fp8_decode makes stands for,
 * RN(value(code) e4m3_scale[i]).
 *
 * Cost     what nf4_dequant costs, and 2 rows columns r FLOPs; norms: 8 bytes for each 64 elements, in L2;
 *          alone, half a byte an element to read and nothing to write.
 */
#ifndef TSR_KERNELS_NF4_MERGE_H
#define TSR_KERNELS_NF4_MERGE_H

#include "kernels/gemm.h"
#include "kernels/nf4_dequant.h"
#include "kernels/nf4_quantize.h"

/* Sums in fp32 of a row's columns, by 64 at least, added in fp64 and rounded: n is its root, g = m / n. A
 * row of zeros (n = 0) gives what the division gives. Rows are independent. */
typedef struct {
    float *n, *g;    /* [rows], written; n NULL: no norms */
    const float *m;  /* [rows]; NULL: fresh, m is n and g is 1 */
    float *partials; /* scratch, tsr_nf4_merge_partials; the reference ignores it */
} tsr_nf4_merge_norms;

typedef struct {
    /* [rows, columns]: count and columns are set; no row_factor; out is NULL with norms alone. dtype is
     * that of a and b too. */
    tsr_nf4_dequant_args weight;
    const void *a; /* [r, columns] */
    const void *b; /* [rows, r] */
    int64_t r;
    float scale;
    bool apart; /* out is W alone; with norms */
    tsr_nf4_merge_norms norms;
    const float *e4m3_scale; /* [rows]: the norms alone, of W in e4m3; else NULL */
} tsr_nf4_merge_args;

/* Floats of its scratch. */
static inline int64_t tsr_nf4_merge_partials(int64_t rows, int64_t columns)
{
    return rows * ((columns + TSR_NF4_BLOCK - 1) / TSR_NF4_BLOCK);
}

/* Whether one kernel does it. Elsewhere the weight is made first, and what is added to it is rounded a
 * second time where the dtype is not F32, and there are no norms on a GPU. */
static inline bool tsr_nf4_merge_fused(tsr_dtype dtype, int64_t columns, int64_t r)
{
    return dtype == TSR_BF16 && columns % TSR_NF4_BLOCK == 0 && r > 0 && r % 8 == 0;
}

tsr_status tsr_nf4_merge_check(const tsr_nf4_merge_args *args);
tsr_status tsr_nf4_merge_ref(const tsr_nf4_merge_args *args, tsr_pool *pool);

/* out += scale b a, of a weight that is there. */
tsr_gemm_args tsr_nf4_merge_product(const tsr_nf4_merge_args *args);

#endif
