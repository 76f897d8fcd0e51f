/*
 * kernels/gemm_double.h: C[m, n] = alpha op(A) op(B) + beta C in fp64, on the host: what a
 * decomposition at start-up is made of. gemm.h has the meaning of trans_a, trans_b and the leading
 * dimensions. The split into blocks depends on the shape alone, so the bits do too.
 *
 * Cost     2 m n k FLOPs.
 */
#ifndef TSR_KERNELS_GEMM_DOUBLE_H
#define TSR_KERNELS_GEMM_DOUBLE_H

#include "kernels/types.h"

typedef struct {
    int64_t m, n, k;
    const double *a, *b;
    double *c;
    int64_t lda, ldb, ldc; /* 0: dense */
    bool trans_a, trans_b;
    double alpha, beta;
} tsr_gemm_double_args;

/* Every side at most INT32_MAX. */
void tsr_gemm_double(const tsr_gemm_double_args *args, tsr_pool *pool);

#endif
