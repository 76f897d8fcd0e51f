/*
 * kernels/gemm_block.h: one serial matmul on the calling thread, for the CPU kernels that work on
 * tiles. Inside src/kernels only.
 */
#ifndef TSR_KERNELS_GEMM_BLOCK_H
#define TSR_KERNELS_GEMM_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t m, n, k;
    bool trans_a, trans_b;
    const float *a;
    int64_t lda;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    float alpha, beta;
} tsr_gemm_block_args;

/* C[m, n] = alpha op(A) op(B) + beta C; every leading dimension is given. Any number of threads may
 * call at once. */
void tsr_gemm_block(const tsr_gemm_block_args *block);

typedef struct {
    int64_t m, n, k;
    bool trans_a, trans_b;
    const double *a;
    int64_t lda;
    const double *b;
    int64_t ldb;
    double *c;
    int64_t ldc;
    double alpha, beta;
} tsr_gemm_block_double_args;

/* The same in fp64. */
void tsr_gemm_block_double(const tsr_gemm_block_double_args *block);

/* OpenBLAS' version, how it was built, and what it multiplies with. Borrowed. */
const char *tsr_gemm_block_library(void);

#endif
