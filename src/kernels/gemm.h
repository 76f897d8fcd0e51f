/*
 * kernels/gemm.h: C[m, n] = alpha op(A) op(B) + beta C.
 *
 * op(A) is [m, k]: A is stored [m, k], or [k, m] with trans_a; op(B) is [k, n]: B is stored [k, n],
 * or [n, k] with trans_b. So y = x W^T with W [out, in] is trans_b; dA = dS^T X is trans_a.
 * Leading dimensions are the elements between rows as stored; 0 means dense.
 * With beta 0, C is not read. k = 0 gives C = beta C. Sums are fp32. A 16-bit C is rounded once;
 * with beta not 0 a GPU may round alpha op(A) op(B) to it before it adds beta C.
 *
 * Cost     2 m n k FLOPs; (m k + k n) + (beta == 0 ? 1 : 2) m n elements moved.
 */
#ifndef TSR_KERNELS_GEMM_H
#define TSR_KERNELS_GEMM_H

#include "kernels/types.h"

typedef struct {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc; /* 0: dense */
    bool trans_a, trans_b;
    float alpha, beta;
    tsr_dtype dtype;   /* of A and B */
    tsr_dtype c_dtype; /* of C */
    bool fast; /* of a shape that stands for fp8_gemm in a list (fp8_gemm.h); else not used */
} tsr_gemm_args;

tsr_status tsr_gemm_check(const tsr_gemm_args *args);
tsr_status tsr_gemm_ref(const tsr_gemm_args *args, tsr_pool *pool);

#endif
